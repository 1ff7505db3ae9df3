"""A program that keeps keys, as `keys="command:…"` asks it: it knows nothing of holdfast."""

import json
import os
import secrets
import sys
from base64 import b32hexencode, b64encode
from hashlib import blake2b

root, verb, *words = sys.argv[1:]
word = words[0] if words else ""


def path(kind: str, name: str) -> str:
    return os.path.join(root, kind, blake2b(name.encode(), key=secret, digest_size=20).hexdigest())


def read(where: str) -> str:
    try:
        with open(where) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def only_once(where: str, text: str) -> None:
    """Puts a file there that is whole; whoever comes second changes nothing."""
    temporary = os.path.join(root, f"new.{os.getpid()}")
    with open(temporary, "w") as file:
        file.write(text)
    try:
        os.link(temporary, where)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)


for folder in ("", "names", "ids", "erased"):
    os.makedirs(os.path.join(root, folder), exist_ok=True)
only_once(os.path.join(root, "secret"), secrets.token_hex(32))
secret = bytes.fromhex(read(os.path.join(root, "secret")))

if verb == "make":
    key = {"id": secrets.token_hex(13), "name": word}
    key["key"] = b64encode(secrets.token_bytes(32)).decode()
    only_once(path("names", word), json.dumps(key))
    print(found := read(path("names", word)))
    only_once(path("ids", json.loads(found)["id"]), found)
elif verb == "find":
    print(read(path("names", word)))
elif verb == "get":
    print(read(path("ids", word)))
elif verb == "erased":
    print("true" if os.path.exists(path("erased", word)) else "false")
elif verb == "destroy":
    only_once(path("erased", word), "erased")
    if found := read(path("ids", word)):
        os.unlink(path("names", json.loads(found)["name"]))
        os.unlink(path("ids", word))
elif verb == "note":
    entry = sys.stdin.read()
    folder = os.path.join(root, "ledger")
    os.makedirs(folder, exist_ok=True)
    name = blake2b(entry.encode(), digest_size=16).hexdigest()
    if not any(one.endswith(name) for one in os.listdir(folder)):
        only_once(os.path.join(folder, f"{len(os.listdir(folder)):06d}.{name}"), entry)
elif verb == "noted":
    folder = os.path.join(root, "ledger")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    print("[" + ",".join(read(os.path.join(folder, one)) for one in names) + "]")
elif verb == "list":
    ids = os.path.join(root, "ids")
    keys = [json.loads(read(os.path.join(ids, one))) for one in os.listdir(ids)]
    print(json.dumps(sorted(keys, key=lambda one: one["id"])))
elif verb == "pseudonym":
    digest = blake2b(word.encode(), key=secret, digest_size=20).digest()
    print("p-" + b32hexencode(digest).decode().lower())

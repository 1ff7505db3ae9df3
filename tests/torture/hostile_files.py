"""Stores that somebody else has laid: what lies there is not what we would have put there.

A case is a whole store, made by us and then changed by an attacker who may write any byte, with
the right checksums and links too: nothing here is secret. It must open, or be refused with one of
our errors, whatever the verb; nothing outside changes, and nothing hangs.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import zstandard

import holdfast
from holdfast.backends.files.text import encode_line
from holdfast.backends.protocol import Append, Commit, Record
from holdfast.core import codec, event
from tests.torture.hostile_databases import databases, indexes
from tests.torture.hostile_ground import Ground
from tests.torture.hostile_words import TRAVERSAL, WORDS

Change = Callable[[Ground], None]
SEGMENT = "log/0000000000000000.jsonl"
NAMES = {
    "files": (
        *("holdfast.json", "head.json", "log", SEGMENT, "lock", "workers", "ring", "shared"),
        *("index.sqlite", "index.sqlite-journal", "leases.json", "objects", "objects/blob"),
        *("objects/snapshot", "torn", ".gitignore", "holdfast.json.new", "head.json.new", "BLOB"),
    ),
    "sqlite": ("", "-wal", "-shm", "-journal", "-witness", ".workers"),
}
DEEP = 20_000
JSON_TEXTS = (
    *("", "null", "[]", "{}", "5", '"x"', "[" * DEEP, '{"a":' * DEEP, "\0", "\ufeff{}", "{", "NaN"),
    *('{"format":1}', '{"format":2}', '{"format":"1","store":1}', '{"format":1e400}', "9" * 5000),
    *('{"format":1,"store":"../../x","created":"x"}', '{"format":1,"format":1,"store":"a"}'),
    *('{"end":-1,"position":-1,"digest":""}', '{"end":1e30,"position":1,"digest":"zz"}'),
    *('{"end":9223372036854775808,"position":9223372036854775808,"digest":"00"}', "\x1b[2J"),
    *(
        '{"end":5,"position":5,"digest":"' + "0" * 64 + '"}',
        '{"boot":1}',
        '{"boot":"x","leases":5}',
    ),
    *('{"boot":"BOOT","leases":{"l":["o",-1,9223372036854775807]},"claims":[]}',),
    *('{"boot":"BOOT","leases":{"../../x":["../../x",' + "9" * 30 + ',5]},"claims":[["a"]]}',),
    *('{"boot":"BOOT","leases":{},"claims":[["i","k",1,"../../x",9223372036854775807]]}',),
)
PAYLOADS = (
    *(
        "null",
        "5",
        '"x"',
        "[]",
        "{}",
        "[null]",
        "[[]]",
        '[["set"]]',
        '[["set","a"]]',
        '[["x","a",1]]',
    ),
    *('[["set",5,1]]', '[["set",["a",null],1]]', '[["set",["a",-1],1]]', '[["set",[],[]]]'),
    *('[["delete","nothing"]]', '[["append","a",1]]', '[["increment","a","x"]]', '[["set",[],5]]'),
    *('[["truncate","a",-1]]', '[["increment","a",1e308]]', '[["set",[["a"]],1]]', '[{"a":1}]'),
    *(
        '[["set","a",{"$bytes":"!!"}]]',
        '[["set","a",{"$float":"x"}]]',
        '[["set","a",{"$pairs":5}]]',
    ),
    *(
        '[["set","a",{"$blob":{"id":"../../../canary","size":9}}]]',
        '[["set","a",{"$py":"os.system"}]]',
    ),
    *('[["set","a",{"$blob":{"id":"' + "0" * 64 + '","size":9999999999999999}}]]',),
    *(
        '[["set","a",{"$text":"["}]]',
        '[["set","a",{"$text":[1]}]]',
        '[["set","a",{"$datetime":1}]]',
    ),
    *('[["set","a",{"$datetime":"0001-01-01T00:00:00+23:59"}]]', '[["set","a",1,2]]'),
    *(
        '[["set","a",' + "[" * 900 + "]" * 900 + "]]",
        '{"to":1,"ops":' + "[" * 900 + "]" * 900 + "}",
    ),
    *(
        '[["set","a",' + '{"a":' * 900 + "1" + "}" * 900 + "]]",
        '{"parent":' * 900 + "1" + "}" * 900,
    ),
    *('[["set","a",' + "[" * 500 + "]" * 500 + "]]", '[["set","a",' + "9" * 4900 + "]]"),
    *('[["set","a",' + '{"a":' * 150 + "1" + "}" * 150 + "]]", '[["set","a",{"b":1,"b":2}]]'),
    *('[["set",[' + ",".join(['"a"'] * 500) + "],1]]", '[["set","a","\\ud800"]]', '{"to":1}'),
    *('{"to":-5,"ops":[]}', '{"to":1,"ops":5}', '{"to":"x","ops":[]}', '{"to":9999,"ops":[]}'),
    *('{"from":"team/a","at":1}', '{"from":"team/b","at":1}', '{"from":"team/z","at":99999}'),
    *('{"from":5,"at":"x"}', '{"from":"../../x","at":-1}', '{"from":"","at":0}', '{"parent":5}'),
    *('{"parent":"team/a"}', '{"parent":"team/b"}', '{"parent":"../../x"}', '{"parent":null}'),
    *('{"parent":""}', '{"keep":5}', '{"keep":false}', '{"keep":null}', '{"$blob":{"id":1}}'),
    *('{"from":"team/a","at":9223372036854775808}', '{"parent":"' + "a" * 3000 + '"}'),
)
PLAIN = tuple(text for text in PAYLOADS if text[0] != "[" or len(text) < 10)
TYPES = ("changed", "restored", "forked", "opened", "closed", "\x1b[2J", "unknown")


def cases(backend: str, boot_id: str) -> list[tuple[str, Change]]:
    """Returns every case, by name."""
    if backend == "sqlite":
        return [*databases(), *_replaced(backend)]
    texts = [*_texts(boot_id), *_events(), *_forks(), *_streams(), *_lines()]
    return [*_blobs(), *indexes(), *_replaced(backend), *texts]


# --- what stands in the place of a file -----------------------------------------------------------


def _place(ground: Ground, name: str) -> Path:
    if ground.backend == "sqlite":
        return Path(str(ground.path) + name)
    if name == "BLOB":
        return next(path for path in ground.path.glob("objects/blob/*/*"))
    return ground.path / name


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for below in path.iterdir():
            _clear(below)
        path.rmdir()
    elif path.exists() or path.is_symlink():
        path.unlink()


def _link_file(path: Path, ground: Ground) -> None:
    path.symlink_to(ground.home / "canary")


def _link_folder(path: Path, ground: Ground) -> None:
    path.symlink_to(ground.place / "a")


def _link_up(path: Path, ground: Ground) -> None:
    path.symlink_to("../../../etc/passwd")


def _link_nowhere(path: Path, ground: Ground) -> None:
    path.symlink_to(ground.place / "made-through-a-link")


def _link_itself(path: Path, ground: Ground) -> None:
    path.symlink_to(path.name)


def _link_endless(path: Path, ground: Ground) -> None:
    path.symlink_to("/dev/zero")


def _pipe(path: Path, ground: Ground) -> None:
    os.mkfifo(path, 0o600)


def _socket(path: Path, ground: Ground) -> None:
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def _folder(path: Path, ground: Ground) -> None:
    path.mkdir(mode=0o700)
    (path / "x").write_text("")


def _sparse(path: Path, ground: Ground) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    path.chmod(0o600)


def _noise(path: Path, ground: Ground) -> None:
    path.write_bytes(bytes(range(256)) * 64)
    path.chmod(0o600)


def _empty(path: Path, ground: Ground) -> None:
    path.touch(0o600)


STAND_INS = {
    "a link to a file": _link_file,
    "a link to a folder": _link_folder,
    "a link upwards": _link_up,
    "a link to nowhere": _link_nowhere,
    "a link to itself": _link_itself,
    "a link to /dev/zero": _link_endless,
    "a pipe": _pipe,
    "a socket": _socket,
    "a folder": _folder,
    "a sparse file of 1 TiB": _sparse,
    "noise": _noise,
    "nothing in it": _empty,
}


def _replaced(backend: str) -> Iterator[tuple[str, Change]]:
    for name in NAMES[backend]:
        for what, put in STAND_INS.items():

            def change(ground: Ground, name: str = name, put: Any = put) -> None:
                path = _place(ground, name)
                _clear(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                put(path, ground)

            yield f"{what} in place of {name or 'the database'}", change
        for mode in (0o000, 0o666, 0o777, 0o1777):

            def open_up(ground: Ground, name: str = name, mode: int = mode) -> None:
                path = _place(ground, name)
                if path.exists():
                    path.chmod(mode)

            yield f"mode {mode:o} of {name or 'the database'}", open_up


# --- text -----------------------------------------------------------------------------------------


def _texts(boot_id: str) -> Iterator[tuple[str, Change]]:
    for name in ("holdfast.json", "head.json", "leases.json"):
        for text in JSON_TEXTS:

            def change(ground: Ground, name: str = name, text: str = text) -> None:
                said = text.replace("BOOT", boot_id)
                (ground.path / name).write_bytes(said.encode("utf-8", "surrogatepass"))
                (ground.path / name).chmod(0o600)

            yield f"{name} says {text[:60]!r}", change


def lay(ground: Ground, commits: list[Commit]) -> None:
    """Writes a log of its own into the store, as if it had never been closed."""
    (ground.path / "head.json").unlink(missing_ok=True)
    lines = [encode_line(commit, number)[0] for number, commit in enumerate(commits, 1)]
    (ground.path / SEGMENT).write_bytes(b"".join(lines))


def commit_of(
    stream: str,
    events: list[tuple[str, bytes]],
    *,
    first: int = 1,
    previous: bytes = event.ORIGIN,
    checkpoint: str | None = None,
    actor: str = "x",
    fork: bool = False,
) -> Commit:
    """Returns a commit whose links are right, whatever its events say."""
    time = 1_790_000_000_000_000
    records: list[Record] = []
    for revision, (kind, payload) in enumerate(events, first):
        bare = Record(stream, revision, time, kind, actor, payload, b"", checkpoint=checkpoint)
        previous = event.record_link(previous, bare)
        records.append(
            Record(stream, revision, time, kind, actor, payload, previous, checkpoint=checkpoint)
        )
    return Commit(time, actor, (Append(stream, first - 1, tuple(records), fork),))


def _events() -> Iterator[tuple[str, Change]]:
    """Every type of event with every payload, first in its stream and behind a proper one."""
    good = ("changed", b'[["set","a",{"b":[1]}]]')
    for kind in TYPES:
        for payload in (
            PAYLOADS if kind in TYPES[:2] else PLAIN if kind in TYPES[2:5] else PLAIN[::5]
        ):

            def change(ground: Ground, kind: str = kind, payload: str = payload) -> None:
                evil = (kind, payload.encode())
                alone = commit_of("team/a", [evil], fork=kind == "forked")
                behind = commit_of("team/b", [good, evil])
                lay(ground, [alone, behind])

            yield f"an event {kind!r} that says {payload[:60]}", change


def _forks() -> Iterator[tuple[str, Change]]:
    """Streams that begin in the middle, and say that they were forked from each other."""
    for payload in (*(text for text in PAYLOADS if '"from"' in text), "null", "[]", '"x"', "5"):

        def change(ground: Ground, payload: str = payload) -> None:
            evil = ("forked", payload.encode())
            back = ("forked", b'{"from":"team/a","at":1}')
            lay(
                ground,
                [
                    commit_of("team/a", [evil], first=2, fork=True),
                    commit_of("team/b", [back], first=2, fork=True),
                    commit_of("team/c", [back], first=9, fork=True),
                ],
            )

        yield f"a fork that says {payload[:60]}", change


def _streams() -> Iterator[tuple[str, Change]]:
    good = ("changed", b'[["set","a",1]]')
    for word in WORDS[::2]:
        if len(word) > 5000 or not word.isprintable():
            continue

        def change(ground: Ground, word: str = word) -> None:
            lay(
                ground,
                [
                    commit_of(word, [good]),
                    commit_of(f"team/{word}", [good], checkpoint=word, actor=word),
                    commit_of("team/a", [("changed", codec.encode([["set", word, word]]))]),
                ],
            )

        yield f"streams and names {word[:40]!r}", change


def _lines() -> Iterator[tuple[str, Change]]:
    """Lines with the right checksum that nobody of us would write."""
    link = "A" * 43
    at = "2026-11-16T00:14:47.123456Z"
    start = f'{{"n":1,"at":"{at}","by":"x"'
    bodies = [
        *(
            f'{{"n":{n},"at":"{at}","by":"x","in":[]'
            for n in (0, -1, 2, 10**19, 10**40, '"1"', 1.5)
        ),
        *(
            f'{{"n":1,"at":"{time}","by":"x","in":[["team/a",1,[["changed",[],"{link}"]]]]'
            for time in (
                "",
                "x",
                "9999-12-31T23:59:59.999999Z",
                "0001-01-01T00:00:00.-00001Z",
                at[:9],
            )
        ),
        *(
            f'{{"n":1,"at":"{at}","by":"x","in":[["team/a",{revision},[["changed",[],"{link}"]]]]'
            for revision in (0, -1, 2, 10**19, 10**40, '"1"', "null")
        ),
        *(
            f'{{"n":1,"at":"{at}","by":"x","in":[["team/a",1,[["changed",[],"{bad}"]]]]'
            for bad in ("", "A" * 42, "A" * 44, "é" * 43, "!" * 43)
        ),
        *(
            f'{{"n":1,"at":"{at}","by":"x","in":[],"set":[["i","k",{due},{priority},"g"]]'
            for due, priority in ((10**40, 0), (0, 10**40), (-(10**40), -1), ("null", 1), (1.5, 1))
        ),
        f'{{"n":1,"at":"{at}","by":"x","in":{"[" * DEEP}',
        f'{start},"in":[["team/a",1,[["changed",{"[" * DEEP}{"]" * DEEP},"{link}"]]]]',
        f'{{"n":1,"at":"{at}","by":"x","in":[["team/a",1,[]]]',
        f'{start},"in":[["team/a",1,[["changed",[],"{link}",null,null,["",""],"aes","k"]]]]',
        f'{{"n":1,"at":"{at}","by":"x","in":[["a",1,[["t",[],"{link}"]]],["a",1,[["t",[],"{link}"]]]]',
        f'{{"n":1,"at":"{at}","by":"x","in":[],"x":{"[" * DEEP}{"]" * DEEP}',
        f'{{"n":1,"at":"{at}","by":5,"in":5',
        "x" * 1000,
    ]
    for body in bodies:

        def change(ground: Ground, body: str = body) -> None:
            data = body.encode()
            (ground.path / "head.json").unlink(missing_ok=True)
            (ground.path / SEGMENT).write_bytes(data + b',"crc":"%08x"}\n' % crc32(data))

        yield f"a line {body[:70]}", change
    for length in (1 << 16, 1 << 20, 1 << 23):

        def long(ground: Ground, length: int = length) -> None:
            (ground.path / "head.json").unlink(missing_ok=True)
            (ground.path / SEGMENT).write_bytes(b"[" * length)

        yield f"a line of {length} bytes without an end", long


# --- blobs ----------------------------------------------------------------------------------------


@cache
def bomb() -> bytes:
    """Returns a zstd frame of a few kilobytes that holds 2 GiB, and does not say so."""
    pieces = zstandard.ZstdCompressor(level=1).compressobj()
    chunk = bytes(1 << 20)
    return b"".join(pieces.compress(chunk) for _ in range(2048)) + pieces.flush()


def lying_frame(says: int) -> bytes:
    """Returns a zstd frame whose header promises more than it holds."""
    return b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", says) + b"\x01\x00\x00"


def _blobs() -> Iterator[tuple[str, Change]]:
    frames: dict[str, tuple[Callable[[], bytes], int]] = {
        "an honest bomb of 128 MiB": (_honest_bomb, 128 << 20),
        "a bomb of 2 GiB without a size": (bomb, 2 << 30),
        "a bomb in place of 70 kB": (bomb, 70_000),
        "a frame that promises 8 PiB": (lambda: lying_frame(1 << 53), 9_007_199_254_740_992),
        "a frame that promises 8 PiB for 70 kB": (lambda: lying_frame(1 << 53), 70_000),
        "noise": (lambda: bytes(range(256)), 70_000),
        "nothing": (lambda: b"", 70_000),
    }
    for what, (make, size) in frames.items():
        for name in ("0" * 64, sha256(b"x").hexdigest()):

            def change(
                ground: Ground, make: Any = make, size: int = size, name: str = name
            ) -> None:
                folder = ground.path / "objects" / "blob" / name[:2]
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(make())
                payload = b'[["set","a",%b]]' % codec.blob_ref(name, size)
                lay(ground, [commit_of("team/a", [("changed", payload)])])

            yield f"blob {name[:4]}: {what}", change
    for word in TRAVERSAL[::3]:

        def strange(ground: Ground, word: str = word) -> None:
            payload = codec.encode_plain([["set", "a", {"$blob": {"id": word, "size": 9}}]])
            lay(ground, [commit_of("team/a", [("changed", payload)])])

        yield f"a blob named {word[:40]!r}", strange


@cache
def _honest_bomb() -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(bytes(128 << 20))


def template(ground: Ground) -> bool:
    """Makes the store that is changed: it has a blob, a lease, a mark, a fork, a checkpoint."""
    with holdfast.open(ground.url, durability="process") as store:
        scope = store.team("a")
        scope.set("text", "x" * 70_000, checkpoint="one")
        scope.append("log", {"n": 1})
        scope.fork("b").append("log", 2)
        with store.commit() as tx:
            tx.scope(scope).set("k", 1)
            tx.mark("todo", "one")
        store.workers.lease("l", ttl_s=3600)
        store.workers.claim("todo", ttl_s=3600)
    return True

"""Store keys: where the key of an encrypted store is read from, and what it wraps (0046).

A store key is 32 bytes, as hexadecimal digits or base64. It is kept outside the store:

    env:NAME              in an environment variable
    file:PATH             in a file
    command:WORDS         printed by a command, such as that of a vault
    keyring:SERVICE/NAME  in the keyring of the desktop or the system

It encrypts only the data keys of the store. So it can be changed without reading or writing any
data.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from base64 import b64decode
from hashlib import sha256

from holdfast.core.key_ring import load_keyring
from holdfast.core.sealing import derived_key, load_cipher
from holdfast.errors import StoreKeyError, UsageError, show_value

KEY_BYTES = 32
COMMAND_TIMEOUT_S = 30.0
_FILE_BYTES_MAX = 4096
_HEX = re.compile(r"[0-9a-fA-F]{64}\Z")
WHAT = "a store is encrypted"
SOURCES = "env:NAME, file:PATH, command:WORDS or keyring:SERVICE/NAME"


class StoreKey:
    """A key that wraps the data keys of stores. `id` names it, and reveals nothing of it."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise UsageError(
                f"a store key has {KEY_BYTES} bytes, found {len(key)}", hint="holdfast key new"
            )
        cipher, self._misfit = load_cipher(WHAT)
        self.id = sha256(b"holdfast store key id" + key).hexdigest()[:16]
        self._cipher = cipher(derived_key(key, b"wrap"))

    def __repr__(self) -> str:
        return f"<StoreKey {self.id}>"

    def wrap(self, data_key: bytes, about: bytes) -> bytes:
        """Returns a data key that only `unwrap` with this key can read."""
        return self._cipher.encrypt(bytes(12), data_key, about)

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes | None:
        """Returns a data key; None if it was changed, or was wrapped by another key."""
        try:
            return self._cipher.decrypt(bytes(12), wrapped, about)
        except (self._misfit, ValueError):
            return None


def to_store_key(given: object) -> StoreKey:
    """Returns a store key from a source such as `env:NAME`, from the key itself, or a StoreKey.

    Raises StoreKeyError if the source has no key, UsageError if what was given names none.
    """
    if isinstance(given, StoreKey):
        return given
    if isinstance(given, bytes):
        return StoreKey(given)
    if not isinstance(given, str):
        raise UsageError(f"store_key is {SOURCES}, or 32 bytes, found {_kind(given)}")
    source, colon, rest = given.partition(":")
    if not colon:
        return StoreKey(_decoded(given, "store_key"))
    reader = _READERS.get(source)
    if reader is None or not rest:
        raise UsageError(f"store_key is {SOURCES}, found {show_value(source + ':…')}")
    return StoreKey(_decoded(reader(rest), f"what {source}:{rest} holds"))


def _kind(given: object) -> str:
    """Returns the type of what was given in place of a key, never its value, which may be a key."""
    return f"an object of {type(given).__name__}"


def _decoded(text: str, where: str) -> bytes:
    """Returns the bytes of a key; an error does not repeat the text, which may be most of a key."""
    text = text.strip()
    try:
        found = bytes.fromhex(text) if _HEX.match(text) else b64decode(text, validate=True)
    except ValueError:
        found = b""
    if len(found) != KEY_BYTES:
        raise StoreKeyError(
            f"{where} is no store key: expected 32 bytes as 64 hexadecimal digits or base64, found "
            f"{len(text)} characters",
            hint="holdfast key new prints one",
        )
    return found


def _from_environment(name: str) -> str:
    found = os.environ.get(name)
    if not found:
        raise StoreKeyError(
            f'the variable "{name}", which has the store key, is not set',
            hint=f"set {name} to the key",
        )
    return found


def _from_file(path: str) -> str:
    try:
        with open(os.path.expanduser(path), "rb") as file:
            return file.read(_FILE_BYTES_MAX).decode(errors="replace")
    except OSError as error:
        raise StoreKeyError(
            f'the file "{path}", which has the store key, cannot be read: {error.strerror}',
            hint="bring it back from where it is kept",
        ) from error


def _from_command(words: str) -> str:
    command = shlex.split(words)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, IndexError, subprocess.TimeoutExpired) as error:
        raise StoreKeyError(f"the command that prints the store key failed: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[:200]
        raise StoreKeyError(
            f'"{command[0]}", which prints the store key, failed with {done.returncode}: {said}'
        )
    return done.stdout.decode(errors="replace")


def _from_keyring(place: str) -> str:
    service, slash, name = place.rpartition("/")
    if not slash or not service or not name:
        raise UsageError(f"a key in a keyring is keyring:SERVICE/NAME, found {show_value(place)}")
    try:
        found = load_keyring().get_password(service, name)
    except UsageError:
        raise
    except Exception as error:  # each keyring has errors of its own
        raise StoreKeyError(f"the keyring cannot be asked: {error}") from error
    if found is None:
        raise StoreKeyError(
            f'the keyring has no key "{name}" of "{service}"',
            hint=f"keyring set {service} {name}",
        )
    return found


_READERS = {
    "env": _from_environment,
    "file": _from_file,
    "command": _from_command,
    "keyring": _from_keyring,
}

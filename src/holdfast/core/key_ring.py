"""Keys of subjects in a keyring of the desktop or the system, through the package keyring.

A keyring keeps texts by a service and a name. It cannot list them, and it cannot set one only if
there is none. So keys are a chain, each naming the one before it, and a writer holds a lock:

    newest          the id of the newest key
    secret          the key of the digests of names
    id/<id>         {"before":<id>,"key":{…}}, or {"before":<id>} once its subject was erased
    name/<digest>   the id of the key of a subject, found by its name
    ledger          the digest of the newest entry of the ledger of what was erased
    entry/<digest>  {"before":<digest>,"key":<entry>}, a chain of its own

A key is made in the order id, newest, name, and erased in the order id, name. So after a kill at
any point, a name leads to a complete key, to an erased one, or to nothing. The lock is a file in
the user's folder. Readers take it too: a keyring that is a file is rewritten as a whole, and a read
in between could miss texts that are there.

How durable a text is, and whether a deleted one is overwritten, is up to the keyring.
"""

from __future__ import annotations

import fcntl
import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.clock import Clock, SystemClock
from holdfast.core.keystore import (
    KEY_BYTES,
    SubjectKey,
    decode_key,
    encode_key,
    to_pseudonym,
    user_folder,
)
from holdfast.errors import CorruptError, UnavailableError, UsageError, show_value
from holdfast.names import new_id


def load_keyring() -> Any:
    """Returns the module keyring, or raises a UsageError that says what to install."""
    try:
        return import_module("keyring")
    except ImportError as error:
        raise UsageError(
            "a key is in a keyring, and the package keyring is not installed",
            hint='pip install "holdfast[keyring]"',
        ) from error


class _Entry(Struct, omit_defaults=True):
    before: str | None = None
    key: Raw = Raw()


class KeyringKeys:
    """Keys in a keyring, under one service. Nothing is written before the first key is made."""

    def __init__(self, service: str, *, clock: Clock | None = None) -> None:
        if not service:
            raise UsageError(
                f"keys in a keyring are keyring:SERVICE, found {show_value('keyring:')}",
                hint='keys="keyring:my-agents"',
            )
        self._service = service
        self._clock = clock or SystemClock()
        self._keyring = load_keyring()
        self._secret: bytes | None = None

    def __repr__(self) -> str:
        return f"<KeyringKeys {self._service}>"

    def make(self, name: str) -> SubjectKey:
        """Returns the key of a subject by its name; makes one if there was none."""
        with self._locked():
            found = self._find(name, self._made_secret())
            if found is not None:
                return found
            key = SubjectKey(new_id(self._clock), name, self._clock.random_bytes(KEY_BYTES))
            self._store(key.id, _Entry(self._get("newest"), Raw(encode_key(key))))
            self._set("newest", key.id)
            self._set(self._name(name, self._made_secret()), key.id)
            return key

    def find(self, name: str) -> SubjectKey | None:
        """Returns the key of a subject by its name; None if there is none."""
        with self._locked(shared=True):
            secret = self._read_secret()
            return None if secret is None else self._find(name, secret)

    def get(self, id: str) -> SubjectKey | None:
        """Returns a key by the subject's id; None if it is not there."""
        with self._locked(shared=True):
            entry = self._entry(id)
            return None if entry is None else self._decoded(entry)

    def has(self, id: str) -> bool:
        """Returns whether the key of an id is there."""
        return self.get(id) is not None

    def is_erased(self, id: str) -> bool:
        """Returns whether the subject of an id was erased."""
        with self._locked(shared=True):
            entry = self._entry(id)
            return entry is not None and not entry.key

    def destroy(self, id: str) -> None:
        """Notes that a subject is erased and destroys its key, by one write of one text."""
        with self._locked():
            entry = self._entry(id)
            if entry is None:  # of another key store, or lost: the id is still noted as erased
                self._store(id, _Entry(self._get("newest")))
                self._set("newest", id)
                return
            found = self._decoded(entry)
            self._store(id, _Entry(entry.before))
            if found is not None:
                place = self._name(found.name, self._made_secret())
                if self._get(place) == id:
                    self._delete(place)

    def subjects(self) -> list[SubjectKey]:
        """Returns every key that is there, ordered by id."""
        found: list[SubjectKey] = []
        with self._locked(shared=True):
            id, secret = self._get("newest"), self._read_secret()
            while id is not None and secret is not None:
                entry = self._entry(id)
                if entry is None:
                    raise self._damaged(f"id/{id}")
                key = self._decoded(entry)
                # A key without a name was never returned by `make`, which was killed: it seals
                # nothing.
                if key is not None and self._get(self._name(key.name, secret)) == id:
                    found.append(key)
                id = entry.before
        return sorted(found, key=lambda key: key.id)

    def pseudonym(self, text: str) -> str:
        """Returns a digest of text under a secret of this key store."""
        with self._locked():
            return to_pseudonym(self._made_secret(), text)

    def note(self, entry: bytes) -> None:
        """Keeps an entry of the ledger of what was erased."""
        digest = sha256(entry).hexdigest()[:32]
        with self._locked():
            before = self._get("ledger")
            if digest not in self._chain(before):
                self._store(digest, _Entry(before, Raw(entry)), kind="entry")
                self._set("ledger", digest)

    def noted(self) -> list[bytes]:
        """Returns the entries that were noted, oldest first."""
        with self._locked(shared=True):
            return [*self._chain(self._get("ledger")).values()][::-1]

    def _chain(self, digest: str | None) -> dict[str, bytes]:
        """Returns the entries of the ledger by digest, from the given one back to the oldest."""
        found: dict[str, bytes] = {}
        while digest is not None:
            entry = self._entry(digest, kind="entry")
            if entry is None:
                raise self._damaged(f"entry/{digest}")
            found[digest] = bytes(entry.key)
            digest = entry.before
        return found

    # --- entries -----------------------------------------------------------------------------

    def _find(self, name: str, secret: bytes) -> SubjectKey | None:
        id = self._get(self._name(name, secret))
        entry = None if id is None else self._entry(id)
        return None if entry is None else self._decoded(entry)

    def _entry(self, id: str, *, kind: str = "id") -> _Entry | None:
        text = self._get(f"{kind}/{id}")
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=_Entry)
        except msgspec.MsgspecError as error:
            raise self._damaged(f"{kind}/{id}") from error

    def _decoded(self, entry: _Entry) -> SubjectKey | None:
        """Returns the key of an entry; None if its subject was erased."""
        if not entry.key:
            return None
        found = decode_key(bytes(entry.key))
        if found is None:
            raise self._damaged("a key")
        return found

    def _store(self, id: str, entry: _Entry, *, kind: str = "id") -> None:
        self._set(f"{kind}/{id}", msgspec.json.encode(entry).decode())

    def _damaged(self, what: str) -> CorruptError:
        return CorruptError(
            f'{what} of "{self._service}" in the keyring is damaged or missing: what it sealed '
            "cannot be read",
            where=f"keyring:{self._service}",
            hint="bring the keyring back from a backup",
        )

    def _name(self, name: str, secret: bytes) -> str:
        digest = hmac.new(secret, name.encode(errors="surrogatepass"), sha256)
        return f"name/{digest.hexdigest()}"

    def _read_secret(self) -> bytes | None:
        if self._secret is None:
            text = self._get("secret")
            self._secret = None if text is None else b64decode(text)
        return self._secret

    def _made_secret(self) -> bytes:
        secret = self._read_secret()
        if secret is None:
            secret = self._clock.random_bytes(KEY_BYTES)
            self._set("secret", b64encode(secret).decode())
            self._secret = secret
        return secret

    # --- the keyring -------------------------------------------------------------------------

    def _get(self, name: str) -> str | None:
        with self._reported():
            return self._keyring.get_password(self._service, name)

    def _set(self, name: str, text: str) -> None:
        with self._reported():
            self._keyring.set_password(self._service, name, text)
            found = self._keyring.get_password(self._service, name)
        if found != text:  # one backend of the package keeps nothing, and raises nothing
            raise UnavailableError(
                f'the keyring {self._keyring.get_keyring()} does not keep what "{self._service}" '
                "gives it",
                hint="configure another keyring, or keep keys in a folder",
            )

    def _delete(self, name: str) -> None:
        with self._reported():
            self._keyring.delete_password(self._service, name)

    @contextmanager
    def _reported(self) -> Generator[None]:
        try:
            yield
        except Exception as error:  # each keyring raises its own classes of errors
            raise UnavailableError(
                f'the keys of "{self._service}" in the keyring are out of reach: '
                f"{str(error).partition('.')[0] or type(error).__name__}",
                hint="a machine without a desktop has no keyring: configure one (keyring --help), "
                "or keep keys in a folder: keys=…",
            ) from error

    @contextmanager
    def _locked(self, *, shared: bool = False) -> Generator[None]:
        """Holds the lock that all processes of this user share for keyrings."""
        path = user_folder() / "keyring.lock"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _no_lock(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _no_lock(path: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f'"{path}", by which processes take turns at the keyring, cannot be opened: '
        f"{error.strerror}",
        hint="XDG_DATA_HOME names the folder that it is below",
    )

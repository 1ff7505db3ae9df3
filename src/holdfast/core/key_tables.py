"""Keys of subjects as rows of a database: a SQLite file or a PostgreSQL database.

It is never the database of the store: a backup of that would contain the keys too.

    keys     id, a keyed digest of the name, and the key as the same document that files have
    erased   the id of each subject that was erased
    notes    the secret that keys the digests of names
    ledger   which records lost their data, so that older backups can be corrected

If two processes make the key of one name, the database accepts one row, and both read that one. An
erasure is one transaction: the id is noted and the row is deleted. Then the database's files are
scrubbed, because a deleted row may still be in their bytes.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Any

from holdfast.backends.registry import open_key_rows
from holdfast.clock import Clock, SystemClock
from holdfast.core.keystore import (
    KEY_BYTES,
    SubjectKey,
    decode_key,
    encode_key,
    to_pseudonym,
)
from holdfast.errors import CorruptError
from holdfast.names import new_id

_SECRET = "secret"
_NOTE = "SELECT document FROM holdfast.notes WHERE name = ?"
_ADD_NOTE = "INSERT INTO holdfast.notes (name, document) VALUES (?, ?) ON CONFLICT DO NOTHING"
_BY_NAME = "SELECT document FROM holdfast.keys WHERE name = ?"
_BY_ID = "SELECT document FROM holdfast.keys WHERE id = ?"
_HAS = "SELECT 1 FROM holdfast.keys WHERE id = ?"
_ALL = "SELECT document FROM holdfast.keys ORDER BY id"
_ADD = "INSERT INTO holdfast.keys (id, name, document) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_DROP = "DELETE FROM holdfast.keys WHERE id = ?"
_ERASED = "SELECT 1 FROM holdfast.erased WHERE id = ?"
_LEDGER = "SELECT entry FROM holdfast.ledger ORDER BY noted, digest"
_ADD_ENTRY = (
    "INSERT INTO holdfast.ledger (digest, noted, entry) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
)
_ADD_ERASED = "INSERT INTO holdfast.erased (id) VALUES (?) ON CONFLICT DO NOTHING"


class TableKeys:
    """Keys in tables of a database, `sqlite:FILE` or `postgresql://…`, that is not the store's.

    Nothing is written there before the first key is made. The code that makes a TableKeys must
    close it.
    """

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._rows = open_key_rows(url)
        self._clock = clock or SystemClock()
        self._secret: bytes | None = None

    def __repr__(self) -> str:
        return f"<TableKeys {self._rows.shown}>"

    @property
    def path(self) -> str | None:
        """The file of the database; None if a server has it."""
        return self._rows.path

    def make(self, name: str) -> SubjectKey:
        """Returns the key of a subject by its name; makes one, durably, if there was none."""
        while True:
            found = self.find(name)
            if found is not None:
                return found
            key = SubjectKey(new_id(self._clock), name, self._clock.random_bytes(KEY_BYTES))
            document = encode_key(key).decode()
            self._rows.write((_ADD, (key.id, self._digest(name), document)))

    def find(self, name: str) -> SubjectKey | None:
        """Returns the key of a subject by its name; None if there is none."""
        if self._read_secret() is None:
            return None
        return self._key(_BY_NAME, self._digest(name))

    def get(self, id: str) -> SubjectKey | None:
        """Returns a key by the subject's id; None if it is not there."""
        return self._key(_BY_ID, id)

    def has(self, id: str) -> bool:
        """Returns whether the key of an id is there."""
        return bool(self._rows.ask(_HAS, (id,)))

    def is_erased(self, id: str) -> bool:
        """Returns whether the subject of an id was erased."""
        return bool(self._rows.ask(_ERASED, (id,)))

    def destroy(self, id: str) -> None:
        """Notes that a subject is erased and destroys its key."""
        self._rows.write((_ADD_ERASED, (id,)), (_DROP, (id,)))
        self._rows.scrub()

    def subjects(self) -> list[SubjectKey]:
        """Returns every key that is there, ordered by id."""
        return [self._decoded(document) for (document,) in self._rows.ask(_ALL) or ()]

    def pseudonym(self, text: str) -> str:
        """Returns a digest of text under a secret of this key store."""
        return to_pseudonym(self._made_secret(), text)

    def note(self, entry: bytes) -> None:
        """Keeps an entry of the ledger of what was erased."""
        noted = f"{self._clock.now_us():020d}"
        self._rows.write((_ADD_ENTRY, (sha256(entry).hexdigest(), noted, entry.decode())))

    def noted(self) -> list[bytes]:
        """Returns the entries that were noted, oldest first."""
        return [entry.encode() for (entry,) in self._rows.ask(_LEDGER) or ()]

    def check_apart(self, facts: dict[str, Any]) -> None:
        """Raises UsageError if the backend with this description is the same database."""
        self._rows.check_apart(facts)

    def close(self) -> None:
        """Closes the connections to the database."""
        self._rows.close()

    def _key(self, statement: str, value: str) -> SubjectKey | None:
        rows = self._rows.ask(statement, (value,))
        return self._decoded(rows[0][0]) if rows else None

    def _decoded(self, document: str) -> SubjectKey:
        found = decode_key(document.encode())
        if found is None:
            raise CorruptError(
                f'a key in "{self._rows.shown}" is damaged: what it sealed cannot be read',
                where=self._rows.shown,
                hint="bring the row back from a backup of the keys",
            )
        return found

    def _digest(self, name: str) -> str:
        secret = self._made_secret()
        return hmac.new(secret, name.encode(errors="surrogatepass"), sha256).hexdigest()

    def _read_secret(self) -> bytes | None:
        if self._secret is None:
            rows = self._rows.ask(_NOTE, (_SECRET,))
            self._secret = b64decode(rows[0][0]) if rows else None
        return self._secret

    def _made_secret(self) -> bytes:
        if self._read_secret() is None:
            random = b64encode(self._clock.random_bytes(KEY_BYTES)).decode()
            self._rows.write((_ADD_NOTE, (_SECRET, random)))
        secret = self._read_secret()
        assert secret is not None, "BUG: no secret although it is made"
        return secret

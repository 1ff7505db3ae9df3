"""The tables of a key store in a database: the interface, and its implementation for SQLite.

Statements write tables as `holdfast.keys` and values as `?`; each implementation replaces these by
its database's own words. When `scrub` returns, deleted rows must be gone from the database's own
files, as far as that database can do it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, Protocol

import apsw

from holdfast.backends.forking import forking
from holdfast.errors import CorruptError, UnavailableError, UsageError, show_error

BUSY_MS = 30_000
APPLICATION_ID = 0x686B6579
"""The number in the header of a SQLite file that marks it as a file of keys."""
Values = Sequence[str]
Rows = list[tuple[Any, ...]]


class KeyRows(Protocol):
    """The tables of one key store, in one database."""

    shown: str
    """Where they are, without secrets."""
    path: str | None
    """The file that has them; None if a server has."""

    def ask(self, statement: str, values: Values = ()) -> Rows | None:
        """Returns the rows of a statement that reads; None if the tables were never made."""
        ...

    def write(self, *statements: tuple[str, Values]) -> None:
        """Makes the tables if needed, then executes all statements or none, durably."""
        ...

    def scrub(self) -> None:
        """Removes what was deleted from the files of the database, as far as it can."""
        ...

    def check_apart(self, facts: dict[str, Any]) -> None:
        """Raises UsageError if a backend, by the facts it reports, is in the same database."""
        ...

    def close(self) -> None:
        """Closes what is open; calling it twice is fine."""
        ...


TABLES = (
    "CREATE TABLE IF NOT EXISTS holdfast.keys ("
    "id text PRIMARY KEY, name text NOT NULL UNIQUE, document text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS holdfast.erased (id text PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS holdfast.notes (name text PRIMARY KEY, document text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS holdfast.ledger ("
    "digest text PRIMARY KEY, noted text NOT NULL, entry text NOT NULL)",
)
"""Format 1: keys by id and by a keyed digest of their names, the ids of the erased, notes, one of
which is the secret that names are digested with, and the ledger of what was erased."""


class SqliteKeyRows:
    """Tables in a SQLite file.

    The rollback journal stays in its place between transactions (`PERSIST`), so that old pages with
    a key can be overwritten in it: a journal that is deleted leaves its bytes on the disk.
    `secure_delete` overwrites deleted rows inside the file itself. A write-ahead log is not used:
    it would keep old pages for as long as anybody reads.
    """

    def __init__(self, path: str) -> None:
        self.path: str | None = os.path.abspath(os.path.expanduser(path))
        self._path: str = self.path
        self.shown = f"sqlite:{self._path}"
        self._lock = RLock()
        forking.wait_for(self._lock)
        self._open: tuple[int, Any] | None = None

    def ask(self, statement: str, values: Values = ()) -> Rows | None:
        with self._lock, self._reported():
            connection = self._connection(create=False)
            if connection is None:
                return None
            return connection.execute(_spelt(statement), tuple(values)).fetchall()

    def write(self, *statements: tuple[str, Values]) -> None:
        with self._lock, self._reported():
            connection = self._connection(create=True)
            with _transaction(connection, "IMMEDIATE"):
                for statement, values in statements:
                    connection.execute(_spelt(statement), tuple(values))

    def scrub(self) -> None:
        """Overwrites the journal; deleted rows in the file were overwritten when they were deleted.

        Done in an exclusive transaction that changes nothing: nobody else can use the journal then,
        and this transaction does not need it.
        """
        with self._lock, self._reported():
            connection = self._connection(create=False)
            if connection is None:
                return
            with _transaction(connection, "EXCLUSIVE"):
                _zero(f"{self._path}-journal")

    def check_apart(self, facts: dict[str, Any]) -> None:
        store = facts.get("path")
        is_same = isinstance(store, str) and (
            os.path.realpath(store) == os.path.realpath(self._path)
            or (os.path.exists(store) and os.path.exists(self._path)
                and os.path.samefile(store, self._path))
        )  # fmt: skip
        if is_same:
            raise UsageError(
                f'the keys in "{self._path}" are in the database of the store itself: a backup of '
                "it would have them too, and nothing could be erased from it",
                hint='name another file: keys="sqlite:keys.db"',
            )

    def close(self) -> None:
        with self._lock:
            if self._open is not None and self._open[0] == os.getpid():
                self._open[1].close()
            self._open = None

    def _connection(self, *, create: bool) -> Any:
        """Returns the connection of this process; None if there are no tables to be read."""
        if self._open is not None and self._open[0] != os.getpid():
            self._open = None  # inherited from the parent process: `forking` ends it
        if self._open is None:
            if not create and not os.path.exists(self._path):
                return None
            self._open = os.getpid(), self._connect(create=create)
        connection = self._open[1]
        if connection.pragma("application_id") == APPLICATION_ID:
            return connection
        if create:
            self._make_tables(connection)
            return connection
        with _transaction(connection, "DEFERRED"):
            return connection if self._is_made(connection) else None

    def _connect(self, *, create: bool) -> Any:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        if create and not os.path.exists(self._path):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # for its owner alone
        connection = forking.connect(self._path, flags=flags)
        connection.set_busy_timeout(BUSY_MS)
        for pragma, value in _PRAGMAS.items():
            connection.pragma(pragma, value)
        return connection

    def _make_tables(self, connection: Any) -> None:
        with _transaction(connection, "IMMEDIATE"):
            if self._is_made(connection):
                return  # another process was faster
            for statement in TABLES:
                connection.execute(_spelt(statement))
            connection.pragma("application_id", APPLICATION_ID)

    def _is_made(self, connection: Any) -> bool:
        """Returns whether the tables are there; raises UsageError if the file has other tables.

        To be called in a transaction: another process could make the tables between the two looks,
        and they would pass for somebody else's.
        """
        if connection.pragma("application_id") == APPLICATION_ID:
            return True
        if connection.execute("SELECT 1 FROM sqlite_master").fetchall():
            raise UsageError(
                f'"{self._path}" is a database with other tables: keys have one of their own',
                hint='name a new file: keys="sqlite:keys.db"',
            )
        return False

    @contextmanager
    def _reported(self) -> Generator[None]:
        try:
            yield
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise CorruptError(
                f'the keys in "{self._path}" are damaged: {show_error(error)}',
                where=self._path,
                hint="bring the file back from a backup of the keys",
            ) from error
        except (apsw.Error, OSError) as error:
            raise UnavailableError(
                f'the keys in "{self._path}" are out of reach: {show_error(error)}',
                hint="keys=… or HOLDFAST_KEYS say where they are",
            ) from error


_PRAGMAS = {"journal_mode": "persist", "synchronous": "extra", "secure_delete": "on"}
_BEGIN = {kind: f"BEGIN {kind}" for kind in ("DEFERRED", "IMMEDIATE", "EXCLUSIVE")}


def _spelt(statement: str) -> str:
    return statement.replace("holdfast.", "")


@contextmanager
def _transaction(connection: Any, kind: str) -> Generator[None]:
    connection.execute(_BEGIN[kind])
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _zero(path: str) -> None:
    """Writes zeros over a file in place, durably; does nothing if there is no such file."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return
    try:
        os.pwrite(descriptor, bytes(os.fstat(descriptor).st_size), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

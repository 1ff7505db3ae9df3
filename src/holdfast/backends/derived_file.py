"""Derived tables in a SQLite file of their own, with FTS5; or in memory, where there is no place.

The file lies in a folder of its own beside the store, with `indexer.lock` next to it: the right to
fill the tables is a flock on that file, and never on the database, whose locks belong to SQLite.
Nothing of the store depends on either. The folder may be deleted while nobody uses the store.

The file's name has a number. Tables that must be made again are made in a file of the next number:
another process may still have the old one open, and at its end SQLite removes a WAL by its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from threading import RLock
from time import monotonic, sleep
from typing import Any, TypeVar

import apsw

from holdfast.backends.derived_tables import (
    Condition,
    DamagedTablesError,
    SelectLimits,
    SideSession,
    Values,
)
from holdfast.errors import LimitError, UnavailableError, UsageError, show_error

T = TypeVar("T")
_logger = logging.getLogger("holdfast.query")
IN_MEMORY = ":memory:"
_FILE = re.compile(r"index-([0-9]{1,9})\.db")
LOCK = "indexer.lock"
BUSY_MS = 10_000
COUNTED_MAX = 20_000
"""Up to so many documents, their numbers bound where words are looked for."""
_BITS = 20
_NUMBER_MAX = 1 << 42
_LENGTH_MAX = 1_000_000_000
_LONG = "SELECT 1 FROM docs WHERE chunks > 1 AND n BETWEEN ? AND ? LIMIT 1"
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)


def _use_wal(connection: Any) -> None:
    """Sets WAL mode, which the file keeps from then on.

    Two connections that do so at once on a new file would wait for each other for ever. SQLite then
    fails one of them at once, whatever its busy timeout is, so that one tries again.
    """
    until = monotonic() + BUSY_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except apsw.BusyError:
            if monotonic() > until:
                raise
            sleep(0.001)


class _Session:
    def __init__(self, connection: Any) -> None:  # apsw's own types are not complete
        self._connection = connection

    def ask(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, tuple(values)).fetchall()

    def many(self, statement: str, rows: Iterable[Values]) -> None:
        self._connection.executemany(statement, (tuple(row) for row in rows))


class SideFile:
    """Tables in a file, or in memory if no folder is given or none can be made there."""

    key = "INTEGER PRIMARY KEY"
    text = "TEXT"
    whole = "INTEGER"
    real = "REAL"
    json = "TEXT"

    def __init__(self, folder: str | None, *, name: str | None = None) -> None:
        self._folder = folder
        self._name = name
        self._mutex = RLock()
        self._connection: Any = None
        self._compares_vectors = False
        self._lock_fd = -1
        if folder is not None:
            try:
                _make_folder(folder)
                self._lock_fd = os.open(
                    os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
                )
            except OSError as error:
                _logger.warning('"%s" has no place for an index: it is in memory', folder)
                _logger.debug("because %s", error)
                self._folder = None
        self.place = IN_MEMORY
        if self._folder is not None:
            number = 0 if self._name else max(self._numbers(), default=1)
            self.place = self._path(number)

    def hint(self, index: str) -> str:
        """SQLite knows no statistics here, and would rather sort everything than read an order."""
        return f"INDEXED BY {index}"

    # --- transactions ----------------------------------------------------------------------------

    def write(self, work: Callable[[SideSession], T]) -> T:
        return self._run("BEGIN IMMEDIATE", work)

    def read(self, work: Callable[[SideSession], T]) -> T:
        return self._run("BEGIN", work)

    def _run(self, begin: str, work: Callable[[SideSession], T]) -> T:
        with self._mutex:
            try:
                connection = self._open()
                connection.execute(begin)
                try:
                    done = work(_Session(connection))
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                return done
            except _DAMAGE as error:
                raise DamagedTablesError(str(error)) from error
            except apsw.Error as error:
                if str(error).startswith("no such "):  # a table or a column: it is not ours
                    raise DamagedTablesError(str(error)) from error
                raise UnavailableError(f'"{self.place}" cannot be used: {error}') from error

    def _open(self) -> Any:
        if self._connection is None:
            if self._folder is not None:
                self._make_file()
            connection: Any = apsw.Connection(self.place)
            connection.set_busy_timeout(BUSY_MS)
            if self._folder is not None:
                _use_wal(connection)
                connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA cache_size = -32768")
            self._compares_vectors = _load_vectors(connection)
            self._connection = connection
        return self._connection

    def _make_file(self) -> None:
        """Makes the file if it is not there; raises DamagedTablesError for what is no file.

        Made here, so that what the store says to nobody is not said by its index. A file of a fixed
        name has no other place to be made again in.
        """
        try:
            os.close(os.open(self.place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            if self._name is None and (os.path.islink(self.place) or os.path.isdir(self.place)):
                raise DamagedTablesError(show_error(error)) from error
            raise UnavailableError(
                f'"{self.place}" cannot be used: {show_error(error)}',
                hint="move away what is there, or give this user the right to write there",
            ) from error

    def is_empty(self, session: SideSession) -> bool:
        return session.ask("SELECT count(*) FROM sqlite_master") == [(0,)]

    def reset(self) -> None:
        with self._mutex:
            self._close()
            if self._folder is None:
                return
            if self._name is not None:
                self._unlink(self.place)
                return
            numbers = self._numbers()
            self.place = self._path(max(numbers, default=0) + 1)
            for number in numbers:
                self._unlink(self._path(number))

    def _unlink(self, path: str) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(path + suffix)

    def _numbers(self) -> list[int]:
        """Returns the numbers of the files that are there."""
        names = os.listdir(self._folder)
        return [int(found[1]) for name in names if (found := _FILE.fullmatch(name))]

    def _path(self, number: int) -> str:
        return os.path.join(self._folder or "", self._name or f"index-{number}.db")

    @contextlib.contextmanager
    def claim(self) -> Generator[bool]:
        if self._lock_fd < 0:
            with self._mutex:
                yield True
            return
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def close(self) -> None:
        with self._mutex:
            self._close()
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(apsw.Error):
                connection.close()

    # --- words -----------------------------------------------------------------------------------
    #
    # A row of words for each chunk, whose number has that of the document in its upper bits. The
    # words are split already: the tokeniser that SQLite brings along splits them at spaces only.

    def make_place(self, session: SideSession) -> None:
        """The file is there already."""

    def make_words(self, session: SideSession) -> None:
        session.ask(
            "CREATE VIRTUAL TABLE words USING fts5(said, content='', contentless_delete=1, "
            "tokenize=\"ascii tokenchars '_'\")"
        )

    def add_words(self, session: SideSession, rows: Iterable[tuple[int, int, list[str]]]) -> None:
        session.many(
            "INSERT INTO words (rowid, said) VALUES (?, ?)",
            ((n << _BITS | chunk, " ".join(words)) for n, chunk, words in rows),
        )

    def drop_words(self, session: SideSession, rows: Iterable[tuple[int, int]]) -> None:
        numbers = ((n << _BITS | chunk,) for n, chunks in rows for chunk in range(chunks))
        session.many("DELETE FROM words WHERE rowid = ?", numbers)

    def with_words(
        self, session: SideSession, terms: Sequence[tuple[Sequence[str], bool]], others: Condition
    ) -> Condition:
        """Finds those that have the words among the numbers that the other conditions leave.

        Numbers grow with time, so what is asked of a week is a small part of all words. Of a long
        document, each term may be in another chunk.
        """
        found = f"SELECT count(*), min(n), max(n) FROM (SELECT n FROM docs WHERE {others[0]} "
        [(count, low, high)] = session.ask(f"{found} LIMIT {COUNTED_MAX})", others[1])
        if not count:
            return "1 = 0", []
        if count == COUNTED_MAX:
            low, high = 0, _NUMBER_MAX
        each = [_match(words, is_prefix) for words, is_prefix in terms]
        bounds = [low << _BITS, (high + 1) << _BITS]
        short = "SELECT rowid >> 20 FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ?"
        values = [" AND ".join(each), *bounds]
        if not session.ask(_LONG, [low, high]):
            return f"docs.n IN ({short})", values
        long = (
            "EXISTS (SELECT 1 FROM words WHERE words MATCH ? AND words.rowid >= long.n << 20 "
            "AND words.rowid < (long.n + 1) << 20)"
        )
        statement = (
            f"docs.n IN ({short} UNION SELECT long.n FROM docs AS long WHERE long.chunks > 1 "
            f"AND long.n BETWEEN ? AND ? AND {' AND '.join([long] * len(each))})"
        )
        return statement, [*values, low, high, *each]

    # --- vectors ---------------------------------------------------------------------------------
    #
    # Plain rows. With the library sqlite-vec, SQLite itself compares them.

    def make_vectors(self, session: SideSession) -> None:
        session.ask("CREATE TABLE vectors (model INTEGER, n INTEGER, vector BLOB)")
        session.ask("CREATE INDEX vectors_n ON vectors (n)")

    def add_vectors(
        self, session: SideSession, model: int, rows: Iterable[tuple[int, bytes]]
    ) -> None:
        session.many(
            "INSERT INTO vectors (model, n, vector) VALUES (?, ?, ?)",
            ((model, n, vector) for n, vector in rows),
        )

    def nearest(
        self, session: SideSession, model: int, target: bytes, others: Condition, limit: int
    ) -> list[tuple[int, bytes, float]] | None:
        if not self._compares_vectors:
            return None
        found = session.ask(
            "SELECT docs.n, vectors.vector, vec_distance_l2(vectors.vector, ?) AS apart FROM docs "
            f"JOIN vectors ON vectors.n = docs.n WHERE vectors.model = {int(model)} "
            f"AND {others[0]} ORDER BY apart LIMIT {int(limit)}",
            [target, *others[1]],
        )
        return [(n, vector, apart) for n, vector, apart in found]

    # --- for outside tools -----------------------------------------------------------------------

    def select(
        self, statement: str, limits: SelectLimits
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Runs it on a connection of its own; tables in memory have only one, which is reset."""
        try:
            if self._folder is not None:
                with contextlib.closing(
                    apsw.Connection(self.place, flags=apsw.SQLITE_OPEN_READWRITE)
                ) as own:
                    own.set_busy_timeout(BUSY_MS)
                    return _select(own, statement, limits)
            with self._mutex:
                shared = self._open()
                longest = shared.limit(apsw.SQLITE_LIMIT_LENGTH)
                try:
                    return _select(shared, statement, limits)
                finally:
                    shared.authorizer = None
                    shared.set_progress_handler(None)
                    shared.limit(apsw.SQLITE_LIMIT_LENGTH, longest)
        except apsw.InterruptError:
            raise limits.over_time() from None
        except (apsw.TooBigError, apsw.NoMemError):
            raise limits.over_bytes() from None
        except apsw.Error as error:
            raise UsageError(f"the statement cannot be run: {error}") from error

    def note(self) -> None:
        """Closes the file, so that any client may have it alone, and notes its size and time."""
        if self._folder is None:
            return
        with self._mutex:
            self._close()
            with open(f"{self.place}.stamp", "w", encoding="ascii") as file:
                file.write(self._stamp())

    def is_changed(self) -> bool:
        if self._folder is None:
            return False
        with self._mutex:
            self._close()
            try:
                with open(f"{self.place}.stamp", encoding="ascii") as file:
                    return file.read() != self._stamp()
            except (OSError, ValueError):
                return True

    def _stamp(self) -> str:
        found = os.stat(self.place)
        return f"{found.st_size} {found.st_mtime_ns}"

    def like(self, column: str, pattern: str) -> Condition:
        escaped = "".join(f"[{one}]" if one in "?[" else one for one in pattern)
        return f"{column} GLOB ?", [escaped]


_READING = frozenset((
    apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE,
))  # fmt: skip
_STEPS = 20_000
"""So many instructions of SQLite, about a millisecond, lie between two looks at the clock."""


def _may_read(action: int, *_: object) -> int:
    """Allows a statement to read tables and to call functions, and nothing else."""
    return apsw.SQLITE_OK if action in _READING else apsw.SQLITE_DENY


def _select(
    connection: Any, statement: str, limits: SelectLimits
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Runs one SELECT. No pragma, no other file, no statement after it is allowed."""
    until = monotonic() + limits.timeout_s
    begun: list[list[str]] = []
    failed: list[LimitError] = []

    def begin(cursor: Any, *_: object) -> bool:
        if begun or cursor.is_explain or not cursor.is_readonly:
            raise UsageError("sql takes one SELECT", hint="ask one question at a time")
        begun.append([str(one[0]) for one in cursor.get_description()])
        return True

    def look() -> bool:
        """Ends it when the time is up, or when it writes too much into temporary files.

        Being Python, it is also where a Ctrl-C is noticed.
        """
        spilled = connection.status(apsw.SQLITE_DBSTATUS_TEMPBUF_SPILL)[0]
        if spilled - spilled_before > limits.bytes:
            failed.append(limits.over_bytes())
        return bool(failed) or monotonic() > until

    spilled_before = connection.status(apsw.SQLITE_DBSTATUS_TEMPBUF_SPILL)[0]
    cursor = connection.cursor()
    cursor.exec_trace = begin
    connection.authorizer = _may_read
    connection.set_progress_handler(look, _STEPS)
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, min(limits.bytes, _LENGTH_MAX))
    rows: list[tuple[Any, ...]] = []
    size = 0
    try:
        for row in cursor.execute(statement):
            rows.append(row)
            size += sum(len(one) if isinstance(one, str | bytes) else 8 for one in row)
            if len(rows) > limits.rows:
                raise limits.over_rows()
            if size > limits.bytes:
                raise limits.over_bytes()
    except apsw.InterruptError:
        if failed:
            raise failed[0] from None
        raise
    finally:
        cursor.close(True)
    if not begun:
        raise UsageError("sql takes one SELECT, found only a comment")
    return begun[0], rows


def _match(words: Sequence[str], is_prefix: bool) -> str:
    """Returns a phrase in FTS5's own language; words have letters, digits and _ only."""
    return f'"{" ".join(words)}"' + " *" * is_prefix


def _load_vectors(connection: Any) -> bool:
    """Has SQLite compare vectors, if the library for it is installed; says whether."""
    try:
        import sqlite_vec  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return False
    try:
        connection.enable_load_extension(True)
        connection.load_extension(sqlite_vec.loadable_path())
    except (apsw.Error, AttributeError) as error:
        _logger.debug("sqlite-vec is not used: %s", error)
        return False
    finally:
        connection.enable_load_extension(False)
    return True


def _make_folder(folder: str) -> None:
    """Makes the folder, which git is told to leave alone."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    ignored = os.path.join(folder, ".gitignore")
    if not os.path.exists(ignored):
        with open(ignored, "w", encoding="ascii") as file:
            file.write("*\n")

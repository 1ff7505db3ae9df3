"""Derived tables in a SQLite file with FTS5; in memory if no file can be made.

The file is in a folder of its own beside the store, with `indexer.lock` next to it. The right to
fill the tables is a flock on `indexer.lock`, never on the database, whose locks belong to SQLite.
The store does not depend on either file. The folder may be deleted while the store is not in use.

The name of the database file has a number, and tables that must be made again go into a file with
the next number. Another process may still have the old file open, and when it closes it, SQLite
removes the WAL by its name: with the same name, that would be the WAL of the new file.
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

from holdfast.backends.checked_pages import checking_vfs, has_room, is_mismatch, make_room
from holdfast.backends.derived_tables import (
    Condition,
    DamagedTablesError,
    SelectLimits,
    SideSession,
    Values,
)
from holdfast.backends.forking import forking
from holdfast.errors import LimitError, UnavailableError, UsageError, show_error

T = TypeVar("T")
_logger = logging.getLogger("holdfast.query")
IN_MEMORY = ":memory:"
_FILE = re.compile(r"index-([0-9]{1,9})\.db")
LOCK = "indexer.lock"
BUSY_MS = 10_000
COUNTED_MAX = 20_000
"""If the other conditions leave fewer documents, words are searched only between their numbers."""
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
        forking.wait_for(self._mutex)
        self._filling = RLock()  # not `_mutex`: a fork would wait until the tables are filled
        self._connection: Any = None
        self._process = os.getpid()
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
        """Names the index: without statistics SQLite would sort all rows, not read it in order."""
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
            except (*_DAMAGE, UnicodeDecodeError) as error:
                raise DamagedTablesError(str(error)) from error
            except apsw.Error as error:
                # No such table or column: it is not ours.
                if is_mismatch(error) or str(error).startswith(("no such ", "invalid fts5 ")):
                    raise DamagedTablesError(str(error)) from error
                raise UnavailableError(f'"{self.place}" cannot be used: {error}') from error

    def _open(self) -> Any:
        if self._process != os.getpid():
            self._connection = None  # inherited from the parent process: `forking` ends it
        if self._connection is None:
            if self._folder is not None:
                self._make_file()
            vfs = None if self._folder is None else checking_vfs()
            connection = forking.connect(self.place, vfs=vfs)
            try:
                self._set_up(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._process = connection, os.getpid()
        return self._connection

    def _set_up(self, connection: Any) -> None:
        connection.set_busy_timeout(BUSY_MS)
        if self._folder is not None:
            if os.stat(self.place).st_size == 0:
                make_room(connection)
            _use_wal(connection)
            if not has_room(connection):
                raise DamagedTablesError("its pages have no checksums")
            connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA cache_size = -32768")
        self._compares_vectors = _load_vectors(connection)

    def _make_file(self) -> None:
        """Makes the file if it is not there; raises DamagedTablesError for a link or a folder.

        The file is made here and not by SQLite, so that only its owner can read it: it has what the
        store has. Tables in a file with a fixed name cannot be made again under another name, so
        there the error is UnavailableError.
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
            with self._filling:
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
        if connection is not None and self._process == os.getpid():
            with contextlib.suppress(apsw.Error):
                connection.close()

    # --- words -----------------------------------------------------------------------------------
    #
    # One row of words for each chunk of a document. The number of a row has the document's number
    # in its upper bits. The text is split into words already, so SQLite's tokeniser has only to
    # split at spaces.

    def make_place(self, session: SideSession) -> None:
        """The file is there already."""

    def make_words(self, session: SideSession) -> None:
        session.ask(
            "CREATE VIRTUAL TABLE words USING fts5(said, content='', contentless_delete=1, "
            "tokenize=\"ascii tokenchars '_'\")"
        )
        # Blocks of the usual 4,050 bytes would not fit into a page beside its checksum. Their ends
        # would be in pages of their own, where a page of zeros is read as it is.
        session.ask("INSERT INTO words (words, rank) VALUES ('pgsz', 4000)")

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
        """Returns the condition, with words searched only between the numbers that `others` leaves.

        Numbers grow with time, so a question about one week searches a small part of all words. A
        long document has several chunks, and each term may be in another one.
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
    # Plain rows. If the library sqlite-vec is installed, SQLite itself compares them.

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
        """Runs it on a new connection; tables in memory have only one, which is reset after it."""
        try:
            if self._folder is not None:
                flags = apsw.SQLITE_OPEN_READWRITE
                with (
                    forking.opening(),
                    contextlib.closing(
                        forking.connect(self.place, flags=flags, vfs=checking_vfs())
                    ) as own,
                ):
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
        except (*_DAMAGE, UnicodeDecodeError) as error:
            raise DamagedTablesError(str(error)) from error
        except apsw.Error as error:
            if is_mismatch(error):
                raise DamagedTablesError(str(error)) from error
            raise UsageError(f"the statement cannot be run: {error}") from error

    def note(self) -> None:
        """Closes the file, so that other programs can open it alone; notes its size and time.

        What could not be noted, as on a full disk, counts as changed the next time.
        """
        if self._folder is None:
            return
        with self._mutex, contextlib.suppress(OSError):
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
_STEPS = 1_000
"""How many instructions of SQLite run between two looks at the clock: usually 0.05 ms of them.

One instruction may be a function that makes a megabyte. With 20,000 between two looks, a statement
of such functions went on for half a minute.
"""


def _may_read(action: int, *_: object) -> int:
    """Allows a statement to read tables and to call functions; denies everything else."""
    return apsw.SQLITE_OK if action in _READING else apsw.SQLITE_DENY


def _select(
    connection: Any, statement: str, limits: SelectLimits
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Runs one SELECT; a pragma, another file or a second statement is refused."""
    until = monotonic() + limits.timeout_s
    begun: list[list[str]] = []
    failed: list[LimitError] = []

    def begin(cursor: Any, *_: object) -> bool:
        if begun or cursor.is_explain or not cursor.is_readonly:
            raise UsageError("sql takes one SELECT", hint="ask one question at a time")
        begun.append([str(one[0]) for one in cursor.get_description()])
        return True

    def look() -> bool:
        """Returns whether to end the statement: its time is over, or its temporary files too large.

        This callback is Python code, so it is also where a Ctrl-C takes effect.
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
    """Returns a phrase in the query language of FTS5; words have only letters, digits and _."""
    return f'"{" ".join(words)}"' + " *" * is_prefix


def _load_vectors(connection: Any) -> bool:
    """Loads sqlite-vec, if it is installed; returns whether SQLite can compare vectors."""
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
    """Makes the folder, with a `.gitignore` that keeps it out of git."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    ignored = os.path.join(folder, ".gitignore")
    if not os.path.exists(ignored):
        with open(ignored, "w", encoding="ascii") as file:
            file.write("*\n")

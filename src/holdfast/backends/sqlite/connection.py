"""One connection that writes, one that reads, and what they share.

A commit holds the writing connection through its sync. Readers have another connection, so that
they never wait for a sync. Each connection is used by one thread at a time, under its lock.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast

import apsw

from holdfast.backends.file_watch import idle_looks
from holdfast.backends.forking import forking
from holdfast.backends.gates import Waiters, held_here, reentered
from holdfast.backends.handle import Handle
from holdfast.backends.sqlite.database_files import DatabaseFiles, Problem
from holdfast.backends.sqlite.rescue import rescue_database
from holdfast.clock import Clock
from holdfast.errors import (
    CLOSE_SOME,
    NO_DESCRIPTORS,
    CorruptError,
    FilesTakenError,
    FormatError,
    HoldfastError,
    UnavailableError,
    UsageError,
)

_log = logging.getLogger("holdfast.backends")

# --- tables ---------------------------------------------------------------------------------------
#
# The tables are created in groups, each by the transaction that first needs it.

# Case is ignored, as SQLite itself does when it looks for a table: so a flipped bit that turns a
# small letter into a capital one does not hide the table.
HAS_TABLE = "SELECT count(*) FROM sqlite_schema WHERE name = ? COLLATE NOCASE"
_GROUP = "-- group: "
INDEX_FROM_ROW = 32
"""The row that adds the index of names. Before it, an index would cost a page of 16 KiB, to save a
scan of one page or a few."""


_HAS_META = "SELECT count(*) FROM pragma_table_info('events') WHERE name = 'meta'"
ADD_META = "ALTER TABLE events ADD COLUMN meta TEXT"
"""Turns format 1 into format 2. No row changes, but SQLite reads all once: the table is STRICT."""


@cache
def statements(group: str) -> str:
    """Returns the statements that make the tables of a group, which is named after its first."""
    parts = (part.partition("\n") for part in _text().split(_GROUP)[1:])
    return {name: body for name, _, body in parts}[group]


@cache
def parts() -> frozenset[tuple[str, str]]:
    """Returns every table and index that a store can have: its kind and its name."""
    found = re.findall(r"CREATE [A-Z ]*(TABLE|INDEX) IF NOT EXISTS (\w+)", _text())
    return frozenset((kind.lower(), name) for kind, name in found)


@cache
def columns() -> dict[str, list[str]]:
    """Returns the columns of every table that a store can have."""
    whole = cast("SqliteConnection", apsw.Connection(":memory:"))
    try:
        whole.execute(_text())
        return {name: columns_of(whole.execute, name) for kind, name in parts() if kind == "table"}
    finally:
        whole.close()


def columns_of(execute: Execute, table: str) -> list[str]:
    """Returns the columns that a table has."""
    return [name for (name,) in execute("SELECT name FROM pragma_table_info(?)", (table,))]


@cache
def _text() -> str:
    # Not by importlib.resources: loading it takes as long as recovering a run of some 300 steps.
    return (Path(__file__).parents[1] / "sql" / "sqlite_0001.sql").read_text("utf-8")


class SqliteTables:
    """Which groups of tables exist. Tables are never dropped, so one look at each is enough."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._made: set[str] = set()
        self.knows_meta = False
        """Whether events have the column `meta`, for every read that begins from now on. A
        transaction that is under way may have begun before there was the column."""
        _text()  # read now: when a table is needed, there may be no descriptor left to read it

    def exist(self, group: str, execute: Execute) -> bool:
        """Returns whether the group exists, as that connection sees the database."""
        if group in self._known:
            return True
        found = execute(HAS_TABLE, (group,)).get == 1
        if found and group not in self._made:
            self._known.add(group)
        return found

    def has_meta(self, execute: Execute) -> bool:
        """Returns whether events have the column `meta`, as that connection sees the database."""
        found = execute(_HAS_META).get == 1
        if found:
            self.knows_meta = True
        return found

    def ensure(self, group: str, execute: Execute) -> None:
        """Makes the group in the transaction that is under way, unless it exists."""
        if group not in self._known and group not in self._made:
            execute(statements(group)).fetchall()
            self._made.add(group)

    def settle(self) -> None:
        """Remembers the groups that the transaction made, which was committed."""
        if self._made:
            self._known |= self._made
            self._made.clear()

    def forget(self) -> None:
        """Forgets the groups that the transaction made, which was rolled back."""
        self._made.clear()


# --- the write-ahead log --------------------------------------------------------------------------
#
# The sync of a file that grows also writes its new size and its new blocks. The sync of a file that
# is overwritten in place does not, and takes about two thirds of the time. SQLite overwrites its
# WAL from the beginning after a checkpoint, so only the first pass over it is slow. Zeros that are
# written after the end of the file, before SQLite gets there, make that pass as fast.
#
# This is safe because it happens inside a write transaction: no other connection may append then.
# Bytes after the last valid frame mean nothing to SQLite, which finds them in every WAL that it has
# begun to overwrite. And SQLite has no locks on the WAL, unlike on the database file, so closing a
# descriptor of the WAL drops none.


# Two to eight commits of the usual size. More at once would make single commits slow.
_AHEAD = bytes(256 << 10)
# A process that commits a few times and ends would gain nothing from the zeros.
_BEGIN_BYTES = 256 << 10


def rewrite_wal(connection: SqliteConnection, path: str) -> None:
    """Writes the WAL of an earlier process over itself and syncs it, before anything is added.

    If a sync of the WAL failed and the process died, the kernel has marked the frames clean
    although they never reached the disk. They look whole, SQLite adopts them, and no later sync
    writes them. A power loss would then take them, and every commit after them. Inside a write
    transaction nobody else appends meanwhile.

    Only the first process to open the database needs this, because only then SQLite reads the WAL
    to its end and adopts the frames it finds. As long as a connection is open, the shared memory
    says where the WAL ends. Frames whose sync failed, or was never asked for, lie beyond that end,
    and the next commit overwrites them. So the caller leaves this out only if one and the same
    process had the database open before this one opened it and still has it open afterwards: then
    nobody was first in between.
    """
    wal = path + "-wal"
    try:
        if os.stat(wal, follow_symlinks=False).st_size == 0:
            return
    except FileNotFoundError:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        fd = os.open(wal, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            offset = 0
            while (offset := _data_from(fd, offset)) >= 0:
                offset += os.pwrite(fd, os.pread(fd, 1 << 20, offset), offset)
            os.fsync(fd)
        finally:
            os.close(fd)
    finally:
        connection.execute("ROLLBACK")


def _data_from(fd: int, offset: int) -> int:
    """Returns the next offset with data, -1 if there is none: holes are not to be filled."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as exc:
        if exc.errno != errno.ENXIO:
            raise
        return -1


class Wal:
    """The WAL of a database that this process has open."""

    def __init__(self, path: str) -> None:
        self._path = path + "-wal"
        self._fd = -1
        self._end = _BEGIN_BYTES
        self._is_off = False

    def keep_ahead(self) -> None:
        """Writes zeros after the end if the WAL has grown past them; only inside a transaction.

        This only saves time, so it is given up for good where it fails, as on a full disk.
        """
        if self._is_off:
            return
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            size = os.fstat(self._fd).st_size
            if size > self._end:
                self._end = size + os.pwrite(self._fd, _AHEAD, size)
        except OSError as exc:
            _log.debug("%s is no longer extended in advance: %s", self._path, exc)
            self._is_off = True

    def begin_again(self) -> None:
        """Starts over after the WAL was cut to nothing."""
        self._end = _BEGIN_BYTES

    def close(self) -> None:
        self._is_off = True
        fd, self._fd = self._fd, -1  # never closed twice: the number may be another file's by then
        if fd >= 0:
            os.close(fd)


# --- the driver -----------------------------------------------------------------------------------
#
# The part of apsw that is used here, with our own types: those of apsw need a newer Python.


Row = tuple[Any, ...]


class SqliteCursor(Protocol):
    """The result of a statement; it is read to its end before the next one runs."""

    @property
    def get(self) -> Any:
        """The one value or row of the result, None if there is none."""
        ...

    def fetchall(self) -> list[Row]: ...
    def __iter__(self) -> Iterator[Row]: ...


Execute = Callable[..., SqliteCursor]


class SqliteConnection(Protocol):
    """One connection; apsw caches its prepared statements by their text."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statements: str, bindings: tuple[Any, ...] = ...) -> SqliteCursor: ...
    def cursor(self) -> apsw.Cursor: ...
    def pragma(self, name: str, value: int | str | None = ...) -> Any: ...
    def config(self, op: int, *args: int) -> int: ...
    def limit(self, id: int, newval: int = ...) -> int: ...
    def enable_load_extension(self, enable: bool) -> None: ...
    def set_busy_handler(self, callable: Callable[[int], bool]) -> None: ...
    def data_version(self) -> int: ...
    def last_insert_rowid(self) -> int: ...
    def wal_checkpoint(self, *, mode: int) -> tuple[int, int]: ...
    def close(self) -> None: ...


def connect(name: str, flags: int) -> SqliteConnection:
    return cast(SqliteConnection, forking.connect(name, flags=flags | apsw.SQLITE_OPEN_NOFOLLOW))


def close_as_it_is(connection: SqliteConnection) -> None:
    """Closes without the checkpoint of a last close, which would write to the database."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()


def execute_of(connection: SqliteConnection) -> Execute:
    """Returns `execute` of one lasting cursor, at half the cost of a new cursor for each call."""
    return cast(Execute, cast(Any, connection.cursor()).execute)


# --- errors ---------------------------------------------------------------------------------------
#
# What an error of SQLite means to a caller. Nothing above this package sees one of apsw's.


_UNAVAILABLE: dict[type[apsw.Error], tuple[str, str]] = {
    apsw.FullError: ("the disk or the database is full", "free some space, then try again"),
    apsw.ReadOnlyError: ("it cannot be written", "check permissions of the file and its directory"),
    apsw.CantOpenError: ("it cannot be opened", "check that its directory exists and is writable"),
    apsw.PermissionsError: ("permission was denied", "check who owns the file and its directory"),
    apsw.AuthError: ("permission was denied", "check who owns the file and its directory"),
    apsw.BusyError: (
        "another process kept it locked for half a minute",
        "try again, or find the process that holds it",
    ),
    apsw.LockedError: ("another connection holds it", "try again"),
    apsw.ProtocolError: ("its locks could not be taken", "try again"),
    apsw.NoMemError: ("memory ran out", "free some memory, then try again"),
    apsw.NoLFSError: ("the file system cannot hold a file of this size", "choose another place"),
    apsw.InterruptError: ("the call was interrupted", "try again"),
    apsw.IOError: ("reading or writing failed", "check the disk, then open the store again"),
}
_CLOSED = (apsw.ConnectionClosedError, apsw.CursorClosedError)
_LATE_TABLES = tuple(
    f"no such table: {name}"
    for name in ("keys", "checkpoints", "leases", "marks", "claims", "objects")
)


def translate(exc: BaseException, path: str) -> HoldfastError | None:
    """Returns the error to raise in place of SQLite's, None for one that is not SQLite's."""
    match exc:
        case apsw.ConnectionClosedError() | apsw.CursorClosedError():
            return UsageError("store is closed")
        case apsw.NotADBError():
            return FormatError(
                f'"{path}" is not a SQLite database', hint="look elsewhere, or choose a new name"
            )
        case apsw.SQLError() if str(exc).endswith(_LATE_TABLES):
            # Such a table is used only after it was seen. Where locks fail, SQLite may read the
            # file without its WAL, which is no damage. `check` finds damage that looks the same.
            return UnavailableError(
                f'"{path}" is unavailable: {exc}',
                hint='open the store again; if that does not help, run "holdfast check"',
            )
        case (
            apsw.CorruptError()
            | apsw.ConstraintError()
            | apsw.SQLError()
            | apsw.SchemaChangeError()
        ):
            return CorruptError(f'"{path}" is damaged: {exc}', where=path)
        case UnicodeDecodeError():
            return CorruptError(f'"{path}" is damaged: text in it is not UTF-8', where=path)
        case UnicodeEncodeError():
            return UsageError(f"a name holds a lone surrogate: {exc.object[:40]!r}")
        case apsw.TooBigError():
            return UsageError(f'a value is too big for one row of "{path}"')
        case apsw.Error():
            found, hint = "SQLite refused", "open the store again"
            for kind, (text, remedy) in _UNAVAILABLE.items():
                if isinstance(exc, kind):
                    found, hint = text, remedy
            if isinstance(exc, apsw.CantOpenError) and not _has_descriptors():
                found, hint = "too many files are open", CLOSE_SOME
            return UnavailableError(f'"{path}" is unavailable: {found} ({exc})', hint=hint)
        case _:
            return None


def _has_descriptors() -> bool:
    """Returns whether this process can open any file: SQLite does not say why it could not."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as exc:
        return exc.errno not in NO_DESCRIPTORS
    return True


class Translated:
    """A context that turns every error of SQLite into one of ours, with the original as its cause.

    With a `reader`, it also refuses a call from a signal handler that has interrupted its own
    thread in the middle of a read: both would use one connection at once.
    """

    __slots__ = ("_check_open", "_is_read_here", "_path")

    def __init__(
        self,
        path: str,
        reader: SqliteReader | None = None,
        check_open: Callable[[], None] | None = None,
    ) -> None:
        self._path = path
        self._is_read_here = None if reader is None else held_here(reader.lock)
        self._check_open = check_open

    def __enter__(self) -> None:
        if self._is_read_here is not None and self._is_read_here():
            raise reentered("a read")

    def __exit__(self, kind: object, exc: BaseException | None, _: object) -> Literal[False]:
        if exc is not None:
            ours = translate(exc, self._path)
            if ours is not None:
                if self._check_open is not None and isinstance(exc, _CLOSED):
                    self._check_open()  # it raises the cause, if another thread ended the handle
                raise ours from exc
        return False


T = TypeVar("T")
NEWEST = "SELECT max(ordinal) FROM events"
_TAKEN_HINT = (
    "end what touches the files of an open store, then open it again and look what is there"
)


class SqliteReader:
    """The connection that reads; each statement sees everything committed before it began."""

    def __init__(self, connection: SqliteConnection) -> None:
        self.connection = connection
        self.lock = RLock()
        self.execute: Execute = execute_of(connection)

    def rows(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[Row]:
        with self.lock:
            return self.execute(sql, bindings).fetchall()

    def snapshot(self, work: Callable[[Execute], T]) -> T:
        """Returns what `work` reads from one state of the store; the caller has the lock.

        This is no context manager: one that an interrupt leaves suspended would keep its
        transaction, and all later reads would see an old state.
        """
        execute, connection = self.execute, self.connection
        try:
            execute("BEGIN")
            return work(execute)
        finally:
            if connection.in_transaction:
                execute("COMMIT")

    def newest(self) -> int:
        with self.lock:
            return self.execute(NEWEST).get or 0


class SqliteWriter:
    """The connection that writes, one transaction at a time."""

    def __init__(
        self, connection: SqliteConnection, checkout: SqliteCheckout, wal: Wal | None
    ) -> None:
        self.connection = connection
        self.lock = RLock()
        self._is_held_here = held_here(self.lock)
        self.execute: Execute = execute_of(connection)
        self._checkout = checkout
        self._tables = checkout.tables
        self._reach = checkout.reach
        self._wal = wal

    def transact(self, work: Callable[[], T], publish: Callable[[T], None] | None = None) -> T:
        """Runs `work` in a transaction; returns its result once everything that it did is durable.

        `publish` is called with the result while the connection is still held, so that the next
        transaction finds in memory what this one left on disk.
        """
        execute, files = self.execute, self._checkout.files
        if self._is_held_here():
            raise reentered("a write")
        with self.lock:
            self._checkout.check_open()
            # Files and locks are looked at before the transaction, because one without locks or
            # names may destroy what others wrote. They are looked at again after the commit and
            # before it is acknowledged, because only that look is later than the sync. Without
            # inotify this first look is a cheaper one.
            if files.watch.is_due(0) and (files.watch.is_notified or files.is_suspect()):
                self._checkout.check_files(outcome_known=True)
            try:
                execute("BEGIN IMMEDIATE")
                if self._wal is not None:
                    self._wal.keep_ahead()
                if self._reach is not None:
                    self._reach("sqlite.begun")
                result = work()
                if self._reach is not None:
                    self._reach("sqlite.inserted")
            except BaseException:
                self._roll_back()
                raise
            try:
                execute("COMMIT")
            except apsw.Error as exc:
                self._roll_back()
                raise self._failed_commit(exc) from exc
            except BaseException:
                if self.connection.in_transaction:  # interrupted, not failed
                    self._roll_back()
                raise
            self._tables.settle()
            if self._reach is not None:
                self._reach("sqlite.committed")
            if files.watch.is_due(0):
                self._checkout.check_files(outcome_known=False, thorough=files.watch.is_notified)
            if publish is not None:
                publish(result)
            return result

    def empty_wal(self) -> bool:
        """Moves the WAL into the database and cuts it; returns whether that was possible.

        A reader in the middle of a transaction prevents it. The caller has the lock.
        """
        try:
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            return False
        if self._wal is not None:
            self._wal.begin_again()
        return True

    def close(self) -> None:
        with self.lock:
            self.connection.close()
            if self._wal is not None:
                self._wal.close()

    def _roll_back(self) -> None:
        self._tables.forget()
        # SQLite has already rolled back after some errors; a second time would be an error too.
        if self.connection.in_transaction:
            self.execute("ROLLBACK")

    def _failed_commit(self, exc: apsw.Error) -> Exception:
        """Returns what to raise when COMMIT itself failed.

        A full disk shows before the frame that would make the commit valid is whole: the commit is
        not there, and the handle goes on. After any other failure the frames may or may not be on
        disk. The sync must not be repeated on this descriptor, because the kernel marks pages clean
        that it failed to write: a second sync would report success for bytes that are gone. So the
        handle dies, and the next process that opens the file reads what is really there.
        """
        if isinstance(exc, apsw.FullError):
            return exc
        return self._checkout.poison(f"a commit failed ({exc})")


def overwrite_deleted(writer: SqliteWriter) -> None:
    """Makes SQLite write zeros over what this handle deletes or replaces from now on.

    Otherwise the bytes of a deleted row stay in its page until another row overwrites them. A
    commit that only adds rows is not slower with it.
    """
    with writer.lock:
        writer.connection.pragma("secure_delete", 1)


def vacuum(writer: SqliteWriter) -> None:
    """Writes the whole database anew, without empty pages; nobody else can write meanwhile.

    SQLite attaches a second database for it, which every connection here forbids otherwise.
    """
    most = writer.connection.limit(apsw.SQLITE_LIMIT_ATTACHED)
    writer.connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 1)
    try:
        writer.execute("VACUUM")
    finally:
        writer.connection.limit(apsw.SQLITE_LIMIT_ATTACHED, most)


class _Death(NamedTuple):
    """Why a handle cannot be used any more, and where its content was rescued to."""

    why: str
    is_taken: bool = False
    rescued: str | None = None


class SqliteCheckout(Handle):
    """Whether the store may be used, and what every part of the backend needs to use it."""

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        reading: SqliteConnection,
        writing: SqliteConnection | None,
        wal: Wal | None,
        reach: Callable[[str], None] | None,
    ) -> None:
        self.path = path
        self.clock = clock
        self.tables = SqliteTables()
        self.reach = reach
        self.reader = SqliteReader(reading)
        self.errors = Translated(path, self.reader, self.check_open)
        self.changed = Waiters()
        self._poison: _Death | None = None
        self._is_closing = False  # stays True if `close` was interrupted: one look is enough
        self._files = self._writer = None
        if writing is not None:
            for connection in (reading, writing):
                connection.pragma("schema_version")  # which opens the WAL, and takes the locks
            self._files = DatabaseFiles(path, writing)
            self._writer = SqliteWriter(writing, self, wal)
            forking.wait_for(self._writer.lock)
        forking.wait_for(self.reader.lock)
        super().__init__()
        if writing is not None:
            idle_looks.begin(self)

    @property
    def writer(self) -> SqliteWriter:
        """The writing connection; raises UsageError if the store is open read-only."""
        self.check_open()
        if self._writer is None:
            raise UsageError(
                f'"{self.path}" is open read-only, found a write',
                hint="open it without read_only",
            )
        return self._writer

    @property
    def files(self) -> DatabaseFiles:
        """The files and locks that the writing connection relies on."""
        assert self._files is not None, "BUG: a handle that only reads watches nothing"
        return self._files

    def check_open(self) -> None:
        if self._dead is not None or self._poison is not None:
            super().check_open()
            raise self._died()

    def check_files(self, *, outcome_known: bool, thorough: bool = True) -> None:
        """Raises and ends the handle if a file or a lock was taken; only the writer calls it.

        SQLite would go on and write to a file without a name, which is gone when its last user
        ends, or write without a lock. So nothing more is acknowledged, and what can still be read
        is rescued first.
        """
        problem = self.files.find_problem(thorough=thorough)
        if problem is not None:
            raise self._give_up(problem, outcome_known=outcome_known)

    def look_while_idle(self) -> None:
        """Looks at the files, unless a commit is under way, which looks by itself."""
        writer = self._writer
        if writer is None or not writer.lock.acquire(blocking=False):
            return
        try:
            if self._dead is None and self._poison is None:
                with self.errors:
                    self.check_files(outcome_known=True)
        except FilesTakenError as exc:
            _log.error("%s", exc)
        finally:
            writer.lock.release()

    def _give_up(self, problem: Problem, *, outcome_known: bool) -> FilesTakenError:
        """Ends the use of this handle at once; the caller has the writer's lock.

        Both connections are closed immediately: while they are open, another handle that this
        process opens on the store would share their memory. They are closed without the usual
        checkpoint: without locks, or on files without a name, it would overwrite what others have
        written since. The reader's lock is held until everything is rescued, so that other calls
        wait: an error that they raise earlier could end the process in the middle of the rescue.
        """
        rescued, saved = None, "what was committed is in its place"
        with self.reader.lock:
            if not problem.is_in_place:
                moved = self.files.moved_to()
                if moved is None:
                    rescued, saved = rescue_database(
                        self.path, self.reader.connection, problem.what, self.clock
                    )
                else:
                    saved = f'what was committed went with it to "{moved}"'
            assert self._writer is not None, "BUG: nobody but the writer looks"
            for connection in (self.reader.connection, self._writer.connection):
                close_as_it_is(connection)
            self._poison = _Death(f"{problem.what}; {saved}", is_taken=True, rescued=rescued)
        self.wake()
        error = self._died()
        error.outcome_known = outcome_known
        assert isinstance(error, FilesTakenError)
        return error

    def poison(self, why: str) -> UnavailableError:
        """Ends the use of this handle; returns the error for the call that found the cause."""
        self._poison = _Death(why)
        self.wake()
        error = self._died()
        error.outcome_known = False
        return error

    def _died(self) -> UnavailableError:
        assert self._poison is not None, "BUG: a living handle has no cause of death"
        why, is_taken, rescued = self._poison
        text = f'"{self.path}" is unavailable to this handle: {why}'
        if is_taken:
            return FilesTakenError(text, rescued=rescued, hint=_TAKEN_HINT)
        return UnavailableError(
            text, hint="open the store again and look whether the commit is there"
        )

    def wake(self) -> None:
        """Wakes every thread of this process that waits for a commit.

        A thread adds its gate before it looks for new commits. So a thread that has not added one
        yet needs no waking: it will see the commit when it looks.
        """
        if self.changed.gates:
            self.changed.wake()

    def close(self) -> None:
        """Closes both connections of a handle that was marked closed; a second call does nothing.

        The last close on the host empties the WAL and removes it. A file that was taken since the
        last commit is found here: what can be read is rescued, and FilesTakenError is raised. If
        only the locks are gone, everything is in its place, and the WAL stays for the next open.
        """
        self.wake()
        writer = self._writer
        if writer is None:
            with self.errors, self.reader.lock:
                self.reader.connection.close()
            return
        idle_looks.end(self)
        is_first, self._is_closing = not self._is_closing, True
        try:
            with self.errors, writer.lock:
                is_alive = is_first and self._poison is None
                problem = self.files.find_problem(thorough=True) if is_alive else None
                if problem is not None:
                    error = self._give_up(problem, outcome_known=True)
                    if not problem.is_in_place:
                        raise error
                    _log.warning("%s", error.message)
        finally:
            self._close_connections(writer)

    def abandon(self) -> None:
        """Ends a handle that was just opened, without a checkpoint or any other change."""
        self.mark_closed()
        writer = self._writer
        assert writer is not None, "BUG: a handle that only reads leaves the files as they are"
        idle_looks.end(self)
        for connection in (self.reader.connection, writer.connection):
            close_as_it_is(connection)
        writer.close()
        self.files.close()

    def _close_connections(self, writer: SqliteWriter) -> None:
        with self.errors, self.reader.lock:
            self.reader.connection.close()
        if self.reach is not None:
            self.reach("sqlite.closing")
        with self.errors:
            writer.close()
        self.files.close()
        if self.reach is not None:
            self.reach("sqlite.closed")

    def after_fork(self) -> None:
        """Keeps a forked child from ever freeing what it inherited.

        `forking` closes the connections that were not in use. Freeing a cursor of one that was
        takes mutexes that a thread of the parent had at the fork, and nobody would ever release
        them in the child. So the child never frees these objects, not even when its interpreter
        ends.
        """
        from ctypes import py_object, pythonapi

        for inherited in (self.reader, self._writer):
            pythonapi.Py_IncRef(py_object(inherited))
        if self._files is not None:
            self._files.close()

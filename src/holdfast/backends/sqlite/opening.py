"""Opening a database file: checks of owner and format, creation, and the settings of connections.

The file is created here, under another name, before SQLite ever sees it. From then on only SQLite
opens it: closing any descriptor of the file drops every lock that this process has on it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from time import sleep

import apsw

from holdfast.backends.local_path import (
    check_private,
    read_mountinfo,
    refuse_mounted_alone,
    refuse_network,
)
from holdfast.backends.protocol import Durability
from holdfast.backends.sqlite import connection as driver
from holdfast.backends.sqlite.connection import (
    ADD_META,
    SqliteConnection,
    SqliteWriter,
    Translated,
    statements,
)
from holdfast.backends.sqlite.rows import INSERT_STORE, store_row
from holdfast.clock import Clock
from holdfast.errors import (
    CLOSE_SOME,
    NO_DESCRIPTORS,
    FormatError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from holdfast.names import new_id, short_id

FORMAT = 2
"""Format 2 has meta. A store of format 1 is raised to it before its first event with meta."""
APPLICATION_ID = 0x486F4C64  # "HoLd"
PAGE_BYTES = 16384
# About 16 MB of WAL: several hundred commits. A checkpoint writes each page once, however many
# commits changed it. Afterwards the WAL is overwritten in place from its beginning, which syncs a
# third faster than a file that grows. So there is no journal_size_limit: the file keeps its size.
WAL_PAGES = 1000
CACHE_KIB = 8192
VALUE_BYTES_MAX = 512 << 20

SUFFIXES = ("-wal", "-shm", "-journal", "-witness")
"""What lies beside a database, after its name."""

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SYNCHRONOUS = {"full": 2, "process": 1, "none": 0}
# About 30 seconds in all, see _ask_again.
_ASKED_MAX = 6900
# SQLite 3.7.0 to 3.51.2 can corrupt a WAL database that several connections checkpoint.
_LIBRARY_MIN = 3_051_003


def resolved_path(path: str | os.PathLike[str]) -> str:
    """Returns the path with every symlink above the file itself resolved."""
    given = Path(path)
    return os.path.join(os.path.realpath(given.parent), given.name)


def prepare_file(path: str, clock: Clock, *, create: bool) -> None:
    """Makes sure that a store of a known format lies at `path`, private to this user."""
    mountinfo = read_mountinfo()
    refuse_network(path, mountinfo=mountinfo)
    refuse_mounted_alone(path, mountinfo=mountinfo)
    if create and not os.path.lexists(path):
        _refuse_left_overs(path)
        _create(path, clock)
    try:
        found = check_private(path)
    except NotFoundError as exc:
        raise NotFoundError(exc.message, hint="check the path, or create the store") from exc
    if stat.S_ISDIR(found.st_mode):
        raise FormatError(
            f'"{path}" is a directory: expected a database file',
            hint="name a file, or leave out sqlite: if it is a store on plain files",
        )
    for suffix in SUFFIXES:
        # Another process may be closing at this moment, and remove its WAL.
        with contextlib.suppress(NotFoundError):
            check_private(path + suffix)
    _examine(path)


def _refuse_left_overs(path: str) -> None:
    """Raises UsageError if side files of an earlier database lie where the new one would use them.

    SQLite would take an old WAL for that of the new database: deleted data would come back, or the
    new database would be malformed from the start. A witness shows that there was a store whose
    database somebody took away.
    """
    for suffix in SUFFIXES:
        left = path + suffix
        if os.path.lexists(left) and not os.path.lexists(path):
            raise UsageError(
                f'"{path}" does not exist, but "{left}" does: it is left over from a store whose '
                "database file was deleted or moved away",
                hint=f"bring the database file back, or, to begin a new store, delete {path}-*",
            )


def _create(path: str, clock: Clock) -> None:
    """Makes a new store under another name, whole and synced, and then links it to its own name.

    So a file of that name is a whole store from the start, no matter when a process is killed. Of
    two processes that create it at once, one gets the name and the other finds it taken. At the end
    the directory is synced, so that the name is durable before the first commit.
    """
    new = f"{path}.{os.getpid()}-{short_id(clock)}.new"
    try:
        # Nobody else has the new file open, so closing this descriptor drops nobody's lock.
        os.close(os.open(new, _CREATE, 0o600))
        try:
            _fill(new, clock)
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
        finally:
            os.unlink(new)
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as exc:
        raise UnavailableError(
            f'"{path}" cannot be created: {exc.strerror}',
            hint=CLOSE_SOME
            if exc.errno in NO_DESCRIPTORS
            else "check that its directory exists and is writable",
        ) from exc


def _fill(path: str, clock: Clock) -> None:
    # Written before WAL mode is set, so to the file itself: an opener reads only the file's header.
    with Translated(path):
        connection = connect(path, durability="full", read_only=False)
        try:
            connection.pragma("page_size", PAGE_BYTES)
            connection.execute("BEGIN EXCLUSIVE")
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", FORMAT)
            connection.execute(statements("core")).fetchall()
            connection.execute(INSERT_STORE, store_row(new_id(clock), clock.now_us()))
            connection.execute("COMMIT")
            use_wal(connection, path)
        finally:
            connection.close()


def upgrade(writer: SqliteWriter) -> None:
    """Raises a store of format 1 to format 2, before its first event with meta.

    This is one transaction, and a checkpoint then moves it into the database file, because an
    opener looks only at the number in the file's header. A holdfast that knows only format 1
    refuses the store from then on. One that has it open reads on, finds that an event with meta
    fails its checksum, and cannot write. If a reader is in the way of the checkpoint, the next one
    moves it.
    """

    def work() -> None:
        # Another process may have done it since this one looked.
        if writer.connection.pragma("user_version") < FORMAT:
            writer.execute(ADD_META)
            writer.connection.pragma("user_version", FORMAT)

    writer.transact(work)
    # Another connection makes a checkpoint, or a reader is in the way: the next one moves it.
    with writer.lock, contextlib.suppress(apsw.BusyError):
        writer.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


def _examine(path: str) -> None:
    """Raises FormatError unless the file is a store that this code can read.

    Only the file's header is read: without a lock, without the WAL, and without writing a byte to
    the file or beside it. The file is not opened as a database, because it may not be one by
    itself: a process that was killed during a checkpoint leaves a file that is whole only together
    with its WAL. The fields of the header lie at the same place in every state of the file. They
    are read through SQLite's own file object, which knows of this process's other connections:
    closing any other descriptor of the file would drop their locks.
    """
    with Translated(path):
        flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOFOLLOW
        file = apsw.VFSFile("", path, [flags, 0])
        try:
            size = file.xFileSize()
            header = file.xRead(min(_HEADER_BYTES, size), 0)
        finally:
            file.xClose()
    if size and not header.startswith(_MAGIC):
        raise FormatError(
            f'"{path}" is not a SQLite database', hint="look elsewhere, or choose a new name"
        )
    version = int.from_bytes(header[60:64], "big")
    owner = int.from_bytes(header[68:72], "big")
    if owner != APPLICATION_ID:
        found = f"application id {owner}" if size else "an empty file"
        raise FormatError(
            f'"{path}" is not a store: expected a SQLite database with application id '
            f"{APPLICATION_ID}, found {found}; it was left untouched",
            hint="choose another path",
        )
    if not 1 <= version <= FORMAT:
        raise FormatError(
            f'"{path}" has format {version}: this holdfast reads up to {FORMAT}; it was left '
            "untouched",
            hint="upgrade holdfast",
        )


def connect(path: str, *, durability: Durability, read_only: bool) -> SqliteConnection:
    """Returns a connection with all settings that are not stored in the file."""
    if _library() < _LIBRARY_MIN:
        raise UsageError(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt shared databases: expected 3.51.3 or "
            "newer",
            hint="upgrade apsw",
        )
    access = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    with Translated(path):
        connection = driver.connect(path, access)
        try:
            _harden(connection)
            connection.set_busy_handler(_ask_again)
            synchronous = _SYNCHRONOUS[durability]
            connection.pragma("synchronous", synchronous)
            connection.pragma("fullfsync", durability == "full")
            connection.pragma("checkpoint_fullfsync", durability == "full")
            connection.pragma("wal_autocheckpoint", WAL_PAGES)
            connection.pragma("cache_size", -CACHE_KIB)
            connection.pragma("temp_store", 2)
            # SQLite silently ignores a pragma that it does not know or cannot set.
            found = connection.pragma("synchronous")
            if found != synchronous:
                raise UnavailableError(
                    f'"{path}" cannot be made durable: expected synchronous={synchronous}, '
                    f"found {found}"
                )
        except BaseException:
            driver.close_as_it_is(connection)
            raise
        return connection


def _ask_again(asked: int) -> bool:
    """Sleeps before the next try for a lock; returns False when it has waited long enough.

    SQLite's own busy handler sleeps for up to 100 ms. A process that commits again and again leaves
    the lock free for a fraction of a millisecond, so a process that asks so seldom may ask in vain
    for seconds. This sleeps in real time, whatever clock the store was given, because the other
    process lives in real time.
    """
    delay_s = 0.0001 if asked < 200 else 0.0005 if asked < 1000 else 0.005
    sleep(delay_s)
    return asked < _ASKED_MAX


def _library() -> int:
    major, minor, patch, *_ = (int(part) for part in f"{apsw.sqlite_lib_version()}.0".split("."))
    return major * 1_000_000 + minor * 1000 + patch


def _harden(connection: SqliteConnection) -> None:
    """Turns off what a hostile file could do through its schema, and sets low limits."""
    connection.enable_load_extension(False)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    connection.pragma("cell_size_check", True)
    connection.pragma("mmap_size", 0)
    for limit, most in (
        (apsw.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX),
        (apsw.SQLITE_LIMIT_SQL_LENGTH, 100_000),
        (apsw.SQLITE_LIMIT_COLUMN, 100),
        (apsw.SQLITE_LIMIT_EXPR_DEPTH, 20),
        (apsw.SQLITE_LIMIT_COMPOUND_SELECT, 3),
        (apsw.SQLITE_LIMIT_VDBE_OP, 25_000),
        (apsw.SQLITE_LIMIT_FUNCTION_ARG, 8),
        (apsw.SQLITE_LIMIT_ATTACHED, 0),
        (apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 50),
        (apsw.SQLITE_LIMIT_VARIABLE_NUMBER, 50),
        (apsw.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
    ):
        connection.limit(limit, most)


def use_wal(connection: SqliteConnection, path: str) -> None:
    """Sets WAL mode, which the file keeps."""
    with Translated(path):
        mode = connection.pragma("journal_mode", "wal")
    if mode != "wal":
        raise UnavailableError(
            f'"{path}" cannot have a write-ahead log: expected journal mode wal, found {mode}',
            hint="check that its directory is writable",
        )

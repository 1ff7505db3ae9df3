"""Opening a database file: whose it is, what it is, and how each connection is set.

The file is created here, through its own descriptor, before SQLite ever sees it. From then on only
SQLite opens it: closing any descriptor of the file drops every lock that this process has on it.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import apsw

from holdfast.backends.place import check_private, refuse_network
from holdfast.backends.protocol import Durability
from holdfast.backends.sqlite.errors import BUSY_TIMEOUT_MS, Translated
from holdfast.backends.sqlite.rows import crc_of
from holdfast.backends.sqlite.schema import statements
from holdfast.clock import Clock
from holdfast.errors import FormatError, NotFoundError, UnavailableError, UsageError
from holdfast.ids import new_id

FORMAT = 1
APPLICATION_ID = 0x486F4C64  # "HoLd"
PAGE_BYTES = 16384
# About 16 MB of WAL: several hundred commits. A checkpoint writes each page once however many
# commits changed it, and afterwards the WAL is overwritten in place from its beginning, which
# syncs a third faster than a file that grows. No journal_size_limit: the file keeps its size.
WAL_PAGES = 1000
CACHE_KIB = 8192
VALUE_BYTES_MAX = 512 << 20

_SYNCHRONOUS = {"full": 2, "process": 1, "none": 0}
# SQLite 3.7.0 to 3.51.2 could corrupt a WAL database that several connections checkpoint.
_LIBRARY_MIN = 3_051_003


def place_of(path: str | os.PathLike[str]) -> str:
    """Returns the path with every symlink above the file itself resolved."""
    given = Path(path)
    return os.path.join(os.path.realpath(given.parent), given.name)


def prepare_file(path: str, *, create: bool) -> bool:
    """Makes sure that there is a private file at `path`; returns True if it was made just now."""
    refuse_network(path)
    made = create and _create(path)
    if not made and not os.path.lexists(path):
        raise NotFoundError(f'"{path}" does not exist', hint="check the path, or create the store")
    check_private(path)
    for suffix in ("-wal", "-shm", "-journal"):
        if os.path.lexists(path + suffix):
            check_private(path + suffix)
    return made


def _create(path: str) -> bool:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    directory = os.path.dirname(path)
    try:
        fd = os.open(path, flags, 0o600)
    except FileExistsError:
        return False
    except OSError as exc:
        raise UnavailableError(
            f'"{path}" cannot be created: {exc.strerror}',
            hint="check that its directory exists and is writable",
        ) from exc
    # Nobody else can have the new file open, so closing this descriptor drops no lock.
    os.close(fd)
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory_fd)
    finally:
        os.close(directory_fd)
    return True


def examine(path: str) -> int:
    """Returns the format of the store at `path`, 0 if it is empty; FormatError if it is no store.

    The file is read as immutable: no lock, no WAL, no byte beside it. A store's header is written
    before it has a WAL, so it is always in the file itself.
    """
    uri = "file:" + quote(path) + "?immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOFOLLOW
    with Translated(path):
        connection = apsw.Connection(uri, flags=flags)
        try:
            return _format(connection, path)
        finally:
            connection.close()


def _format(connection: apsw.Connection, path: str) -> int:
    owner = connection.pragma("application_id")
    version = connection.pragma("user_version")
    if (
        owner == 0
        and version == 0
        and not connection.execute("SELECT count(*) FROM sqlite_schema").get
    ):
        return 0
    if owner != APPLICATION_ID:
        raise FormatError(
            f'"{path}" is a SQLite database of another program: expected application id '
            f"{APPLICATION_ID}, found {owner}; it was left untouched",
            hint="choose another path",
        )
    if not isinstance(version, int) or not 1 <= version <= FORMAT:
        raise FormatError(
            f'"{path}" has format {version}: this holdfast reads up to {FORMAT}; it was left '
            "untouched",
            hint="upgrade holdfast",
        )
    return version


def connect(path: str, *, durability: Durability, read_only: bool) -> apsw.Connection:
    """Returns a connection with everything set that a connection does not inherit from the file."""
    if apsw.sqlite3_sourceid() and _library() < _LIBRARY_MIN:
        raise UsageError(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt shared databases: expected 3.51.3 or "
            "newer",
            hint="upgrade apsw",
        )
    access = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    with Translated(path):
        connection = apsw.Connection(path, flags=access | apsw.SQLITE_OPEN_NOFOLLOW)
        try:
            _harden(connection)
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            # SQLite asks for the lock every millisecond then, in place of delays up to 100 ms.
            connection.setlk_timeout(BUSY_TIMEOUT_MS, 0)
            synchronous = _SYNCHRONOUS[durability]
            connection.pragma("synchronous", synchronous)
            connection.pragma("fullfsync", durability == "full")
            connection.pragma("checkpoint_fullfsync", durability == "full")
            connection.pragma("wal_autocheckpoint", WAL_PAGES)
            connection.pragma("cache_size", -CACHE_KIB)
            connection.pragma("temp_store", 2)
            # A pragma that SQLite does not know or cannot set is passed over in silence.
            found = connection.pragma("synchronous")
            if found != synchronous:
                raise UnavailableError(
                    f'"{path}" cannot be made durable: expected synchronous={synchronous}, '
                    f"found {found}"
                )
        except BaseException:
            connection.close()
            raise
        return connection


def _library() -> int:
    major, minor, patch, *_ = (int(part) for part in f"{apsw.sqlite_lib_version()}.0".split("."))
    return major * 1_000_000 + minor * 1000 + patch


def _harden(connection: apsw.Connection) -> None:
    """Takes from a hostile file what it could do through its schema."""
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


def initialise(connection: apsw.Connection, path: str, clock: Clock) -> None:
    """Gives an empty file the tables of a store; whoever comes second finds them made.

    All of it is one transaction with a rollback journal, so that a process killed here leaves an
    empty file or a whole store, and the header that says so is in the file and not in a WAL.
    """
    with Translated(path):
        connection.pragma("page_size", PAGE_BYTES)
        connection.execute("BEGIN EXCLUSIVE")
        try:
            if _format(connection, path) == 0:
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", FORMAT)
                connection.execute(statements("core")).fetchall()
                for name, value in (("store", new_id(clock)), ("made_us", str(clock.now_us()))):
                    connection.execute(
                        "INSERT INTO meta VALUES (?,?,?)", (name, value, crc_of(name, value))
                    )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def use_wal(connection: apsw.Connection, path: str) -> None:
    """Sets WAL mode, which the file keeps from then on."""
    with Translated(path):
        mode = connection.pragma("journal_mode", "wal")
    if mode != "wal":
        raise UnavailableError(
            f'"{path}" cannot have a write-ahead log: expected journal mode wal, found {mode}',
            hint="check that its directory is writable",
        )

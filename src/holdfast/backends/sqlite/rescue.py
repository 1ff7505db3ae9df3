"""A whole copy of what a connection can still read, when the files were taken from under it.

SQLite copies page by page through the connection. So the copy also has what is in the WAL, even in
one that has no name any more. The copy is a store: it can be opened where it lies.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import apsw

from holdfast.backends.rescue import reports, rescue
from holdfast.clock import Clock
from holdfast.names import short_id

if TYPE_CHECKING:
    from holdfast.backends.sqlite.connection import SqliteConnection

_log = logging.getLogger("holdfast.backends")

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def rescue_database(
    path: str, connection: SqliteConnection, what: str, clock: Clock
) -> tuple[str | None, str]:
    """Copies the store to a folder below `rescued/` beside it; returns the folder and a message."""
    directory, name = os.path.split(path)
    copy = f"{path}.{os.getpid()}-{short_id(clock)}.new"
    try:
        fd = os.open(copy, _NEW, 0o600)
        try:
            _copy(connection, copy)
            folder = rescue([directory], [(name, fd)], _report(path, name, what, clock), clock)
        finally:
            os.unlink(copy)
            os.close(fd)
    except (OSError, apsw.Error) as exc:
        _log.error("%s: what was committed could not be saved: %s", path, exc)
        return None, f"what could be read could not be saved ({exc})"
    return folder, f'all that could be read was saved in "{folder}"'


def rescued_reports(path: str) -> list[str]:
    """Returns those reports beside a database that are about it, and not about other stores."""
    return [text for text in reports(os.path.dirname(path)) if path in text]


def _copy(connection: SqliteConnection, target: str) -> None:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    with (
        closing(apsw.Connection(target, flags=flags)) as copy,
        copy.backup("main", cast(apsw.Connection, connection), "main") as backup,
    ):
        backup.step()


def _report(path: str, name: str, what: str, clock: Clock) -> str:
    now = datetime.fromtimestamp(clock.now_us() / 1_000_000, UTC).isoformat(timespec="seconds")
    return (
        f"{now}: {path}: {what}\n\n"
        f"What happened: {what}. The process {os.getpid()} had the store open and stopped writing "
        "at once.\n"
        f"What is here: {name}, a whole copy of the store as that process could still read it. It "
        "has every commit\nthat was acknowledged to it, and may have one that was refused with an "
        "unknown outcome.\n"
        f'What to do: compare it with what is at {path} ("holdfast --store sqlite:… check" and '
        '"history").\n'
        "If commits are missing there, close every process that uses the store, move its files "
        "away (the\ndatabase, -wal, -shm and -witness), and put this copy in the place of the "
        "database.\n"
    )

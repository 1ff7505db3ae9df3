"""Keeping the WAL ahead of what is written to it, and one that was left behind for sure.

A sync of a file that grows also writes its new size and its new blocks; one of a file that is
overwritten in place does not, and takes about two thirds of the time. SQLite overwrites its WAL
from the beginning after a checkpoint, so only the first pass over it is slow. That pass is made
fast by zeros, written behind the end of the file before SQLite gets there.

This is safe because it happens inside a write transaction: no other connection may append then, and
bytes behind the last valid frame mean nothing to SQLite, which finds them in every WAL that it has
begun to overwrite. The WAL is not the database file: no lock is on it, and closing a descriptor
of it drops none.
"""

from __future__ import annotations

import errno
import os

from holdfast.backends.sqlite.driver import Connection

# Two to eight commits of the usual size. More at once would make single commits slow.
_AHEAD = bytes(256 << 10)
# A process that commits a few times and ends has no use for it.
_BEGIN_BYTES = 256 << 10


def write_again(connection: Connection, path: str) -> None:
    """Writes a WAL that was left behind over itself, and syncs it, before anything is laid on it.

    If a sync of it failed and its process died, the kernel has marked the frames clean although
    they never reached the disk: they look whole, SQLite adopts them, and no later sync writes them.
    A power loss would then take them, and with them every commit behind them. Inside a write
    transaction nobody else appends.
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
    """Returns where data goes on, -1 if it does not: a hole of a terabyte is not written full."""
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
        """Writes zeros behind the end if the WAL has grown past them; inside a transaction only.

        It is never more than a favour: where it fails, the disk being full for one, it stops.
        """
        if self._is_off:
            return
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            size = os.fstat(self._fd).st_size
            if size > self._end:
                self._end = size + os.pwrite(self._fd, _AHEAD, size)
        except OSError:
            self._is_off = True

    def close(self) -> None:
        self._is_off = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

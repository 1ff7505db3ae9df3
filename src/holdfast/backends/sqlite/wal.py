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
from struct import pack, unpack

import apsw

from holdfast.backends.sqlite.driver import Connection
from holdfast.errors import CorruptError

# Two to eight commits of the usual size. More at once would make single commits slow.
_AHEAD = bytes(256 << 10)
# A process that commits a few times and ends has no use for it.
_BEGIN_BYTES = 256 << 10


_HEADER_BYTES = 32  # of the file: page size at 8, salts at 16
_FRAME_BYTES = 24  # before each page: size of the database if it ends a commit, at 4; salts at 8


def check_end(writing: Connection, reading: Connection, path: str) -> None:
    """Raises CorruptError if commits follow the place at which SQLite ends a WAL left behind.

    SQLite ends it at the first frame that fails its checksum, without a word: a crash leaves such a
    frame. But only in the last transaction, because each is synced before the next one begins. If
    two commits of the same WAL lie behind its end, the first of them was durable: bytes have
    changed, and to go on would lay new commits over what is left of them. At a weaker durability
    a power loss can do the same; then it is not asked. Inside a write transaction nobody appends.
    """
    if not _is_left(path):
        return
    writing.execute("BEGIN IMMEDIATE")
    try:
        # A connection knows of a WAL only when it has read through it.
        reading.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        frames, _ = reading.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        lost = _commits_behind(path + "-wal", frames, reading.pragma("page_size"))
    finally:
        writing.execute("ROLLBACK")
    if lost > 1:
        for connection in (writing, reading):
            # The last one to close would fold the WAL into the database, and delete it.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        raise CorruptError(
            f'the write-ahead log "{path}-wal" cannot be read behind frame {frames}, and {lost} '
            "commits follow: its bytes have changed",
            where=f"{path}-wal frame {frames + 1}",
            hint="restore the store from a copy; read_only=True shows what can be read, and "
            'durability="process" goes on without the rest (as is right if it was written with '
            "that, and power was lost)",
        )


def _is_left(path: str) -> bool:
    try:
        return os.stat(path + "-wal", follow_symlinks=False).st_size > 0
    except FileNotFoundError:
        return False


def _commits_behind(wal: str, frames: int, page_bytes: int) -> int:
    """Returns how many commits of the newest pass over the WAL lie behind its first `frames`."""
    step = _FRAME_BYTES + page_bytes
    commits = 0
    fd = os.open(wal, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        header = os.pread(fd, _HEADER_BYTES, 0)
        # SQLite reads nothing behind a damaged header; the pass is then that of the first frame.
        salts = header[16:24] if _is_whole(header) else os.pread(fd, 8, _HEADER_BYTES + 8)
        offset = _HEADER_BYTES + frames * step
        while (data := _data_from(fd, offset)) >= 0:
            offset += (data - offset) // step * step
            frame = os.pread(fd, _FRAME_BYTES, offset)
            commits += frame[8:16] == salts and any(frame[4:8])
            offset += step
    finally:
        os.close(fd)
    return commits


def _is_whole(header: bytes) -> bool:
    """Returns whether the WAL's header has the checksum that SQLite computes for it."""
    if len(header) < _HEADER_BYTES:
        return False
    words = unpack(">6I" if header[3] & 1 else "<6I", header[:24])
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return header[24:] == pack(">2I", first, second)


def write_again(connection: Connection, path: str) -> None:
    """Writes a WAL that was left behind over itself, and syncs it, before anything is laid on it.

    If a sync of it failed and its process died, the kernel has marked the frames clean although
    they never reached the disk: they look whole, SQLite adopts them, and no later sync writes them.
    A power loss would then take them, and with them every commit behind them. Inside a write
    transaction nobody else appends.
    """
    if not _is_left(path):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        fd = os.open(path + "-wal", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
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

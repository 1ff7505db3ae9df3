"""The file system as the files backend sees it: one thin object, so that a test can replace it.

The calls that read, write and sync the files of a store go through a `Disk`, except those on the
index, which SQLite makes itself. A test passes one that fails, writes less, or kills the process at
the nth call. Where possible the methods are the kernel's own functions: a Python frame on the hot
path costs more than the call it would wrap.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Generator
from functools import cache
from typing import Any

from holdfast.errors import CLOSE_SOME, CorruptError, UnavailableError

# Opening a pipe that lies in the place of a file would wait for ever. O_NONBLOCK means nothing to a
# file, and lets a pipe be opened, so that it can be refused.
OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
SMALL_BYTES_MAX = 64 << 20
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_SEEK_DATA: int | None = getattr(os, "SEEK_DATA", None)
NOT_NEEDED: int | None = getattr(os, "POSIX_FADV_DONTNEED", None)  # macOS has none


def _sync_through(fd: int) -> None:
    # On macOS fsync leaves data in the drive's cache; only F_FULLFSYNC asks the drive to write it.
    fcntl.fcntl(fd, _FULL_SYNC or 0)


def _no_advice(fd: int, offset: int, length: int, advice: int, /) -> None:
    """Stands for posix_fadvise where there is none; nobody calls it then."""


class Disk:
    """The real file system."""

    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    sync = staticmethod(os.fdatasync if _FULL_SYNC is None else _sync_through)
    lock = staticmethod(fcntl.flock)
    advise = staticmethod(getattr(os, "posix_fadvise", _no_advice))

    def open(self, name: str, flags: int, *, at: int, mode: int = 0o600) -> int:
        fd = os.open(name, flags | OPEN_FLAGS, mode, dir_fd=at)
        if not flags & os.O_DIRECTORY and not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.ENXIO, "it is not a file")
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def stat(self, name: str, *, at: int) -> os.stat_result:
        return os.stat(name, dir_fd=at, follow_symlinks=False)

    def next_data(self, fd: int, offset: int) -> int | None:
        """Returns the first offset with data at or after `offset`, None if only a hole follows.

        On a file system without holes there is data everywhere.
        """
        if _SEEK_DATA is None:
            return offset
        try:
            return os.lseek(fd, offset, _SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                return None
            return offset

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def rename(self, old: str, new: str, *, at: int) -> None:
        os.rename(old, new, src_dir_fd=at, dst_dir_fd=at)

    def unlink(self, name: str, *, at: int) -> None:
        os.unlink(name, dir_fd=at)

    def mkdir(self, name: str, *, at: int) -> None:
        os.mkdir(name, 0o700, dir_fd=at)

    def listdir(self, fd: int) -> list[str]:
        return os.listdir(fd)

    def sync_directory(self, fd: int) -> None:
        os.fsync(fd)

    def reserve(self, fd: int, offset: int, length: int) -> None:
        """Reserves blocks after the end of a file without changing its size, where possible.

        A full disk is then noticed here, before a commit has begun and with a known outcome, and
        not when the commit is durable in the ring and only its text is missing.
        """
        call = _fallocate()
        if call is None or call(fd, _KEEP_SIZE, offset, length) == 0:
            return
        problem = ctypes.get_errno()
        if problem in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise OSError(problem, os.strerror(problem))


@cache
def _fallocate() -> Any:
    """Returns the C library's fallocate, or None where there is none (macOS)."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return call


def write_all(disk: Disk, fd: int, data: bytes, offset: int) -> None:
    """Writes every byte, going on where a short write stopped."""
    written = disk.pwrite(fd, data, offset)
    while written < len(data):
        more = disk.pwrite(fd, data[written:], offset + written)
        if more <= 0:
            raise OSError(errno.EIO, "a write wrote nothing")
        written += more


def read_all(disk: Disk, fd: int, size: int, offset: int = 0) -> bytes:
    """Returns `size` bytes, or fewer only where the file ends."""
    data = disk.pread(fd, size, offset)
    if len(data) == size:
        return data
    parts = [data]
    missing = size - len(data)
    while missing and parts[-1]:
        parts.append(disk.pread(fd, missing, offset + size - missing))
        missing -= len(parts[-1])
    return b"".join(parts)


def read_file(disk: Disk, name: str, *, at: int, size_max: int = SMALL_BYTES_MAX) -> bytes | None:
    """Returns the file's bytes, None if there is no such file.

    Raises CorruptError for a file that is larger than any of ours: a sparse one could take all
    memory.
    """
    try:
        fd = disk.open(name, os.O_RDONLY, at=at)
    except FileNotFoundError:
        return None
    try:
        size = disk.size(fd)
        if size > size_max:
            problem = f"{name} takes {size} bytes: expected {size_max} at most"
            raise CorruptError(problem, where=name)
        return read_all(disk, fd, size)
    finally:
        disk.close(fd)


def replace_file(
    disk: Disk,
    name: str,
    data: bytes,
    *,
    at: int,
    temp: str,
    durable: bool,
    piece_bytes: int | None = None,
) -> None:
    """Replaces a file as a whole: a reader finds the old bytes or the new ones.

    If `durable`, the bytes are synced before the rename: otherwise a power loss could leave the new
    name with an empty or torn file. The directory is synced after the rename: when this returns,
    the new file survives a power loss. With `piece_bytes` no write is longer than that.
    """
    fd = disk.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, at=at)
    try:
        try:
            step = piece_bytes or len(data) or 1
            for offset in range(0, len(data), step):
                write_all(disk, fd, data[offset : offset + step], offset)
            if durable:
                disk.sync(fd)
        finally:
            disk.close(fd)
        disk.rename(temp, name, at=at)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temp, at=at)
        raise
    if durable:
        disk.sync_directory(at)


def unavailable(exc: OSError, subject: str, *, outcome_known: bool = True) -> UnavailableError:
    """Returns the error for an OSError: what the kernel reported, and what helps."""
    finding, hint = _REMEDIES.get(exc.errno or 0, (exc.strerror or str(exc), None))
    if not outcome_known:
        hint = "open the store again: that shows whether the commit is there"
    return UnavailableError(f"{subject}: {finding}", outcome_known=outcome_known, hint=hint)


@contextlib.contextmanager
def reported(subject: str) -> Generator[None]:
    """Turns an OSError of a call that changed nothing into an UnavailableError."""
    try:
        yield
    except OSError as exc:
        raise unavailable(exc, subject) from exc


_FULL = "the disk is full", "free some space, then try again"
_DENIED = "permission denied", "give this user the right to read and write there"
_TOO_MANY = "too many open files", CLOSE_SOME
_REMEDIES: dict[int, tuple[str, str | None]] = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: ("the disk quota is used up", "free some space, then try again"),
    errno.EROFS: ("the file system is read-only", "mount it writable, or open with read_only"),
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EMFILE: _TOO_MANY,
    errno.ENFILE: _TOO_MANY,
    errno.EIO: ("the disk reports an input/output error", "check the disk and its cables"),
    errno.EFBIG: ("a file may not grow any more", "raise the limit of file sizes (ulimit -f)"),
    errno.ENOTDIR: ("something on its way is not a directory", "name a place below a directory"),
    errno.EEXIST: ("something on its way is not a directory", "name a place below a directory"),
    errno.ENOENT: ("it is not there, or not any more", "look whether somebody moved or deleted it"),
    errno.ENAMETOOLONG: ("its name is too long", "choose a shorter one"),
    errno.ENXIO: ("a pipe, a socket or a device is in its place", "remove what is there"),
    errno.ELOOP: ("there is a symbolic link in its place", "replace it by what it points to"),
}

"""The files that an open database relies on, and the locks on them: are they still ours?

SQLite opens the database, its WAL and its shared memory once, and never looks at their names again.
If somebody removes or replaces one of them, or mounts another over it, SQLite goes on writing to a
file that nobody will find. And POSIX locks belong to a process, not to a descriptor: when anything
in this process closes any descriptor of the database or of the shared memory (another SQLite
library, a copy made with `open`), the kernel drops all locks that SQLite has on that file. Other
processes then take this one for dead: they write at the same time, or remove the WAL when they end.

So this module looks. The names are watched through descriptors made with O_PATH, which can be
closed without dropping a lock. The locks are read from `/proc/self/fdinfo`, where the kernel lists
those that were taken through a descriptor; that file is no descriptor of the database either. A
lock that another library has taken over is no longer listed for SQLite's own descriptor, so that
shows too.

Where the system has no such list, lost locks are noticed only by what follows from them: a WAL that
was removed or replaced.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import apsw

from holdfast.backends.file_watch import FileWatch

if TYPE_CHECKING:
    from holdfast.backends.sqlite.connection import SqliteConnection

_log = logging.getLogger("holdfast.backends")

# The byte ranges that SQLite keeps locked from the first read of a connection on: one of the
# database, so that nobody removes the WAL, and one of the shared memory, so that nobody resets it.
_SHARED = 0x40000002, 0x400001FF
_DMS = 128, 128

_DESCRIPTORS = "/dev/fd"
_FDINFO = "/proc/self/fdinfo"
_LOCKS = "/proc/locks"
_LINKS = "/proc/self/fd"
_FDINFO_BYTES = 2048
_O_PATH = getattr(os, "O_PATH", 0)

_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24

DATABASE, WAL, MEMORY = "the database file", "its write-ahead log", "its shared memory"
_SUFFIXES = {MEMORY: "-shm", DATABASE: "", WAL: "-wal"}


class Problem(NamedTuple):
    """What was found, and whether all that was committed is still under the names of the store."""

    what: str
    is_in_place: bool


class DatabaseFiles:
    """Watches files and locks; used by the thread that has the writer's lock.

    It is made after both connections have read once, because SQLite takes its locks then.
    """

    def __init__(self, path: str, connection: SqliteConnection) -> None:
        self._path = path
        self._connection = connection
        self._page_bytes: int = connection.pragma("page_size")
        self.watch = FileWatch()
        self._own: list[int] = []
        self._fds: dict[str, int] = {}
        self._locks: list[_Lock] = []
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def find_problem(self, *, thorough: bool) -> Problem | None:
        """Returns what is wrong, None if all is well.

        Unless `thorough`, it looks only at the names and at the lock of the shared memory, whose
        loss lets others write. That is done after every commit where no inotify says when a look is
        due.
        """
        taken = self.watch.look()
        if not all([lock.is_held() for lock in self._locks[: None if thorough else 1]]):
            return Problem(
                "its locks are gone: something in this process opened and closed one of its files, "
                "such as another SQLite library (Python's sqlite3 is one) or a copy of it",
                is_in_place=not taken,
            )
        if taken:
            was = "were" if len(taken) > 1 else "was"
            return Problem(
                f"{' and '.join(taken)} {was} deleted, moved or replaced while it was open",
                is_in_place=False,
            )
        if thorough and lacks_frames(self._connection, self._path):
            return Problem(f"{WAL} was cut while it was open", is_in_place=False)
        return None

    def is_suspect(self) -> bool:
        """Returns whether a full look is due before a commit, where no inotify says so.

        It looks only at whether the WAL and the shared memory were unlinked and whether the WAL was
        cut: others would begin those anew, and write to them. The look after the commit does the
        rest.
        """
        try:
            wal = os.fstat(self._fds[WAL])
            if not wal.st_nlink or not os.fstat(self._fds[MEMORY]).st_nlink:
                return True
        except OSError:  # without O_PATH the descriptors are SQLite's, and may have been closed
            return True
        try:
            return wal.st_size < _frames_end(self._connection, self._page_bytes)
        except apsw.BusyError:
            return False  # another process works on the WAL: the look after the commit must do

    def moved_to(self) -> str | None:
        """Returns where the database is, if it was moved with the files that it needs."""
        try:
            found = {what: os.readlink(f"{_LINKS}/{fd}") for what, fd in self._fds.items()}
        except OSError:
            return None
        new = found[DATABASE]
        if new == self._path or not os.path.lexists(new):
            return None
        beside = (found[what] == new + suffix for what, suffix in _SUFFIXES.items())
        return new if all(beside) else None

    def close(self) -> None:
        """Ends the watch; closing descriptors that were made with O_PATH drops no lock."""
        self.watch.close()
        # Each is removed from its list first: after an interrupt, close is called again, and must
        # not close a number that belongs to another file by then.
        while self._locks:
            self._locks.pop().close()
        while self._own:
            os.close(self._own.pop())

    def _begin(self) -> None:
        opened = _open_inodes()
        for what, suffix in _SUFFIXES.items():
            path = self._path + suffix
            found = os.stat(path, follow_symlinks=False)
            by_sqlite = opened.get((found.st_dev, found.st_ino), [])
            if not by_sqlite:
                raise FileNotFoundError(0, "it was replaced while it was being opened")
            fd = by_sqlite[0]
            if _O_PATH:
                fd = os.open(path, _O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                self._own.append(fd)
            self._fds[what] = fd
            self.watch.keep(what, path, fd, uses=True)
            if what != WAL:
                self._keep_lock(_SHARED if what == DATABASE else _DMS, by_sqlite)
        if lacks_frames(self._connection, self._path):
            raise FileNotFoundError(0, "its WAL was removed or cut while other processes use it")

    def _keep_lock(self, range_: tuple[int, int], fds: list[int]) -> None:
        """Remembers the descriptor through which a lock was taken, where the system lists locks."""
        for fd in fds:
            with suppress(OSError):
                lock = _Lock(fd, range_)
                if lock.is_held():
                    self._locks.append(lock)
                    return
                lock.close()
        _log.debug("%s: the system does not list its locks", self._path)


def _frames_end(connection: SqliteConnection, page_bytes: int) -> int:
    """Returns how many bytes of the WAL are in use, according to the shared memory."""
    frames, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    if frames <= 0:
        return 0
    return _WAL_HEADER_BYTES + frames * (_FRAME_HEADER_BYTES + page_bytes)


def lacks_frames(connection: SqliteConnection, path: str) -> bool:
    """Returns whether the WAL is shorter than the shared memory says.

    Another process may empty the WAL between the two questions, so both are asked up to three
    times.
    """
    for _ in range(3):
        try:
            end = _frames_end(connection, connection.pragma("page_size"))
            if os.stat(path + "-wal", follow_symlinks=False).st_size >= end:
                return False
        except (OSError, apsw.Error):
            return False
    return True


def holders(path: str) -> frozenset[int]:
    """Returns the ids of processes that have a database open, including this one, as far as known.

    Each keeps a lock on byte 128 of the shared memory, and the kernel lists all locks. The list
    names files by device and inode, which on some file systems differ from those of `stat`. There,
    and where there is no such list, nobody is found. It opens no descriptor of the file, because
    closing that would drop the locks of another SQLite library in this process.
    """
    try:
        memory = os.stat(path + "-shm", follow_symlinks=False)
        with open(_LOCKS, "rb") as file:
            listed = file.read()
    except OSError:
        return frozenset()
    device = memory.st_dev
    place = b"%02x:%02x:%d" % (os.major(device), os.minor(device), memory.st_ino)
    found: set[int] = set()
    for line in listed.splitlines():
        fields = line.split()
        if fields[1:2] == [b"POSIX"] and fields[5:7] == [place, b"%d" % _DMS[0]]:
            found.add(int(fields[4]))
    return frozenset(found)


class _Lock:
    """A lock of this process, as the kernel lists it for the descriptor that it was taken with."""

    def __init__(self, fd: int, range_: tuple[int, int]) -> None:
        self._first, self._last = range_
        self._held = b""
        # Kept open: reading it again takes 2 microseconds, opening and reading it takes 8.
        self._info = os.open(f"{_FDINFO}/{fd}", os.O_RDONLY | os.O_CLOEXEC)

    def is_held(self) -> bool:
        try:
            info = os.pread(self._info, _FDINFO_BYTES, 0)
        except OSError:
            return False
        if info == self._held:
            return True
        for line in info.splitlines():
            if line.startswith(b"lock:") and b" POSIX " in line:
                # Neighbouring ranges are merged, so ours may be a part of what is listed.
                *_, first, last = line.split()
                if int(first) <= self._first and (last == b"EOF" or self._last <= int(last)):
                    self._held = info
                    return True
        return False

    def close(self) -> None:
        os.close(self._info)


def _open_inodes() -> dict[tuple[int, int], list[int]]:
    """Returns the files that this process has open, each with its descriptors."""
    found: dict[tuple[int, int], list[int]] = {}
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):
            status = os.fstat(int(name))
            found.setdefault((status.st_dev, status.st_ino), []).append(int(name))
    return found

"""The text: segments of lines, one behind another, named by the log offset of their first byte.

`log/0000000000000000.jsonl` is the first. A log offset is a place in all segments laid end to end.
A line never straddles two segments. A segment is complete and synced before the next one is made,
so that only the newest can ever be short.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from threading import Lock

from holdfast.backends.files.disk import Disk, read_all, write_all
from holdfast.errors import CorruptError

DIRECTORY = "log"
SEGMENT_BYTES = 64 << 20
RESERVE_BYTES = 1 << 20
_SUFFIX = ".jsonl"
_READERS_MAX = 8


class Segments:
    """The segments of a store, for reading and for the one writer who has the lock."""

    def __init__(self, disk: Disk, directory_fd: int, *, read_only: bool) -> None:
        self._disk = disk
        self._pwrite = disk.pwrite
        self._directory_fd = directory_fd
        self._flags = os.O_RDONLY if read_only else os.O_RDWR
        self.starts: list[int] = []
        self._fds: dict[int, int] = {}
        self._mutex = Lock()  # a descriptor is not closed while another thread reads through it
        self.reserved_end = 0
        self._newest_fd = -1
        self.refresh()

    @property
    def newest(self) -> int:
        """The log offset at which the newest segment begins."""
        return self.starts[-1] if self.starts else 0

    def refresh(self) -> None:
        """Looks which segments there are."""
        names = self._disk.listdir(self._directory_fd)
        starts = sorted(start for name in names if (start := _start_of(name)) is not None)
        if starts != self.starts:
            self._newest_fd = -1
        self.starts = starts

    def size_of(self, start: int) -> int:
        return self._disk.size(self._fd(start))

    def end(self) -> int:
        """Returns the log offset behind the last byte; asks the file system."""
        return self.newest + self.size_of(self.newest) if self.starts else 0

    def where(self, offset: int) -> str:
        """Returns the file and the byte in it, for messages."""
        start = self._start_at(offset)
        return f"{DIRECTORY}/{_name_of(start)} byte {offset - start}"

    def read(self, offset: int, end: int) -> bytes:
        """Returns the text between two log offsets; fewer bytes only where the text ends."""
        with self._mutex:
            start = self._start_at(offset)
            data = read_all(self._disk, self._fd(start), end - offset, offset - start)
            if len(data) == end - offset or start == self.newest:
                return data
            parts = [data]
            offset += len(data)
            while data and offset < end and offset in self.starts:
                data = read_all(self._disk, self._fd(offset), end - offset)
                parts.append(data)
                offset += len(data)
            return b"".join(parts)

    def check_contiguous(self) -> None:
        """Raises CorruptError if a segment is missing, short or long."""
        expected = 0
        for start in self.starts:
            if start != expected:
                raise CorruptError(
                    f"the text between {expected} and {start} is missing: expected the segment "
                    f"{DIRECTORY}/{_name_of(expected)} to reach {DIRECTORY}/{_name_of(start)}",
                    where=f"{DIRECTORY}/{_name_of(start)}",
                )
            expected = start + self.size_of(start)

    def append(self, offset: int, text: bytes) -> None:
        """Writes at the end of the text, which the caller knows to be `offset`; not synced."""
        if self._newest_fd < 0:
            self._open_newest()
        place = offset - self.starts[-1]
        if self._pwrite(self._newest_fd, text, place) != len(text):
            write_all(self._disk, self._newest_fd, text, place)

    def _open_newest(self) -> None:
        with self._mutex:  # one more descriptor may be one too many: the oldest is closed for it
            self._newest_fd = self._fd(self.newest)

    def write_at(self, offset: int, text: bytes) -> None:
        """Puts bytes into the newest segment or an older one: recovery's way."""
        start = self._start_at(offset)
        write_all(self._disk, self._fd(start), text, offset - start)

    def reserve(self, offset: int, length: int) -> None:
        """Makes sure that the disk has room for `length` bytes at the end of the text."""
        if self._newest_fd < 0:
            self._open_newest()
        start = self.starts[-1]
        ahead = max(RESERVE_BYTES, length)
        try:
            self._disk.reserve(self._newest_fd, offset - start, ahead)
        except OSError:
            ahead = length
            self._disk.reserve(self._newest_fd, offset - start, ahead)
        self.reserved_end = offset + ahead

    def add(self, start: int) -> None:
        """Makes the next segment; its name is durable when this returns.

        A writer that was killed may have made it before, empty.
        """
        fd = self._disk.open(_name_of(start), os.O_RDWR | os.O_CREAT, at=self._directory_fd)
        try:
            self._disk.sync(fd)
            self._disk.sync_directory(self._directory_fd)
        except BaseException:
            self._disk.close(fd)
            # Left behind, an empty segment is harmless; but its name was never promised.
            with contextlib.suppress(OSError):
                self._disk.unlink(_name_of(start), at=self._directory_fd)
            raise
        with self._mutex:
            self._forget_oldest()
            known = self._fds.pop(start, None)
            self._fds[start] = fd
            self.starts = sorted({*self.starts, start})
            self._newest_fd = fd
        if known is not None:
            self._disk.close(known)
        self.reserved_end = start

    def sync(self, since: int) -> None:
        """Syncs every segment that has bytes at or above the log offset `since`."""
        for start in self.starts[max(bisect_right(self.starts, since) - 1, 0) :]:
            self._disk.sync(self._fd(start))

    def cut(self, end: int) -> None:
        """Makes `end` the end of the newest segment, and lets go of blocks reserved behind it."""
        self._disk.truncate(self._fd(self.newest), end - self.newest)
        self.reserved_end = end

    def close(self) -> None:
        with self._mutex:  # else a thread that still reads could do so in what is opened next
            fds, self._fds = self._fds, {}
            self._newest_fd = -1
            for fd in fds.values():
                self._disk.close(fd)

    def _start_at(self, offset: int) -> int:
        place = bisect_right(self.starts, offset) - 1
        return self.starts[place] if place >= 0 else 0

    def _fd(self, start: int) -> int:
        fd = self._fds.get(start)
        if fd is None:
            try:
                fd = self._disk.open(_name_of(start), self._flags, at=self._directory_fd)
            except FileNotFoundError as exc:
                name = f"{DIRECTORY}/{_name_of(start)}"
                raise CorruptError(f"the segment {name} is missing", where=name) from exc
            self._forget_oldest()
            self._fds[start] = fd
        return fd

    def _forget_oldest(self) -> None:
        if len(self._fds) >= _READERS_MAX:
            oldest = next(start for start in self._fds if start != self.newest)
            self._disk.close(self._fds.pop(oldest))


def _name_of(start: int) -> str:
    return f"{start:016x}{_SUFFIX}"


def _start_of(name: str) -> int | None:
    stem = name.removesuffix(_SUFFIX)
    if len(stem) != 16 or stem == name:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None

"""What a disk holds below a directory, while the files there show what the cache holds.

After a failed fsync a kernel counts the pages as clean: the cache still shows them, the disk has
never seen them, and the next fsync has nothing to do and succeeds.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PAGE = 4096


class Cache:
    """The pages of files below a directory; told of every write, sync and cut."""

    def __init__(self, place: Path) -> None:
        """Everything that is there now is on the disk."""
        self.place = place
        self._disk: dict[int, bytearray] = {}
        """What the disk holds, by the number of the file."""
        self._dirty: dict[int, set[int]] = {}
        self._dropped: dict[int, set[int]] = {}
        """Pages that a failed sync left clean, and that were not written again."""
        for path in place.rglob("*"):
            if path.is_file():
                self._disk[path.stat().st_ino] = bytearray(path.read_bytes())

    def wrote(self, fd: int, offset: int, size: int) -> None:
        if (file := self._file(fd)) is not None:
            pages = set(range(offset // PAGE, (offset + size - 1) // PAGE + 1))
            self._dirty.setdefault(file, set()).update(pages)
            self._dropped.get(file, set[int]()).difference_update(pages)

    def synced(self, fd: int) -> None:
        if (file := self._file(fd)) is None:
            return
        held = self._disk.setdefault(file, bytearray())
        for page in self._dirty.pop(file, ()):
            _put(held, page, _read(fd, page))

    def failed(self, fd: int) -> None:
        if (file := self._file(fd)) is not None:
            self._dropped.setdefault(file, set()).update(self._dirty.pop(file, ()))

    def cut(self, fd: int, size: int) -> None:
        if (file := self._file(fd)) is not None:
            del self._disk.setdefault(file, bytearray())[size:]

    def evict(self) -> None:
        """Shows what the disk holds where the cache has been given up: in dropped pages."""
        for path in self._files():
            dropped = self._dropped.get(path.stat().st_ino)
            if dropped:
                held = self._disk.get(path.stat().st_ino, bytearray())
                data = bytearray(path.read_bytes())
                for page in dropped:
                    old = bytes(held[page * PAGE : (page + 1) * PAGE])
                    _put(data, page, old.ljust(min(PAGE, len(data) - page * PAGE), b"\0"))
                path.write_bytes(data)

    def crash(self, place: Path) -> Cache:
        """Returns a copy, as if every process had been killed here: the cache stays as it is."""
        shutil.copytree(self.place, place, symlinks=True)
        other = Cache(place)
        for path in self._files():
            there = place / path.relative_to(self.place)
            old, new = path.stat().st_ino, there.stat().st_ino
            for mine, theirs in ((self._dirty, other._dirty), (self._dropped, other._dropped)):
                theirs[new] = set(mine.get(old, ()))
            other._disk[new] = bytearray(self._disk.get(old, b""))
        return other

    def lose_power(self) -> None:
        """Shows what the disk holds. Memory that processes share is not a file's content."""
        for path in self._files():
            if not path.name.endswith("-shm") and path.name != "shared":
                path.write_bytes(self._disk.get(path.stat().st_ino, b""))

    def _files(self) -> list[Path]:
        return [path for path in self.place.rglob("*") if path.is_file()]

    def _file(self, fd: int) -> int | None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        is_ours = path.startswith(f"{self.place}/") and not os.path.isdir(path)
        return os.fstat(fd).st_ino if is_ours else None


def _read(fd: int, page: int) -> bytes:
    try:
        return os.pread(fd, PAGE, page * PAGE)
    except OSError:  # open for writing only
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            return os.pread(file.fileno(), PAGE, page * PAGE)


def _put(held: bytearray, page: int, data: bytes) -> None:
    start = page * PAGE
    held.extend(bytes(max(0, start - len(held))))
    held[start : start + len(data)] = data

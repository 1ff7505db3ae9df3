"""Records what a store asks of the file system, in order, as a trace of events.

Everything below one directory is recorded: the calls of Python's `os` by standing in for them while
the recording lasts, those of SQLite by a VFS (crash_vfs.py), and what is written through mapped
memory (the shared page, SQLite's -shm) by looking at the file whenever a sync or an answer is
recorded. Nodes are numbers that stand for files and directories whatever their names; 0 is the
directory itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from holdfast.backends.files.disk import Disk

ROOT = 0
PID = 7777
"""What a recorded process takes for its number: it becomes part of names."""
MAPPED = ("shared", "-shm")
_open, _pread = os.open, os.pread  # as they are: a recording stands in for them

Kind = Literal["make", "move", "drop", "write", "cut", "sync", "begun", "done"]


class Event(NamedTuple):
    """One call, or what the workload says between calls."""

    kind: Kind
    node: int = -1
    """The file written, cut or synced; the directory whose names change."""
    name: str = ""
    """Made, dropped or moved away; for begun and done: what."""
    target: int = -1
    """The node that a name is made for."""
    new: str = ""
    """The name that `move` gives."""
    offset: int = 0
    """Of a write; the length for `cut`."""
    data: bytes = b""

    def __str__(self) -> str:
        what = f"{self.kind} {self.node} {self.name or self.offset}"
        return f"{what} -> {self.new}" if self.new else f"{what} {len(self.data)} bytes"


class Trace:
    """Events, and the tree of names as it stands at their end."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)
        self.events: list[Event] = []
        self.folders: dict[int, dict[str, int]] = {ROOT: {}}
        self.names: dict[int, str] = {ROOT: ""}
        """The last name of each node, for messages and for faults that ask whose sync it is."""
        self.loses: Callable[[Event, Trace], bool] | None = None
        """A planted fault: says which events the disk never hears of."""
        self._fds: dict[int, int] = {}
        self._mapped: dict[int, bytes] = {}
        self._unseen: dict[int, bytes] = {}
        """What was written to files by other calls than those of `os`, as far as it was noted."""
        self._seen: set[int] = set()
        """Files whose writes are recorded one by one."""
        self._kept: dict[int, int] = {}
        self._adopt(self.place, ROOT)
        self.began = len(self.events)
        """Behind what was there already."""

    def add(self, event: Event) -> None:
        if event.kind in ("sync", "done"):
            self._look_at_mapped()
        if event.kind in ("write", "cut"):
            self._seen.add(event.node)
        if self.loses is None or not self.loses(event, self):
            self.events.append(event)

    def begun(self, what: str) -> None:
        self.add(Event("begun", name=what))

    def done(self, what: str) -> None:
        self.add(Event("done", name=what))

    # --- names -----------------------------------------------------------------------------------

    def find(self, path: str, at: int | None = None) -> tuple[int, str] | None:
        """Returns directory and last name of a path below the place, None for any other."""
        if at is not None:
            node = self._fds.get(at)
            return None if node is None else (node, path)
        if not path.startswith(self.place + "/"):
            return None
        node = ROOT
        *folders, last = path[len(self.place) + 1 :].split("/")
        for folder in folders:
            node = self.folders[node][folder]
        return node, last

    def node_of(self, path: str, at: int | None = None) -> int | None:
        if path == self.place:
            return ROOT
        found = self.find(path, at)
        return None if found is None else self.folders[found[0]].get(found[1])

    def make(self, folder: int, name: str, *, is_folder: bool = False, node: int = -1) -> int:
        if node < 0:
            node = len(self.names)
            if is_folder:
                self.folders[node] = {}
        self.names[node] = name
        self.folders[folder][name] = node
        self.add(Event("make", folder, name, node))
        return node

    def move(self, folder: int, old: str, new: str) -> None:
        node = self.folders[folder].pop(old)
        self.folders[folder][new] = node
        self.names[node] = new
        self.add(Event("move", folder, old, node, new))

    def drop(self, folder: int, name: str) -> None:
        if self.folders[folder].pop(name, None) is not None:
            self.add(Event("drop", folder, name))

    def _adopt(self, path: str, node: int) -> None:
        """Takes what is there already for durable."""
        for entry in sorted(os.scandir(path), key=lambda one: one.name):
            child = self.make(node, entry.name, is_folder=entry.is_dir())
            if entry.is_dir():
                self._adopt(entry.path, child)
            else:
                self.add(Event("write", child, data=Path(entry.path).read_bytes()))
                self.add(Event("sync", child))
        self.add(Event("sync", node))

    def _look_at_mapped(self) -> None:
        for folder, names in list(self.folders.items()):
            for name, node in list(names.items()):
                if name.endswith(MAPPED):
                    self._compare(folder, name, node)
        shm = next((entry for entry in os.listdir(self.place) if entry.endswith("-shm")), None)
        if shm is not None and shm not in self.folders[ROOT]:
            self.make(ROOT, shm)

    def note_content(self, path: str) -> int | None:
        """Notes what a file object wrote to a file: as one write, when it is synced or renamed."""
        found = self.find(path)
        if found is None or os.path.isdir(path):
            return None if found is None else self.folders[found[0]].get(found[1])
        node = self.folders[found[0]].get(found[1])
        if node is None:
            node = self.make(*found)
        if node not in self._seen:
            fd = _open(path, os.O_RDONLY)
            data = _pread(fd, os.fstat(fd).st_size, 0)
            _REAL["close"](fd)
            if data != self._unseen.get(node, b""):
                self._unseen[node] = data
                self.events.append(Event("write", node, data=data))
        return node

    def _compare(self, folder: int, name: str, node: int) -> None:
        try:
            data = self._read_mapped(Path(self._path(folder), name))
        except FileNotFoundError:
            self.drop(folder, name)  # by SQLite, which tells nobody
            return
        if data != self._mapped.get(node, b""):
            self._mapped[node] = data
            self.events.append(Event("write", node, data=data))

    def _read_mapped(self, path: Path) -> bytes:
        """Reads SQLite's through a descriptor that stays open: closing one would drop its locks."""
        if not path.name.endswith("-shm"):
            return path.read_bytes()
        found = path.stat()
        if found.st_ino not in self._kept:
            self._kept[found.st_ino] = _open(path, os.O_RDONLY)
        return _pread(self._kept[found.st_ino], found.st_size, 0)

    def _path(self, folder: int) -> str:
        if folder == ROOT:
            return self.place
        for above, names in self.folders.items():
            for name, node in names.items():
                if node == folder:
                    return self._path(above) + "/" + name
        return "?"

    # --- descriptors -----------------------------------------------------------------------------

    def opened(self, fd: int, node: int | None) -> None:
        if node is None:
            self._fds.pop(fd, None)
        else:
            self._fds[fd] = node

    def node_at(self, fd: int) -> int | None:
        return self._fds.get(fd)


class CrashDisk(Disk):
    """A disk whose calls are looked up when they are made, so that a recording sees them."""

    pwrite = staticmethod(  # type: ignore[assignment]
        lambda fd, data, offset: os.pwrite(fd, data, offset)
    )
    sync = staticmethod(lambda fd: os.fdatasync(fd))  # type: ignore[assignment]

    def reserve(self, fd: int, offset: int, length: int) -> None:
        """Sets nothing aside: blocks behind the end of a file are no part of what it says."""


@contextmanager
def recording(trace: Trace) -> Generator[None]:
    """Records the calls of `os` in this process until the end of the block."""
    with _replaced({**dict(_of_files(trace)), **dict(_of_names(trace)), "getpid": lambda: PID}):
        yield


@contextmanager
def unsynced() -> Generator[None]:
    """Makes syncs do nothing until the end of the block: a judge needs none."""
    with _replaced({"fsync": _nothing, "fdatasync": _nothing}):
        yield


def _nothing(_fd: int) -> None:
    pass


@contextmanager
def _replaced(calls: dict[str, Any]) -> Generator[None]:
    kept = {name: getattr(os, name) for name in calls}
    for name, call in calls.items():
        setattr(os, name, call)
    try:
        yield
    finally:
        for name, call in kept.items():
            setattr(os, name, call)


_REAL: dict[str, Any] = {name: getattr(os, name) for name in dir(os)}


def _of_files(trace: Trace) -> Iterator[tuple[str, Any]]:
    """Yields what stands in for calls that change what is in files."""

    def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd = _REAL["open"](path, flags, mode, dir_fd=dir_fd)
        node = trace.node_of(str(path), dir_fd)
        if node is None and (found := trace.find(str(path), dir_fd)) is not None:
            node = trace.make(*found)
        trace.opened(fd, node)
        return fd

    def close(fd: int) -> None:
        trace.opened(fd, None)
        _REAL["close"](fd)

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        written = _REAL["pwrite"](fd, data, offset)
        if (node := trace.node_at(fd)) is not None:
            trace.add(Event("write", node, offset=offset, data=bytes(data)[:written]))
        return written

    def ftruncate(fd: int, length: int) -> None:
        _REAL["ftruncate"](fd, length)
        if (node := trace.node_at(fd)) is not None:
            trace.add(Event("cut", node, offset=length))

    def sync(fd: int) -> None:
        node = trace.node_at(fd)
        if node is None or node not in trace.folders:
            noted = trace.note_content(os.readlink(f"/proc/self/fd/{fd}"))
            node = noted if node is None else node
        if node is not None:
            trace.add(Event("sync", node))

    yield from {"open": open_, "close": close, "pwrite": pwrite, "ftruncate": ftruncate}.items()
    yield from {"fsync": sync, "fdatasync": sync}.items()


def _of_names(trace: Trace) -> Iterator[tuple[str, Any]]:
    """Yields what stands in for calls that change names."""

    def rename(old: Any, new: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
        if src_dir_fd is None:
            trace.note_content(str(old))
        _REAL["rename"](old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        found = trace.find(str(old), src_dir_fd)
        if found is not None:
            assert src_dir_fd == dst_dir_fd, "moved between directories: not known here"
            trace.move(*found, os.path.basename(str(new)))

    def link(old: Any, new: Any, **how: Any) -> None:
        _REAL["link"](old, new, **how)
        found, node = trace.find(str(new)), trace.node_of(str(old))
        if found is not None and node is not None:
            trace.make(*found, node=node)

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        _REAL["unlink"](path, dir_fd=dir_fd)
        if (found := trace.find(str(path), dir_fd)) is not None:
            trace.drop(*found)

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        _REAL["mkdir"](path, mode, dir_fd=dir_fd)
        if (found := trace.find(str(path), dir_fd)) is not None:
            trace.make(*found, is_folder=True)

    yield from {"rename": rename, "replace": rename, "link": link, "mkdir": mkdir}.items()
    yield from {"unlink": unlink, "remove": unlink}.items()

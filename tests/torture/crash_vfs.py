"""SQLite's own calls, recorded: a VFS that every connection of this process uses from then on.

SQLite syncs a directory inside its sync of a journal or a WAL that it made, and inside some of its
deletions. A VFS does not see that, so the system call that opens the directory is watched too.
Chance is the same in each recording: SQLite salts its logs with it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import shake_256
from typing import Any

import apsw

from tests.torture.crash_trace import Event, Trace

_OPEN_DIRECTORY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))


class _File(apsw.VFSFile):
    def __init__(self, vfs: _Vfs, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._vfs = vfs
        self._path = "" if name is None else str(getattr(name, "filename", lambda: name)())
        self._vfs.note_made(self._path)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)  # pyright: ignore[reportUnknownMemberType]
        self._add("write", offset=offset, data=bytes(data))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._add("cut", offset=newsize)

    def xSync(self, flags: int) -> None:
        if self._vfs.trace is None:
            return
        self._vfs.folders.clear()
        super().xSync(flags)
        self._add("sync")
        self._vfs.note_folders()

    def _add(self, kind: Any, **what: Any) -> None:
        trace = self._vfs.trace
        if trace is not None and (node := trace.node_of(self._path)) is not None:
            trace.add(Event(kind, node, **what))


class _Vfs(apsw.VFS):
    def __init__(self) -> None:
        super().__init__("crash", "unix", makedefault=True)
        self.trace: Trace | None = None
        self.folders: list[str] = []
        self._drawn = 0
        real = _OPEN_DIRECTORY(self.xGetSystemCall("openDirectory") or 0)

        def open_directory(path: bytes, fd: Any) -> int:
            self.folders.append(os.path.dirname(path.decode()))
            return real(path, fd)

        self._kept = _OPEN_DIRECTORY(open_directory)
        self.xSetSystemCall("openDirectory", ctypes.cast(self._kept, ctypes.c_void_p).value or 0)

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.folders.clear()
        super().xDelete(filename, syncdir)
        if self.trace is not None and (found := self.trace.find(filename)) is not None:
            self.trace.drop(*found)
        self.note_folders()

    def xRandomness(self, numbytes: int) -> bytes:
        self._drawn += 1
        return shake_256(b"%d" % self._drawn).digest(numbytes)

    def note_made(self, path: str) -> None:
        trace = self.trace
        if trace is not None and (found := trace.find(path)) is not None:
            folder, name = found
            if name not in trace.folders[folder]:
                trace.make(folder, name)

    def note_folders(self) -> None:
        folders, self.folders = self.folders, []
        for folder in folders:
            if self.trace is not None and (node := self.trace.node_of(folder)) is not None:
                self.trace.add(Event("sync", node))

    def begin(self, trace: Trace) -> None:
        self.trace = trace
        self._drawn = 0
        apsw.randomness(0)  # it is seeded again, by xRandomness


_installed: list[_Vfs] = []


def install() -> None:
    """Makes it the file layer of this process; before the first index is opened.

    While nothing is recorded it passes everything through, but syncs.
    """
    if not _installed:
        _installed.append(_Vfs())


@contextmanager
def recording(trace: Trace) -> Generator[None]:
    """Records what SQLite does until the end of the block."""
    vfs = _installed[0]
    vfs.begin(trace)
    try:
        yield
    finally:
        vfs.trace = None

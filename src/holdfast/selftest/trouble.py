"""Trouble at the nth call to the disk: the process is killed, the call fails, or space runs out.

For a store on plain files that is a `Disk`, for SQLite a VFS of apsw's that every connection made
later in this process uses; so it is set up in a child, which ends with it.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Any, Literal, cast

import apsw

from holdfast.backends.files.disk import Disk

Kind = Literal["none", "kill", "torn", "EIO", "ENOSPC", "quota"]

_CHANGING = (
    *("truncate", "rename", "unlink", "mkdir", "sync", "sync_directory"),
    *("open", "reserve"),
)
# The name of SQLite's own way to the disk, on Linux and macOS.
_SYSTEM = "unix"
_READING = ("size", "stat", "listdir", "pread")


class Trouble:
    """Counts calls to the disk, and makes trouble at the nth, counted from 1.

    For "quota", `at` is how many bytes files may grow by in all.
    """

    def __init__(self, kind: Kind, at: int = 0) -> None:
        self.calls = 0
        self.kind: Kind = kind
        self.at = at

    def run(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self._count()
        return call(*arguments, **named)

    def write(
        self, call: Callable[[bytes, int], Any], data: bytes, offset: int, growth: Callable[[], int]
    ) -> Any:
        """A write; a kill leaves a part of it behind if it is to be torn."""
        if self.kind == "torn" and self.calls + 1 == self.at:
            call(bytes(data[: len(data) * 2 // 3]), offset)
        self._count()
        if self.kind == "quota":
            self.at -= max(growth(), 0)
            if self.at < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(data, offset)

    def _count(self) -> None:
        self.calls += 1
        if self.kind in ("none", "quota") or self.calls != self.at:
            return
        if self.kind in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        number = errno.EIO if self.kind == "EIO" else errno.ENOSPC
        raise OSError(number, os.strerror(number))


class TroubledDisk(Disk):
    """The disk of a store on plain files, with trouble."""

    def __init__(self, real: Disk, trouble: Trouble) -> None:
        self._real = real
        self._trouble = trouble
        self.pwrite = self._pwrite  # type: ignore[method-assign]
        for name in (*_CHANGING, *_READING):
            setattr(self, name, self._troubled(getattr(real, name)))
        self.lock = real.lock  # type: ignore[method-assign]
        self.close = real.close

    def _troubled(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: self._trouble.run(call, *arguments, **named)

    def _pwrite(self, fd: int, data: bytes, offset: int) -> int:
        def growth() -> int:
            return offset + len(data) - os.fstat(fd).st_size

        return self._trouble.write(
            lambda part, at: self._real.pwrite(fd, part, at), data, offset, growth
        )


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: Any, trouble: Trouble) -> None:
        super().__init__(_SYSTEM, name, flags)
        self._trouble = trouble

    def xRead(self, amount: int, offset: int) -> bytes:
        return _as_sqlite(self._trouble.run, super().xRead, amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        def growth() -> int:
            return offset + len(data) - super(_File, self).xFileSize()

        write = cast("Callable[[bytes, int], None]", super().xWrite)  # pyright: ignore[reportUnknownMemberType]
        _as_sqlite(self._trouble.write, write, data, offset, growth)

    def xSync(self, flags: int) -> None:
        _as_sqlite(self._trouble.run, super().xSync, flags)

    def xTruncate(self, newsize: int) -> None:
        _as_sqlite(self._trouble.run, super().xTruncate, newsize)

    def xFileSize(self) -> int:
        return _as_sqlite(self._trouble.run, super().xFileSize)

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        """The caller gets the error; nothing is printed."""
        return True


class _Vfs(apsw.VFS):
    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble
        super().__init__("troubled", _SYSTEM, makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> _File:
        _as_sqlite(self._trouble.run, lambda: None)
        return _File(name, flags, self._trouble)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        _as_sqlite(self._trouble.run, super().xDelete, filename, syncdir)

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        """The caller gets the error; nothing is printed."""
        return True


def _as_sqlite(call: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a call, with trouble told in SQLite's own words."""
    try:
        return call(*arguments)
    except OSError as exc:
        kind = apsw.FullError if exc.errno == errno.ENOSPC else apsw.IOError
        raise kind(str(exc)) from exc


_kept: list[object] = []


def install(trouble: Trouble, disk: Disk, backend: str) -> dict[str, Any]:
    """Sets trouble up in this process, and returns the options to open a store with.

    The index of a store on plain files is SQLite's too, so the VFS serves both.
    """
    _kept.append(_Vfs(trouble))
    return {"disk": TroubledDisk(disk, trouble)} if backend == "files" else {}

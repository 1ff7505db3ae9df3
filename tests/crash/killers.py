"""A file system that ends the process at the nth call that changes something.

For a files store that is a `Disk`; for SQLite a VFS of apsw's, which every connection made later
uses (the index of a files store is SQLite's too). What modules ask of `os` directly is counted by a
stand-in for it. A call can be cut off before it, after it, or, if it writes, in the middle.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, NoReturn

import apsw

from holdfast.backends import liveness
from holdfast.backends.files import directory
from holdfast.backends.files.disk import Disk
from holdfast.backends.sqlite import connection as wal
from holdfast.backends.sqlite import opening

How = Literal["before", "within", "after"]
HOWS: tuple[How, ...] = ("before", "within", "after")


class Call(NamedTuple):
    """A call that changes something, and how many bytes it writes."""

    name: str
    size: int

    def __str__(self) -> str:
        return f"{self.name} of {self.size} bytes" if self.size else self.name


class Kill(NamedTuple):
    """The nth call, counted from 1, is the last; of those that write `least` bytes or more."""

    nth: int
    how: How
    least: int = 0

    def __str__(self) -> str:
        large = f" of {self.least} bytes or more" if self.least else ""
        return f"{self.how} disk call {self.nth}{large}"


class Countdown:
    """Takes down the calls that change something, and kills this process at one of them."""

    def __init__(self, kill: Kill | None = None) -> None:
        self.calls: list[Call] = []
        self.forgets = False
        """Whether every 20th write is only said to be done; a planted fault."""
        self._kill = kill

    def begin(self, kill: Kill | None) -> None:
        """Counts from here on."""
        self.calls.clear()
        self._kill = kill

    def _due(self, call: Call) -> How | None:
        """Takes a call down; returns how to die if it is the one."""
        self.calls.append(call)
        kill = self._kill
        if kill is None or call.size < kill.least:
            return None
        count = sum(one.size >= kill.least for one in self.calls)
        return kill.how if count == kill.nth else None

    def die(self) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL came back")

    def run(self, name: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        due = self._due(Call(name, 0))
        if due == "before":
            self.die()
        answer = call(*arguments, **named)
        if due:
            self.die()
        return answer

    def write(self, name: str, call: Callable[[bytes, int], Any], data: bytes, offset: int) -> Any:
        """Runs call(data, offset), or half of it."""
        due = self._due(Call(name, len(data)))
        if due == "before":
            self.die()
        if due == "within":
            call(bytes(data)[: len(data) // 2], offset)
            self.die()
        if self.forgets and len(self.calls) % 20 == 0:
            return len(data)
        answer = call(data, offset)
        if due:
            self.die()
        return answer


class KillingDisk(Disk):
    """The disk of the files backend with a countdown."""

    def __init__(self, countdown: Countdown) -> None:
        self._countdown = countdown
        real = Disk()
        for name in ("sync", "truncate", "rename", "unlink", "mkdir", "sync_directory"):
            setattr(self, name, self._counted(name, getattr(real, name)))

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            return countdown.write(
                "pwrite", lambda part, at: real.pwrite(fd, part, at), data, offset
            )

        self.pwrite = pwrite  # type: ignore[method-assign]

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: self._countdown.run(name, call, *arguments, **named)

    def open(self, name: str, flags: int, *, at: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT:
            return self._countdown.run("open", super().open, name, flags, at=at, mode=mode)
        return super().open(name, flags, at=at, mode=mode)


class CountedOs:
    """Stands in for `os` in a module that asks it directly."""

    def __init__(self, countdown: Countdown) -> None:
        self._countdown = countdown

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        if name in ("link", "unlink", "mkdir", "makedirs", "fsync", "replace"):
            return lambda *arguments, **named: self._countdown.run(name, call, *arguments, **named)
        return call

    def open(self, path: str, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            return self._countdown.run("open", os.open, path, flags, *rest, **named)
        return os.open(path, flags, *rest, **named)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        return self._countdown.write(
            "pwrite", lambda part, at: os.pwrite(fd, part, at), data, offset
        )


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: Any, countdown: Countdown) -> None:
        super().__init__("unix", name, flags)
        self._countdown = countdown

    def xWrite(self, data: bytes, offset: int) -> None:
        self._countdown.write("xWrite", super().xWrite, data, offset)

    def xSync(self, flags: int) -> None:
        self._countdown.run("xSync", super().xSync, flags)

    def xTruncate(self, newsize: int) -> None:
        self._countdown.run("xTruncate", super().xTruncate, newsize)


class _Killing(apsw.VFS):
    def __init__(self, countdown: Countdown) -> None:
        self._countdown = countdown
        super().__init__("killing", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> _File:
        return _File(name, flags, self._countdown)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self._countdown.run("xDelete", super().xDelete, filename, syncdir)


_kept: list[object] = []


def options_for(backend: str, countdown: Countdown) -> dict[str, Any]:
    """Returns the options of `holdfast.open` for a store on that file system.

    The process has it for good: this is for a child that ends soon.
    """
    _kept.append(_Killing(countdown))
    counted: Any = CountedOs(countdown)
    for module in (liveness, directory, opening, wal):
        module.os = counted
    return {"disk": KillingDisk(countdown)} if backend == "files" else {}

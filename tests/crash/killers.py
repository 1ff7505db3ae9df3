"""A file system that ends the process at the nth call that changes something.

For files that is a `Disk`; for SQLite a VFS of apsw's, which every connection made later uses.
A call can be cut off before it, after it, or, if it writes, in the middle.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Literal, NoReturn

import apsw

from holdfast.backends.files.disk import Disk

How = Literal["before", "within", "after"]


class Countdown:
    """Counts calls that change something, and kills this process at the nth; 0 only counts."""

    def __init__(self, nth: int = 0, how: How = "before") -> None:
        self.calls = 0
        self.forgets = False
        """Whether every 20th write is only said to be done; for proving the harness."""
        self._nth = nth
        self._how = how

    def set(self, after: int, how: How) -> None:
        """Kills at the call behind the next `after` ones."""
        self._nth = self.calls + after + 1
        self._how = how

    def is_due(self) -> bool:
        """Counts a call; True if it is the one to die at."""
        self.calls += 1
        return self.calls == self._nth

    def die(self) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL came back")

    def run(self, call: Any, *arguments: Any, **named: Any) -> Any:
        due = self.is_due()
        if due and self._how == "before":
            self.die()
        answer = call(*arguments, **named)
        if due:
            self.die()
        return answer

    def write(self, call: Any, data: bytes, offset: int) -> Any:
        """Runs call(data, offset), or half of it."""
        due = self.is_due()
        if due and self._how == "before":
            self.die()
        if due and self._how == "within" and len(data) > 1:
            call(bytes(data)[: len(data) // 2], offset)
            self.die()
        if self.forgets and self.calls % 20 == 0:
            return len(data)
        answer = call(data, offset)
        if due:
            self.die()
        return answer


class KillingDisk(Disk):
    """The disk of the files backend with a countdown."""

    def __init__(self, countdown: Countdown) -> None:
        self._countdown = countdown
        count = countdown.run
        real = Disk()
        self.sync = lambda fd: count(real.sync, fd)  # type: ignore[method-assign]
        self.pwrite = lambda fd, data, offset: countdown.write(  # type: ignore[method-assign]
            lambda part, at: real.pwrite(fd, part, at), data, offset
        )
        for name in ("truncate", "rename", "unlink", "mkdir", "rmdir", "sync_directory"):
            setattr(self, name, self._counted(getattr(real, name)))

    def _counted(self, call: Any) -> Any:
        return lambda *arguments, **named: self._countdown.run(call, *arguments, **named)

    def open(self, name: str, flags: int, *, at: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT:
            return self._countdown.run(super().open, name, flags, at=at, mode=mode)
        return super().open(name, flags, at=at, mode=mode)


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: Any, countdown: Countdown) -> None:
        super().__init__("unix", name, flags)
        self._countdown = countdown

    def xWrite(self, data: bytes, offset: int) -> None:
        self._countdown.write(super().xWrite, data, offset)

    def xSync(self, flags: int) -> None:
        self._countdown.run(super().xSync, flags)

    def xTruncate(self, newsize: int) -> None:
        self._countdown.run(super().xTruncate, newsize)


class _Killing(apsw.VFS):
    def __init__(self, countdown: Countdown) -> None:
        self._countdown = countdown
        super().__init__("killing", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> _File:
        return _File(name, flags, self._countdown)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self._countdown.run(super().xDelete, filename, syncdir)


_kept: list[object] = []


def options_for(backend: str, countdown: Countdown) -> dict[str, Any]:
    """Returns the options of `holdfast.open` for a store on that file system, in this process.

    The index of a files store is SQLite's too, so the VFS counts for both.
    """
    _kept.append(_Killing(countdown))
    return {"disk": KillingDisk(countdown)} if backend == "files" else {}

"""Forked children, and what they report; all have ended when the block of `Children` ends.

The parent opens no store and has no threads, so a child starts as clean as a new interpreter,
and a trial costs milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0
"""How long a child may say nothing before that is called a hang."""

# What no line of JSON begins with.
_BROKE = b"!"

Say = Callable[[Any], None]


class Silent(Exception):
    """A child said nothing more: it hangs, or it ended before it said what it should have."""


class ForkedChild:
    """A forked process that reports lines of JSON, and can wait until the parent calls `go`."""

    def __init__(self, work: Callable[[Say, Callable[[], None]], None]) -> None:
        """Forks; the child calls work(say, wait): `wait` returns when the parent calls `go`."""
        self._reading, writing = os.pipe()
        waiting, self._going = os.pipe()
        self._rest = b""
        self.status: int | None = None
        self.pid = os.fork()
        if not self.pid:
            # Else a child whose parent was killed would write into a pipe that it reads itself.
            os.close(self._reading)
            os.close(self._going)
            _live(work, writing, waiting)
        os.close(writing)
        os.close(waiting)

    def go(self) -> None:
        """Lets a child go on that waits; it may have died meanwhile."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._going, b".")

    def hear(self, timeout_s: float = PATIENCE_S) -> Any:
        """Returns what the child says next; raises Silent if it says nothing."""
        while b"\n" not in self._rest:
            if not select.select([self._reading], [], [], timeout_s)[0]:
                raise Silent(f"a process said nothing for {timeout_s:.0f} s")
            data = os.read(self._reading, 1 << 16)
            if not data:
                raise Silent(f"a process ended with status {self.wait()}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        if line.startswith(_BROKE):
            raise Silent(f"a process broke: {json.loads(line[len(_BROKE) :])}")
        return json.loads(line)

    def last_words(self) -> list[Any]:
        """Returns the reports that nobody heard yet, up to the child's end, which may be a SIGKILL.

        Raises Silent if the child hangs, or ends by an error of its own.
        """
        said: list[Any] = []
        while True:
            try:
                said.append(self.hear())
            except Silent:
                if self.status is None or (os.WIFEXITED(self.status) and self.status):
                    raise
                return said

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]
        return self.status

    def close(self) -> None:
        self.kill()
        for fd in (self._reading, self._going):
            os.close(fd)


def _live(work: Callable[[Say, Callable[[], None]], None], writing: int, waiting: int) -> None:
    status = 1

    def say(what: Any) -> None:
        os.write(writing, json.dumps(what).encode() + b"\n")

    def wait() -> None:
        os.read(waiting, 1)

    try:
        # Ctrl-C reaches the whole group of processes; the parent ends its children itself.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        work(say, wait)
        status = 0
    except BaseException:
        with contextlib.suppress(OSError):
            words = json.dumps(_last_line(traceback.format_exc())).encode()
            os.write(writing, _BROKE + words + b"\n")
    finally:
        # Never back into the parent's code: its buffers and cleanups are not this child's to run.
        os._exit(status)


def _last_line(trace: str) -> str:
    """Returns the error and where it came from, on one line."""
    lines = trace.strip().splitlines()
    place = next((line.strip() for line in reversed(lines) if line.startswith("  File ")), "")
    return f"{lines[-1]} ({place})"


class Children:
    """Starts children; kills those that are left when the block ends."""

    def __init__(self) -> None:
        self._living: list[ForkedChild] = []

    def start(self, work: Callable[[Say, Callable[[], None]], None]) -> ForkedChild:
        # An interrupt right behind the fork would leave a child that nobody knows.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            child = ForkedChild(work)
            self._living.append(child)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return child

    def end(self, child: ForkedChild) -> None:
        self._living.remove(child)
        child.close()

    def ask(self, work: Callable[[], Any]) -> Any:
        """Returns what `work` returns in a child of its own."""
        child = self.start(lambda say, _: say(work()))
        try:
            return child.hear()
        finally:
            self.end(child)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._living:
            child.close()
        self._living.clear()

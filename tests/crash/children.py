"""Child processes by fork, and what they said before they died.

The process that forks has imported everything and has opened no store, so that a trial costs
milliseconds and a child starts as clean as a new interpreter would be.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

PATIENCE_S = 120.0
"""How long a child may say nothing before that is called a hang."""


class Hang(AssertionError):
    """A child that should have gone on said nothing more."""


class Child:
    """A forked process that writes lines of JSON to its parent."""

    def __init__(self, work: Callable[[int, int], None]) -> None:
        """Forks; the child calls work(pipe, stop): it writes to one, and heeds the other."""
        reading, pipe = os.pipe()
        stop, self._stop = os.pipe()
        # What was there before the fork is not looked at, so not copied, by the child's collector.
        gc.freeze()
        self.pid = os.fork()
        if not self.pid:
            os.close(reading)
            os.close(self._stop)
            _live(work, pipe, stop)
        os.close(pipe)
        os.close(stop)
        self._reading = reading
        self._rest = b""
        self.is_at_end = False
        self.heard_at = time.monotonic()
        self.status: int | None = None
        self.lines: list[dict[str, Any]] = []

    def hear(self, timeout_s: float) -> bool:
        """Takes in what the child said by now, waiting for something; False if nothing came."""
        if self.is_at_end or not select.select([self._reading], [], [], timeout_s)[0]:
            return False
        data = os.read(self._reading, 1 << 20)
        self.is_at_end = not data
        self.heard_at = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.lines += [json.loads(line) for line in lines]
        return bool(data)

    def hear_until(self, enough: Callable[[], bool]) -> None:
        """Listens until it is enough, or the child has ended; a silent child is a hang."""
        while not enough() and not self.is_at_end:
            self.hear(PATIENCE_S + 1)
            self.check_patience()

    def hear_for(self, seconds: float) -> None:
        """Listens for that long, or until the child has ended."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.is_at_end:
            self.hear(left)

    def check_patience(self) -> None:
        """Raises Hang if it lives and has said nothing for too long, and shows where it stands."""
        if not self.is_at_end and time.monotonic() - self.heard_at > PATIENCE_S:
            os.kill(self.pid, signal.SIGUSR1)
            self.hear(1.0)
            raise Hang(f"a child said nothing for {PATIENCE_S} s; its stacks are on stderr")

    def tell_to_stop(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(self._stop, b".")

    def end(self) -> int:
        """Waits until the child has ended by itself; returns its wait status."""
        self.hear_until(lambda: False)
        return self._reap()

    def await_stop(self) -> bool:
        """Listens until the child is stopped by a signal; False if it ended instead."""
        while not self.is_at_end:
            # Told of stops alone: what ended is left to be reaped. Of one that has ended already,
            # and whose last words were not heard yet, it says that there is no such child.
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None:
                    return True
            self.hear(0.01)
            self.check_patience()
        self._reap()
        return False

    def kill(self) -> int:
        """Sends SIGKILL, takes in its last words, and returns its wait status."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
        while not self.is_at_end:
            self.hear(PATIENCE_S)
        return self._reap()

    def _reap(self) -> int:
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]
            os.close(self._reading)
            os.close(self._stop)
        return self.status

    @property
    def was_killed(self) -> bool:
        return self.status is not None and os.WIFSIGNALED(self.status)

    @property
    def trouble(self) -> str | None:
        """The traceback of a child that failed, None if it did not."""
        for line in self.lines:
            if "trouble" in line:
                return line["trouble"]
        if self.status is not None and os.WIFEXITED(self.status) and self.status:
            return f"the child ended with status {self.status}"
        return None


def _live(work: Callable[[int, int], None], pipe: int, stop: int) -> NoReturn:
    status = 1
    faulthandler.register(signal.SIGUSR1)
    try:
        work(pipe, stop)
        status = 0
    except BaseException:
        tell(pipe, trouble=traceback.format_exc())
    finally:
        os._exit(status)


def tell(pipe: int, **what: Any) -> None:
    """Writes one line of any length; only for a child with one thread."""
    data = json.dumps(what).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]

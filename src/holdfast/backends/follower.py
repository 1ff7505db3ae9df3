"""Waiting for the next position on a server: a cheap question, at most twenty times a second.

Only one thread of a process asks; the others wait for its answer. A commit of this process wakes it
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from time import monotonic
from typing import Protocol

from holdfast.backends.protocol import Position

# Below twenty a second however fast the server answers: whoever waits calls `wait` once a second,
# which begins with a question and ends with one, and asks seventeen times between.
POLL_S = 0.058
_GLANCE_S = 1.0


class Stirred(Protocol):
    """What counts the commits of this process, and tells of them."""

    changed: Condition
    stirred: int


class Follower:
    """The newest position that this process has seen, and who asks for the next."""

    def __init__(
        self, gate: Stirred, ask: Callable[[], int], check_open: Callable[[], None]
    ) -> None:
        self._gate = gate
        self._ask_server = ask
        self._check_open = check_open
        self._newest = 0
        self._asking = False

    def wait(self, after: Position, timeout_s: float) -> Position:
        """Returns the newest position, at once if it is greater than `after`, else when it is."""
        deadline = monotonic() + timeout_s
        stirred = self._gate.stirred
        newest = self._ask()
        while newest <= after and (left_s := deadline - monotonic()) > 0:
            newest, stirred = self._wait(left_s, stirred)
        return Position(newest)

    def _wait(self, left_s: float, stirred: int) -> tuple[int, int]:
        changed = self._gate.changed
        with changed:
            if self._asking:
                changed.wait(min(left_s, _GLANCE_S))
                self._check_open()
                return self._newest, self._gate.stirred
            self._asking = True
        try:
            with changed:
                if self._gate.stirred == stirred:
                    changed.wait(min(left_s, POLL_S))
                stirred = self._gate.stirred
            return self._ask(), stirred
        finally:
            with changed:
                self._asking = False
                changed.notify_all()

    def _ask(self) -> int:
        newest = self._ask_server()
        with self._gate.changed:
            self._newest = max(self._newest, newest)
        return newest

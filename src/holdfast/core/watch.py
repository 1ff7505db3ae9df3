"""Waits for the next position: one thread of a store asks the backend for all who wait.

A thousand followers that each asked for themselves would ask thousands of times a second, however
idle the store is. Here a follower leaves a gate, or a function to be called, and sleeps. One
background thread asks the backend while anybody waits, and tells those for whom there is news.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.backends.gates import open_gate, shut_gate, start_thread
from holdfast.backends.protocol import START, Position

_logger = logging.getLogger("holdfast.log")

GLANCE_S = 1.0
"""How long the thread waits for the backend before it checks whether anybody still waits."""


class PositionWaiter:
    """Waits for a position after `after`; `tell` is called when there is one, or an error."""

    __slots__ = ("after", "error", "newest", "tell")

    def __init__(self, after: Position, newest: Position, tell: Callable[[], object]) -> None:
        self.after = after
        self.newest = newest
        self.error: Exception | None = None
        self.tell = tell

    def outcome(self) -> Position:
        """Returns the newest position; raises what the backend raised."""
        if self.error is not None:
            raise self.error
        return self.newest


class PositionWatch:
    """Those who wait for a store's next position, and the thread that asks for them.

    `ask` is the backend's `wait`: given a position and how many seconds to wait for a later one.
    """

    def __init__(self, ask: Callable[[Position, float], Position]) -> None:
        self._ask = ask
        self._lock = threading.RLock()
        self._waiting: list[PositionWaiter] = []
        self._newest = START
        self._thread: threading.Thread | None = None

    def wait(self, after: Position, timeout_s: float | None) -> Position:
        """Returns the newest position, as soon as it is past `after` or the time is up."""
        thread = self._thread
        if timeout_s == 0 or thread is None or not thread.is_alive():
            newest = self._ask(after, 0)
            if newest > after or timeout_s == 0:
                return newest
        else:
            newest = self._newest  # the thread asks already
        gate = shut_gate()
        waiter = PositionWaiter(after, newest, lambda: open_gate(gate))
        try:
            self.add(waiter)
            gate.acquire(timeout=-1 if timeout_s is None else timeout_s)
        finally:
            self.remove(waiter)
        return waiter.outcome()

    def add(self, waiter: PositionWaiter) -> None:
        """Adds a waiter, which must have asked the backend itself before; starts the thread."""
        with self._lock:
            self._waiting.append(waiter)
            if self._thread is None or self._thread.ident is None:
                self._newest = waiter.newest
                self._thread = threading.Thread(
                    target=self._watch, name="holdfast-watch", daemon=True
                )
                start_thread(self._thread)
            elif self._newest > waiter.after:
                self._tell(waiter)  # the thread found it after the waiter had asked

    def remove(self, waiter: PositionWaiter) -> None:
        """Removes a waiter, whether it was told or not."""
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _tell(self, waiter: PositionWaiter) -> None:
        waiter.newest = self._newest
        waiter.tell()

    def _watch(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                seen = self._newest
            try:
                newest = self._ask(seen, GLANCE_S)
            except Exception as error:  # any error is raised to those who wait
                _logger.debug("the store cannot be waited for: %s", error)
                self._fail(error)
                return
            if newest > seen:
                with self._lock:
                    self._newest = newest
                    for waiter in self._waiting:
                        if newest > waiter.after:
                            self._tell(waiter)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._thread = None
            for waiter in self._waiting:
                waiter.error = error
                waiter.tell()
            self._waiting.clear()

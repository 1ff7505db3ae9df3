"""Threads for runs and branches: a bounded number, and no deadlock when all are busy.

A thread that waits for a job that no thread has begun does the job itself. So a parent that waits
for its children never depends on a free thread, however deep the nesting.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable

from holdfast.backends.gates import Flag

IDLE_S = 5.0


class PoolCall:
    """A job that is done once: by a thread of the pool, or by a thread that waits for it."""

    __slots__ = ("_lock", "_work", "done")

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._lock = threading.Lock()
        self.done = Flag()

    def do(self) -> bool:
        """Does the work unless it was begun already; returns whether it was done here."""
        with self._lock:
            work, self._work = self._work, None
        if work is None:
            return False
        try:
            work()
        finally:
            self.done.set()
        return True


class Pool:
    """A pool of threads that start when there is work and end after `IDLE_S` without any."""

    def __init__(self, name: str, *, threads_max: int = 64) -> None:
        self._name = name
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiting: deque[PoolCall] = deque()
        self._threads = 0
        self._idle = 0

    def submit(self, job: PoolCall) -> None:
        """Puts a job in line for the next free thread."""
        with self._lock:
            self._waiting.append(job)
            if self._idle >= len(self._waiting):
                self._work.notify()
            elif self._threads < self._threads_max:
                self._threads += 1
                threading.Thread(target=self._work_on, name=self._name, daemon=True).start()

    @property
    def is_full(self) -> bool:
        """Whether a new job would have to wait until another one ends."""
        with self._lock:
            return self._threads >= self._threads_max and not self._idle

    def _work_on(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    self._idle += 1
                    came = self._work.wait(IDLE_S)
                    self._idle -= 1
                    if not came and not self._waiting:
                        self._threads -= 1
                        return
                job = self._waiting.popleft()
            try:
                job.do()
            except BaseException:
                # Report it as Python reports an exception that ends a thread, but keep the thread:
                # other jobs may be waiting for it.
                report = (*sys.exc_info(), threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(report))

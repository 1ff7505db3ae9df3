"""Waiting that an interrupt cannot break: plain locks, each taken or released in one step.

`threading.Condition` is Python code. A signal handler that raises, as for Ctrl-C, may run in the
middle of its `__enter__`, after the lock was taken and before `with` has noted it: then the lock is
taken for ever. It may also run inside `wait`, while the lock is not held, and the end of the `with`
block then releases a lock that it does not have. A lock itself is C code: it is taken and noted by
`with` before a handler can run.

A gate is a lock that is shut until it is opened, which may be done by a thread that did not shut
it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any, cast

from holdfast.errors import UsageError


def shut_gate() -> Any:
    """Returns a shut gate: `acquire` waits until it is opened, and shuts it again."""
    gate = Lock()
    gate.acquire()
    return gate


def open_gate(gate: Any) -> None:
    """Opens a gate; one that is already open stays open, as may be after an interrupt."""
    try:
        gate.release()
    except RuntimeError:
        return


class Waiters:
    """The gates of threads that wait for a change.

    A thread adds its gate before it looks for the change, so that a change after the look opens the
    gate, and removes it in a `finally`. Nothing here is locked: each step is one list operation.
    """

    def __init__(self) -> None:
        self.gates: list[Any] = []

    def add(self, gate: Any) -> None:
        self.gates.append(gate)

    def remove(self, gate: Any) -> None:
        """Removes a gate, if it is there: an interrupt may have come before it was added."""
        try:
            self.gates.remove(gate)
        except ValueError:
            return

    def wake(self) -> None:
        """Opens every gate."""
        for gate in tuple(self.gates):
            open_gate(gate)


class Flag:
    """Something that has happened, or has not: `threading.Event`, safe from interrupts."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters = Waiters()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Ends all waiting, now and until `clear`."""
        self._is_set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Returns whether it has happened within `timeout` seconds; None waits for ever."""
        gate = shut_gate()
        try:
            self._waiters.add(gate)
            return self._is_set or gate.acquire(timeout=-1 if timeout is None else timeout)
        finally:
            self._waiters.remove(gate)


def start_thread(thread: Thread) -> None:
    """Starts a thread; an interrupt meanwhile is raised as the interrupt that it is.

    `Thread.start` waits on a condition until the thread runs. A handler that raises in there makes
    the end of its `with` block fail too, and the caller would see only that RuntimeError. The
    thread runs all the same.
    """
    try:
        thread.start()
    except RuntimeError as error:
        interrupt = error.__context__
        if interrupt is None:
            raise  # no more threads for this user
        raise interrupt from None


class ReentrantCall(UsageError):
    """Raised in a signal handler: it leaves through the call that the handler interrupted."""


def reentered(what: str) -> UsageError:
    """Returns the error for a call inside another call of the same store in the same thread."""
    return ReentrantCall(
        f"{what} inside another call of the same store in the same thread: a signal handler, or a "
        "callback, would wait for what it has interrupted",
        hint="hand it to another thread, or submit it and wait for it later",
    )


def held_here(lock: Any) -> Callable[[], bool]:
    """Returns a function that returns whether this thread has an `RLock`.

    A signal handler runs inside a call of its own thread. With this it finds that the call has the
    lock, and can raise; for a `Lock` it would wait for ever.
    """
    return cast("Callable[[], bool]", lock._is_owned)

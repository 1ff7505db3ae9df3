"""Gates and flags: opened twice, removed twice, waited for in time and out of it."""

from __future__ import annotations

import threading

import pytest

from holdfast.backends.gates import (
    Flag,
    Waiters,
    held_here,
    open_gate,
    reentered,
    shut_gate,
    start_thread,
)
from holdfast.errors import UsageError

PATIENCE_S = 120.0


def test_a_gate_is_opened_once_however_often() -> None:
    gate = shut_gate()
    assert not gate.acquire(blocking=False)
    open_gate(gate)
    open_gate(gate)
    assert gate.acquire(blocking=False)
    assert not gate.acquire(blocking=False)


def test_waiters_are_woken_and_removed_once() -> None:
    waiters, gate = Waiters(), shut_gate()
    waiters.remove(gate)  # interrupted before it was added
    waiters.add(gate)
    waiters.wake()
    assert gate.acquire(blocking=False)
    waiters.remove(gate)
    assert waiters.gates == []


def test_a_flag_lets_those_go_who_wait_now_and_later() -> None:
    flag = Flag()
    assert not flag.wait(0.001)
    threading.Timer(0.01, flag.set).start()
    assert flag.wait(PATIENCE_S)
    assert flag.wait()
    assert flag.is_set()
    flag.clear()
    assert not flag.is_set()


def test_a_lock_knows_its_thread() -> None:
    lock = threading.RLock()
    is_held = held_here(lock)
    assert not is_held()
    with lock:
        assert is_held()
        other: list[bool] = []
        thread = threading.Thread(target=lambda: other.append(is_held()))
        thread.start()
        thread.join(PATIENCE_S)
        assert other == [False]


def test_a_call_inside_another_says_why_and_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"inside another call of the same store.*another thread"):
        raise reentered("a write")


class Stubborn(threading.Thread):
    """A thread whose start raises, as Python's own code does."""

    def __init__(self, error: RuntimeError, interrupt: BaseException | None) -> None:
        super().__init__(daemon=True)
        self.error, self.interrupt = error, interrupt

    def start(self) -> None:
        if self.interrupt is None:
            raise self.error
        try:
            raise self.interrupt
        finally:
            raise self.error  # the lock of the condition is not held


def test_an_interrupt_of_a_threads_start_stays_an_interrupt() -> None:
    """Seen by T23: an interrupt in `Thread.start` came out as "release unlocked lock"."""
    with pytest.raises(KeyboardInterrupt):
        start_thread(Stubborn(RuntimeError("release unlocked lock"), KeyboardInterrupt()))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start_thread(Stubborn(RuntimeError("can't start new thread"), None))
    ran = threading.Event()
    start_thread(threading.Thread(target=ran.set, daemon=True))
    assert ran.wait(PATIENCE_S)

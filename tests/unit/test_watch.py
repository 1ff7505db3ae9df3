"""One thread asks for all who wait: questions are counted, not seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.backends.gates import open_gate, shut_gate
from holdfast.backends.protocol import START, Position
from holdfast.core.watch import GLANCE_S, PositionWaiter, PositionWatch
from holdfast.errors import UnavailableError

PATIENCE_S = 120.0


class Backend:
    """Answers what it is told to; takes down every question, and holds back those that wait."""

    def __init__(self) -> None:
        self.newest = START
        self.error: Exception | None = None
        self.asked: list[tuple[Position, float]] = []
        self.held = 0
        self.is_over = False
        """Whether the time of a question is over, with nothing new."""
        self._news = threading.Condition()

    def ask(self, after: Position, timeout_s: float) -> Position:
        with self._news:
            self.asked.append((after, timeout_s))
            if timeout_s:
                self.held += 1
                self._news.notify_all()
                self._news.wait_for(
                    lambda: self.error or self.newest > after or self.is_over, PATIENCE_S
                )
                self.is_over = False
                self.held -= 1
            if self.error is not None:
                raise self.error
            return self.newest

    def tell(self, newest: int = 0, error: Exception | None = None) -> None:
        with self._news:
            self.newest, self.error = Position(max(newest, self.newest)), error
            self._news.notify_all()

    def until(self, holds: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(holds, PATIENCE_S)


def until(holds: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if holds():
            return
        threading.Event().wait(0.0005)
    raise AssertionError("it never came to hold")


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def watch(backend: Backend) -> PositionWatch:
    return PositionWatch(backend.ask)


def test_what_is_there_is_returned_at_once_and_no_thread_asks(
    backend: Backend, watch: PositionWatch
) -> None:
    backend.tell(3)
    assert watch.wait(START, None) == 3
    assert watch.wait(Position(3), 0) == 3
    assert vars(watch)["_thread"] is None


def test_two_hundred_who_wait_are_one_question(backend: Backend, watch: PositionWatch) -> None:
    """An idle store is asked by one thread, not by each follower again and again."""
    with ThreadPoolExecutor(200) as threads:
        waiting = [threads.submit(watch.wait, START, None) for _ in range(200)]
        until(lambda: len(vars(watch)["_waiting"]) == 200)
        backend.until(lambda: backend.held == 1)
        long = [question for question in backend.asked if question[1]]
        assert long == [(START, GLANCE_S)]
        assert len(backend.asked) <= 201, "each asks once for itself, before it sleeps"
        backend.tell(7)
        assert [one.result(PATIENCE_S) for one in waiting] == [7] * 200
    backend.tell(8)  # the thread looks up, and nobody waits
    until(lambda: vars(watch)["_thread"] is None)


def test_who_comes_later_does_not_ask_and_is_told_what_is_known(
    backend: Backend, watch: PositionWatch
) -> None:
    gate = shut_gate()
    first = PositionWaiter(Position(9), START, lambda: None)
    watch.add(first)
    backend.until(lambda: backend.held == 1)
    backend.tell(5)
    until(lambda: vars(watch)["_newest"] == 5)
    before = len(backend.asked)
    assert watch.wait(Position(5), 0.001) == 5  # in vain, by what the thread knows
    assert watch.wait(START, None) == 5
    late = PositionWaiter(Position(2), START, lambda: open_gate(gate))
    watch.add(late)
    assert gate.acquire(timeout=PATIENCE_S)
    assert late.outcome() == 5
    assert len(backend.asked) <= before + 1, "only the thread asked"
    for waiter in (first, late, late):
        watch.remove(waiter)
    backend.tell(6)
    until(lambda: vars(watch)["_thread"] is None)


def test_the_thread_asks_again_when_nothing_came_and_ends_when_nobody_waits(
    backend: Backend, watch: PositionWatch
) -> None:
    waiter = PositionWaiter(START, START, lambda: None)
    watch.add(waiter)
    backend.until(lambda: backend.held == 1)
    backend.is_over = True
    backend.tell()
    until(lambda: len(backend.asked) == 2)
    watch.remove(waiter)
    backend.is_over = True
    backend.tell()
    until(lambda: vars(watch)["_thread"] is None)
    assert waiter.outcome() == START


def test_an_error_is_told_to_all_who_wait_and_the_next_begins_again(
    backend: Backend, watch: PositionWatch
) -> None:
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(watch.wait, START, None) for _ in range(3)]
        until(lambda: len(vars(watch)["_waiting"]) == 3)
        backend.until(lambda: backend.held == 1)
        backend.tell(error=UnavailableError("gone"))
        for one in waiting:
            with pytest.raises(UnavailableError, match="gone"):
                one.result(PATIENCE_S)
    backend.tell(1)
    assert watch.wait(START, None) == 1

"""A deadline is the call's own: the time in the commit queue counts.

Nothing here asserts how long something took. Threads are held until the test lets them go, and
deadlines are numbers on a clock of the test's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.backends import connection_pool
from holdfast.backends.deadline import CALL, NEVER
from holdfast.core import commit_queue
from holdfast.core.commit_queue import CommitQueue, Request
from holdfast.errors import UnavailableError
from tests.unit.test_connection_pool import Connection, Slow


class Held:
    """A backend that answers when the test lets it, and remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[object]] = []
        self.deadlines: list[float] = []
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def __call__(self, requests: list[Request]) -> None:
        self.deadlines.append(CALL.deadline)
        self.batches.append([request.work for request in requests])
        self.entered.release()
        assert self.go.acquire(timeout=120)
        for request in requests:
            request.succeed(request.work)


@pytest.fixture
def held() -> Held:
    return Held()


class Caller(threading.Thread):
    """A thread that makes one call and keeps what came of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.result: object = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def end(self) -> UnavailableError:
        """Waits for the end and returns the error."""
        self.join(120)
        assert isinstance(self.error, UnavailableError), self.result
        return self.error


def queue_of(held: Held, timeout_s: float) -> CommitQueue:
    return CommitQueue(held, timeout_s=timeout_s)


def test_what_waits_for_another_thread_too_long_is_withdrawn(held: Held) -> None:
    queue = queue_of(held, 0.05)
    failed: list[BaseException] = []
    leader = Caller(lambda: queue.commit(Request("a")))
    assert held.entered.acquire(timeout=120)
    error = Caller(lambda: queue.commit(Request("b", failed=failed.append))).end()
    assert error.outcome_known
    assert "nothing was written" in error.message
    assert failed == [error], "whoever depends on it is told"
    held.go.release()
    leader.join(120)
    assert leader.result == "a"
    assert held.batches == [["a"]], "it was never sent"
    held.go.release()
    later = queue_of(held, 60)
    assert later.commit(Request("c")) == "c"
    queue.close()


def test_who_waits_for_what_was_sent_is_told_that_nobody_knows(held: Held) -> None:
    queue = queue_of(held, 0.05)
    request = Request("a")
    queue.submit(request)
    assert held.entered.acquire(timeout=120)
    error = Caller(lambda: queue.wait(request)).end()
    assert not error.outcome_known
    assert "did not end within 0.05 s" in error.message
    held.go.release()
    queue.close()
    assert request.outcome() == "a", "it was written after all"


def test_what_somebody_else_waits_for_is_not_withdrawn(held: Held) -> None:
    queue = queue_of(held, 0.05)
    first, told = Request("a"), list[object]()
    queue.submit(first)
    assert held.entered.acquire(timeout=120)
    watched = Request("b", waker=lambda answered: told.extend(one.work for one in answered))
    watched.deadline = NEVER
    queue._waiting.append(watched)
    error = Caller(lambda: queue.wait(watched)).end()
    assert not error.outcome_known, "it may still be written"
    alone = Request("c")
    queue._waiting.append(alone)
    error = Caller(lambda: queue.wait(alone)).end()
    assert error.outcome_known
    held.go.release(2)
    queue.close()
    assert told == ["b"]
    assert held.batches == [["a"], ["b"]]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time, in seconds, which the test sets."""
    clock = [100.0]
    monkeypatch.setattr(commit_queue, "monotonic", lambda: clock[0])
    return clock


def test_a_batch_has_the_earliest_deadline_of_those_that_have_time(
    held: Held, now: list[float]
) -> None:
    queue = queue_of(held, 4.0)
    first = Request("a")
    queue.submit(first)
    assert held.entered.acquire(timeout=120)
    requests = [Request(name) for name in "bcdef"]
    for request, at in zip(requests, (100.0, 100.01, 101.0, 102.0, 103.5), strict=True):
        now[0] = at
        queue.submit(request)
    now[0] = 104.0
    held.go.release(10)
    queue.close()
    late, fresh = requests[:2], requests[2:]
    for request in late:
        assert isinstance(request.error, UnavailableError)
        assert request.error.outcome_known
    assert [request.outcome() for request in fresh] == ["d", "e", "f"]
    # The two that came with little time left are not sent. "f" came long after the others: it is
    # not given up with them.
    assert held.batches == [["a"], ["d", "e"], ["f"]]
    assert held.deadlines == [104.0, 105.0, 107.5]
    assert CALL.deadline == NEVER


def test_a_thread_that_is_told_to_lead_too_late_passes_the_lead_on(
    held: Held, now: list[float]
) -> None:
    queue = queue_of(held, 4.0)
    leader = Caller(lambda: queue.commit(Request("a")))
    assert held.entered.acquire(timeout=120)
    late = Caller(lambda: queue.commit(Request("b")))
    until(lambda: len(queue._waiting) == 1)
    now[0] = 103.0
    fresh = Caller(lambda: queue.commit(Request("c")))
    until(lambda: len(queue._waiting) == 2)
    now[0] = 104.0
    held.go.release(10)
    assert late.end().outcome_known
    for one, result in ((leader, "a"), (fresh, "c")):
        one.join(120)
        assert one.result == result
    assert held.batches == [["a"], ["c"]]
    queue.close()


def test_a_leader_that_is_too_late_does_not_take_the_error_of_those_it_leads(
    now: list[float],
) -> None:
    """Whose own commit was not sent, and is known not to be there."""
    away = UnavailableError("the server is away", outcome_known=False)
    runs: list[list[object]] = []

    def run(requests: list[Request]) -> None:
        runs.append([request.work for request in requests])
        raise away

    queue = CommitQueue(run, timeout_s=4.0)
    late, fresh = Request("late", deadline=100.0), Request("fresh", deadline=101.0)
    queue._waiting.extend([late, fresh])
    with pytest.raises(UnavailableError, match="nothing was written") as caught:
        queue.wait(late)
    assert caught.value.outcome_known
    assert runs == [["fresh"]]
    assert fresh.error is away
    queue.close()


def test_an_error_after_everybody_was_answered_is_this_threads_own(now: list[float]) -> None:
    """As of a signal handler, which may call the store and raise what that raised."""

    def run(requests: list[Request]) -> None:
        for request in requests:
            request.succeed("written")
        raise UnavailableError("of the handler")

    queue = CommitQueue(run, timeout_s=4.0)
    request = Request("a")
    with pytest.raises(UnavailableError, match="of the handler"):
        queue.commit(request)
    assert request.outcome() == "written"
    queue.close()


def until(holds: Callable[[], bool]) -> None:
    for _ in range(60_000):
        if holds():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it did not come to that")


def test_an_answer_or_the_lead_that_comes_at_the_last_moment_counts(held: Held) -> None:
    queue = queue_of(held, 4.0)
    answered, leading = Request("a"), Request("b")
    answered.succeed("a")
    queue._give_up(answered, 1)
    queue._leader = leading
    queue._give_up(leading, 1)
    assert not leading.answered
    queue._leader = None
    queue.close()


def test_a_queue_without_a_deadline_waits(held: Held) -> None:
    queue = CommitQueue(held)
    held.go.release()
    assert queue.commit(Request("a")) == "a"
    assert held.deadlines == [NEVER]
    queue.close()


def test_a_call_of_a_pool_has_no_more_time_than_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Slow(monkeypatch)
    seen: list[float] = []
    monkeypatch.setattr(pool, "connect", lambda deadline: seen.append(deadline) or Connection())
    pool.call(lambda _: None)
    monkeypatch.setattr(CALL, "deadline", 0.4)
    pool.drop_idle()
    pool.call(lambda _: None)
    pool.now = 0.4
    with pytest.raises(UnavailableError, match="there is no time left") as caught:
        pool.call(lambda _: None, writes=True)
    assert caught.value.outcome_known
    assert seen == [1.0, 0.4]
    assert connection_pool.CALL is CALL

"""Group commit: who leads, who waits, and that everybody is answered."""

import threading

import pytest

from holdfast.core.commit_queue import CommitQueue, Request
from holdfast.errors import ConflictError, UnavailableError, UsageError


class Gate:
    """A run function that can be held, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[object]] = []
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def __call__(self, requests: list[Request]) -> None:
        self.entered.set()
        assert self.open.wait(120)
        self.batches.append([request.work for request in requests])
        for request in requests:
            if isinstance(request.work, BaseException):
                request.fail(request.work)
            else:
                request.succeed(request.work)


def test_a_lone_caller_leads_its_own_batch_in_its_own_thread() -> None:
    threads: list[str] = []

    def run(requests: list[Request]) -> None:
        threads.append(threading.current_thread().name)
        requests[0].succeed("done")

    queue = CommitQueue(run)
    assert queue.commit(Request("x")) == "done"
    assert threads == [threading.current_thread().name]
    queue.close()


def test_what_gathers_while_one_is_written_goes_together() -> None:
    gate = Gate()
    queue = CommitQueue(gate)
    gate.open.clear()
    answers: list[object] = []

    def caller(n: int) -> None:
        answers.append(queue.commit(Request(n)))

    first = threading.Thread(target=caller, args=(0,))
    first.start()
    gate.entered.wait(120)
    rest = [threading.Thread(target=caller, args=(n,)) for n in range(1, 6)]
    for thread in rest:
        thread.start()
    while len(queue._waiting) < 5:  # pyright: ignore[reportPrivateUsage]
        threading.Event().wait(0.001)
    gate.open.set()
    for thread in (first, *rest):
        thread.join(120)
    assert sorted(map(str, answers)) == ["0", "1", "2", "3", "4", "5"]
    assert [len(batch) for batch in gate.batches] == [1, 5]
    queue.close()


def test_an_error_belongs_to_its_request_alone() -> None:
    queue = CommitQueue(Gate())
    with pytest.raises(ConflictError):
        queue.commit(Request(ConflictError("x", stream="s", expected=1, actual=2)))
    assert queue.commit(Request("fine")) == "fine"


def test_a_store_error_fails_the_batch_and_the_queue_goes_on() -> None:
    broken = True

    def run(requests: list[Request]) -> None:
        if broken:
            raise UnavailableError("disk full")
        for request in requests:
            request.succeed(1)

    queue = CommitQueue(run)
    with pytest.raises(UnavailableError, match="disk full"):
        queue.commit(Request("x"))
    broken = False
    assert queue.commit(Request("x")) == 1


def test_an_interrupt_is_raised_where_it_happened_and_neighbours_learn_that_nobody_knows() -> None:
    entered, gathered = threading.Event(), threading.Event()

    def run(requests: list[Request]) -> None:
        if requests[0].work == "first":
            entered.set()
            gathered.wait(120)
            requests[0].succeed(None)
        else:
            raise KeyboardInterrupt

    queue = CommitQueue(run)
    errors: list[BaseException] = []

    def caller(work: str) -> None:
        try:
            queue.commit(Request(work))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caller, args=("first",))]
    threads[0].start()
    entered.wait(120)
    for _ in range(2):
        threads.append(threading.Thread(target=caller, args=("later",)))
        threads[-1].start()
    while len(queue._waiting) < 2:  # pyright: ignore[reportPrivateUsage]
        threading.Event().wait(0.001)
    gathered.set()
    for thread in threads:
        thread.join(120)
    kinds = sorted(type(error).__name__ for error in errors)
    assert kinds == ["KeyboardInterrupt", "UnavailableError"]
    unknown = next(error for error in errors if isinstance(error, UnavailableError))
    assert not unknown.outcome_known


def test_submitted_requests_are_led_in_the_background_and_keep_their_order() -> None:
    gate = Gate()
    queue = CommitQueue(gate)
    woken: list[object] = []
    done = threading.Event()

    def waker(answered: object) -> None:
        woken.extend(request.result for request in answered)  # pyright: ignore
        if len(woken) == 50:
            done.set()

    for n in range(50):
        queue.submit(Request(n, waker))
    assert done.wait(120)
    assert woken == list(range(50))
    assert [work for batch in gate.batches for work in batch] == list(range(50))
    queue.close()


def test_waiting_for_what_was_submitted() -> None:
    queue = CommitQueue(Gate())
    requests = [Request(n) for n in range(20)]
    for request in requests:
        queue.submit(request)
    assert [queue.wait(request) for request in requests] == list(range(20))
    assert queue.wait(requests[0]) == 0
    queue.close()


def test_a_batch_has_a_limit() -> None:
    gate = Gate()
    queue = CommitQueue(gate, batch_max=4)
    gate.open.clear()
    requests = [Request(n) for n in range(11)]
    for request in requests:
        queue.submit(request)
    gate.open.set()
    assert [queue.wait(request) for request in requests] == list(range(11))
    assert all(len(batch) <= 4 for batch in gate.batches)
    queue.close()


def test_close_finishes_what_waits_and_refuses_the_rest() -> None:
    gate = Gate()
    queue = CommitQueue(gate)
    gate.open.clear()
    requests = [Request(n) for n in range(5)]
    for request in requests:
        queue.submit(request)
    closer = threading.Thread(target=queue.close)
    closer.start()
    gate.open.set()
    closer.join(120)
    assert all(request.answered for request in requests)
    with pytest.raises(UsageError, match="closed"):
        queue.commit(Request("late"))
    with pytest.raises(UsageError, match="closed"):
        queue.submit(Request("late"))
    queue.close()


def test_many_threads_of_both_kinds_are_all_answered() -> None:
    queue = CommitQueue(Gate(), batch_max=7)
    results: list[object] = []
    lock = threading.Lock()

    def committer(n: int) -> None:
        for i in range(50):
            answer = queue.commit(Request((n, i)))
            with lock:
                results.append(answer)

    def submitter(n: int) -> None:
        requests = [Request((n, i)) for i in range(50)]
        for request in requests:
            queue.submit(request)
        for request in requests:
            answer = queue.wait(request)
            with lock:
                results.append(answer)

    threads = [
        threading.Thread(target=target, args=(n,))
        for n, target in enumerate([committer, submitter] * 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(results) == [(n, i) for n in range(8) for i in range(50)]  # pyright: ignore
    queue.close()


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_an_error_in_the_background_fails_what_was_submitted_and_the_next_is_written(
    kind: type[BaseException],
) -> None:
    """Whatever it is: a background thread that ends leaves a queue that nobody leads."""

    def run(requests: list[Request]) -> None:
        if requests[0].work == "bad":
            raise kind("a bug")
        requests[0].succeed("done")

    answered = threading.Semaphore(0)

    def waker(_: object) -> None:
        answered.release()

    queue = CommitQueue(run)
    bad, good = Request("bad", waker), Request("good", waker)
    queue.submit(bad)
    assert answered.acquire(timeout=120)
    with pytest.raises(kind, match="a bug"):
        queue.wait(bad)
    queue.submit(good)
    assert answered.acquire(timeout=120)
    assert queue.wait(good) == "done"
    queue.close()

"""Group commit, turn by turn: who leads the next batch, whatever came during this one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from holdfast.core import commit_queue
from holdfast.core.commit_queue import CommitQueue, Request
from holdfast.errors import UnavailableError, UsageError

BACKGROUND = "holdfast-commit"


class Turns:
    """A run function that does something of the test's during its first batch.

    Takes down which thread ran which requests.
    """

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.led: list[tuple[str, list[object]]] = []

    def __call__(self, requests: list[Request]) -> None:
        name = threading.current_thread().name
        self.led.append((name, [request.work for request in requests]))
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        for request in requests:
            request.succeed(request.work)


def until(holds: Callable[[], bool]) -> None:
    """Lets other threads run until something holds."""
    for _ in range(20_000):
        if holds():
            return
        threading.Event().wait(0.0005)
    raise AssertionError("it never came to hold")


def is_gated(request: Request) -> bool:
    return request.gate is not None


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def queue(turns: Turns) -> CommitQueue:
    return CommitQueue(turns)


def test_what_was_submitted_meanwhile_is_led_by_the_background(
    turns: Turns, queue: CommitQueue
) -> None:
    for round in range(2):  # the first has no thread yet, the second has one
        later = Request(f"later {round}")
        turns.meanwhile = lambda later=later: queue.submit(later)
        mine = threading.current_thread().name
        assert queue.commit(Request("now")) == "now"
        # Answered is not yet over: until it lets go, the background would lead the next "now", too.
        until(lambda later=later: later.answered and vars(queue)["_leader"] is None)
        assert turns.led[-2:] == [(mine, ["now"]), (BACKGROUND, [f"later {round}"])]
    queue.close()


def test_the_background_goes_on_while_more_comes_and_begins_again(
    turns: Turns, queue: CommitQueue
) -> None:
    first, during, after = Request("first"), Request("during"), Request("after")
    turns.meanwhile = lambda: queue.submit(during)
    queue.submit(first)
    until(lambda: during.answered and vars(queue)["_leader"] is None)
    thread = vars(queue)["_thread"]
    queue.submit(after)
    until(lambda: after.answered)
    assert turns.led == [(BACKGROUND, [work]) for work in ("first", "during", "after")]
    assert vars(queue)["_thread"] is thread
    queue.close()
    assert not thread.is_alive()


def test_a_leader_finishes_what_waits_when_the_queue_is_closed_meanwhile(
    turns: Turns, queue: CommitQueue
) -> None:
    """No thread is started for a queue that is closing, and nobody else would come."""
    later = Request("later")
    closer = threading.Thread(target=queue.close)

    def meanwhile() -> None:
        queue.submit(later)
        closer.start()
        until(lambda: vars(queue)["_closed"])

    turns.meanwhile = meanwhile
    assert queue.commit(Request("now")) == "now"
    closer.join(120)
    assert not closer.is_alive()
    assert later.outcome() == "later"
    assert {name for name, _ in turns.led} == {threading.current_thread().name}


def test_a_queue_closed_while_a_lone_caller_commits_waits_for_it(
    turns: Turns, queue: CommitQueue
) -> None:
    closer = threading.Thread(target=queue.close)

    def meanwhile() -> None:
        closer.start()
        until(lambda: vars(queue)["_closed"])
        assert closer.is_alive()

    turns.meanwhile = meanwhile
    assert queue.commit(Request("now")) == "now"
    closer.join(120)
    assert not closer.is_alive()


def test_a_thread_that_waits_is_told_to_lead(turns: Turns, queue: CommitQueue) -> None:
    submitted = Request("submitted")
    committed = Request("committed")
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda: answers.append(queue.wait(submitted)), name="waiter"),
        threading.Thread(target=lambda: answers.append(queue.commit(committed)), name="caller"),
    ]

    def meanwhile() -> None:
        queue.submit(submitted)
        for thread, request in zip(threads, (submitted, committed), strict=True):
            thread.start()
            until(lambda request=request: is_gated(request))

    turns.meanwhile = meanwhile
    assert queue.commit(Request("first")) == "first"
    for thread in threads:
        thread.join(120)
    assert sorted(map(str, answers)) == ["committed", "submitted"]
    assert [(name, works) for name, works in turns.led[1:]] == [
        ("waiter", ["submitted", "committed"])
    ]
    queue.close()


def test_who_waits_for_what_is_being_written_is_woken_when_it_is(
    turns: Turns, queue: CommitQueue
) -> None:
    request = Request("submitted")
    answers: list[object] = []
    waiter = threading.Thread(target=lambda: answers.append(queue.wait(request)))

    def meanwhile() -> None:
        waiter.start()
        until(lambda: is_gated(request))

    turns.meanwhile = meanwhile
    queue.submit(request)
    until(lambda: waiter.ident is not None)
    waiter.join(120)
    assert answers == ["submitted"]
    assert turns.led == [(BACKGROUND, ["submitted"])]
    assert queue.wait(request) == "submitted"
    queue.close()


def test_who_waits_leads_if_nobody_does(
    turns: Turns, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_start_thread", lambda: None)  # it has not got the processor yet
    requests = [Request("one"), Request("two")]
    for request in requests:
        queue.submit(request)
    assert queue.wait(requests[1]) == "two"
    assert turns.led == [(threading.current_thread().name, ["one", "two"])]
    assert requests[0].answered


def test_what_was_submitted_before_is_committed_before(
    turns: Turns, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_start_thread", lambda: None)
    submitted = Request("submitted")
    queue.submit(submitted)
    assert queue.commit(Request("committed")) == "committed"
    assert turns.led == [(threading.current_thread().name, ["submitted", "committed"])]
    assert submitted.answered


def test_an_answer_that_was_given_stands_when_its_batch_fails_later() -> None:
    def run(requests: list[Request]) -> None:
        requests[0].succeed("written")
        raise UnavailableError("disk gone")

    queue = CommitQueue(run)
    first = Request("first")
    queue._start_thread = lambda: None  # type: ignore[method-assign]
    queue.submit(first)
    with pytest.raises(UnavailableError, match="disk gone"):
        queue.commit(Request("second"))
    assert first.outcome() == "written"


def test_a_forked_child_can_do_nothing_with_its_parents_queue(
    turns: Turns, queue: CommitQueue
) -> None:
    """Clause 13: asked before any lock is taken, which a thread of the parent may have held."""
    queue.mark_inherited()  # as the hook does in a child
    vars(queue)["_lock"] = None  # whoever tried to take it would fail
    for call in (queue.commit, queue.submit, queue.wait):
        with pytest.raises(UsageError, match="inherited by a forked child"):
            call(Request("x"))
    queue.close()
    assert turns.led == []


class Interrupted:
    """A lock in place of a gate, at which an interrupt comes while its thread waits."""

    def __init__(self, when: Callable[[], bool]) -> None:
        self._when = when
        self._acquired = False

    def acquire(self) -> bool:
        if self._acquired:
            until(self._when)
            raise KeyboardInterrupt
        self._acquired = True
        return True

    def release(self) -> None: ...


@pytest.mark.parametrize("is_leading", [False, True])
def test_an_interrupt_of_one_who_waits_holds_up_nobody(
    turns: Turns, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch, is_leading: bool
) -> None:
    waiting = Request("waits")
    interrupted = threading.Event()

    def when() -> bool:
        return (
            vars(queue)["_leader"] is waiting if is_leading else waiting in vars(queue)["_waiting"]
        )

    def wait() -> None:
        try:
            queue.commit(waiting)
        except KeyboardInterrupt:
            interrupted.set()

    def meanwhile() -> None:
        waiter.start()
        if not is_leading:
            assert interrupted.wait(120)
        until(lambda: is_gated(waiting) or interrupted.is_set())

    waiter = threading.Thread(target=wait)
    monkeypatch.setattr("holdfast.backends.gates.Lock", lambda: Interrupted(when))
    turns.meanwhile = meanwhile
    assert queue.commit(Request("first")) == "first"
    waiter.join(120)
    assert interrupted.is_set()
    until(lambda: waiting.answered)  # in line it stays, and somebody leads it
    monkeypatch.undo()
    last = threading.Thread(target=lambda: queue.commit(Request("last")), daemon=True)
    last.start()
    last.join(120)
    assert not last.is_alive()
    assert [work for _, works in turns.led for work in works] == ["first", "waits", "last"]
    queue.close()


@pytest.mark.parametrize("is_handed_on", [False, True])
def test_all_who_wait_for_the_same_commit_are_answered(
    turns: Turns, queue: CommitQueue, is_handed_on: bool
) -> None:
    """Of several threads that wait for what was submitted once, one may have to lead it."""
    submitted = Request("submitted")
    answers: list[object] = []
    waiters = [
        threading.Thread(target=lambda: answers.append(queue.wait(submitted)), daemon=True)
        for _ in range(3)
    ]

    def meanwhile() -> None:
        if is_handed_on:
            queue.submit(submitted)
        for waiter in waiters:
            waiter.start()
        until(lambda: len(submitted.waiters) == len(waiters))

    turns.meanwhile = meanwhile
    if is_handed_on:
        assert queue.commit(Request("first")) == "first"
    else:
        queue.submit(submitted)
    for waiter in waiters:
        if waiter.ident is None:
            until(lambda: submitted.answered)
        waiter.join(120)
    assert answers == ["submitted"] * 3
    queue.close()


def test_an_interrupt_of_one_who_waits_leaves_the_others_waiting(
    turns: Turns, queue: CommitQueue
) -> None:
    """Of two threads that wait for the same commit, one is interrupted: the other is answered."""
    submitted = Request("submitted")
    answers: list[object] = []
    waiter = threading.Thread(target=lambda: answers.append(queue.wait(submitted)), daemon=True)

    raised: list[type[BaseException]] = []

    def wait() -> None:
        try:
            queue.wait(submitted)
        except KeyboardInterrupt:
            raised.append(KeyboardInterrupt)

    def meanwhile() -> None:
        queue.submit(submitted)
        waiter.start()
        until(lambda: is_gated(submitted))
        gate, submitted.gate = submitted.gate, Interrupted(lambda: True)  # type: ignore[assignment]
        assert submitted.gate.acquire()
        interrupted = threading.Thread(target=wait)
        interrupted.start()
        interrupted.join(120)
        assert raised == [KeyboardInterrupt]
        submitted.gate = gate

    turns.meanwhile = meanwhile
    assert queue.commit(Request("first")) == "first"
    waiter.join(120)
    assert answers == ["submitted"]
    queue.close()


# --- interrupts, one at each step ----------------------------------------------------------------
#
# `tests/torture/t23_interrupts.py` sends real signals at every place. Here each step that must be
# put in order is interrupted by name.


def raising(error: BaseException) -> Callable[..., None]:
    def run(*_: object) -> None:
        raise error

    return run


def test_an_interrupt_before_the_batch_is_run_puts_it_back(
    turns: Turns, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others submitted is written by the next leader; what nobody else knows is dropped."""
    submitted = Request("submitted")
    with monkeypatch.context() as patched:
        patched.setattr(queue, "_start_thread", lambda: None)
        queue.submit(submitted)
        patched.setattr(queue, "_lead", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            queue.commit(Request("own"))
        assert list(vars(queue)["_waiting"]) == [submitted]
        with pytest.raises(KeyboardInterrupt):
            queue.wait(submitted)
        assert list(vars(queue)["_waiting"]) == [submitted]
    assert queue.commit(Request("next")) == "next"
    assert [work for _, works in turns.led for work in works] == ["submitted", "next"]
    queue.close()


def test_an_interrupt_between_the_two_steps_of_taking_doubles_nothing(
    turns: Turns, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Request("first"), Request("second")

    def take(batch: list[Request]) -> None:
        batch.append(vars(queue)["_waiting"][0])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(queue, "_start_thread", lambda: None)
        queue.submit(first, second)
        patched.setattr(queue, "_take", take)
        with pytest.raises(KeyboardInterrupt):
            queue.wait(second)
    assert list(vars(queue)["_waiting"]) == [first, second]
    assert queue.wait(second) == "second"
    assert turns.led == [(threading.current_thread().name, ["first", "second"])]
    queue.close()


def test_another_interrupt_on_the_way_out_changes_nothing(
    turns: Turns, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave, left = vars(CommitQueue)["_leave"], list[object]()

    def interrupted(*arguments: object) -> None:
        left.append(arguments)
        if len(left) == 1:
            raise KeyboardInterrupt
        leave(queue, *arguments)

    monkeypatch.setattr(queue, "_leave", interrupted)
    turns.meanwhile = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        queue.commit(Request("first"))
    assert len(left) == 2
    assert queue.commit(Request("second")) == "second"
    queue.close()


def test_who_can_never_leave_in_order_leaves_at_last(
    turns: Turns, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_leave", raising(KeyboardInterrupt()))
    turns.meanwhile = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        queue.commit(Request("first"))


def test_an_interrupt_of_a_leader_while_the_queue_closes_leaves_the_rest_to_the_background(
    turns: Turns, queue: CommitQueue
) -> None:
    later = Request("later")
    closer = threading.Thread(target=queue.close)

    def meanwhile() -> None:
        queue.submit(later)
        closer.start()
        until(lambda: bool(vars(queue)["_closers"]))
        raise KeyboardInterrupt

    turns.meanwhile = meanwhile
    with pytest.raises(KeyboardInterrupt):
        queue.commit(Request("now"))
    closer.join(120)
    assert not closer.is_alive()
    assert later.outcome() == "later"


def test_a_close_finds_a_leader_for_what_an_interrupt_left(
    turns: Turns, queue: CommitQueue
) -> None:
    later = Request("later")
    vars(queue)["_waiting"].append(later)
    queue.close()
    assert later.outcome() == "later"


def test_what_a_signal_handler_raises_after_the_commit_is_raised(
    turns: Turns, queue: CommitQueue
) -> None:
    """The commit is there, and its caller hears what the handler said all the same."""

    def run(requests: list[Request]) -> None:
        for request in requests:
            request.succeed("written")
        raise TimeoutError("the handler's")

    queue = CommitQueue(run)
    request = Request("first")
    with pytest.raises(TimeoutError, match="the handler's"):
        queue.commit(request)
    assert request.outcome() == "written"
    queue.close()


def test_a_neighbour_waits_for_what_an_interrupted_thread_was_told_to_lead(
    turns: Turns, queue: CommitQueue
) -> None:
    """Two threads wait for one commit; the one that was told to lead it is interrupted."""
    submitted = Request("submitted")
    answers: list[object] = []
    waiter = threading.Thread(target=lambda: answers.append(queue.wait(submitted)), daemon=True)

    def meanwhile() -> None:
        queue.submit(submitted)
        waiter.start()
        until(lambda: is_gated(submitted))
        me = threading.get_ident()
        submitted.waiters = [*submitted.waiters, me + 1]

    turns.meanwhile = meanwhile
    assert queue.commit(Request("first")) == "first"
    waiter.join(120)
    assert answers == ["submitted"]
    other = Request("other", gate=threading.Lock(), waiters=[1, 2])
    other.gate.acquire()
    vars(queue)["_leader"] = other
    queue._recover(1, other, KeyboardInterrupt())  # pyright: ignore[reportPrivateUsage]
    assert other.gate.acquire(blocking=False), "the other one was not told"
    assert other.waiters == [2]
    queue._recover(2, other, KeyboardInterrupt())  # pyright: ignore[reportPrivateUsage]
    assert vars(queue)["_leader"] is None
    queue.close()


def test_who_leads_what_another_thread_waits_for_lets_it_go(
    turns: Turns, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads wait for what was submitted once, and no thread has begun with it."""
    submitted = Request("submitted")
    answers: list[object] = []
    waiter = threading.Thread(target=lambda: answers.append(queue.wait(submitted)), daemon=True)

    def meanwhile() -> None:
        waiter.start()
        until(lambda: is_gated(submitted))

    turns.meanwhile = meanwhile
    monkeypatch.setattr(queue, "_start_thread", lambda: None)
    queue.submit(submitted)
    assert queue.wait(submitted) == "submitted"
    waiter.join(120)
    assert answers == ["submitted"]
    queue.close()


def test_nobody_overtakes_those_that_do_not_fit_into_a_batch(
    monkeypatch: pytest.MonkeyPatch, turns: Turns
) -> None:
    queue = CommitQueue(turns, batch_max=4)
    monkeypatch.setattr(queue, "_start_thread", lambda: None)
    queue.submit(*(Request(n) for n in range(6)))
    assert queue.commit(Request("last")) == "last"
    assert [works for _, works in turns.led] == [[0, 1, 2, 3], [4, 5, "last"]]


# --- signal handlers that call the store ---------------------------------------------------------


def test_a_call_inside_another_is_refused_and_a_submit_is_not(
    turns: Turns, queue: CommitQueue
) -> None:
    """A signal handler runs inside a call of its own thread: it would wait for itself."""
    later, refused = Request("later"), list[UsageError]()

    def meanwhile() -> None:
        for call in (
            lambda: queue.commit(Request("never")),
            lambda: queue.wait(later),
            queue.close,
        ):
            with pytest.raises(UsageError, match="inside another call") as caught:
                call()
            refused.append(caught.value)
        queue.submit(later)

    turns.meanwhile = meanwhile
    assert queue.commit(Request("now")) == "now"
    assert len(refused) == 3
    assert queue.wait(later) == "later"
    assert [work for _, works in turns.led for work in works] == ["now", "later"]
    queue.close()


def test_a_handler_that_lets_its_refusal_out_says_nothing_of_its_neighbours(
    turns: Turns, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = Request("submitted")
    monkeypatch.setattr(queue, "_start_thread", lambda: None)
    queue.submit(submitted)
    turns.meanwhile = lambda: queue.commit(Request("never"))
    with pytest.raises(UsageError, match="inside another call"):
        queue.commit(Request("now"))
    with pytest.raises(UnavailableError) as caught:
        queue.wait(submitted)
    assert not caught.value.outcome_known
    queue.close()


@pytest.mark.parametrize("call", ["commit", "submit", "wait"])
def test_what_a_handler_submits_at_the_last_moment_is_led(
    turns: Turns, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """After the leader has looked, and before its call has ended."""
    late, mine = Request("late"), Request("mine")
    with monkeypatch.context() as patched:
        patched.setattr(queue, "_start_thread", lambda: None)
        if call == "wait":
            queue.submit(mine)
        lead, call_thread = queue._lead, queue._call_thread  # pyright: ignore[reportPrivateUsage]

        def leading(mine: Request | None) -> None:
            lead(mine)
            queue.submit(late)

        def calling() -> None:
            call_thread()
            vars(queue)["_waiting"].clear()
            patched.undo()
            queue.submit(late)

        patched.setattr(queue, "_lead", leading)
        if call == "submit":
            patched.setattr(queue, "_call_thread", calling)
            mine.answered = True
        else:
            patched.delattr(queue, "_start_thread")
        getattr(queue, call)(mine)
    until(lambda: late.answered)
    queue.close()


def test_a_closing_queue_takes_nothing_from_a_handler_either(
    turns: Turns, queue: CommitQueue
) -> None:
    closer = threading.Thread(target=queue.close)
    refused: list[str] = []

    def meanwhile() -> None:
        closer.start()
        until(lambda: vars(queue)["_closed"])
        with pytest.raises(UsageError, match="closed") as caught:
            queue.submit(Request("late"))
        refused.append(str(caught.value))

    turns.meanwhile = meanwhile
    assert queue.commit(Request("now")) == "now"
    closer.join(120)
    assert refused


def test_a_request_that_is_answered_meanwhile_is_not_waited_for(
    queue: CommitQueue,
) -> None:
    request = Request("submitted")

    class Answering:
        """A lock that another thread had: meanwhile it answered."""

        def __enter__(self) -> None:
            request.succeed("done")

        def __exit__(self, *_: object) -> None: ...

    lock, vars(queue)["_lock"] = vars(queue)["_lock"], Answering()
    assert queue.wait(request) == "done"
    vars(queue)["_lock"] = lock
    queue.close()


def test_an_interrupt_is_the_answer_only_of_a_request_that_no_other_thread_waits_for() -> None:
    request = Request("x")
    for waiters, is_own in ([], True), ([1], True), ([1, 2], False), ([2], False):
        request.waiters = waiters
        owned = commit_queue._owned(request, 1)  # pyright: ignore[reportPrivateUsage]
        assert (owned is request) is is_own

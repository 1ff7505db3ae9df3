"""Group commit: one sync for all callers that are waiting.

All requests go into one queue. A caller that finds no leader becomes the leader and runs all that
has gathered; the others wait for their answer, or for their turn to lead the next batch. A lone
caller pays two lock operations and no thread hop. Requests that no thread waits for (asyncio,
`commit(waits=False)`) are led by one background thread, which stays leader while they keep coming:
one hop per batch, not per request.

Batches are taken in the order of the queue. So if one thread submits a request and then commits
another, they are written in that order.

An interrupt (Ctrl-C, a signal handler that raises) can come between any two steps of the main
thread. So what others depend on is recorded first: who leads, and which batch it has in hand. A
thread that leaves by an exception cleans this up (`_recover`): the batch is answered and the lead
is passed on. Threads wait only at plain locks, which are taken and released in one step; an
operation of `threading.Condition` takes many. A signal handler may itself call the store, in the
middle of a call of the same thread. It could wait for ever for what that call has begun: so it may
submit, and is refused where it would have to wait.

On a server a call has a deadline, and the time in this queue counts (`backends/deadline.py`). The
requests of a batch were made in the order of the queue. So the batch may take until the deadline of
its first request, and then no request exceeds its own. A request whose time is over when its turn
comes is not sent: so it is known that it was not written. A request that came much later than the
first of a batch is left for the next batch, because the batch would give it up too early.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from holdfast.backends.deadline import CALL, NEVER, monotonic
from holdfast.backends.gates import ReentrantCall, open_gate, reentered, shut_gate, start_thread
from holdfast.backends.handle import Handle
from holdfast.errors import HoldfastError, UnavailableError, UsageError

_logger = logging.getLogger("holdfast.log")


class Waker(Protocol):
    """Is called once per batch with its requests that were answered, in the leader's thread.

    After an interrupt it may be called twice.
    """

    def __call__(self, answered: Sequence[Request], /) -> None: ...


class Request(Struct, eq=False):
    """Something to commit, and then its answer.

    The leader calls `failed` with an error before anything else is committed. A waker would be too
    late for that: it is called when the next leader may be at work already.
    """

    work: Any
    waker: Waker | None = None
    context: Any = None
    failed: Callable[[BaseException], object] | None = None
    gate: Any = None  # a lock that is shut until the request is answered or has the lead
    answered: bool = False
    waiters: Sequence[int] = ()  # the threads at the gate
    result: Any = None
    error: BaseException | None = None
    deadline: float = NEVER

    def succeed(self, result: Any) -> None:
        self.result = result
        self.answered = True

    def fail(self, error: BaseException) -> None:
        if self.failed is not None:
            self.failed(error)
        self.error = error
        self.answered = True

    def outcome(self) -> Any:
        """Returns the result, or raises the error."""
        if self.error is not None:
            raise self.error
        return self.result


class CommitQueue(Handle):
    """Requests on their way into `run`, which must answer every request that it is given."""

    def __init__(
        self,
        run: Callable[[list[Request]], None],
        *,
        batch_max: int = 1024,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__()
        self._run = run if timeout_s is None else self._run_in_time
        self._run_batch = run
        self._timeout_s = timeout_s
        self._batch_max = batch_max
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()
        self._leader: int | Request | None = None
        """The thread that leads; or the request whose thread has been given the lead and has not
        begun."""
        self._batch: list[Request] = []
        """The batch that the leader has in hand: it is answered before the lead is passed on."""
        self._is_running = False
        """Whether the batch in hand may have been written, partly or completely."""
        self._inside: set[int] = set()
        """The threads that are in a call of this queue."""
        self._closed = False
        self._thread: threading.Thread | None = None
        self._work = shut_gate()  # opened when there is something for the thread to do
        self._closers: list[Any] = []  # gates of those who wait for the last leader

    def use(self, run: Callable[[list[Request]], None]) -> None:
        """Lets another function answer the batches from now on."""
        self._run_batch = run
        if self._timeout_s is None:
            self._run = run

    def commit(self, request: Request) -> Any:
        """Commits the request, with whatever else has gathered, and returns its result."""
        if self._dead is not None:
            # Checked before the lock is taken: at the fork another thread may have held it, and
            # that thread does not exist in the child. The parent commits what was in the queue.
            raise self._refusal()
        me = threading.get_ident()
        if me in self._inside:
            raise reentered("a commit")
        if self._timeout_s is not None:
            request.deadline = monotonic() + self._timeout_s
        try:
            self._inside.add(me)
            with self._lock:
                if self._closed:
                    raise self._refusal()
                waiting = self._waiting
                # Leads if nobody does and all that waits fits into one batch with this request,
                # which is nearly always alone. Else it waits behind the others, in order.
                if leads := self._leader is None and len(waiting) < self._batch_max:
                    batch: list[Request] = []
                    self._batch = batch
                    self._leader = me
                    if waiting:
                        self._take(batch)
                    batch.append(request)
                else:
                    _join(request, me)
                    waiting.append(request)
                    if self._leader is None:
                        self._pass_on()
            if leads:
                self._lead(request)
            else:
                self._await(request, me)
            self._inside.discard(me)
            if self._waiting and self._leader is None:
                self._rouse()
        except BaseException as error:
            self._recover(me, request, error, is_own=True)
            raise
        if request.error is not None:
            raise request.error
        return request.result

    def submit(self, *requests: Request) -> None:
        """Puts requests into the queue, next to each other, and returns.

        Their wakers are called when they are answered. A signal handler may submit too. It does so
        without the lock, which its own thread may hold; the call that it interrupted then finds a
        leader for them.
        """
        if self._dead is not None:
            raise self._refusal()
        me = threading.get_ident()
        if self._timeout_s is not None:
            for request in requests:
                request.deadline = monotonic() + self._timeout_s
        if me in self._inside:
            if self._closed:
                raise self._refusal()
            self._waiting.extend(requests)
            return
        try:
            self._inside.add(me)
            with self._lock:
                if self._closed:
                    raise self._refusal()
                self._waiting.extend(requests)
                if self._leader is None:
                    self._call_thread()
            self._inside.discard(me)
            if self._waiting and self._leader is None:
                self._rouse()
        except BaseException as error:
            self._recover(me, None, error)
            raise

    def wait(self, request: Request) -> Any:
        """Waits for a submitted request and returns its result; several threads may wait."""
        if self._dead is not None:
            raise self._refusal()
        me = threading.get_ident()
        if me in self._inside and not request.answered:
            raise reentered("waiting for a commit")
        if request.answered:
            return request.outcome()
        try:
            self._inside.add(me)
            with self._lock:
                if leads := not request.answered and self._leader is None:
                    batch: list[Request] = []
                    self._batch = batch
                    self._leader = me
                    self._take(batch)
                elif not request.answered:
                    _join(request, me)
            if leads:
                self._lead(request)
            elif not request.answered:
                self._await(request, me)
            self._inside.discard(me)
            if self._waiting and self._leader is None:
                self._rouse()
        except BaseException as error:
            self._recover(me, request, error)
            raise
        return request.outcome()

    def close(self) -> None:
        """Refuses new requests, and returns when those that were waiting are answered."""
        if self._dead is not None:
            return  # in a forked child: the requests in the queue belong to the parent
        me = threading.get_ident()
        if me in self._inside:
            raise reentered("close()")
        try:
            self._inside.add(me)
            with self._lock:
                self._closed = True
                thread = self._thread
                open_gate(self._work)
            if thread is not None and thread is not threading.current_thread():
                thread.join()
            while gate := self._closing():
                gate.acquire()
        finally:
            self._inside.discard(me)

    def _closing(self) -> Any:
        """Returns a gate to wait at before another look; None if nobody leads and none waits."""
        with self._lock:
            if self._leader is None and not self._waiting:
                return None
            gate = shut_gate()
            self._closers.append(gate)
            if self._leader is None:
                self._call_thread()
            return gate

    def _refusal(self) -> UsageError:
        if self._dead is not None:
            return UsageError(
                "store handle was inherited by a forked child: nothing was written",
                hint="open the store again in the child",
            )
        return UsageError(
            "the store is closed: nothing was written",
            hint="open it again with holdfast.open",
        )

    def _await(self, mine: Request, me: int) -> None:
        """Waits until `mine` is answered; leads if it gets the lead before."""
        gate = mine.gate
        until = NEVER if self._timeout_s is None else monotonic() + self._timeout_s + _GRACE_S
        while not mine.answered:
            if until == NEVER:
                gate.acquire()
            elif not gate.acquire(timeout=max(until - monotonic(), 0)):
                self._give_up(mine, me)
                continue
            with self._lock:
                leads = self._leader is mine
                if leads:
                    batch: list[Request] = []
                    self._batch = batch
                    self._leader = me
                    self._take(batch)
            if leads:
                self._lead(mine)
        open_gate(gate)  # for the next thread that waits for the same request

    def _give_up(self, mine: Request, me: int) -> None:
        """Ends a wait whose time is over, which the leader should have ended before.

        A request that was not sent yet is withdrawn, unless another thread waits for it.
        """
        with self._lock:
            if mine.answered or self._leader is mine:
                return  # it happened just now
            is_own = mine.waker is None and list(mine.waiters) == [me]
            if is_own and any(request is mine for request in self._waiting):
                self._waiting.remove(mine)
                mine.fail(self._too_late())
                return
        raise UnavailableError(
            f"another thread that commits for this one did not end within {self._timeout_s:g} s",
            outcome_known=False,
            hint="look whether the commit is there, or repeat it with its key",
        )

    def _run_in_time(self, batch: list[Request]) -> None:
        """Runs the requests that have time left, with the earliest of their deadlines."""
        assert self._timeout_s is not None, "BUG: there is no deadline"
        least = monotonic() + min(_LEAST_S, self._timeout_s / 10)
        in_time: list[Request] = []
        for request in batch:
            if request.deadline >= least:
                in_time.append(request)
            else:
                request.fail(self._too_late())
        if not in_time:
            return
        try:
            CALL.deadline = min(request.deadline for request in in_time)
            self._run_batch(in_time)
        except HoldfastError as error:
            # Given to the requests here instead of raised: if the leader's own request was too late
            # and has its answer, `_lead` would raise this error, and to the wrong caller.
            if isinstance(error, ReentrantCall) or all(one.answered for one in in_time):
                raise
            self._fail(in_time, error, None)
        finally:
            CALL.deadline = NEVER

    def _too_late(self) -> UnavailableError:
        return UnavailableError(
            f"commits before this one took all of its {self._timeout_s:g} s: nothing was written",
            hint="check the server and the network, then try again",
        )

    def _lead(self, mine: Request | None) -> None:
        """Runs batches until `mine` is answered, then passes the lead on.

        The background thread has no request of its own (None): it leads while anything waits.
        """
        while True:
            batch = self._batch
            try:
                self._is_running = True
                self._run(batch)
            except BaseException as error:
                # An interrupt is raised in its own thread, and so is what a signal handler raised
                # after the answer. The background thread gets neither and must not end, so any
                # error there is the answer of its batch.
                if mine is not None and (mine.answered or not isinstance(error, Exception)):
                    raise
                self._fail(batch, error, mine)
            with self._lock:
                self._is_running = False
                if (
                    batch == [mine]
                    and not (self._waiting or self._closed)
                    and mine is not None
                    and mine.waker is None
                    and mine.gate is None
                ):
                    self._batch = []
                    self._leader = None  # the common case: alone, and no request came meanwhile
                    return
                wakers = self._release(batch)
            _wake(wakers)
            with self._lock:
                is_over = mine.answered if mine is not None else not self._waiting
                if is_over and self._pass_on():
                    return
                self._batch = batch = list[Request]()
                self._take(batch)

    def _recover(
        self, me: int, mine: Request | None, error: BaseException, *, is_own: bool = False
    ) -> None:
        """Cleans up after a thread that leaves by an exception: nobody may wait for it for ever.

        Another interrupt may come right here, so every step can be repeated. With `is_own`, `mine`
        is known to nobody else, and is dropped if it was in hand and not run yet.
        """
        for _ in range(_INTERRUPTS_MAX):
            try:
                self._leave(me, mine, error, is_own)
                self._inside.discard(me)
                return
            except BaseException as again:
                _logger.debug("interrupted again: %s", type(again).__name__)

    def _leave(self, me: int, mine: Request | None, error: BaseException, is_own: bool) -> None:
        if self._leader == me:
            self._let_go(self._batch, error, mine if is_own else None, _owned(mine, me))
        with self._lock:
            if mine is not None and me in mine.waiters:
                mine.waiters = [other for other in mine.waiters if other != me]
            if mine is not None and self._leader is mine and mine.waiters:
                open_gate(mine.gate)  # another thread waits for the same: it leads
            elif (self._leader == me or self._leader is mine) and not self._pass_on():
                self._call_thread()
                self._leader = None
            if self._waiting and self._leader is None:
                self._call_thread()

    def _let_go(
        self, batch: list[Request], error: BaseException, own: Request | None, mine: Request
    ) -> None:
        """Answers the batch that a leader had in hand, or puts it back if it was not run yet.

        No other thread touches that batch. An interrupt belongs to this thread, so it is the answer
        of its own request only. The others get an error that says that their outcome is unknown.
        """
        if self._is_running:
            self._fail(batch, error, mine)
            self._is_running = False
        with self._lock:
            waiting = self._waiting
            while batch and not batch[-1].answered:
                if batch[-1] is not own and (not waiting or waiting[0] is not batch[-1]):
                    waiting.appendleft(batch[-1])
                batch.pop()
            wakers = self._release(batch)
        _wake(wakers)

    def _take(self, batch: list[Request]) -> None:
        """Moves waiting requests into the batch of the caller, which leads.

        Each is added first, then removed: after an interrupt in between it is in both places, never
        in none. `_let_go` recognises such a request.
        """
        waiting = self._waiting
        latest = NEVER
        if waiting and self._timeout_s is not None:
            latest = waiting[0].deadline + self._timeout_s / 2
        while waiting and len(batch) < self._batch_max and waiting[0].deadline <= latest:
            batch.append(waiting[0])
            waiting.popleft()

    def _pass_on(self) -> bool:
        """Hands the lead to the next waiting thread, to the background thread, or to no one.

        The next leader is woken before the lead is passed. If an interrupt comes in between, this
        thread still leads and cleans up. Returns False if the caller has to go on leading, because
        nobody else would come to a queue that is closing.
        """
        waiting = tuple(self._waiting)  # a signal handler may add to it
        for request in waiting:
            if request.waiters:
                open_gate(request.gate)
                self._leader = request
                return True
        if waiting and self._closed:
            return False
        if waiting:
            self._call_thread()
        if self._closed:
            open_gate(self._work)
            for gate in self._closers:
                open_gate(gate)
        self._batch = []
        self._leader = None
        return True

    def _release(self, batch: list[Request]) -> dict[Waker, list[Request]] | None:
        """Opens the gates of a batch; returns the wakers to call, with their requests."""
        wakers: dict[Waker, list[Request]] | None = None
        for request in batch:
            if request.gate is not None:
                open_gate(request.gate)
            if request.waker is not None:
                wakers = {} if wakers is None else wakers
                wakers.setdefault(request.waker, []).append(request)
        return wakers

    def _fail(self, batch: list[Request], error: BaseException, mine: Request | None) -> None:
        """Fails the requests that have no answer yet.

        An error of the store concerns every request in the batch. Anything else (an interrupt, a
        bug) belongs to the thread that it happened in; to the others only an unknown outcome is
        reported.
        """
        is_everybodys = mine is None or (
            isinstance(error, HoldfastError) and not isinstance(error, ReentrantCall)
        )
        for request in batch:
            if request.answered:
                continue
            if is_everybodys or request is mine:
                request.fail(error)
            else:
                request.fail(
                    UnavailableError(
                        "the thread that was committing for several callers was interrupted: "
                        f"{type(error).__name__}",
                        outcome_known=False,
                        hint="read the scope again, or repeat the commit with its key",
                    )
                )

    def _rouse(self) -> None:
        """Finds a leader for requests that a signal handler submitted during a call."""
        with self._lock:
            if self._waiting and self._leader is None:
                self._call_thread()

    def _call_thread(self) -> None:
        """Wakes the background thread; starts it if there is none, or if it never came to run."""
        if self._thread is None or self._thread.ident is None:
            self._start_thread()
        open_gate(self._work)

    def _start_thread(self) -> None:
        self._thread = threading.Thread(
            target=self._lead_in_background, name="holdfast-commit", daemon=True
        )
        start_thread(self._thread)

    def _lead_in_background(self) -> None:
        me = threading.get_ident()
        while True:
            with self._lock:
                leads = self._leader is None and bool(self._waiting)
                if leads:
                    batch: list[Request] = []
                    self._batch = batch
                    self._leader = me
                    self._take(batch)
                elif self._closed and self._leader is None:
                    return
            if leads:
                self._lead(None)
            else:
                self._work.acquire()


_INTERRUPTS_MAX = 100
_LEAST_S = 0.05
"""A commit with less time left is not begun: its outcome would be unknown more often than not."""
_GRACE_S = 0.1
"""How long past its deadline a thread waits for its leader's answer, which says more about the
outcome than giving up does."""
_NOBODY = Request(None)
"""Stands for the own request of a leader that has none in the batch."""


def _owned(request: Request | None, me: int) -> Request:
    """Returns the request if no other thread waits for it, else `_NOBODY`."""
    if request is not None and set(request.waiters) <= {me}:
        return request
    return _NOBODY


def _join(request: Request, me: int) -> None:
    """Notes a thread that will wait at the request's gate, which is made shut if there is none."""
    if request.gate is None:
        request.gate = shut_gate()
    request.waiters = [*request.waiters, me]


def _wake(wakers: dict[Waker, list[Request]] | None) -> None:
    for waker, answered in (wakers or {}).items():
        waker(answered)

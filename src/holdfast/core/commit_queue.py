"""Group commit: one sync for everybody who is waiting.

A request is put into one queue. A caller that finds no leader becomes the leader and runs all that
has gathered; the others wait for their answer, or to be told to lead the next batch. A lone caller
pays two lock operations and no thread hop. Requests that no thread waits for (`submit`,
asyncio) are led by one background thread, which stays leader while they keep coming: one hop per
batch, not per request.

The order of the queue is the order of the batches, so what one thread submitted and then committed
is written in that order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from holdfast.backends.handle import Handle
from holdfast.errors import HoldfastError, UnavailableError, UsageError


class Waker(Protocol):
    """Told once per batch which of its requests are answered (from the leader's thread)."""

    def __call__(self, answered: Sequence[Request], /) -> None: ...


class Request(Struct, eq=False):
    """Something to be committed, and then its answer.

    `failed` is told of an error by the leader itself, before anything else is committed: a waker
    hears of it when the next leader may be at work.
    """

    work: Any
    waker: Waker | None = None
    context: Any = None
    failed: Callable[[BaseException], object] | None = None
    gate: Any = None  # a lock that is shut until the request is answered, or told to lead
    answered: bool = False
    leads: bool = False
    waiters: int = 0  # threads at the gate
    result: Any = None
    error: BaseException | None = None

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
    """Requests on their way into `run`, which must answer each of those it is given."""

    def __init__(self, run: Callable[[list[Request]], None], *, batch_max: int = 1024) -> None:
        super().__init__()
        self._run = run
        self._batch_max = batch_max
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()
        self._led = False
        self._closed = False
        self._work = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def commit(self, request: Request) -> Any:
        """Commits the request, with whatever else has gathered, and returns its result."""
        if self._dead is not None:
            # Asked before the lock is taken: at a fork another thread may have held it, which the
            # child does not have. What the parent had submitted is the parent's.
            raise self._refusal()
        with self._lock:
            if self._closed:
                raise self._refusal()
            batch = None
            if self._led:
                self._waiting.append(request)
                _join(request)
            else:
                self._led = True
                batch = [*self._take(), request] if self._waiting else [request]
        if batch is not None:
            self._lead_from(request, batch)
        else:
            self._await(request)
        if request.error is not None:
            raise request.error
        return request.result

    def submit(self, *requests: Request) -> None:
        """Puts requests into the queue, next to each other, and returns.

        Their wakers are called when they are answered.
        """
        if self._dead is not None:
            raise self._refusal()
        with self._lock:
            if self._closed:
                raise self._refusal()
            self._waiting.extend(requests)
            if not self._led:
                if self._thread is None:
                    self._start_thread()
                self._work.notify()

    def wait(self, request: Request) -> Any:
        """Waits for a submitted request and returns its result, to each thread that asks."""
        if self._dead is not None:
            raise self._refusal()
        with self._lock:
            if request.answered:
                return request.outcome()
            is_led = self._led
            if is_led:
                _join(request)
            else:
                self._led = True
        if is_led:
            self._await(request)
        else:
            self._lead(request)
        return request.outcome()

    def close(self) -> None:
        """Refuses new requests, and returns when those that were waiting are answered."""
        if self._dead is not None:
            return  # in a forked child: what waits is the parent's
        with self._lock:
            self._closed = True
            thread = self._thread
            self._work.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            while self._led:
                self._work.wait()

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

    def _await(self, mine: Request) -> None:
        """Waits until `mine` is answered, or is told to lead."""
        gate = mine.gate
        assert gate is not None, "BUG: nothing would wake this thread"
        try:
            gate.acquire()
        except BaseException:
            self._leave(mine)
            raise
        if not mine.answered:
            self._lead(mine)
        gate.release()  # for the next one that waits for the same

    def _leave(self, mine: Request) -> None:
        """Lets a thread go that was interrupted while it waited; its request stays in the queue.

        It must not be handed the lead any more: nothing would be led, and all would wait for
        ever. If that has happened already, it is led from here once more, and then passed on.
        """
        with self._lock:
            mine.waiters -= 1
            if mine.waiters:
                return
            mine.gate = None
            leads = mine.leads and not mine.answered
        if leads:
            self._lead(mine)

    def _lead(self, mine: Request) -> None:
        """Runs batches until `mine` is answered, then passes leadership on."""
        with self._lock:
            batch = self._take()
        self._lead_from(mine, batch)

    def _lead_from(self, mine: Request, batch: list[Request]) -> None:
        while True:
            try:
                self._run(batch)
            except BaseException as error:
                self._fail(batch, error)
            with self._lock:
                if batch == [mine] and not (self._waiting or self._closed or mine.waker):
                    self._led = False  # the common case: alone, and no request came meanwhile
                    return
                wakers = self._release(batch)
                is_over = mine.answered and self._pass_on()
                batch = [] if is_over else self._take()
            _wake(wakers)
            if is_over:
                return

    def _take(self) -> list[Request]:
        waiting = self._waiting
        if len(waiting) <= self._batch_max:
            batch = list(waiting)
            waiting.clear()
            return batch
        return [waiting.popleft() for _ in range(self._batch_max)]

    def _pass_on(self) -> bool:
        """Hands leadership to the next waiting thread, to the background thread, or to no one."""
        if not self._waiting and not self._closed:
            self._led = False
            return True
        for request in self._waiting:
            if request.gate is not None:
                request.leads = True
                request.gate.release()
                return True
        if self._waiting:
            if self._closed:
                return False
            if self._thread is None:
                self._start_thread()
            self._work.notify()
        self._led = False
        if self._closed:
            self._work.notify_all()
        return True

    def _release(self, batch: list[Request]) -> dict[Waker, list[Request]] | None:
        """Lets the threads of a batch go; returns who else must be told."""
        wakers: dict[Waker, list[Request]] | None = None
        for request in batch:
            if request.gate is not None and not request.leads:
                request.gate.release()
            if request.waker is not None:
                wakers = {} if wakers is None else wakers
                wakers.setdefault(request.waker, []).append(request)
        return wakers

    def _fail(self, batch: list[Request], error: BaseException) -> None:
        """Fails what has no answer yet.

        An error of the store concerns everybody in the batch. Anything else (an interrupt, a bug)
        belongs to the thread it happened in; its neighbours only know that they know nothing.
        """
        for request in batch:
            if request.answered:
                continue
            if isinstance(error, HoldfastError) or request.gate is None or request.leads:
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

    def _start_thread(self) -> None:
        self._thread = threading.Thread(
            target=self._lead_in_background, name="holdfast-commit", daemon=True
        )
        self._thread.start()

    def _lead_in_background(self) -> None:
        while True:
            with self._lock:
                while self._led or not self._waiting:
                    if self._closed and not self._led:
                        return
                    self._work.wait()
                self._led = True
                batch = self._take()
            while batch:
                try:
                    self._run(batch)
                except BaseException as error:
                    self._fail(batch, error)
                with self._lock:
                    wakers = self._release(batch)
                    batch = self._take()
                    if not batch:
                        self._pass_on()
                _wake(wakers)


def _join(request: Request) -> None:
    """Counts a thread that will wait at the request's gate, which is shut until somebody opens."""
    if request.gate is None:
        request.gate = threading.Lock()
        request.gate.acquire()
    request.waiters += 1


def _wake(wakers: dict[Waker, list[Request]] | None) -> None:
    for waker, answered in (wakers or {}).items():
        waker(answered)

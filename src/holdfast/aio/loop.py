"""Between a caller's event loop and the synchronous core."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.backends.deadline import monotonic
from holdfast.backends.protocol import Position
from holdfast.core.commit import CommitResult, ProposedCommit
from holdfast.core.commit_queue import Request
from holdfast.core.kernel import Kernel
from holdfast.core.retry import PAUSE_S, Contest
from holdfast.core.watch import PositionWaiter
from holdfast.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from holdfast.runs.execution import Execution

T = TypeVar("T")
_logger = logging.getLogger("holdfast.aio")

STEP_ITEMS = 200
GLANCE_S = 1.0
WALKS = 32
"""How many walks over graphs a store makes at once; more of them wait."""


class Reading(Generic[T]):
    """An attribute to be awaited: `await scope.state`. Looking at it without awaiting is free."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read

    def __await__(self) -> Generator[Any, None, T]:
        return self._read().__await__()


class Loop:
    """What the async classes share: the caller's loop, our executor, and the way into the queue."""

    def __init__(self, kernel: Kernel, executor: ThreadPoolExecutor) -> None:
        self.kernel = kernel
        self.log = kernel.log
        self.executor = executor
        self.loop = asyncio.get_running_loop()
        self.is_left = False
        self._walks: ThreadPoolExecutor | None = None
        self.begin: Callable[[Execution], None] | None = None  # begins an async run here

    def check(self) -> None:
        """Raises UsageError in another loop than the store's own, before anything is done.

        Futures belong to one loop: what was sent to the queue or to a thread would be done, and the
        caller told that it failed.
        """
        if asyncio.get_running_loop() is not self.loop:
            raise UsageError(
                "this async store belongs to another event loop: nothing was done",
                hint="use holdfast.aio.over(store.sync) in each loop",
            )

    def nearest(self) -> Loop:
        """Returns the loop that a call came from, if it is one of this store's; else this one."""
        home = HOME.get()
        is_ours = home is not None and home.kernel is self.kernel and not home.is_left
        return home if home is not None and is_ours else self

    def _sent(
        self, executor: ThreadPoolExecutor, function: Callable[..., T], *args: Any, **kwargs: Any
    ) -> asyncio.Future[T]:
        """Has a call made in a thread, with the caller's context variables."""
        self.check()
        context = contextvars.copy_context()
        context.run(HOME.set, self)
        try:
            return self.loop.run_in_executor(
                executor, lambda: context.run(function, *args, **kwargs)
            )
        except RuntimeError as error:  # what an executor says that was shut down
            raise UsageError(
                "the store is closed", hint="open it again with holdfast.aio.open"
            ) from error

    async def hop(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs a synchronous call in our executor, with the caller's context variables."""
        return await self._sent(self.executor, function, *args, **kwargs)

    async def hop_shielded(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs a synchronous write in our executor; waits for its outcome, also when cancelled."""
        return await shielded(self._sent(self.executor, function, *args, **kwargs))

    async def hop_given(self, function: Callable[..., T], take_back: Callable[[T], object]) -> T:
        """Runs a synchronous call; a result that a cancelled caller never gets is taken back."""
        running = asyncio.ensure_future(self.hop(function))
        try:
            return await shielded(running)
        except asyncio.CancelledError:
            if not running.cancelled() and running.exception() is None:
                await self.hop_shielded(take_back, running.result())
            raise

    async def walk(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs what may wait for this loop itself; waits for its outcome, also when cancelled.

        It has threads of its own, so that ours stay free for what it waits for.
        """
        if self._walks is None:
            self._walks = ThreadPoolExecutor(WALKS, thread_name_prefix="holdfast-walk")
        return await shielded(self._sent(self._walks, function, *args, **kwargs))

    def close(self) -> None:
        """Lets the threads go."""
        for executor in (self.executor, self._walks):
            if executor is not None:
                executor.shutdown(wait=False)

    async def commit(self, proposed: ProposedCommit, then: Callable[[CommitResult], T]) -> T:
        """Commits, and returns or raises only when the outcome is known.

        `then` makes the answer of it, and is called also if the caller was cancelled meanwhile: a
        turn knows that it has begun.

        One future a write, and no `asyncio.shield`, which would make two more and a callback: with
        many writers that is a tenth of everything. A cancellation takes the future away from the
        caller, not the commit from the queue; another future then waits for the outcome.
        """
        self.check()
        log = self.log
        if log.turns.held or log.dispatcher.is_full:
            await self.await_turn(proposed)
        future: asyncio.Future[Request] = self.loop.create_future()
        request = log.submit(proposed, waker=self.wake, context=future)
        try:
            await future
        except asyncio.CancelledError:
            while request.context is not None:
                request.context = self.loop.create_future()
                with contextlib.suppress(asyncio.CancelledError):
                    await request.context
            if request.error is None:
                then(request.result)
            raise
        return then(request.outcome())

    async def await_turn(self, proposed: ProposedCommit) -> None:
        """Waits until nobody else of this process has a turn on a stream of the commit.

        And until there is room for what subscribers will be told of it, for a while.
        """
        await self._await_turn([write.stream for write in proposed.writes])
        if self.log.dispatcher.is_full:
            await asyncio.to_thread(self.log.dispatcher.wait_for_room)

    async def _await_turn(self, streams: Sequence[str]) -> None:
        turns = self.log.turns
        while (turn := turns.ahead(streams)) is not None:
            over = asyncio.Event()
            tell = partial(self._tell, over)
            turn.when_over(tell)
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), max(turn.until - monotonic(), 0))
            finally:
                turn.forget(tell)

    async def persist(self, retries: int, attempt: Callable[[], Awaitable[T]]) -> T:
        """Makes an attempt, in the caller's task, until it succeeds; see `core.retry`."""
        contest = Contest(self.log, self.kernel.worker, retries)
        try:
            while True:
                while not contest.take_turn():
                    await self._await_turn(contest.streams)
                while contest.wants_leases and not await self.hop_shielded(contest.take_leases):
                    await asyncio.sleep(PAUSE_S)
                try:
                    return await attempt()
                except ConflictError as error:
                    contest.lost(error)
        finally:
            contest.end_turn()
            if contest.holds_leases:
                await self.hop_shielded(contest.end)

    def in_loop(self, function: Callable[..., object]) -> Callable[..., None]:
        """Returns what calls a function in the loop, and waits there for what it awaits.

        For the thread that tells subscribers: it goes on when the loop has done its part, or has
        ended. What is no function is returned as it is, to be refused by name.
        """
        if not callable(function):
            return function

        async def run(*args: Any) -> None:
            answer = function(*args)
            if inspect.isawaitable(answer):
                await answer

        def call(*args: Any) -> None:
            running = run(*args)
            try:
                future = asyncio.run_coroutine_threadsafe(running, self.loop)
                while self.loop.is_running():
                    done, _ = wait([future], timeout=GLANCE_S)
                    if done:
                        return future.result()
            except RuntimeError as error:
                if not self.loop.is_closed():
                    raise  # the subscriber's own
                _logger.debug("a subscriber cannot be told: %s", error)
            running.close()
            raise UsageError("the event loop of this subscriber has ended")

        return call

    def enqueue(self, proposed: ProposedCommit) -> asyncio.Task[CommitResult]:
        """Puts a commit into the queue, now and in order, and returns what waits for it."""
        self.check()
        future: asyncio.Future[Request] = self.loop.create_future()
        request = self.log.submit(proposed, waker=self.wake, context=future)

        async def outcome() -> CommitResult:
            await future
            return request.outcome()

        return self.loop.create_task(outcome())

    def wake(self, answered: Sequence[Request]) -> None:
        """Called by the committing thread, once per batch."""
        try:
            self.loop.call_soon_threadsafe(_settle, answered)
        except RuntimeError as error:
            # The loop was closed meanwhile: nobody is left to tell, and the commit is durable.
            _logger.debug("%d commits were answered to nobody: %s", len(answered), error)

    async def steps(self, begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        """Yields what a finite synchronous iterator yields, one hop for many items."""
        items: Iterator[T] | None = None

        def chunk() -> list[T]:
            nonlocal items
            items = begin() if items is None else items
            return list(islice(items, STEP_ITEMS))

        while found := await self.hop(chunk):
            for item in found:
                yield item

    async def wait_after(self, after: Position, timeout_s: float | None) -> Position:
        """Waits until something is committed after `after`, or nothing came for `timeout_s`.

        Returns the newest position. However many wait, in threads and in loops, one thread of the
        store asks for them all: it may be a question to a server, which must not block the loop.
        """
        deadline = None if timeout_s is None else self.loop.time() + timeout_s
        newest = await self.hop(self.log.position)
        if newest > after:
            return newest
        told = asyncio.Event()
        watch = self.log.watch
        waiter = PositionWaiter(after, newest, lambda: self._tell(told))
        try:
            watch.add(waiter)
            left_s = None if deadline is None else max(deadline - self.loop.time(), 0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), left_s)
        finally:
            watch.remove(waiter)
        return waiter.outcome()

    def _tell(self, told: asyncio.Event) -> None:
        """Called by the thread that waits for the store."""
        try:
            self.loop.call_soon_threadsafe(told.set)
        except RuntimeError as error:
            _logger.debug("a position was told to nobody: %s", error)  # the loop was closed


HOME: contextvars.ContextVar[Loop | None] = contextvars.ContextVar("holdfast_loop", default=None)
"""The loop that a call in a thread was made from."""


def _settle(answered: Sequence[Request]) -> None:
    for request in answered:
        future, request.context = request.context, None
        if future is not None and not future.done():  # None: told twice, after an interrupt
            future.set_result(request)


async def shielded(future: asyncio.Future[T]) -> T:
    """Returns or raises the future's outcome; a cancellation is passed on only after that."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if future.cancelled():
                raise
            cancelled = error
        except BaseException:
            if not future.done():
                raise  # an interrupt of this thread, not the future's own error
            break  # `result` raises it below
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # retrieved: the caller is told of the cancellation instead
        raise cancelled
    return future.result()

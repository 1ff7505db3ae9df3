"""Connects a caller's event loop with the synchronous core."""

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
"""How many walks over graphs a store makes at once; further ones wait."""


class Reading(Generic[T]):
    """An attribute to await: `await scope.state`. Without `await` nothing is read."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read

    def __await__(self) -> Generator[Any, None, T]:
        return self._read().__await__()


class Loop:
    """What the async classes share: the event loop, the executor, and access to the queue."""

    def __init__(self, kernel: Kernel, executor: ThreadPoolExecutor) -> None:
        self.kernel = kernel
        self.log = kernel.log
        self.executor = executor
        self.loop = asyncio.get_running_loop()
        self.is_left = False
        self._walks: ThreadPoolExecutor | None = None
        self.begin: Callable[[Execution], None] | None = None  # begins an async run here

    def check(self) -> None:
        """Raises UsageError in any loop but the store's own, before anything is done.

        Futures belong to one loop. Without this check the write would be sent and made, while the
        caller gets an error that looks as if it had failed.
        """
        if asyncio.get_running_loop() is not self.loop:
            raise UsageError(
                "this async store belongs to another event loop: nothing was done",
                hint="use holdfast.aio.over(store.sync) in each loop",
            )

    def nearest(self) -> Loop:
        """Returns the loop that the present call came from, if it is of this store, else this."""
        home = HOME.get()
        is_ours = home is not None and home.kernel is self.kernel and not home.is_left
        return home if home is not None and is_ours else self

    def _sent(
        self, executor: ThreadPoolExecutor, function: Callable[..., T], *args: Any, **kwargs: Any
    ) -> asyncio.Future[T]:
        """Starts a call in a thread, with the caller's context variables; returns its future."""
        self.check()
        context = contextvars.copy_context()
        context.run(HOME.set, self)
        try:
            return self.loop.run_in_executor(
                executor, lambda: context.run(function, *args, **kwargs)
            )
        except RuntimeError as error:  # the executor was shut down
            raise UsageError(
                "the store is closed", hint="open it again with holdfast.aio.open"
            ) from error

    async def hop(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs a synchronous call in the executor, with the caller's context variables."""
        return await self._sent(self.executor, function, *args, **kwargs)

    async def hop_shielded(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs a synchronous write in the executor; waits for its outcome even if cancelled."""
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
        """Runs a call that may itself wait for this loop; waits for its outcome even if cancelled.

        Such calls have separate threads. In the executor they could occupy every thread while they
        wait for work that needs one.
        """
        if self._walks is None:
            self._walks = ThreadPoolExecutor(WALKS, thread_name_prefix="holdfast-walk")
        return await shielded(self._sent(self._walks, function, *args, **kwargs))

    def close(self) -> None:
        """Shuts the executors down without waiting for their threads."""
        for executor in (self.executor, self._walks):
            if executor is not None:
                executor.shutdown(wait=False)

    async def commit(self, proposed: ProposedCommit, then: Callable[[CommitResult], T]) -> T:
        """Commits, and returns or raises only when the outcome is known.

        `then` makes the answer from the result. It is called even if the caller was cancelled
        meanwhile, so that objects which it updates know of the commit: a turn knows it has begun.

        There is one future for each write, and no `asyncio.shield`, which would add two futures and
        a callback: with many writers, a tenth of the whole cost. A cancellation ends that future,
        but does not take the commit from the queue; a new future then waits for the outcome.
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
        """Waits until no other caller in this process has a turn on a stream of the commit.

        If the queue of changes for subscribers is full, it also waits for room, for a limited time.
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
        """Repeats an attempt, in the caller's task, until it succeeds; see `core.retry`."""
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
        """Wraps a subscriber so that another thread can call it in the loop, and wait for it.

        The dispatcher's thread continues when the loop has run the function and awaited what it
        returned, or when the loop has ended. Anything that is not callable is returned unchanged,
        for the check of `subscribe` to refuse.
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
                    raise  # the subscriber itself raised it
                _logger.debug("a subscriber cannot be told: %s", error)
            running.close()
            raise UsageError("the event loop of this subscriber has ended")

        return call

    def enqueue(self, proposed: ProposedCommit) -> asyncio.Task[CommitResult]:
        """Puts a commit into the queue at once, in order, and returns a task for its outcome."""
        self.check()
        future: asyncio.Future[Request] = self.loop.create_future()
        request = self.log.submit(proposed, waker=self.wake, context=future)

        async def outcome() -> CommitResult:
            await future
            return request.outcome()

        return self.loop.create_task(outcome())

    def wake(self, answered: Sequence[Request]) -> None:
        """Wakes the callers of a batch; the committing thread calls this once per batch."""
        try:
            self.loop.call_soon_threadsafe(_settle, answered)
        except RuntimeError as error:
            # The loop was closed meanwhile: no caller waits any more, and the commits stay made.
            _logger.debug("%d commits were answered to nobody: %s", len(answered), error)

    async def steps(self, begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        """Yields the items of a finite synchronous iterator, fetched many at a time in a thread."""
        items: Iterator[T] | None = None

        def chunk() -> list[T]:
            nonlocal items
            items = begin() if items is None else items
            return list(islice(items, STEP_ITEMS))

        while found := await self.hop(chunk):
            for item in found:
                yield item

    async def wait_after(self, after: Position, timeout_s: float | None) -> Position:
        """Waits for a commit after `after`, at most `timeout_s`, and returns the newest position.

        One thread of the store asks for the position on behalf of all who wait, in threads and in
        loops. It may be a query to a server, which must not block the loop.
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
        """Sets an event of the loop, from another thread."""
        try:
            self.loop.call_soon_threadsafe(told.set)
        except RuntimeError as error:
            _logger.debug("a position was told to nobody: %s", error)  # the loop was closed


HOME: contextvars.ContextVar[Loop | None] = contextvars.ContextVar("holdfast_loop", default=None)
"""The loop from which the present call was sent to a thread, if any."""


def _settle(answered: Sequence[Request]) -> None:
    for request in answered:
        future, request.context = request.context, None
        if future is not None and not future.done():  # None: a second wake, after an interrupt
            future.set_result(request)


async def shielded(future: asyncio.Future[T]) -> T:
    """Returns or raises a future's outcome; a cancellation is raised only once that is known."""
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
            break  # `future.result()` raises it below
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # marks it as retrieved: the cancellation is raised instead
        raise cancelled
    return future.result()

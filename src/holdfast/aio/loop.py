"""Between a caller's event loop and the synchronous core."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Generic, TypeVar

from holdfast.backends.protocol import Position
from holdfast.batch import Request
from holdfast.store import Store
from holdfast.wanted import Wanted, Written

T = TypeVar("T")

STEP_ITEMS = 200
POLL_S_MIN = 0.001
POLL_S_MAX = 0.025


class Reading(Generic[T]):
    """An attribute to be awaited: `await scope.state`. Looking at it without awaiting is free."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read

    def __await__(self) -> Generator[Any, None, T]:
        return self._read().__await__()


class Loop:
    """What the async classes share: the caller's loop, our executor, and the way into the queue."""

    def __init__(self, store: Store, executor: ThreadPoolExecutor) -> None:
        self.store = store
        self.executor = executor
        self.loop = asyncio.get_running_loop()

    async def hop(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs a synchronous call in our executor, with the caller's context variables."""
        context = contextvars.copy_context()
        return await self.loop.run_in_executor(
            self.executor, lambda: context.run(function, *args, **kwargs)
        )

    async def hop_shielded(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs a synchronous write in our executor and waits for its outcome, come what may."""
        return await shielded(asyncio.ensure_future(self.hop(function, *args, **kwargs)))

    def enqueue(self, wanted: Wanted) -> asyncio.Future[Written]:
        """Puts a commit into the queue, now and in order, and returns its future."""
        future: asyncio.Future[Written] = self.loop.create_future()
        self.store.log.submit(wanted, waker=self.wake, context=future)
        return future

    def wake(self, answered: Sequence[Request]) -> None:
        """Called by the committing thread, once per batch."""
        self.loop.call_soon_threadsafe(_settle, answered)

    async def steps(self, items: Iterator[T]) -> AsyncIterator[T]:
        """Yields what a finite synchronous iterator yields, one hop for many items."""
        while chunk := await self.hop(lambda: list(islice(items, STEP_ITEMS))):
            for item in chunk:
                yield item

    async def news(self, after: Position, timeout_s: float | None) -> bool:
        """Waits, without a thread, until something is committed behind `after`.

        False when nothing was for `timeout_s`. The look is cheap on the backends that live in
        this host: a word of shared memory, or one pragma.
        """
        deadline = None if timeout_s is None else self.loop.time() + timeout_s
        pause_s = POLL_S_MIN
        while self.store.log.position() <= after:
            if deadline is not None and self.loop.time() >= deadline:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, POLL_S_MAX)
        return True


def _settle(answered: Sequence[Request]) -> None:
    for request in answered:
        future: asyncio.Future[Written] = request.context
        if future.done():
            continue
        if request.error is not None:
            future.set_exception(request.error)
        else:
            future.set_result(request.result)


async def shielded(future: asyncio.Future[T]) -> T:
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if future.cancelled():
                raise
            cancelled = error
        except BaseException:
            break
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # retrieved: the caller is told of the cancellation instead
        raise cancelled
    return future.result()

"""The record for asyncio. Each method is the synchronous one, called with one hop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from holdfast.aio.loop import Loop
from holdfast.record.decision import Decision
from holdfast.record.facts import Facts
from holdfast.record.memory import Memory, Shelf
from holdfast.record.open_decision import OpenDecision
from holdfast.record.tasks import Tasks

P = ParamSpec("P")
T = TypeVar("T")


def mirror(
    function: Callable[Concatenate[Any, P], T], *, of: str = "sync"
) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """Returns a method for asyncio that calls the synchronous one of `self.<of>`.

    It has the same name, parameters and documentation, so the two cannot drift apart. The caller
    waits until the outcome is known, also when it is cancelled meanwhile.
    """
    name = function.__name__

    @wraps(function)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        method = getattr(getattr(self, of), name)
        return await self._loop.hop_shielded(method, *args, **kwargs)

    return call


def deciding(
    function: Callable[Concatenate[Any, P], OpenDecision],
) -> Callable[Concatenate[Any, P], AsyncDeciding]:
    """Returns the method that decides for asyncio: to be awaited, or to be entered."""

    @wraps(function)
    def decide(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncDeciding:
        return AsyncDeciding(self._loop, lambda: function(self.sync, *args, **kwargs))

    return decide


class AsyncOpenDecision:
    """A decision that this worker answers for; see `OpenDecision`."""

    def __init__(self, loop: Loop, decision: OpenDecision) -> None:
        self._loop = loop
        self.sync = decision
        self.id = decision.id
        self.key = decision.key

    @property
    def stored(self) -> Decision:
        return self.sync.stored

    outcome = mirror(OpenDecision.outcome)
    prioritise = mirror(OpenDecision.prioritise)


class AsyncDeciding:
    """What `scope.decide(…)` returns: `await` it for the handle, or enter its block."""

    def __init__(self, loop: Loop, decide: Callable[[], OpenDecision]) -> None:
        self._loop = loop
        self._decide = decide

    def __await__(self) -> Generator[Any, None, AsyncOpenDecision]:
        return self._open().__await__()

    async def _open(self) -> AsyncOpenDecision:
        return AsyncOpenDecision(self._loop, await self._loop.hop_shielded(self._decide))

    async def __aenter__(self) -> AsyncOpenDecision:
        self._opened = await self._open()
        # In the caller's own context, not in the one of the hop: what runs in the block is covered.
        self._opened.sync.enter()
        return self._opened

    async def __aexit__(
        self, kind: object, error: BaseException | None, _: object
    ) -> Literal[False]:
        self._opened.sync.leave()
        await self._loop.hop_shielded(self._opened.sync.settle, error)
        return False


class AsyncFacts:
    """The facts of one scope; see `Facts` for what each method does."""

    def __init__(self, loop: Loop, facts: Facts) -> None:
        self._loop = loop
        self.sync = facts

    state = mirror(Facts.state)
    get = mirror(Facts.get)
    list = mirror(Facts.list)
    check = mirror(Facts.check)
    withdraw = mirror(Facts.withdraw)


class AsyncTasks:
    """The tasks of one scope; see `Tasks` for what each method does."""

    def __init__(self, loop: Loop, tasks: Tasks) -> None:
        self._loop = loop
        self.sync = tasks

    get = mirror(Tasks.get)
    list = mirror(Tasks.list)
    add = mirror(Tasks.add)
    update = mirror(Tasks.update)
    claim = mirror(Tasks.claim)
    heartbeat = mirror(Tasks.heartbeat)
    release = mirror(Tasks.release)
    block = mirror(Tasks.block)
    unblock = mirror(Tasks.unblock)
    close = mirror(Tasks.close)
    reopen = mirror(Tasks.reopen)


class AsyncShelf:
    """The things of one kind at hand; see `Shelf` for what each method does."""

    def __init__(self, loop: Loop, shelf: Shelf) -> None:
        self._loop = loop
        self.sync = shelf

    put = mirror(Shelf.put)
    add = mirror(Shelf.add)
    get = mirror(Shelf.get)
    list = mirror(Shelf.list)
    drop = mirror(Shelf.drop)


class AsyncMemory:
    """The working memory of one scope; see `Memory`."""

    def __init__(self, loop: Loop, memory: Memory) -> None:
        self._loop = loop
        self.sync = memory

    @property
    def files(self) -> AsyncShelf:
        return AsyncShelf(self._loop, self.sync.files)

    @property
    def notes(self) -> AsyncShelf:
        return AsyncShelf(self._loop, self.sync.notes)

    @property
    def results(self) -> AsyncShelf:
        return AsyncShelf(self._loop, self.sync.results)

    @property
    def errors(self) -> AsyncShelf:
        return AsyncShelf(self._loop, self.sync.errors)

    @property
    def settings(self) -> AsyncShelf:
        return AsyncShelf(self._loop, self.sync.settings)

    end = mirror(Memory.end)

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.end("turn")

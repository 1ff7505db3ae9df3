"""The record for asyncio: each method calls the synchronous one in a thread."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial, wraps
from operator import attrgetter
from typing import Any, Concatenate, Literal, NoReturn, ParamSpec

from holdfast.aio.loop import Loop, Reading
from holdfast.aio.mirror import Mirror, like, mirror, plain
from holdfast.core.arguments import Duration
from holdfast.core.event import Moment
from holdfast.decisions import DecisionsRoom
from holdfast.facts import FactsRoom
from holdfast.record.decisions import Decision, OpenDecision, PolicyMode
from holdfast.record.facts import Facts
from holdfast.record.memory import Memory, MemorySection
from holdfast.record.message_events import Message
from holdfast.record.messages import History, Messages
from holdfast.record.sessions import OpenTurn
from holdfast.record.task_events import Task
from holdfast.record.tasks import LOOK_S, Tasks
from holdfast.sessions import SessionsRoom
from holdfast.tasks import TasksRoom

P = ParamSpec("P")


def deciding(
    function: Callable[Concatenate[Any, P], OpenDecision],
    *,
    of: Callable[[Any], Any] = attrgetter("sync"),
) -> Callable[Concatenate[Any, P], AsyncDeciding]:
    """Returns a `decide` method for asyncio, whose result is awaited or entered as a block.

    `of` returns the object that decides: the scope, or its recorder in a joint commit.
    """

    @wraps(function)
    def decide(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncDeciding:
        return AsyncDeciding(self._loop, lambda: function(of(self), *args, **kwargs))

    return decide


class AsyncOpenDecision(Mirror[OpenDecision]):
    """A decision that this worker answers for; see `OpenDecision`."""

    def __init__(self, loop: Loop, decision: OpenDecision) -> None:
        super().__init__(loop, decision)
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
        return AsyncOpenDecision(self._loop, await self._loop.hop_given(self._decide, _never_begun))

    async def __aenter__(self) -> AsyncOpenDecision:
        self._opened = await self._open()
        # Entered here and not in the thread, whose context variables are a copy: so the decision
        # covers what the caller does in the block.
        self._opened.sync._enter()
        return self._opened

    async def __aexit__(
        self, kind: object, error: BaseException | None, _: object
    ) -> Literal[False]:
        self._opened.sync._leave()
        await self._loop.hop_shielded(self._opened.sync._settle, error)
        return False


def _never_begun(decision: OpenDecision) -> None:
    """Records why a decision is open whose caller was cancelled before it had it."""
    decision._settle(CancelledError("cancelled before the act began"))


class AsyncFacts(Mirror[Facts]):
    """The facts of one scope; see `Facts` for what each method does."""

    state = mirror(Facts.state)
    get = mirror(Facts.get)
    list = mirror(Facts.list)
    check = mirror(Facts.check)
    withdraw = mirror(Facts.withdraw)


class AsyncTasks(Mirror[Tasks]):
    """The tasks of one scope; see `Tasks` for what each method does."""

    get = mirror(Tasks.get)
    list = mirror(Tasks.list)
    ready = mirror(Tasks.ready)
    add = mirror(Tasks.add)
    update = mirror(Tasks.update)

    @like(Tasks.claim)
    async def claim(
        self, id: Any = None, *, wait_s: Duration | None = None, **options: Any
    ) -> Task | None:
        if wait_s is None:
            return await self._loop.hop_shielded(self.sync.claim, id, **options)
        ends = self._loop.loop.time() + self.sync._check_wait(id, wait_s)
        while True:
            # Waiting occupies no thread, so many waiting callers cannot block those who write.
            seen = await self._loop.hop(self.sync._log.position)
            found = await self._loop.hop_shielded(self.sync.claim, **options)
            left_s = ends - self._loop.loop.time()
            if found is not None or left_s <= 0:
                return found
            await self._loop.wait_after(seen, min(left_s, LOOK_S))

    heartbeat = mirror(Tasks.heartbeat)
    release = mirror(Tasks.release)
    block = mirror(Tasks.block)
    unblock = mirror(Tasks.unblock)
    close = mirror(Tasks.close)
    reopen = mirror(Tasks.reopen)
    amend = mirror(Tasks.amend)


class AsyncMemorySection(Mirror[MemorySection]):
    """One section of the working memory; see `MemorySection` for what each method does."""

    put = mirror(MemorySection.put)
    add = mirror(MemorySection.add)
    get = mirror(MemorySection.get)
    list = mirror(MemorySection.list)
    drop = mirror(MemorySection.drop)


class AsyncMemory(Mirror[Memory]):
    """The working memory of one scope; see `Memory`."""

    @property
    def files(self) -> AsyncMemorySection:
        return AsyncMemorySection(self._loop, self.sync.files)

    @property
    def notes(self) -> AsyncMemorySection:
        return AsyncMemorySection(self._loop, self.sync.notes)

    @property
    def results(self) -> AsyncMemorySection:
        return AsyncMemorySection(self._loop, self.sync.results)

    @property
    def errors(self) -> AsyncMemorySection:
        return AsyncMemorySection(self._loop, self.sync.errors)

    @property
    def settings(self) -> AsyncMemorySection:
        return AsyncMemorySection(self._loop, self.sync.settings)

    end = mirror(Memory.end)

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.end("turn")


# --- messages -------------------------------------------------------------------------------------
#
# Messages for asyncio. Adding goes through the group-commit queue, without a thread of its own.


class AsyncHistory(Mirror[History]):
    """Messages to read; see `History`. Instead of `len` there is an awaited `length`."""

    def __init__(self, loop: Loop, history: History) -> None:
        super().__init__(loop, history)
        self.name = history.name

    @property
    def revision(self) -> Reading[int]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.revision))

    async def __aiter__(self) -> AsyncIterator[Message]:
        async for message in self._loop.steps(partial(iter, self.sync)):
            yield message

    async def at(self, moment: Moment) -> AsyncHistory:
        return AsyncHistory(self._loop, await self._loop.hop(self.sync.at, moment))

    def original(self) -> AsyncHistory:
        return AsyncHistory(self._loop, self.sync.original())

    length = mirror(History.length)
    last = mirror(History.last)
    page = mirror(History.page)
    cursor = mirror(History.cursor)
    get = mirror(History.get)
    items = mirror(History.items)
    for_request = mirror(History.for_request)
    render = mirror(History.render)
    select = mirror(History.select)
    turns = mirror(History.turns)
    summaries = mirror(History.summaries)
    file_changes = mirror(History.file_changes)


_SETTINGS = "turn", "state", "key", "expected", "subject"


class _Large(Exception):
    """A value is so large that a blob must be written first, which needs a thread."""


def _refuse(_raw: bytes) -> NoReturn:
    raise _Large


class AsyncMessages(AsyncHistory):
    """The messages of one conversation; see `Messages`."""

    sync: Messages

    def __init__(self, loop: Loop, messages: Messages) -> None:
        super().__init__(loop, messages)
        self.sync = messages

    @like(Messages.add)
    async def add(
        self, role: str | None = None, content: str | list[Any] | None = None, **fields: Any
    ) -> Message:
        options = {name: fields.pop(name, None) for name in _SETTINGS}
        item = {"role": role, "content": content, **fields}
        # These need a thread: the key of a new subject may have to be made, and the log of a joint
        # commit has no queue.
        quick = all(options[name] is None for name in ("turn", "state", "subject"))
        quick = quick and fields.get("foreign_id") is None and not self.sync._log.is_gathering
        made = await self._add([item], options) if quick else None
        if made is not None:
            return made[0]
        options["turn"] = plain(options["turn"])
        return await self._loop.hop_shielded(self.sync.add, **item, **options)

    add_many = mirror(Messages.add_many)

    async def _add(
        self, items: list[dict[str, Any]], options: dict[str, Any]
    ) -> list[Message] | None:
        """Adds messages through the queue; returns None if a blob must be written first."""
        key, expected = options["key"], options["expected"]
        try:
            prepared = self.sync._prepare(items, key=key, expected=expected, spill=_refuse)
        except _Large:
            return None
        return await self._loop.commit(prepared.commit, partial(self.sync._committed, prepared))

    def turn(self) -> AsyncTurn:
        return AsyncTurn(self._loop, self.sync.turn())

    import_many = mirror(Messages.import_many)
    is_there = mirror(Messages.is_there)
    edit = mirror(Messages.edit)
    delete = mirror(Messages.delete)
    pop = mirror(Messages.pop)
    clear = mirror(Messages.clear)
    rewind = mirror(Messages.rewind)
    compact = mirror(Messages.compact)
    summarise = mirror(Messages.summarise)

    merge = mirror(Messages.merge)


class AsyncTurn(Mirror[OpenTurn]):
    """The block of `async with chat.messages.turn() as turn:`; see `OpenTurn`."""

    def __init__(self, loop: Loop, turn: OpenTurn) -> None:
        super().__init__(loop, turn)
        self.id = turn.id
        self.name = turn.name

    add = mirror(OpenTurn.add)
    add_many = mirror(OpenTurn.add_many)
    end = mirror(OpenTurn.end)

    async def __aenter__(self) -> AsyncTurn:
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, _: object
    ) -> Literal[False]:
        await self._loop.hop_shielded(self.sync.__exit__, kind, error, None)
        return False


# --- rooms ----------------------------------------------------------------------------------------
#
# What is recorded in any scope.


class AsyncTasksRoom(Mirror[TasksRoom]):
    """The tasks of all scopes; see `TasksRoom`."""

    list = mirror(TasksRoom.list)


class AsyncFactsRoom(Mirror[FactsRoom]):
    """The facts of all scopes; see `FactsRoom`."""

    list = mirror(FactsRoom.list)
    stale = mirror(FactsRoom.stale)


class AsyncSessionsRoom(Mirror[SessionsRoom]):
    """The sessions that have not ended; see `SessionsRoom`."""

    list = mirror(SessionsRoom.list)


class AsyncPolicy:
    """What `hf.decisions.policy(mode)` returns: await it, or enter it as a block."""

    def __init__(self, loop: Loop, decisions: DecisionsRoom, mode: PolicyMode) -> None:
        self._loop = loop
        self._decisions = decisions
        self._mode: PolicyMode = mode

    async def _set(self) -> AsyncPolicy:
        self._policy = await self._loop.hop_shielded(self._decisions.policy, self._mode)
        return self

    def __await__(self) -> Generator[Any, None, AsyncPolicy]:
        return self._set().__await__()

    async def __aenter__(self) -> AsyncPolicy:
        return await self._set()

    async def __aexit__(self, *_: object) -> None:
        await self._loop.hop_shielded(self._policy.__exit__)


class AsyncDecisionsRoom(Mirror[DecisionsRoom]):
    """The decisions of all scopes, and the policy about effects; see `DecisionsRoom`."""

    list = mirror(DecisionsRoom.list)
    get = mirror(DecisionsRoom.get)
    close = mirror(DecisionsRoom.close)
    prioritise = mirror(DecisionsRoom.prioritise)
    catches = mirror(DecisionsRoom.catches)

    def policy(self, mode: PolicyMode) -> AsyncPolicy:
        return AsyncPolicy(self._loop, self.sync, mode)

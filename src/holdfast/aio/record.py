"""The record for asyncio. Each method is the synchronous one, called with one hop."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager
from functools import partial, wraps
from operator import attrgetter, methodcaller
from typing import Any, Concatenate, Literal, NoReturn, ParamSpec, TypeVar, cast

from holdfast.aio.loop import Loop, Reading, shielded
from holdfast.backends.protocol import Position
from holdfast.core.arguments import Duration, check_timeout
from holdfast.core.consumers import GLANCE_S, STANDBY_S, Delivery, Group, Start
from holdfast.core.event import Moment
from holdfast.core.own_event import OwnEvent
from holdfast.joint_commit import JointCommit, RecordingScope
from holdfast.record.decisions import Decision, OpenDecision
from holdfast.record.facts import Facts
from holdfast.record.memory import Memory, MemorySection
from holdfast.record.message_events import Message
from holdfast.record.messages import History, Messages
from holdfast.record.sessions import OpenTurn
from holdfast.record.task_events import Task
from holdfast.record.tasks import LOOK_S, Tasks
from holdfast.scope import Scope

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


def _like(
    function: Callable[Concatenate[Any, P], T],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[Any, P], Awaitable[T]]]:
    """Gives a method the name, parameters and documentation of the synchronous one."""

    def named(method: Callable[..., Any]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
        return cast("Any", wraps(function)(method))

    return named


def deciding(
    function: Callable[Concatenate[Any, P], OpenDecision],
    *,
    of: Callable[[Any], Any] = attrgetter("sync"),
) -> Callable[Concatenate[Any, P], AsyncDeciding]:
    """Returns the method that decides for asyncio: to be awaited, or to be entered.

    `of` says where: in the scope, or in the joint commit.
    """

    @wraps(function)
    def decide(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncDeciding:
        return AsyncDeciding(self._loop, lambda: function(of(self), *args, **kwargs))

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
        self._opened.sync._enter()
        return self._opened

    async def __aexit__(
        self, kind: object, error: BaseException | None, _: object
    ) -> Literal[False]:
        self._opened.sync._leave()
        await self._loop.hop_shielded(self._opened.sync._settle, error)
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
    ready = mirror(Tasks.ready)
    add = mirror(Tasks.add)
    update = mirror(Tasks.update)

    @_like(Tasks.claim)
    async def claim(
        self, id: Any = None, *, wait_s: Duration | None = None, **options: Any
    ) -> Task | None:
        if wait_s is None:
            return await self._loop.hop_shielded(self.sync.claim, id, **options)
        ends = self._loop.loop.time() + self.sync._check_wait(id, wait_s)
        while True:
            # Waiting takes no thread: however many wait, there are enough for those who write.
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


class AsyncMemorySection:
    """The things of one kind at hand; see `MemorySection` for what each method does."""

    def __init__(self, loop: Loop, section: MemorySection) -> None:
        self._loop = loop
        self.sync = section

    put = mirror(MemorySection.put)
    add = mirror(MemorySection.add)
    get = mirror(MemorySection.get)
    list = mirror(MemorySection.list)
    drop = mirror(MemorySection.drop)


class AsyncMemory:
    """The working memory of one scope; see `Memory`."""

    def __init__(self, loop: Loop, memory: Memory) -> None:
        self._loop = loop
        self.sync = memory

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


class AsyncHistory:
    """Messages to read; see `History`. In place of `len` there is `length`."""

    def __init__(self, loop: Loop, history: History) -> None:
        self._loop = loop
        self.sync = history
        self.name = history.name

    def __repr__(self) -> str:
        return f"<AsyncMessages of {self.name}>"

    @property
    def revision(self) -> Reading[int]:
        async def read() -> int:
            return await self._loop.hop(lambda: self.sync.revision)

        return Reading(read)

    async def __aiter__(self) -> AsyncIterator[Message]:
        async for message in self._loop.steps(iter(self.sync)):
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


class _Large(Exception):
    """Something is so large that it becomes a blob, which takes more than the queue."""


def _refuse(_raw: bytes) -> NoReturn:
    raise _Large


class AsyncMessages(AsyncHistory):
    """The messages of one conversation; see `Messages`."""

    sync: Messages

    def __init__(self, loop: Loop, messages: Messages) -> None:
        super().__init__(loop, messages)
        self.sync = messages

    @_like(Messages.add)
    async def add(
        self, role: str | None = None, content: str | list[Any] | None = None, **fields: Any
    ) -> Message:
        turn: AsyncTurn | None = fields.pop("turn", None)
        options = {name: fields.pop(name, None) for name in ("state", "key", "expected", "subject")}
        item = {"role": role, "content": content, **fields}
        quick = turn is None and options["state"] is None and fields.get("foreign_id") is None
        quick = quick and options["subject"] is None  # whose key may have to be made
        quick = quick and not self.sync._log.is_gathering  # which has no queue
        made = await self._add([item], options) if quick else None
        if made is not None:
            return made[0]
        options["turn"] = None if turn is None else turn.sync
        return await self._loop.hop_shielded(self.sync.add, **item, **options)

    @_like(Messages.add_many)
    async def add_many(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        turn: AsyncTurn | None = None,
        state: Mapping[str, Any] | None = None,
        subject: str | None = None,
        key: str | None = None,
        expected: int | None = None,
    ) -> list[Message]:
        options: dict[str, Any] = {"state": state, "subject": subject, "key": key}
        options["expected"] = expected
        options["turn"] = None if turn is None else turn.sync
        return await self._loop.hop_shielded(self.sync.add_many, items, **options)

    async def _add(
        self, items: list[dict[str, Any]], options: dict[str, Any]
    ) -> list[Message] | None:
        """Adds by way of the queue; None if that would have to write a blob first."""
        key, expected = options["key"], options["expected"]
        try:
            prepared = self.sync._prepare(items, key=key, expected=expected, spill=_refuse)
        except _Large:
            return None
        return await self._loop.commit(prepared.commit, partial(self.sync._committed, prepared))

    def turn(self) -> AsyncTurn:
        return AsyncTurn(self, self.sync.turn())

    import_many = mirror(Messages.import_many)
    is_there = mirror(Messages.is_there)
    edit = mirror(Messages.edit)
    delete = mirror(Messages.delete)
    pop = mirror(Messages.pop)
    clear = mirror(Messages.clear)
    rewind = mirror(Messages.rewind)
    compact = mirror(Messages.compact)
    summarise = mirror(Messages.summarise)

    @_like(Messages.merge)
    async def merge(self, other: Any) -> list[Message]:
        return await self._loop.hop_shielded(self.sync.merge, getattr(other, "sync", other))


class AsyncJointScope(RecordingScope):
    """One scope inside a joint commit; see `JointScope`. Its recorders are awaited."""

    def __init__(self, loop: Loop, joint: JointCommit, scope: Scope) -> None:
        super().__init__(joint, scope)
        self._loop = loop

    @property
    def messages(self) -> AsyncMessages:
        return AsyncMessages(self._loop, self._recorder().messages)

    @property
    def tasks(self) -> AsyncTasks:
        return AsyncTasks(self._loop, self._recorder().tasks)

    @property
    def facts(self) -> AsyncFacts:
        return AsyncFacts(self._loop, self._recorder().facts)

    decide = deciding(Scope.decide, of=methodcaller("_recorder"))

    @_like(Scope.record)
    async def record(self, *args: Any, **options: Any) -> OwnEvent:
        return await self._loop.hop_shielded(self._recorder().record, *args, **options)

    def turn(self) -> AsyncTurn:
        return AsyncTurn(self.messages, self._let_go_on(self._recorder().turn()))

    async def end_turn(self, turn: AsyncTurn) -> None:
        await self._loop.hop_shielded(self._end_turn, turn.sync)


class AsyncTurn:
    """The block of `async with chat.turn() as turn:`; see `OpenTurn`."""

    def __init__(self, messages: AsyncMessages, turn: OpenTurn) -> None:
        self._messages = messages
        self._loop = messages._loop  # pyright: ignore[reportPrivateUsage]
        self.sync = turn
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


# --- group ----------------------------------------------------------------------------------------
#
# Consumer groups for asyncio.


class AsyncGroup:
    """A consumer group; see `Group`. A delivery's `done` waits for nothing and is not awaited."""

    def __init__(self, loop: Loop, group: Group) -> None:
        self._loop = loop
        self._group = group
        self.name = group.name

    @property
    def after(self) -> Position | None:
        return self._group.after

    async def take(self, n: int = 1) -> list[Delivery]:
        taking = asyncio.ensure_future(self._loop.hop(self._group.take, n))
        try:
            return await shielded(taking)
        except asyncio.CancelledError:
            if not taking.cancelled() and taking.exception() is None:
                # Nobody was given these, so nobody would ever say that they are done.
                for delivery in reversed(taking.result()):
                    delivery.put_back()
            raise

    async def deliveries(self, *, timeout_s: Duration | None = None) -> AsyncIterator[Delivery]:
        left = check_timeout(timeout_s)
        began = self._loop.loop.time()
        while True:
            for delivery in await self.take():
                yield delivery
                began = self._loop.loop.time()
                break
            else:
                waited_s = self._loop.loop.time() - began
                left_s = GLANCE_S if left is None else left - waited_s
                if left_s <= 0:
                    await self.save()
                    return
                after = await self._loop.hop(lambda: self._group.after)
                if after is None:
                    await asyncio.sleep(min(left_s, STANDBY_S))
                else:
                    await self._loop.wait_after(after, min(left_s, GLANCE_S))

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self.deliveries()

    async def restart(self, start: Start) -> None:
        await self._loop.hop_shielded(self._group.restart, start)

    async def save(self) -> None:
        await self._loop.hop_shielded(self._group.save)

    async def close(self) -> None:
        await self._loop.hop_shielded(self._group.close)

    async def __aenter__(self) -> AsyncGroup:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncGroup {self.name}>"

"""Messages for asyncio. Adding goes through the group-commit queue, without a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, Literal, NoReturn, ParamSpec, TypeVar, cast

from holdfast.aio.loop import Loop, Reading
from holdfast.aio.record import mirror
from holdfast.event import Moment
from holdfast.record.history import History
from holdfast.record.message import Message
from holdfast.record.messages import Messages
from holdfast.record.turns import OpenTurn

P = ParamSpec("P")
T = TypeVar("T")


def _like(
    function: Callable[Concatenate[Any, P], T],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[Any, P], Awaitable[T]]]:
    """Gives a method the name, parameters and documentation of the synchronous one."""

    def named(method: Callable[..., Any]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
        return cast("Any", wraps(function)(method))

    return named


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
        options = {name: fields.pop(name, None) for name in ("state", "key", "expected")}
        item = {"role": role, "content": content, **fields}
        quick = turn is None and options["state"] is None and fields.get("foreign_id") is None
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
        key: str | None = None,
        expected: int | None = None,
    ) -> list[Message]:
        own = None if turn is None else turn.sync
        return await self._loop.hop_shielded(
            self.sync.add_many, items, turn=own, state=state, key=key, expected=expected
        )

    async def _add(
        self, items: list[dict[str, Any]], options: dict[str, Any]
    ) -> list[Message] | None:
        """Adds by way of the queue; None if that would have to write a blob first."""
        key, expected = options["key"], options["expected"]
        try:
            said = self.sync.prepare(items, key=key, expected=expected, spill=_refuse)
        except _Large:
            return None
        return await self._loop.commit(said.wanted, partial(self.sync.made, said))

    def turn(self) -> AsyncTurn:
        return AsyncTurn(self, self.sync.turn())

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

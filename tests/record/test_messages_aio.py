"""Messages for asyncio: the same names, parameters and results; many writers share a sync."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import aio
from holdfast.aio.record import AsyncHistory, AsyncMessages, AsyncTurn
from holdfast.errors import ConflictError, UsageError
from holdfast.record.messages import History, Messages
from holdfast.record.sessions import OpenTurn

SYNC_ONLY = {"prepare", "made", "commit", "index", "count", "begin", "committed", "ending"}


def public(cls: type) -> dict[str, Any]:
    members = inspect.getmembers_static(cls)
    return {name: one for name, one in members if name[0] != "_" and name not in SYNC_ONLY}


@pytest.mark.parametrize(
    ("sync", "async_"),
    [(History, AsyncHistory), (Messages, AsyncMessages), (OpenTurn, AsyncTurn)],
)
def test_parity_of_names_and_parameters(sync: type, async_: type) -> None:
    ours, theirs = public(sync), public(async_)
    assert ours.keys() == theirs.keys()
    for name, member in ours.items():
        if inspect.isfunction(member):
            mine = list(inspect.signature(member).parameters)
            assert mine == list(inspect.signature(theirs[name]).parameters), name


def run(url: str, body: Callable[[aio.AsyncStore], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            await body(hf)

    asyncio.run(main())


async def contents(messages: AsyncHistory) -> list[str | None]:
    return [message.content async for message in messages]


def test_every_method_for_asyncio(url: str) -> None:
    async def body(hf: aio.AsyncStore) -> None:
        chat = hf.conversation("c")
        first = await chat.say("a")
        assert first.revision == 1
        await chat.messages.add("user", "x" * 100_000)
        await chat.messages.add("user", "b", foreign_id="f")
        await chat.messages.add("user", "b", foreign_id="f")
        await chat.messages.add("user", "k", key="k")
        await chat.messages.add("user", "k", key="k")
        with pytest.raises(ConflictError):
            await chat.messages.add("user", "late", expected=1)
        with pytest.raises(UsageError):
            await chat.messages.add("user", 7)  # type: ignore[arg-type]
        assert await chat.messages.length() == 4
        assert (await chat.messages.last(1))[0].content == "k"
        await chat.messages.add_many([{"role": "user", "content": "m"}], state={"n": 1})
        assert await chat.get("n") == 1
        async with chat.messages.turn() as turn:
            await turn.add("user", "t")
            await turn.add_many([{"role": "assistant", "content": "u"}])
            await chat.messages.add("user", "v", turn=turn)
        [done] = await chat.messages.turns()
        assert (done.id, done.status) == (turn.id, "completed")
        with pytest.raises(ValueError, match="broken"):
            async with chat.messages.turn() as turn:
                await turn.add("user", "w")
                raise ValueError("broken")
        assert [one.status for one in await chat.messages.turns()] == ["failed", "completed"]
        assert (await chat.messages.page(2)).messages == await chat.messages.last(2)
        await chat.messages.edit(first, content="A")
        assert (await chat.messages.get(first.id)).content == "A"
        await chat.messages.delete(first)
        assert not await chat.messages.is_there(first)
        assert (await chat.messages.pop()).content == "w"
        early = await chat.messages.at(1)
        assert await contents(early) == ["a"]
        assert await early.revision == 1
        assert await chat.messages.revision == await chat.revision
        assert (await chat.messages.for_request(1)) == [{"role": "user", "content": "v"}]
        assert (await chat.messages.render(1)) == "user: v"
        other = hf.conversation("other")
        await other.say("from elsewhere")
        assert len(await chat.messages.merge(other)) == 1
        await chat.messages.compact("short")
        assert await contents(chat.messages) == ["short"]
        assert len(await chat.messages.summaries()) == 1
        assert len(await chat.messages.original().items()) > 1
        await chat.messages.rewind(1)
        await chat.messages.clear()
        assert await contents(chat.messages) == []
        assert "conversation/c" in repr(chat.messages)

    run(url, body)


def test_many_at_once(url: str) -> None:
    """5 agents with 50 messages each, each agent's in its order."""

    async def body(hf: aio.AsyncStore) -> None:
        chat = hf.conversation("c")

        async def agent(number: int) -> None:
            for at in range(50):
                await chat.say(f"{number} {at}")

        await asyncio.gather(*(agent(number) for number in range(5)))
        said = await contents(chat.messages)
        assert len(said) == 250
        for number in range(5):
            mine = [text for text in said if text and text.startswith(f"{number} ")]
            assert mine == [f"{number} {at}" for at in range(50)]

    run(url, body)

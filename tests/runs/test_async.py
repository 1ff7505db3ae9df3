"""Runs for asyncio: one journal, awaited (rules 5, 9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast import RunFailedError, UnavailableError, aio
from holdfast.errors import RunCancelledError, StillRunningError
from holdfast.runs.engine import Engine
from tests.runs.corpus import add, pay, post
from tests.runs.corpus_loops import folding
from tests.runs.cuts import Cut, Cutting, Place
from tests.runs.witness import Witness


@holdfast.step(effect="pure")
async def double(n: int) -> int:
    await asyncio.sleep(0)
    return n * 2


@holdfast.run
async def everything(ctx: Any, n: int) -> dict[str, Any]:
    total = ctx.let("total", 0)
    for number in ctx.repeat(n):
        total.set(total.value + await double(number))
    one, two = await asyncio.gather(ctx.step(pay, 1), ctx.step(pay, 2))

    async def body(ctx: Any, acc: int, item: int) -> int:
        await ctx.step(post, f"item {item}")
        return acc + await double(item)

    folded = await ctx.fold("f", [1, 2], 0, body)
    pages = await ctx.parallel(a=ctx.branch(double, 4), b=ctx.branch(post, "b"))
    won = await ctx.parallel(join="first", never=ctx.branch(sleeping), now=ctx.branch(double, 1))
    kid = await ctx.child(folding)
    await ctx.state.increment("n")
    await ctx.sleep(0.001)
    moved = await ctx.txn(moving, ctx.run_id)
    seen = await ctx.read(ctx.state, "n")
    nested = await inner(3)
    return {
        "total": total.value,
        "gathered": [one, two],
        "folded": folded,
        "pages": pages,
        "won": won,
        "kid": await ctx.join(kid),
        "moved": moved,
        "seen": seen,
        "nested": nested,
    }


async def sleeping(ctx: Any) -> None:
    await asyncio.sleep(3600)


@holdfast.run
async def inner(ctx: Any, n: int) -> int:
    return await double(n)


def moving(tx: Any, id: str) -> str:
    return f"moved {id}"


EXPECTED = {
    "total": 6,
    "gathered": [1, 2],
    "folded": 6,
    "pages": {"a": 8, "b": "posted b"},
    "won": {"now": 2},
    "kid": 10,
    "moved": "moved r",
    "seen": 1,
    "nested": 6,
}


def on(url: str, body: Callable[[aio.AsyncStore], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with await aio.open(url) as hf:
            return await body(hf)

    return asyncio.run(main())


def test_an_async_run_does_all_of_it(url: str, witness: Witness):
    async def body(hf: aio.AsyncStore) -> None:
        run = await hf.runs.start(everything, 3, id="r")
        assert await run.result() == EXPECTED
        assert await run.status == "completed"
        assert (await run.variables)["total"] == 6
        assert [one.id for one in await hf.runs.list(status="completed")] == [
            "r",
            "r/child.folding",
        ]
        assert (await hf.runs.get("r")).id == "r"

    on(url, body)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_async_run_cut_anywhere_ends_as_if_never_cut(witness: Witness, when: Any):
    async def body(hf: aio.AsyncStore) -> None:
        hf.sync._kernel.part(Engine).supervisor.flush_s = None
        inner_backend = hf._log._backend
        nth, cut = 1, True
        while cut:
            witness.__init__()
            cutting = Cutting(inner_backend, Place("commit", nth, when))
            hf._log._backend = cutting  # type: ignore[assignment]
            id = f"r{nth}"
            # The other error is that of a commit which was in one batch with the one that is cut.
            with suppress(Cut, UnavailableError):
                await (await hf.runs.start(everything, 3, id=id)).result()
            while hf.sync._kernel.part(Engine).active:
                await asyncio.sleep(0.001)
            cut = cutting.is_dead
            cutting.revive()
            run = await hf.runs.start(everything, 3, id=id, if_exists="attach")
            expected = EXPECTED | {"moved": f"moved {id}"}
            assert await run.result() == expected, f"cut {when} commit {nth}"
            assert witness.acts == ACTS, f"cut {when} commit {nth}"
            nth += 1
        assert nth > 10

    on("memory:", body)


ACTS = {
    "pay 1": 1,
    "pay 2": 1,
    "post item 1": 1,
    "post item 2": 1,
    "post b": 1,
    "post odd 1": 1,
    "post odd 3": 1,
}


@holdfast.run
async def plainly(ctx: Any) -> Any:
    return add(1, 2)


@holdfast.run
async def sync_inside(ctx: Any) -> Any:
    return await folding()


def test_a_sync_step_called_plainly_names_what_to_write(url: str):
    async def body(hf: aio.AsyncStore) -> None:
        with pytest.raises(RunFailedError, match=r"await ctx\.step\(add"):
            await (await hf.runs.start(plainly)).result()
        with pytest.raises(RunFailedError, match="an async run cannot enter it"):
            await (await hf.runs.start(sync_inside)).result()

    on(url, body)


def test_an_async_run_needs_a_loop(url: str):
    with holdfast.open(url) as hf, pytest.raises(holdfast.UsageError, match="is async"):
        hf.runs.start(plainly)


@holdfast.run
async def endless(ctx: Any) -> None:
    await ctx.step(post, "begun")
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(3600))
        group.create_task(asyncio.sleep(3600))


def test_cancel_reaches_an_await(url: str, witness: Witness):
    """Rule 9: async cancellation; a TaskGroup in between changes nothing."""

    async def body(hf: aio.AsyncStore) -> None:
        run = await hf.runs.start(endless, id="r")
        with pytest.raises(StillRunningError):
            await run.result(timeout=0.01)
        while not witness.acts:
            await asyncio.sleep(0.001)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        assert await run.status == "cancelled"

    on(url, body)


@holdfast.run
async def asking_in_a_group(ctx: Any) -> Any:
    async def ask() -> Any:
        return await ctx.wait("approve")

    async with asyncio.TaskGroup() as group:
        task = group.create_task(ask())
    return task.result()


def test_a_suspension_in_a_task_group_is_found(url: str):
    """A TaskGroup turns a control exception into a group of exceptions."""

    async def body(hf: aio.AsyncStore) -> None:
        run = await hf.runs.start(asking_in_a_group, id="r")
        while await run.status != "waiting":
            await asyncio.sleep(0.005)
        await hf.runs.answer("r", "approve", 5)
        assert await run.result() == 5

    on(url, body)


def test_a_closed_loop_leaves_its_runs_to_be_resumed(durable_url: str, witness: Witness):
    async def first(hf: aio.AsyncStore) -> None:
        await hf.runs.start(endless, id="r")
        while not witness.acts:
            await asyncio.sleep(0.001)

    async def second(hf: aio.AsyncStore) -> None:
        run = await hf.runs.resume("r")
        assert await run.status == "running"
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()

    on(durable_url, first)
    on(durable_url, second)
    assert witness.acts == {"post begun": 1}

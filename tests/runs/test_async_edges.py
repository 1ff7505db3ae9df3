"""Where an async run meets the world around its loop: stops, ends, tasks beside each other."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

import holdfast
from holdfast import LeaseLostError, RunFailedError, UsageError, aio
from holdfast.aio.loop import shielded
from holdfast.runs.engine import Engine
from holdfast.runs.operation import OwnerLost
from tests.runs.test_async import endless, on
from tests.runs.test_endings import asked, types_of
from tests.runs.witness import Witness

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@holdfast.step(effect="pure")
async def tick(n: int) -> int:
    await asyncio.sleep(0)
    return n


@holdfast.run(name="tests:ticking")
async def ticking(ctx: Any, n: int) -> int:
    return await ctx.step(tick, n) + await ctx.step(tick, n)


async def adding(ctx: Any, total: int, n: int) -> int:
    return total + await ctx.step(tick, n)


@holdfast.run(name="tests:beside each other")
async def beside_each_other(ctx: Any, what: str) -> list[int]:
    if what == "branches":
        found = await ctx.parallel(one=ctx.branch(ticking, 1), two=ctx.branch(ticking, 2))
        return [found["one"], found["two"]]
    if what == "runs":
        return list(await asyncio.gather(ticking(1), ctx.run(ticking, 2)))
    folds = [ctx.fold(name, [1, 2], init=0, body=adding) for name in "ab"]
    return list(await asyncio.gather(*folds))


@pytest.mark.parametrize("what", ["runs", "folds"])
def test_bodies_side_by_side_must_be_branches(url: str, what: str):
    """Else each would record what the other does as its own, in an order that is chance."""

    async def body(hf: aio.AsyncStore) -> None:
        run = await hf.runs.start(beside_each_other, what, id="r")
        with pytest.raises(RunFailedError, match=r"was entered while another was.*ctx\.parallel"):
            await run.result()
        branches = await hf.runs.start(beside_each_other, "branches")
        assert await branches.result() == [2, 4]

    on(url, body)


@holdfast.run(name="tests:whose")
async def whose(ctx: Any) -> str:
    return TENANT.get()


def test_a_run_sees_no_context_variables_of_who_started_it():
    """Rule 1: whoever resumes it has others. Sync runs see none either."""

    async def body(hf: aio.AsyncStore) -> None:
        TENANT.set("ada")
        assert await (await hf.runs.start(whose)).result() == "nobody"

    on("memory:", body)


def test_a_run_that_no_loop_executes_is_let_go():
    """Else this process would renew its lease for ever, and nobody could go on with it."""
    with holdfast.open("memory:") as hf, ThreadPoolExecutor(1) as executor:

        async def attach() -> None:
            aio.AsyncStore(hf, executor)

        asyncio.run(attach())
        with pytest.raises(UsageError, match="event loop of this store is closed"):
            hf.runs.start(whose, id="r")
        with pytest.raises(UsageError, match="event loop of this store is closed"):
            hf.runs.resume("r")
        assert hf._kernel.part(Engine).active == {}
        assert hf._log._backend.leases.holder("run/r") is None
        assert hf.runs.get("r").status == "running"


def test_who_waits_is_told_that_the_store_was_closed(witness: Witness):
    """And not of the cancellation of a task that is not its own."""

    async def body(hf: aio.AsyncStore) -> None:
        await hf.runs.start(endless, id="r")
        while not witness.acts:
            await asyncio.sleep(0.001)
        run = hf.sync._kernel.part(Engine).active["r"]
        await hf.close()  # and once more when `on` is through with it
        assert isinstance(run.outcome, OwnerLost)
        assert isinstance(run.outcome.cause, UsageError)
        with pytest.raises(UsageError, match="the store is closed"):
            await hf.runs.list()

    on("memory:", body)


@holdfast.run(name="tests:with a child")
async def with_a_child(ctx: Any) -> None:
    await ctx.child(asked, id="kid")
    await asyncio.sleep(3600)


def test_a_second_stop_does_not_interrupt_the_first(url: str, monkeypatch: pytest.MonkeyPatch):
    """Rule 9: while a run sees to its children, and has yet to write that it ended."""

    async def body(hf: aio.AsyncStore) -> None:
        loop, engine = asyncio.get_running_loop(), hf.sync._kernel.part(Engine)
        cancel = engine.cancel_child

        def stopped_again(*child: str) -> None:
            engine.cancel("r")
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
            cancel(*child)

        monkeypatch.setattr(engine, "cancel_child", stopped_again)
        run = await hf.runs.start(with_a_child, id="r")
        while [one.id for one in await hf.runs.list(status="waiting")] != ["kid"]:
            await asyncio.sleep(0.005)
        await run.cancel()
        while "r" in engine.active:
            await asyncio.sleep(0.005)
        assert types_of(hf)[-1] == "run.ended"
        assert await run.status == "cancelled"

    on(url, body)


def test_an_interrupt_is_not_taken_for_an_outcome():
    async def main() -> None:
        waiting = shielded(asyncio.get_running_loop().create_future())
        waiting.send(None)
        with pytest.raises(KeyboardInterrupt):
            waiting.throw(KeyboardInterrupt())

    asyncio.run(main())


GATES: dict[str, asyncio.Event] = {}


@holdfast.step(effect="idempotent")
async def gated() -> str:
    GATES["entered"].set()
    await GATES["open"].wait()
    return "through"


@holdfast.run(name="tests:gated run")
async def gated_run(ctx: Any) -> str:
    return await ctx.step(gated)


def test_an_async_owner_whose_lease_lapsed_tells_its_caller_and_goes_on(url: str):
    async def body(hf: aio.AsyncStore) -> None:
        GATES.update(entered=asyncio.Event(), open=asyncio.Event())
        run = await hf.runs.start(gated_run, id="r")
        await GATES["entered"].wait()
        waiter = asyncio.ensure_future(run.result(timeout=600))
        engine = hf.sync._kernel.part(Engine)
        mine = engine.active["r"]
        while not mine.when_over:
            await asyncio.sleep(0.001)
        hf.sync._kernel.leases.drop(mine.lease)
        leases = engine.log.leases
        await asyncio.to_thread(leases.release, mine.lease)
        # Until the caller was told: else the run may have ended by then, and there is a result.
        other = await asyncio.to_thread(leases.acquire, "run/r", "other", ttl_s=600)
        assert other is not None
        GATES["open"].set()
        with pytest.raises(LeaseLostError, match="was left by this worker"):
            await waiter
        await asyncio.to_thread(leases.release, other)
        assert await run.result() == "through"

    on(url, body)

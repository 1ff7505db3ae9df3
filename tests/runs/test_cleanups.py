"""Cleanups after a stop: what they may do, and what ends them (rule 9; OP-17)."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

import holdfast
from holdfast import Retry, Store, aio
from holdfast.errors import RunCancelledError, RunFailedError
from holdfast.runs import execution
from tests.runs.corpus_cleanups import cleaned_after_a_stop, tidy
from tests.runs.corpus_steps import post
from tests.runs.cuts import until
from tests.runs.test_async import on
from tests.runs.witness import Witness

SEEN: dict[str, Any] = {}
"""What the runs below leave for their tests, and find: one test at a time uses it."""


@pytest.fixture(autouse=True)
def seen() -> dict[str, Any]:
    SEEN.clear()
    return SEEN


def assert_cancelled(store: Store) -> None:
    with pytest.raises(RunCancelledError):
        store.runs.get("r").result()
    assert store.runs.get("r").status == "cancelled"


def test_a_run_that_waits_elsewhere_is_cleaned_up_by_who_takes_it_up(
    durable_url: str, witness: Witness
):
    """The process that cancels it may have neither its code nor its executor."""
    with holdfast.open(durable_url) as hf:
        until(hf.runs.start(cleaned_after_a_stop, id="r"), "waiting")
    with holdfast.open(durable_url) as hf:
        hf.runs.cancel("r")
        assert hf.runs.get("r").status == "cancelling"
        assert hf.runs.list(status="cancelling")[0].id == "r"
        assert "post tidy a" not in witness.acts
        hf.runs.cancel("r")  # again: nothing more happens
        hf.runs.resume("r")
        assert_cancelled(hf)
        assert witness.acts["post tidy a"] == witness.acts["post tidy bb"] == 1


def test_one_that_nobody_executes_ends_without_them_if_that_is_asked_for(
    durable_url: str, witness: Witness
):
    with holdfast.open(durable_url) as hf:
        until(hf.runs.start(cleaned_after_a_stop, id="r"), "waiting")
    with holdfast.open(durable_url) as hf:
        hf.runs.cancel("r")
        hf.runs.cancel("r", now=True)
        assert hf.runs.get("r").status == "cancelled"
        assert witness.acts == {"pay 10": 1}


def test_whoever_hosts_a_run_that_waits_cleans_it_up(hf: Store, witness: Witness):
    run = hf.runs.start(cleaned_after_a_stop, id="r")
    until(run, "waiting")
    hf.runs.cancel("r")
    assert_cancelled(hf)
    assert witness.acts["post tidy a"] == 1
    assert not run.journal.cleanups


@holdfast.step(effect="idempotent")
def blocking(ctx: Any) -> None:
    SEEN["begun"].set()
    SEEN["go"].wait(60)


@holdfast.step(effect="idempotent")
def telling(ctx: Any) -> None:
    SEEN["step"] = ctx.cancelled


def told(ctx: Any) -> None:
    SEEN["body"] = ctx.cancelled
    telling()
    ctx.state.set("cleaned", True)
    SEEN["now"] = ctx.now()


@holdfast.run
def stopped_in_a_step(ctx: Any) -> None:
    with ctx.cleanup(told):
        blocking()
        post("behind")


def stop_it(hf: Store, run: Any) -> None:
    """Cancels a run that is inside `blocking`."""
    SEEN.update(begun=threading.Event(), go=threading.Event())
    hf.runs.start(run, id="r")
    assert SEEN["begun"].wait(60)
    hf.runs.cancel("r")
    SEEN["go"].set()


def test_a_cleanup_does_not_count_as_cancelled(hf: Store, witness: Witness):
    stop_it(hf, stopped_in_a_step)
    assert_cancelled(hf)
    assert SEEN["step"] is SEEN["body"] is False
    assert hf.workflow("r").get("cleaned") is True
    assert not witness.acts


def failing(ctx: Any) -> None:
    raise ValueError("no")


def waiting(ctx: Any) -> None:
    ctx.wait("somebody")


@holdfast.run
def stopped_and_failing(ctx: Any) -> None:
    with ctx.cleanup(tidy, "outer"), ctx.cleanup(failing), ctx.cleanup(waiting):
        blocking()
        post("behind")


def test_a_cleanup_that_fails_or_waits_does_not_keep_a_run_from_stopping(
    hf: Store, witness: Witness
):
    stop_it(hf, stopped_and_failing)
    assert_cancelled(hf)
    notes = [note.text for note in hf.runs.get("r").journal.notes]
    assert notes == ["the cleanup was left: wait somebody", "the cleanup failed: no"]
    assert witness.acts["post tidy outer"] == 1


def too_long(ctx: Any) -> None:
    post("first")
    post("never")


@holdfast.run
def stopped_for_too_long(ctx: Any) -> None:
    with ctx.cleanup(too_long):
        blocking()
        post("behind")


def test_a_cleanup_begins_nothing_when_its_time_is_over(
    hf: Store, witness: Witness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(execution, "CLEANUP_US", -1)
    stop_it(hf, stopped_for_too_long)
    assert_cancelled(hf)
    assert witness.acts == {"post first": 1}
    assert "took too long" in hf.runs.get("r").journal.notes[-1].text


@holdfast.step(effect="idempotent", retry=Retry(3, wait_s=0.3))
def thrice(ctx: Any) -> None:
    if ctx.attempt < 3:
        raise ValueError("not yet")


def again(ctx: Any) -> None:
    thrice()
    ctx.sleep(0.3)
    found = ctx.process([sys.executable, "-c", "print('tidy')"], effect="idempotent")
    SEEN["said"] = found.out.strip()


@holdfast.run
def stopped_and_trying(ctx: Any) -> None:
    with ctx.cleanup(again):
        blocking()


def test_a_cleanup_tries_again_sleeps_and_runs_commands(hf: Store):
    """A pause of it holds its thread: a run that is to stop is not suspended any more."""
    stop_it(hf, stopped_and_trying)
    assert_cancelled(hf)
    assert SEEN["said"] == "tidy"
    assert not hf.runs.get("r").journal.notes


@holdfast.run
def idle(ctx: Any) -> None:
    with ctx.cleanup(tidy, "a"):
        for _ in ctx.loop():
            SEEN["begun"].set()
            SEEN["go"].wait(0.001)


def test_a_loop_that_performs_nothing_is_left(hf: Store, witness: Witness):
    SEEN.update(begun=threading.Event(), go=threading.Event())
    hf.runs.start(idle, id="r")
    assert SEEN["begun"].wait(60)
    hf.runs.cancel("r")
    assert_cancelled(hf)
    assert witness.acts["post tidy a"] == 1


def busy(ctx: Any) -> None:
    with ctx.cleanup(tidy, "busy"):
        SEEN["begun"].set()
        for _ in ctx.loop():
            ctx.sleep(0.001)


def won(ctx: Any) -> None:
    assert SEEN["begun"].wait(60)
    post("won")


@holdfast.run
def race(ctx: Any) -> None:
    ctx.parallel(join="first", a=ctx.branch(won), b=ctx.branch(busy))
    post("after")


def test_who_loses_a_race_cleans_up_before_it_is_over(hf: Store, witness: Witness):
    SEEN["begun"] = threading.Event()
    hf.runs.start(race, id="r").result()
    assert list(witness.acts) == ["post won", "pay 4", "post tidy busy", "post after"]


# --- asyncio -------------------------------------------------------------------------------------


async def told_softly(ctx: Any) -> None:
    await asyncio.sleep(0.001)
    await ctx.step(post, "tidy")
    await ctx.sleep(0.001)
    SEEN["body"] = ctx.cancelled


@holdfast.run
async def stopped_softly(ctx: Any) -> None:
    async with ctx.cleanup(told_softly):
        SEEN["begun"].set()
        await asyncio.sleep(600)  # no operation: the task itself is cancelled
    await ctx.step(post, "behind")


@holdfast.run
async def stopped_in_branches(ctx: Any) -> None:
    async def branch(ctx: Any, name: str) -> None:
        async with ctx.cleanup(told_softly):
            SEEN["count"] += 1
            if SEEN["count"] == 2:
                SEEN["begun"].set()
            await asyncio.sleep(600)

    async with ctx.cleanup(told_softly):
        await ctx.parallel(a=ctx.branch(branch, "a"), b=ctx.branch(branch, "b"))


@pytest.mark.parametrize(("run", "times"), [(stopped_softly, 1), (stopped_in_branches, 3)])
def test_a_task_that_is_cancelled_cleans_up(url: str, witness: Witness, run: Any, times: int):
    async def body(hf: aio.AsyncStore) -> None:
        SEEN.update(begun=asyncio.Event(), count=0)
        started = await hf.runs.start(run, id="r")
        await SEEN["begun"].wait()
        await started.cancel()
        with pytest.raises(RunCancelledError):
            await started.result()
        assert not (await started.journal).notes

    on(url, body)
    assert witness.acts == {"post tidy": times}
    assert SEEN["body"] is False


@holdfast.run
async def race_softly(ctx: Any) -> None:
    async def losing(ctx: Any) -> None:
        async with ctx.cleanup(told_softly):
            SEEN["begun"].set()
            await asyncio.sleep(600)

    async def winning(ctx: Any) -> None:
        await SEEN["begun"].wait()

    await ctx.parallel(join="first", a=ctx.branch(winning), b=ctx.branch(losing))
    await ctx.step(post, "after")


def test_a_loser_cleans_up_before_its_race_is_over(url: str, witness: Witness):
    async def body(hf: aio.AsyncStore) -> None:
        SEEN["begun"] = asyncio.Event()
        await (await hf.runs.start(race_softly, id="r")).result()

    on(url, body)
    assert list(witness.acts) == ["post tidy", "post after"]


def test_a_cleanup_of_an_async_run_is_entered_with_async_with(url: str):
    @holdfast.run
    async def wrong(ctx: Any) -> None:
        with ctx.cleanup(told_softly):
            pass

    async def body(hf: aio.AsyncStore) -> None:
        await (await hf.runs.start(wrong, id="r")).result()

    with pytest.raises(RunFailedError, match="async with"):
        on(url, body)

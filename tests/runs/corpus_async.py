"""The same in `async def`: chains, gathered steps, branches, waits, folds, txn (rule 5)."""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast
from holdfast.errors import StepError
from tests.runs.corpus_steps import Program, add, move, pay, post, post_late, refuse
from tests.runs.corpus_waits import answering, signalling
from tests.runs.witness import WITNESS, was_done


@holdfast.step(effect="effect", verify=was_done)
async def post_softly(ctx: Any, text: str) -> str:
    await asyncio.sleep(0)
    return WITNESS.act(ctx.key, f"softly {text}", f"softly {text}")


@holdfast.run
async def async_chain(ctx: Any) -> list[Any]:
    total = await ctx.step(add, 1, 2)
    said = [await post_softly(f"{number}") for number in range(2)]
    return [total, *said, await ctx.step(post, "end")]


@holdfast.run
async def async_gather(ctx: Any) -> list[str]:
    """Steps take their places when they are called, whatever the order in which they end."""
    calls: list[Any] = [ctx.step(pay, 1), ctx.step(pay, 2), ctx.step(post_softly, "3")]
    return list(await asyncio.gather(*calls))


async def soft_page(ctx: Any, name: str) -> str:
    seen = await ctx.step(add, len(name), 0)
    return await ctx.step(post_softly, f"{name} {seen}")


@holdfast.run
async def async_parallel(ctx: Any) -> dict[str, Any]:
    found = await ctx.parallel(a=ctx.branch(soft_page, "a"), bb=ctx.branch(soft_page, "bb"))
    await ctx.step(post, "joined")
    return found


@holdfast.run
async def async_settle(ctx: Any) -> list[Any]:
    ended = await ctx.parallel(
        join="settle", good=ctx.branch(soft_page, "x"), bad=ctx.branch(refuse, "no")
    )
    return [ended["good"].value, ended["bad"].error.text]


@holdfast.run
async def async_wait(ctx: Any) -> str:
    await ctx.step(post, "asked")
    answer = await ctx.wait("approve", timeout="1h")
    return await ctx.step(post, f"answer {answer['ok']}")


@holdfast.run
async def async_signals(ctx: Any) -> list[Any]:
    first = await ctx.signal("go")
    await ctx.step(pay, first)
    return [first, await ctx.signal("go")]


async def soft_scan(ctx: Any, total: int, item: int) -> int:
    await ctx.step(pay, item)
    return await ctx.step(add, total, item)


@holdfast.run
async def async_fold(ctx: Any) -> int:
    total = ctx.let("total", 0)
    for number in ctx.repeat(2):
        total.set(await ctx.fold("scan", [number, 10], init=total.value, body=soft_scan))
    return total.value


@holdfast.run
async def async_nested(ctx: Any, n: int) -> int:
    await ctx.step(pay, n)
    return 1 if n == 0 else 1 + await async_nested(n - 1)


@holdfast.run
async def async_failures(ctx: Any) -> list[Any]:
    try:
        await ctx.step(refuse, "no")
    except StepError as error:
        late = await ctx.step(post_late, error.kind)
        await ctx.sleep(0.01)
        return [late, await ctx.txn(move, 10)]
    return []


ASYNC = [
    Program(
        run=async_chain,
        gives=[3, "softly 0", "softly 1", "posted end"],
        acts={"softly 0": 1, "softly 1": 1, "post end": 1},
    ),
    Program(
        run=async_gather,
        gives=[1, 2, "softly 3"],
        acts={"pay 1": 1, "pay 2": 1, "softly 3": 1},
        order="path",
    ),
    Program(
        run=async_parallel,
        gives={"a": "softly a 1", "bb": "softly bb 2"},
        acts={"softly a 1": 1, "softly bb 2": 1, "post joined": 1},
        order="path",
    ),
    Program(run=async_settle, gives=["softly x 1", "no"], acts={"softly x 1": 1}, order="path"),
    Program(
        run=async_wait,
        gives="posted answer True",
        acts={"post asked": 1, "post answer True": 1},
        person=answering,
    ),
    Program(run=async_signals, gives=[0, 1], acts={"pay 0": 1}, person=signalling),
    Program(run=async_fold, gives=21, acts={"pay 0": 1, "pay 1": 1, "pay 10": 2}),
    Program(run=async_nested, args=(2,), gives=3, acts={"pay 2": 1, "pay 1": 1, "pay 0": 1}),
    Program(
        run=async_failures,
        gives=["attempt 3", 90],
        acts={"late ValueError": 1},
        states={"team/a": {"n": 90}, "team/b": {"n": 10}},
    ),
]

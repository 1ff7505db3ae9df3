"""Cleanups: done however their part of a body is left, after a stop too (rule 9)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import holdfast
from holdfast import Store
from holdfast.errors import StepError
from tests.runs.corpus_steps import Program, add, pay, post, refuse
from tests.runs.corpus_waits import LATE, stopping


def tidy(ctx: Any, name: str) -> None:
    """Several operations, so that a process can die between them."""
    pay(ctx.let("size", len(name)).value)
    post(f"tidy {name}")
    add(1, 2)


@holdfast.run
def cleaned_at_the_end(ctx: Any) -> list[Any]:
    """A value and an error: a cleanup is done after both."""
    said: list[Any] = []
    with ctx.cleanup(tidy, "a"):
        said.append(post("body"))
    try:
        with ctx.cleanup(tidy, "bb"):
            refuse("no")
    except StepError as error:
        said.append(post(error.kind))
    return said


@holdfast.run
def cleaned_after_a_stop(ctx: Any) -> None:
    """Two of them, the inner first, and nothing after the wait."""
    with ctx.cleanup(tidy, "a"):
        pay(10)
        with ctx.cleanup(tidy, "bb"):
            ctx.wait("never")
            post("behind")
    post("behind")


@holdfast.run
def cleaned_in_a_loop(ctx: Any) -> None:
    """One iteration was cleaned up already; only the second is left by the stop."""
    with ctx.cleanup(tidy, "all"):
        for number in ctx.repeat(3):
            with ctx.cleanup(tidy, f"{number}" * (number + 1)):
                pay(100 + number)
                if number:
                    ctx.wait("never")
    post("behind")


@holdfast.run
def cleaned_in_branches(ctx: Any) -> None:
    def waiting(ctx: Any, name: str) -> None:
        with ctx.cleanup(tidy, name):
            post(name)
            ctx.wait(name)

    with ctx.cleanup(tidy, "all"):
        ctx.parallel(a=ctx.branch(waiting, "a"), bb=ctx.branch(waiting, "bb"))
    post("behind")


@holdfast.run
def cleaned_side_by_side(ctx: Any) -> None:
    """A cleanup with branches of its own."""

    def both(ctx: Any) -> None:
        ctx.parallel(a=ctx.branch(tidy, "a"), bb=ctx.branch(tidy, "bb"))

    with ctx.cleanup(both):
        ctx.wait("never")


@holdfast.run
def cleaned_loser(ctx: Any) -> Any:
    """Who loses a race cleans up before the race is over."""

    def losing(ctx: Any, name: str) -> None:
        with ctx.cleanup(tidy, name):
            ctx.wait("never")

    def winning(ctx: Any) -> str:
        ctx.wait("go")
        return post("won")

    found = ctx.parallel(
        join="first",
        a=ctx.branch(winning),
        b=ctx.branch(losing, "b"),
        cc=ctx.branch(losing, "cc"),
    )
    return [found["a"], post("after")]


def starting(store: Store, id: str) -> None:
    """Lets the race be won when all have begun."""
    with suppress(*LATE):
        if len(store.runs.get(id).journal.cleanups) == 2:
            store.runs.answer(id, "parallel/a/wait.go", 1)


async def tidy_softly(ctx: Any, name: str) -> None:
    await ctx.step(pay, len(name))
    await ctx.step(post, f"tidy {name}")


@holdfast.run
async def cleaned_softly(ctx: Any) -> None:
    async def waiting(ctx: Any, name: str) -> None:
        async with ctx.cleanup(tidy_softly, name):
            await ctx.wait(name)

    async with ctx.cleanup(tidy_softly, "all"):
        await ctx.parallel(a=ctx.branch(waiting, "a"), bb=ctx.branch(waiting, "bb"))


def _tidied(*names: str) -> dict[str, int]:
    acts: dict[str, int] = {}
    for name in names:
        acts[f"tidy {name}"] = 1
        acts[f"pay {len(name)}"] = acts.get(f"pay {len(name)}", 0) + 1
    return {what if what.startswith("pay") else f"post {what}": n for what, n in acts.items()}


CLEANUPS = [
    Program(
        run=cleaned_at_the_end,
        gives=["posted body", "posted ValueError"],
        acts={**_tidied("a", "bb"), "post body": 1, "post ValueError": 1},
    ),
    Program(
        run=cleaned_after_a_stop,
        gives="cancelled",
        acts={**_tidied("a", "bb"), "pay 10": 1},
        person=stopping,
    ),
    Program(
        run=cleaned_in_a_loop,
        gives="cancelled",
        acts={**_tidied("all", "0", "11"), "pay 100": 1, "pay 101": 1},
        person=stopping,
    ),
    Program(
        run=cleaned_in_branches,
        gives="cancelled",
        acts={**_tidied("all", "a", "bb"), "post a": 1, "post bb": 1},
        person=stopping,
        order="path",
    ),
    Program(
        run=cleaned_side_by_side,
        gives="cancelled",
        acts=_tidied("a", "bb"),
        person=stopping,
        order="path",
    ),
    Program(
        run=cleaned_loser,
        gives=["posted won", "posted after"],
        acts={**_tidied("b", "cc"), "post won": 1, "post after": 1},
        person=starting,
        order="path",
    ),
    Program(
        run=cleaned_softly,
        gives="cancelled",
        acts=_tidied("all", "a", "bb"),
        person=stopping,
        order="path",
    ),
]

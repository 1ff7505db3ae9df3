"""Children: runs of their own that a run starts, waits for, outlives or takes along (rule 10)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import holdfast
from holdfast import Store
from holdfast.errors import StepError
from tests.runs.corpus_steps import Program, add, pay, post, refuse
from tests.runs.corpus_waits import LATE


@holdfast.run
def small(ctx: Any, n: int) -> int:
    post(f"child {n}")
    return add(n, n)


@holdfast.run
def parent(ctx: Any) -> int:
    one, two = ctx.child(small, 1), ctx.child(small, 2, when_parent_ends="wait")
    first = ctx.join(one)
    post("between")
    return first + ctx.join(two)


@holdfast.run
def outlived(ctx: Any) -> int:
    """Its end waits for a child that it does not join."""
    ctx.child(small, 3, when_parent_ends="wait")
    return pay(1)


@holdfast.run
def children_in_a_loop(ctx: Any) -> list[int]:
    started = [ctx.child(small, number) for number in ctx.each([1, 2])]
    return [ctx.join(child) for child in started]


@holdfast.run
def generation(ctx: Any, depth: int) -> int:
    pay(depth)
    if depth == 0:
        return 1
    return 1 + ctx.join(ctx.child(generation, depth - 1))


@holdfast.run
def grandparent(ctx: Any) -> int:
    return ctx.join(ctx.child(generation, 2))


@holdfast.run
def bad_child(ctx: Any) -> None:
    post("child tries")
    refuse("child fails")


@holdfast.run
def child_fails(ctx: Any) -> list[str]:
    try:
        ctx.join(ctx.child(bad_child))
    except StepError as error:
        return [error.kind, error.text, post("went on")]
    return []


def answering_the_child(store: Store, id: str) -> None:
    with suppress(*LATE):
        store.runs.answer(f"{id}/child.asker", "ok", "yes")


@holdfast.run
def asker(ctx: Any) -> str:
    return post(ctx.wait("ok"))


@holdfast.run
def child_waits(ctx: Any) -> str:
    """The child waits for a person, so its parent waits without a thread too."""
    said = ctx.join(ctx.child(asker))
    return f"{said}, {post('told')}"


@holdfast.run
def endless(ctx: Any) -> None:
    ctx.wait("never")
    post("behind")


@holdfast.run
def takes_along(ctx: Any) -> int:
    """A child that still waits is cancelled when its parent ends."""
    ctx.child(endless)
    return pay(5)


def work_in_child(ctx: Any, n: int) -> int:
    return ctx.join(ctx.child(small, n))


@holdfast.run
def children_in_branches(ctx: Any) -> dict[str, int]:
    return ctx.parallel(a=ctx.branch(work_in_child, 1), b=ctx.branch(work_in_child, 2))


CHILDREN = [
    Program(run=parent, gives=6, acts={"post child 1": 1, "post child 2": 1, "post between": 1}),
    Program(run=outlived, gives=1, acts={"post child 3": 1, "pay 1": 1}),
    Program(run=children_in_a_loop, gives=[2, 4], acts={"post child 1": 1, "post child 2": 1}),
    Program(run=grandparent, gives=3, acts={"pay 2": 1, "pay 1": 1, "pay 0": 1}),
    Program(
        run=child_fails,
        gives=["ValueError", "child fails", "posted went on"],
        acts={"post child tries": 1, "post went on": 1},
    ),
    Program(
        run=child_waits,
        gives="posted yes, posted told",
        acts={"post yes": 1, "post told": 1},
        person=answering_the_child,
    ),
    Program(run=takes_along, gives=5, acts={"pay 5": 1}),
    Program(
        run=children_in_branches,
        gives={"a": 2, "b": 4},
        acts={"post child 1": 1, "post child 2": 1},
        order="path",
    ),
]

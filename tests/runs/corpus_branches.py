"""Branches side by side, with every join policy, and races (rule 6)."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.errors import StepError
from tests.runs.corpus_steps import Program, add, look, move, pay, post, refuse, team


def write_page(ctx: Any, name: str) -> str:
    seen = look(name)
    return post(f"{name}: {seen}")


@holdfast.run
def parallel_all(ctx: Any) -> dict[str, str]:
    pages = ctx.parallel(
        docs=ctx.branch(write_page, "docs"),
        code=ctx.branch(write_page, "code"),
        paid=ctx.branch(pay, 7),
    )
    post("joined")
    return pages


def failing(ctx: Any) -> None:
    post("before the failure")
    refuse("not this one")


@holdfast.run
def parallel_settle(ctx: Any) -> list[Any]:
    ended = ctx.parallel(join="settle", good=ctx.branch(add, 1, 1), bad=ctx.branch(failing))
    post("settled")
    return [ended["good"].value, ended["bad"].error.kind, ended["bad"].error.text]


@holdfast.run
def parallel_fails(ctx: Any) -> str:
    try:
        ctx.parallel(bad=ctx.branch(failing))
    except StepError as error:
        return post(error.kind)
    return "no error"


@holdfast.run
def quorum(ctx: Any) -> list[str]:
    found = ctx.parallel(
        join=2, a=ctx.branch(add, 1, 0), b=ctx.branch(add, 2, 0), bad=ctx.branch(refuse, "no")
    )
    post("enough")
    return sorted(found)


@holdfast.run
def quorum_missed(ctx: Any) -> str:
    """Too few branches can succeed: the block fails, the acts of the others stand."""
    try:
        ctx.parallel(
            join=2,
            good=ctx.branch(add, 1, 1),
            bad=ctx.branch(refuse, "no"),
            worse=ctx.branch(refuse, "no"),
        )
    except StepError as error:
        return post(f"{error.kind} {error.text}")
    return "no error"


@holdfast.run
def race(ctx: Any) -> list[str]:
    found = ctx.parallel(join="first", bad=ctx.branch(refuse, "no"), good=ctx.branch(add, 1, 1))
    post("won")
    return list(found)


def patient(ctx: Any) -> str:
    return ctx.wait("nobody answers")


@holdfast.run
def race_with_a_wait(ctx: Any) -> list[str]:
    """A branch that waits for a person who never comes is left behind."""
    found = ctx.parallel(join="first", slow=ctx.branch(patient), fast=ctx.branch(add, 1, 1))
    post("did not wait")
    return list(found)


@holdfast.run
def parallel_in_parallel(ctx: Any) -> dict[str, Any]:
    def inner(ctx: Any, name: str) -> dict[str, int]:
        return ctx.parallel(x=ctx.branch(add, 1, 1), y=ctx.branch(pay, len(name)))

    return ctx.parallel(one=ctx.branch(inner, "a"), two=ctx.branch(inner, "bb"))


@holdfast.run
def many_branches(ctx: Any) -> int:
    """More branches than a commit has room for in one round; names from data."""
    found = ctx.parallel({f"n/{number}": ctx.branch(pay, number) for number in range(12)})
    return sum(found.values())


@holdfast.run
def branches_in_a_loop(ctx: Any) -> list[dict[str, int]]:
    found: list[dict[str, int]] = []
    for number in ctx.repeat(2):
        found.append(ctx.parallel(a=ctx.branch(pay, number), b=ctx.branch(pay, number + 10)))
    return found


def stage(ctx: Any, name: str) -> list[str]:
    done: list[str] = []
    for number in ctx.repeat(2):
        done.append(post(f"{name}{number}"))
    return done


@holdfast.run
def loops_in_branches(ctx: Any) -> dict[str, Any]:
    return ctx.parallel(a=ctx.branch(stage, "a"), b=ctx.branch(stage, "b"))


def note(ctx: Any, name: str) -> int:
    team("notes").set(name, len(name))
    return pay(len(name))


@holdfast.run
def branches_that_write(ctx: Any) -> dict[str, int]:
    """Writes of bodies and a txn, side by side."""
    return ctx.parallel(
        one=ctx.branch(note, "a"), two=ctx.branch(note, "bb"), moved=ctx.branch(move, 10)
    )


def counting(ctx: Any, name: str) -> int:
    seen = ctx.let("seen", 0)
    for _ in ctx.repeat(3):
        seen.set(add(seen.value, 1))
    return seen.value


@holdfast.run
def variables_of_branches(ctx: Any) -> dict[str, int]:
    limit = ctx.const("limit", 2)
    found = ctx.parallel(a=ctx.branch(counting, "a"), b=ctx.branch(counting, "b"))
    post(f"limit {limit}")
    return found


BRANCHES = [
    Program(
        run=parallel_all,
        gives={"docs": "posted docs: seen docs", "code": "posted code: seen code", "paid": 7},
        acts={"post docs: seen docs": 1, "post code: seen code": 1, "pay 7": 1, "post joined": 1},
        order="path",
    ),
    Program(
        run=parallel_settle,
        gives=[2, "ValueError", "not this one"],
        acts={"post before the failure": 1, "post settled": 1},
        order="path",
    ),
    Program(
        run=parallel_fails,
        gives="posted ValueError",
        acts={"post before the failure": 1, "post ValueError": 1},
    ),
    Program(run=quorum, gives=["a", "b"], acts={"post enough": 1}, order="path"),
    Program(
        run=quorum_missed,
        gives="posted ValueError no",
        acts={"post ValueError no": 1},
        order="path",
    ),
    Program(run=race, gives=["good"], acts={"post won": 1}, order="path"),
    Program(run=race_with_a_wait, gives=["fast"], acts={"post did not wait": 1}, order="path"),
    Program(
        run=parallel_in_parallel,
        gives={"one": {"x": 2, "y": 1}, "two": {"x": 2, "y": 2}},
        acts={"pay 1": 1, "pay 2": 1},
        order="path",
    ),
    Program(run=many_branches, gives=66, acts={f"pay {n}": 1 for n in range(12)}, order="path"),
    Program(
        run=branches_in_a_loop,
        gives=[{"a": 0, "b": 10}, {"a": 1, "b": 11}],
        acts={"pay 0": 1, "pay 10": 1, "pay 1": 1, "pay 11": 1},
        order="path",
    ),
    Program(
        run=loops_in_branches,
        gives={"a": ["posted a0", "posted a1"], "b": ["posted b0", "posted b1"]},
        acts={"post a0": 1, "post a1": 1, "post b0": 1, "post b1": 1},
        order="path",
    ),
    Program(
        run=branches_that_write,
        gives={"one": 1, "two": 2, "moved": 90},
        acts={"pay 1": 1, "pay 2": 1},
        states={"team/notes": {"a": 1, "bb": 2}, "team/a": {"n": 90}, "team/b": {"n": 10}},
        order="path",
    ),
    Program(
        run=variables_of_branches,
        gives={"a": 3, "b": 3},
        acts={"post limit 2": 1},
        order="path",
    ),
]

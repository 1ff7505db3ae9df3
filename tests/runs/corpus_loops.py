"""Loops, folds, nested runs and recursion (rule 4)."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.errors import StepError
from tests.runs.corpus_steps import Program, add, look, pay, post, refuse


@holdfast.run
def loop_each(ctx: Any, names: list[str]) -> list[str]:
    done: list[str] = []
    for name in ctx.each(names):
        done.append(post(name))
        if name == "c":
            break
    return [*done, post("after")]


@holdfast.run
def loop_repeat(ctx: Any) -> int:
    total = ctx.let("total", 0)
    for number in ctx.repeat(4):
        total.set(add(total.value, number))
        if number == 2:
            post(f"half {total.value}")
    return total.value


@holdfast.run
def loop_in_loop(ctx: Any) -> list[int]:
    found: list[int] = []
    for outer in ctx.repeat(2):
        for inner in ctx.each(["x", "y"], by=str):
            found.append(add(outer, len(inner)))
            pay(outer * 10 + len(found))
    return found


@holdfast.run
def loop_continues(ctx: Any) -> list[int]:
    """Iterations that are left early, and the same step twice in one of them."""
    kept: list[int] = []
    for number in ctx.repeat(5):
        if add(number, 0) % 2:
            continue
        kept.append(pay(number))
        pay(number + 100)
    return kept


@holdfast.run
def open_loop(ctx: Any) -> int:
    """A `while` of Python's: occurrences of a step are counted within the body."""
    total = 0
    while total < 6:
        total = add(total, 2)
        post(f"at {total}")
    return total


def scan(ctx: Any, total: int, item: int) -> int:
    if item % 2:
        post(f"odd {item}")
    return add(total, item)


@holdfast.run
def folding(ctx: Any) -> int:
    return ctx.fold("scan", [1, 2, 3, 4], init=0, body=scan)


@holdfast.run
def fold_of_steps(ctx: Any) -> int:
    """A step as the body; the fold twice, under one name."""
    one = ctx.fold("sum", [1, 2, 3], init=0, body=add)
    post(f"sum {one}")
    return ctx.fold("sum", [one, one], init=0, body=add)


def row(ctx: Any, total: int, items: list[int]) -> int:
    return total + ctx.fold("row", items, init=0, body=scan)


@holdfast.run
def nested_folds(ctx: Any) -> int:
    return ctx.reduce("rows", [[1, 2], [3]], 0, row)


def page(ctx: Any, found: list[str], name: str) -> list[str]:
    for number in ctx.repeat(2):
        look(f"{name}{number}")
        found = [*found, post(f"{name}{number}")]
    return found


@holdfast.run
def loops_in_folds(ctx: Any) -> list[str]:
    found: list[str] = []
    for name in ctx.each(["a", "b"]):
        found = ctx.fold("pages", [name], init=found, body=page)
    return found


@holdfast.run
def inner(ctx: Any, depth: int, name: str) -> int:
    if depth == 0:
        post(f"bottom {name}")
        return 1
    total = 0
    for _ in ctx.repeat(1):
        total += ctx.fold("down", [depth], init=0, body=deeper)
    return total


def deeper(ctx: Any, total: int, depth: int) -> int:
    both = ctx.parallel(
        l=ctx.branch(inner, depth - 1, f"l{depth}"), r=ctx.branch(inner, depth - 1, f"r{depth}")
    )
    return total + sum(both.values())


@holdfast.run
def deep_blocks(ctx: Any) -> int:
    """A branch in a fold in a loop in a run in a branch, three times over."""
    total = inner(2, "top")
    post("out")
    return total


@holdfast.run
def countdown(ctx: Any, n: int) -> list[str]:
    return [] if n == 0 else [post(f"{n}"), *countdown(n - 1)]


@holdfast.run
def is_even(ctx: Any, n: int) -> bool:
    pay(n)
    return n == 0 or is_odd(n - 1)


@holdfast.run
def is_odd(ctx: Any, n: int) -> bool:
    pay(n)
    return n != 0 and is_even(n - 1)


@holdfast.run
def cubes(ctx: Any, n: int) -> list[int]:
    return [pay(number**3) for number in ctx.each(list(range(n)))]


@holdfast.run
def nested_runs(ctx: Any) -> list[Any]:
    """The same run twice, on other inputs; a finished one is not entered again."""
    one = ctx.run(cubes, 2)
    post("between")
    return [one, cubes(3)]


@holdfast.run
def fragile(ctx: Any, why: str) -> None:
    post(f"trying {why}")
    refuse(why)


@holdfast.run
def nested_fails(ctx: Any) -> list[str]:
    said: list[str] = []
    for why in ctx.each(["one", "two"]):
        try:
            fragile(why)
        except StepError as error:
            said.append(f"{error.kind} {error.text}")
    return [*said, post("went on")]


LOOPS = [
    Program(
        run=loop_each,
        args=(["a", "b", "c", "d"],),
        gives=["posted a", "posted b", "posted c", "posted after"],
        acts={"post a": 1, "post b": 1, "post c": 1, "post after": 1},
    ),
    Program(run=loop_repeat, gives=6, acts={"post half 3": 1}),
    Program(
        run=loop_in_loop,
        gives=[1, 1, 2, 2],
        acts={"pay 1": 1, "pay 2": 1, "pay 13": 1, "pay 14": 1},
    ),
    Program(
        run=loop_continues,
        gives=[0, 2, 4],
        acts={f"pay {n}": 1 for n in (0, 100, 2, 102, 4, 104)},
    ),
    Program(run=open_loop, gives=6, acts={"post at 2": 1, "post at 4": 1, "post at 6": 1}),
    Program(run=folding, gives=10, acts={"post odd 1": 1, "post odd 3": 1}),
    Program(run=fold_of_steps, gives=12, acts={"post sum 6": 1}),
    Program(run=nested_folds, gives=6, acts={"post odd 1": 1, "post odd 3": 1}),
    Program(
        run=loops_in_folds,
        gives=["posted a0", "posted a1", "posted b0", "posted b1"],
        acts={"post a0": 1, "post a1": 1, "post b0": 1, "post b1": 1},
    ),
    Program(
        run=deep_blocks,
        gives=4,
        acts={"post bottom l1": 2, "post bottom r1": 2, "post out": 1},
        order="path",
    ),
    Program(
        run=countdown,
        args=(3,),
        gives=["posted 3", "posted 2", "posted 1"],
        acts={"post 3": 1, "post 2": 1, "post 1": 1},
    ),
    Program(
        run=is_even, args=(3,), gives=False, acts={"pay 3": 1, "pay 2": 1, "pay 1": 1, "pay 0": 1}
    ),
    Program(
        run=nested_runs,
        gives=[[0, 1], [0, 1, 8]],
        acts={"pay 0": 2, "pay 1": 2, "pay 8": 1, "post between": 1},
    ),
    Program(
        run=nested_fails,
        gives=["ValueError one", "ValueError two", "posted went on"],
        acts={"post trying one": 1, "post trying two": 1, "post went on": 1},
    ),
]

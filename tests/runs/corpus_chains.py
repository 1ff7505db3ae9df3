"""Chains of steps, values of every kind, variables, chance (rules 1, 4, 7)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import holdfast
from holdfast.errors import StepError
from tests.runs.corpus_steps import Order, Program, add, cry, look, order, pay, post, ship
from tests.runs.witness import WITNESS, was_done

LARGE = 100_000


@holdfast.run
def pure_chain(ctx: Any) -> int:
    total = 0
    for number in range(5):
        total = add(total, number)
    return total


@holdfast.run
def effect_chain(ctx: Any, n: int) -> list[str]:
    return [post(f"{number}") for number in range(n)]


@holdfast.run
def mixed(ctx: Any) -> dict[str, Any]:
    seen = look("page")
    paid = pay(add(3, 4))
    return {"seen": seen, "paid": paid, "said": post(f"{seen} {paid}")}


@holdfast.run
def unverified(ctx: Any) -> list[str]:
    return [cry("wolf"), post("between"), cry("fire")]


@holdfast.run
def typed(ctx: Any) -> int:
    wanted = order("book")
    assert isinstance(wanted, Order)
    return ship(wanted)


@holdfast.step(effect="pure")
def pair(a: int, b: int) -> Any:
    return (a, {"b": (b, b)})


@holdfast.run
def plain_values(ctx: Any) -> list[str]:
    """What a step returns is what is stored of it, live as in a replay (rule 1)."""
    one = pair(1, 2)
    post(type(one).__name__)
    two = ctx.let("two", (3, 4)).value
    post(type(two).__name__)
    return [type(one).__name__, type(one[1]["b"]).__name__, type(two).__name__]


@holdfast.run
def large_variable(ctx: Any) -> int:
    text = ctx.let("text", "x" * LARGE)
    post("large")
    return len(text.value)


@holdfast.step(effect="effect", verify=was_done)
def fetch(ctx: Any, fill: str) -> str:
    WITNESS.act(ctx.key, f"fetch {fill[:1]}", fill)
    return fill


@holdfast.run
def large_results(ctx: Any) -> list[int]:
    """Results and inputs that are blobs."""
    one = fetch("a" * LARGE)
    two = fetch(one.replace("a", "b"))
    post("both")
    return [len(one), len(two), len(set(one + two))]


@holdfast.step(effect="effect", verify=was_done)
def odd(ctx: Any, what: str) -> Any:
    WITNESS.act(ctx.key, f"odd {what}", what)
    return object()


@holdfast.step(effect="pure")
def odd_thought() -> Any:
    return object()


@holdfast.run
def unencodable(ctx: Any) -> list[str]:
    """An effect whose result cannot be stored is done, and never repeated (rule 1).

    What becomes of the result is its own matter: after a crash a verifier may know one.
    """
    said: list[str] = []
    for number in ctx.repeat(2):
        with suppress(StepError):
            odd(f"{number}")
    try:
        odd_thought()
    except StepError as error:
        said.append(error.kind)
    post("after")
    return said


@holdfast.run
def keyed(ctx: Any) -> list[str]:
    """Operations with keys of their own: the order among them is free."""
    one = ctx.step(post, "one", key="a/1")
    two = ctx.step(post, "two", key="b#2")
    return [one, two, ctx.step(post, "one", key="[3]=%")]


@holdfast.run
def variables(ctx: Any) -> list[Any]:
    limit = ctx.const("limit", 3)
    words = ctx.let("words", [])
    for number in ctx.repeat(2):
        word = ctx.let("word", f"w{number}")
        words.set([*words.value, word.value])
        ctx.variable("word").set(post(word.value))
    return [limit, words.value, ctx.variable("words").value]


@holdfast.run
def chance(ctx: Any) -> bool:
    drawn = [ctx.uuid(), str(ctx.random()), ctx.now().isoformat()]
    pay(len(drawn[0]))
    said = ctx.let("said", drawn)
    pay(1)
    return said.value == drawn and len(set(drawn)) == 3


@holdfast.run
def chance_decides(ctx: Any) -> int:
    """A drawn number steers: a replay must go the same way, or it would diverge."""
    for _ in ctx.repeat(3):
        if ctx.random() < 0.5:
            pay(1)
            post("2")
        else:
            post("2")
            pay(1)
    return len(ctx.uuid())


CHAINS = [
    Program(run=pure_chain, gives=10),
    Program(
        run=effect_chain,
        args=(4,),
        gives=["posted 0", "posted 1", "posted 2", "posted 3"],
        acts={"post 0": 1, "post 1": 1, "post 2": 1, "post 3": 1},
    ),
    Program(
        run=mixed,
        gives={"seen": "seen page", "paid": 7, "said": "posted seen page 7"},
        acts={"pay 7": 1, "post seen page 7": 1},
    ),
    Program(
        run=unverified,
        gives=["cried wolf", "posted between", "cried fire"],
        acts={"cry wolf": 1, "post between": 1, "cry fire": 1},
        is_unverified=True,
    ),
    Program(run=typed, gives=2, acts={"ship book 2": 1}),
    Program(run=plain_values, gives=["list", "list", "list"], acts={"post list": 2}),
    Program(run=large_variable, gives=LARGE, acts={"post large": 1}),
    Program(
        run=large_results,
        gives=[LARGE, LARGE, 2],
        acts={"fetch a": 1, "fetch b": 1, "post both": 1},
    ),
    Program(
        run=unencodable,
        gives=["ValueDomainError"],
        acts={"odd 0": 1, "odd 1": 1, "post after": 1},
    ),
    Program(
        run=keyed,
        gives=["posted one", "posted two", "posted one"],
        acts={"post one": 2, "post two": 1},
    ),
    Program(
        run=variables,
        gives=[3, ["w0", "w1"], ["w0", "w1"]],
        acts={"post w0": 1, "post w1": 1},
    ),
    Program(run=chance, gives=True, acts={"pay 36": 1, "pay 1": 1}, by_chance=True),
    Program(
        run=chance_decides, gives=36, acts={"pay 1": 3, "post 2": 3}, by_chance=True, order="path"
    ),
]

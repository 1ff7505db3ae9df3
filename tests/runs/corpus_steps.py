"""What the programs of the corpus are made of: steps of every class, and what a program is.

Acts go through the witness, by key, so that an outside world can count them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

import holdfast
from holdfast import Store
from holdfast.runs import Retry
from tests.runs.witness import WITNESS, was_done

STORES: dict[str, Store] = {}
"""The store that the program is running on, for bodies that write to it."""

Acts = dict[str, int]


class Program(Struct, frozen=True, kw_only=True):
    """One program, what the world around it does, and what it gives if nothing interrupts it."""

    run: Any
    args: tuple[Any, ...] = ()
    gives: Any = None
    """The result; of a failure its kind and text; of a stop the word "cancelled"."""
    acts: Acts = {}
    states: dict[str, Any] = {}
    """What scopes hold at the end, by name."""
    person: Callable[[Store, str], object] | None = None
    """Called again and again while the run waits."""
    order: Literal["journal", "path"] = "journal"
    """What two journals of it have in common: their order, or that within each path."""
    by_chance: bool = False
    """Whether its journal holds values that differ each time."""
    is_unverified: bool = False
    """Whether an act of it may be reported as uncertain, because nobody can be asked."""

    @property
    def name(self) -> str:
        return self.run.name.rpartition(":")[2]


class Order(Struct, frozen=True):
    """A value that is no plain one."""

    item: str
    count: int


class Busy(Exception):
    """Nothing was done."""


class Told(Exception):
    """An error that says more than its text."""

    def __init__(self, text: str, data: Any) -> None:
        super().__init__(text)
        self.data = data


def here() -> Store:
    """Returns the store that the program runs on."""
    return STORES["here"]


def team(id: str) -> Any:
    """Returns a scope of that store."""
    return here().team(id)


# --- pure and read -------------------------------------------------------------------------------


@holdfast.step(effect="pure")
def add(a: int, b: int) -> int:
    WITNESS.call("add")
    return a + b


@holdfast.step(effect="read")
def look(name: str) -> str:
    WITNESS.call("look")
    return f"seen {name}"


@holdfast.step(effect="pure")
def order(item: str) -> Order:
    return Order(item, 2)


@holdfast.step(effect="pure")
def refuse(why: str) -> None:
    raise ValueError(why)


@holdfast.step(effect="pure", retry=Retry(2, wait_s=0.001))
def always_fails() -> None:
    raise OSError("no")


# --- acts ----------------------------------------------------------------------------------------


@holdfast.step(effect="effect", verify=was_done)
def post(ctx: Any, text: str) -> str:
    return WITNESS.act(ctx.key, f"post {text}", f"posted {text}")


@holdfast.step(effect="effect")
def cry(ctx: Any, text: str) -> str:
    """An act that nobody can be asked about."""
    return WITNESS.act(ctx.key, f"cry {text}", f"cried {text}")


@holdfast.step(effect="effect", verify=was_done)
def ship(ctx: Any, what: Order) -> int:
    return WITNESS.act(ctx.key, f"ship {what.item} {what.count}", what.count)


@holdfast.step(effect="idempotent")
def pay(ctx: Any, amount: int) -> int:
    return WITNESS.act_once(ctx.key, f"pay {amount}", amount)


@holdfast.step(effect="effect", verify=was_done, not_done=Busy, retry=Retry(3, wait_s=0.001))
def post_late(ctx: Any, text: str) -> str:
    if ctx.attempt < 3:
        raise Busy("come again")
    return WITNESS.act(ctx.key, f"late {text}", f"attempt {ctx.attempt}")


@holdfast.step(effect="txn")
def move(tx: Any, amount: int) -> int:
    """Moves an amount from one scope to another; both, and the record of it, or nothing."""
    left = tx.scope(team("a")).get("n", 100) - amount
    tx.scope(team("a")).set("n", left)
    tx.scope(team("b")).increment("n", amount)
    return left

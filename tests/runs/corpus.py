"""Run programs whose outcome is known: cut anywhere and resumed, each must end as if never cut.

To add one: write a run, and put a `Program` into `PROGRAMS`. Its acts go through the witness, by
key. `person` is called again and again while the run waits; `scopes` are compared at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct

import holdfast
from holdfast import Store
from holdfast.errors import ExistsError, NotFoundError, StepError, UsageError
from holdfast.runs import Retry
from tests.runs.witness import WITNESS, was_done


class Program(Struct, frozen=True):
    """One program, and what the world around it does."""

    name: str
    run: Any
    args: tuple[Any, ...] = ()
    person: Callable[[Store, str], object] | None = None
    scopes: tuple[str, ...] = ()
    fails: bool = False


class Order(Struct, frozen=True):
    """A value that is no plain one."""

    item: str
    count: int


# --- steps ---------------------------------------------------------------------------------------


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


@holdfast.step(effect="effect", verify=was_done)
def post(ctx: Any, text: str) -> str:
    return WITNESS.act(ctx.key, f"post {text}", f"posted {text}")


@holdfast.step(effect="effect", verify=was_done)
def ship(ctx: Any, what: Order) -> int:
    return WITNESS.act(ctx.key, f"ship {what.item} {what.count}", what.count)


@holdfast.step(effect="idempotent")
def pay(ctx: Any, amount: int) -> int:
    if ctx.key not in WITNESS.outputs:
        WITNESS.act(ctx.key, f"pay {amount}", amount)
    return WITNESS.outputs[ctx.key]


@holdfast.step(effect="pure")
def refuse(why: str) -> None:
    raise ValueError(why)


class Busy(Exception):
    """Nothing was done."""


@holdfast.step(effect="effect", verify=was_done, not_done=Busy, retry=Retry(3, wait_s=0.001))
def post_late(ctx: Any, text: str) -> str:
    if ctx.attempt < 3:
        raise Busy("come again")
    return WITNESS.act(ctx.key, f"late {text}", f"attempt {ctx.attempt}")


@holdfast.step(effect="pure", retry=Retry(2, wait_s=0.001))
def always_fails() -> None:
    raise OSError("no")


@holdfast.step(effect="txn")
def move(tx: Any, hf_name: str, amount: int) -> int:
    source, target = _scope(hf_name, "a"), _scope(hf_name, "b")
    left = tx.scope(source).get("n", 100) - amount
    tx.scope(source).set("n", left)
    tx.scope(target).increment("n", amount)
    return left


STORES: dict[str, Store] = {}
"""The store that the program is running on, for bodies that write to it."""


def _scope(name: str, id: str) -> Any:
    return STORES[name].team(id)


# --- programs ------------------------------------------------------------------------------------


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
def typed(ctx: Any) -> int:
    wanted = order("book")
    assert isinstance(wanted, Order)
    return ship(wanted)


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


def scan(ctx: Any, total: int, item: int) -> int:
    if item % 2:
        post(f"odd {item}")
    return add(total, item)


@holdfast.run
def folding(ctx: Any) -> int:
    return ctx.fold("scan", [1, 2, 3, 4], init=0, body=scan)


def row(ctx: Any, total: int, items: list[int]) -> int:
    return total + ctx.fold("row", items, init=0, body=scan)


@holdfast.run
def nested_folds(ctx: Any) -> int:
    return ctx.reduce("rows", [[1, 2], [3]], 0, row)


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
def race(ctx: Any) -> list[str]:
    found = ctx.parallel(join="first", bad=ctx.branch(refuse, "no"), good=ctx.branch(add, 1, 1))
    post("won")
    return list(found)


@holdfast.run
def parallel_in_parallel(ctx: Any) -> dict[str, Any]:
    def inner(ctx: Any, name: str) -> dict[str, int]:
        return ctx.parallel(x=ctx.branch(add, 1, 1), y=ctx.branch(pay, len(name)))

    return ctx.parallel(one=ctx.branch(inner, "a"), two=ctx.branch(inner, "bb"))


@holdfast.run
def retried(ctx: Any) -> str:
    return post_late("x")


@holdfast.run
def caught(ctx: Any) -> list[str]:
    said: list[str] = []
    try:
        always_fails()
    except StepError as error:
        said.append(post(f"{error.kind} {error.text}"))
    return said


@holdfast.run
def failed(ctx: Any) -> None:
    post("before")
    raise KeyError("nothing here")


@holdfast.run
def countdown(ctx: Any, n: int) -> list[str]:
    return [] if n == 0 else [post(f"{n}"), *countdown(n - 1)]


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
def transactions(ctx: Any, store: str) -> int:
    move(store, 10)
    post("moved")
    return ctx.txn(move, store, 5)


@holdfast.run
def body_writes(ctx: Any, store: str) -> int:
    team = _scope(store, "t")
    for number in ctx.repeat(3):
        team.increment("n", number)
        post(f"wrote {number}")
    ctx.state.append("log", "end")
    return ctx.read(team, "n")


@holdfast.run
def reads(ctx: Any, store: str) -> list[Any]:
    team = _scope(store, "r")
    before = ctx.read(team, "n", 0)
    team.set("n", before + 1)
    post(f"n was {before}")
    return [before, ctx.read(team)]


@holdfast.run
def blocks_of_variables(ctx: Any) -> list[Any]:
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
def large(ctx: Any) -> int:
    text = ctx.let("text", "x" * 100_000)
    post("large")
    return len(text.value)


def answering(store: Store, id: str) -> None:
    with suppress(ExistsError, NotFoundError, UsageError):
        store.answer(id, "approve", {"ok": True})


@holdfast.run
def approval(ctx: Any) -> str:
    post("asked")
    answer = ctx.wait("approve", timeout="1h", default={"ok": False})
    return post(f"answer {answer['ok']}")


@holdfast.run
def expired(ctx: Any) -> Any:
    try:
        ctx.wait("nobody", timeout=0.01)
    except StepError as error:
        return [post(error.kind), ctx.wait("nobody", timeout=0.01, default="none")]


def signalling(store: Store, id: str) -> None:
    try:
        for number in range(2):
            store.signal(id, "go", number, id=f"go-{number}")
        store.send(id, "steer", "left", id="steer-1")
    except UsageError:
        pass


@holdfast.run
def signals(ctx: Any) -> list[Any]:
    first = ctx.signal("go")
    post(f"signal {first}")
    second = ctx.signal("go")
    while not (came := ctx.inbox("steer")):
        ctx.sleep(0.01)
    return [first, second, [message.value for message in came]]


@holdfast.run
def sleeping(ctx: Any) -> str:
    ctx.sleep(0.01)
    post("awake")
    ctx.sleep("0.3s")
    return post("up")


PROGRAMS = [
    Program("pure_chain", pure_chain),
    Program("effect_chain", effect_chain, (4,)),
    Program("mixed", mixed),
    Program("typed", typed),
    Program("loop_each", loop_each, (["a", "b", "c", "d"],)),
    Program("loop_repeat", loop_repeat),
    Program("loop_in_loop", loop_in_loop),
    Program("folding", folding),
    Program("nested_folds", nested_folds),
    Program("parallel_all", parallel_all),
    Program("parallel_settle", parallel_settle),
    Program("parallel_fails", parallel_fails),
    Program("quorum", quorum),
    Program("race", race),
    Program("parallel_in_parallel", parallel_in_parallel),
    Program("retried", retried),
    Program("caught", caught),
    Program("failed", failed, fails=True),
    Program("countdown", countdown, (3,)),
    Program("parent", parent),
    Program("transactions", transactions, ("here",), scopes=("team/a", "team/b")),
    Program("body_writes", body_writes, ("here",), scopes=("team/t", "workflow/p")),
    Program("reads", reads, ("here",), scopes=("team/r",)),
    Program("blocks_of_variables", blocks_of_variables),
    Program("chance", chance),
    Program("large", large),
    Program("approval", approval, person=answering),
    Program("expired", expired),
    Program("signals", signals, person=signalling),
    Program("sleeping", sleeping),
]

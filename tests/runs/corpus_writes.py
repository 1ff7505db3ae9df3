"""Writes to the same store: txn steps, commits of the body, reads that steer (rules 3, 11)."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.errors import StepError
from tests.runs.corpus_steps import Program, add, here, move, pay, post, team


@holdfast.run
def transactions(ctx: Any) -> int:
    move(10)
    post("moved")
    return ctx.txn(move, 5)


@holdfast.step(effect="txn")
def overdraw(tx: Any) -> None:
    tx.scope(team("a")).set("n", -1)
    raise ValueError("too much")


@holdfast.run
def failed_txn(ctx: Any) -> list[Any]:
    """What a txn that raises had written is not there."""
    try:
        overdraw()
    except StepError as error:
        return [error.kind, error.outcome, move(1)]
    return []


@holdfast.run
def txn_in_a_loop(ctx: Any) -> list[int]:
    return [move(number) for number in ctx.each([1, 2, 3])]


def settle_up(tx: Any, total: int) -> int:
    tx.scope(team("a")).increment("total", total)
    return total


@holdfast.run
def plain_txn(ctx: Any) -> int:
    """A plain function given to ctx.txn, between acts."""
    paid = pay(3)
    total = ctx.txn(settle_up, paid)
    return total + pay(4)


def note_down(tx: Any, text: str) -> int:
    """State, a message and a task, with the step's own record: one commit."""
    desk = tx.scope(team("a"))
    desk.increment("notes")
    desk.messages.add("user", text)
    desk.tasks.add(text)
    return len(desk.messages) * 10 + len(list(desk.tasks.list()))


@holdfast.run
def recording_txn(ctx: Any) -> list[int]:
    """Recorders take part in a txn; killed anywhere, each item is there once."""
    first = ctx.txn(note_down, "one")
    pay(3)
    return [first, ctx.txn(note_down, "two")]


@holdfast.run
def body_writes(ctx: Any) -> int:
    for number in ctx.repeat(3):
        team("t").increment("n", number)
        post(f"wrote {number}")
    ctx.state.append("log", "end")
    return ctx.read(team("t"), "n")


@holdfast.run
def joint_writes(ctx: Any) -> int:
    """Commits over two scopes in the body; each has its key from its place in the run."""
    for number in ctx.each([1, 2]):
        with here().commit() as tx:
            tx.scope(team("x")).increment("n", number)
            tx.scope(team("y")).append("log", number)
        pay(number)
    return ctx.read(team("x"), "n")


@holdfast.run
def edits(ctx: Any) -> int:
    """Read, change, commit, in the body."""
    seen = ctx.read(team("e"), "n", 0)
    team("e").update({"n": seen + 1, "by": "run"})
    post(f"saw {seen}")
    team("e").increment("n", 1)
    return add(seen, 2)


@holdfast.run
def reads(ctx: Any) -> list[Any]:
    before = ctx.read(team("r"), "n", 0)
    team("r").set("n", before + 1)
    post(f"n was {before}")
    return [before, ctx.read(team("r"))]


@holdfast.run
def reads_steer(ctx: Any) -> list[str]:
    """The run changes what it read: a replay must go by what it read, not by what is there."""
    said: list[str] = []
    while ctx.read(team("s"), "n", 0) < 3:
        team("s").increment("n", 1)
        said.append(post(f"round {len(said)}"))
    return said


@holdfast.step(effect="idempotent")
def write_in_step(ctx: Any, n: int) -> int:
    team("w").set("n", n)
    return n


@holdfast.run
def step_writes(ctx: Any) -> int:
    """A write inside a step: its class says what a repetition does."""
    return write_in_step(write_in_step(2) + 1)


@holdfast.step(effect="idempotent")
def write_elsewhere(ctx: Any, n: int) -> Any:
    with holdfast.open("memory:") as other, here().workers.lease("team/w"):
        with other.workers.lease("team/w"):
            team("w").set("n", n)
        other.team("w").set("n", n + 1)
        return other.team("w").get("n")


@holdfast.run
def two_stores(ctx: Any) -> int:
    """Steps that write to this store and to another, each under a lease of its own."""
    return write_elsewhere(write_elsewhere(2))


WRITES = [
    Program(
        run=transactions,
        gives=85,
        acts={"post moved": 1},
        states={"team/a": {"n": 85}, "team/b": {"n": 15}},
    ),
    Program(
        run=failed_txn,
        gives=["ValueError", "not done", 99],
        states={"team/a": {"n": 99}, "team/b": {"n": 1}},
    ),
    Program(
        run=txn_in_a_loop,
        gives=[99, 97, 94],
        states={"team/a": {"n": 94}, "team/b": {"n": 6}},
    ),
    Program(run=recording_txn, gives=[11, 22], acts={"pay 3": 1}, states={"team/a": {"notes": 2}}),
    Program(run=plain_txn, gives=7, acts={"pay 3": 1, "pay 4": 1}, states={"team/a": {"total": 3}}),
    Program(
        run=body_writes,
        gives=3,
        acts={"post wrote 0": 1, "post wrote 1": 1, "post wrote 2": 1},
        states={"team/t": {"n": 3}, "workflow/p": {"log": ["end"]}},
    ),
    Program(
        run=joint_writes,
        gives=3,
        acts={"pay 1": 1, "pay 2": 1},
        states={"team/x": {"n": 3}, "team/y": {"log": [1, 2]}},
    ),
    Program(run=edits, gives=2, acts={"post saw 0": 1}, states={"team/e": {"n": 2, "by": "run"}}),
    Program(run=reads, gives=[0, {"n": 1}], acts={"post n was 0": 1}, states={"team/r": {"n": 1}}),
    Program(
        run=reads_steer,
        gives=["posted round 0", "posted round 1", "posted round 2"],
        acts={"post round 0": 1, "post round 1": 1, "post round 2": 1},
        states={"team/s": {"n": 3}},
    ),
    Program(run=step_writes, gives=3, states={"team/w": {"n": 3}}),
    Program(run=two_stores, gives=4, states={"team/w": {"n": 3}}),
]

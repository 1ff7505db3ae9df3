"""What a fork inherits and what it shares: writes, its own state, children (rules 3, 12)."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast import Store
from tests.runs.corpus import pay
from tests.runs.cuts import until
from tests.runs.test_endings import asked
from tests.runs.witness import Witness

STORE: list[Store] = []


@holdfast.run(name="tests:writes and pays")
def writes_and_pays(ctx: Any) -> list[Any]:
    team = STORE[0].team("t")
    team.increment("n")
    ctx.state.append("log", "begun")
    pay(1)
    ctx.state.append("log", "paid")
    return [ctx.read(team, "n"), ctx.read(ctx.state, "log")]


def test_a_write_that_a_fork_inherited_is_not_made_again(hf: Store, witness: Witness):
    """Rule 12: inherited records keep their idempotency keys, and writes have one each."""
    STORE[:] = [hf]
    assert hf.runs.start(writes_and_pays, id="r").result() == [1, ["begun", "paid"]]
    hf.runs.fork("r", "pay", id="f", effects="live")
    assert hf.runs.resume("f").result() == [1, ["begun", "paid"]]
    hf.runs.fork("f", "pay", id="ff", effects="live")
    assert hf.runs.resume("ff").result() == [1, ["begun", "paid"]]
    assert hf.team("t")["n"] == 1
    assert hf.workflow("r")["log"] == ["begun", "paid"]
    assert witness.acts == {"pay 1": 3}


@holdfast.run(name="tests:begun before the fork")
def begun_before_the_fork(ctx: Any) -> str:
    ctx.child(asked, id="kid")
    pay(1)
    return ctx.wait("end")


def test_the_end_of_a_fork_does_nothing_to_a_child_that_it_shares(hf: Store, witness: Witness):
    until(hf.runs.start(begun_before_the_fork, id="r"), "waiting")
    hf.runs.fork("r", "pay", id="f", effects="live")
    until(hf.runs.resume("f"), "waiting")
    hf.runs.answer("f", "end", "over")
    assert hf.runs.get("f").result() == "over"
    hf.runs.fork("r", "pay", id="g", effects="live")
    until(hf.runs.resume("g"), "waiting")
    hf.runs.cancel("g")
    until(hf.runs.get("kid"), "waiting")
    hf.runs.answer("r", "end", "over")
    assert hf.runs.get("r").result() == "over"
    until(hf.runs.get("kid"), "cancelled")

"""`ctx.loop`: it is left when its body says so; what it says of itself; what it left unread."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import NeedsAttentionError, Store
from holdfast.runs.blocks import LoopPosition
from tests.runs.cuts import until

ACTS: list[int] = []
LIMIT = {"n": 3}


@holdfast.step(effect="idempotent", name="loop-act")
def act(n: int) -> int:
    ACTS.append(n)
    return n


@holdfast.run(name="left-loop")
def leaving(ctx: Any, most: int | None = None) -> Any:
    said: list[str] = []
    for n in ctx.loop(most):
        said += ctx.progress.blocks
        act(n)
        if n + 1 == LIMIT["n"]:
            break
    answer = ctx.wait("go") if most is None else None
    return [said, answer]


@pytest.fixture(autouse=True)
def fresh() -> None:
    ACTS.clear()
    LIMIT["n"] = 3


def test_a_loop_says_how_far_it_is(hf: Store):
    said, _ = hf.runs.start(leaving, 5).result()
    assert said == [f"loop: iteration {n}, at most 5" for n in (1, 2, 3)]
    assert str(LoopPosition("loop", 2, None, "loop")) == "loop: iteration 3"
    assert str(LoopPosition("each", 2, 4)) == "each: iteration 3 of 4"


def test_a_loop_ends_at_its_most(hf: Store):
    LIMIT["n"] = 99
    assert len(hf.runs.start(leaving, 4).result()[0]) == 4
    assert ACTS == [0, 1, 2, 3]


def test_a_loop_without_a_most_is_shown_from_its_journal(hf: Store):
    run = hf.runs.start(leaving, id="endless")
    until(run, "waiting")
    assert run.progress.blocks == ()
    journal = hf.runs.get("endless").journal
    assert [path for path in journal.entries if path.startswith("loop[")] == [
        f"loop[{n}]/loop-act" for n in range(3)
    ]
    hf.runs.answer("endless", "go", 1)
    said = [f"loop: iteration {n}" for n in (1, 2, 3)]
    assert hf.runs.get("endless").result() == [said, 1]
    assert ACTS == [0, 1, 2]


def test_a_loop_that_is_left_earlier_than_before_diverges(hf: Store):
    run = hf.runs.start(leaving, id="shorter")
    until(run, "waiting")
    LIMIT["n"] = 2
    hf.runs.answer("shorter", "go", 1)
    with pytest.raises(NeedsAttentionError, match=r"loop\[2\]"):
        hf.runs.resume("shorter").result()
    assert ACTS == [0, 1, 2]


def test_a_loop_takes_a_whole_number():
    @holdfast.run(name="left-wrong")
    def wrong(ctx: Any) -> None:
        for _ in ctx.loop(0):
            pass

    with holdfast.open("memory:") as hf, pytest.raises(Exception, match="max"):
        hf.runs.start(wrong).result()

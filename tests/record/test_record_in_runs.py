"""The record within runs: a body that is entered again decides nothing twice (rule 3)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Done, Store, UsageError
from holdfast.errors import UndecidedError
from tests.crash.children import Child
from tests.record.kills import open_dying
from tests.record.stores import new_url

DIES = "HOLDFAST_TEST_DIES"
STORES: list[Store] = []
"""The store that a run's body writes to, in whichever process it runs."""


def die_at(place: str) -> None:
    if os.environ.get(DIES) == place:
        os.kill(os.getpid(), signal.SIGKILL)


@holdfast.verifier(name="in-runs:paid")
def paid(decision: Any) -> Done:
    return Done("found paid")


@holdfast.run(name="in-runs:decides")
def decides(ctx: holdfast.Context) -> list[str]:
    chat = STORES[-1].conversation("c")
    with chat.decide("refund", action="POST /refunds", verify=paid) as first:
        die_at("in the block")
        first.outcome("refunded")
    second = chat.decide("say so", key="of-mine")
    third = chat.decide("say so")
    task = chat.tasks.add("write the letter")
    die_at("behind three")
    second.outcome("said")
    third.outcome("said twice")
    return [first.key, second.key, third.key, task.id]


@pytest.mark.parametrize("backend", ["files", "sqlite"])
@pytest.mark.parametrize("place", ["in the block", "behind three"])
@pytest.mark.parametrize("recovers", [False, True])
def test_a_resumed_run_decides_nothing_twice(
    backend: str, place: str, recovers: bool, tmp_path: Path
) -> None:
    """A decision's id comes from the run's path, and the new worker continues with it."""
    url = new_url(backend, tmp_path)
    holdfast.open(url).close()

    def live(_pipe: int, _stop: int) -> None:
        os.environ[DIES] = place
        STORES.append(open_dying(url))
        STORES[-1].runs.start(decides, id="r").result()

    child = Child(live)
    child.end()
    assert child.was_killed, child.trouble
    with holdfast.open(url) as hf:
        STORES.append(hf)
        if recovers:
            hf.recover()
        keys = hf.runs.resume("r").result()
        made = hf.decisions.list(scope="conversation/c")[::-1]
        assert [entry.key for entry in made] == keys[:3]
        assert keys[0].startswith("run/r/")
        assert keys[1] == "of-mine"
        outcome = "found paid" if recovers and place == "in the block" else "refunded"
        assert [entry.outcome for entry in made] == [outcome, "said", "said twice"]
        assert [task.id for task in hf.tasks.list()] == [keys[3]]
        assert hf.decisions.list(incomplete=True) == []
        assert hf.runs.resume("r").result() == keys
        assert hf.check().ok


@holdfast.run(name="in-runs:waits")
def waits(ctx: holdfast.Context) -> str:
    with STORES[-1].conversation("c").decide("ask first") as d:
        answer = ctx.wait("approve")
        d.outcome(f"answered {answer}")
    return d.id


def test_a_run_that_waits_in_the_block_of_a_decision_continues_with_another_worker(
    url: str, tmp_path: Path
) -> None:
    """The wait leaves the block with an exception that is not the act's: it stays open."""
    if url == "memory:":
        url = new_url("sqlite", tmp_path)
    with holdfast.open(url) as one, holdfast.open(url) as two:
        STORES.append(one)
        run = one.runs.start(waits, id="r")
        while run.status != "waiting":
            one._log.clock.sleep(0.01)
        [left] = two.decisions.list(incomplete=True)
        assert (left.error, left.owner, left.place) == (None, one.workers.own, left.key)
        STORES.append(two)
        two.runs.answer("r", "approve", "yes")
        id = two.runs.resume("r").result()
        assert (id, two.decisions.get(id).outcome) == (left.id, "answered yes")
        assert two.decisions.get(id).events <= 3


@holdfast.run(name="in-runs:refused")
def refused(ctx: holdfast.Context, what: str) -> str:
    chat = STORES[-1].conversation("c")
    tries: dict[str, Any] = {
        "turn": lambda: chat.messages.turn().add("user", "x"),
        "fact": lambda: chat.facts.state("x", 1),
        "withdraw": lambda: chat.facts.withdraw("x"),
        "check": lambda: chat.facts.check("x"),
        "claim": lambda: chat.tasks.claim(),
        "update": lambda: chat.tasks.update("t1", note="x"),
        "memory": lambda: chat.memory.notes.add("x"),
    }
    try:
        tries[what]()
    except UsageError as error:
        return str(error)
    return "done"


@pytest.mark.parametrize("what", ["turn", "fact", "withdraw", "check", "claim", "update", "memory"])
def test_what_a_replay_cannot_repeat_is_refused_in_a_body(what: str) -> None:
    """It contains who and when, so a body that is entered again would diverge."""
    with holdfast.open("memory:") as hf:
        STORES.append(hf)
        hf.conversation("c").tasks.add("x")
        said = hf.runs.start(refused, what, id="r").result()
        assert "cannot be done in the body of a run" in said
        assert "in a step" in said


@holdfast.step(effect="idempotent", name="in-runs:records")
def records() -> int:
    chat = STORES[-1].conversation("c")
    with chat.messages.turn() as turn:
        turn.add("user", "x")
    chat.facts.state("x", 1)
    chat.tasks.add("y")
    task = chat.tasks.claim()
    assert task is not None
    chat.tasks.close(task, "done")
    chat.memory.notes.add("x")
    chat.decide("z").outcome("done")
    return len(chat.messages)


@holdfast.run(name="in-runs:steps")
def steps(ctx: holdfast.Context) -> int:
    return records()


def test_everything_is_allowed_in_a_step() -> None:
    with holdfast.open("memory:") as hf:
        STORES.append(hf)
        assert hf.runs.start(steps, id="r").result() == 1
        [made] = hf.decisions.list()
        assert made.key.startswith("run/r/")


ACTED: list[str] = []


@holdfast.step(effect="effect", name="in-runs:post")
def post(what: str) -> None:
    ACTED.append(what)


@holdfast.run(name="in-runs:undecided")
def undecided(ctx: holdfast.Context, decides: bool) -> str:
    if not decides:
        try:
            post("undecided")
        except UndecidedError as error:
            return str(error)
    with STORES[-1].conversation("c").decide("post it"):
        post("decided")
    return "posted"


def test_an_effect_step_without_a_decision_is_caught() -> None:
    """BOOT-46: under the policy, before its intent is written."""
    with holdfast.open("memory:") as hf:
        STORES.append(hf)
        ACTED.clear()
        assert hf.runs.start(undecided, True, id="off").result() == "posted"
        with hf.decisions.policy("refuse"):
            assert hf.runs.start(undecided, True, id="decided").result() == "posted"
            said = hf.runs.start(undecided, False, id="undecided").result()
        assert "has no open decision" in said
        assert ACTED == ["decided", "decided"]
        [breach] = hf.workflow("undecided").history(type="policy.breached")
        assert breach.data["effect"] == "in-runs:post"

"""Decisions as a fold: old events and new ones, unexpected data, and a model of all of it."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CorruptError, Store
from holdfast.core.codec import encode
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite

SEED = int(os.environ.get("HOLDFAST_SEED", "1"))


def write_old(hf: Store, stream: str, *events: tuple[str, dict[str, Any]]) -> None:
    new_events = tuple(NewEvent(type, encode(data)) for type, data in events)
    hf._log.commit(ProposedCommit((StreamWrite(stream, new_events),)))


def test_old_and_new_events_project_to_one_view(hf: Store) -> None:
    """BOOT-68: both older versions, and today's, in one stream."""
    chat = hf.conversation("c")
    write_old(
        hf,
        chat.name,
        ("decision_made", {"text": "Use approach A"}),
        ("decision_outcome", {"decision_id": 1, "outcome": "success"}),
        ("decision_prioritized", {"decision_id": 1, "priority": "high"}),
        ("decision_made", {"text": "Use approach B", "rationale": "faster"}),
        ("decision_result", {"decision_id": 2, "result": "failed"}),
        ("decision_made", {"decision": "Use approach C", "priority": "low"}),
    )
    new = chat.decide("Use approach D")
    found = hf.decisions.list(scope=chat)
    assert [(d.decision, d.outcome, d.priority, d.status) for d in found] == [
        ("Use approach D", None, 0, "open"),
        ("Use approach C", None, -1, "open"),
        ("Use approach B", "failed", 0, "closed"),
        ("Use approach A", "success", 1, "closed"),
    ]
    assert hf.decisions.get("2@conversation/c").rationale == "faster"
    assert [d.id for d in hf.decisions.list(scope=chat, before=found[0].revision, limit=1)] == [
        "3@conversation/c"
    ]
    new.outcome("done")
    assert [d.id for d in hf.decisions.list(incomplete=True)] == []


def test_old_events_keep_what_has_no_place_today(hf: Store) -> None:
    """Fields that only older programs knew were lost."""
    chat = hf.conversation("c")
    write_old(
        hf,
        chat.name,
        ("decision_made", {"text": "A", "planned_action": "do it", "confidence": 0.5, "links": 7}),
        ("decision_result", {"decision_id": 1, "result": "ok", "outcome": "fine", "cost": 3}),
        ("decision_prioritized", {"decision_id": 1, "priority": "high", "why": "late"}),
    )
    [found] = hf.decisions.list(scope=chat)
    assert (found.planned_action, found.outcome, found.links) == ("do it", "ok", ())
    assert found.more == {
        "confidence": 0.5, "links": 7, "outcome": "fine", "cost": 3, "why": "late"
    }  # fmt: skip
    assert chat.decide("B").stored.more == {}


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("decision.opened", 7),
        ("decision.opened", {}),
        ("decision.opened", {"key": "k", "decision": "x", "links": [1]}),
        ("decision.closed", [1]),
        ("decision_made", "x"),
        ("decision_prioritized", {"decision_id": 1, "priority": "x"}),
        ("decision_outcome", {}),
    ],
)
def test_events_with_unexpected_data_are_reported(type: str, data: Any) -> None:
    """Guarantee 7: an error that says where, never a default and never a bare exception."""
    with holdfast.open("memory:") as hf:
        chat = hf.conversation("c")
        write_old(hf, chat.name, ("decision_made", {"text": "fine"}))
        write_old(hf, chat.name, (type, data))
        if data == {"decision_id": 1, "priority": "x"}:
            assert hf.decisions.list(scope=chat)[0].priority == 0
            return
        with pytest.raises(CorruptError, match="event 2 of") as caught:
            hf.decisions.list(scope=chat)
        assert (caught.value.stream, caught.value.revision) == (chat.name, 2)


# --- a model -------------------------------------------------------------------------------------


class Model:
    """What decisions should be, in a dict that is updated at every call."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}

    def keys(self, *statuses: str) -> list[str]:
        return [id for id, one in self.made.items() if one["status"] in statuses]


def play(hf: Store, model: Model, dice: random.Random) -> None:
    """Makes one random call, and updates the model."""
    scope = hf.conversation(dice.choice("ab"))
    alive = model.keys("open", "standing")
    verb = dice.choice(["decide", "decide", "order", "close", "raise", "prioritise", "supersede"])
    chosen = dice.choice(alive) if alive else None
    if verb in ("decide", "order") or chosen is None:
        standing = verb == "order"
        made = scope.decide("x", standing=standing)
        status = "standing" if standing else "open"
        model.made[made.id] = {"status": status, "priority": 0, "outcome": None, "error": None}
    elif verb == "close":
        hf.decisions.close(chosen, "done")
        model.made[chosen] |= {"status": "closed", "outcome": "done"}
    elif verb == "raise":
        with pytest.raises(ZeroDivisionError), scope.decide("x") as d:
            model.made[d.id] = {"status": "open", "priority": 0, "outcome": None}
            model.made[d.id]["error"] = "ZeroDivisionError: division by zero"
            1 / 0  # noqa: B018
    elif verb == "prioritise":
        number = dice.randint(-3, 3)
        hf.decisions.prioritise(chosen, number)
        model.made[chosen]["priority"] = number
    else:
        made = scope.decide("x", supersedes=chosen)
        model.made[chosen]["status"] = "superseded"
        model.made[made.id] = {"status": "open", "priority": 0, "outcome": None, "error": None}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_decisions_agree_with_a_model(kind: str, tmp_path: Path) -> None:
    """Single reads, lists by scope, lists by mark: all agree with the model."""
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    for trial in range(6):
        url = "memory:" if kind == "memory" else f"sqlite:{tmp_path / str(trial)}.db"
        model = Model()
        with holdfast.open(url) as hf:
            for _ in range(60):
                play(hf, model, dice)
            listed = [d for name in "ab" for d in hf.decisions.list(scope=f"conversation/{name}")]
            for d in listed:
                told = {name: getattr(d, name) for name in model.made[d.id]}
                assert told == model.made[d.id]
                assert hf.decisions.get(d.id) == d
            assert {d.id for d in listed} == set(model.made)
            found = hf.decisions.list(incomplete=True)
            assert {d.id for d in found} == set(model.keys("open"))
            assert found == sorted(found, key=lambda d: (-d.priority, d.timestamp))
            orders = [
                order for name in "ab" for order in hf.conversation(name).decisions.recall().orders
            ]
            assert {order.id for order in orders} == set(model.keys("standing"))
            assert hf.check().ok

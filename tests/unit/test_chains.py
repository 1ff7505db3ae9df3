"""What reads and writes pass: transforms and validators of the log, on every embedded backend."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import ConflictError, Store, UsageError
from holdfast.core.commit import StreamWrite
from holdfast.core.event import StreamState
from holdfast.core.tree import Map, apply, set_op


@pytest.fixture(params=["memory", "files", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path):
    urls = {"memory": "memory:", "files": tmp_path / "s", "sqlite": f"sqlite:{tmp_path / 's.db'}"}
    with holdfast.open(urls[request.param]) as store:
        yield store


def shouting(state: Map, name: str) -> Map:
    if not name.startswith("conversation/"):
        return state
    return apply(state, [set_op("stage", str(state.get("stage")).upper())], revision=None)


def test_a_read_passes_the_transforms_in_order_until_they_are_removed(hf: Store) -> None:
    chat, team = hf.conversation("c"), hf.team("t")
    chat.set("stage", "triage")
    team.set("stage", "calm")
    remove = hf._log.add_transform(shouting)
    seen: list[object] = []

    def look(state: Map, name: str) -> Map:
        seen.append(state.get("stage"))
        return state

    remove_look = hf._log.add_transform(look)
    assert chat.get("stage") == chat.at(1)["stage"] == "TRIAGE"
    assert hf.view().get(chat, "stage") == "TRIAGE"
    assert team.get("stage") == "calm"
    assert seen == ["TRIAGE", "TRIAGE", "TRIAGE", "calm"]
    remove()
    remove()  # twice is once
    assert chat.get("stage") == "triage"
    remove_look()
    before = len(seen)
    assert chat.get("stage") == "triage"
    assert len(seen) == before


def refuse_closed(write: StreamWrite, before: StreamState, after: StreamState) -> None:
    if after.root.get("stage") == "closed" and before.root.get("stage") != "open":
        raise UsageError(f'"{write.stream}" goes from open to closed')


def test_a_write_that_a_validator_refuses_writes_nothing(hf: Store) -> None:
    chat, other = hf.conversation("c"), hf.conversation("d")
    chat.set("stage", "triage")
    remove = hf._log.add_validator(refuse_closed)
    with pytest.raises(UsageError, match="goes from open to closed"):
        chat.set("stage", "closed")
    with pytest.raises(UsageError), hf.commit() as tx:
        tx.scope(other).set("stage", "open")
        tx.scope(chat).set("stage", "closed")
    with pytest.raises(UsageError), chat.edit() as draft:
        draft["stage"] = "closed"
    assert chat.revision == 1
    assert other.revision == 0
    chat.set("stage", "open")
    chat.set("stage", "closed")
    remove()
    other.set("stage", "closed")


def test_a_validator_sees_every_write_of_a_batch(hf: Store) -> None:
    """Commits that are put in line together are judged one by one, each on the one before it."""
    hf._log.add_validator(refuse_closed)
    chat = hf.conversation("c")
    outcomes: list[str] = []
    pending = []
    for stage in ("open", "closed", "triage", "closed"):
        with hf.commit(waits=False) as tx:
            tx.scope(chat).set("stage", stage)
        pending.append((stage, tx))
    for stage, tx in pending:
        try:
            tx.wait()
            outcomes.append(stage)
        except (UsageError, ConflictError):
            outcomes.append(f"{stage} refused")
    assert outcomes == ["open", "closed", "triage", "closed refused"]
    assert chat.get("stage") == "triage"

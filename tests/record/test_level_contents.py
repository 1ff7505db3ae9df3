"""What the scopes of each level hold, and for how long (VIC-19, VIC-20)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ClosedError, Store
from holdfast.scope import ConversationState, GlobalState, TeamState, WorkflowState
from tests.crash.children import Child, tell
from tests.record.stores import new_url


@holdfast.step(effect="pure")
def fetch(name: str) -> str:
    return f"contents of {name}"


@holdfast.run(name="review-of-nodes")
def review(ctx: holdfast.Context, names: list[str]) -> int:
    def node(ctx: holdfast.Context, name: str) -> str:
        found = ctx.step(fetch, name)
        ctx.state.set(("found", name), found)
        ctx.state.increment("nodes")
        return found

    ctx.parallel(**{name: ctx.branch(node, name) for name in names})
    ctx.state.set("stage", "waiting for approval")
    ctx.wait("approve")
    return ctx.read(ctx.state, "nodes")


def await_approval(hf: Store, id: str) -> None:
    """Returns when a run waits for its answer."""
    after = hf.position
    while not any(entry.kind == "wait" for entry in hf.runs.get(id).journal.entries.values()):
        after = hf._log.wait_after(after, 1.0)


def test_vic_19_a_workflow_holds_what_its_nodes_share(hf: Store) -> None:
    """Shared state, intermediate results, the status of each node; one execution long."""
    run = hf.runs.start(review, ["docs", "code"], id="w1")
    state = hf.workflow("w1")
    assert isinstance(state, WorkflowState)
    await_approval(hf, "w1")
    assert state.get("found") == {"docs": "contents of docs", "code": "contents of code"}
    assert state.get("nodes") == 2
    done = {path: entry for path, entry in run.journal.entries.items() if "fetch" in path}
    assert len(done) == 2, "the result of each node, by its path"
    assert all(entry.state == "done" for entry in done.values())
    hf.runs.answer("w1", "approve", True)
    assert run.result() == 2
    assert run.status == "completed"
    other = hf.runs.start(review, ["docs"], id="w2")
    await_approval(hf, "w2")
    hf.runs.answer("w2", "approve", True)
    assert other.result() == 1
    assert hf.workflow("w2").get("nodes") == 1, "another execution, another state"
    state.close(keep=False)
    with pytest.raises(ClosedError, match="dropped"):
        _ = state.state
    assert hf.workflow("w2").get("nodes") == 1


def test_vic_20_a_team_holds_what_its_agents_share(durable: str, tmp_path: Path) -> None:
    """Agents in processes of their own: shared state, messages to each other, shared context."""
    url = new_url(durable, tmp_path)
    with holdfast.open(url, actor="lead") as hf:
        hf.team("red").update({"goal": "ship it", "done": 0})
        hf.team("red").say("who takes the tests?")

    def agent(name: str) -> Any:
        def live(pipe: int, _stop: int) -> None:
            with holdfast.open(url, actor=name) as hf:
                team = hf.team("red")
                mine = hf.conversation(name, parent=team)
                team.increment("done")
                team.messages.add("assistant", f"{name} is at work", links=[mine])
                team.memory.notes.put(name, "found something")
                tell(pipe, goal=mine.lookup("goal"), own=mine.get("goal"))

        return live

    children = [Child(agent(name)) for name in ("ada", "bob", "eve")]
    for child in children:
        child.end()
        assert child.trouble is None, child.trouble
        assert child.lines == [{"goal": "ship it", "own": None}], "read through its parent"
    with holdfast.open(url) as hf:
        team = hf.team("red")
        assert isinstance(team, TeamState)
        assert team.get("done") == 3
        said = {message.actor: message for message in team.messages}
        assert said.keys() == {"lead", "ada", "bob", "eve"}
        assert said["bob"].links == ("conversation/bob",)
        assert {note.name for note in team.memory.notes.list()} == {"ada", "bob", "eve"}
        assert hf.team("blue").get("done") is None
        team.close(keep=False)
        for gone in (lambda: team.state, lambda: team.messages.last(1)):
            with pytest.raises(ClosedError, match="dropped"):
                gone()
        assert hf.conversation("ada", parent=team).life.is_closed is False


def test_vic_21_the_global_scope_holds_what_all_share(hf: Store) -> None:
    """Settings and caches of the application; every scope finds them, none owns them."""
    shared = hf.global_()
    assert isinstance(shared, GlobalState)
    shared.update({"model": "m-1", "cache": {"rates": [1, 2]}})
    team = hf.team("red")
    assert hf.conversation("c", parent=team).lookup("model") == "m-1"
    assert team.get("model") is None
    assert hf.global_().get(("cache", "rates")) == [1, 2]


def test_vic_1_26_one_store_for_all_of_it(hf: Store) -> None:
    """Turns, tool calls, a workflow, a team and checkpoints; what was stored does not change."""
    chat, team = hf.conversation("c"), hf.team("red")
    assert isinstance(chat, ConversationState)
    with chat.messages.turn() as turn:
        turn.add("user", "where is my order?")
        turn.add("assistant", tool_calls=[{"id": "1", "name": "look", "arguments": {"order": 7}}])
    run = hf.runs.start(review, ["docs"], id="w")
    await_approval(hf, "w")
    team.increment("closed")
    chat.update({"stage": "triage", "order": {"id": 7}})
    held = chat.state
    chat.checkpoint("before")
    chat.set("stage", "done")
    assert held["stage"] == "triage"
    assert chat.state["order"] is held["order"]
    chat.restore("before")
    assert chat.state == {"stage": "triage", "order": {"id": 7}}
    assert len(chat.messages) == 2
    hf.runs.answer("w", "approve", True)
    assert run.result() == 1
    assert team.get("closed") == 1

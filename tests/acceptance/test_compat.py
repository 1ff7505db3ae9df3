"""Code written against the four-scope document runs unchanged (VIC-2 to VIC-10)."""

import asyncio
import copy
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import NotFoundError, Store, UsageError
from holdfast.contrib.compat import GlobalStateManager, StateScope
from holdfast.scope import ConversationState, GlobalState, TeamState, WorkflowState


@pytest.fixture
def manager(hf: Store) -> Iterator[GlobalStateManager]:
    GlobalStateManager.configure(hf)
    yield GlobalStateManager.get_instance()
    GlobalStateManager.configure(None)


def test_the_documents_own_example(manager: GlobalStateManager) -> None:
    async def example() -> None:
        conversation = manager.get_conversation_state("session-123")
        conversation.update({"messages": ["hello"], "stage": "complete"})
        await manager.save_checkpoint(StateScope.CONVERSATION, conversation.to_dict())
        conversation.update({"stage": "changed later"})
        restored = await manager.load_checkpoint(StateScope.CONVERSATION, "session-123")
        assert restored == {"messages": ["hello"], "stage": "complete"}
        assert await manager.load_checkpoint(StateScope.CONVERSATION) == restored

    asyncio.run(example())


def test_one_instance_and_isolated_states(manager: GlobalStateManager) -> None:
    assert GlobalStateManager.get_instance() is manager
    manager.get_conversation_state("a").update({"k": 1})
    assert manager.get_conversation_state("b").to_dict() == {}
    assert manager.get_workflow_state("a").to_dict() == {}
    manager.get_team_state("t")["k"] = 2
    manager.get_global_state()["k"] = 3
    assert "k" in manager.get_team_state("t")
    assert manager.get_global_state()["k"] == 3
    del manager.get_global_state()["k"]
    assert manager.get_global_state().get("k") is None


def test_both_forms_and_plain_dicts(manager: GlobalStateManager) -> None:
    async def example() -> None:
        await manager.save_checkpoint(StateScope.GLOBAL, {"plain": True})
        assert await manager.load_checkpoint(StateScope.GLOBAL) == {"plain": True}
        team = manager.get_team_state("t")
        team.set("n", 1)
        await manager.save_checkpoint(StateScope.TEAM, team)
        assert await manager.load_checkpoint(StateScope.TEAM, "t") == {"n": 1}
        with pytest.raises(NotFoundError):
            await manager.load_checkpoint(StateScope.WORKFLOW)
        with pytest.raises(NotFoundError):
            await manager.load_checkpoint(StateScope.TEAM, "other")
        with pytest.raises(UsageError):
            await manager.load_checkpoint("team")  # pyright: ignore

    asyncio.run(example())


def test_a_state_is_a_mapping_in_full(manager: GlobalStateManager) -> None:
    team = manager.get_team_state("t")
    team.update({"a": 1}, b=2)
    assert isinstance(team, TeamState)
    assert (list(team), len(team), dict(team)) == (["a", "b"], 2, {"a": 1, "b": 2})
    assert list(team.items()) == [("a", 1), ("b", 2)]
    assert {**team} == team.to_dict()
    assert team.pop("a") == 1
    assert team.pop("a", None) is None
    assert team.setdefault("c", [1]) == [1]
    assert manager.store.team("t").state == {"b": 2, "c": [1]}
    assert team.name == "team/t"
    assert team.state["b"] == 2


def test_a_scope_is_text(manager: GlobalStateManager) -> None:
    assert StateScope.TEAM == "team"
    assert json.dumps(StateScope.TEAM) == '"team"'


def test_a_changed_copy_is_a_checkpoint_of_its_scope(manager: GlobalStateManager) -> None:
    """VIC-9: what is loaded is what was saved, not the state as it was."""

    async def example() -> None:
        team = manager.get_team_state("t")
        team.set("n", 1)
        for changed in (team.to_dict() | {"n": 2}, team.to_dict().copy() | {"n": 3}):
            await manager.save_checkpoint(StateScope.TEAM, changed)
            assert await manager.load_checkpoint(StateScope.TEAM, "t") == changed

    asyncio.run(example())
    with pytest.raises(TypeError):
        manager.get_team_state("t").to_dict() | 1  # type: ignore[operator]


def test_an_own_store_is_closed_with_the_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = GlobalStateManager.get_instance()
    own.get_global_state()["k"] = 1
    GlobalStateManager.configure(None)
    with pytest.raises(UsageError, match="closed"):
        own.get_global_state()["k"] = 2
    with holdfast.open("memory:") as given:
        GlobalStateManager.configure(given)
        GlobalStateManager.configure(None)
        given.conversation("c").set("k", 1)


def test_each_state_satisfies_the_protocol_of_its_level_alone(manager: GlobalStateManager) -> None:
    states = {
        ConversationState: manager.get_conversation_state("s"),
        WorkflowState: manager.get_workflow_state("w"),
        TeamState: manager.get_team_state("t"),
        GlobalState: manager.get_global_state(),
    }
    for protocol in states:
        assert [kind for kind, state in states.items() if isinstance(state, protocol)] == [protocol]
    assert manager.get_conversation_state("s").session_id == "s"
    assert manager.get_workflow_state("w").workflow_id == "w"
    assert manager.get_team_state("t").team_id == "t"
    assert manager.get_global_state().is_global


def test_copies_know_their_id_and_others_are_given_one(
    manager: GlobalStateManager, caplog: pytest.LogCaptureFixture
) -> None:
    async def example() -> None:
        chat = manager.get_conversation_state("s")
        chat["n"] = 1
        for make in (copy.copy, copy.deepcopy):
            changed = make(chat.to_dict())
            changed["n"] += 1
            await manager.save_checkpoint(StateScope.CONVERSATION, changed)
            assert await manager.load_checkpoint(StateScope.CONVERSATION, "s") == changed
        assert not caplog.records
        plain = {**chat.to_dict(), "n": 5}
        await manager.save_checkpoint(StateScope.CONVERSATION, plain, id="s")
        assert await manager.load_checkpoint(StateScope.CONVERSATION, "s") == {"n": 5}
        assert await manager.load_checkpoint(StateScope.CONVERSATION) == {"n": 5}
        await manager.save_checkpoint(StateScope.CONVERSATION, {"n": 6})
        assert await manager.load_checkpoint(StateScope.CONVERSATION) == {"n": 6}
        assert "has no id" in caplog.text, "nobody would find it by one"

    with caplog.at_level(logging.WARNING, "holdfast"):
        asyncio.run(example())


def test_a_checkpoint_stores_what_differs(manager: GlobalStateManager) -> None:
    """100 checkpoints of a growing list took 4.6 MB where 0.04 are enough."""

    async def example() -> None:
        chat = manager.get_conversation_state("s")
        for number in range(100):
            chat.scope.append("messages", f"message {number} " + "x" * 100)
            await manager.save_checkpoint(StateScope.CONVERSATION, chat)
        found = await manager.load_checkpoint(StateScope.CONVERSATION)
        assert found == chat.to_dict()

    asyncio.run(example())
    saved = [
        manager.store.scope("checkpoint/conversation/s"),
        manager.store.scope("checkpoint/conversation"),
    ]
    stored = sum(len(event.record.payload) for scope in saved for event in scope.history())
    assert stored < 40_000


def test_a_cancelled_save_returns_when_it_has_ended(manager: GlobalStateManager) -> None:
    """It returned at once, while the write was under way."""
    begun, go_on = threading.Event(), threading.Event()
    save = manager._save

    def slowly(*args: object) -> None:
        begun.set()
        go_on.wait(30)
        save(*args)  # type: ignore[arg-type]

    async def example() -> None:
        manager._save = slowly  # type: ignore[method-assign]
        saving = asyncio.create_task(manager.save_checkpoint(StateScope.GLOBAL, {"n": 1}))
        await asyncio.to_thread(begun.wait, 30)
        saving.cancel()
        await asyncio.sleep(0)
        saving.cancel()
        await asyncio.sleep(0.01)
        assert not saving.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await saving
        assert await manager.load_checkpoint(StateScope.GLOBAL) == {"n": 1}

    asyncio.run(example())

"""Code written against the four-scope document runs unchanged (VIC-2 to VIC-10)."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import NotFoundError, Store, TeamState, UsageError
from holdfast.contrib.compat import GlobalStateManager, StateScope


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

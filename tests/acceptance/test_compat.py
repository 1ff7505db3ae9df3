"""Code written against the four-scope document runs unchanged (VIC-2 to VIC-10)."""

import asyncio
from collections.abc import Iterator

import pytest

from holdfast import NotFoundError, Store, UsageError
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

"""State that never reaches disk, and sessions that are exported (0042, BOOT-6, 12, 32, 36)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import NotFoundError, Store, UsageError, aio
from holdfast.errors import ClosedError, UnavailableError, ValueDomainError
from tests.record.stores import new_url
from tests.record.test_session_names import fill

CANARY = "EPHEMERAL-51c7"


def raw_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


# --- scratch -------------------------------------------------------------------------------------


def test_boot_32_a_scratch_scope_is_a_scope_and_leaves_nothing(hf: Store) -> None:
    hf.team("t").set("kept", 1)
    position = hf.position
    plan = hf.scratch("plan")
    plan.set("step", CANARY)
    plan.append("list", CANARY * 9000)  # large enough for a blob
    plan.checkpoint("before")
    plan.set("step", 2)
    plan.say(CANARY)
    with plan.messages.turn() as turn:
        turn.add("user", CANARY)
    assert (plan.at("before")["step"], plan["step"]) == (CANARY, 2)
    assert hf.scratch("plan").state.to_dict() == plan.state.to_dict()
    assert [message.text for message in hf.scratch("plan").messages] == [CANARY, CANARY]
    assert plan.fork("other")["step"] == 2
    assert plan.name == "scratch/plan"
    assert hf.position == position
    assert [scope.name for scope in hf.scopes()] == ["team/t"]
    assert [*hf.query(text=CANARY)] == []


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_boot_36_no_byte_of_a_scratch_scope_or_a_turn_is_on_disk(
    backend: str, tmp_path: Path
) -> None:
    with holdfast.open(new_url(backend, tmp_path)) as hf:
        chat = hf.conversation("c")
        chat.set("visible", "KEPT-51c7")
        with chat.memory.turn(), hf.scratch() as scratch:
            scratch.set("secret", CANARY)
            chat.memory.files.put("a.py", {"text": CANARY}, lifetime="turn")
            assert chat.memory.files.get("a.py").value == {"text": CANARY}
            assert CANARY.encode() not in raw_bytes(tmp_path)
    found = raw_bytes(tmp_path)
    assert b"KEPT-51c7" in found
    assert CANARY.encode() not in found


def test_each_scratch_without_an_id_is_another_and_each_handle_has_its_own(hf: Store) -> None:
    one, two = hf.scratch(), hf.scratch()
    one.set("n", 1)
    assert (one.name == two.name, two.state.to_dict()) == (False, {})
    with holdfast.open("memory:") as other:
        assert other.scratch("plan").state.to_dict() == {}
    with pytest.raises(UsageError):
        hf.scratch("")


def test_a_dropped_scratch_is_empty_when_it_is_asked_for_again(hf: Store) -> None:
    with hf.scratch("plan") as plan:
        plan.set("n", 1)
    assert hf.scratch("plan").state.to_dict() == {}
    again = hf.scratch("plan")
    again.set("n", 2)
    plan.drop()  # of the one before, which is gone already
    assert hf.scratch("plan").state.to_dict() == {"n": 2}


def test_a_scratch_looks_up_in_the_store(hf: Store) -> None:
    hf.global_().set("model", "small")
    team = hf.team("t")
    team.set("tone", "dry")
    scratch = hf.scratch(parent=hf.conversation("c", parent=team))
    assert (scratch.lookup("model"), hf.scratch().lookup("model")) == ("small", "small")
    assert hf.scratch(parent=team).lookup("tone") == "dry"
    scratch.set("model", "large")
    assert (scratch.lookup("model"), hf.global_()["model"]) == ("large", "small")


def test_a_scratch_takes_no_part_in_a_commit_of_the_store(hf: Store) -> None:
    scratch = hf.scratch("plan")
    with pytest.raises(UsageError, match="scratch scope"), hf.commit() as tx:
        tx.scope(hf.team("t")).set("n", 1)
        tx.scope(scratch).set("n", 1)
    assert hf.team("t").state.to_dict() == {}
    with pytest.raises(UsageError, match="scratch scope"):
        hf.view().state(scratch)


STORES: list[Store] = []


@holdfast.step(effect="pure")
def _add(id: str) -> int:
    return STORES[0].scratch(id).increment("n")


@holdfast.run
def _thinking(ctx: Any, id: str) -> int:
    scratch = STORES[0].scratch(id)
    scratch.set("n", 1)
    ctx.step(_add, id)
    return scratch["n"]


def test_a_run_and_a_lease_block_may_use_a_scratch(hf: Store) -> None:
    STORES[:] = [hf]
    with hf.workers.lease("work", ttl_s=30):
        hf.scratch("plan").set("n", 5)
    assert hf.scratch("plan")["n"] == 5
    assert hf.runs.start(_thinking, "in-run", id="r").result() == 2


def test_asyncio_is_handed_the_same_scratch() -> None:
    async def main() -> None:
        async with await aio.open("memory:") as hf:
            team = hf.team("t")
            await team.set("tone", "dry")
            scratch = hf.scratch("plan", parent=team)
            scratch.set("n", 1)
            assert (hf.scratch("plan")["n"], scratch.lookup("tone")) == (1, "dry")

    asyncio.run(main())


# --- for a turn ----------------------------------------------------------------------------------


def test_what_is_kept_for_a_turn_is_one_item_with_what_is_stored(hf: Store) -> None:
    memory = hf.conversation("c").memory
    memory.files.put("a", 1)
    memory.files.put("a", 2, lifetime="turn")
    assert [(one.value, one.lifetime) for one in memory.files.list()] == [(2, "turn")]
    memory.files.put("a", 3)
    assert [(one.value, one.lifetime) for one in memory.files.list()] == [(3, "session")]
    memory.notes.put("n", 1, lifetime="turn")
    memory.notes.drop("n")
    assert memory.notes.list() == []
    with pytest.raises(ValueDomainError):
        memory.files.put("b", object(), lifetime="turn")


def test_what_is_kept_for_a_turn_is_of_its_scope_and_its_process(hf: Store) -> None:
    hf.conversation("c").memory.files.put("a", lifetime="turn")
    assert [one.name for one in hf.conversation("c").memory.files.list()] == ["a"]
    assert hf.conversation("d").memory.files.list() == []
    assert hf.conversation("c").revision == 0


# --- export --------------------------------------------------------------------------------------


def test_boot_12_a_session_is_exported_under_the_documented_names(
    hf: Store, tmp_path: Path
) -> None:
    fill(hf)
    chat = hf.conversation("s1")
    chat.set("raw", b"\x00\x01")
    found = chat.session.export(tmp_path / "s1.json")
    assert json.loads((tmp_path / "s1.json").read_text()) == found
    assert set(found) == {
        "session_id", "scope", "status", "started_at", "persisted_at", "revision", "messages",
        "decisions", "tool_results", "files_read", "state",
    }  # fmt: skip
    assert (found["session_id"], found["scope"]) == ("s1", "conversation/s1")
    assert chat.life.updated_at is not None
    assert found["started_at"] <= found["persisted_at"] == chat.life.updated_at.isoformat()
    assert [one["role"] for one in found["messages"]] == ["user", "assistant", "assistant", "tool"]
    assert [(one["decision"], one["outcome"], one["message_index"]) for one in found["decisions"]
            ] == [("fix 7", "fixed", 2), ("deploy", None, 4)]  # fmt: skip
    [result] = found["tool_results"]
    assert result == {"tool_call_id": "call-1", "content": "def f(): ...", "message_index": 3}
    assert found["files_read"] == ["src/f.py"]
    assert "$bytes" in str(found["state"]["raw"])


def test_boot_6_a_session_is_exported_when_it_ends_and_its_bytes_go(
    hf: Store, tmp_path: Path
) -> None:
    fill(hf)
    chat = hf.conversation("s1")
    chat.set("secret", CANARY)
    closed_at = chat.close(keep=False, export=tmp_path / "s1.json")
    found = json.loads((tmp_path / "s1.json").read_text())
    assert (found["state"]["secret"], len(found["messages"])) == (CANARY, 4)
    assert found["revision"] == closed_at - 1
    assert found["status"] == chat.session.status == "completed"
    assert {one["status"] for one in found["decisions"]} == {"closed", "abandoned"}
    with pytest.raises(ClosedError):
        chat.session.export()
    assert hf.retention.run(grace_s=0).events
    with pytest.raises(ClosedError):
        chat.session.export()


def test_a_session_that_cannot_be_exported_is_not_closed(hf: Store, tmp_path: Path) -> None:
    chat = hf.conversation("c")
    with pytest.raises(NotFoundError, match="no session to export"):
        chat.session.export()
    chat.say("hello")
    with pytest.raises(UnavailableError, match="cannot be written"):
        chat.close(keep=False, export=tmp_path / "absent" / "c.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(UnavailableError):
        chat.close(keep=False, export=tmp_path / "taken")
    with pytest.raises(UsageError, match="path of a file"):
        chat.session.export(f"{tmp_path}/")
    assert not chat.life.is_closed
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".new") == []

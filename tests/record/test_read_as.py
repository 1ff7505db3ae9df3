"""Decisions and messages of older programs, read one by one as the types of today's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import aio
from holdfast.copy import copy
from holdfast.core.typed import Typed
from holdfast.errors import NewerSchemaError, UpgradeError
from holdfast.record import read_as
from holdfast.render.record import decision_document


@holdfast.schema("conversation", version=1, kind="decision")
class Choice1(msgspec.Struct):
    decision: str
    outcome: str | None = None


@holdfast.schema("conversation", version=2, kind="decision", aliases={"outcome": "result"})
class Choice2(msgspec.Struct):
    decision: str
    priority: str
    tags: list[str]
    result: str | None = None


@holdfast.upgrade(Choice2, 1)
def _tagged(old: dict[str, Any]) -> dict[str, Any]:
    return {"priority": "normal", **old, "tags": []}


@holdfast.schema("conversation", version=2, kind="message")
class Said(msgspec.Struct):
    role: str
    content: str
    metadata: dict[str, float | None]


@holdfast.upgrade(Said, 1)
def _scored(old: dict[str, Any]) -> dict[str, Any]:
    return old | {"metadata": {**old.get("metadata", {}), "sentiment": None}}


def run_as(store: holdfast.Store, *schemas: type[Any]) -> None:
    """Goes on as another program would that has these schemas; a store in memory is kept so."""
    store._log.use_schemas(Typed(schemas))


def test_own_decisions_of_two_versions_read_as_one_type(hf: holdfast.Store):
    """BOOT-65, BOOT-66, BOOT-68: no schema, version 1 and version 2, of one conversation."""
    chat = hf.conversation("c1")
    chat.decide("wait", key="d0")
    run_as(hf, Choice1)
    chat.decide("refund", key="d1").outcome("paid")
    run_as(hf, Choice2)
    new = chat.decide("ship", key="d2", priority="high", more={"tags": ["blue"]})
    assert read_as(Choice2, new.stored) == Choice2("ship", "high", ["blue"])
    with hf.commit() as joint:
        joint.scope(chat).decide("post", key="d3", more={"tags": []})
    new.outcome("sent")
    found = list(reversed(hf.decisions.list(scope=chat.name)))
    assert [one.version for one in found] == [0, 1, 2, 2]
    assert [read_as(Choice2, one) for one in found] == [
        Choice2("wait", "normal", []),
        Choice2("refund", "normal", [], "paid"),
        Choice2("ship", "high", ["blue"], "sent"),
        Choice2("post", "normal", []),
    ]
    assert found[1].outcome == "paid", "the decision itself is as it is stored"
    raw = read_as(Choice2, found[1], raw=True)
    assert raw["outcome"] == "paid"
    assert not {"tags", "result", "more", "version"} & raw.keys()
    assert read_as(Choice1, found[2]) == Choice1("ship", "sent"), "newer, and it fits"
    assert "version" not in decision_document(found[0])
    assert decision_document(found[2])["version"] == 2


def test_messages_of_two_versions_read_as_one_type(hf: holdfast.Store, tmp_path: Path):
    """BOOT-91: version 2 has a sentiment. A merge and a copy leave each its version."""
    chat, other = hf.conversation("c1"), hf.conversation("c2")
    chat.messages.add("user", "hi")
    run_as(hf, Said)
    added = chat.messages.add("user", "good", metadata={"sentiment": 0.5})
    expected = [Said("user", "hi", {"sentiment": None}), Said("user", "good", {"sentiment": 0.5})]
    assert read_as(Said, added) == expected[1]
    assert [read_as(Said, one) for one in chat.messages] == expected
    assert "metadata" not in read_as(Said, chat.messages[0], raw=True)
    other.messages.merge(chat)
    assert [read_as(Said, one) for one in other.messages] == expected
    with holdfast.open(tmp_path / "copied") as copied:
        copy(hf, copied)
        found = copied.conversation("c1").messages
        assert [read_as(Said, one) for one in found] == expected
    chat.decide("look", call="t1").outcome("seen")
    with pytest.raises(holdfast.SchemaError, match="metadata"):
        read_as(Said, chat.messages[-1])  # of version 2: no upgrade adds what it lacks
    summary = other.messages.compact("both greet", keep_last=0)
    with pytest.raises(holdfast.SchemaError, match="metadata"):
        read_as(Said, summary)


def test_both_beside_a_schema_of_the_state(hf: holdfast.Store):
    """The versions of decisions and messages are not that of the state."""

    @holdfast.schema("conversation", version=5)
    class State(msgspec.Struct):
        stage: str

    run_as(hf, State, Choice2, Said)
    chat = hf.conversation("c1", State)
    chat.set("stage", "open")
    chat.decide("go", more={"tags": []})
    chat.messages.add("user", "hi", metadata={}, state={"stage": "shut"})
    assert chat.typed.stage == "shut"
    assert hf.schemas.migrate(check=True).outdated == []
    versions = [event.meta.schema for event in chat.history() if event.meta]
    assert versions == [5, 2, 2, 5]
    run_as(hf, Choice2, Said)
    with pytest.raises(NewerSchemaError):
        chat.set("stage", "open")


def test_an_upgrade_that_fails_names_the_event_and_hinders_nobody(tmp_path: Path):
    @holdfast.schema("conversation", version=3, kind="decision")
    class Bad(msgspec.Struct):
        decision: str

    @holdfast.upgrade(Bad, 1)
    def _(old: dict[str, Any]) -> dict[str, Any]:
        old["more"] = old.pop("links")
        raise KeyError("tags")

    with holdfast.open(tmp_path / "state") as hf:
        hf.conversation("c1").decide("wait", key="d0", links=["file:a"])
    with holdfast.open(tmp_path / "state", schemas=[Bad]) as hf:
        chat = hf.conversation("c1")
        [old] = hf.decisions.list(scope=chat.name)
        where = f'the decision of event {old.revision} of "conversation/c1"'
        with pytest.raises(UpgradeError, match=f"upgrade of {where} from version 1 to 2"):
            read_as(Bad, old)
        assert hf.decisions.list(scope=chat.name) == [old]
        assert read_as(Bad, old, raw=True)["links"] == ["file:a"]
        assert hf.decisions.close(old.id, "done").status == "closed"
        new = chat.decide("now").stored
        with pytest.raises(NewerSchemaError, match="has version 3"):
            read_as(Choice2, new)


def test_what_cannot_be_read_as_a_type(tmp_path: Path):
    @holdfast.schema("conversation", version=1)
    class State(msgspec.Struct):
        stage: str

    with pytest.raises(holdfast.UsageError, match="kind of a schema is state, decision or message"):
        holdfast.schema("conversation", version=1, kind="task")  # pyright: ignore[reportArgumentType]
    with pytest.raises(holdfast.UsageError, match="two schemas"):
        holdfast.open(tmp_path / "two", schemas=[Choice1, Choice2])
    with holdfast.open(tmp_path / "state") as hf:
        chat = hf.conversation("c1")
        said = chat.messages.add("user", "hi")
        with pytest.raises(holdfast.UsageError, match="reads a decision, found"):
            read_as(Choice2, said)
        with pytest.raises(holdfast.UsageError, match="is not for a decision or a message"):
            read_as(State, said)
        with pytest.raises(holdfast.UsageError, match="every decision has outcome"):
            chat.decide("go", more={"outcome": "done"})
        with pytest.raises(holdfast.UsageError, match="more is a mapping"):
            chat.decide("go", more=["tags"])  # pyright: ignore[reportArgumentType]


def test_decisions_of_a_type_from_a_task_that_waits(tmp_path: Path):
    async def main() -> None:
        async with await aio.open(tmp_path / "state", schemas=[Choice2]) as hf:
            chat = hf.conversation("c1")
            async with chat.decide("ship", more={"tags": ["blue"]}) as made:
                await made.outcome("sent")
            [found] = await hf.decisions.list(scope=chat.name)
            assert read_as(Choice2, found) == Choice2("ship", "normal", ["blue"], "sent")

    asyncio.run(main())

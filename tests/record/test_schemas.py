"""Typed state on every backend: what is refused, what is stored, and how it evolves."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import holdfast
from holdfast import aio
from holdfast.copy import copy
from holdfast.core.typed import Typed
from holdfast.errors import NewerSchemaError
from holdfast.store import Meta
from tests.record.stores import new_url


@holdfast.schema("conversation", version=1)
class Ticket1(msgspec.Struct):
    stage: Literal["triage", "open", "closed"]
    notes: list[str] = []


@holdfast.schema("conversation", version=2)
class Ticket2(msgspec.Struct):
    stage: Literal["triage", "open", "closed"]
    notes: list[str] = []
    sentiment: float | None = None


@holdfast.upgrade(Ticket2, 1)
def _upgrade(old: dict[str, Any]) -> dict[str, Any]:
    return old | {"sentiment": None}


_open: list[holdfast.Store] = []
"""The store of the run that is executed."""


@holdfast.run
def closing(ctx: holdfast.Context, stage: str) -> str:
    chat = _open[0].conversation("c1")
    chat.set("stage", stage)
    return chat["stage"]


def run_as(store: holdfast.Store, *schemas: type[Any]) -> None:
    store._log.use_schemas(Typed(schemas))


def test_typed_state_on_every_backend(url: str):
    """VIC-28, VIC-29, BOOT-91: v2 adds sentiment, and v1 data still reads."""
    with holdfast.open(url, schemas=[Ticket1]) as hf:
        chat = hf.conversation("c1", Ticket1)
        with pytest.raises(holdfast.SchemaError):
            chat.set("stage", "shut")
        chat.update({"stage": "open", "notes": ["a"]})
        chat.say("hello")
        run_as(hf, Ticket2)
        new = hf.conversation("c1", Ticket2)
        assert new.typed == Ticket2("open", ["a"], None)
        fork = chat.fork("c2")
        chat.append("notes", "b")
        types = [event.type for event in chat.history()]
        assert types == ["changed", "message.added", "migrated", "changed"]
        assert [event.meta for event in chat.history(type="migrated")] == [Meta(schema=2)]
        assert chat.at(1, raw=True) == {"stage": "open", "notes": ["a"]}
        assert hf.schemas.migrate().migrated == 1
        assert fork.typed.sentiment is None
        run_as(hf, Ticket1)
        for scope in (chat, fork):
            with pytest.raises(NewerSchemaError):
                scope.set("stage", "closed")
        run_as(hf)
        with pytest.raises(NewerSchemaError), hf.commit() as tx:
            tx.scope(hf.team("red")).set("n", 1)
            tx.scope(chat).set("stage", "closed")
        assert hf.team("red").revision == 0
        assert hf.check(read_all=True).ok


def test_a_cold_program_finds_what_another_version_left(durable: str, tmp_path: Path):
    """Cached and replayed folds are equal, with their versions."""
    url = new_url(durable, tmp_path)
    with holdfast.open(url, schemas=[Ticket1]) as hf:
        for name in ("a", "b"):
            hf.conversation(name).set("stage", "open")
    with holdfast.open(url, schemas=[Ticket2]) as new, holdfast.open(url, schemas=[Ticket1]) as old:
        stale = old.conversation("a")
        assert stale["stage"] == "open"  # in memory there, of version 1
        new.conversation("a").set("sentiment", 0.5)
        with pytest.raises(NewerSchemaError):
            stale.set("stage", "closed")
        assert old._log.newest("conversation/a") == new._log.newest("conversation/a")
        assert old.conversation("b").set("stage", "closed") == 2
        assert new.conversation("b").set("stage", "open") == 4
    copied = new_url("memory", tmp_path)
    with holdfast.open(url) as source, holdfast.open(copied) as target:
        copy(source, target)
        assert target.check().digest == source.check().digest
        assert target._log.newest("conversation/a").version == 2


def test_a_run_and_an_import_pass_the_same_check(url: str):
    with holdfast.open(url, schemas=[Ticket1]) as hf:
        _open[:] = [hf]
        hf.conversation("c1").set("stage", "open")
        with pytest.raises(holdfast.RunFailedError, match="SchemaError"):
            hf.runs.start(closing, "shut", id="wrong").result()
        assert hf.runs.start(closing, "closed", id="right").result() == "closed"
        run_as(hf, Ticket2)
        assert hf.runs.start(closing, "open", id="newer").result() == "open"
        journal = hf._log.records("run/right")
        assert {record.meta for record in journal} == {None}  # it is never upgraded
        when = datetime(2020, 1, 1, tzinfo=UTC)
        with pytest.raises(holdfast.SchemaError), hf.commit(time=when) as tx:
            tx.scope(hf.conversation("old")).set("stage", 3)
        with hf.commit(time=when) as tx:
            tx.scope(hf.conversation("old")).set("stage", "open")
        [event] = hf.conversation("old").history()
        assert event.meta is not None
        assert (event.meta.schema, event.time) == (2, when)


def test_typed_state_for_asyncio(url: str):
    async def main() -> None:
        async with await aio.open(url, schemas=[Ticket1]) as hf:
            chat = hf.conversation("c1", Ticket1)
            with pytest.raises(holdfast.SchemaError):
                await chat.set("stage", "shut")
            await chat.set("stage", "open")
            assert await chat.typed == Ticket1("open")
            run_as(hf.sync, Ticket2)
            assert (await chat.at(1))["sentiment"] is None
            assert "sentiment" not in await chat.at(1, raw=True)
            assert len(await chat.diff(0, 1, raw=True)) == 1
            assert (await hf.schemas.migrate(check=True)).outdated[0].scope == chat.name
            assert (await hf.schemas.migrate()).migrated == 1
            assert (await hf.conversation("c1", Ticket2).typed).sentiment is None

    asyncio.run(main())


@holdfast.schema("conversation/decisions", version=2, aliases={"outcome": "result"})
class Decision(msgspec.Struct):
    decision: str
    agent: str
    priority: str = "normal"
    tags: list[str] = []
    result: str | None = None


@holdfast.upgrade(Decision, 1)
def _prioritized(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "priority": "normal", "tags": []}


def test_decisions_of_the_first_version_read_as_the_second(url: str):
    """BOOT-65, BOOT-66, BOOT-67: priority "normal", no tags, `outcome` renamed to `result`.

    A rename needs no table that is built again: it is an operation of the migration, on every
    backend. What is unknown to both versions is kept, and when each scope was migrated is in its
    history, as the table of migrations had it.
    """
    with holdfast.open(url) as hf:
        old = hf.conversation("decisions")
        old.update({"decision": "refund", "agent": "ada", "outcome": "paid", "ticket": 7})
        run_as(hf, Decision)
        new = hf.conversation("decisions", Decision)
        assert new.typed == Decision("refund", "ada", "normal", [], "paid")
        assert new["ticket"] == 7
        assert hf.schemas.migrate().migrated == 1
        [migrated] = new.history(type="migrated")
        assert (migrated.data["from"], migrated.data["to"]) == (1, 2)
        assert migrated.time >= next(iter(new.history())).time
        assert new.at(-1, raw=True)["outcome"] == "paid"  # nothing was rewritten
        assert new.at(2, raw=True).to_dict() == {
            "decision": "refund",
            "agent": "ada",
            "result": "paid",
            "ticket": 7,
            "priority": "normal",
            "tags": [],
        }

"""Events of a program's own: types by name and class, data by version, references, bad input."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pydantic
import pytest

import holdfast
from holdfast import (
    CorruptError,
    ExistsError,
    NotFoundError,
    SchemaError,
    Settings,
    Store,
    UsageError,
)
from holdfast.backends.protocol import START, Record
from holdfast.core import event as core_events
from holdfast.core import expiry as expiry_module
from holdfast.core import own_event
from holdfast.core.event import from_datetime
from holdfast.core.own_event import OwnEvent, declared, stored_type
from holdfast.decisions import Link
from holdfast.errors import LetGoError, NewerSchemaError, UpgradeError
from holdfast.retention import RetentionPolicy
from holdfast.testing import FakeClock

COMMIT = "0123456789" * 4


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process of its own as far as declared types go."""
    monkeypatch.setattr(own_event, "_types", {})
    monkeypatch.setattr(own_event, "_by_class", {})


@pytest.fixture
def hf() -> Iterator[Store]:
    with holdfast.open("memory:", actor="ada") as store:
        yield store


def struct(version: int = 1) -> Any:
    @holdfast.event("task_created", version=version)
    class TaskCreated(msgspec.Struct):
        id: str
        title: str = ""

    return TaskCreated


def of_dataclass() -> Any:
    @holdfast.event("task_created")
    @dataclasses.dataclass
    class TaskCreated:
        id: str
        title: str = ""

    return TaskCreated


def of_attrs() -> Any:
    @holdfast.event("task_created")
    @attrs.define
    class TaskCreated:
        id: str
        title: str = ""

    return TaskCreated


def of_pydantic() -> Any:
    @holdfast.event("task_created")
    class TaskCreated(pydantic.BaseModel):
        id: str
        title: str = ""

    return TaskCreated


def of_typed_dict() -> Any:
    @holdfast.event("task_created")
    class TaskCreated(typing.TypedDict):
        id: str
        title: str

    return TaskCreated


@pytest.mark.parametrize("declare", [struct, of_dataclass, of_attrs, of_pydantic])
def test_data_is_a_value_of_its_class(declare: Any, hf: Store) -> None:
    kind = declare()
    chat = hf.conversation("c")
    event = chat.record(kind(id="t1", title="write"))
    assert isinstance(event.data, kind)
    assert (event.data.id, event.data.title) == ("t1", "write")
    again = chat.record(kind, {"id": "t2"})
    assert (again.data, again.raw) == (kind(id="t2"), {"id": "t2"})
    read = list(chat.history(type="task_created"))
    assert [one.data for one in read] == [event.data, again.data]
    assert (read[0].at, read[0].actor, read[0].type) == (event.time, "ada", "task_created")
    with pytest.raises(SchemaError, match="does not fit"):
        chat.record("task_created", {"id": 7})
    assert chat.revision == 2


def test_a_typed_dict_is_recorded_by_its_class(hf: Store) -> None:
    kind = of_typed_dict()
    event = hf.team("a").record(kind, {"id": "t1", "title": "write"})
    assert event.data == {"id": "t1", "title": "write"}
    assert [one.revision for one in hf.team("a").history(type=kind)] == [1]


def test_what_is_stored(hf: Store) -> None:
    kind = struct(version=3)
    event = hf.team("a").record(kind("t1", "write"), refs=["decision:d7@team/a"])
    assert event.record.type == "own:task_created"
    assert event.record.payload == (
        b'{"version":3,"data":{"id":"t1","title":"write"},"refs":["decision:d7@team/a"]}'
    )
    unchecked = hf.team("a").record("other", {"a": 1}, unchecked=True)
    assert unchecked.record.payload == b'{"data":{"a":1}}'
    assert (unchecked.version, unchecked.refs, unchecked.data) == (0, (), {"a": 1})
    assert dict(event) == {
        "type": "task_created",
        "scope": "team/a",
        "revision": 1,
        "timestamp": event.time.isoformat(),
        "agent": "ada",
        "version": 3,
        "data": {"id": "t1", "title": "write"},
        "refs": ["decision:d7@team/a"],
    }


def test_no_type_of_ours_is_one_of_the_users_and_none_can_become_one() -> None:
    """Types of ours without a dot are a closed list; all others have one, and own types have none.

    A type that is added to `core/event.py` without a dot must be in the list.
    """
    constants = {
        value
        for name, value in vars(core_events).items()
        if name.isupper() and isinstance(value, str) and value.isidentifier()
    }
    assert constants <= core_events.CORE_TYPES
    for type in core_events.CORE_TYPES:
        assert stored_type(type) == type
        with pytest.raises(UsageError, match="of holdfast itself"):
            holdfast.event(type)
    assert stored_type("run.created") == "run.created"
    assert stored_type("own:task_created") == "own:task_created"
    assert stored_type("task_created") == "own:task_created"


@pytest.mark.parametrize("name", ["", "Task", "a.b", "a:b", "a-b", "1a", "é", "a" * 65, 7, None])
def test_names_that_no_type_has(name: Any, hf: Store) -> None:
    with pytest.raises(UsageError, match="an event type is a lower-case letter"):
        holdfast.event(name)
    if isinstance(name, str):
        with pytest.raises(UsageError, match="an event type is a lower-case letter"):
            hf.team("a").record(name, {}, unchecked=True)


def test_an_unknown_type_is_refused_and_the_nearest_is_named(hf: Store) -> None:
    with pytest.raises(NotFoundError, match="import the module"):
        hf.team("a").record("task_created", {})
    struct()
    with pytest.raises(NotFoundError, match='did you mean "task_created"'):
        hf.team("a").record("task_craeted", {"id": "t1"})
    assert hf.team("a").revision == 0


def test_a_name_is_declared_once_and_again_by_the_same_class() -> None:
    first = struct()
    second = struct()
    assert first is not second
    assert [schema.type for schema in declared()] == [second]
    with pytest.raises(ExistsError, match="declared already, by"):
        of_attrs()
    with pytest.raises(UsageError, match="a schema is a class"):
        holdfast.event("other")(typing.cast("Any", 7))


def test_what_is_no_event(hf: Store) -> None:
    kind = struct()
    team = hf.team("a")
    for wrong in (7, int, {"id": "t1"}, None):
        with pytest.raises(UsageError, match="expected an event"):
            team.record(wrong)
    with pytest.raises(UsageError, match="is the data of the event itself"):
        team.record(kind("t1"), {"id": "t2"})
    for wrong in (None, [1], "text"):
        with pytest.raises(UsageError, match="the data of an event is a mapping"):
            team.record("task_created", wrong)
    with pytest.raises(UsageError, match="unchecked is True or False"):
        team.record(kind("t1"), unchecked=typing.cast("Any", 1))
    with pytest.raises(UsageError, match="type is the name or the class"):
        list(team.history(type=int))
    with pytest.raises(UsageError, match="type is the name or the class"):
        hf.events(type=typing.cast("Any", 7))
    assert team.revision == 0


def test_unchecked_data_of_a_class_is_recorded_as_it_is(hf: Store) -> None:
    kind = struct(version=1)
    event = hf.team("a").record(kind("t1"), unchecked=True)
    assert (event.version, event.data) == (0, kind("t1"))
    odd = hf.team("a").record("task_created", {"id": 7}, unchecked=True)
    assert odd.raw == {"id": 7}
    with pytest.raises(SchemaError, match='event 2 of "team/a" does not fit'):
        odd.data  # noqa: B018


def test_refs(hf: Store) -> None:
    """BOOT-31: an event refers to decisions, tasks, commits, files, URLs and other events."""
    team = hf.team("a")
    first = team.record("seen", {}, unchecked=True)
    link = Link("task", "t1")
    event = team.record(
        "seen",
        {},
        unchecked=True,
        refs=[
            "decision:d7@team/a", COMMIT, Path("src/a.py"), link, first,
            "https://example.org/?q=1#x", "task:t1", "file:mit leer.md",
        ],
    )  # fmt: skip
    assert event.refs == (
        "decision:d7@team/a", f"commit:{COMMIT}", "file:src/a.py", "task:t1", "event:team/a@1",
        "https://example.org/?q=1#x", "file:mit leer.md",
    )  # fmt: skip
    [read] = list(team.history(after=1))
    assert isinstance(read, OwnEvent)
    assert read.refs == event.refs


@pytest.mark.parametrize(
    "refs",
    ["decision:d7", 7, None, [""], ["d7"], ["decision:"], ["decision: x"], ["a:\x1bb"], [7],
     ["file:" + "x" * 3000], [b"a:b"]],
)  # fmt: skip
def test_refs_that_are_none(refs: Any, hf: Store) -> None:
    with pytest.raises(UsageError, match=r"refs are a list|a ref is text"):
        hf.team("a").record("seen", {}, unchecked=True, refs=refs)
    assert hf.team("a").revision == 0


def test_too_many_refs(hf: Store) -> None:
    refs = [f"task:{number}" for number in range(1001)]
    with pytest.raises(UsageError, match="at most 1000 refs, found 1001"):
        hf.team("a").record("seen", {}, unchecked=True, refs=refs)


def test_events_are_upgraded_one_by_one(hf: Store) -> None:
    """BOOT-67, BOOT-91: versions coexist; each event is read as the class has it."""
    team = hf.team("a")
    first = struct()
    team.record(first("t1", "write"))
    own_event._types.clear()

    @holdfast.event("task_created", version=2, aliases={"name": "title"})
    class TaskCreated(msgspec.Struct):
        id: str
        title: str
        sentiment: float | None

    with pytest.raises(UpgradeError, match='event 1 of "team/a" has version 1'):
        next(team.history(type=TaskCreated)).data  # noqa: B018

    @holdfast.upgrade(TaskCreated, 1)
    def _(old: dict[str, Any]) -> dict[str, Any]:
        return old | {"sentiment": None}

    team.record(TaskCreated("t2", "read", 0.5))
    team.record("task_created", {"id": "t3", "name": "old", "extra": 1}, unchecked=True)
    read = [typing.cast("OwnEvent", one) for one in team.history(type=TaskCreated)]
    assert [one.data for one in read] == [
        TaskCreated("t1", "write", None),
        TaskCreated("t2", "read", 0.5),
        TaskCreated("t3", "old", None),
    ]
    assert read[0].raw == {"id": "t1", "title": "write"}
    assert read[2].plain == {"id": "t3", "title": "old", "extra": 1, "sentiment": None}
    assert read[0].data is read[0].data


def test_an_event_that_is_newer_than_its_class(hf: Store) -> None:
    team = hf.team("a")
    team.record(struct(version=5)("t1", "write"))
    own_event._types.clear()
    older = struct(version=2)
    [event] = list(team.history(type=older))
    assert event.data == older("t1", "write"), "it fits, so it is read"
    own_event._types.clear()

    @holdfast.event("task_created", version=2)
    class TaskCreated(msgspec.Struct):
        id: int

    [event] = list(team.history(type=TaskCreated))
    with pytest.raises(NewerSchemaError, match='event 1 of "team/a" has version 5'):
        event.data  # noqa: B018


def test_an_event_that_holds_no_body() -> None:
    struct()

    def read(payload: bytes) -> OwnEvent:
        record = Record("team/a", 3, 0, "own:task_created", "ada", payload, b"")
        return OwnEvent(record, lambda _name, _size: b"")

    with pytest.raises(CorruptError, match='event 3 of "team/a" is no event'):
        read(b"[1]").data  # noqa: B018
    with pytest.raises(CorruptError, match='event 3 of "team/a" has no fields'):
        read(b'{"version":1,"data":[1]}').data  # noqa: B018


def test_large_data_is_a_blob(hf: Store) -> None:
    kind = struct()
    large = "x" * 100_000
    event = hf.team("a").record(kind("t1", large))
    assert len(event.record.payload) < 1000
    assert event.data.title == large
    [read] = hf.events(type="task_created")
    assert read.data.title == large


def test_groups_are_given_own_types(hf: Store) -> None:
    kind = struct()
    team = hf.team("a")
    team.set("x", 1)
    team.record(kind("t1"))
    with hf.workers.group("g", types=("task_created",)) as group:
        [delivery] = group.take()
        assert delivery.event.data == kind("t1")
        delivery.done()


def test_an_event_of_a_joint_commit_is_placed_when_that_is_made(hf: Store) -> None:
    kind = struct()
    team = hf.team("a")
    with hf.commit() as tx:
        event = tx.scope(team).record(kind("t1"))
        hf.team("a").set("x", 1)  # another writer is faster
    assert (event.revision, event.position, event.data) == (2, hf.position, kind("t1"))
    assert [one.revision for one in hf.events(type=kind)] == [2]


def test_the_upgrades_of_a_type_in_their_order() -> None:
    kind = struct(version=3)

    @holdfast.upgrade(kind, 2)
    def second(old: dict[str, Any]) -> dict[str, Any]:
        return old

    @holdfast.upgrade(kind, 1)
    def first(old: dict[str, Any]) -> dict[str, Any]:
        return old

    [schema] = declared()
    assert schema.upgrade_functions == [first, second]


def test_when_a_scope_ends_is_known_once_its_records_were_seen() -> None:
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        short = hf.team("short", ttl_s=10)
        short.record("seen", {}, unchecked=True)
        hf.team("long").record("seen", {}, unchecked=True)
        expiry = hf._log.expiry
        expiry.kept(hf._log.read_all(after=START, limit=10))
        assert short.life.expires_at is not None
        assert expiry.known_end("team/short") == from_datetime(short.life.expires_at)
        assert (expiry.known_end("team/long"), expiry.known_end("team/none")) == (0, 0)


def test_a_sliding_end_stays_known_when_another_reader_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(expiry_module, "_KNOWN_MAX", 2)
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        for name in ("mine", "other", "third"):
            hf.team(name, ttl_s=100, slides=True).set("a", 1)
        clock.advance(50)
        hf.team("mine").set("a", 2)
        expiry = hf._log.expiry
        slid = clock.now_us() + 100_000_000
        for name in ("mine", "other"):  # two threads, each behind its own page
            expiry.kept(hf._log.stored(f"team/{name}", after=0, until=9))
        assert expiry.known_end("team/mine") == slid
        expiry.kept(hf._log.stored("team/third", after=0, until=9))
        assert len(expiry._newest) == 2


def test_all_own_events_are_asked_for_by_their_class(hf: Store) -> None:
    team = hf.team("a")
    team.set("x", 1)
    team.record("one", {}, unchecked=True)
    team.record("two", {}, unchecked=True)
    assert [event.type for event in hf.events(type=OwnEvent)] == ["one", "two"]
    assert [event.type for event in team.history(type=OwnEvent)] == ["one", "two"]
    with hf.workers.group("g", types=(OwnEvent,)) as group:  # pyright: ignore[reportArgumentType]
        assert [delivery.event.type for delivery in group.take(9)] == ["one", "two"]


def test_events_of_a_time() -> None:
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        team = hf.team("a")
        times: list[datetime] = []
        for number in range(4):
            times.append(team.record("seen", {"n": number}, unchecked=True).at)
            clock.advance(60)

        def found(**asked: Any) -> list[int]:
            return [event.data["n"] for event in hf.events(type="seen", **asked)]

        assert found(since=times[1]) == [1, 2, 3]
        assert found(until=times[1]) == [0]
        assert found(since=times[1], until=times[3]) == [1, 2]
        assert found(since="2m30s") == [2, 3]
        assert found(until=timedelta(minutes=2.5), newest_first=True) == [1, 0]
        assert [event.revision for event in hf.events(scope=team, since="90s", limit=1)] == [4]
        with pytest.raises(UsageError, match="since needs a time zone"):
            found(since=datetime(2026, 1, 1))
        with pytest.raises(UsageError, match="until is a time, or a length of time"):
            found(until="soon")


def test_an_event_that_was_let_go_of_says_so() -> None:
    with holdfast.open("memory:") as hf:
        for number in range(3):
            hf.team("a").record("measured", {"n": number}, unchecked=True)
        few = RetentionPolicy("team/*", types=["measured"], count=1)
        assert hf.retention.run(policies=[few], grace_s=0).events == 2
        gone, *_, kept = hf.team("a").history(type="measured")
        with pytest.raises(LetGoError):
            gone.data  # noqa: B018
        assert kept.data == {"n": 2}

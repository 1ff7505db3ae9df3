"""Events of a program's own on every backend: where they ride, and that they are written once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import holdfast
from holdfast import Settings, Store, UsageError, aio
from holdfast.copy import copy
from holdfast.errors import ExpiredError
from holdfast.store import OwnEvent
from holdfast.testing import FakeClock
from tests.crash.children import Child
from tests.record.kills import open_dying
from tests.record.stores import new_url


@holdfast.event("case_opened")
class CaseOpened(msgspec.Struct):
    id: str
    title: str = ""


@holdfast.event("case_closed")
class CaseClosed(msgspec.Struct):
    id: str


def ids(events: Any) -> list[str]:
    return [event.data.id for event in events]


def test_an_event_is_recorded_and_read(hf: Store) -> None:
    """BOOT-78: type, time, agent and data of each event, in order, for readers without a lock."""
    chat = hf.conversation("c")
    opened = chat.record(CaseOpened("t1", "write"), refs=["decision:d7@team/red"])
    assert (opened.revision, opened.actor, opened.refs) == (1, "ada", ("decision:d7@team/red",))
    chat.set("stage", "open")
    chat.record("case_closed", {"id": "t1"})
    [read] = list(chat.history(type="case_opened"))
    assert (read.data, read.at, read.actor) == (CaseOpened("t1", "write"), opened.at, "ada")
    assert (read.link, read.position) == (opened.link, opened.position)
    hf.team("red").record(CaseOpened("t2"))
    assert ids(hf.events(type=CaseOpened)) == ["t1", "t2"]
    assert ids(hf.events(type="case_opened", newest_first=True, limit=1)) == ["t2"]
    assert chat.state.to_dict() == {"stage": "open"}
    assert [event.type for event in hf.events()] == [
        "case_opened", "changed", "case_closed", "case_opened",
    ]  # fmt: skip
    assert hf.check().ok


def test_what_refers_to_something_is_a_question(hf: Store) -> None:
    """BOOT-31, BOOT-29: back-references, and events by type, actor and time, by the index."""
    chat = hf.conversation("c")
    decision = chat.decide("refund", key="d7", owner="ada")
    chat.record(CaseOpened("t1"), refs=[f"decision:{decision.id}"])
    chat.record(CaseOpened("t2"), refs=["https://example.org/t2", Path("a.py")])
    [hit] = hf.query(kind="event", links=f"decision:{decision.id}")
    assert (hit.type, hit.scope, hit.actor, hit.revision) == ("case_opened", chat.name, "ada", 2)
    assert [hit.revision for hit in hf.query(links=["file:a.py", "https://example.org/t2"])] == [3]
    assert len(hf.query(kind="event", type="case_opened", actor="ada", since="7d")) == 2


def test_a_key_records_once(hf: Store) -> None:
    chat = hf.conversation("c")
    first = chat.record(CaseOpened("t1"), key="k")
    chat.set("x", 1)
    again = chat.record(CaseOpened("t1"), key="k")
    assert (again.revision, again.time, again.key) == (first.revision, first.time, "k")
    with pytest.raises(UsageError):
        chat.record(CaseOpened("other"), key="k")
    assert chat.revision == 2
    named = chat.record(CaseOpened("t2"), expected=2, checkpoint="second")
    assert chat.life.revision_at("second") == named.revision == 3
    with pytest.raises(holdfast.ConflictError):
        chat.record(CaseOpened("t3"), expected=2)


def test_in_a_joint_commit(hf: Store) -> None:
    chat, team = hf.conversation("c"), hf.team("red")
    with hf.commit() as tx:
        opened = tx.scope(chat).record(CaseOpened("t1"), key="k")
        tx.scope(chat).set("x", 1)
        closed = tx.scope(team).record(CaseClosed("t1"), refs=[opened])
    assert opened.revision == 1
    assert (opened.position, closed.position) == (hf.position, hf.position)
    assert closed.refs == ("event:conversation/c@1",)
    assert len({event.position for event in hf.events()}) == 1
    with pytest.raises(ZeroDivisionError), hf.commit() as tx:
        tx.scope(chat).record(CaseOpened("t2"))
        raise ZeroDivisionError
    with hf.commit(key="once") as tx:
        tx.scope(chat).record(CaseOpened("t3"))
    with hf.commit(key="once") as tx:
        repeated = tx.scope(chat).record(CaseOpened("t3"))
    assert ids(chat.history(type=CaseOpened)) == ["t1", "t3"]
    assert repeated.revision == chat.revision


def test_in_a_fork_a_copy_and_a_later_life(hf: Store, tmp_path: Path) -> None:
    chat = hf.conversation("c")
    chat.record(CaseOpened("t1"))
    fork = chat.fork("d")
    fork.record(CaseOpened("t2"))
    chat.record(CaseOpened("t3"))
    assert ids(fork.history(type=CaseOpened)) == ["t1", "t2"]
    assert ids(chat.history(type=CaseOpened)) == ["t1", "t3"]
    with holdfast.open(new_url("sqlite", tmp_path)) as other:
        copy(hf, other)
        assert ids(other.conversation("d").history(type=CaseOpened)) == ["t1", "t2"]
        assert ids(other.events(type=CaseOpened)) == ids(hf.events(type=CaseOpened))
    chat.remove()
    assert ids(chat.history(type=CaseOpened)) == []
    chat.record(CaseOpened("t4"), key="k")
    assert ids(chat.history(type=CaseOpened)) == ["t4"]
    assert ids(chat.history(type=CaseOpened, removed=True)) == ["t1", "t3", "t4"]


def test_a_restore_takes_no_event_back(hf: Store) -> None:
    """What happened has happened: the state goes back, the events stay."""
    chat = hf.conversation("c")
    chat.set("x", 1)
    chat.record(CaseOpened("t1"))
    chat.set("x", 2)
    chat.restore(1)
    assert chat.get("x") == 1
    assert ids(chat.history(type=CaseOpened)) == ["t1"]


def test_followers_are_told(hf: Store) -> None:
    after = hf.position
    hf.conversation("c").record(CaseOpened("t1"))
    [event] = list(hf.follow(as_events=True, after=after, timeout_s=0))
    assert isinstance(event, OwnEvent)
    assert event.data == CaseOpened("t1")


def test_events_end_with_their_scope(tmp_path: Path) -> None:
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        chat = hf.conversation("c", ttl_s=10)
        chat.record(CaseOpened("t1"))
        hf.team("red").record(CaseOpened("t2"))
        clock.advance(11)
        assert ids(hf.events(type=CaseOpened)) == ["t2"]
        with pytest.raises(ExpiredError):
            list(chat.history(type=CaseOpened))


DIES = "HOLDFAST_TEST_DIES"
STORES: list[Store] = []
"""The store that a run's body writes to, in whichever process it runs."""


def die_at(place: str) -> None:
    if os.environ.get(DIES) == place:
        os.kill(os.getpid(), signal.SIGKILL)


@holdfast.step(effect="idempotent", name="own-events:inside")
def inside_a_step() -> int:
    return STORES[-1].conversation("c").record(CaseOpened("t2"), key="inside").revision


@holdfast.run(name="own-events:records")
def records(ctx: holdfast.Context) -> list[int]:
    chat = STORES[-1].conversation("c")
    first = chat.record(CaseOpened("t1"), refs=["task:t1"])
    die_at("after one")
    second = chat.record(CaseClosed("t1"))
    return [first.revision, second.revision, ctx.step(inside_a_step)]


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_a_run_that_is_entered_again_records_nothing_twice(backend: str, tmp_path: Path) -> None:
    url = new_url(backend, tmp_path)
    holdfast.open(url).close()

    def live(_pipe: int, _stop: int) -> None:
        os.environ[DIES] = "after one"
        STORES.append(open_dying(url))
        STORES[-1].runs.start(records, id="r").result()

    child = Child(live)
    child.end()
    assert child.was_killed, child.trouble
    with holdfast.open(url) as hf:
        STORES.append(hf)
        assert hf.runs.resume("r").result() == [1, 2, 3]
        events = list(hf.conversation("c").history())
        assert [event.type for event in events] == [
            "case_opened", "case_closed", "case_opened",
        ]  # fmt: skip
        assert events[0].key is not None
        assert events[0].key.startswith("r/")
        assert hf.check().ok


def test_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url, actor="ada") as hf:
            chat = hf.conversation("c")
            event = await chat.record(CaseOpened("t1"), refs=["task:t1"])
            assert (event.data, event.refs) == (CaseOpened("t1"), ("task:t1",))
            async with hf.commit() as tx:
                joined = await tx.scope(chat).record(CaseClosed("t1"))
                tx.scope(chat).set("x", 1)
            found = [cast("OwnEvent", one) async for one in chat.history(type=CaseClosed)]
            assert [one.revision for one in found] == [joined.revision]
            assert ids(await hf.events(type=CaseOpened)) == ["t1"]

    asyncio.run(main())

"""The working-set audit (BOOT-37): what is never read, whether it matters, how often it changes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import NotFoundError, Store, UsageError, aio
from holdfast.core import codec
from holdfast.core.event import state_of
from holdfast.record.audit import Audit
from holdfast.scope import Scope
from tests.record.stores import new_url

STATE: dict[str, Any] = {
    "stage": "triage",
    "customer": {"name": "Ada", "city": "London", "notes": ["vip", "late"]},
    "transcript": ["x" * 100, "y" * 100],
    "empty": {},
    "model": "small",
}


def fill(hf: Store, name: str = "t") -> Scope:
    team = hf.team(name)
    team.update(STATE)
    return team


def paths(audit: Audit) -> set[tuple[str | int, ...]]:
    return {item.path for item in audit.unread()}


EVERYTHING = {(key,) for key in STATE}


def test_boot_37_what_was_never_read_is_listed(hf: Store) -> None:
    team = fill(hf)
    with team.life.audit() as audit:
        assert paths(audit) == EVERYTHING
        assert team.state["customer"]["name"] == "Ada"
        assert hf.team("t").get("stage") == "triage"
    team.get("transcript")
    assert paths(audit) == {
        ("customer", "city"),
        ("customer", "notes"),
        ("transcript",),
        ("empty",),
        ("model",),
    }
    assert audit.reads == [("customer",), ("customer", "name"), ("stage",)]
    sizes = [item.size for item in audit.unread()]
    assert sizes == sorted(sizes, reverse=True)
    assert {item.path: item.read for item in audit.items()} == {
        ("stage",): True,
        ("customer",): True,
        ("transcript",): False,
        ("empty",): False,
        ("model",): False,
    }


CUSTOMER = {("customer", "name"), ("customer", "city"), ("customer", "notes")}
BUT_MODEL = EVERYTHING - {("model",)}
BUT_CUSTOMER = EVERYTHING - {("customer",)}

READS: dict[str, Any] = {
    "state": (lambda hf, team: team.state["model"], BUT_MODEL),
    "get": (
        lambda hf, team: team.get(("customer", "city")),
        BUT_CUSTOMER | CUSTOMER - {("customer", "city")},
    ),
    "absent": (lambda hf, team: team.get("nothing", 1), EVERYTHING),
    "in": (lambda hf, team: "model" in team, BUT_MODEL),
    "item": (lambda hf, team: team["empty"], EVERYTHING - {("empty",)}),
    "list": (lambda hf, team: team["transcript"][0], EVERYTHING - {("transcript",)}),
    "names": (lambda hf, team: sorted(team), CUSTOMER),
    "values": (lambda hf, team: list(team.state.values()), CUSTOMER),
    "is it there": (lambda hf, team: team["customer"] is None, BUT_CUSTOMER | CUSTOMER),
    "to_dict": (lambda hf, team: team.state.to_dict(), set()),
    "equal": (lambda hf, team: team.state == STATE, set()),
    "repr": (lambda hf, team: repr(team.state["customer"]), BUT_CUSTOMER),
    "stored again": (
        lambda hf, team: hf.team("other").set("copy", team.state["customer"]),
        BUT_CUSTOMER,
    ),
    "at": (lambda hf, team: team.at(1)["model"], BUT_MODEL),
    "lookup": (lambda hf, team: hf.workflow("w", parent=team).lookup("model"), BUT_MODEL),
    "view": (lambda hf, team: hf.view().get(team, "model"), BUT_MODEL),
    "edit": (lambda hf, team: team.edit(lambda draft: draft["model"]), BUT_MODEL),
    "edit and go on": (
        lambda hf, team: team.edit(lambda draft: (draft.update(stage=1), draft["model"])),
        BUT_MODEL,
    ),
    "write": (lambda hf, team: team.set("model", "large"), EVERYTHING),
    "nested write": (lambda hf, team: team.set(("customer", "city"), "Bath"), EVERYTHING),
    "increment": (lambda hf, team: team.increment("n"), EVERYTHING | {("n",)}),
}
"""How state is read, and what is then still unread; what is only written was not read."""


@pytest.mark.parametrize("name", READS)
def test_every_way_to_read_is_observed(hf: Store, name: str) -> None:
    read, unread = READS[name]
    team = fill(hf)
    with hf.scope("team/t").life.audit() as audit:
        read(hf, team)
    assert paths(audit) == unread


def test_a_commit_to_several_scopes_reports_what_it_reads(hf: Store) -> None:
    team = fill(hf)
    with team.life.audit() as audit, hf.commit() as tx:
        pending = tx.scope(team)
        pending.set("stage", "done")
        assert pending.get("model") == "small"
    assert audit.reads == [("model",)]
    assert team.get("stage") == "done"


def test_an_observed_read_returns_what_is_there(hf: Store) -> None:
    """A state that reports its readers equals the plain one, and is encoded like it."""
    team = fill(hf)
    with team.life.audit():
        noted = team.state
        assert noted == STATE
        assert noted.to_dict() == STATE
        assert codec.encode(noted) == codec.encode(STATE)
        assert dict(noted) == STATE
        assert list(noted["customer"]) == ["name", "city", "notes"]
        assert noted["customer"] == STATE["customer"]
        with pytest.raises(KeyError):
            noted["nothing"]
        with pytest.raises(UsageError, match="frozen"):
            noted["customer"]["name"] = "x"  # pyright: ignore
        with team.edit() as draft:
            draft["customer"]["name"] = "Bob"
            draft["transcript"].append("z")
            del draft["empty"]
            draft |= {"model": "large"}
        wide = hf.team("wide")
        wide.update({f"k{number}": number for number in range(300)})
        with wide.life.audit(), wide.edit() as draft:
            draft["k1"] += 1
    changed = {**STATE, "model": "large", "customer": {**STATE["customer"], "name": "Bob"}}
    changed["transcript"] = [*STATE["transcript"], "z"]
    del changed["empty"]
    assert team.state.to_dict() == changed
    assert wide.get("k1") == 2
    assert len(wide) == 300
    assert hf.check().ok


def test_reading_costs_nothing_extra_without_an_audit(hf: Store) -> None:
    """While none is open, a reader gets the state of the log by the same function as before."""
    team = fill(hf)
    plain = team.state
    assert hf._log.show is state_of
    with team.life.audit() as outer:
        with hf.scope("global").life.audit(), team.life.audit() as inner:
            team.get("model")
        assert hf._log.show is not state_of
        assert hf.team("other").state == {}
        team.get("stage")
    assert hf._log.show is state_of
    assert team.state is plain, "the log's own state was never touched"
    assert inner.reads == [("model",)]
    assert outer.reads == [("model",), ("stage",)]
    with outer:
        team.get("empty")
    assert outer.reads == [("model",), ("stage",), ("empty",)], "it is gone on with"
    assert hf._log.show is state_of
    with pytest.raises(UsageError, match="was not begun"):
        team.life.audit().unread()
    assert team.life.audit().items()[0].read is None


def test_reads_of_every_thread_are_observed(hf: Store) -> None:
    team = hf.team("t")
    team.update({str(number): number for number in range(100)})
    audit = team.life.audit()

    def read(start: int) -> None:
        for number in range(start, 100, 8):
            with audit:
                assert team.get(str(number)) == number

    threads = [threading.Thread(target=read, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert audit.unread() == []
    assert hf._log.show is state_of


def test_boot_37_how_often_it_changes(hf: Store) -> None:
    team = hf.team("t")
    team.set("a", 1)
    team.update({"a": 2, "b": {"x": 1}})
    team.set(("b", "x"), 2)
    team.append("log", "one")
    at = team.revision
    team.set((), {"a": 3, "b": {"x": 2}, "log": ["one"], "new": 1})
    team.delete("new")
    team.restore(at)
    items = {item.path[0]: item for item in team.life.audit().items()}
    assert {key: item.changes for key, item in items.items()} == {"a": 4, "b": 3, "log": 2}
    times = {event.revision: event.time for event in team.history()}
    assert items["log"].changed_at == times[5]
    assert items["a"].changed_at == times[team.revision]
    fork = team.fork("f")
    fork.set("a", 9)
    assert fork.life.audit().items()[-1].changes in (3, 5)
    assert {item.path[0]: item.changes for item in fork.life.audit().items()}["a"] == 5


def test_sizes_are_those_of_what_is_stored(hf: Store) -> None:
    team = hf.team("t")
    values: dict[str, Any] = {
        **STATE,
        "blob": "b" * 100_000,
        "number": 12345,
        "wide": {f"k{number}": number for number in range(200)},
        "nothing": [],
        "grüße": {"\ud800": [1, {"a": None}]},
    }
    team.update(values)
    team.append("grown", {"a": 1})
    team.append("grown", {"b": 2})
    values["grown"] = [{"a": 1}, {"b": 2}]
    team.set(("wide", "k7"), "changed")
    values["wide"]["k7"] = "changed"
    sizes = {item.path[0]: item.size for item in team.life.audit().items()}
    assert sizes == {key: len(codec.encode(value)) for key, value in values.items()}


def answer(scope: Scope) -> str:
    """A job that needs the customer's name and the model above it, and nothing else."""
    scope.say(f"hello {scope.get(('customer', 'name'))}", role="assistant")
    scope.increment("answered")
    return scope.lookup("model")


def test_boot_37_whether_removing_an_item_changes_behaviour(hf: Store) -> None:
    hf.team("t").set("model", "small")
    chat = hf.conversation("c", parent=hf.team("t"))
    chat.update({"customer": {"name": "Ada", "city": "London"}, "answered": 3, "old": [1]})
    chat.say("hi")
    before, revision = chat.state.to_dict(), chat.revision
    with chat.life.audit() as audit:
        answer(chat)
    chat.restore(revision)
    assert paths(audit) == {("customer", "city"), ("answered",), ("old",)}
    assert audit.without("old", answer).is_same
    assert audit.without(("customer", "city"), answer).is_same
    trial = audit.without(("customer", "name"), answer)
    assert not trial.is_same
    assert trial.whole.said == [("assistant", "hello Ada")]
    assert trial.without.said == [("assistant", "hello None")]
    trial = audit.without("answered", answer)
    assert not trial.is_same, "it is never read, and yet counts"
    assert (trial.whole.changes, trial.without.changes) == ({("answered",): 4}, {("answered",): 1})
    assert trial.whole.returned == trial.without.returned == "small"
    assert chat.state.to_dict() == before
    assert len(chat.messages) == 1
    forks = [scope for scope in hf.scopes("conversation") if scope.name != chat.name]
    assert len(forks) == 8
    assert all(fork.life.is_closed for fork in forks)
    assert hf.check().ok


def test_a_job_that_raises_is_compared_too(hf: Store) -> None:
    team = fill(hf)
    trial = team.life.audit().without("model", lambda scope: scope["model"])
    assert (trial.whole.returned, trial.whole.error) == ("small", None)
    assert trial.without.error is not None
    assert "KeyError" in trial.without.error
    assert not trial.is_same

    def stop(_scope: Scope) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        team.life.audit().without("model", stop)
    assert [scope.life.is_closed for scope in hf.scopes("team")].count(False) == 1
    assert team.life.audit().without("model", lambda scope: scope.close(keep=False)).is_same


def test_items_that_cannot_be_left_out(hf: Store) -> None:
    team = fill(hf)
    audit = team.life.audit()
    with pytest.raises(NotFoundError, match="nothing at"):
        audit.without("absent", answer)
    with pytest.raises(UsageError, match="part of the state"):
        audit.without((), answer)
    with pytest.raises(UsageError, match="a job is a function"):
        audit.without("model", 1)  # pyright: ignore
    with pytest.raises(UsageError, match="a path is"):
        audit.without(3, answer)  # pyright: ignore
    hf.global_().set("a", 1)
    with pytest.raises(UsageError, match="global scope cannot be forked"):
        hf.scope("global").life.audit().without("a", answer)
    with pytest.raises(UsageError):
        hf.scope(7).life.audit()  # pyright: ignore


def test_the_audit_for_asyncio(tmp_path: Path) -> None:
    async def reply(scope: aio.AsyncScope) -> str:
        await scope.say("hello", role="assistant")
        return (await scope.state)["customer"]["name"]

    async def fail(scope: aio.AsyncScope) -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        async with await aio.open(new_url("sqlite", tmp_path)) as hf:
            team = hf.team("t")
            await team.update(STATE)
            async with team.life.audit() as audit:
                await reply(team)
                async with team.edit() as draft:
                    draft["stage"] = draft["model"]
            assert audit.reads == [("customer",), ("customer", "name"), ("model",)]
            unread = {item.path for item in await audit.unread()}
            assert ("transcript",) in unread
            assert ("model",) not in unread
            assert (await audit.items())[0].path == ("transcript",)
            assert (await audit.without("transcript", reply)).is_same
            trial = await audit.without("customer", reply)
            assert (trial.whole.returned, trial.is_same) == ("Ada", False)
            with pytest.raises(asyncio.CancelledError):
                await audit.without("customer", fail)
            opened = [await scope.life.is_closed for scope in await hf.scopes("team")]
            assert opened.count(False) == 1

    asyncio.run(main())


def test_an_audit_of_another_store_observes_nothing_here(tmp_path: Path) -> None:
    with holdfast.open("memory:") as one, holdfast.open("memory:") as other:
        with fill(one).life.audit() as audit:
            fill(other).get("model")
        assert audit.reads == []

"""Decisions on every backend: written before the act, closed by an outcome (BOOT-39 to 47)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    ClosedError,
    ConflictError,
    ExistsError,
    NotFoundError,
    Settings,
    Store,
    UsageError,
    aio,
)
from holdfast.decisions import Link, UndecidedWarning
from holdfast.errors import ExpiredError, UndecidedError, ValueDomainError
from holdfast.record.context import RecordContext
from holdfast.record.decisions import set_policy
from holdfast.testing import FakeClock
from tests.record.stores import new_url


@holdfast.verifier(name="tests:was_done")
def was_done(decision: holdfast.Decision) -> holdfast.Unknown:
    return holdfast.Unknown("nobody looked")


def test_a_decision_is_there_before_its_act_and_closed_by_its_outcome(hf: Store) -> None:
    """BOOT-39, 40, 41: the attributes have the required names. RALPH-12: with its rationale."""
    chat = hf.conversation("c", parent=hf.team("t"))
    chat.set("stage", "triage")
    with chat.decide(
        "refund",
        because="arrived broken",
        action="POST /refunds",
        verify=was_done,
        alternatives=["replace it", "wait"],
        links=["message:m1", ("file", "src/a.py"), Link("commit", "abc")],
        priority="high",
    ) as d:
        [found] = hf.decisions.list(incomplete=True)
        assert found == d.stored == hf.decisions.get(d.id)
        assert (found.outcome, found.completed_at, found.closed_by) == (None, None, None)
        closed = d.outcome("refunded 12.00")
    assert hf.decisions.get(d.id) == closed
    assert closed.id == f"{d.key}@conversation/c"
    assert closed.scope == "conversation/c"
    assert (closed.decision, closed.rationale) == ("refund", "arrived broken")
    assert (closed.planned_action, closed.outcome) == ("POST /refunds", "refunded 12.00")
    assert closed.alternatives == ("replace it", "wait")
    assert [str(link) for link in closed.links] == ["message:m1", "file:src/a.py", "commit:abc"]
    assert closed.completed_at is not None
    assert closed.timestamp <= closed.completed_at == closed.updated_at
    assert (closed.status, closed.how, closed.priority) == ("closed", "stated", 1)
    assert (closed.owner, closed.closed_by, closed.actor) == (hf.workers.own, hf.workers.own, "ada")
    assert (found.owner_alive, closed.owner_alive) == (True, None)
    assert closed.verify == "tests:was_done"
    assert hf.decisions.list(incomplete=True) == []
    assert hf.workers.marks("decision") == []
    assert chat.state == {"stage": "triage"}
    assert chat.parent == hf.team("t")
    assert hf.check().ok


def test_an_exception_leaves_it_open_with_the_error_and_goes_on(hf: Store) -> None:
    chat = hf.conversation("c")
    with pytest.raises(ZeroDivisionError), chat.decide("divide") as d:
        1 / 0  # noqa: B018
    [found] = hf.decisions.list(incomplete=True)
    assert (found.id, found.error) == (d.id, "ZeroDivisionError: division by zero")
    assert hf.decisions.close(d.id, "gave up").outcome == "gave up"
    assert hf.decisions.list(incomplete=True) == []


def test_an_error_that_cannot_be_recorded_does_not_hide_the_one_that_was_raised(hf: Store) -> None:
    chat = hf.conversation("c")
    with pytest.raises(ZeroDivisionError) as caught, chat.decide("divide"):
        hf.close()
        1 / 0  # noqa: B018
    assert "is open, without this error" in caught.value.__notes__[0]


def test_an_exception_after_the_outcome_changes_nothing(hf: Store) -> None:
    with pytest.raises(KeyError), hf.conversation("c").decide("x") as d:
        d.outcome("done")
        raise KeyError("later")
    assert (hf.decisions.get(d.id).status, hf.decisions.get(d.id).error) == ("closed", None)


def test_a_block_without_an_outcome_says_so(hf: Store) -> None:
    with hf.conversation("c").decide("x") as d:
        pass
    assert (hf.decisions.get(d.id).outcome, hf.decisions.get(d.id).how) == (
        "no outcome stated",
        "unstated",
    )


def test_closing_twice_an_unknown_id_and_bad_ids_are_clear_errors(hf: Store) -> None:
    """BOOT-47: an outcome is never replaced."""
    chat = hf.conversation("c")
    d = chat.decide("x")
    d.outcome("done")
    for again in (lambda: d.outcome("done"), lambda: hf.decisions.close(d.id, "other")):
        with pytest.raises(ExistsError, match="was already closed"):
            again()
    with pytest.raises(ExistsError):
        hf.decisions.prioritise(d.id, 1)
    with pytest.raises(NotFoundError):
        hf.decisions.close("nobody@conversation/c", "done")
    with pytest.raises(NotFoundError):
        hf.decisions.get("7@conversation/none")
    for bad in ("", "x", "@conversation/c", "x@", 7, None, b"x@y"):
        with pytest.raises(UsageError):
            hf.decisions.close(bad, "done")  # type: ignore[arg-type]
    assert [event.type for event in chat.history()] == ["decision.opened", "decision.closed"]


def test_bad_arguments_write_nothing(hf: Store) -> None:
    chat = hf.conversation("c")
    bad: list[dict[str, Any]] = [
        {"decision": ""},
        {"decision": 7},
        {"decision": "x" * 70_000},
        {"because": 7},
        {"action": ["x"]},
        {"verify": "nobody:knows"},
        {"act": was_done},
        {"alternatives": "one"},
        {"alternatives": [7]},
        {"alternatives": 7},
        {"links": {"file": "x"}},
        {"links": "file:x"},
        {"links": ["x"]},
        {"links": ["file:"]},
        {"links": [("file",)]},
        {"links": [7]},
        {"key": ""},
        {"key": "a@b"},
        {"key": "k" * 500},
        {"key": 7},
        {"priority": "urgent"},
        {"priority": True},
        {"priority": 1.5},
        {"standing": 1},
        {"supersedes": "x"},
        {"if_exists": "maybe"},
    ]
    for options in bad:
        with pytest.raises((UsageError, NotFoundError)):
            chat.decide(**{"decision": "x", **options})
    d = chat.decide("x")
    for text in ("", None, 7, "  "):
        with pytest.raises(UsageError):
            d.outcome(text)  # type: ignore[arg-type]
    with pytest.raises(ValueDomainError):
        d.outcome("done", output=object())
    for options in ({"limit": 0}, {"before": 0}, {"before": 3}, {"older_than": "x"}, {"scope": 7}):
        with pytest.raises(UsageError):
            hf.decisions.list(**options)  # type: ignore[arg-type]
    assert hf.decisions.get(d.id).is_open
    assert [event.type for event in chat.history()] == ["decision.opened"]


def test_decisions_are_listed_newest_first_and_paged(hf: Store) -> None:
    """BOOT-8."""
    chat, other = hf.conversation("c"), hf.conversation("d")
    for number in range(5):
        with chat.decide(f"c{number}"):
            chat.set("n", number)
        other.decide(f"d{number}")
    assert [d.decision for d in hf.decisions.list(scope=chat)] == ["c4", "c3", "c2", "c1", "c0"]
    page = hf.decisions.list(scope="conversation/c", limit=2)
    more = hf.decisions.list(scope=chat, limit=2, before=page[-1].revision)
    assert [d.decision for d in (*page, *more)] == ["c4", "c3", "c2", "c1"]
    assert {d.status for d in page} == {"closed"}
    assert [d.decision for d in hf.decisions.list(limit=3)] == ["d4", "c4", "d3"]
    assert [d.decision for d in hf.decisions.list(incomplete=True, limit=2)] == ["d0", "d1"]
    assert len(hf.decisions.list(incomplete=True, scope=other)) == 5
    assert hf.decisions.list(incomplete=True, scope=chat) == []
    assert hf.decisions.list(scope=hf.team("none")) == []


def test_open_decisions_are_found_without_reading_streams(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BOOT-44, guarantee 12: however long the stream around them is."""
    chat = hf.conversation("c")
    d = chat.decide("x")
    with hf.commit() as tx:
        for number in range(300):
            tx.scope(chat).set(f"k{number}", number)
    for number in range(30):
        chat.set("n", number)
    read = hf._log._backend.read
    got: list[int] = []

    def counted(*args: Any, **named: Any) -> Any:
        records = read(*args, **named)
        got.append(len(records))
        return records

    monkeypatch.setattr(hf._log._backend, "read", counted)
    assert [found.id for found in hf.decisions.list(incomplete=True)] == [d.id]
    assert sum(got) <= 2


def test_priorities_order_open_decisions(hf: Store) -> None:
    chat = hf.conversation("c")
    first, second, third = (chat.decide(text) for text in ("first", "second", "third"))
    hf.decisions.prioritise(third.id, "high")
    first.prioritise(-5)
    found = hf.decisions.list(incomplete=True)
    assert [(d.decision, d.priority) for d in found] == [("third", 1), ("second", 0), ("first", -5)]
    second.outcome("done")
    assert third.outcome("done").priority == 1


def test_an_outdated_handle_still_closes_its_decision(hf: Store) -> None:
    chat = hf.conversation("c")
    d = chat.decide("x")
    hf.decisions.prioritise(d.id, 3)
    hf.decisions.prioritise(d.id, 4)
    closed = d.outcome("done")
    assert (closed.priority, closed.outcome, closed.events) == (4, "done", 4)
    assert hf.decisions.get(d.id) == closed


def test_standing_orders_count_until_they_are_superseded(hf: Store) -> None:
    """BOOT-20, BOOT-38: orders of the scopes above too, and a window that goes on."""
    team = hf.team("t")
    chat = hf.conversation("c", parent=team)
    house = hf.global_().decide("never store keys", standing=True)
    push = team.decide("never push to main", because="it broke once", standing=True)
    for number in range(5):
        with chat.decide(f"step {number}"):
            pass
    recalled = chat.decisions.recall(recent=2)
    assert [order.id for order in recalled.orders] == [push.id, house.id]
    assert [d.decision for d in recalled.recent] == ["step 4", "step 3"]
    assert hf.decisions.list(incomplete=True) == []
    newer = team.decide("never push at all", standing=True, supersedes=push.id)
    assert [order.decision for order in chat.decisions.recall().orders] == [
        "never push at all",
        "never store keys",
    ]
    older = hf.decisions.get(push.id)
    assert (older.status, older.superseded_by) == ("superseded", newer.id)
    assert newer.stored.supersedes == push.id
    assert hf.workers.marks("superseding") == []
    with pytest.raises(ExistsError, match="already superseded"):
        team.decide("again", supersedes=push.id)
    newer.outcome("we push again")
    assert [order.id for order in chat.decisions.recall(recent=0).orders] == [house.id]
    with pytest.raises(UsageError, match="no block"), chat.decide("x", standing=True):
        pass


def test_an_open_decision_is_superseded(hf: Store) -> None:
    chat = hf.conversation("c")
    d = chat.decide("plan a")
    with chat.decide("plan b", supersedes=d.id) as newer:
        assert [found.id for found in hf.decisions.list(incomplete=True)] == [newer.id]
    with pytest.raises(ExistsError):
        d.outcome("too late")


def test_a_key_decides_once(hf: Store) -> None:
    chat = hf.conversation("c")
    d = chat.decide("refund", key="run/1:pay", action="POST")
    assert (d.key, d.id) == ("run/1:pay", "run/1:pay@conversation/c")
    with pytest.raises(ExistsError, match="exists already"):
        chat.decide("refund", key="run/1:pay", action="POST")
    same = chat.decide("refund", key="run/1:pay", action="POST", if_exists="attach")
    assert same.stored == d.stored
    with pytest.raises(UsageError, match="another one"):
        chat.decide("refund twice", key="run/1:pay", if_exists="attach")
    same.outcome("paid")
    closed = chat.decide("refund", key="run/1:pay", action="POST", if_exists="attach")
    assert closed.outcome("paid") == hf.decisions.get(d.id)
    with pytest.raises(ExistsError):
        closed.outcome("paid twice")
    assert hf.conversation("d").decide("refund", key="run/1:pay").id != d.id


def test_a_fork_carries_what_was_decided(hf: Store) -> None:
    chat = hf.conversation("c")
    d = chat.decide("x")
    fork = chat.fork("what-if")
    d.outcome("done")
    # It is one act in the world: its state now counts in the fork too.
    assert [(e.id, e.status) for e in hf.decisions.list(scope=fork)] == [(d.id, "closed")]
    fork.decide("y")
    assert [e.decision for e in hf.decisions.list(scope=fork)] == ["y", "x"]
    assert [e.decision for e in hf.decisions.list()] == ["y", "x"]


def test_closing_a_scope_abandons_what_is_open_in_it(hf: Store) -> None:
    chat = hf.conversation("c")
    d = chat.decide("x")
    chat.close()
    assert (hf.decisions.get(d.id).status, hf.decisions.list(incomplete=True)) == ("abandoned", [])
    with pytest.raises(ClosedError):
        chat.decide("y")


def test_decisions_can_be_listed_by_age(url: str) -> None:
    """BOOT-69."""
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        chat = hf.conversation("c")
        chat.decide("old")
        clock.advance(7200)
        chat.decide("new")
        found = hf.decisions.list(scope=chat, older_than="1h30m")
        assert [d.decision for d in found] == ["old"]
        assert len(hf.decisions.list(scope=chat, older_than=timedelta(0, 0, 1))) == 1
        assert found[0].updated_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_another_worker_closes_it_only_when_the_owner_is_dead(durable: str, tmp_path: Any) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as mine:
        d = mine.conversation("c").decide("x")
        with holdfast.open(url) as other:
            [found] = other.decisions.list(incomplete=True)
            assert (found.id, found.owner_alive) == (d.id, True)
            for refused in (
                lambda: other.decisions.close(d.id, "done"),
                lambda: other.conversation("c").decide("y", supersedes=d.id),
                lambda: other.conversation("c").decide("x", key=d.key, if_exists="attach"),
            ):
                with pytest.raises(ConflictError, match="which is alive"):
                    refused()
            assert other.recover().acts == []
            mine.close()
            [found] = other.decisions.list(incomplete=True)
            assert found.owner_alive is False
            closed = other.decisions.close(d.id, "it was done")
            assert (closed.owner, closed.closed_by) == (mine.workers.own, other.workers.own)


def test_a_decision_of_a_dead_owner_is_taken_over_by_its_key(durable: str, tmp_path: Any) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as first:
        first.conversation("c").decide("x", key="k")
    with holdfast.open(url) as second:
        with second.conversation("c").decide("x", key="k", if_exists="attach") as d:
            assert d.stored.owner == second.workers.own
            d.outcome("done")
        assert second.decisions.list(incomplete=True) == []


# --- policy --------------------------------------------------------------------------------------


def test_an_effect_without_a_decision_is_caught(hf: Store) -> None:
    """BOOT-46: caught, logged, and by choice refused."""
    chat = hf.conversation("c")
    with chat.decisions.effect("POST /refunds"):
        pass  # no policy yet
    with hf.decisions.policy("refuse"):
        with (
            pytest.raises(UndecidedError, match="no open decision"),
            chat.decisions.effect("POST /refunds"),
        ):
            pytest.fail("the effect was let through")
        with chat.decide("refund"), chat.decisions.effect("POST /refunds"):
            pass
        with hf.team("t").decide("refund"), chat.decisions.effect("POST /refunds"):
            pass  # in the block of a decision, whichever scope it was made in
        d = chat.decide("refund")
        with chat.decisions.effect("POST /refunds"):
            pass
        d.outcome("done")
        with pytest.raises(UndecidedError), chat.decisions.effect("POST /refunds"):
            pass
    with (
        hf.decisions.policy("warn"),
        pytest.warns(UndecidedWarning),
        chat.decisions.effect("POST /refunds"),
    ):
        pass
    with chat.decisions.effect("POST /refunds"):
        pass
    breaches = [event.data for event in chat.history(type="policy.breached")]
    assert [one["policy"] for one in breaches] == ["refuse", "refuse", "warn"]
    assert {one["effect"] for one in breaches} == {"POST /refunds"}
    for bad in ("strict", None, 7):
        with pytest.raises(UsageError):
            hf.decisions.policy(bad)  # type: ignore[arg-type]


# --- asyncio -------------------------------------------------------------------------------------


def test_decisions_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            chat = hf.conversation("c")
            async with chat.decide("refund", because="broken") as d:
                asked: Any = {"incomplete": True, "scope": chat}
                [found] = await hf.decisions.list(**asked)
                assert found.id == d.id
                async with hf.decisions.policy("refuse"), chat.decisions.effect("POST"):
                    pass
                await d.outcome("refunded")
            assert d.stored.outcome == "refunded"
            with pytest.raises(ZeroDivisionError):
                async with chat.decide("divide") as failed:
                    1 / 0  # noqa: B018
            assert (
                await hf.decisions.get(failed.id)
            ).error == "ZeroDivisionError: division by zero"
            async with hf.decisions.policy("refuse"):
                with pytest.raises(UndecidedError):
                    async with hf.team("t").decisions.effect("POST"):
                        pass
            await hf.decisions.policy("off")
            open_ = await chat.decide("plain")
            await open_.prioritise("high")
            assert (await hf.decisions.close(open_.id, "done")).priority == 1
            await chat.facts.state("branch", "main", valid_for="1h")
            assert (await chat.facts.get("branch")).value == "main"
            assert await hf.stale() == []
            assert (await chat.decisions.recall(recent=1)).recent[0].decision == "plain"
            assert (await hf.recover()).acts == []

    asyncio.run(main())


# --- scopes that end, several backends -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "files", "sqlite"])
def test_decisions_of_an_expired_scope_are_gone(kind: str, tmp_path: Any) -> None:
    clock = FakeClock()
    with holdfast.open(new_url(kind, tmp_path), settings=Settings(clock=clock)) as hf:
        chat = hf.conversation("c", ttl_s=10)
        d = chat.decide("x", verify=was_done)
        order = chat.decide("always", standing=True)
        chat.facts.state("f", 1, valid_for="1s")
        team = hf.team("t")
        team.decide("y")
        clock.advance(20)
        assert [one.decision for one in hf.decisions.list(incomplete=True)] == ["y"]
        assert [one.decision for one in hf.decisions.list()] == ["y"]
        assert hf.stale() == hf.recover().acts == team.decisions.recall().orders == []
        for gone in (lambda: hf.decisions.get(d.id), lambda: hf.decisions.close(order.id, "x")):
            with pytest.raises(ExpiredError):
                gone()


def test_decisions_over_two_backends(tmp_path: Any) -> None:
    """A decision supersedes one that another backend keeps; everything is listed together."""
    stores = {"conversation": str(tmp_path / "chats"), "*": f"sqlite:{tmp_path / 'state.db'}"}
    with holdfast.open(stores) as hf:
        chat, team = hf.conversation("c"), hf.team("t")
        old = team.decide("plan a", priority=1)
        chat.facts.state("f", 1)
        team.facts.state("g", 2)
        new = chat.decide("plan b", supersedes=old.id)
        assert hf.decisions.get(old.id).superseded_by == new.id
        assert [d.id for d in hf.decisions.list(incomplete=True)] == [new.id]
        assert hf.workers.marks("superseding") == []
        assert [d.decision for d in hf.decisions.list()] == ["plan b", "plan a"]
        assert [fact.name for fact in chat.facts.list()] == ["f"]
        new.outcome("done")
        assert hf.recover().acts == []


def test_closing_a_scope_ends_its_standing_orders(hf: Store) -> None:
    team = hf.team("t")
    team.decide("never push", standing=True)
    team.close()
    assert hf.conversation("c", parent=team).decisions.recall().orders == []
    assert hf.workers.marks("order") == []


def test_a_policy_binds_every_handle_and_process(tmp_path: Path) -> None:
    """It bound the handle that it was set on, and nobody else."""
    url = str(tmp_path / "store")
    program = f"""
import holdfast
with holdfast.open({url!r}) as hf:
    try:
        with hf.team("t").decisions.effect("POST"):
            print("done")
    except holdfast.errors.UndecidedError:
        print("refused")
"""
    with holdfast.open(url) as hf, holdfast.open(url) as other:
        hf.decisions.policy("refuse")
        with pytest.raises(UndecidedError), other.team("t").decisions.effect("POST"):
            pass
        assert run_python(program) == "refused"
        with other.decisions.policy("off"), hf.team("t").decisions.effect("POST"):
            assert run_python(program) == "done"
        with pytest.raises(UndecidedError), other.team("t").decisions.effect("POST"):
            pass
    with holdfast.open(url) as again:
        with pytest.raises(UndecidedError), again.team("t").decisions.effect("POST"):
            pass
        with pytest.raises(UsageError, match="no level"):
            again.scope("policy/store").set("effects", "off")


def run_python(program: str) -> str:
    """Returns what a program prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_what_a_newer_version_means_by_a_policy_is_refused(hf: Store) -> None:
    set_policy(hf._kernel.part(RecordContext), ("effects",), "newer")
    with pytest.raises(UndecidedError), hf.team("t").decisions.effect("POST"):
        pass
    hf.decisions.policy("off")


def test_the_closing_policy_of_a_level_is_stored(hf: Store) -> None:
    hf.retention.on_close("conversation", keep=False)
    chat = hf.conversation("c")
    chat.set("n", 1)
    chat.close()
    with pytest.raises(ClosedError):
        chat.state  # noqa: B018
    team = hf.team("t")
    team.set("n", 1)
    team.close()
    assert team.state == {"n": 1}, "another level"
    hf.retention.on_close("conversation", keep=True)
    kept = hf.conversation("kept")
    kept.set("n", 1)
    kept.close()
    assert kept.state == {"n": 1}
    with pytest.raises(UsageError, match="no level"):
        hf.retention.on_close("nowhere", keep=True)
    with pytest.raises(UsageError, match="keep"):
        hf.retention.on_close("team", keep="yes")  # type: ignore[arg-type]

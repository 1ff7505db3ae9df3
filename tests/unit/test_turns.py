"""Turns on streams, and what a caller takes after so many losses."""

from __future__ import annotations

import threading

import pytest

import holdfast
from holdfast import ConflictError, Draft, Store
from holdfast.core import retry, write_priority
from holdfast.core.retry import Contest
from holdfast.core.write_priority import MINE, Turn, Turns
from holdfast.errors import UnavailableError


@pytest.fixture
def hf():
    with holdfast.open("memory:") as store:
        yield store


def lost(stream: str) -> ConflictError:
    return ConflictError("lost", stream=stream, expected=1, actual=2)


def test_a_turn_is_one_callers() -> None:
    all_turns = Turns()
    mine = all_turns.begin(("a", "b"))
    assert mine is not None
    assert all_turns.ahead(["c", "b"]) is mine
    assert all_turns.begin(("b", "c")) is None
    token = MINE.set((mine,))
    assert all_turns.ahead(["a", "b"]) is None
    all_turns.wait(["a"])  # returns at once
    MINE.reset(token)
    all_turns.end(mine)
    all_turns.end(mine)  # twice is once
    assert not all_turns.held
    again = all_turns.begin(("b",))
    assert again is not None
    all_turns.end(mine)  # and takes nobody else's turn away
    assert all_turns.held == {"b": again}


def test_who_waits_is_told_once_the_turn_is_over() -> None:
    all_turns, told = Turns(), []
    turn = all_turns.begin(("a",))
    assert turn is not None
    turn.when_over(lambda: told.append(1))
    waiter = threading.Thread(target=all_turns.wait, args=(["a"],))
    waiter.start()
    all_turns.end(turn)
    waiter.join()
    turn.when_over(lambda: told.append(2))  # too late is at once
    assert told == [1, 2]


def test_a_turn_lapses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_priority, "TURN_S", 0.01)
    all_turns = Turns()
    turn = all_turns.begin(("a",))
    all_turns.wait(["a"])
    assert isinstance(turn, Turn)
    assert turn.is_over
    assert not all_turns.held


def test_a_commit_waits_for_somebody_elses_turn(hf: Store) -> None:
    team, log = hf.team("t"), hf._log
    turn = log.turns.begin(("team/t",))
    assert turn is not None
    ended: list[str] = []

    def write() -> None:
        team.set("n", 1)
        with hf.commit(waits=False) as tx:
            tx.scope(team).set("m", 1)
        tx.wait()
        ended.append("written")

    writer = threading.Thread(target=write)
    writer.start()
    hf.team("other").set("n", 1)  # does not wait
    assert team.revision == 0
    log.turns.end(turn)
    writer.join()
    assert ended == ["written"]
    blocking = log.turns.begin(("team/t",))
    assert blocking is not None
    submitter = threading.Thread(target=write)
    submitter.start()
    log.turns.end(blocking)
    submitter.join()
    assert team.state == {"n": 1, "m": 1}


def test_a_contest_takes_a_turn_and_then_leases(hf: Store) -> None:
    one, two = Contest(hf._log, "w1", retries=9), Contest(hf._log, "w2", retries=9)
    for _ in range(retry.TURN_AFTER):
        assert one.take_turn()
        assert not hf._log.turns.held
        one.lost(lost("team/b"))
    assert one.take_turn()
    assert list(hf._log.turns.held) == ["team/b"]
    one.lost(lost("team/a"))
    assert one.take_turn()  # of both now
    assert sorted(hf._log.turns.held) == ["team/a", "team/b"]
    assert one.take_leases()
    assert not one.holds_leases
    one.lost(lost("team/a"))
    assert one.wants_leases
    assert one.take_leases()
    assert hf._log.leases.holder("team/a").owner == "w1.edit"  # type: ignore[union-attr]
    assert not one.wants_leases

    for _ in range(retry.LEASE_AFTER):
        two.lost(lost("team/a"))
    one.end_turn()
    assert two.take_turn()
    assert not two.take_leases()  # not yet
    one.end()
    assert two.take_leases()
    two.end()
    assert hf._log.leases.holder("team/a") is None
    assert not hf._log.turns.held


def test_a_lease_that_the_callers_own_code_has_is_left_alone(hf: Store) -> None:
    lease = hf.workers.lease("team/a")
    one = Contest(hf._log, hf.workers.own, retries=9)
    for _ in range(retry.LEASE_AFTER):
        one.lost(lost("team/a"))
    assert one.take_leases()
    assert not one.holds_leases
    one.end()
    assert hf._log.leases.holder("team/a") == lease


def test_leases_that_cannot_be_had_are_done_without(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Contest(hf._log, "w1", retries=9)
    for _ in range(retry.LEASE_AFTER):
        one.lost(lost("team/a"))

    def away(*_: object, **__: object) -> None:
        raise UnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(hf._log.leases, "holder", away)
        assert one.take_leases()
    assert one.take_leases()
    with monkeypatch.context() as patched:
        patched.setattr(hf._log.leases, "release", away)
        one.end()
    other = Contest(hf._log, "w2", retries=9)
    for _ in range(retry.LEASE_AFTER):
        other.lost(lost("team/a"))
    assert not other.take_leases()
    monkeypatch.setattr(retry, "LEASE_WAIT_S", 0.0)
    other.lost(lost("team/a"))
    assert other.take_leases()  # its time to wait is over


def test_the_last_loss_is_raised(hf: Store) -> None:
    one = Contest(hf._log, "w1", retries=1)
    one.lost(lost("team/a"))
    with pytest.raises(ConflictError):
        one.lost(lost("team/a"))


def test_an_edit_inside_an_edit_keeps_both_turns(hf: Store) -> None:
    outer, inner = hf.team("outer"), hf.team("inner")
    outer.set("n", 0)
    inner.set("n", 0)
    calls: list[str] = []

    def edit_inner(draft: Draft) -> None:
        calls.append("inner")
        if calls.count("inner") < 4:
            hf.team("inner").increment("m")
        outer.get("n")
        draft["n"] += 1

    def edit_outer(draft: Draft) -> None:
        calls.append("outer")
        if calls.count("outer") < 4:
            outer.increment("m")
        else:
            inner.edit(edit_inner)
        draft["n"] += 1

    outer.edit(edit_outer)
    assert (outer.get("n"), inner.get("n")) == (1, 1)
    assert calls == ["outer"] * 4 + ["inner"] * 4
    assert MINE.get() == ()

"""Another writer is faster, in the middle of an operation: made to happen at that moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import holdfast
from holdfast import Decision, NotDone, Scope, Settings, Store, UnavailableError
from holdfast.core import codec
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.event import CLOSED
from holdfast.record import recovery
from holdfast.record.decisions import Decisions
from holdfast.testing import FakeClock
from tests.record.kills import open_dying
from tests.record.stores import new_url
from tests.record.test_recovery import die, run_and_kill


@holdfast.verifier(name="overtaken:not_done")
def not_done(decision: Decision) -> NotDone:
    return NotDone()


meanwhile: list[Callable[[Decision], object]] = []


@holdfast.act(name="overtaken:act")
def act(decision: Decision) -> object:
    return meanwhile.pop()(decision)


def close_alone(scope: Scope) -> None:
    """Closes a scope without abandoning what is open in it."""
    closed = NewEvent(CLOSED, codec.encode_plain({"keep": True}))
    scope._context.log.commit(ProposedCommit((StreamWrite(scope.name, (closed,)),)))


def leave(url: str) -> None:
    """A worker dies with one decision open."""

    def work() -> None:
        open_dying(url).conversation("c").decide("x", key="k", verify=not_done, act=act)
        die()

    run_and_kill(work)


def once(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Does something right after the next read of a decision."""
    get = Decisions.get

    def looked(self: Decisions, id: str) -> Decision:
        found = get(self, id)
        monkeypatch.setattr(Decisions, "get", get)
        then()
        return found

    monkeypatch.setattr(Decisions, "get", looked)


def test_each_change_comes_after_the_faster_one(hf: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = hf.conversation("c")
    d = chat.decide("x")
    once(monkeypatch, lambda: hf.decisions.prioritise(d.id, 1))
    assert hf.decisions.prioritise(d.id, 2).priority == 2
    once(monkeypatch, lambda: hf.decisions.prioritise(d.id, 3))
    closed = hf.decisions.close(d.id, "done")
    assert (closed.priority, closed.events) == (3, 5)
    assert hf.decisions.get(d.id) == closed


def test_an_error_is_recorded_after_a_change_made_meanwhile(hf: Store) -> None:
    chat = hf.conversation("c")
    with pytest.raises(ZeroDivisionError), chat.decide("x") as d:
        hf.decisions.prioritise(d.id, 1)
        1 / 0  # noqa: B018
    assert (hf.decisions.get(d.id).priority, hf.decisions.get(d.id).error is None) == (1, False)
    with pytest.raises(ZeroDivisionError), chat.decide("y") as d:
        hf.decisions.close(d.id, "closed elsewhere")
        1 / 0  # noqa: B018
    assert (hf.decisions.get(d.id).status, hf.decisions.get(d.id).error) == ("closed", None)


def test_a_superseded_decision_may_be_closed_or_gone_by_then(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, team = hf.conversation("c"), hf.team("t")
    decisions = Decisions(chat._context)
    for scope in (chat, team):
        old = scope.decide("plan a")
        new = chat.decide("plan b", supersedes=old.id)
        decisions.supersede(new.stored)  # as a recovery that comes late
        assert hf.decisions.get(old.id).events == 2
    old = chat.decide("plan c")
    once(monkeypatch, lambda: hf.decisions.prioritise(old.id, 1))
    newer = chat.decide("plan d", supersedes=old.id)
    assert hf.decisions.get(old.id).superseded_by == newer.id
    old = team.decide("plan e")
    once(monkeypatch, lambda: close_alone(team))
    newer = chat.decide("plan f", supersedes=old.id)
    assert hf.workers.marks("superseding") == []
    assert newer.stored.is_open


def test_a_superseded_decision_may_have_expired() -> None:
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        old = hf.conversation("c", ttl_s=5).decide("plan a")
        newer = hf.team("t").decide("plan b", supersedes=old.id)
        clock.advance(10)
        Decisions(hf.team("t")._context).supersede(newer.stored)
        assert hf.recover().acts == []


def test_a_recovery_that_was_taken_for_dead_says_that_it_acted(tmp_path: Path) -> None:
    url = new_url("sqlite", tmp_path)
    leave(url)
    with holdfast.open(url) as hf:
        meanwhile.append(
            lambda decision: hf.decisions.close(decision.id, "closed by another").outcome
        )
        [did] = hf.recover().acts
        assert did.did == "done again"
        assert "was already closed" in did.text


@pytest.mark.parametrize(
    ("output", "text", "stored"),
    [(None, "done", None), ("", "''", ""), ({"a": 1}, "{'a': 1}", {"a": 1}), (object, None, None)],
)
def test_a_decision_is_closed_whatever_its_act_returns(
    tmp_path: Path, output: Any, text: str | None, stored: Any
) -> None:
    url = new_url("sqlite", tmp_path)
    leave(url)
    with holdfast.open(url) as hf:
        meanwhile.append(lambda _: output)
        [did] = hf.recover().acts
        closed = hf.decisions.get("k@conversation/c")
        assert did.did == "done again"
        assert closed.outcome == (text if text is not None else repr(output))
        assert closed.output == stored


def test_a_decision_in_a_closed_scope_is_reported(tmp_path: Path) -> None:
    url = new_url("sqlite", tmp_path)
    leave(url)
    with holdfast.open(url) as hf:
        close_alone(hf.conversation("c"))
        [did] = hf.recover().acts
        assert (did.verdict, did.did) == ("not done", "left open")
        assert "was closed at revision" in did.text


def test_an_undo_never_reverts_a_change_that_it_did_not_see(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 3: a change that another writer made meanwhile is the newest then."""
    chat = hf.conversation("c")
    chat.set("a", 1)
    chat.set("a", 2)
    newest = hf._log.newest

    def then_another(stream: str) -> object:
        monkeypatch.setattr(hf._log, "newest", newest)
        chat.set("b", "acknowledged")
        return newest(stream)

    revision = chat.revision
    monkeypatch.setattr(hf._log, "newest", then_another)
    assert chat.undo() == revision + 2
    assert chat.state == {"a": 2}


def test_a_key_that_another_writer_took_first(hf: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = hf.conversation("c")
    read = Decisions._read  # pyright: ignore[reportPrivateUsage]

    def looked(self: Decisions, thing: Any) -> Any:
        found = read(self, thing)
        monkeypatch.setattr(Decisions, "_read", read)
        chat.decide("first", key="k")
        return found

    monkeypatch.setattr(Decisions, "_read", looked)
    with pytest.raises(holdfast.ExistsError, match="exists already"):
        chat.decide("second", key="k")
    assert [d.decision for d in hf.decisions.list(scope=chat)] == ["first"]


# --- concurrent recoveries, and results that were lost -------------------------------------------


def test_threads_of_one_worker_that_recover_at_once_act_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BOOT-42: both would take the decision over with the same event."""
    url = new_url("sqlite", tmp_path)
    leave(url)
    with holdfast.open(url) as hf:
        others: list[Any] = []
        judge = recovery.judge

        def recover_too(*_: object) -> NotDone:
            monkeypatch.setattr(recovery, "judge", judge)
            thread = Thread(target=lambda: others.append(hf.recover().acts))
            thread.start()
            thread.join()
            return NotDone()

        monkeypatch.setattr(recovery, "judge", recover_too)
        meanwhile[:] = [lambda _: "second", lambda _: "first"]
        [did] = hf.recover().acts
        assert (did.did, did.text, others) == ("done again", "first", [[]])
        assert len(meanwhile) == 1
        meanwhile.clear()


def test_threads_that_listed_a_decision_before_act_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late thread knows the decision as it was before the other took it over."""
    url = new_url("sqlite", tmp_path)
    leave(url)
    with holdfast.open(url) as hf:
        listed = Decisions.list

        def then_another(self: Decisions, **which: Any) -> list[Decision]:
            found = listed(self, **which)
            monkeypatch.setattr(Decisions, "list", listed)
            meanwhile.append(lambda _: "first")
            assert len(hf.recover().acts) == 1
            return found

        monkeypatch.setattr(Decisions, "list", then_another)
        assert hf.recover().acts == meanwhile == []
        assert hf.decisions.get("k@conversation/c").outcome == "first"


@pytest.mark.parametrize("lost", ["decision.taken", "decision.closed"])
def test_a_recovery_whose_result_was_lost_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """This worker owns the decision then, and no other recovery would ever take it."""
    url = new_url("sqlite", tmp_path)
    leave(url)
    with holdfast.open(url) as hf:
        commit = hf._log._backend.commit

        def lose(commits: Any) -> Any:
            answers = commit(commits)
            if commits[0].appends and commits[0].appends[0].records[0].type == lost:
                monkeypatch.undo()
                raise UnavailableError("no answer", outcome_known=False)
            return answers

        monkeypatch.setattr(hf._log._backend, "commit", lose)
        meanwhile[:] = [lambda _: "second", lambda _: "first"]
        with pytest.raises(UnavailableError):
            hf.recover()
        acts = hf.recover().acts
        assert [did.did for did in acts] == (["done again"] if lost == "decision.taken" else [])
        assert hf.decisions.get("k@conversation/c").outcome == "first"
        assert len(meanwhile) == 1
        meanwhile.clear()


def test_an_unfinished_recovery_is_not_taken_from_a_living_worker(tmp_path: Path) -> None:
    """Another worker took it over while this one seemed dead, and works on it."""
    url = new_url("sqlite", tmp_path)
    leave(url)
    with holdfast.open(url) as hf, holdfast.open(url) as other:
        meanwhile.append(lambda _: 1 / 0)
        [did] = hf.recover().acts
        assert did.did == "left open"
        decisions = Decisions(other.conversation("c")._context)
        decisions.take_over(decisions.get(did.id), "recover")
        meanwhile.append(lambda _: "a second time")
        assert hf.recover().acts == []
        meanwhile.clear()


def test_a_decision_whose_scope_expires_while_its_verifier_is_asked() -> None:
    """Clause 18: the others are recovered anyway."""
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        for scope in (hf.conversation("short", ttl_s=5), hf.conversation("long")):
            scope.decide("x", verify=not_done, act=act, key="k")
            clock.advance(1)
        context = hf.conversation("long")._context
        context.unfinished_recoveries.update(("k@conversation/short", "k@conversation/long"))
        meanwhile[:] = [lambda _: "done", lambda _: clock.advance(10)]
        assert [did.owner for did in hf.recover().acts] == ["conversation/long"]
        assert meanwhile == []

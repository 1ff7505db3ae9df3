"""Edge cases of the record: swept marks, errors in blocks, acts that fail, wrong clocks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Done, NotDone, Settings, Store, UsageError
from holdfast.record.verifier_commands import load_verifiers
from holdfast.testing import FakeClock
from tests.crash.children import Child
from tests.processes import await_end
from tests.record.kills import open_dying
from tests.record.stores import new_url


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@holdfast.verifier(name="left:unspeakable")
def unspeakable(_decision: Any) -> Done:
    raise Unspeakable


FAILS = [True]
DID: list[str] = []


@holdfast.verifier(name="left:not-done")
def not_done(_decision: Any) -> NotDone:
    return NotDone()


@holdfast.act(name="left:act")
def act(decision: Any) -> str:
    if FAILS[0]:
        raise OSError("the network is down")
    DID.append(decision.key)
    return "did it"


def leave(url: str, verify: object, act: object = None) -> str:
    """Leaves a decision open, of a worker that has ended; returns its id."""
    with holdfast.open(url) as gone:
        return gone.conversation("c").decide("x", verify=verify, act=act).id


def test_a_decision_closed_within_its_block_keeps_that_outcome(hf: Store) -> None:
    """Leaving the block once tried to close it again, and raised ExistsError."""
    chat = hf.conversation("c")
    with chat.decide("by its id") as one:
        hf.decisions.close(one.id, "done")
    with chat.decide("superseded") as two:
        newer = chat.decide("in its place", supersedes=two.id)
    assert (one.stored.outcome, two.stored.superseded_by) == ("done", newer.id)
    assert hf.decisions.get(one.id).outcome == "done"


def test_an_error_that_cannot_be_shown_as_text_is_not_hidden(hf: Store, tmp_path: Path) -> None:
    chat = hf.conversation("c")
    with pytest.raises(Unspeakable), chat.decide("x"):
        raise Unspeakable
    [left] = hf.decisions.list(incomplete=True)
    assert left.error == "Unspeakable: its message cannot be shown"
    with pytest.raises(Unspeakable), chat.messages.turn() as turn:
        turn.add("user", "x")
        raise Unspeakable
    assert chat.messages.turns()[0].status == "failed"
    url = new_url("sqlite", tmp_path)
    leave(url, unspeakable)
    with holdfast.open(url) as next_:
        [found] = next_.recover().acts
        assert (found.verdict, found.did) == ("unknown", "left open")
        assert "Unspeakable" in found.text


def test_a_turn_that_cannot_be_ended_does_not_hide_why_it_failed(hf: Store) -> None:
    chat = hf.conversation("c")
    with pytest.raises(ValueError, match="mine") as raised, chat.messages.turn() as turn:
        turn.add("user", "x")
        chat.close()
        raise ValueError("mine")
    assert "was not ended" in raised.value.__notes__[0]


def test_an_act_that_failed_is_tried_again_by_the_next_recovery(tmp_path: Path) -> None:
    """The worker that tried is alive and counts as its owner, yet the act is tried again."""
    url = new_url("sqlite", tmp_path)
    id = leave(url, not_done, act)
    DID.clear()
    FAILS[0] = True
    with holdfast.open(url) as hf, holdfast.open(url) as other:
        for _ in range(2):
            [found] = hf.recover().open
            assert (found.did, found.text) == ("left open", "OSError: the network is down")
        assert other.recover().acts == [], "it is in living hands"
        FAILS[0] = False
        [found] = hf.recover().acts
        assert (found.did, found.text) == ("done again", "did it")
        assert (hf.recover().acts, hf.decisions.get(id).status, len(DID)) == ([], "closed", 1)


def test_two_workers_that_attach_with_one_key_at_once_get_one_decision(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = hf.conversation("c")
    made: list[str] = []
    register = hf._kernel.leases.register

    def faster() -> None:
        monkeypatch.setattr(hf._kernel.leases, "register", register)
        made.append(hf.conversation("c").decide("x", key="k").id)

    monkeypatch.setattr(hf._kernel.leases, "register", faster)
    assert chat.decide("x", key="k", if_exists="attach").id == made[0]


@pytest.mark.parametrize("kind", ["memory", "files", "sqlite"])
def test_marks_of_scopes_that_expired_are_swept(kind: str, tmp_path: Path) -> None:
    """Servers expire scopes by their own clocks; the marks are the same there."""
    clock = FakeClock()
    with holdfast.open(new_url(kind, tmp_path), settings=Settings(clock=clock)) as hf:
        short = hf.conversation("short", ttl_s=1)
        short.decide("x")
        short.decide("y", standing=True)
        short.facts.state("z", 1)
        short.tasks.add("t")
        short.messages.turn().add("user", "u")
        kept = hf.conversation("long")
        kept.decide("x")
        clock.advance(10)
        hf.recover()
        found = [mark for mark in hf.workers.marks() if mark.group.startswith("conversation/")]
        assert [(mark.index, mark.group) for mark in found] == [("decision", "conversation/long")]


def test_the_mark_of_a_turn_whose_worker_died_is_swept(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    holdfast.open(url).close()

    def live(_pipe: int, _stop: int) -> None:
        open_dying(url).conversation("c").messages.turn().add("user", "x")
        os.kill(os.getpid(), 9)

    child = Child(live)
    child.end()
    assert child.was_killed, child.trouble
    with holdfast.open(url) as hf:
        hf.conversation("c").messages.turn().add("user", "y")
        while len(hf.workers.marks("turn")) == 2:  # on servers until its lease has lapsed
            hf.recover()
        assert [turn.status for turn in hf.conversation("c").messages.turns()] == [
            "open",
            "interrupted",
        ]


def test_a_fact_is_not_believed_for_years_because_a_clock_was_wrong() -> None:
    """An event's time never falls in a stream: one clock ahead lengthened all later facts."""
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        chat = hf.conversation("c")
        clock.advance(365 * 86400)
        chat.facts.state("ahead", 1, valid_for="1h")
        clock.set(clock.now_us() - 365 * 86400 * 1_000_000)
        chat.facts.state("after", 1, valid_for="1h")
        assert not chat.facts.get("after").stale
        ahead = chat.facts.get("ahead")
        assert ahead.stale
        assert "clock was ahead" in str(ahead.reason)
        clock.advance(2 * 3600)
        assert "past its time" in str(chat.facts.get("after").reason)


def test_a_foreign_item_that_was_merged_is_known_by_its_id(hf: Store) -> None:
    """Sent again it is not added again, though a merge wrote it elsewhere, without its key."""
    here, there = hf.conversation("a"), hf.conversation("b")
    item = {"role": "user", "content": "q"}
    other = {"role": "user", "content": "r"}
    there.messages.add("user", "early")
    there.messages.add(foreign=other, foreign_id="theirs")
    here.messages.add(foreign=item, foreign_id="ours")
    here.messages.merge(there)
    again = here.messages.add(foreign=item, foreign_id="ours")
    here.messages.add(foreign=other, foreign_id="theirs")
    here.messages.add_many([{"foreign": other, "foreign_id": "theirs"}])
    assert [message.text for message in here.messages] == ["early", "r", "q"]
    with pytest.raises(UsageError):
        here.messages.add(foreign=item, foreign_id="theirs")
    here.messages.delete(again)
    here.messages.add(foreign=item, foreign_id="ours")
    assert [message.text for message in here.messages] == ["early", "r", "q"]


def test_tasks_say_in_whose_name_they_were_written(hf: Store) -> None:
    chat = hf.conversation("c")
    task = chat.tasks.add("x")
    chat.tasks.claim("t1", owner="ben", lasts="1h")
    done = chat.tasks.close("t1", "done", owner="ben")
    assert (task.created_by, {state.by for state in done.history}) == ("ada", {"ada"})


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(
        '[verify."left:hangs"]\ntimeout_s = 3\n'
        'command = ["sh", "-c", "sleep 1000 & echo $! > pid; wait"]\n'
    )
    load_verifiers(tmp_path / "holdfast.toml", trust=True)
    with holdfast.open("memory:") as hf:
        hf.global_().facts.state("x", 1, verify="left:hangs")
        assert hf.stale() == []
    pid = int((tmp_path / "pid").read_text())
    await_end([pid])


@pytest.mark.parametrize("wrong", ["owner", "epic", "tag", "suspect"])
def test_bad_filters_are_refused(hf: Store, wrong: str) -> None:
    chat = hf.conversation("c")
    for call in (chat.tasks.list, hf.tasks.list):
        with pytest.raises(UsageError, match=wrong):
            call(**{wrong: 3})  # pyright: ignore[reportArgumentType]


def test_other_bad_arguments_are_refused() -> None:
    with holdfast.open("memory:") as hf:
        chat = hf.conversation("c")
        wrong: list[Any] = [
            lambda: chat.messages.cursor(3),  # pyright: ignore[reportArgumentType]
            lambda: chat.messages["a":"b"],  # pyright: ignore[reportArgumentType]
            lambda: chat.decisions.effect(3).__enter__(),  # pyright: ignore[reportArgumentType]
            lambda: chat.facts.state("x", 1, valid_for="500000d"),
            lambda: hf.decisions.list(older_than="500000d"),
            lambda: hf.decisions.get("a@\0"),
            lambda: hf.decisions.list(scope="\ud800"),
            lambda: holdfast.verifier(lambda _: Done()),
            lambda: chat.tasks.claim(epic=3),  # pyright: ignore[reportArgumentType]
        ]
        for call in wrong:
            with pytest.raises(UsageError):
                call()

"""Old changes of a state, folded into a base: what is known afterwards, on every backend (0059)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.backends.protocol import GONE, START
from holdfast.core import compaction, retention
from holdfast.errors import CorruptError, LetGoError
from holdfast.retention import RetentionPolicy
from holdfast.testing import FakeClock
from holdfast.transfer.copy import copy_log
from tests.record.kills import kill_everywhere, open_dying
from tests.record.stores import new_url

DAY_S = 86_400
KEEP = [RetentionPolicy("team/*", types=["state"], count=5)]
FEW = [RetentionPolicy("team/*", types=["state"], count=1)]
CANARY = "CANARY-b45e"


@pytest.fixture
def aged(url: str) -> Iterator[tuple[Store, FakeClock]]:
    clock = FakeClock()
    with holdfast.open(url, settings=Settings(clock=clock)) as store:
        yield store, clock


def fill(hf: Store) -> dict[int, Any]:
    """Writes a history, and returns the state of each revision."""
    team = hf.team("t")
    states: dict[int, Any] = {}
    for number in range(20):
        team.set("n", {"value": number, "text": CANARY if number < 10 else "fine"})
        if number == 4:
            team.checkpoint("four")
        if number % 5 == 0:
            team.append("log", f"item {number} " + "x" * 100)
        team.say(f"message {number}")
        states[team.revision] = team.state.to_dict()
    return states


def payloads(hf: Store) -> bytes:
    found = [record.payload for record in hf._log.read_all(after=START, limit=100_000)]
    return b"\n".join(found)


def test_old_changes_go_and_everything_that_was_named_is_known(aged: Any) -> None:
    hf, clock = aged
    states = fill(hf)
    team = hf.team("t")
    before, four, position = team.state.to_dict(), team.at("four").to_dict(), hf.position
    digest = hf.check().digest
    clock.advance(DAY_S)
    planned = hf.retention.preview(policies=KEEP, grace_s=0)
    assert [(one.scope, one.why) for one in planned.scopes] == [("team/t", "compacted")]
    assert (hf.position, hf.check().digest) == (position, digest)
    done = hf.retention.run(policies=KEEP, grace_s=0)
    assert done.events == planned.events > 10
    assert done.refused == {}
    assert (team.state.to_dict(), team.at("four").to_dict()) == (before, four)
    newest = team.revision - 1
    known = {}
    for revision, state in states.items():
        with suppress(LetGoError):
            known[revision] = team.at(revision).to_dict() == state
    assert all(known.values())
    assert newest in known
    assert 4 <= len(known) <= 8  # those since the cut; the others are gone
    assert [message.text for message in team.messages][:2] == ["message 0", "message 1"]
    assert [one.name for one in team.checkpoints()] == ["four"]
    assert payloads(hf).count(CANARY.encode()) == 1  # in the base, at the checkpoint
    assert hf.check().findings == []
    assert hf.retention.run(policies=KEEP, grace_s=0).scopes == []  # once is enough
    assert [event.checkpoint for event in team.history() if event.checkpoint] == ["four"]
    assert list(hf.query(kind="state", where={"n.value": 19}))


def test_a_new_handle_and_a_copy_read_the_same(aged: Any, tmp_path: Path) -> None:
    """The base is copied, and snapshots are not needed: plain events have it all."""
    hf, clock = aged
    fill(hf)
    team = hf.team("t")
    clock.advance(DAY_S)
    hf.retention.run(policies=KEEP, grace_s=0)
    team.append("log", "later")
    want = team.state.to_dict(), team.at("four").to_dict()
    for name in hf._log._backend.objects.names("snapshot"):
        hf._log._backend.objects.delete("snapshot", name)
    hf._log.folds.states.clear()
    assert (team.state.to_dict(), team.at("four").to_dict()) == want
    assert [dict(one.state) for one in team.states(after=team.revision - 1)] == [want[0]]
    assert hf.view().states([team])["team/t"].to_dict() == want[0]
    with holdfast.open(f"sqlite:{tmp_path / 'copy.db'}", settings=Settings(clock=clock)) as target:
        copy_log(hf._log, target._log)
        assert (target.team("t").state.to_dict(), target.team("t").at("four").to_dict()) == want
        assert target.check().digest == hf.check().digest


def test_it_is_compacted_again_and_goes_on(aged: Any) -> None:
    hf, clock = aged
    team = hf.team("t")
    fill(hf)
    clock.advance(DAY_S)
    hf.retention.run(policies=KEEP, grace_s=0)
    fill(hf)
    team.checkpoint("later")
    team.set("n", 1)
    want = team.at("later").to_dict()
    clock.advance(DAY_S)
    again = hf.retention.run(policies=KEEP, grace_s=0)
    assert again.events > 10
    hf._log.folds.states.clear()
    assert (team["n"], team.at("later").to_dict()) == (1, want)
    assert [one.name for one in team.checkpoints()] == ["later", "four", "four"]
    assert len(team.state.to_dict()["log"]) == 8
    team.restore("later")
    assert team.state.to_dict() == want
    assert hf.check().findings == []


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_what_another_handle_has_in_memory_is_still_read(backend: str, tmp_path: Path) -> None:
    """It holds lists whose items it reads from their events, when it is asked for them."""
    url = new_url(backend, tmp_path)
    with holdfast.open(url) as hf:
        team = hf.team("t")
        for number in range(300):
            team.append("log", f"item {number} " + "x" * 200)
            team.set("n", "y" * 500)
        want = team.state.to_dict()
    with holdfast.open(url) as other, holdfast.open(url) as hf:
        state = other.team("t").state  # from a snapshot, items unread
        for _ in range(2):
            assert hf.retention.run(policies=KEEP, grace_s=0).events > 0
            for number in range(8):
                hf.team("t").set("m", number)
        assert state.to_dict() == want
        assert other.team("t").state.to_dict() == {**want, "m": 7}
        other._log.snapshots.flush(other._log._states)
    with holdfast.open(url) as hf:
        assert hf.team("t").state.to_dict() == {**want, "m": 7}
        assert hf.check().findings == []


def test_a_fork_keeps_its_past_and_none_begins_at_what_went(aged: Any) -> None:
    hf, clock = aged
    fill(hf)
    team = hf.team("t")
    fork = team.fork("f", at=7)
    want = fork.state.to_dict()
    clock.advance(DAY_S)
    policies = [RetentionPolicy("team/t", types=["state"], count=5)]
    hf.retention.run(policies=policies, grace_s=0)
    hf._log.folds.states.clear()
    assert fork.state.to_dict() == want
    assert team.at(7).to_dict() == want
    with pytest.raises(LetGoError):
        team.fork("g", at=12)
    assert team.fork("h").state.to_dict() == team.state.to_dict()
    assert hf.check().findings == []


def test_what_is_under_way_held_or_closed_is_left_alone(aged: Any) -> None:
    hf, clock = aged
    for id in ("open", "held", "closed"):
        for number in range(8):
            hf.team(id).set("n", number)
    decision = hf.team("open").decide("deploy?")
    hf.retention.hold("team/held")
    hf.team("closed").close()
    clock.advance(DAY_S)
    heads = hf._log.heads(["team/open", "team/held", "team/closed"])
    done = hf.retention.run(policies=KEEP, grace_s=0)
    assert (done.events, done.held) == (0, ["team/held"])
    assert set(done.refused) == {"team/open", "team/closed"}
    assert heads == hf._log.heads(["team/open", "team/held", "team/closed"])
    hf.decisions.close(decision.id, "yes")
    assert hf.retention.run(policies=KEEP, grace_s=0).events > 0


def test_a_state_that_is_not_what_its_events_fold_to_keeps_every_event(aged: Any) -> None:
    hf, clock = aged
    fill(hf)
    clock.advance(DAY_S)
    log, name = hf._log, "team/t"
    hf.team("t").state.to_dict()
    right = log.replayed(name, log.heads([name])[0], log.heads([name])[0].revision)
    cut = max(one.until for one in hf.retention.preview(policies=KEEP, grace_s=0).scopes)
    at = type(log).at

    def lie(stream: str, revision: int) -> Any:
        state = at(log, stream, revision)
        if revision == cut:
            from msgspec.structs import replace

            return replace(state, root=right.root)
        return state

    log.at = lie  # as a damaged snapshot would
    with pytest.raises(CorruptError, match="is not what its events fold to"):
        hf.retention.run(policies=KEEP, grace_s=0)
    del log.at
    assert all(record.payload != GONE for record in log.read_all(after=START, limit=10_000))
    assert log.replayed(name, log.heads([name])[0], right.revision).root == right.root


def test_the_proof_is_what_finds_it(aged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction without the proof would have let the events go: the plant bites."""
    hf, clock = aged
    fill(hf)
    clock.advance(DAY_S)
    log, team = hf._log, hf.team("t")
    want = team.at("four").to_dict()
    monkeypatch.setattr(compaction, "prove", lambda *_: None)
    monkeypatch.setattr(compaction, "diff_ops", lambda *_: ())  # a base that says nothing
    hf.retention.run(policies=KEEP, grace_s=0)
    log.folds.states.clear()
    assert team.at("four").to_dict() != want


def test_a_repeated_key_of_what_went_writes_nothing(aged: Any) -> None:
    hf, clock = aged
    team = hf.team("t")
    team.set("n", 1, key="once")
    fill(hf)
    clock.advance(DAY_S)
    hf.retention.run(policies=KEEP, grace_s=0)
    revision = team.revision
    with suppress(LetGoError):
        team.set("n", 1, key="once")
    assert team.revision == revision


def live(url: str) -> None:
    """A history and its compaction, in a process that dies somewhere."""
    retention.LEASE_TTL_S = 0.3
    store = open_dying(url)
    team = store.team("t")
    for number in range(4):
        team.set("n", {"value": number}, checkpoint="two" if number == 1 else None)
    store.retention.run(policies=FEW, grace_s=0)


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_compaction_that_is_killed_anywhere_is_whole_or_resumes(
    backend: str, tmp_path: Path
) -> None:
    trials = 0
    for kill in kill_everywhere(live, lambda: new_url(backend, tmp_path)):
        trials += 1
        with holdfast.open(kill.url) as hf:
            team = hf.team("t")
            if team.revision < 4:
                continue  # killed before the history was there
            hf.retention.run(policies=FEW, grace_s=0, wait_s=60)
            hf._log.folds.states.clear()
            assert team.state.to_dict() == {"n": {"value": 3}}, kill
            assert team.at("two").to_dict() == {"n": {"value": 1}}, kill
            assert hf.check().findings == [], kill
    assert trials > 9


def test_a_sealed_scope_is_known_from_its_base(tmp_path: Path) -> None:
    """Its base is sealed too, and is found: the name that it has says nothing of the subject."""
    place = tmp_path / "store"
    with holdfast.open(place, keys=tmp_path / "keys", settings=Settings(clear_ids=True)) as hf:
        team = hf.team("t", subject="ada@example.org")
        for number in range(12):
            name = "three" if number == 3 else None
            team.set("n", {"value": number, "text": CANARY}, checkpoint=name)
        assert hf.retention.run(policies=KEEP, grace_s=0).events > 0
        hf._log.folds.states.clear()
        assert (team["n"]["value"], team.at("three")["n"]["value"]) == (11, 3)
        assert [one.name for one in team.checkpoints()] == ["three"]
        assert hf.check().findings == []
        assert CANARY.encode() not in payloads(hf)
    stored = b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    assert CANARY.encode() not in stored

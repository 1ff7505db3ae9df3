"""States that are known from a base: which revisions are, and which are not (0059)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import GONE
from holdfast.core.event import BASE, based_payload, point_of
from holdfast.core.limits import Quota
from holdfast.core.retention import PENDING, _Run
from holdfast.errors import ConflictError, CorruptError, LetGoError
from holdfast.retention import RetentionPolicy

KEEP = [RetentionPolicy("team/*", types=["state"], count=2)]


@pytest.fixture
def hf() -> Iterator[Store]:
    with holdfast.open("memory:") as store:
        for id in ("a", "b"):
            for number in range(8):
                store.team(id).set("n", number)
                if number == 3:
                    store.team(id).checkpoint("three")
        store.retention.run(policies=KEEP, grace_s=0)
        store._log.folds.states.clear()
        yield store


def read(hf: Store, revision: int) -> int | None:
    try:
        return hf.team("a").at(revision)["n"]
    except LetGoError:
        return None


def test_checkpoints_and_what_came_since_the_cut_are_known(hf: Store) -> None:
    assert [read(hf, revision) for revision in range(1, 11)] == [
        None, None, None, None, 3, None, 5, 6, 7, 7,
    ]  # fmt: skip
    states = hf.view().states(["team/a", "team/b"])  # both read at once
    assert [state["n"] for state in states.values()] == [7, 7]
    assert [event.checkpoint for event in hf.team("a").history() if event.checkpoint] == ["three"]


def test_what_is_not_known_is_not_forked(hf: Store) -> None:
    team = hf.team("a")
    for revision in (1, 4, 6):
        with pytest.raises(LetGoError):
            team.fork(f"f{revision}", at=revision)
    for revision in (5, 8, 10):
        assert team.fork(f"f{revision}", at=revision)["n"] == read(hf, revision)
    assert hf.conversation("new").set("n", 1) == 1
    hf.conversation("new").fork("other")


def test_a_base_that_went_with_its_scope_is_none(hf: Store) -> None:
    team = hf.team("a")
    team.remove()
    hf.retention.run(grace_s=0)
    team.set("n", 9)
    assert team["n"] == 9
    hf._log.folds.states.clear()
    assert (read(hf, 5), read(hf, 8)) == (None, None)
    assert team.fork("f")["n"] == 9
    assert hf.retention.run(policies=KEEP, grace_s=0).events == 0
    for number in range(6):
        team.set("n", number)
    assert hf.retention.run(policies=KEEP, grace_s=0).events > 0
    assert hf.check().findings == []


def test_points_are_found_by_the_revision_before_them() -> None:
    payload = based_payload([(3, 0, b'[["set","n",1]]'), (7, 2, b'[["set","n",2]]')])

    def none(name: str, size: int) -> bytes:
        raise AssertionError(name, size)

    found = [point_of(payload, revision, none) for revision in (2, 3, 6, 7, 99)]
    known = [one and (one.revision, one.version, one.root.to_dict()) for one in found]
    three, seven = (3, 0, {"n": 1}), (7, 2, {"n": 2})
    assert known == [None, three, three, seven, seven]


def test_a_quota_does_not_keep_a_base_away() -> None:
    with holdfast.open("memory:", settings=Settings(quotas=[Quota("team/*", events=8)])) as hf:
        for number in range(8):
            hf.team("a").set("n", number)
        assert hf.retention.run(policies=KEEP, grace_s=0).events > 0
        assert hf.team("a")["n"] == 7


def test_a_scope_that_is_written_to_meanwhile_is_left_alone(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.core import compaction

    def late(*_: object, **__: object) -> None:
        raise ConflictError("late", stream="team/a", expected=1, actual=2)

    for number in range(8):
        hf.team("a").set("n", number)
    monkeypatch.setattr(compaction, "write_base", late)
    done = hf.retention.run(policies=KEEP, grace_s=0)
    assert "it was written to meanwhile" in done.refused["team/a"]
    assert done.events == 0


def test_a_damaged_base_is_damage(hf: Store) -> None:
    with pytest.raises(CorruptError):
        point_of(b'{"points":7}', 5, lambda name, size: b"")
    assert hf._log.find("team/a", checkpoint=BASE)


def test_an_own_event_that_was_let_go_of_says_so() -> None:
    with holdfast.open("memory:") as hf:
        for number in range(2):
            hf.team("a").record("seen", {"n": number}, unchecked=True)
        policy = RetentionPolicy("team/*", types=["seen"], count=1)
        assert hf.retention.run(policies=[policy], grace_s=0).events == 1
        first, second = hf.team("a").history(type="seen")
        with pytest.raises(LetGoError):
            first.data  # noqa: B018
        assert second.data == {"n": 1}


def test_a_state_that_goes_while_it_is_folded_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure removes a scope, then its data: who reads between the two finds the new end."""
    url = tmp_path / "store"
    with holdfast.open(url) as hf, holdfast.open(url) as other:
        hf.team("a").set("n", 1)
        load = other._log._load

        def goes(*given: Any) -> Any:
            monkeypatch.setattr(other._log, "_load", load)
            hf.team("a").set("n", 2)
            raise LetGoError("team/a", 1)

        monkeypatch.setattr(other._log, "_load", goes)
        assert other.team("a").state == {"n": 2}

        def gone(*given: Any) -> Any:
            raise LetGoError("team/a", 2)

        hf.team("a").set("n", 3)
        monkeypatch.setattr(other._log, "_load", gone)
        with pytest.raises(LetGoError):
            other._log.newest("team/a")


# --- a run that ended in the middle ---------------------------------------------------------------


def cut_off(hf: Store, monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    """Compacts, and is ended right before a call."""

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(where, name, die)
        hf.retention.run(policies=KEEP, grace_s=0)


def gone(hf: Store, id: str) -> list[int]:
    """Returns the revisions of a team that have no data any more."""
    records = hf._log.read(f"team/{id}", after=0)
    return [one.revision for one in records if one.payload == GONE]


@pytest.fixture
def new() -> Iterator[Store]:
    with holdfast.open("memory:") as store:
        for number in range(8):
            store.team("a").set("n", number)
            store.team("a").append("list", {"number": number})
            if number == 3:
                store.team("a").checkpoint("middle")
        yield store


@pytest.mark.parametrize(
    ("where", "name"),
    [(_Run, "_tell_all"), (MemoryBackend, "rewrite"), (_Run, "_collect_blobs")],
    ids=["told", "rewritten", "done"],
)
def test_what_a_base_stands_for_goes_also_after_a_run_that_was_ended(
    new: Store, where: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is told: a base is written once more. After it: what was told goes."""
    whole = new.team("a").state.to_dict()
    cut_off(new, monkeypatch, where, name)
    new._log.folds.states.clear()
    assert new.team("a").state.to_dict() == whole
    new.retention.run(policies=KEEP, grace_s=0)
    assert gone(new, "a") == [1, 3, 5, 7, 10, 12, 14]  # the events of the list's items stay
    assert new._log.marks.list(PENDING) == []
    assert new.retention.run(policies=KEEP, grace_s=0).events == 0
    new._log.folds.states.clear()
    assert new.team("a").state.to_dict() == whole
    assert new.check().findings == []


def test_what_was_told_stays_where_a_fork_or_a_hold_came_first(
    new: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(new, monkeypatch, MemoryBackend, "rewrite")
    new.retention.hold("team/a", "asked for")
    assert new.retention.run(policies=KEEP, grace_s=0).held == ["team/a"]
    assert gone(new, "a") == []
    new.retention.unhold("team/a")
    fork = new.team("a").fork("f", at="middle")
    new.retention.run(policies=KEEP, grace_s=0)
    assert gone(new, "a") == [10, 12, 14]
    assert fork.at(3)["n"] == 1
    assert new.check().findings == []


def test_a_base_that_stands_for_nothing_more_is_passed_by(
    new: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs in a row are ended before they tell; then there is one more change."""
    for _ in range(2):
        cut_off(new, monkeypatch, _Run, "_tell_all")
    new.team("a").set("n", 99)
    new.retention.run(policies=KEEP, grace_s=0)
    assert gone(new, "a")[:7] == [1, 3, 5, 7, 10, 12, 14]
    new.team("a").set("n", 100)
    new.team("a").set("n", 101)
    new.retention.run(policies=KEEP, grace_s=0)
    assert new.team("a").at(new.team("a").revision)["n"] == 101
    assert new.check().findings == []

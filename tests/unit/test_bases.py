"""States that are known from a base: which revisions are, and which are not (0059)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import LetGoError, RetentionPolicy, Store
from holdfast.core.event import BASE, based_payload, point_of
from holdfast.core.limits import Quota
from holdfast.errors import ConflictError, CorruptError

KEEP = [RetentionPolicy("team/*", types=["state"], count=2)]


@pytest.fixture
def hf() -> Iterator[Store]:
    with holdfast.open("memory:") as store:
        for id in ("a", "b"):
            for number in range(8):
                store.team(id).set("n", number)
                if number == 3:
                    store.team(id).checkpoint("three")
        store.retain(policies=KEEP, grace_s=0)
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
    states = hf.states(["team/a", "team/b"])  # both read at once
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
    hf.retain(grace_s=0)
    team.set("n", 9)
    assert team["n"] == 9
    hf._log.folds.states.clear()
    assert (read(hf, 5), read(hf, 8)) == (None, None)
    assert team.fork("f")["n"] == 9
    assert hf.retain(policies=KEEP, grace_s=0).events == 0
    for number in range(6):
        team.set("n", number)
    assert hf.retain(policies=KEEP, grace_s=0).events > 0
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
    with holdfast.open("memory:", quotas=[Quota("team/*", events=8)]) as hf:
        for number in range(8):
            hf.team("a").set("n", number)
        assert hf.retain(policies=KEEP, grace_s=0).events > 0
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
    done = hf.retain(policies=KEEP, grace_s=0)
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
        assert hf.retain(policies=[policy], grace_s=0).events == 1
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

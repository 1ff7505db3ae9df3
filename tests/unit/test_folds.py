"""Folds are forgotten by last use and by bytes; a change that fits any state needs none."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.event import EMPTY, Change, StreamEnd, StreamState
from holdfast.core.folds import FOLD_BYTES, Folds
from holdfast.core.tree import Map, footprint, freeze
from tests.unit.test_tips import Counting, backend, long_scope, note, open_on

__all__ = ["backend"]  # a fixture


def state(revision: int = 1, **values: Any) -> StreamState:
    return StreamState(revision, bytes(32), 7, freeze(values))


SMALL = FOLD_BYTES + footprint(freeze({"n": 1}))


# --- the folds in memory --------------------------------------------------------------------------


def test_all_that_can_be_read_again_is_forgotten_when_memory_is_short() -> None:
    folds = Folds()
    for name in "abc":
        folds.keep(name, state(n=1))
    folds.used.add("a")
    folds.trim()
    assert (folds.states, folds.used, folds.bytes) == ({}, set(), 0)
    assert sorted(folds.ends) == ["a", "b", "c"]
    folds.keep("a", state(n=1))
    assert (folds.bytes, sorted(folds.ends)) == (SMALL, ["b", "c"])


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    folds = Folds()
    folds.bytes_max = 3 * SMALL
    for name in "abc":
        folds.keep(name, state(n=1))
    folds.used.add("a")
    folds.keep("d", state(n=1))
    assert list(folds.states) == ["a", "c", "d"]
    assert folds.used == set()
    folds.keep("e", state(n=1))
    assert list(folds.states) == ["a", "d", "e"]
    assert folds.bytes == 3 * SMALL


def test_the_end_of_a_stream_stays_when_its_fold_is_forgotten() -> None:
    folds = Folds()
    folds.bytes_max = SMALL
    folds.keep("a", StreamState(3, b"link", 9, freeze({"n": 1}), "team/t", 3, True, 5))
    folds.keep("b", state(n=1))
    assert folds.ends == {"a": StreamEnd(3, b"link", 9, EMPTY.root, "team/t", 3, True, 5)}
    folds.keep("a", state(n=1))
    assert list(folds.ends) == ["b"]


def test_one_large_fold_takes_the_place_of_many_small_ones_and_stays_itself() -> None:
    folds = Folds()
    folds.bytes_max = 10 * SMALL
    for number in range(10):
        folds.keep(f"s{number}", state(n=1))
    folds.keep("large", state(text="x" * 20 * SMALL))
    assert list(folds.states) == ["large"]
    assert folds.bytes > folds.bytes_max


def test_a_fold_that_has_grown_is_weighed_again() -> None:
    folds = Folds()
    folds.bytes_max = 4 * SMALL
    for name in "abc":
        folds.keep(name, state(n=1))
    folds.keep("a", state(text="x" * 2 * SMALL))
    assert len(folds.states) == 3
    folds.keep("a", state(text="x" * 2 * SMALL), is_grown=True)
    assert list(folds.states) == ["a", "c"]
    folds.used.add("a")
    folds.states["a"] = state(n=1)  # it is small again, which is noticed when room is needed
    folds.keep("d", state(n=1))
    folds.keep("e", state(n=1))
    assert (set(folds.states), folds.bytes) == ({"a", "d", "e"}, 3 * SMALL)


def test_what_is_noted_beside_the_folds_is_bounded() -> None:
    folds = Folds()
    folds.ends_max = 3
    for number in range(9):
        folds.keep(f"e{number}", StreamEnd(1, b"", 1, EMPTY.root))
    folds.keep("e6", StreamEnd(2, b"", 1, EMPTY.root))
    assert list(folds.ends) == ["e7", "e8", "e6"]
    folds.used.update(f"u{number}" for number in range(5000))
    folds.keep("a", state(n=1))
    assert folds.used == set()


def test_a_fold_that_somebody_took_away_is_not_missed() -> None:
    folds = Folds()
    folds.bytes_max = SMALL
    folds.keep("a", state(n=1))
    folds.states.clear()
    folds.keep("b", state(n=1))
    assert (list(folds.states), folds.ends, folds.bytes) == (["b"], {}, SMALL)


def test_the_footprint_follows_what_is_there(backend: Counting) -> None:
    chat = open_on(backend).conversation("c")
    assert footprint(Map()) < 1000
    chat.set("many", {f"key {n}": n for n in range(10_000)})
    chat.set("texts", ["x" * 1000] * 2000)
    unread = footprint(chat.state)
    assert unread < 10_000  # both are blobs
    assert len(chat.state["texts"]) == 2000
    assert chat.state["many"]["key 5"] == 5
    assert footprint(chat.state) > unread + 2_000_000
    deep: dict[str, Any] = {"leaf": "x" * 100}
    for _ in range(8):
        deep = {"below": deep}
    assert footprint(freeze(deep)) < 10_000
    assert footprint(freeze({"data": b"x" * 9000})) > 9000


def test_items_that_a_snapshot_only_names_weigh_nothing_until_they_are_read(
    backend: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.snapshot.CLOSE_BYTES_MIN", 1)
    hf = open_on(backend)
    for number in range(200):
        hf.conversation("c").append("log", {"text": f"{number}" * 100})
    hf._log.snapshots.flush(hf._log.folds.states)
    chat = open_on(backend).conversation("c")
    unread = footprint(chat.state)
    assert len(list(chat.state["log"])) == 200
    assert footprint(chat.state) > 3 * unread


# --- changes that need no fold --------------------------------------------------------------------


def test_a_key_is_set_in_an_unread_stream_without_a_fold(backend: Counting) -> None:
    long_scope(backend)
    hf = open_on(backend)
    backend.records_read = 0
    chat = hf.conversation("c")
    assert chat.set("m", 1) == 501
    assert chat.update({"m": {"deep": [1]}, "k": None}) == 502
    assert chat.set("m", 2, expected=502, key="once", checkpoint="here") == 503
    assert backend.records_read <= 3
    assert chat.state.to_dict() == {"n": 499, "m": 2, "k": None}
    assert chat.set("m", 2, key="once") == 503
    assert hf.check().ok


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda chat: chat.increment("n"), {"n": 500}),
        (lambda chat: chat.set(("deep", "n"), 1), {"n": 499, "deep": {"n": 1}}),
        (lambda chat: chat.delete("n"), {}),
        (lambda chat: chat.append("log", 1), {"n": 499, "log": [1]}),
        (lambda chat: chat.set("n", 7, if_absent=True, key="k"), {"n": 499}),
        (lambda chat: chat.restore(2), {"n": 1}),
        (lambda chat: chat.undo(), {"n": 499}),
    ],
)
def test_what_depends_on_the_state_is_folded(
    backend: Counting, change: Any, expected: dict[str, Any]
) -> None:
    long_scope(backend)
    chat = open_on(backend).conversation("c")
    chat.set("n", 499)  # by its end alone
    change(chat)
    assert chat.state.to_dict() == expected
    assert open_on(backend).conversation("c").state.to_dict() == expected


def test_writes_to_more_streams_than_are_kept_read_nothing(backend: Counting) -> None:
    hf = open_on(backend)
    hf._log.folds.bytes_max = 4 * SMALL
    scopes = [hf.conversation(str(number)) for number in range(20)]
    for scope in scopes:
        scope.set("n", 0)
    backend.records_read = 0
    for turn in range(5):
        for scope in scopes:
            scope.set("n", turn)
    assert backend.records_read == 0
    assert [scope.get("n") for scope in scopes] == [4] * 20
    assert hf.check().ok


def test_subscribers_and_validators_are_shown_states(backend: Counting) -> None:
    long_scope(backend, events=5)
    heard: list[Change] = []
    hf = open_on(backend)
    hf.conversation("c").subscribe(heard.append)
    hf.conversation("c").set("n", 9)
    assert hf._log.dispatcher.drain(30.0)
    assert [(change.old, change.new) for change in heard] == [(4, 9)]
    seen: list[tuple[Any, Any]] = []
    other = open_on(backend)
    other._log.add_validator(
        lambda _, before, after: seen.append((before.root.get("n"), after.root.get("n")))
    )
    other.conversation("c").set("n", 10)
    assert seen == [(9, 10)]


def test_who_begins_to_listen_while_a_change_is_made_does_not_hear_of_it(
    backend: Counting,
) -> None:
    """Its state was not folded: what changed is not known."""
    long_scope(backend, events=5)
    hf = open_on(backend)
    heard: list[Change] = []
    chat = hf.conversation("c")
    commit = _then(backend.commit, lambda: chat.subscribe(heard.append))
    backend.commit = commit  # type: ignore[method-assign]
    chat.set("n", 9)
    assert hf._log.dispatcher.drain(30.0)
    assert heard == []
    chat.set("n", 10)
    assert hf._log.dispatcher.drain(30.0)
    assert [(change.old, change.new) for change in heard] == [(9, 10)] * len(heard)
    assert heard


def _then(call: Any, act: Any) -> Any:
    def both(*arguments: Any) -> Any:
        act()
        return call(*arguments)

    return both


def test_a_stream_that_is_only_set_has_its_snapshots(
    backend: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it then does not fold it all: that was so while every write was folded."""
    monkeypatch.setattr("holdfast.core.snapshot.GROWTH_BYTES_MIN", 4000)
    long_scope(backend, events=3)
    hf = open_on(backend)
    for number in range(100):
        hf.conversation("c").set("n", number)
    assert len(backend.objects.names("snapshot")) >= 3
    backend.records_read = 0
    assert open_on(backend).conversation("c").get("n") == 99
    assert backend.records_read <= 40


def test_a_change_and_an_event_share_a_batch_without_a_fold(backend: Counting) -> None:
    long_scope(backend)
    hf = open_on(backend)
    backend.records_read = 0
    note(hf)
    with hf.commit() as tx:
        tx.scope(hf.conversation("c")).set("n", 1)
        tx.scope(hf.conversation("d")).set("n", 2)
    note(hf)
    assert backend.records_read <= 4
    assert (hf.conversation("c").get("n"), hf.conversation("d").get("n")) == (1, 2)


def test_a_fold_whose_events_were_let_go_of_is_forgotten() -> None:
    folds = Folds()
    for name in "ab":
        folds.keep(name, state(n=1))
        folds.used.add(name)
    for _ in range(2):
        folds.forget("a")
        assert (list(folds.states), folds.used, folds.bytes) == (["b"], {"b"}, SMALL)
        assert list(folds.ends) == ["a"]

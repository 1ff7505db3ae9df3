"""Ends of values and marks, broken on purpose: each fault is found by the test named for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.core import compaction, ended_values, log, mark_ends
from holdfast.core import event as events
from holdfast.core.key_ends import KeyEnds
from holdfast.core.tree import ends as tree_ends
from tests.conformance import test_key_ends, test_mark_ends
from tests.conformance.test_expiring import World

Put = Callable[[Any, str, Any], None]
Catcher = Callable[[World, Store], None]


def _readers_see_it_for_ever(put: Put) -> None:
    put(KeyEnds, "shown", lambda _self, state, _stream: state)


def _shown_from_memory_for_ever(put: Put) -> None:
    """What was shown once is shown until the next event, whatever the time is."""
    shown, kept = KeyEnds.shown, dict[int, Any]()

    def once(self: KeyEnds, state: Any, stream: str) -> Any:
        return kept.setdefault(id(state), (state, shown(self, state, stream)))[1]

    put(KeyEnds, "shown", once)


def _writers_find_what_has_ended(put: Put) -> None:
    put(log, "ended", lambda *_: [])


def _a_set_keeps_the_old_end(put: Put) -> None:
    put(tree_ends, "_supersede", lambda *_: None)


def _superseded_is_forgotten(put: Put) -> None:
    def forget(found: dict[Any, int], paths: Any) -> None:
        for path in paths:
            del found[path]

    put(tree_ends, "_supersede", forget)


def _the_fold_of_many_forgets(put: Put) -> None:
    """A process that reads the events afresh does not know the ends."""
    put(events.OpBatch, "apply", _without_ends(events.OpBatch.apply))


def _without_ends(apply: Any) -> Any:
    def forgetful(self: Any, ops: Any, **named: Any) -> None:
        apply(self, ops, **named)
        self.ends = None

    return forgetful


def _a_restore_brings_it_back(put: Put) -> None:
    from holdfast.core import tree

    put(tree, "held_over", lambda target, *_: target)


def _the_base_has_it(put: Put) -> None:
    put(ended_values, "_without_ended", lambda state, _limit: state)


def _list_items_lose_their_event(put: Put) -> None:
    put(ended_values, "_items_anew", lambda *_: [])
    put(ended_values, "must_stay", lambda *_: frozenset())


def _ends_not_in_the_base(put: Put) -> None:
    put(compaction, "until_op", lambda path, _end: tree_ends.until_op(path, 0))
    put(compaction, "prove", lambda *_: None)


def _mark_found_for_ever(put: Put) -> None:
    put(mark_ends, "_is_over", lambda *_: False)


def _mark_of_a_scope_stays(put: Put) -> None:
    put(mark_ends, "_has_ended", lambda *_: False)


def _mark_cleared_without_a_guard(put: Put) -> None:
    proposed = mark_ends.ProposedCommit

    def unguarded(writes: Any, reads: Any = (), **named: Any) -> Any:
        del reads
        return proposed(writes, **named)

    put(mark_ends, "ProposedCommit", unguarded)


def _alone(catcher: Callable[..., None]) -> Catcher:
    """Returns a test that takes another handle too, on one that has the only one."""
    return lambda world, store: catcher(world, store, store)


def _patched(catcher: Callable[..., None]) -> Catcher:
    def run(world: World, store: Store) -> None:
        with pytest.MonkeyPatch.context() as patch:
            catcher(world, store, patch)

    return run


_until = _alone(test_key_ends.test_a_value_is_there_until_its_end_for_every_reader)
_bytes = test_key_ends.test_the_bytes_of_what_has_ended_go_and_all_else_stays
PLANTS: dict[str, tuple[Callable[[Put], None], Catcher]] = {
    "readers see it for ever": (_readers_see_it_for_ever, _until),
    "shown from memory for ever": (_shown_from_memory_for_ever, _until),
    "writers find what has ended": (
        _writers_find_what_has_ended,
        _alone(test_key_ends.test_what_is_written_after_an_end_finds_nothing_there),
    ),
    "a set keeps the old end": (
        _a_set_keeps_the_old_end,
        _alone(test_key_ends.test_a_value_that_is_set_again_has_the_end_that_it_is_given),
    ),
    "what was superseded is forgotten": (
        _superseded_is_forgotten,
        _alone(test_key_ends.test_what_was_superseded_before_its_end_goes_at_its_end),
    ),
    "a restore brings it back": (
        _a_restore_brings_it_back,
        test_key_ends.test_a_restore_brings_no_value_back_that_has_an_end,
    ),
    "the fold of many events forgets": (_the_fold_of_many_forgets, _bytes),
    "the base has what has ended": (_the_base_has_it, _bytes),
    "list items lose their event": (_list_items_lose_their_event, _bytes),
    "the base has no ends": (_ends_not_in_the_base, _bytes),
    "a mark is found for ever": (
        _mark_found_for_ever,
        test_mark_ends.test_a_mark_with_an_end_is_passed_over_and_cleared,
    ),
    "a mark of an ended scope stays": (
        _mark_of_a_scope_stays,
        test_mark_ends.test_a_mark_goes_with_the_scope_that_it_was_set_with,
    ),
    "a mark is cleared without a guard": (
        _mark_cleared_without_a_guard,
        _patched(test_mark_ends.test_none_is_cleared_that_was_set_anew_meanwhile),
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_each_is_found(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    break_it, catcher = PLANTS[name]
    assert _found_nothing(catcher, tmp_path)
    with monkeypatch.context() as broken:
        break_it(broken.setattr)
        assert not _found_nothing(catcher, tmp_path)


def _found_nothing(catcher: Catcher, place: Path) -> bool:
    world = World("memory", place)
    try:
        with world.open() as store:
            catcher(world, store)
    except (AssertionError, holdfast.HoldfastError, KeyError, pytest.fail.Exception):
        return False
    return True

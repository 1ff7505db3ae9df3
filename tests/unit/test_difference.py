"""What differs between two states: diff, diff_ops, touched."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec import Raw

from holdfast.core import codec
from holdfast.core.tree import (
    EMPTY,
    MISSING,
    Difference,
    Lazy,
    List,
    Map,
    Op,
    append_op,
    apply,
    delete_op,
    diff,
    diff_ops,
    freeze,
    increment_op,
    merge_op,
    set_op,
    touched,
    truncate_op,
)
from holdfast.core.tree.difference import _unread
from tests.unit.ticket import TICKET, changed, state

# --- diff ----------------------------------------------------------------------------------------


def test_diff_names_the_deepest_places() -> None:
    old = state(TICKET)
    new = changed(
        old,
        set_op(("customer", "name"), "Bea"),
        append_op("messages", {"role": "user"}),
        delete_op("budget"),
        set_op("closed", True),
    )
    assert diff(old, new) == [
        Difference(("customer", "name"), "Ada", "Bea"),
        Difference(("messages", 2), MISSING, {"role": "user"}),
        Difference(("budget",), 10, MISSING),
        Difference(("closed",), MISSING, True),
    ]
    assert diff(new, old)[-1] == Difference(("budget",), MISSING, 10)
    assert diff(old, old) == diff(old, state(TICKET)) == []
    assert not MISSING
    assert repr(diff(old, new)[0]) == "Change(('customer', 'name'), 'Ada', 'Bea')"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (None, False),
        (
            datetime(2026, 1, 1, 12, tzinfo=UTC),
            datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        ),
        ([], {}),
        ("x" * 100, {"x": 1}),
    ],
)
def test_diff_is_strict_about_types(a: Any, b: Any) -> None:
    old, new = state({"v": a}), state({"v": b})
    assert [change.path for change in diff(old, new)] == [("v",)]
    again = changed(old, *diff_ops(old, new))
    assert repr(again.to_dict()) == repr({"v": b})


def test_nan_is_not_a_change() -> None:
    assert diff(state({"v": [math.nan]}), state({"v": [math.nan]})) == []
    assert diff_ops(state({"v": [math.nan]}), state({"v": [math.nan]})) == []


def test_diff_of_a_wide_level_is_sorted_and_costs_what_changed() -> None:
    root = apply(EMPTY, [set_op((), {f"k{i:05}": {"n": i} for i in range(20_000)})], revision=1)
    old = changed(root, set_op("first", 1))
    new = changed(old, set_op("k00900", 1), delete_op("k00007"), set_op("b", 2), set_op("a", 2))
    assert [change.path[0] for change in diff(old, new)] == ["a", "b", "k00007", "k00900"]
    ops = diff_ops(old, new)
    assert len(ops) == 4
    assert list(changed(old, *ops)) == list(new)
    decoded = [
        key for key, kept in old._kept() if type(kept) is Lazy and isinstance(kept.value, Map)
    ]
    assert decoded == ["k00900"]


def test_diff_ops_move_keys_of_a_wide_level() -> None:
    root = apply(EMPTY, [set_op((), {f"k{i}": i for i in range(500)})], revision=1)
    old = changed(root, set_op("x", 1))
    new = changed(old, delete_op("k3"), set_op("y", 1), set_op("k3", 3), delete_op("k5"))
    again = changed(old, *diff_ops(old, new))
    assert list(again.items()) == list(new.items())
    assert len(diff_ops(old, new)) < 6


def test_diff_ops_for_lists() -> None:
    old = state({"l": [{"n": i} for i in range(50)]})
    longer = changed(old, append_op("l", 1), append_op("l", 2))
    assert [op.kind for op in diff_ops(old, longer)] == ["append", "append"]
    assert [op.kind for op in diff_ops(longer, old)] == ["truncate"]
    edited = changed(old, set_op(("l", 7, "n"), "x"))
    assert [(op.kind, op.keys) for op in diff_ops(old, edited)] == [("set", ("l", 7, "n"))]
    shifted = changed(old, delete_op(("l", 2)))
    kinds = [op.kind for op in diff_ops(old, shifted)]
    assert kinds == ["truncate", *["append"] * 47]
    assert changed(old, *diff_ops(old, shifted)) == shifted


def test_diff_ops_copy_references_and_bytes() -> None:
    reference = codec.blob_ref("ab" * 32, 99_000)
    old = EMPTY
    new = apply(
        EMPTY,
        [Op("set", "big", Raw(reference))],
        revision=1,
        blobs=lambda id, size: pytest.fail("the blob was read"),
    )
    assert [bytes(op.value) for op in diff_ops(old, new)] == [reference]


def test_events_of_one_stream_are_compared_by_name() -> None:
    def unread() -> bytes:
        pytest.fail("an event was read")

    old = Map({"l": List(freeze([1]).vector().append(Lazy(None, (4, 0), unread)))})
    new = Map({"l": List(freeze([1]).vector().append(Lazy(None, (4, 0), unread)))})
    assert diff(old, new, is_same_stream=True) == []
    assert diff_ops(old, new, is_same_stream=True) == []


# --- touched -------------------------------------------------------------------------------------


def test_touched_tells_what_ops_did() -> None:
    old = state(TICKET)
    ops = [
        set_op(("customer", "name"), "Bea"),
        append_op("messages", {"role": "user"}),
        append_op("messages", "bye"),
        increment_op("budget", 1),
        merge_op("customer", {"vip": True, "name": "Cy"}),
        set_op("temporary", 1),
        delete_op("temporary"),
    ]
    new = apply(old, ops, revision=2)
    assert touched(ops, old, new) == [
        Difference(("customer", "name"), "Ada", "Cy"),
        Difference(("messages", 2), MISSING, {"role": "user"}),
        Difference(("messages", 3), MISSING, "bye"),
        Difference(("budget",), 10, 11),
        Difference(("customer", "vip"), MISSING, True),
    ]


def test_touched_takes_lists_and_whole_states_apart() -> None:
    old = state({"l": [1, 2, 3], "a": 1})
    ops = [delete_op(("l", 0))]
    assert touched(ops, old, apply(old, ops, revision=2)) == [
        Difference(("l", 0), 1, 2),
        Difference(("l", 1), 2, 3),
        Difference(("l", 2), 3, MISSING),
    ]
    ops = [truncate_op("l", 1), append_op("new", 1)]
    assert touched(ops, old, apply(old, ops, revision=2)) == [
        Difference(("l", 1), 2, MISSING),
        Difference(("l", 2), 3, MISSING),
        Difference(("new",), MISSING, [1]),
    ]
    ops = [set_op((), {"a": 2})]
    assert touched(ops, old, apply(old, ops, revision=2)) == [
        Difference(("l",), [1, 2, 3], MISSING),
        Difference(("a",), 1, 2),
    ]


def test_what_is_compared_is_never_read_from_the_blobs() -> None:
    with pytest.raises(AssertionError, match="BUG: a value was opened"):
        _unread("b3-0", 1)

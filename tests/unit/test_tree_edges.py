"""States at their edges: wide levels, other orders of keys, bytes that are no values."""

from __future__ import annotations

import copy
import sys
from hashlib import shake_256
from typing import Any

import pytest
from msgspec import Raw

from holdfast.core import codec
from holdfast.core.snapshot import pack, unpack
from holdfast.core.tree import (
    EMPTY,
    MISSING,
    Difference,
    Lazy,
    List,
    Map,
    Op,
    OpBatch,
    append_op,
    apply,
    decode_ops,
    delete_op,
    diff,
    diff_ops,
    freeze,
    increment_op,
    merge_op,
    set_op,
    touched,
)
from holdfast.core.tree.frozen import WIDE, dump, enter, enter_level
from holdfast.errors import CorruptError, UsageError

PRINTABLE = "".join(map(chr, (*range(35, 92), *range(93, 127))))
WIDE_STATE: dict[str, Any] = {f"k{n:03}": n for n in range(WIDE + 30)}


def made_of(old: Map, new: Map) -> Map:
    """Returns what the ops between two states make of the first."""
    return apply(old, diff_ops(old, new), revision=9)


# --- equality, copies, what is shown -------------------------------------------------------------


def test_values_are_equal_by_what_they_hold_and_to_nothing_else() -> None:
    state = freeze({"a": [1, 2], "b": {"c": 3}})
    items = freeze([1, 2])
    same, other = freeze({"a": [1, 2], "b": {"c": 3}}), freeze({"a": [1, 2]})
    assert state == state
    assert state == same
    assert (state == other, state == {"a": [1, 2]}, state == 5) == (False, False, False)
    assert items == items
    assert (items == freeze([1]), items == [1], items == [1, 2], items == "12") == (
        False,
        False,
        True,
        False,
    )
    assert Difference(("a",), 1, 2) == Difference(("a",), 1, 2)
    assert Difference(("a",), 1, 2) != (("a",), 1, 2)


def test_a_frozen_value_is_its_own_copy() -> None:
    state, items = freeze({"a": [1]}), freeze([1])
    for value in (state, items):
        assert copy.copy(value) is value
        assert copy.deepcopy(value) is value


def test_what_was_not_loaded_is_not_loaded_to_be_shown() -> None:
    short, long = Lazy(b"[1,2]"), Lazy(b'["' + b"x" * 5000 + b'"]')
    shown = repr(Map({"short": short, "blob": Lazy(codec.blob_ref("a" * 64, 70_000))}))
    assert "[1, 2]" in shown
    assert short.force() == [1, 2]
    assert repr(Map({"short": short})) == "Map({'short': [1, 2]})"
    assert "<blob of 70000 bytes, not loaded>" in shown
    assert len(repr(Map({"long": long}))) < 6000
    assert repr(MISSING) == "MISSING"


# --- wide levels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("narrow_first", [True, False])
def test_a_wide_level_is_changed_like_a_dict(narrow_first: bool) -> None:
    """A wide level is kept as a trie from its first change on."""

    def made() -> Map:
        state = freeze(WIDE_STATE | {"more": 0})
        return state if narrow_first else state._with_key("more", 1)._with_key("more", 0)

    plain = WIDE_STATE | {"more": 0}
    merged = made()._with_keys({"k001": "one", "new": "last"})
    assert list(merged.to_dict().items()) == list((plain | {"k001": "one", "new": "last"}).items())
    state = made()
    shorter = state._without_key("k000")
    assert "k000" in state
    del plain["k000"]
    assert list(shorter.to_dict().items()) == list(plain.items())


def test_the_difference_of_wide_levels_is_made_of_what_changed() -> None:
    state = freeze(WIDE_STATE)._with_key("k000", "first")
    assert diff_ops(state, state) == []
    later = state._with_key("k001", "one")._without_key("k002")._with_key("new", 1)
    ops = diff_ops(state, later)
    assert [(op.kind, op.path) for op in ops] == [
        ("delete", "k002"),
        ("set", "k001"),
        ("set", "new"),
    ]
    assert list(made_of(state, later).to_dict()) == list(later.to_dict())


def test_a_wide_level_that_goes_back_has_its_keys_in_their_old_places() -> None:
    before = freeze(WIDE_STATE)._with_key("k000", "first")
    without = before._without_key("k005")
    again = made_of(without, before)
    assert again == before
    assert list(again) == list(before)


def test_two_wide_levels_that_never_met_are_compared_by_their_keys() -> None:
    one = freeze(WIDE_STATE)._with_key("k000", 0)
    turned = freeze(dict(reversed(WIDE_STATE.items())))._with_key("k000", 0)
    made = made_of(one, turned)
    assert made == turned
    assert list(made) == list(turned)


def test_another_order_of_keys_is_a_difference() -> None:
    one, other = freeze({"a": 1, "b": 2, "c": 3}), freeze({"b": 2, "a": 1, "c": 3})
    assert [op.kind for op in diff_ops(one, other)] == ["set"]
    assert list(made_of(one, other)) == ["b", "a", "c"]
    moved = freeze({"a": 1, "c": 3, "b": 2})
    assert [(op.kind, op.path) for op in diff_ops(one, moved)] == [
        ("delete", "b"),
        ("delete", "c"),
        ("set", "c"),
        ("set", "b"),
    ]
    assert list(made_of(one, moved)) == ["a", "c", "b"]


# --- ops -----------------------------------------------------------------------------------------


def test_a_merge_where_nothing_was_touches_its_place_alone() -> None:
    op = merge_op(("a", "b"), {"x": 1})
    new = apply(EMPTY, [op], revision=1)
    assert [(c.path, c.old, c.new) for c in touched([op], EMPTY, new)] == [
        (("a", "b"), MISSING, {"x": 1})
    ]


def test_a_number_too_large_for_a_float_is_refused() -> None:
    state = apply(EMPTY, [set_op("n", 0.5)], revision=1)
    with pytest.raises(UsageError, match="too large for a float"):
        apply(state, [increment_op("n", 10**400)], revision=2)


def test_a_path_deeper_than_any_state_is_refused() -> None:
    path = ("a",) * (codec.DEPTH_MAX + 1)
    with pytest.raises(UsageError, match=f"at most {codec.DEPTH_MAX} steps fit"):
        apply(EMPTY, [Op("set", path, Raw(b"1"))], revision=1)


@pytest.mark.parametrize(
    "op", [delete_op(()), merge_op((), {"b": 2}), set_op((), {"c": 3})], ids=lambda op: op.kind
)
def test_an_op_on_the_whole_state_sees_what_a_run_has_gathered(op: Op) -> None:
    ops = [append_op("l", 1), append_op("l", 2), op, append_op("l", 3)]
    start = apply(EMPTY, [append_op("l", 0)], revision=1)
    run = OpBatch(start)
    run.apply(ops, revision=2, blobs=None)
    assert run.root() == apply(start, ops, revision=2)


# --- bytes that are not what they should be ------------------------------------------------------


@pytest.mark.parametrize("raw", [b"nul", b'"\xff"'], ids=["json", "utf-8"])
def test_a_short_value_that_is_no_json_is_corruption(raw: bytes) -> None:
    with pytest.raises(CorruptError, match="not the JSON of a value"):
        enter(raw, None, None)


@pytest.mark.parametrize("raw", [b"[1]", b'{"a":}', b'{"\xff":1}'], ids=["list", "json", "utf-8"])
def test_a_level_that_is_no_mapping_is_corruption(raw: bytes) -> None:
    with pytest.raises(CorruptError, match="not a JSON object"):
        enter_level(raw, None)


@pytest.mark.parametrize(
    "payload",
    [b'[["set","\xff",1]]', b'[["set",["a","\xff"],1]]', b'[["\xff","a",1]]', b"[" * 9000],
    ids=["key", "path", "kind", "deep"],
)
def test_a_change_whose_text_is_none_is_corruption(payload: bytes) -> None:
    with pytest.raises(CorruptError, match="not a list of ops"):
        decode_ops(payload)


def test_a_long_value_that_is_no_json_array_is_corruption() -> None:
    value = Lazy(b"[" + b'"xxxxxxxx",' * 5000 + b"]")
    with pytest.raises(CorruptError, match="not a JSON array"):
        value.force()


def test_a_value_nested_deeper_than_can_be_read_is_corruption() -> None:
    """How deep that is differs: a parser, and what freezes its result, have limits of their own."""
    refused = 0
    for depth in (sys.getrecursionlimit() * 7 // 10, 1_000_000):
        value = Lazy(b"[" * depth + b"]" * depth)
        try:
            value.force()
        except CorruptError:
            refused += 1
    assert refused


@pytest.mark.parametrize("table", [{"$only": 1}, {"\ud800": 1, "b": 2}], ids=["tag", "surrogate"])
def test_a_mapping_that_would_read_as_something_else_is_written_in_pairs(
    table: dict[str, Any],
) -> None:
    raw = bytes(dump(freeze(table)))
    assert raw.startswith(b'{"$pairs":[')
    assert codec.decode(raw) == table


# --- snapshots -----------------------------------------------------------------------------------


def test_a_snapshot_that_would_not_shrink_is_kept_as_it_is() -> None:
    # So little text, with no character more frequent than others, hardly shrinks.
    noise = "".join(PRINTABLE[byte % len(PRINTABLE)] for byte in shake_256(b"noise").digest(520))
    state = freeze({"a": noise})
    packed = pack(state)
    assert packed[:1] == b"{"
    assert unpack(packed, fetch=_never, blobs=None) == state


def _never(revision: int, op: int) -> bytes:
    raise AssertionError(f"nothing of revision {revision} was to be read")


def test_lists_of_a_snapshot_and_of_the_log_are_compared_item_by_item() -> None:
    items = [f"item {n} " + "x" * 80 for n in range(100)]
    events = {revision: item for revision, item in enumerate(items, 1)}
    state = EMPTY
    for revision, item in events.items():
        state = apply(state, [append_op("l", item)], revision=revision)

    def fetch(revision: int, op: int) -> bytes:
        return codec.encode(events[revision])

    one = unpack(pack(state), fetch=fetch, blobs=None)
    other = unpack(pack(state), fetch=fetch, blobs=None)
    by_value = freeze({"l": items})
    assert isinstance(one["l"], List)
    assert diff(one, other, is_same_stream=True) == []
    assert diff(one, by_value) == []
    assert diff(one, apply(other, [set_op(("l", 3), "new")], revision=200)) == [
        Difference(("l", 3), items[3], "new")
    ]

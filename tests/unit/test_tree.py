"""Frozen state, lazy values and apply (VIC-11)."""

from __future__ import annotations

import copy
import gc
import math
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec import Raw

from holdfast.core import codec
from holdfast.core.tree import (
    EMPTY,
    Lazy,
    Map,
    Op,
    append_op,
    apply,
    delete_op,
    freeze,
    get,
    increment_op,
    locate,
    merge_op,
    set_op,
    truncate_op,
)
from holdfast.core.tree.frozen import dump
from holdfast.errors import UsageError, ValueDomainError
from tests.unit.ticket import TICKET, changed, state

# --- frozen values -------------------------------------------------------------------------------


def test_state_equals_plain_values_in_both_directions() -> None:
    root = state(TICKET)
    assert root == TICKET
    assert root == TICKET
    assert root["messages"] == TICKET["messages"]
    assert TICKET["messages"] == root["messages"]
    assert root == freeze(TICKET)
    assert root != {**TICKET, "budget": 11}
    assert root["messages"] != tuple(TICKET["messages"])
    assert root != {key: TICKET[key] for key in ("stage", "budget")}
    assert root["customer"] != {"name": "Ada", "other": ["new", "eu"]}
    assert root != 1


def test_state_is_a_mapping_of_sequences() -> None:
    root = state(TICKET)
    assert isinstance(root, Mapping)
    assert isinstance(root["messages"], Sequence)
    assert list(root) == list(TICKET)
    assert list(root.items()) == list(TICKET.items())
    assert "stage" in root
    assert "absent" not in root
    assert root.get("absent") is None
    assert len(root) == 4
    with pytest.raises(KeyError):
        root["absent"]
    match root:
        case {"customer": {"tags": [first, *_]}}:
            assert first == "new"
        case _:
            pytest.fail("a state matches mapping and sequence patterns")


def test_list_indexing() -> None:
    items = freeze(list(range(100)))
    assert items[-1] == 99
    assert items[10:13] == [10, 11, 12]
    assert items[::-1] == list(range(99, -1, -1))
    assert items[90:5] == []
    assert items[-3:] == [97, 98, 99]
    assert items.index(40) == 40
    assert 99 in items
    more = [1]
    assert items + more == [*range(100), 1]
    assert more + items == [1, *range(100)]
    for index in (100, -101):
        with pytest.raises(IndexError, match="out of range: the list has 100"):
            items[index]


MUTATIONS: list[Callable[[Any, Any], object]] = [
    lambda m, _: m.__setitem__("a", 1),
    lambda m, _: m.__delitem__("stage"),
    lambda m, _: m.update(a=1),
    lambda m, _: m.setdefault("a", 1),
    lambda m, _: m.pop("stage"),
    lambda m, _: m.popitem(),
    lambda m, _: m.clear(),
    lambda m, _: m.__ior__({"a": 1}),
    lambda _, items: items.__setitem__(0, 1),
    lambda _, items: items.__delitem__(0),
    lambda _, items: items.append(1),
    lambda _, items: items.extend([1]),
    lambda _, items: items.insert(0, 1),
    lambda _, items: items.pop(),
    lambda _, items: items.remove(1),
    lambda _, items: items.clear(),
    lambda _, items: items.sort(),
    lambda _, items: items.reverse(),
    lambda _, items: items.__iadd__([1]),
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_mutation_is_refused_and_names_edit(mutate: Callable[[Any, Any], object]) -> None:
    root = state(TICKET)
    with pytest.raises(UsageError, match=r"edit\(\)"):
        mutate(root, root["messages"])
    assert root == TICKET


def test_state_has_no_hash_and_no_attributes() -> None:
    root = state(TICKET)
    for value in (root, root["messages"]):
        with pytest.raises(TypeError, match="unhashable"):
            hash(value)
        with pytest.raises(AttributeError):
            value.anything = 1


def test_copies() -> None:
    root = state(TICKET)
    plain = root.to_dict()
    assert type(plain["customer"]["tags"]) is list
    plain["customer"]["tags"].append("changed")
    plain["messages"][0].clear()
    assert root == TICKET
    assert root["customer"]["tags"].to_list() == ["new", "eu"]
    assert copy.copy(root) is root
    assert copy.deepcopy(root["messages"]) is root["messages"]


def test_value_put_in_is_not_shared() -> None:
    mine = {"tags": ["a"]}
    root = changed(EMPTY, set_op("x", mine))
    frozen = freeze(mine)
    mine["tags"].append("b")
    assert root == {"x": {"tags": ["a"]}}
    assert frozen == {"tags": ["a"]}


def test_repr_shows_content_and_loads_nothing() -> None:
    blob = codec.blob_ref("0f" * 32, 99_000)
    event = Lazy(None, (7, 0), lambda: pytest.fail("repr read an event"))
    root = apply(
        Map({"m": freeze([1, {"a": None}]), "event": event}),
        [Op("set", "big", Raw(blob))],
        revision=2,
        blobs=lambda id, size: pytest.fail("repr read a blob"),
    )
    assert repr(root) == (
        "Map({'m': [1, {'a': None}], 'event': <value of revision 7, not loaded>, "
        "'big': <blob of 99000 bytes, not loaded>})"
    )
    assert repr(freeze(list(range(60)))).endswith("49, … 10 more])")
    assert repr(freeze({str(i): i for i in range(60)})).endswith("'49': 49, … 10 more})")


# --- lazy values ---------------------------------------------------------------------------------


def test_value_is_decoded_once_and_shared_by_versions() -> None:
    old = state(TICKET)
    new = changed(old, set_op("stage", "done"))
    assert new["customer"] is old["customer"]
    assert new["messages"][0] is old["messages"][0]
    assert new["customer"] is new["customer"]


def test_values_remember_their_op() -> None:
    ops = [set_op("a", {"x": 1}), append_op("l", {"y": 1}), merge_op((), {"m": {"z": 1}})]
    root = apply(EMPTY, ops, revision=9)
    assert locate(root, ("a",)).source == (9, 0)
    assert locate(root, ("l", 0)).source == (9, 1)
    assert locate(root, ("m",)).source is None
    assert locate(apply(EMPTY, ops, revision=None), ("a",)).source is None


def test_short_scalar_is_decoded_at_once() -> None:
    root = state({"s": "x" * 62, "n": 12, "long": "x" * 63, "list": []})
    kinds = {key: type(kept) for key, kept in root._kept()}
    assert kinds == {"s": str, "n": int, "long": Lazy, "list": Lazy}


def test_large_container_is_decoded_level_by_level() -> None:
    value = {"rows": [{"cells": ["x" * 100] * 5} for _ in range(100)], "n": 1, "t": {"$a": b"b"}}
    root = state({"sheet": value})
    sheet = root["sheet"]
    assert type(locate(root, ("sheet", "rows"))) is Lazy
    row = locate(root, ("sheet", "rows", 50))
    assert type(row) is Lazy
    assert type(locate(root, ("sheet", "rows", 51)).value) is not Map
    assert sheet == value
    assert sheet["t"] == {"$a": b"b"}
    assert bytes(dump(sheet)) == codec.encode(value)


def test_large_tagged_values_are_revived() -> None:
    for value in (
        bytes(5000),
        {"$only": "x" * 5000},
        {"\ud800": "x" * 5000, "b": 1},
        "\ud800" * 999,
    ):
        assert state({"v": value, "n": 0})["v"] == value


def test_blob_is_loaded_when_touched() -> None:
    text = codec.encode({"page": "x" * 70_000})
    loads: list[tuple[str, int]] = []

    def blobs(id: str, size: int) -> bytes:
        loads.append((id, size))
        return text

    reference = Raw(codec.blob_ref("ab" * 32, len(text)))
    root = apply(EMPTY, [Op("set", "doc", reference), set_op("n", 1)], revision=1, blobs=blobs)
    root = apply(root, [increment_op("n", 1)], revision=2, blobs=blobs)
    assert bytes(dump(root)).startswith(b'{"doc":{"$blob"')
    assert loads == []
    assert root["doc"]["page"] == "x" * 70_000
    assert root.to_dict()["doc"]["page"] == "x" * 70_000
    assert loads == [("ab" * 32, len(text))]


def test_blob_inside_a_value_and_in_a_merge() -> None:
    reference = codec.blob_ref("ab" * 32, 3)
    blobs = {("ab" * 32, 3): b"[1]"}
    ops = [
        Op("set", "a", Raw(b'{"in":[%s]}' % reference)),
        Op("merge", (), Raw(b'{"b":%s}' % reference)),
    ]
    root = apply(EMPTY, ops, revision=1, blobs=lambda id, size: blobs[id, size])
    assert root == {"a": {"in": [[1]]}, "b": [1]}
    whole = Op("merge", "a", Raw(codec.blob_ref("cd" * 32, 7)))
    merged = apply(root, [whole], revision=2, blobs=lambda id, size: b'{"x":2}')
    assert merged["a"] == {"in": [[1]], "x": 2}


def test_blob_without_a_loader_is_an_error_that_says_so() -> None:
    root = apply(EMPTY, [Op("set", "a", Raw(codec.blob_ref("ab" * 32, 3)))], revision=1)
    with pytest.raises(UsageError, match="cannot be loaded"):
        root["a"]


def test_concurrent_readers_see_equal_values() -> None:
    root = state({f"k{i}": {"n": i, "text": "x" * 200} for i in range(300)})
    seen: list[Any] = []
    barrier = threading.Barrier(4)

    def read() -> None:
        barrier.wait()
        seen.append([root[f"k{i}"]["n"] for i in range(300)])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [list(range(300))] * 4


# --- apply ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ([set_op("a", 2)], {"a": 2, "m": {"x": 1}, "l": [1, 2, 3]}),
        ([set_op("z", 2)], {"a": 1, "m": {"x": 1}, "l": [1, 2, 3], "z": 2}),
        (
            [set_op(("p", "q", "r"), 2)],
            {"a": 1, "m": {"x": 1}, "l": [1, 2, 3], "p": {"q": {"r": 2}}},
        ),
        ([set_op(("l", 1), [])], {"a": 1, "m": {"x": 1}, "l": [1, [], 3]}),
        ([delete_op("a"), set_op("a", 9)], {"m": {"x": 1}, "l": [1, 2, 3], "a": 9}),
        ([delete_op(("m", "x"))], {"a": 1, "m": {}, "l": [1, 2, 3]}),
        ([delete_op(("l", 0))], {"a": 1, "m": {"x": 1}, "l": [2, 3]}),
        ([append_op("l", {"y": 1})], {"a": 1, "m": {"x": 1}, "l": [1, 2, 3, {"y": 1}]}),
        ([append_op(("m", "new"), 1)], {"a": 1, "m": {"x": 1, "new": [1]}, "l": [1, 2, 3]}),
        ([increment_op("a", 1.5)], {"a": 2.5, "m": {"x": 1}, "l": [1, 2, 3]}),
        ([increment_op("n", -3)], {"a": 1, "m": {"x": 1}, "l": [1, 2, 3], "n": -3}),
        ([increment_op("a", math.inf)], {"a": math.inf, "m": {"x": 1}, "l": [1, 2, 3]}),
        ([merge_op("m", {"y": 2, "x": 3})], {"a": 1, "m": {"x": 3, "y": 2}, "l": [1, 2, 3]}),
        ([merge_op("m", {"$y": 2})], {"a": 1, "m": {"x": 1, "$y": 2}, "l": [1, 2, 3]}),
        ([merge_op((), {"a": 5})], {"a": 5, "m": {"x": 1}, "l": [1, 2, 3]}),
        ([truncate_op("l", 1)], {"a": 1, "m": {"x": 1}, "l": [1]}),
        ([set_op((), {"only": 1})], {"only": 1}),
        ([set_op((), {"$only": 1})], {"$only": 1}),
        ([delete_op(())], {}),
        ([], {"a": 1, "m": {"x": 1}, "l": [1, 2, 3]}),
    ],
)
def test_apply(ops: list[Op], expected: dict[str, Any]) -> None:
    root = state({"a": 1, "m": {"x": 1}, "l": [1, 2, 3]})
    after = changed(root, *ops)
    assert after == expected
    assert list(after.to_dict()) == list(expected)
    assert root == {"a": 1, "m": {"x": 1}, "l": [1, 2, 3]}


@pytest.mark.parametrize(
    ("op", "part"),
    [
        (append_op("a", 1), "cannot append state['a']: it is of type int, not a list"),
        (append_op("m", 1), "it is a mapping, not a list"),
        (append_op((), 1), "cannot append the state: the state is a mapping"),
        (set_op(("a", "b"), 1), "state['a'] is of type int, which has no 'b'"),
        (set_op(("l", "b"), 1), "state['l'] is a list, which has no 'b'"),
        (set_op(("m", 0), 1), "state['m'] is a mapping, which has no 0"),
        (set_op(("l", 3), 1), "state['l'][3] is not there"),
        (set_op((0,), 1), "the state is a mapping, which has no 0"),
        (delete_op("z"), "state['z'] is not there"),
        (delete_op(("z", "y")), "state['z'] is not there"),
        (delete_op(("l", 7)), "state['l'][7] is not there"),
        (increment_op("m", 1), "a mapping is not a number"),
        (increment_op("t", 1), "of type bool is not a number"),
        (increment_op("s", 1), "of type str is not a number"),
        (merge_op("a", {"x": 1}), "it is of type int, not a mapping"),
        (truncate_op("l", 4), "it has 3 items, 4 cannot be kept"),
        (truncate_op("z", 0), "state['z'] is not there"),
        (truncate_op("a", 0), "not a list"),
        (Op("increment", "a", Raw(b'"x"')), "of type str is not a number"),
        (Op("merge", "m", Raw(b"[1]")), "cannot merge state['m']"),
        (Op("set", (), Raw(b"1")), "cannot set the state"),
        (Op("truncate", "l", Raw(b'"x"')), "cannot be kept"),
        (increment_op("a", 10**3999 * 9), ""),
    ],
)
def test_op_that_does_not_fit_is_refused_and_nothing_happens(op: Op, part: str) -> None:
    plain = {"a": 10**3999 * 9, "m": {"x": 1}, "l": [1, 2, 3], "t": True, "s": "x"}
    root = state(plain)
    with pytest.raises(UsageError) as caught:
        apply(root, [set_op("a", 5) if part else set_op("b", 5), op], revision=2)
    assert part in str(caught.value)
    assert bool(caught.value.hint) == ("which has no" in part)
    assert root == plain


def test_state_cannot_become_deeper_than_a_value() -> None:
    path = tuple("x" * 99)
    deepest = changed(EMPTY, set_op(path, [1]))
    assert codec.decode(codec.encode(deepest)) == deepest
    with pytest.raises(ValueDomainError, match="more than 100 levels"):
        set_op(path, [[1]])
    with pytest.raises(ValueDomainError, match="more than 100 levels"):
        append_op(path, [1])


def test_get() -> None:
    root = state(TICKET)
    assert get(root, "stage") == "triage"
    assert get(root, ("customer", "tags", 1)) == "eu"
    assert get(root, ()) is root
    for path in ("x", ("stage", "x"), ("messages", 2), ("messages", "x"), ("customer", 0)):
        assert get(root, path, "default") == "default"


# --- sharing and memory --------------------------------------------------------------------------


@pytest.mark.parametrize("width", [100, 129, 300, 20_000])
@pytest.mark.parametrize("is_nested", [False, True])
def test_change_keeps_little_memory(width: int, is_nested: bool) -> None:
    """VIC-13, VIC-35: memory grows with the changes, and a change does not copy the whole."""
    table = {f"key {i}": i for i in range(width)}
    root = state({"m": table}) if is_nested else apply(EMPTY, [set_op((), table)], revision=1)
    at = ("m",) if is_nested else ()
    root = changed(root, set_op((*at, "key 0"), "first"))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        versions = [root]
        for i in range(100):
            versions.append(changed(versions[-1], set_op((*at, f"key {i * 7 % width}"), -i)))
        assert (tracemalloc.get_traced_memory()[0] - before) / 100 < 15_000
        assert get(root, (*at, "key 0")) == "first"
    finally:
        tracemalloc.stop()


def test_versions_that_nobody_holds_are_freed() -> None:
    class Watched(Map):
        __slots__ = ("__weakref__",)

    gc.disable()
    try:
        watched = Watched({"x": 1})
        root = Map({"a": watched, **{f"k{i}": i for i in range(500)}})
        gone = weakref.ref(watched)
        del watched
        newer = root._with_key("a", 2)
        del root
        assert gone() is None
        assert newer["a"] == 2
    finally:
        gc.enable()


def test_untouched_values_stay_the_same_objects() -> None:
    root = state({"a": {"x": [1]}, "b": {"y": 1}, **{f"k{i}": {} for i in range(200)}})
    newer = changed(root, set_op(("b", "y"), 2))
    assert newer["a"] is root["a"]
    assert newer["k7"] is root["k7"]

"""Ops: their builders and their form in a payload."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from holdfast.core.tree import (
    EMPTY,
    Op,
    append_op,
    apply,
    decode_ops,
    delete_op,
    encode_ops,
    increment_op,
    merge_op,
    set_op,
    truncate_op,
)
from holdfast.errors import CorruptError, UsageError


def test_ops_have_the_documented_form() -> None:
    ops = [
        set_op("stage", "triage"),
        set_op(("customer", "name"), "Ada"),
        set_op(("l", 3), {"b": 1, "a": 2}),
        delete_op("x"),
        append_op(("a", "b"), b"hi"),
        increment_op("budget", -10),
        merge_op((), {"k": None}),
        truncate_op("messages", 3),
        set_op("\ud800", 1),
        delete_op(("a", "\ud800", 0)),
    ]
    payload = encode_ops(ops)
    assert payload == (
        b'[["set","stage","triage"],["set",["customer","name"],"Ada"],["set",["l",3],{"b":1,"a":2}],'
        b'["delete","x"],["append",["a","b"],{"$bytes":"aGk="}],["increment","budget",-10],'
        b'["merge",[],{"k":null}],["truncate","messages",3],["set",[{"$text":"\\"\\\\ud800\\""}],1],'
        b'["delete",["a",{"$text":"\\"\\\\ud800\\""},0]]]'
    )
    again = decode_ops(payload)
    assert [(op.kind, op.keys, bytes(op.value)) for op in again] == [
        (op.kind, op.keys, bytes(op.value)) for op in ops
    ]
    assert encode_ops(again) == payload
    assert encode_ops([]) == b"[]"
    assert decode_ops(b"[]") == ()


def test_path_of_one_key_is_a_key() -> None:
    assert set_op(("a",), 1).path == set_op("a", 1).path == "a"
    assert set_op(("a",), 1).keys == ("a",)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[1]",
        b'[["set"]]',
        b'[["set","a"]]',
        b'[["drop","a",1]]',
        b'[["set",{"a":1},1]]',
        b'[["set",[1.5],1]]',
        b'[["set",[-1],1]]',
        b'[["set",[true],1]]',
        b'[["set",["a",-1],1],["set","b",2]]',
        b'[["delete","a",1]]',
        b'[["set","a",1],["set","b"]]',
        b'[["set",[{"$float":"nan"}],1]]',
        b'[["set",[{"$text":"x"}],1]]',
        b'[["set",[{"$text":[1]}],1]]',
        b'[["set","a",{]]',
        b'[["set","a","\\ud800"]]',
        b'[["set","a",' + b"[" * 5000,
    ],
)
def test_malformed_payload_is_corruption(payload: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_ops(payload)


def test_small_value_does_not_keep_a_large_neighbour_in_memory() -> None:
    payload = encode_ops([set_op("big", "x" * 10_000_000), set_op("small", {"a": 1})])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        root = apply(EMPTY, decode_ops(payload), revision=1)
        root = apply(root, [delete_op("big")], revision=2)
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
        assert root == {"small": {"a": 1}}
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: set_op(("a", True), 1), "found True"),
        (lambda: set_op(("a", 1.5), 1), "found 1.5"),  # pyright: ignore
        (lambda: set_op(["a"], 1), "found list"),  # pyright: ignore
        (lambda: set_op(("l", -1), 1), "counts from the start"),
        (lambda: set_op((), [1]), "takes a mapping, found list"),
        (lambda: merge_op("a", [1]), "takes a mapping, found list"),  # pyright: ignore
        (lambda: increment_op("a", True), "takes a number, found bool"),
        (lambda: increment_op("a", "1"), "takes a number, found str"),  # pyright: ignore
        (lambda: truncate_op("a", -1), "takes a length, found -1"),
        (lambda: set_op(("x",) * 101, 1), "101 steps"),
        (lambda: set_op(("a", "b"), {"c": {1}}), "value at ['a']['b']['c'] is of type set"),
    ],
)
def test_builders_refuse(build: Callable[[], Op], part: str) -> None:
    with pytest.raises(UsageError) as caught:
        build()
    assert part in str(caught.value)

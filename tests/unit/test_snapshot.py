"""Packed states: what is written, what is left in its event, and what damage does."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

import holdfast
from holdfast.core import codec, item_copies, snapshot
from holdfast.core.snapshot import pack, unpack
from holdfast.core.tree import (
    EMPTY,
    Map,
    Op,
    append_op,
    apply,
    decode_ops,
    delete_op,
    diff,
    encode_ops,
    set_op,
)
from holdfast.errors import CorruptError

LONG = {"role": "user", "content": "x" * 100}


class Stream:
    """Events, their fold, and a count of how many were read back."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.root = EMPTY
        self.reads = 0

    def add(self, *ops: Op) -> None:
        self.payloads.append(encode_ops(ops))
        self.root = self.advance(self.root, len(self.payloads))

    def advance(self, root: Map, revision: int) -> Map:
        ops = decode_ops(self.payloads[revision - 1])
        return apply(root, ops, revision=revision, blobs=self.blob)

    def fetch(self, revision: int, op_index: int) -> bytes:
        self.reads += 1
        return bytes(decode_ops(self.payloads[revision - 1])[op_index].value)

    def blob(self, id: str, size: int) -> bytes:
        self.reads += 1
        return codec.encode(f"blob {id[:2]} of {size}")

    def unpack(self, data: bytes) -> Map:
        return unpack(data, fetch=self.fetch, blobs=self.blob)


def text(data: bytes) -> bytes:
    return data if data[:1] in b"{[" else codec.decompress(data, size_max=1 << 20)


def same(a: Any, b: Any) -> bool:
    return repr(a.to_dict()) == repr(b.to_dict())


def conversation(turns: int, *, ops_per_turn: int = 1) -> Stream:
    stream = Stream()
    stream.add(set_op("name", "c1"))
    for turn in range(turns):
        stream.add(*[append_op("messages", {**LONG, "turn": turn})] * ops_per_turn)
    return stream


def test_small_state_is_plain_json() -> None:
    stream = Stream()
    stream.add(set_op("a", {"b": [1, 2]}), set_op("c", b"x"), set_op("$d", float("inf")))
    stream.add(set_op(("a", "b", 0), "é"))
    packed = pack(stream.root)
    assert packed == ('{"a":{"b":["é",2]},"c":{"$bytes":"eA=="},"$d":{"$float":"inf"}}'.encode())
    assert codec.decode(packed) == stream.root
    assert same(stream.unpack(packed), stream.root)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"$only": 1},
        {"\ud800": 1, "a": "\udfff"},
        {"a": {}, "b": [], "c": [[], {}]},
        {"b": 1, "a": 2},
        {"x": "\ud800", "y": {"$pairs": []}},
        {str(i): i for i in range(400)},
        {"l": list(range(100))},
    ],
)
def test_state_by_value_round_trip(value: dict[str, Any]) -> None:
    stream = Stream()
    stream.add(set_op((), value))
    stream.add(set_op("extra", 1))
    stream.add(delete_op("extra"))
    again = stream.unpack(pack(stream.root))
    assert same(again, stream.root)
    assert stream.root == value


def test_conversation_takes_a_few_dozen_bytes() -> None:
    stream = conversation(5000)
    packed = pack(stream.root)
    assert packed == b'["map",{"name":"c1","messages":0},[[1,["list",[2,1,5000,0]]]]]'
    again = stream.unpack(packed)
    assert len(again["messages"]) == 5000
    assert stream.reads == 0
    assert again["messages"][-1]["turn"] == 4999
    assert [item["turn"] for item in again["messages"][-20:]] == list(range(4980, 5000))
    assert again["messages"][17]["turn"] == 17
    assert stream.reads == 21
    assert same(again, stream.root)


def test_unpacked_list_goes_on() -> None:
    stream = conversation(3000)
    again = stream.unpack(pack(stream.root))
    for turn in range(3000, 3100):
        stream.add(append_op("messages", {**LONG, "turn": turn}))
        again = stream.advance(again, len(stream.payloads))
    stream.add(set_op(("messages", 1500, "turn"), -1), delete_op(("messages", 2)))
    again = stream.advance(again, len(stream.payloads))
    assert same(again, stream.root)
    assert same(stream.unpack(pack(again)), stream.root)
    assert pack(stream.unpack(pack(again))) == pack(stream.root)


def test_packing_again_costs_the_new_part(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = conversation(3000)
    packed = pack(stream.root)
    visited: list[int] = []
    leaf_parts = snapshot._leaf_parts  # pyright: ignore[reportPrivateUsage]

    def counting(items: Sequence[Any]) -> Any:
        visited.append(len(items))
        return leaf_parts(tuple(items))

    monkeypatch.setattr(snapshot, "_leaf_parts", counting)
    assert pack(stream.root) == packed
    assert len(visited) == 1
    for turn in range(100):
        stream.add(append_op("messages", {**LONG, "turn": turn}))
    assert b"[2,1,3100,0]" in pack(stream.root)
    assert len(visited) <= 7
    visited.clear()
    again = stream.unpack(pack(stream.root))
    assert pack(again) == pack(stream.root)
    assert stream.reads == 0


@pytest.mark.parametrize("per_turn", [2, 3, 40])
def test_several_items_per_event_are_one_run(per_turn: int) -> None:
    stream = conversation(200, ops_per_turn=per_turn)
    packed = pack(stream.root)
    assert b"[2,1,200,0,%d]" % per_turn in packed
    again = stream.unpack(packed)
    assert same(again, stream.root)
    assert pack(stream.unpack(packed)) == packed


def test_events_at_equal_steps_are_one_run() -> None:
    stream = Stream()
    for turn in range(100):
        stream.add(append_op("m", {**LONG, "turn": turn}))
        stream.add(set_op("n", turn))
        stream.add(set_op("n", -turn))
    assert b'["list",[1,3,100,0]]' in pack(stream.root)
    assert same(stream.unpack(pack(stream.root)), stream.root)


def test_irregular_list_round_trip() -> None:
    stream = Stream()
    for turn in range(300):
        ops = [append_op("m", {**LONG, "t": turn})] * (turn % 3)
        if turn % 7 == 0:
            ops.append(append_op("m", "short"))
        if turn % 11 == 0:
            ops.append(append_op("m", {"s": turn}))
        stream.add(set_op("n", turn), *ops)
    stream.add(set_op(("m", 40), LONG), set_op(("m", 41, "t"), "edited"))
    packed = pack(stream.root)
    again = stream.unpack(packed)
    assert same(again, stream.root)
    assert pack(stream.unpack(packed)) == packed
    assert pack(again) == packed


def test_short_items_alone_are_kept_by_value() -> None:
    stream = Stream()
    for i in range(50):
        stream.add(append_op("m", {"n": i}))
    assert text(pack(stream.root)).startswith(b'{"m":[{"n":0},')
    again = stream.unpack(pack(stream.root))
    assert same(again, stream.root)
    assert stream.reads == 0


def test_lists_of_events_below_other_lists_and_odd_keys() -> None:
    stream = Stream()
    stream.add(set_op("rooms", [{"m": []}, {"m": []}, 5]), set_op("\ud800", {}))
    for turn in range(80):
        stream.add(append_op(("rooms", turn % 2, "m"), {**LONG, "t": turn}))
        stream.add(append_op(("\ud800", "$only"), {**LONG, "t": turn}))
    packed = text(pack(stream.root))
    assert packed.startswith(b'["map",[["rooms",0],[{"$text":')
    assert b'{"nodes":[' in packed
    assert b'{"values":[5]}' in packed
    assert same(stream.unpack(pack(stream.root)), stream.root)


def test_blobs_stay_references() -> None:
    stream = Stream()
    reference = Raw(codec.blob_ref("ab" * 32, 99_000))
    stream.add(Op("set", "doc", reference), Op("append", "m", reference), set_op("n", 1))
    stream.add(append_op("m", LONG))
    packed = pack(stream.root)
    again = stream.unpack(packed)
    assert pack(again) == packed
    assert stream.reads == 0
    assert bytes(reference) in text(packed)
    assert again["doc"] == "blob ab of 99000"
    assert again["m"][0] == "blob ab of 99000"
    assert again == stream.root


def test_item_of_an_event_may_be_a_blob() -> None:
    stream = Stream()
    for _ in range(40):
        stream.add(Op("append", "m", Raw(codec.blob_ref("cd" * 32, 5))))
    packed = pack(stream.root)
    assert b'["list",[1,1,40,0]]' in packed
    assert stream.unpack(packed)["m"][3] == "blob cd of 5"


def test_large_text_is_compressed() -> None:
    """VIC-30: and who reads it need not know."""
    stream = Stream()
    stream.add(set_op("a", {"text": "abc" * 5000}))
    packed = pack(stream.root)
    assert len(packed) < 1000
    assert stream.unpack(packed) == stream.root


def test_unpacking_makes_no_items_up_front() -> None:
    stream = conversation(10)
    packed = b'["map",{"m":0},[[0,["list",[2,1,10000000,0]]]]]'
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        again = stream.unpack(packed)
        assert len(again["m"]) == 10_000_000
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()


def test_two_snapshots_of_a_stream_differ_by_what_came_between() -> None:
    stream = conversation(2000)
    earlier = stream.unpack(pack(stream.root))
    for turn in range(5):
        stream.add(append_op("messages", {**LONG, "turn": turn}))
    later = stream.unpack(pack(stream.root))
    changes = diff(earlier, later, is_same_stream=True)
    assert [change.path for change in changes] == [("messages", 2000 + i) for i in range(5)]
    assert stream.reads == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk",
        b"[",
        b"[]",
        b"{",
        b"[1]",
        b'["list",[1,1,5,0]]',
        b'["map",{"a":0}]',
        b'["map",{"a":0},[[1,["list"]]]]',
        b'["map",{"a":0},[[-1,["list"]]]]',
        b'["map",{"a":0},[[0,["other"]]]]',
        b'["map",{"a":0},[[0,["list",5]]]]',
        b'["map",{"a":0},[[0,["list",[1,1,5]]]]]',
        b'["map",{"a":0},[[0,["list",[1,0,5,0]]]]]',
        b'["map",{"a":0},[[0,["list",[1,1,1,0]]]]]',
        b'["map",{"a":0},[[0,["list",[1,1,0,0]]]]]',
        b'["map",{"a":0},[[0,["list",[-1,1,5,0]]]]]',
        b'["map",{"a":0},[[0,["list",[1,1,5,0,0]]]]]',
        b'["map",{"a":0},[[0,["list",[1,1,5,0,1,1]]]]]',
        b'["map",{"a":0},[[0,["list",[1,1,5,"x"]]]]]',
        b'["map",{"a":0},[[0,["list",{"items":[]}]]]]',
        b'["map",[["a"]],[]]',
        b'{"$bytes":"aGk="}',
        b"\x28\xb5\x2f\xfd" + b"x" * 50,
    ],
)
def test_malformed_snapshot_is_corruption(data: bytes) -> None:
    with pytest.raises(CorruptError):
        Stream().unpack(data)


def test_those_that_have_a_snapshot_are_found_by_one_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the list cannot be read, each is asked for: a check must name what is wrong."""
    with holdfast.open("memory:") as hf:
        log = hf._log
        objects = log._backend.objects
        for name in ("team/a", "team/b"):
            objects.put("snapshot", f"{item_copies.folder_of(name)}{1:016d}", b"x")
        assert log.snapshots.having(["team/a", "team/c", "team/b"]) == ["team/a", "team/b"]

        def unreadable(*_: object, **__: object) -> list[str]:
            raise CorruptError("the list is damaged")

        monkeypatch.setattr(objects, "names", unreadable)
        assert log.snapshots.having(["team/a", "team/c"]) == ["team/a", "team/c"]

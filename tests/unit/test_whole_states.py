"""Whole states as plain lists and dicts: equal to the frozen tree's, and read by the thousand."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import GONE, LinkedRow, PayloadRow, Record, linked_row
from holdfast.core import event_values, item_copies, log, snapshot
from holdfast.core.event import EMPTY, each_state, fold, record_link
from holdfast.core.event_values import BLOCK_EVENTS, EventBlocks, EventValues
from holdfast.core.log import Log
from holdfast.core.snapshot import ItemRange, pack, unpack
from holdfast.core.tree import (
    Lazy,
    List,
    Map,
    append_op,
    apply,
    delete_op,
    diff,
    encode_ops,
    freeze,
    set_op,
)
from holdfast.core.tree.frozen import WIDE, UnreadLevel
from holdfast.core.tree.vector import from_source
from holdfast.errors import CorruptError, LetGoError
from holdfast.scope import Scope
from holdfast.store import Store
from holdfast.testing import FakeClock
from tests.opening import store_of_log


class Counted(MemoryBackend):
    """Counts what is read."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.reads: list[int] = []

    def read(self, stream: str, **bounds: Any) -> list[Record]:
        records = super().read(stream, **bounds)
        self.reads.append(len(records))
        return records


@pytest.fixture
def backend() -> Counted:
    return Counted(FakeClock())


def opened(backend: MemoryBackend) -> Store:
    return store_of_log(Log(backend, clock=FakeClock(), actor="tester"), url="memory:", worker="w")


@pytest.fixture(autouse=True)
def early_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "GROWTH_BYTES_MIN", 3_000)
    monkeypatch.setattr(item_copies, "BLOCK_BYTES_MIN", 1 << 30)  # items are in their events alone


def frozen(value: Any) -> Any:
    """Returns the plain form of a frozen value, taken item by item through the tree."""
    if isinstance(value, Map):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, List):
        return [frozen(item) for item in value]
    return value


def anything(chance: random.Random) -> Any:
    """Returns a value of the domain: long and short, with and without tags."""
    return chance.choice(
        [
            {"role": "user", "content": "x" * chance.randrange(300)},
            {"at": datetime(2026, 11, 17, tzinfo=UTC), "raw": b"\x00" * 60, "n": float("inf")},
            {"$one": "tag-like key " * 8},
            "text " * chance.randrange(40),
            [chance.randrange(9), None, {"deep": ["$" * 70]}],
            chance.random(),
            "\ud800 half of a pair, and long enough to be left in its event, as are most",
        ]
    )


def change(chance: random.Random, chat: Scope) -> None:
    match chance.randrange(12):
        case 0 | 1 | 2 | 3 | 4:
            chat.append("messages", anything(chance))
        case 5:
            with chat.edit() as draft:
                draft.setdefault("pairs", [])
                draft["pairs"].append(anything(chance))
                draft["pairs"].append(anything(chance))
        case 6:
            chat.set(f"key {chance.randrange(200)}", anything(chance))
        case 7:
            chat.set("nested", {"list": [anything(chance) for _ in range(40)]})
        case 8 if chat.revision > 3:
            chat.restore(chance.randrange(1, chat.revision))
        case 9:
            for _ in range(chance.randrange(3)):
                chat.say("between the items")
        case 10:
            chat.set("large", "b" * 70_000)
        case _:
            chat.checkpoint("here")


@pytest.mark.parametrize("seed", range(6))
def test_a_plain_copy_is_what_the_frozen_tree_says(backend: Counted, seed: int) -> None:
    chance = random.Random(seed)
    hf = opened(backend)
    chat: Scope = hf.conversation("c")
    for turn in range(160):
        change(chance, chat)
        if turn == 80:
            chat = chat.fork("f")
    hf._log.snapshots.flush(hf._log.states_in_memory())
    for revision in [chat.revision, *chance.sample(range(1, chat.revision), 6)]:
        plain = opened(backend).conversation("f").at(revision).to_dict()
        assert repr(plain) == repr(frozen(opened(backend).conversation("f").at(revision)))
        partly = opened(backend).conversation("f").at(revision)
        for name in ("messages", "pairs"):
            items = partly.get(name, [])
            for place in chance.sample(range(len(items)), min(3, len(items))):
                _ = items[place]  # some nodes are read, their neighbours are not
        assert repr(partly.to_dict()) == repr(plain)
        assert repr(partly.to_dict()) == repr(plain)


def long_list(backend: Counted, length: int) -> Store:
    """Returns a store, opened anew, with a list of that many items in a snapshot."""
    hf = opened(backend)
    for n in range(length):
        hf.conversation("c").append("messages", {"n": n, "text": "x" * 90})
    hf._log.snapshots.flush({"conversation/c": hf._log.newest("conversation/c")})
    again = opened(backend)
    assert len(again.conversation("c").state["messages"]) == length
    backend.reads.clear()
    return again


def test_a_copy_reads_by_the_thousand_and_a_second_one_reads_nothing(backend: Counted) -> None:
    hf = long_list(backend, 3_000)
    state = hf.conversation("c").state
    first = state["messages"].to_list()
    assert first == [{"n": n, "text": "x" * 90} for n in range(3_000)]
    assert sum(backend.reads) == 3_000
    assert len(backend.reads) <= 4
    backend.reads.clear()
    again = state.to_dict()["messages"]
    assert again == first
    assert all(one is not other for one, other in zip(again, first, strict=True))
    assert not backend.reads


def test_single_items_use_the_same_blocks_the_last_one_too(backend: Counted) -> None:
    hf = long_list(backend, 100)
    messages = hf.conversation("c").state["messages"]
    assert [messages[place]["n"] for place in (0, 63, 99, 98, 64, 5)] == [0, 63, 99, 98, 64, 5]
    assert backend.reads == [64, 36]
    chat = hf.conversation("c")
    for n in range(100, 140):  # the block that was not full goes on
        chat.append("messages", {"n": n, "text": "x" * 90})
    hf._log.snapshots.flush({"conversation/c": hf._log.newest("conversation/c")})
    hf._log._states.clear()
    backend.reads.clear()
    assert [item["n"] for item in chat.state.to_dict()["messages"]] == list(range(140))
    assert backend.reads[-2:] == [64, 12]  # the second block anew, and what came after it


def test_what_is_kept_is_bounded_and_given_up_by_last_use(
    backend: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_values, "KEPT_BYTES_MAX", 60_000)
    hf = long_list(backend, 600)
    messages = hf.conversation("c").state["messages"]
    assert [item["n"] for item in messages.to_list()] == list(range(600))
    blocks = hf._log._blocks
    assert blocks._kept_bytes <= 60_000
    assert blocks._kept_bytes == sum(map(event_values._size, blocks._kept.values()))
    assert ("conversation/c", 0) not in blocks._kept
    assert ("conversation/c", 9) in blocks._kept


# --- the parts ------------------------------------------------------------------------------------


def record(revision: int, payload: bytes, type: str = "changed") -> Record:
    return Record("s", revision, 1, type, "a", payload, b"")


class Stored:
    """Events of one stream, every one an append of one item or of two."""

    def __init__(self, length: int) -> None:
        ops = [[append_op("l", [n, "x" * 80]), append_op("l", {"n": n})] for n in range(length)]
        self.rows: list[PayloadRow] = [("changed", encode_ops(two), None) for two in ops]
        self.asked: list[tuple[int, int]] = []

    def read(self, stream: str, after: int, until: int) -> list[PayloadRow]:
        self.asked.append((after, until))
        return self.rows[after:until]


def no_blobs(id: str, size: int) -> bytes:
    raise AssertionError("no value is a blob here")


@pytest.mark.parametrize(
    ("run", "asked"),
    [
        (ItemRange(1, 0, 1, 0, 1), [(0, 64)]),
        (ItemRange(1, 1, 300, 0, 2), [(0, 320)]),
        (ItemRange(65, 2, 100, 1, 1), [(64, 320)]),
        (ItemRange(2, 100, 5, 0, 1), [(0, 64), (64, 128), (192, 256), (256, 320), (384, 448)]),
        (ItemRange(1, 1, 2_000, 0, 1), [(0, 1024), (1024, 2048)]),
    ],
)
def test_runs_of_every_kind(run: ItemRange, asked: list[tuple[int, int]]) -> None:
    stored = Stored(2_000)
    values = EventValues(EventBlocks(stored.read, no_blobs), "s")
    wanted: list[Any] = []
    for row in range(run.rows):
        n = run.revision + run.step * row - 1
        wanted += [[n, "x" * 80], {"n": n}][run.op : run.op + run.columns]
    assert values.plain(run) == wanted
    assert stored.asked == asked
    assert values.plain(run) == wanted
    assert stored.asked == asked


def test_only_what_is_not_kept_is_read() -> None:
    stored = Stored(BLOCK_EVENTS * 6)
    blocks = EventBlocks(stored.read, no_blobs)
    blocks.rows("s", BLOCK_EVENTS * 2 + 1, BLOCK_EVENTS * 3)
    stored.asked.clear()
    assert blocks.rows("s", 2, BLOCK_EVENTS * 6) == stored.rows[1:]
    assert stored.asked == [(0, BLOCK_EVENTS * 2), (BLOCK_EVENTS * 3, BLOCK_EVENTS * 6)]


def test_an_event_that_is_missing_or_too_short_is_damage() -> None:
    stored = Stored(10)
    values = EventValues(EventBlocks(stored.read, no_blobs), "s")
    with pytest.raises(CorruptError, match='event 11 of "s" is missing'):
        values.plain(ItemRange(9, 1, 3, 0, 1))
    with pytest.raises(CorruptError, match='event 4 of "s" has no change number 2'):
        values.plain(ItemRange(4, 0, 1, 1, 2))
    with pytest.raises(CorruptError, match='event 4 of "s" has no change number 2'):
        values.encoded(4, 2)
    assert values.encoded(4, 1) == b'{"n":3}'


@pytest.mark.parametrize(
    ("payload", "type"),
    [
        (b'[["append","l",{"$datetime":"2026-11-17T00:00:00+00:00"}]]', "changed"),
        (b'{"to":3,"ops":[["append","l",{"a":1}]]}', "restored"),
        (b'[["append",[{"$text":"\\"\\\\ud800\\""}],7]]', "changed"),
    ],
)
def test_what_takes_more_than_json_is_read_by_the_ops(payload: bytes, type: str) -> None:
    wanted = {
        b'[["append","l': datetime(2026, 11, 17, tzinfo=UTC),
        b'{"to":3,"ops"': {"a": 1},
    }
    assert only_value(payload, type) == [wanted.get(payload[:13], 7)]


@pytest.mark.parametrize("payload", [b'[["append","l"', b'{"a":1}', b'[["melt","l",1]]'])
def test_what_is_no_payload_is_damage(payload: bytes) -> None:
    with pytest.raises(CorruptError):
        only_value(payload)


def test_values_that_were_let_go_of_are_no_damage() -> None:
    with pytest.raises(LetGoError):
        only_value(GONE)


def only_value(payload: bytes, type: str = "changed") -> list[Any]:
    """Returns a plain copy of the value of an event's first op."""
    rows: list[PayloadRow] = [(type, payload, None)]
    values = EventValues(EventBlocks(lambda *_: rows, no_blobs), "s")
    return values.plain(ItemRange(1, 0, 1, 0, 1))


class Numbers:
    """A source of numbers that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def items(self, start: int, stop: int) -> tuple[Any, ...]:
        return tuple(range(start, stop))

    def plain(self, start: int, stop: int) -> list[Any]:
        self.asked.append((start, stop))
        return list(range(start, stop))

    def spans(self, start: int, stop: int) -> list[Any]:
        return []

    def is_same(self, other: Any, start: int, stop: int) -> bool:
        return other is self


@pytest.mark.parametrize(
    ("looked_at", "asked"),
    [
        ([], [(0, 4992)]),
        ([0], [(32, 4992)]),
        ([40], [(0, 32), (64, 4992)]),
        ([2_000, 4_990], [(0, 1984), (2016, 4960)]),
    ],
)
def test_unread_neighbours_are_asked_for_together(
    looked_at: list[int], asked: list[tuple[int, int]]
) -> None:
    source = Numbers()
    items = from_source(source, 5_000)
    for place in looked_at:
        assert items.get(place) == place
    assert items.plain(lambda item: item) == list(range(5_000))
    assert source.asked == asked


def test_nodes_of_two_sources_are_asked_for_apart() -> None:
    one, other = Numbers(), Numbers()
    items = from_source(one, 65)
    both = items.set(0, 0)  # which looks into the root, and leaves the second leaf unread
    leaves = both.root.load(5)
    leaves[1].source = other
    leaves[0].content, leaves[0].source = None, one
    leaves[0].start, leaves[0].stop = 0, 32
    assert both.plain(lambda item: item) == list(range(65))
    assert (one.asked, other.asked) == ([(0, 32)], [(32, 64)])


def test_a_list_without_a_bulk_reader_is_copied_item_by_item() -> None:
    state = Map({})
    for n in range(100):
        state = apply(state, [append_op("l", {"n": n, "text": "y" * 80})], revision=n + 1)
    fetched: list[int] = []

    def fetch(revision: int, op: int) -> bytes:
        fetched.append(revision)
        return bytes(append_op("l", {"n": revision - 1, "text": "y" * 80}).value)

    revived = unpack(pack(state), fetch=fetch, blobs=None)
    assert revived.to_dict() == state.to_dict()
    assert fetched == list(range(1, 101))


# --- wide levels ----------------------------------------------------------------------------------


def wide_state(count: int = 300) -> Map:
    values = {f"key {n}": {"n": n, "text": "z" * (n % 90)} if n % 3 else n for n in range(count)}
    return freeze(values)


def revived(state: Map) -> Map:
    return unpack(pack(state), fetch=lambda revision, op: b"0", blobs=None)


def is_unread(state: Map) -> bool:
    return isinstance(state._entries, UnreadLevel)


def test_a_wide_level_of_a_snapshot_is_read_as_it_is_asked_for() -> None:
    state = wide_state()
    level = revived(state)
    assert is_unread(level)
    assert not is_unread(revived(wide_state(WIDE)))
    assert level["key 7"] == {"n": 7, "text": "z" * 7}
    assert level["key 7"] is level["key 7"]
    assert level.get("none", 4) == 4
    assert "key 9" in level
    assert "none" not in level
    with pytest.raises(KeyError):
        _ = level["none"]
    assert len(level) == 300
    assert list(level) == list(state)
    assert level._wide() is None
    assert level.to_dict() == state.to_dict()
    assert level == state
    assert pack(level) == pack(state)
    assert is_unread(level)


def test_a_wide_level_can_be_changed_from_there() -> None:
    state, level = wide_state(), revived(wide_state())
    for ops in (
        [set_op("key 5", "new")],
        [set_op("one more", 1)],
        [set_op("key 5", "new"), set_op("one more", [1] * 40)],
    ):
        changed = apply(level, ops, revision=7)
        assert changed == apply(state, ops, revision=7)
        assert list(changed) == list(apply(state, ops, revision=7))
        assert [one.path for one in diff(level, changed)] == [
            one.path for one in diff(state, apply(state, ops, revision=7))
        ]
    assert level._wide() is level._wide()
    assert level._without_key("key 0") == state._without_key("key 0")
    assert level._with_keys({"a": 1}) == state._with_keys({"a": 1})
    assert level == state


def test_a_wide_level_that_is_no_mapping_is_damage() -> None:
    with pytest.raises(CorruptError, match="not a JSON object"):
        unpack(b'{"a":1,}', fetch=lambda revision, op: b"0", blobs=None)


def test_what_was_looked_at_of_a_wide_level_is_copied_from_there() -> None:
    level = revived(wide_state())
    looked_at = level._peek("key 8")
    assert type(looked_at) is Lazy
    assert level["key 8"] == {"n": 8, "text": "z" * 8}
    assert level._peek("key 8") is looked_at
    copied = level.to_dict()
    copied["key 8"]["n"] = 0
    assert level["key 8"]["n"] == 8


# --- folds of rows --------------------------------------------------------------------------------


class Rows(Counted):
    """Returns rows through a function, and may be one that is waited for."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.change: Callable[[LinkedRow], LinkedRow] = lambda row: row
        self.was_held: list[bool] = []

    def read_linked(self, stream: str, **bounds: Any) -> list[LinkedRow]:
        self.was_held.append(not gc.isenabled())
        return [self.change(linked_row(record)) for record in self.read(stream, **bounds)]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """A store of 3,100 events without a snapshot."""
    monkeypatch.setattr(snapshot, "GROWTH_BYTES_MIN", 1 << 30)
    rows = Rows(FakeClock())
    hf = opened(rows)
    for n in range(3_100):
        hf.conversation("c").append("l", n)
    return rows


@pytest.mark.parametrize("held_events", [2_000, 64_000])
def test_a_long_fold_holds_the_collector_back(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, held_events: int
) -> None:
    monkeypatch.setattr(log, "HELD_EVENTS", held_events)
    assert list(opened(rows).conversation("c").state["l"]) == list(range(3_100))
    assert rows.was_held == [True] * 4
    assert gc.isenabled()
    rows.was_held.clear()
    assert len(opened(rows).conversation("c").at(900)["l"]) == 900
    assert rows.was_held == [False]


def test_a_fold_that_waits_for_a_server_does_not(rows: Rows) -> None:
    rows.timeout_s = 5.0  # pyright: ignore[reportAttributeAccessIssue]
    assert len(opened(rows).conversation("c").state["l"]) == 3_100
    assert not any(rows.was_held)


@pytest.mark.parametrize(
    "change",
    [
        lambda row: (*row[:7], row[7].decode(), *row[8:]),
        lambda row: (*row[:7], None, *row[8:]),
        lambda row: (row[0], float(row[1]), *row[2:]),
        lambda row: (*row[:2], "\ud800", *row[3:]),
        lambda row: (*row[:8], None, row[9]),
        lambda row: (*row[:9], '{"source":1}'),
        lambda row: (*row[:5], "a name", *row[6:]),
    ],
)
def test_rows_that_are_not_what_was_written_are_found(rows: Rows, change: Any) -> None:
    rows.change = lambda row: change(row) if row[0] == 2_050 else row
    rows.reads.clear()
    with pytest.raises(CorruptError, match=r"event 2050 of .* does not match its link"):
        _ = opened(rows).conversation("c").state
    assert rows.reads[-1] == rows.reads[-2]  # what is read again has its checksums looked at


def test_rows_that_cannot_be_read_at_all_are_named_by_their_checksums(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(stream: str, **bounds: Any) -> list[LinkedRow]:
        raise CorruptError("text in it is not UTF-8")

    monkeypatch.setattr(rows, "read_linked", unreadable, raising=False)
    with pytest.raises(CorruptError, match="text in it is not UTF-8"):
        _ = opened(rows).conversation("c").state

    def checked(stream: str, **bounds: Any) -> list[Record]:
        raise CorruptError("event 7 fails its checksum")

    monkeypatch.setattr(rows, "read", checked)
    with pytest.raises(CorruptError, match="event 7 fails its checksum"):
        _ = opened(rows).conversation("c").state


def test_a_row_that_is_missing_is_found(rows: Rows) -> None:
    rows.change = lambda row: (row[0] + 1, *row[1:]) if row[0] == 12 else row
    with pytest.raises(CorruptError, match="skips from revision 11 to 13"):
        _ = opened(rows).conversation("c").state


def test_an_event_that_does_not_fit_is_damage_in_every_fold() -> None:
    wrong = record(1, encode_ops([delete_op("none")]))
    wrong = structs.replace(wrong, link=record_link(EMPTY.link, wrong))
    with pytest.raises(CorruptError, match=r"event 1 .* does not fit the state before it"):
        fold(EMPTY, [wrong], no_blobs)
    with pytest.raises(CorruptError, match=r"event 1 .* does not fit the state before it"):
        list(each_state(EMPTY, [wrong], no_blobs))


def test_a_walk_verifies_each_link_and_ends_with_its_events() -> None:
    with holdfast.open("memory:") as hf:
        for n in range(3):
            hf.team("t").set("n", n)
        records = hf._log._backend.read("team/t")
    assert [state.root["n"] for state in each_state(EMPTY, records, no_blobs)] == [0, 1, 2]
    walk = each_state(EMPTY, [records[0], records[2]], no_blobs)
    assert next(walk).revision == 1
    with pytest.raises(CorruptError, match="an event is missing"):
        next(walk)

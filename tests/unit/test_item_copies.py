"""Items of long lists by value, beside the snapshots: equal to the events', disposable (0071)."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Record
from holdfast.core import codec, item_copies, snapshot
from holdfast.core.item_copies import NAME, Block, Span, folder_of, from_table, join_spans
from holdfast.core.log import Log
from holdfast.core.tree import Map
from holdfast.errors import ClosedError, CorruptError, UnavailableError
from holdfast.retention import RetentionPolicy
from holdfast.scope import Scope
from holdfast.store import Store
from holdfast.testing import FakeClock
from tests.opening import store_of_log
from tests.unit.test_whole_states import anything, change, frozen

C = "conversation/c"


class Counted(MemoryBackend):
    """Counts the events that are read."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.time = clock
        self.events = 0

    def read(self, stream: str, **bounds: Any) -> list[Record]:
        records = super().read(stream, **bounds)
        self.events += len(records)
        return records


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def backend(clock: FakeClock) -> Counted:
    return Counted(clock)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "GROWTH_BYTES_MIN", 8_000)
    monkeypatch.setattr(item_copies, "BLOCK_BYTES", 8_000)
    monkeypatch.setattr(item_copies, "BLOCK_BYTES_MIN", 2_000)


def opened(backend: Counted) -> Store:
    return store_of_log(Log(backend, clock=backend.time, actor="tester"), url="memory:", worker="w")


def said(n: int) -> dict[str, Any]:
    return {"n": n, "text": "x" * 90}


def talk(backend: Counted, length: int, first: int = 0) -> Store:
    """Makes a conversation longer; returns the store, its snapshot written."""
    hf = opened(backend)
    for n in range(first, first + length):
        hf.conversation("c").append("messages", said(n))
    flush(hf)
    return hf


def flush(hf: Store) -> None:
    snapshots = hf._log.snapshots
    for growth in snapshots.growth.values():
        growth.bytes = 1 << 20
    snapshots.flush(hf._log.states_in_memory())


def names(backend: MemoryBackend, stream: str = C) -> list[str]:
    folder = folder_of(stream)
    listed = backend.objects.names("snapshot", prefix=folder)
    return [name for name in listed if NAME.fullmatch(name[len(folder) :])]


def spans(hf: Store, stream: str = C) -> list[Span]:
    """Returns where the newest snapshot of a stream says that its messages are in blocks."""
    snapshots = hf._log.snapshots
    header, _ = snapshots._verified(stream, snapshots.revisions(stream)[-1])
    return from_table(header.copies).get(("messages",), [])


def messages(hf: Store, id: str = "c") -> list[Any]:
    found: list[Any] = hf.conversation(id).state.to_dict()["messages"]
    return found


def test_a_whole_list_is_read_from_blocks_and_only_the_rest_from_events(backend: Counted) -> None:
    talk(backend, 1_000)
    hf = opened(backend)
    assert hf.conversation("c").revision == 1_000
    backend.events = 0
    assert messages(hf) == [said(n) for n in range(1_000)]
    covered = sum(one.length for one in spans(hf))
    assert covered > 900
    assert covered % 32 == 0
    assert backend.events <= 1_000 - covered + 64 + 2
    first, again = messages(hf), messages(hf)
    assert first == again
    assert all(one is not other for one, other in zip(first, again, strict=True))


def test_the_middle_of_a_conversation_is_read_from_the_same_blocks(backend: Counted) -> None:
    talk(backend, 600)
    hf = opened(backend)
    backend.events = 0
    assert hf.conversation("c").at(300).to_dict()["messages"] == [said(n) for n in range(300)]
    assert backend.events < 200


@pytest.mark.parametrize("seed", range(8))
def test_what_blocks_say_is_what_the_events_say(
    backend: Counted, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Any changes, forks, restores, values with tags, blobs and lone surrogates."""
    monkeypatch.setattr(item_copies, "BLOCK_BYTES", 3_000)
    monkeypatch.setattr(item_copies, "BLOCK_BYTES_MIN", 500)
    monkeypatch.setattr(snapshot, "GROWTH_BYTES_MIN", 3_000)
    chance = random.Random(seed)
    hf = opened(backend)
    chat: Scope = hf.conversation("c")
    for _ in range(100):
        chat.append("messages", anything(chance))
    for turn in range(160):
        change(chance, chat)
        length = len(chat.state.get("messages", ()))
        if turn % 9 == 0 and length:
            chat.set(("messages", chance.randrange(length)), anything(chance))
        if turn == 60:
            flush(hf)
            hf = opened(backend)
            chat = hf.conversation("c")
        if turn == 80:
            chat = chat.fork("f")
    flush(hf)
    assert names(backend)
    for revision in [chat.revision, *chance.sample(range(1, chat.revision), 6)]:
        plain = opened(backend).conversation("f").at(revision).to_dict()
        assert repr(plain) == repr(frozen(opened(backend).conversation("f").at(revision)))
        partly = opened(backend).conversation("f").at(revision)
        items = partly.get("messages", [])
        for place in chance.sample(range(len(items)), min(3, len(items))):
            _ = items[place]
        assert repr(partly.to_dict()) == repr(plain)
    assert not hf._log.reports
    assert hf.check().findings == []


# --- what is not to be trusted --------------------------------------------------------------------


def damaged(data: bytes) -> bytes:
    return data[:50] + bytes([data[50] ^ 1]) + data[51:]


@pytest.mark.parametrize("harm", [damaged, lambda data: data[:40], lambda data: b""])
def test_a_damaged_block_is_named_discarded_and_read_from_the_events(
    backend: Counted, harm: Callable[[bytes], bytes]
) -> None:
    talk(backend, 600)
    name = names(backend)[1]
    backend.objects.put("snapshot", name, harm(backend.objects.get("snapshot", name) or b""))
    findings = opened(backend).check().findings
    assert [(one.harmless, one.where) for one in findings] == [(True, f'snapshot of "{C}"')]
    assert "a block of items" in findings[0].problem
    hf = opened(backend)
    assert messages(hf) == [said(n) for n in range(600)]
    assert [report for report in hf._log.reports if f'a block of items of "{C}" fails' in report]
    assert name not in names(backend)
    hf = opened(backend)
    assert messages(hf) == [said(n) for n in range(600)]  # one that is missing is no damage
    assert hf._log.reports == []
    assert hf.check().findings == []


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_a_changed_byte_of_a_block_on_disk_changes_nothing_that_is_read(
    tmp_path: Path, kind: str
) -> None:
    url = str(tmp_path / "store") if kind == "files" else f"sqlite:{tmp_path}/state.db"
    with holdfast.open(url) as hf:
        for n in range(200):
            hf.conversation("c").append("messages", said(n))
    chance = random.Random(71)
    for trial in range(12):
        if kind == "files":
            found = sorted(tmp_path.rglob("items-*"))
            path = chance.choice(found)
            data = path.read_bytes()
            at = chance.randrange(len(data))
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << trial % 8]) + data[at + 1 :])
        else:
            database = apsw.Connection(str(tmp_path / "state.db"))
            rows = database.execute(
                "SELECT id, data FROM objects WHERE name LIKE '%/items-%'"
            ).fetchall()
            number, data = chance.choice(rows)
            at = chance.randrange(len(data))
            harmed = data[:at] + bytes([data[at] ^ 1 << trial % 8]) + data[at + 1 :]
            database.execute("UPDATE objects SET data = ? WHERE id = ?", (harmed, number))
            database.close()
        with holdfast.open(url) as hf:
            assert messages(hf) == [said(n) for n in range(200)], f"byte {at} of {len(data)}"
            assert len(hf._log.reports) == 1
            # Made again for the next trial, as a longer list would be.
            hf._log._states.clear()
            for name in hf._log._backend.objects.names("snapshot"):
                hf._log._backend.objects.delete("snapshot", name)
        with holdfast.open(url) as hf:
            assert len(hf.conversation("c").state["messages"]) == 200
            flush_all(hf)


def flush_all(hf: Store) -> None:
    """Writes a snapshot of every state in memory, due or not."""
    snapshots = hf._log.snapshots
    for stream in hf._log.states_in_memory():
        snapshots._begin(stream)
    flush(hf)


def test_a_damaged_block_that_cannot_be_deleted_does_no_harm(
    backend: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(backend, 300)
    name = names(backend)[0]
    backend.objects.put("snapshot", name, b"no zstd")
    hf = opened(backend)

    def refuse(kind: str, name: str) -> None:
        raise UnavailableError("read-only")

    monkeypatch.setattr(backend.objects, "delete", refuse)
    assert messages(hf) == [said(n) for n in range(300)]
    assert "could not be deleted" in hf._log.reports[-1]


def stored_header(backend: MemoryBackend, change: Callable[[Any], Any]) -> None:
    """Writes the newest snapshot again, its table changed, with a digest that fits."""
    listed = backend.objects.names("snapshot", prefix=folder_of(C))
    [*_, name] = [name for name in listed if NAME.search(name) is None]
    data = backend.objects.get("snapshot", name) or b""
    end = data.index(b"\n", 32)
    fields = codec.decode(data[32:end])
    fields[13] = change(fields[13])
    rest = codec.encode_plain(fields) + data[end:]
    backend.objects.put("snapshot", name, snapshot.sha256(rest).digest() + rest)


@pytest.mark.parametrize(
    "place_and_value",
    [(0, 5), (1, 0), (1, 999), (2, 1), (2, -1), (5, 1)],
    ids=["overlap", "empty", "long", "past the block", "before the block", "small block"],
)
def test_a_table_that_cannot_be_is_damage_of_its_snapshot(
    backend: Counted, place_and_value: tuple[int, int]
) -> None:
    talk(backend, 400)
    place, value = place_and_value

    def bend(table: Any) -> Any:
        table[0][1][-1][place] = value
        return table

    stored_header(backend, bend)
    hf = opened(backend)
    assert messages(hf) == [said(n) for n in range(400)]
    assert "malformed block of items" in hf._log.reports[0]


def test_a_table_for_more_items_than_there_are_is_damage_of_its_snapshot(backend: Counted) -> None:
    talk(backend, 400)

    def bend(table: Any) -> Any:
        table[0][1][-1][0] += 320
        return table

    stored_header(backend, bend)
    hf = opened(backend)
    assert messages(hf) == [said(n) for n in range(400)]
    assert "snapshot has blocks for" in hf._log.reports[0]


def test_a_reader_that_knows_of_no_blocks_reads_the_snapshot(backend: Counted) -> None:
    """Releases before 0071 take what they know of the header, and the state as it always was."""
    hf = talk(backend, 400)
    name = f"{folder_of(C)}{400:016d}"
    data = backend.objects.get("snapshot", name) or b""
    end = data.index(b"\n", 32)
    header = codec.decode_as(data[32:end], snapshot._SealedHeader)
    assert (header.stream, header.revision, header.subject) == (C, 400, None)
    values = hf._log._values(C)
    root = snapshot.unpack(
        data[end + 1 :], fetch=values.encoded, blobs=None, plain=values.plain, copies=None
    )
    assert root["messages"].to_list() == [said(n) for n in range(400)]


# --- which items get a block ----------------------------------------------------------------------


def test_a_list_that_goes_on_keeps_its_blocks(backend: Counted) -> None:
    talk(backend, 300)
    before = names(backend)
    hf = talk(backend, 300, first=300)
    assert set(before) < set(names(backend))
    covered = spans(hf)
    assert [one.start for one in covered] == [0, *[one.stop for one in covered[:-1]]]
    assert messages(opened(backend)) == [said(n) for n in range(600)]


def test_an_item_that_was_replaced_leaves_the_rest_of_its_block_in_use(
    backend: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "GROWTH_BYTES_MIN", 1 << 30)
    talk(backend, 300)
    hf = opened(backend)
    chat = hf.conversation("c")
    chat.set(("messages", 40), {"n": -1, "text": "y" * 90})
    flush(hf)
    table = spans(hf)
    assert (0, 32) in [(one.start, one.length) for one in table]
    assert [one for one in table if one.offset]
    [new] = [one for one in table if one.start <= 40 < one.stop]
    assert (new.start, new.length, new.offset, new.block.items) == (32, 32, 0, 32)
    wanted = [said(n) for n in range(300)]
    wanted[40] = {"n": -1, "text": "y" * 90}
    assert messages(opened(backend)) == wanted


def test_a_list_from_before_blocks_gets_them_bit_by_bit(
    backend: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(item_copies, "BLOCK_BYTES_MIN", 1 << 30)
        talk(backend, 800)
    assert names(backend) == []
    monkeypatch.setattr(item_copies, "READ_AT_ONCE", 320)
    covered: list[int] = []
    for turn in range(3):
        hf = talk(backend, 1, first=800 + turn)
        covered.append(sum(one.length for one in spans(hf)))
    assert covered[0] == 320
    assert covered == sorted(covered)
    assert covered[-1] > 700
    hf = opened(backend)
    for turn in range(3):  # in one process, too
        hf.conversation("c").append("messages", said(803 + turn))
        flush(hf)
    assert messages(opened(backend)) == [said(n) for n in range(806)]


def test_so_many_blocks_are_made_at_once_and_no_more(
    backend: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_copies, "BLOCKS_AT_ONCE", 2)
    monkeypatch.setattr(snapshot, "GROWTH_BYTES_MIN", 1 << 30)
    hf = talk(backend, 1_000)
    assert len(names(backend)) == 2
    hf.conversation("c").append("messages", said(1_000))
    flush(hf)
    assert len(names(backend)) == 4
    assert messages(opened(backend)) == [said(n) for n in range(1_001)]


def test_lists_of_short_items_and_of_other_things_have_none(backend: Counted) -> None:
    hf = opened(backend)
    chat = hf.conversation("c")
    for n in range(300):
        with chat.edit() as draft:
            for name in ("short", "numbers", "changed", "\ud800"):
                draft.setdefault(name, [])
            draft["short"].append([n])
            draft["numbers"].append(n)
            draft["\ud800"].append(said(n))
            draft["changed"].append(said(n))
            draft["changed"][-1]["n"] = -n
    chat.set("whole", [said(n) for n in range(300)])
    chat.set("wide", {f"key {n}": n for n in range(300)})
    wide = hf.conversation("wide")
    wide.update({f"key {n}": n for n in range(300)})
    for n in range(300):
        wide.append("messages", said(n))
    flush(hf)
    assert names(backend) == []
    assert names(backend, wide.name) == []
    assert opened(backend).conversation("c").state.to_dict() == chat.state.to_dict()


def test_lists_below_other_maps_have_them(backend: Counted) -> None:
    hf = opened(backend)
    chat = hf.conversation("c")
    chat.set("deep", {"er": {}})
    for n in range(300):
        chat.append(("deep", "er", "list"), said(n))
    flush(hf)
    assert names(backend)
    again = opened(backend)
    assert again.conversation("c").revision == 301
    backend.events = 0
    assert again.conversation("c").state.to_dict() == chat.state.to_dict()
    assert backend.events < 150


def test_a_fork_uses_the_blocks_of_what_it_was_forked_from(backend: Counted) -> None:
    hf = talk(backend, 300)
    fork = hf.conversation("c").fork("f")
    for n in range(300, 600):
        fork.append("messages", said(n))
    flush(hf)
    table = spans(hf, "conversation/f")
    assert {one.block.stream for one in table} == {C, "conversation/f"}
    assert all(one.block.revision > 300 for one in table if one.block.stream != C)
    again = opened(backend)
    assert again.conversation("f").revision == 601
    backend.events = 0
    assert messages(again, "f") == [said(n) for n in range(600)]
    assert backend.events < 250


def test_a_few_items_of_a_block_are_read_from_their_events(backend: Counted) -> None:
    talk(backend, 300)
    copies = opened(backend)._log.snapshots.copies
    block = spans(opened(backend))[0].block
    assert copies.plain(Span(0, 1, 0, block)) is None
    assert copies.plain(Span(0, block.items, 0, block)) == [said(n) for n in range(block.items)]
    half = block.items // 2
    assert copies.plain(Span(9, half, 3, block)) == [said(n + 3) for n in range(half)]


def test_what_is_kept_in_memory_is_bounded(
    backend: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_copies, "KEPT_BYTES_MAX", 20_000)
    talk(backend, 1_000)
    hf = opened(backend)
    assert len(messages(hf)) == 1_000
    copies = hf._log.snapshots.copies
    assert 0 < copies._kept_bytes <= 20_000
    assert copies._kept_bytes == sum(map(len, copies._kept.values()))
    block = Block(C, 1, 1, 4, "ab")
    copies._keep(block, b"[11]")
    copies._keep(block, b"[11]")  # two threads that read the same
    assert copies._kept_bytes == sum(map(len, copies._kept.values()))


def test_spans_that_go_on_in_one_block_are_made_one() -> None:
    a, b = Block("s", 1, 96, 9, "a"), Block("s", 1, 96, 9, "b")
    found: list[Span] = []
    join_spans(found, [Span(0, 32, 0, a), Span(32, 32, 32, a)])
    join_spans(found, [Span(64, 32, 0, a), Span(96, 9, 0, b)])
    assert found == [Span(0, 64, 0, a), Span(64, 32, 0, a), Span(96, 9, 0, b)]


# --- letting go -----------------------------------------------------------------------------------


def everything(backend: MemoryBackend) -> bytes:
    """Returns all that is stored, unpacked."""
    found: list[bytes] = []
    for name in backend.objects.names("snapshot"):
        data = backend.objects.get("snapshot", name) or b""
        packed = data if NAME.search(name) else data[data.index(b"\n", 32) + 1 :]
        is_text = packed[:1] in (b"{", b"[")
        found.append(packed if is_text else codec.decompress(packed, size_max=1 << 30))
    found += [one.payload for one in backend.read_all(limit=1 << 20)]
    return b"".join(found)


def test_what_a_removed_scope_said_is_in_no_block_any_more(backend: Counted) -> None:
    hf = talk(backend, 400)
    for n in range(400):
        hf.conversation("d").append("messages", {"n": n, "stays": "z" * 90})
    flush(hf)
    kept = names(backend, "conversation/d")
    assert names(backend)
    assert b"x" * 90 in everything(backend)
    hf.conversation("c").remove()
    hf.retention.run(grace_s=0)
    assert b"x" * 90 not in everything(backend)
    assert names(backend) == []
    assert names(backend, "conversation/d") == kept
    assert hf._log.snapshots.copies._kept == {}
    assert hf.check().findings == []


def test_blocks_of_later_events_stay(backend: Counted) -> None:
    hf = talk(backend, 600)
    before = names(backend)
    hf._log.snapshots.copies.forget(C, 200)
    left = names(backend)
    assert left
    assert set(left) < set(before)
    revisions = [int(found[1]) for name in left if (found := NAME.search(name))]
    assert min(revisions) > 200


def ended(hf: Store, how: str) -> None:
    """Has somebody let go of what a scope said."""
    chat = hf.conversation("c")
    if how == "removed":
        chat.remove()
    elif how == "closed":
        chat.close(keep=False)
    if how != "compacted":
        hf.retention.run(grace_s=0)
        return
    for _ in range(3):
        chat.set("messages", [])
    hf.retention.run(
        policies=[RetentionPolicy("conversation/*", types=["state"], count=2)], grace_s=0
    )


@pytest.mark.parametrize("how", ["removed", "closed", "compacted"])
def test_who_does_not_know_yet_that_a_scope_is_gone_brings_nothing_back(
    backend: Counted, how: str
) -> None:
    """A handle that closes late has the old state in memory, and writes no snapshot of it."""
    late = talk(backend, 300)
    late.conversation("c").append("messages", {"n": 300, "text": "late" * 5_000})
    assert b"late" * 40 in everything(backend)
    ended(opened(backend), how)
    assert b"late" * 40 not in everything(backend)
    flush(late)
    assert late._log.reports == []
    assert b"late" * 40 not in everything(backend)


def test_what_was_closed_with_its_state_dropped_gets_no_snapshot(backend: Counted) -> None:
    hf = talk(backend, 300)
    hf.conversation("c").close(keep=False)
    hf.retention.run(grace_s=0)
    flush(hf)
    assert b"x" * 90 not in everything(backend)


@pytest.mark.parametrize("how", ["removed", "closed"])
def test_what_is_let_go_of_while_a_snapshot_is_written_is_deleted_with_it(
    backend: Counted, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    hf = talk(backend, 100)
    other = opened(backend)
    put = backend.objects.put
    asked: list[str] = []

    def put_after_all_was_let_go_of(kind: str, name: str, data: bytes, **more: Any) -> None:
        if not asked and NAME.search(name):
            asked.append(name)
            ended(other, how)
        put(kind, name, data, **more)

    monkeypatch.setattr(backend.objects, "put", put_after_all_was_let_go_of)
    with suppress(ClosedError):  # who is told of it in the next commit
        while not asked:
            hf.conversation("c").append("messages", said(1))
    flush(hf)
    assert names(backend) == []
    assert b"x" * 90 not in everything(backend)


def test_a_text_that_was_erased_is_not_brought_back_by_who_closes_late(
    backend: Counted, tmp_path: Path
) -> None:
    late = talk(backend, 300)
    late.conversation("c").append("messages", {"n": 300, "text": "Ada Lovelace " * 2_000})
    hf = opened(backend)
    hf.subjects.erase(match="Ada Lovelace")
    assert b"Lovelace" not in everything(backend)
    flush(late)
    assert b"Lovelace" not in everything(backend)


def test_a_state_that_others_wrote_on_is_left_to_the_next_commit(backend: Counted) -> None:
    hf = talk(backend, 100)
    chat = hf.conversation("c")
    chat.append("messages", said(100))
    opened(backend).conversation("c").append("messages", said(101))
    flush(hf)
    assert hf._log.snapshots.revisions(C)[-1] <= 100
    chat.append("messages", said(102))
    assert hf._log.snapshots.revisions(C)[-1] == 103


def test_a_state_that_is_written_on_while_it_is_stored_is_kept(
    backend: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = talk(backend, 100)
    hf.conversation("c").append("messages", said(100))
    put, other = backend.objects.put, opened(backend)

    def put_after_others(kind: str, name: str, data: bytes, **more: Any) -> None:
        monkeypatch.setattr(backend.objects, "put", put)
        other.conversation("c").append("messages", said(101))
        put(kind, name, data, **more)

    monkeypatch.setattr(backend.objects, "put", put_after_others)
    flush(hf)
    assert hf._log.snapshots.revisions(C)[-1] == 101


def test_a_root_without_lists_has_nothing_to_copy() -> None:
    assert list(item_copies.long_lists(Map({"a": 1}))) == []


def test_a_damaged_frame_with_a_right_digest_is_damage(backend: Counted) -> None:
    talk(backend, 300)
    copies = opened(backend)._log.snapshots.copies
    data = codec.compress(b"[" + b"1," * 2_000 + b"1]")
    block = Block(C, 1, 2_001, 10, item_copies.sha256(data).hexdigest())
    copies.put(block, data, 0)
    with pytest.raises(CorruptError, match="expected at most 10 bytes"):
        copies.read(block)

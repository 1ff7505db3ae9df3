"""Segments whose files are shorter than their text: nothing above them notices (0086)."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.backends.files import FilesBackend, directory, opening, packing, text
from holdfast.backends.files.disk import Disk
from holdfast.backends.files.packing import PackedSegment, pack
from holdfast.backends.files.text import Segments
from holdfast.backends.protocol import GONE, Record
from holdfast.clock import SystemClock
from holdfast.errors import CorruptError, FormatError
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import write

Gone = dict[str, list[int]]


@pytest.fixture(autouse=True)
def packs_all(monkeypatch: pytest.MonkeyPatch, small: None) -> None:
    del small
    monkeypatch.setattr(packing, "SAVED_BYTES_MIN", 1)
    monkeypatch.setattr(packing, "PLACE_BYTES", 700)


def open_at(path: Path, *, read_only: bool = False, **more: Any) -> FilesBackend:
    return FilesBackend(path, clock=SystemClock(), read_only=read_only, **more)


def fill(path: Path, seed: int, count: int = 60) -> Gone:
    """Writes a store; returns the revisions that are to go, nine in ten of each stream."""
    chance = random.Random(seed)
    gone: Gone = {}
    with closing(open_at(path)) as backend:
        build = RecordBuilder(SystemClock().now_us())
        for number in range(count):
            payloads = [
                b'"%b"' % (b"%d " % chance.getrandbits(30) * chance.choice([0, 1, 9, 40, 200]))
                for _ in range(chance.choice([1, 1, 3]))
            ]
            write(backend, build, "ab"[number % 2], *payloads)
        for record in backend.read_all(limit=10_000):
            if chance.random() < 0.9:
                gone.setdefault(record.stream, []).append(record.revision)
    return gone


def let_go(path: Path, gone: Gone) -> None:
    with closing(open_at(path)) as backend:
        backend.rewrite(gone)


def read(path: Path) -> list[Record]:
    with closing(open_at(path)) as backend:
        return backend.read_all(limit=10_000)


def expected(before: list[Record], gone: Gone) -> list[Record]:
    return [
        replace(one, payload=GONE)
        if one.revision in gone[one.stream] and len(one.payload) > 1
        else one
        for one in before
    ]


def segments_of(path: Path) -> list[Path]:
    return sorted((path / "log").glob("*.jsonl"))


def is_packed(path: Path) -> bool:
    return path.read_bytes().startswith(packing.BEGINNING)


def text_of(path: Path) -> bytes:
    """Returns the text that the sealed segments of a store stand for."""
    fd = os.open(path / "log", os.O_RDONLY)
    segments = Segments(Disk(), fd, read_only=True)
    try:
        return segments.read(0, segments.newest)
    finally:
        segments.close()
        os.close(fd)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of which nine tenths were let go, so that its segments are packed."""
    let_go(tmp_path / "store", fill(tmp_path / "store", 5))
    return tmp_path / "store"


class Mapped:
    """One packed segment, read through its file."""

    def __init__(self, path: Path, data: bytes, length: int | None) -> None:
        path.write_bytes(data)
        self.fd = os.open(path, os.O_RDONLY)
        self.segment = PackedSegment(Disk(), self.fd, length)

    def read(self, offset: int = 0, length: int = 1 << 40) -> bytes:
        return self.segment.read(self.fd, offset, length)

    def __enter__(self) -> Mapped:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


# --- the store ------------------------------------------------------------------------------------


def test_everything_is_answered_as_before(tmp_path: Path) -> None:
    for seed in range(3):
        path = tmp_path / str(seed)
        gone = fill(path, seed)
        before = read(path)
        readers = [open_at(path), open_at(path, read_only=True)]
        for one in readers:
            assert one.read_all(limit=10_000) == before
        after = expected(before, gone)
        with closing(open_at(path)) as backend:
            backend.rewrite(gone)
            heads = backend.heads(["a", "b"])
            assert backend.read_all(limit=10_000) == after
        for one in readers:
            assert one.read_all(limit=10_000) == after
            for record in after:
                begin = record.revision - 1
                assert one.read(record.stream, after=begin, limit=1) == [record]
                [row] = one.read_linked(record.stream, after=begin, until=None, limit=1)
                assert row[0] == record.revision
            one.look_while_idle()
            assert list(one.inspect.verify(read_all=True)) == []
            one.close()
        (path / "index.sqlite").unlink(missing_ok=True)
        with closing(open_at(path)) as backend:
            assert list(backend.inspect.verify(read_all=True)) == []
            assert backend.heads(["a", "b"]) == heads
            assert backend.read_all(limit=10_000) == after
        assert sum(map(is_packed, segments_of(path))) > 2
        assert not is_packed(segments_of(path)[-1])
        for one in segments_of(path):
            for line in one.read_bytes().splitlines():
                json.loads(line)


def test_log_offsets_and_digest_stay(tmp_path: Path) -> None:
    gone = fill(tmp_path / "s", 9)
    with closing(open_at(tmp_path / "s")) as backend:
        before = backend.catalog.tail.cursor
        spans = {name: backend.catalog.spans(name, 0, max(gone[name])) for name in gone}
        backend.rewrite(gone)
        assert {name: backend.catalog.spans(name, 0, max(gone[name])) for name in gone} == spans
    with closing(open_at(tmp_path / "s")) as backend:
        line = segments_of(tmp_path / "s")[-1].read_bytes()
        cursor = backend.catalog.tail.cursor
        assert (cursor.end - len(line), cursor.position - 1) == (before.end, before.position)


def test_it_is_packed_again_and_again(tmp_path: Path) -> None:
    path, chance = tmp_path / "s", random.Random(3)
    gone = fill(path, 3)
    before, done = read(path), {name: list[int]() for name in gone}
    while any(len(done[name]) < len(gone[name]) for name in gone):
        some = {name: chance.sample(gone[name], min(len(gone[name]), 15)) for name in gone}
        some = {name: sorted({*some[name]} | {*gone[name][:9]}) for name in gone}
        let_go(path, some)
        done = {name: sorted({*done[name], *some[name]}) for name in gone}
        assert read(path) == expected(before, done)
        gone = {
            name: [one for one in gone[name] if one not in done[name]] or done[name][:1]
            for name in gone
        }
        if all(one in done[name] for name in gone for one in gone[name]):
            break


def test_what_an_earlier_holdfast_rewrote_is_packed_by_a_whole_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    gone = fill(path, 4)
    with monkeypatch.context() as earlier:
        earlier.setattr(packing, "SAVED_BYTES_MIN", 1 << 40)
        let_go(path, gone)
    assert not any(map(is_packed, segments_of(path)))
    assert json.loads((path / "holdfast.json").read_bytes())["format"] == 2
    before, whole = read(path), text_of(path)
    with closing(open_at(path)) as backend, closing(open_at(path)) as other:
        assert other.read_all(limit=10_000) == before
        backend.purge()
        assert not any(map(is_packed, segments_of(path)))
        backend.purge(whole=True)
        assert sum(map(is_packed, segments_of(path))) > 2
        files = [(one.stat().st_ino, one.stat().st_size) for one in segments_of(path)]
        backend.purge(whole=True)  # nothing more can be saved
        assert [(one.stat().st_ino, one.stat().st_size) for one in segments_of(path)] == files
        assert other.read_all(limit=10_000) == backend.read_all(limit=10_000) == before
        write(other, RecordBuilder(SystemClock().now_us()), "a")
    assert text_of(path) == whole
    assert json.loads((path / "holdfast.json").read_bytes())["format"] == 3
    assert len(read(path)) == len(before) + 1


def test_an_older_holdfast_is_told_that_it_is_too_old(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "FORMAT", 2)
    files = {one: one.read_bytes() for one in store.rglob("*") if one.is_file()}
    for read_only in (False, True):
        with pytest.raises(FormatError, match="has format 3"):
            open_at(store, read_only=read_only)
    assert {one: one.read_bytes() for one in store.rglob("*") if one.is_file()} == files


def test_a_file_that_does_not_read_as_its_text_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a byte is lost on the way, as by a fault of the code or of the disk."""
    path = tmp_path / "s"
    gone = fill(path, 8)
    before = read(path)
    monkeypatch.setattr(text.Segments, "_whole", lossy(text.Segments._whole))  # pyright: ignore[reportPrivateUsage]
    with closing(open_at(path)) as backend:
        with pytest.raises(CorruptError, match="did not read as it was written"):
            backend.rewrite(gone)
        assert backend.read_all(limit=10_000) == before
    assert not list((path / "log").glob("*.new"))


def lossy(sound: Callable[..., bytes]) -> Callable[..., bytes]:
    calls = iter(range(1000))

    def whole(*arguments: Any) -> bytes:
        found = sound(*arguments)
        return found[:-9] + found[-8:] + b"\n" if next(calls) % 2 else found

    return whole


# --- others beside it -----------------------------------------------------------------------------


def test_one_who_looks_while_a_segment_takes_its_place_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name leads to the new file, and the shared page does not say so yet."""
    gone = fill(tmp_path / "s", 1)
    before = read(tmp_path / "s")
    mine, other = open_at(tmp_path / "s"), open_at(tmp_path / "s")
    reader = open_at(tmp_path / "s", read_only=True)
    looked = 0
    sync_names = Segments.sync_names

    def look(segments: Segments) -> None:
        nonlocal looked
        sync_names(segments)
        if segments is mine.catalog.segments:
            looked += 1
            for one in (other, reader):
                one.look_while_idle()
                one.check_open()
                one.read("a", limit=1)

    monkeypatch.setattr(Segments, "sync_names", look)
    for one in (other, reader):
        assert one.read_all(limit=10_000) == before
        one.read("a", limit=1)  # so that the first segment, which is replaced first, is open
    mine.rewrite(gone)
    assert looked > 3
    for one in (mine, other, reader):
        assert one.read_all(limit=10_000) == expected(before, gone)
        one.close()


def test_one_who_looks_while_the_open_segment_is_sealed_and_replaced_looks_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = open_at(tmp_path / "s"), open_at(tmp_path / "s")
    write(other, RecordBuilder(SystemClock().now_us()), "a", *[b'"%b"' % (b"x" * 900)] * 3)
    assert isinstance(other.opened, opening.Opened)
    watch = other.opened.watch
    taken, looks = watch.taken, list[list[str]]()

    def late() -> list[str]:
        if not looks:
            mine.rewrite({"a": [1]})
        looks.append(taken())
        return [*looks[-1]]

    monkeypatch.setattr(watch, "taken", late)
    other.look_while_idle()
    assert looks == [[text.OPEN_SEGMENT], []]
    write(other, RecordBuilder(SystemClock().now_us()), "a")
    for one in (mine, other):
        assert [record.payload == GONE for record in one.read("a")] == [True, False, False, False]
        one.close()


def test_a_segment_that_another_one_rewrote_meanwhile_is_packed_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    gone = fill(path, 6)
    with monkeypatch.context() as earlier:
        earlier.setattr(packing, "SAVED_BYTES_MIN", 1 << 40)
        let_go(path, {"a": gone["a"]})
    before = read(path)
    mine, other = open_at(path), open_at(path)
    writes, others = Segments.write_beside, [lambda: other.rewrite({"b": gone["b"]})]

    def write_beside(segments: Segments, *arguments: Any) -> text.Beside:
        beside = writes(segments, *arguments)
        if segments is mine.catalog.segments and others:
            others.pop()()
        return beside

    monkeypatch.setattr(Segments, "write_beside", write_beside)
    mine.purge(whole=True)
    assert not others
    for one in (mine, other):
        assert one.read_all(limit=10_000) == expected(before, {"a": [], "b": gone["b"]})
        one.close()


def test_one_who_does_not_know_yet_that_a_segment_is_sealed_reads_it(tmp_path: Path) -> None:
    with closing(open_at(tmp_path / "s")) as mine:
        write(mine, RecordBuilder(SystemClock().now_us()), "a", *[b'"%b"' % (b"x" * 900)] * 3)
        for read_only in (False, True):
            other = open_at(tmp_path / "s", read_only=read_only)
            segments, end = other.catalog.segments, other.catalog.tail.cursor.end
            before = segments.read(0, end)
            segments.close()
            mine.rewrite({"a": [1]})
            assert is_packed(segments_of(tmp_path / "s")[0])
            found = segments.read(0, end)
            assert len(found) == len(before) == end
            assert found.count(b"-0 ") == 1
            assert other.read("a")[0].payload == GONE
            other.close()


def test_a_reader_of_the_segment_that_was_open_sees_what_went(tmp_path: Path) -> None:
    with closing(open_at(tmp_path / "s")) as mine:
        write(mine, RecordBuilder(SystemClock().now_us()), "a", b'"%b"' % (b"x" * 900))
        with closing(open_at(tmp_path / "s", read_only=True)) as reader:
            assert len(reader.read("a")[0].payload) > 900
            mine.rewrite({"a": [1]})
            assert reader.read("a")[0].payload == GONE


# --- damage ---------------------------------------------------------------------------------------


def test_any_window_of_the_text_is_read(store: Path, tmp_path: Path) -> None:
    chance = random.Random(2)
    for path in filter(is_packed, segments_of(store)):
        start = int(path.stem, 16)
        whole = text_of(store)[start:]
        length = json.loads(path.read_bytes().partition(b"\n")[0])["packed"][0]
        whole = whole[:length]
        assert pack(whole) == path.read_bytes()
        with Mapped(tmp_path / "one", path.read_bytes(), length) as one:
            assert one.segment.size(one.fd) == length
            for _ in range(300):
                begin = chance.randrange(length + 9)
                count = chance.choice([1, 7, 100, 3000])
                assert one.read(begin, count) == whole[begin : begin + count]
                assert 0 <= one.segment.place_of(begin) <= len(path.read_bytes())
    fd = os.open(store / "log", os.O_RDONLY)
    segments = Segments(Disk(), fd, read_only=True)
    assert is_packed(segments_of(store)[0])
    assert (segments.next_data(5, 9), segments.next_data(5, 3)) == (5, 3)  # there is no hole
    segments.close()
    os.close(fd)


def test_a_damaged_byte_costs_its_line_and_no_other(store: Path, tmp_path: Path) -> None:
    path = next(filter(is_packed, segments_of(store)))
    data = path.read_bytes()
    length = json.loads(data.partition(b"\n")[0])["packed"][0]
    with Mapped(tmp_path / "one", data, length) as one:
        lines = one.read().splitlines(True)
    chance = random.Random(6)
    for place in range(0, len(data), 5):
        changed = bytearray(data)
        changed[place] ^= 1 << chance.randrange(8)
        with Mapped(tmp_path / "one", bytes(changed), length) as one:
            found = one.read()
            assert len(found) == length
            offset, lost = 0, 0
            for line in lines:
                lost += found[offset : offset + len(line)] != line
                offset += len(line)
            # Two, if it was the line break between them or a new one.
            assert lost <= 2, (place, lost)
            is_head = place < data.index(b"\n") + 1
            assert lost == 0 if is_head else lost >= 1


def test_cut_short_or_full_of_zeros_it_stays_in_place(store: Path, tmp_path: Path) -> None:
    path = next(filter(is_packed, segments_of(store)))
    data = path.read_bytes()
    head, length = data.index(b"\n") + 1, json.loads(data.partition(b"\n")[0])["packed"][0]
    with Mapped(tmp_path / "one", data, length) as one:
        whole = one.read()
    for damaged in (
        data[: len(data) // 2],
        data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
        data[: len(data) // 3] + bytes(5000) + data[len(data) // 2 :],
        data[head:],
        data[:head],
        data[head : head * 3] + data[head:],
    ):
        with Mapped(tmp_path / "one", damaged, length) as one:
            found = one.read()
            assert len(found) in (length, len(damaged))
            assert one.segment.size(one.fd) in (length, len(damaged))
            kept = sum(a == b for a, b in zip(found, whole, strict=False))
            assert kept >= (0 if len(damaged) == head else length // 4)
    with Mapped(tmp_path / "one", data[:head], None) as one:
        assert one.segment.size(one.fd) == head
    with Mapped(tmp_path / "one", data, length) as one:
        one.read(0, 1)
        os.truncate(tmp_path / "one", 0)
        assert not one.read().strip(b"\0\n")
    with Mapped(tmp_path / "one", data, length) as one:
        os.truncate(tmp_path / "one", 0)
        assert not one.read().strip(b"\0\n")


def test_a_hostile_file_takes_no_more_memory_than_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zlib import crc32

    def packed_line(gap: bytes) -> bytes:
        line = b'{"n":1,"was":"AAAAAAAA","gap":"' + gap
        return line + b';%08x"}\n' % crc32(line)

    monkeypatch.setattr(packing, "LINE_BYTES_MAX", 1 << 20)
    for gap in (b"0,1,ffffffffffff", b"0,9,10,3,10", b"0,fff,10", b"ffffffff,1,10"):
        with Mapped(tmp_path / "one", packed_line(gap), 1 << 31) as one:
            assert not one.segment.is_packed(one.fd)
    # A huge hole, and a huge line, before the one that is packed.
    for before in (bytes(1 << 20), b"x" * (1 << 20), b"x" * (5 << 20)):
        with Mapped(tmp_path / "one", before + b"\n" + packed_line(b"10,1,20"), 1 << 40) as one:
            one.segment.is_packed(one.fd)
            assert len(one.read(0, 1000)) == 1000
    with Mapped(tmp_path / "one", packed_line(b"0,1,100"), 1 << 40) as one:
        assert one.read(0, 50) == b"{" + b" " * 49
        assert one.read(1 << 39, 4) == bytes(4)


def test_text_of_a_packed_segment_that_is_lost_is_not_written_as_zeros(store: Path) -> None:
    path = next(filter(is_packed, segments_of(store)))
    data = bytearray(path.read_bytes())
    place = data.index(b'"gap"')
    data[place + 9] ^= 1
    path.write_bytes(data)
    with closing(open_at(store)) as backend:
        problems = list(backend.inspect.verify(read_all=True))
        assert [one.where.partition(" ")[0] for one in problems] == [f"log/{path.name}"]
        everything = {name: list(range(1, 200)) for name in "ab"}
        heads = {name: head.revision for name in "ab" if (head := backend.heads([name])[0])}
        wanted = {name: some[: heads[name]] for name, some in everything.items()}
        with pytest.raises(CorruptError, match="damaged"):
            backend.rewrite(wanted)
    assert path.read_bytes() == data


def test_a_damaged_segment_is_told_and_the_others_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    gone = fill(path, 4)
    let_go(path, {"a": gone["a"]})
    with monkeypatch.context() as earlier:
        earlier.setattr(packing, "SAVED_BYTES_MIN", 1 << 40)
        let_go(path, {"b": gone["b"]})
    damaged, *others = segments_of(path)
    damaged.write_bytes(damage_of(pack(text_of(path)[: int(others[0].stem, 16)])))
    data = damaged.read_bytes()
    left_behind = path / "log" / f"{damaged.name}.99.new"
    left_behind.write_bytes(b"CANARY")
    with closing(open_at(path)) as backend:
        [left] = backend.purge(whole=True)
    assert left.where.startswith(f"log/{damaged.name} byte ")
    assert "damaged" in left.remedy
    assert "holdfast salvage" in left.remedy
    assert not left.is_outside
    assert damaged.read_bytes() == data
    assert sum(map(is_packed, others)) > 2
    assert not list((path / "log").glob("*.new"))


def damage_of(packed: bytes | None) -> bytes:
    """Returns a packed file in which a byte of what is told of gaps has changed."""
    assert packed is not None
    data = bytearray(packed)
    data[data.index(b'"gap"') + 9] ^= 1
    return bytes(data)


def test_the_first_line_may_be_damaged(store: Path) -> None:
    before = read(store)
    for path in filter(is_packed, segments_of(store)):
        data = bytearray(path.read_bytes())
        data[5] ^= 1
        path.write_bytes(data)
    assert read(store) == before


def test_a_packed_segment_is_never_the_one_that_is_written_to(store: Path) -> None:
    """Somebody removed the newest segment, and what says where the log ended."""
    newest = segments_of(store)[-1]
    newest.unlink()
    (store / "head.json").unlink()
    (store / "index.sqlite").unlink(missing_ok=True)
    while not is_packed(segments_of(store)[-1]):
        segments_of(store)[-1].unlink()
    files = {one: one.read_bytes() for one in segments_of(store)}
    backend = open_at(store)
    with pytest.raises(CorruptError, match="is missing"):
        write(backend, RecordBuilder(SystemClock().now_us()), "a")
    assert "is packed, and only segments" in str(backend.inspect.describe()["reports"])
    backend.close()
    fd = os.open(store / "log", os.O_RDONLY)
    segments = Segments(Disk(), fd, read_only=False)
    for act in (
        lambda: segments.append(segments.end(), b"x"),
        lambda: segments.cut(0),
        lambda: segments.write_at(0, b"x"),
        lambda: segments.reserve(segments.end(), 1),
    ):
        with pytest.raises(CorruptError, match="was to be written to"):
            act()
    assert segments.where(segments.newest).endswith(" byte 39")  # after the first line
    segments.close()
    os.close(fd)
    assert {one: one.read_bytes() for one in segments_of(store)} == files


# --- threads --------------------------------------------------------------------------------------

WAITED_S = 0.3


@pytest.mark.parametrize("meanwhile", ["sync", "size_of", "end", "cut", "write_at"])
def test_no_thread_closes_what_another_one_uses(tmp_path: Path, meanwhile: str) -> None:
    """Each of them may open a segment, and then closes the oldest that is open."""
    count = 9
    for start in range(count):
        (tmp_path / f"{start * 4:016x}.jsonl").write_bytes(b"abc\n")
    fd = os.open(tmp_path, os.O_RDONLY)
    disk = Disk()
    segments = Segments(disk, fd, read_only=False)
    for start in range(count - 1):  # as many as are kept open
        segments.read(start * 4, start * 4 + 4)
    last = (count - 1) * 4
    acts: dict[str, Callable[[], object]] = {
        "sync": lambda: segments.sync(0),
        "size_of": lambda: segments.size_of(last),
        "end": segments.end,
        "cut": lambda: segments.cut(last + 4),
        "write_at": lambda: segments.write_at(last, b"abc\n"),
    }
    threads: list[threading.Thread] = []

    def pread(fd: int, size: int, offset: int) -> bytes:
        if not threads:
            threads.append(threading.Thread(target=acts[meanwhile]))
            threads[0].start()
            threads[0].join(WAITED_S)
        return os.pread(fd, size, offset)

    setattr(disk, "pread", pread)  # noqa: B010
    assert segments.read(0, 4) == b"abc\n"
    threads[0].join(120)
    segments.close()
    os.close(fd)

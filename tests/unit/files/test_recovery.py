"""What recovery makes of states that were laid out by hand (guarantee 7; 0001, "Recovery")."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.files import FilesBackend, journal
from holdfast.errors import CorruptError, FilesTakenError
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import write


def _abandoned(path: Path, clock: FakeClock, build: RecordBuilder, count: int = 4) -> Path:
    """Returns a copy of a store that was never closed: ring, shared page and all."""
    backend = FilesBackend(path / "first", clock=clock)
    for _ in range(count):
        write(backend, build, "a")
    shutil.copytree(path / "first", path / "copy")
    backend.close()
    return path / "copy"


def _closed(path: Path, clock: FakeClock, build: RecordBuilder, count: int = 4) -> Path:
    backend = FilesBackend(path / "s", clock=clock)
    for _ in range(count):
        write(backend, build, "a")
    backend.close()
    return path / "s"


def _segment(path: Path) -> Path:
    [segment] = (path / "log").iterdir()
    return segment


def _count(path: Path, clock: FakeClock) -> int:
    backend = FilesBackend(path, clock=clock)
    count = len(backend.read("a"))
    assert [f for f in backend.inspect.verify(read_all=True) if not f.harmless] == []
    backend.close()
    return count


def _ring_offsets(path: Path) -> list[int]:
    return [batch.ring_offset for batch in _batches(path)]


def _batches(path: Path) -> list[journal.RingBatch]:
    store = json.loads((path / "holdfast.json").read_text())["store"]
    return journal.find_batches((path / "ring").read_bytes(), journal.seed_of(store))


@pytest.mark.parametrize("kept", [0, 1, 50, 200, 10**9])
def test_text_that_was_not_synced_is_completed_from_the_ring(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, kept: int
) -> None:
    path = _abandoned(tmp_path, clock, build)
    clock.reboot()
    text = _segment(path).read_bytes()
    _segment(path).write_bytes(text[:kept])
    assert _count(path, clock) == 4
    assert _segment(path).read_bytes() == text


def test_garbage_in_the_place_of_unsynced_text_is_overwritten_from_the_ring(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    path = _abandoned(tmp_path, clock, build)
    clock.reboot()
    text = _segment(path).read_bytes()
    _segment(path).write_bytes(bytes(len(text)))
    assert _count(path, clock) == 4
    assert _segment(path).read_bytes() == text


def test_a_torn_last_batch_is_an_unacknowledged_one(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    path = _abandoned(tmp_path, clock, build)
    clock.reboot()
    text = _segment(path).read_bytes()
    last = text.rindex(b"\n", 0, -1) + 1
    _segment(path).write_bytes(text[: last + 20])
    data = bytearray((path / "ring").read_bytes())
    data[_ring_offsets(path)[-1] + 100] ^= 1
    (path / "ring").write_bytes(data)
    backend = FilesBackend(path, clock=clock)
    assert len(backend.read("a")) == 3
    [report] = backend.inspect.describe()["reports"]
    assert "cut 20 bytes" in report
    [torn] = [p for p in (path / "torn").iterdir() if p.suffix != ".txt"]
    assert torn.read_bytes() == text[last : last + 20]
    write(backend, build, "b")
    backend.close()
    again = FilesBackend(path, clock=clock)
    assert again.inspect.describe()["reports"] == [report]
    again.close()


def test_a_damaged_batch_whose_text_is_there_is_harmless(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    path = _abandoned(tmp_path, clock, build)
    clock.reboot()
    data = bytearray((path / "ring").read_bytes())
    for place in _ring_offsets(path):
        data[place + 90] ^= 1
    (path / "ring").write_bytes(data)
    assert _count(path, clock) == 4


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_damaged_batch_before_a_whole_one_and_not_in_the_text_is_corruption(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, damage: str
) -> None:
    path = _abandoned(tmp_path, clock, build)
    clock.reboot()
    data = bytearray((path / "ring").read_bytes())
    data[_ring_offsets(path)[1] + 90] ^= 1
    (path / "ring").write_bytes(data)
    text = _segment(path).read_bytes()
    first = text.index(b"\n") + 1
    _segment(path).write_bytes(text[:first] + (b"" if damage == "cut" else b"#" * 600))
    before = _segment(path).read_bytes()
    with pytest.raises(CorruptError) as caught:
        FilesBackend(path, clock=clock)
    assert caught.value.where is not None
    assert caught.value.where.startswith("log/0000000000000000.jsonl byte")
    assert _segment(path).read_bytes()[:first] == before[:first]
    assert not (path / "torn").exists()


@pytest.mark.parametrize("damage", ["cut", "flip", "longer line", "two lines changed places"])
def test_after_a_clean_close_a_mismatch_is_corruption_never_a_cut(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, damage: str
) -> None:
    path = _closed(tmp_path, clock, build)
    text = _segment(path).read_bytes()
    lines = text.splitlines(keepends=True)
    changed = {
        "cut": b"".join(lines[:-1]),
        "flip": text[:-30] + bytes([text[-30] ^ 1]) + text[-29:],
        "longer line": text[:-1] + b" \n",
        "two lines changed places": b"".join([lines[1], lines[0], *lines[2:]]),
    }[damage]
    _segment(path).write_bytes(changed)
    with pytest.raises(CorruptError):
        FilesBackend(path, clock=clock)
    with pytest.raises(CorruptError):
        FilesBackend(path, clock=clock, read_only=True)
    assert _segment(path).read_bytes() == changed
    assert not (path / "torn").exists()


def test_a_line_lost_and_renumbered_is_found_by_the_store_digest(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """Guarantee 6: whole valid lines, of another history."""
    path = _closed(tmp_path / "one", clock, build)
    other = _closed(tmp_path / "two", clock, RecordBuilder(actor="othern"))
    text = _segment(other).read_bytes()
    head = json.loads((path / "head.json").read_text())
    _segment(path).write_bytes(text)
    (path / "head.json").write_text(json.dumps({**head, "end": len(text)}))
    with pytest.raises(CorruptError, match=r"head\.json"):
        FilesBackend(path, clock=clock)


def test_whole_lines_after_the_recorded_end_are_kept_and_a_torn_one_is_not(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """A clone of a living store: text beyond head.json, and no ring."""
    path = _closed(tmp_path, clock, build)
    backend = FilesBackend(path, clock=clock)
    write(backend, build, "a")
    text = _segment(path).read_bytes()
    backend.close()
    (path / "head.json").write_bytes(b"")
    (path / "head.json").unlink()
    _segment(path).write_bytes(text + text[:33])
    assert _count(path, clock) == 5
    assert _segment(path).read_bytes() == text
    assert len(os.listdir(path / "torn")) == 2


def test_a_damaged_line_before_whole_ones_in_a_copy_is_corruption(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    path = _closed(tmp_path, clock, build)
    (path / "head.json").unlink()
    text = bytearray(_segment(path).read_bytes())
    text[30] ^= 1
    _segment(path).write_bytes(text)
    with pytest.raises(CorruptError, match="whole lines follow"):
        FilesBackend(path, clock=clock)
    assert _segment(path).read_bytes() == text


def test_a_missing_segment_is_corruption(
    tmp_path: Path, clock: FakeClock, small: None, trial: dict[str, Any]
) -> None:
    del small
    backend = FilesBackend(tmp_path / "s", clock=clock)
    trial["Filler"]().fill(backend)
    backend.close()
    (tmp_path / "s" / "index.sqlite").unlink()
    segments = sorted((tmp_path / "s" / "log").iterdir())
    assert len(segments) > 2
    segments[1].rename(tmp_path / "elsewhere")
    with pytest.raises(CorruptError, match="missing"):
        FilesBackend(tmp_path / "s", clock=clock)


def test_a_ring_of_another_store_is_not_taken_for_ones_own(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    path = _abandoned(tmp_path / "one", clock, build)
    other = _abandoned(tmp_path / "two", clock, RecordBuilder(actor="other"), 7)
    clock.reboot()
    (path / "ring").write_bytes((other / "ring").read_bytes())
    text = _segment(path).read_bytes()
    assert _count(path, clock) == 4
    assert _segment(path).read_bytes() == text


def test_weaker_durability_writes_no_ring_and_a_full_writer_syncs_what_it_finds(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, disks: dict[str, Any]
) -> None:
    """Two handles of one store: what `process` wrote lies before what `full` promises."""
    path = tmp_path / "s"
    weak = FilesBackend(path, clock=clock, durability="process")
    write(weak, build, "a")
    assert not (path / "ring").exists()
    disk = disks["power"]()
    full = FilesBackend(path, clock=clock, disk=disk)
    write(full, build, "a")
    write(weak, build, "a")
    write(full, build, "a")
    batch = _batches(path)[-1]
    assert batch.synced_end == batch.offset
    weak.close()
    full.close()
    assert _count(path, clock) == 4


def test_the_text_is_readable_by_any_tool_and_private(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    path = _closed(tmp_path, clock, build)
    lines = [json.loads(line) for line in _segment(path).read_text("utf-8").splitlines()]
    assert [line["n"] for line in lines] == [1, 2, 3, 4]
    for below in (path, *path.rglob("*")):
        assert below.stat().st_mode & 0o077 == 0, below
    names = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert names == {
        *("holdfast.json", "head.json", ".gitignore", "lock"),
        "log/0000000000000000.jsonl",
    }


def test_files_deleted_under_a_living_store_stop_it_before_harm_is_done(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, small: None
) -> None:
    del small
    backend = FilesBackend(tmp_path / "s", clock=clock)
    write(backend, build, "a")
    (tmp_path / "s" / "shared").unlink()
    with pytest.raises(FilesTakenError, match="deleted while in use"):
        FilesBackend(tmp_path / "s", clock=clock)
    with pytest.raises(FilesTakenError, match=r"while it was open \(shared\)"):
        for _ in range(30):
            write(backend, build, "a", b'"%b"' % (b"x" * 900))
    backend.close()


@pytest.mark.parametrize("size", [0, 100, 2048])
def test_a_ring_that_was_cut_is_made_anew(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, size: int
) -> None:
    path = _abandoned(tmp_path, clock, build)
    (path / "ring").write_bytes((path / "ring").read_bytes()[:size])
    backend = FilesBackend(path, clock=clock)
    head = write(backend, build, "a").position
    assert head == 5
    assert (path / "ring").stat().st_size == 1 << 20
    backend.close()
    assert _count(path, clock) == 5

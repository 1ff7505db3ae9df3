"""Recovery of states that are rare: files that are gone, records that disagree."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from holdfast.backends.files import FilesBackend, directory, journal, recovery
from holdfast.errors import CorruptError, UnavailableError
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import accepted, revisions, write
from tests.unit.files.conftest import read_damaged

SEGMENT = Path("log") / "0000000000000000.jsonl"


def _filled(path: Path, clock: FakeClock, build: RecordBuilder, count: int) -> FilesBackend:
    backend = FilesBackend(path, clock=clock)
    for _ in range(count):
        write(backend, build, "a", b'"%0200d"' % count)
    return backend


def _abandoned(backend: FilesBackend, copy: Path) -> Path:
    """Returns a copy of a store that is in use, as a crash would leave it."""
    shutil.copytree(backend.directory.path, copy)
    backend.close()
    return copy


def _bare(path: Path) -> Path:
    """Takes everything away that says how far the text goes."""
    for name in ("head.json", "ring", "shared", "index.sqlite"):
        (path / name).unlink(missing_ok=True)
    return path


def _count(path: Path, clock: FakeClock) -> int:
    backend = FilesBackend(path, clock=clock)
    found = backend.read("a")
    assert revisions(found) == list(range(1, len(found) + 1))
    assert [f for f in backend.inspect.verify(read_all=True) if not f.harmless] == []
    backend.close()
    return len(found)


def test_a_text_that_is_gone_altogether_comes_back_from_the_ring(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    path = _abandoned(_filled(tmp_path / "s", clock, build, 3), tmp_path / "copy")
    clock.reboot()
    text = (path / SEGMENT).read_bytes()
    (path / SEGMENT).unlink()
    assert _count(path, clock) == 3
    assert (path / SEGMENT).read_bytes() == text


@pytest.mark.usefixtures("small")
def test_a_recorded_end_below_what_the_index_knows_is_not_looked_for(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """head.json is of the last clean close; the index went on while the store was in use."""
    _filled(tmp_path / "s", clock, build, 2).close()
    path = _abandoned(_filled(tmp_path / "s", clock, build, 40), tmp_path / "copy")
    recorded = json.loads((path / "head.json").read_text())["position"]
    assert recorded == 2
    clock.reboot()
    backend = FilesBackend(path, clock=clock)
    assert backend.catalog.tail.base.position > recorded
    assert revisions(backend.read("a")) == list(range(1, 43))
    backend.close()


def test_a_recorded_end_within_a_line_is_corruption(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    _filled(tmp_path / "s", clock, build, 2).close()
    path = _abandoned(_filled(tmp_path / "s", clock, build, 3), tmp_path / "copy")
    head = json.loads((path / "head.json").read_text())
    (path / "head.json").write_text(json.dumps(head | {"end": head["end"] + 7}))
    before = (path / SEGMENT).read_bytes()
    with pytest.raises(CorruptError, match=r"head\.json records an end within a line"):
        read_damaged(path, clock)
    assert (path / SEGMENT).read_bytes() == before


def test_a_recorded_end_without_a_digest_is_corruption(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    _filled(tmp_path / "s", clock, build, 2).close()
    head = json.loads((tmp_path / "s" / "head.json").read_text())
    (tmp_path / "s" / "head.json").write_text(json.dumps(head | {"digest": "no digits"}))
    with pytest.raises(CorruptError, match="a digest that is not hex"):
        read_damaged(tmp_path / "s", clock)


@pytest.mark.usefixtures("small")
def test_recovery_goes_on_from_an_index_that_another_process_brought_further(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """The one who recovers was asleep; the one who died had written, and indexed, a lot."""
    _filled(tmp_path / "s", clock, build, 30).close()
    sleeper = FilesBackend(tmp_path / "s", clock=clock)
    writer = _filled(tmp_path / "s", clock, build, 60)
    writer.catalog.flush()
    assert sleeper.catalog.tail.cursor.position == sleeper.catalog.tail.base.position == 30
    append = build.append("a", behind=writer.heads(["a"])[0])
    sleeper.opened.page_words[directory.BUSY] = 1  # as a writer that was killed leaves it
    accepted(sleeper, build.commit(append))  # the sleeper's first look
    assert sleeper.catalog.tail.base.position >= 90
    assert revisions(sleeper.read("a")) == list(range(1, 92))
    assert list(sleeper.inspect.verify(read_all=True)) == []
    writer.close()
    sleeper.close()


@pytest.mark.parametrize("field", ["position", "digest"])
def test_a_recorded_end_of_another_text_is_corruption(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, field: str
) -> None:
    _filled(tmp_path / "s", clock, build, 3).close()
    head = json.loads((tmp_path / "s" / "head.json").read_text())
    other = head | ({"position": 2} if field == "position" else {"digest": "00" * 32})
    (tmp_path / "s" / "head.json").write_text(json.dumps(other))
    for read_only in (False, True):
        with pytest.raises(CorruptError, match=r"head\.json"):
            read_damaged(tmp_path / "s", clock, read_only=read_only)


@pytest.mark.parametrize("field", ["position", "digest"])
def test_a_ring_that_follows_another_text_is_corruption(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, field: str
) -> None:
    path = _abandoned(_filled(tmp_path / "s", clock, build, 3), tmp_path / "copy")
    clock.reboot()
    seed = journal.seed_of(json.loads((path / "holdfast.json").read_text())["store"])
    data = bytearray((path / "ring").read_bytes())
    last = journal.find_batches(bytes(data), seed)[-1]
    position = last.position + (field == "position")
    digest = bytes(32) if field == "digest" else last.digest
    wrong = journal.encode_batch(
        seed, last.number, last.offset, last.synced_end, position, digest, last.text
    )
    data[last.ring_offset : last.ring_offset + len(wrong)] = wrong
    (path / "ring").write_bytes(data)
    with pytest.raises(CorruptError, match=f"ring batch {last.number} follows another text"):
        read_damaged(path, clock)
    assert not (path / "torn").exists()


@pytest.mark.parametrize("chunk", [50, 400, 1 << 20])
def test_whole_lines_are_kept_however_little_is_read_at_once(
    tmp_path: Path,
    clock: FakeClock,
    build: RecordBuilder,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
) -> None:
    _filled(tmp_path / "s", clock, build, 5).close()
    path = _bare(tmp_path / "s")
    monkeypatch.setattr(recovery, "CHUNK_BYTES", chunk)
    monkeypatch.setattr("holdfast.backends.files.backend.CHUNK_BYTES", chunk)
    reader = FilesBackend(path, clock=clock, read_only=True)
    assert revisions(reader.read("a")) == [1, 2, 3, 4, 5]
    reader.close()
    assert _count(path, clock) == 5


def test_a_torn_piece_of_several_lines_is_cut_whole_and_kept(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of it verifies, so that nothing whole is thrown away with it."""
    _filled(tmp_path / "s", clock, build, 3).close()
    path = _bare(tmp_path / "s")
    torn = b'{"n":4,' + b"#" * 300 + b"}\n" + b"#" * 900 + b"\n{}"
    whole = (path / SEGMENT).read_bytes()
    (path / SEGMENT).write_bytes(whole + torn)
    monkeypatch.setattr(recovery, "CHUNK_BYTES", 500)
    reader = FilesBackend(path, clock=clock, read_only=True)
    assert revisions(reader.read("a")) == [1, 2, 3]
    reader.close()
    assert _count(path, clock) == 3
    assert (path / SEGMENT).read_bytes() == whole
    (kept,) = (one for one in (path / "torn").iterdir() if one.suffix != ".txt")
    assert kept.read_bytes() == torn


def test_a_ring_and_a_page_that_are_no_files_are_refused(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    for name in ("ring", "shared", "head.json"):
        _filled(tmp_path / name, clock, build, 1).close()
        path = _bare(tmp_path / name)
        os.mkfifo(path / name)
        with pytest.raises(UnavailableError, match="a pipe, a socket or a device is in its place"):
            FilesBackend(path, clock=clock)

"""A files store with damaged text: what is proved whole reads, everything else raises (0021)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from holdfast.backends.files import FilesBackend, catalog, opening
from holdfast.backends.files.damaged import DamagedCatalog
from holdfast.backends.files.directory import BUSY
from holdfast.backends.protocol import START, Cleared, Finding, Gap, Mark, Position, linked_row
from holdfast.errors import CorruptError, FilesTakenError, UnavailableError, UsageError
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import accepted, revisions, write

SEGMENT = Path("log") / "0000000000000000.jsonl"
NAMES = ("a", "b", "a", "early", "b", "a", "b", "late")
"""The streams of the lines of a small store; the line at 4 is the one that is damaged."""


def _made(path: Path, clock: FakeClock, build: RecordBuilder) -> list[bytes]:
    """Makes a closed store of one line for each name; returns its lines."""
    backend = FilesBackend(path, clock=clock)
    for stream in NAMES:
        write(backend, build, stream)
    backend.close()
    return (path / SEGMENT).read_bytes().splitlines(keepends=True)


def _flip(path: Path, line: int, place: int = 60) -> None:
    lines = (path / SEGMENT).read_bytes().splitlines(keepends=True)
    changed = bytearray(lines[line])
    changed[place] ^= 4
    lines[line] = bytes(changed)
    (path / SEGMENT).write_bytes(b"".join(lines))


def _refused(backend: FilesBackend, stream: str) -> str:
    with pytest.raises(CorruptError) as caught:
        backend.read(stream)
    assert caught.value.stream == stream
    for ask in (
        lambda: backend.heads([stream]),
        lambda: backend.find(stream),
        lambda: backend.find(stream, key="k"),
    ):
        with pytest.raises(CorruptError):
            ask()
    return caught.value.message


@pytest.mark.parametrize("read_only", [True, False])
def test_guarantee_7_what_goes_on_after_the_damage_reads_and_the_rest_raises(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, read_only: bool
) -> None:
    lines = _made(tmp_path / "s", clock, build)
    _flip(tmp_path / "s", 4)
    before = (tmp_path / "s" / SEGMENT).read_bytes()
    backend = FilesBackend(tmp_path / "s", clock=clock, read_only=read_only)
    assert revisions(backend.read("a")) == [1, 2, 3]
    rows = backend.read_linked("a", after=0, until=None, limit=None)
    assert rows == list(map(linked_row, backend.read("a")))
    payloads = backend.read_payloads("a", after=0, until=3)
    assert payloads == [(one.type, one.payload, one.subject) for one in backend.read("a")]
    assert revisions(backend.read("late")) == [1]
    assert backend.find("a", key="k") == []
    assert backend.find("a") == []
    assert "has lost events" in _refused(backend, "b")
    assert "may have lost events" in _refused(backend, "early")
    assert "may have lost events" in _refused(backend, "never seen")
    where = f"log/{SEGMENT.name} byte {len(b''.join(lines[:4]))}"
    [damage] = [one for one in backend.inspect.verify(read_all=True) if not one.harmless]
    assert damage.where == where
    assert damage.streams == ("b", "early")
    assert "holdfast salvage" in damage.remedy
    [report] = backend.inspect.describe()["reports"]
    assert report.startswith(f"damaged at {where}: its checksum does not match; commit 5 is lost")
    backend.close()
    assert (tmp_path / "s" / SEGMENT).read_bytes() == before


def test_what_is_asked_of_all_streams_raises_at_the_damage(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    _made(tmp_path / "s", clock, build)
    _flip(tmp_path / "s", 4)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    with pytest.raises(CorruptError, match="there may be more"):
        backend.streams()
    with pytest.raises(CorruptError, match="marks cannot be listed"):
        backend.marks.list("i")
    assert [one.stream for one in backend.read_all()] == list(NAMES[:4])
    assert [one.stream for one in backend.read_all(after=Position(2))] == list(NAMES[2:4])
    with pytest.raises(CorruptError, match="events after position 4 cannot be read"):
        backend.read_all(after=Position(4))
    assert [one.stream for one in backend.read_all(after=Position(5))] == list(NAMES[5:])
    assert backend.read_all(after=Position(8)) == []
    assert backend.wait(START, timeout_s=0) == 8
    backend.close()


def test_a_damaged_store_refuses_every_write_and_says_the_remedy(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    _made(tmp_path / "s", clock, build)
    _flip(tmp_path / "s", 4)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    append = build.append("a", behind=backend.heads(["a"])[0])
    for attempt in (
        lambda: backend.commit([build.commit(append)]),
        lambda: backend.leases.acquire("l", "w", ttl_s=1),
        lambda: backend.objects.put("blob", "ab", b""),
        lambda: backend.objects.delete("blob", "ab"),
        lambda: backend.marks.claim("i", "w", n=1, ttl_s=1),
    ):
        with pytest.raises(CorruptError, match="nothing can be written") as caught:
            attempt()
        assert "holdfast salvage" in (caught.value.hint or "")
    assert backend.leases.list() == []
    assert backend.objects.get("blob", "ab") is None
    backend.close()
    backend.close()
    with pytest.raises(UsageError):
        backend.read("a")


def test_two_places_of_damage_are_both_named_and_the_last_one_counts(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    _made(tmp_path / "s", clock, build)
    _flip(tmp_path / "s", 1)
    _flip(tmp_path / "s", 6)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    assert revisions(backend.read("late")) == [1]
    for stream in ("a", "b", "early"):
        _refused(backend, stream)
    found = [one for one in backend.inspect.verify(read_all=False) if not one.harmless]
    assert [one.streams for one in found] == [("b",), ("a", "b", "early")]
    with pytest.raises(CorruptError):
        backend.read_all(after=Position(1))
    assert len(backend.read_all(after=Position(2))) == 4
    backend.close()


@pytest.mark.parametrize("damage", ["rubbish", "a line twice"])
def test_damage_that_takes_no_commit_puts_no_stream_in_doubt(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, damage: str
) -> None:
    lines = _made(tmp_path / "s", clock, build)
    lines.insert(5, b"#" * 40 + b"\n" if damage == "rubbish" else lines[0])
    (tmp_path / "s" / SEGMENT).write_bytes(b"".join(lines))
    _end_at(tmp_path / "s", len(b"".join(lines)))
    backend = FilesBackend(tmp_path / "s", clock=clock)
    assert revisions(backend.read("a")) == [1, 2, 3]
    assert backend.streams() == ["a", "b", "early", "late"]
    assert backend.heads(["never seen"]) == [None]
    assert backend.marks.list("i") == []
    assert [one.stream for one in backend.read_all()] == list(NAMES[:5])
    assert [one.stream for one in backend.read_all(after=Position(5))] == list(NAMES[5:])
    [found] = [one for one in backend.inspect.verify(read_all=False) if not one.harmless]
    assert "no commit is lost here" in found.problem
    with pytest.raises(CorruptError, match="nothing can be written"):
        backend.commit([])
    backend.close()


def _end_at(path: Path, end: int) -> None:
    head = json.loads((path / "head.json").read_text())
    (path / "head.json").write_text(json.dumps(head | {"end": end}))


def test_lines_that_are_gone_whole_are_lost_commits(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    lines = _made(tmp_path / "s", clock, build)
    del lines[3:5]
    (tmp_path / "s" / SEGMENT).write_bytes(b"".join(lines))
    backend = FilesBackend(tmp_path / "s", clock=clock)
    assert revisions(backend.read("a")) == [1, 2, 3]
    assert "commits 4 to 5 are lost" in _refused(backend, "early")
    backend.close()


@pytest.mark.parametrize("recorded", [True, False])
def test_an_end_that_is_gone_puts_every_stream_in_doubt(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, recorded: bool
) -> None:
    if recorded:
        lines = _made(tmp_path / "s", clock, build)
    else:  # the ring says how far it went
        backend = FilesBackend(tmp_path / "one", clock=clock)
        for stream in NAMES:
            write(backend, build, stream)
        os.rename(tmp_path / "one", tmp_path / "s")
        lines = (tmp_path / "s" / SEGMENT).read_bytes().splitlines(keepends=True)
        backend.catalog.reports.clear()
        (tmp_path / "s" / "shared").unlink()
    (tmp_path / "s" / SEGMENT).write_bytes(b"".join(lines[:-2]))
    reader = FilesBackend(tmp_path / "s", clock=clock, read_only=True)
    if recorded:
        for stream in ("a", "late", "never seen"):
            assert "commits 7 to 8 are lost" in _refused(reader, stream)
        [damage, *_] = reader.inspect.verify(read_all=True)
        assert damage.streams == ("a", "b", "early")
        with pytest.raises(CorruptError):
            reader.read_all(after=Position(6))
    reader.close()


def test_what_only_the_ring_records_is_missed_too(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """Damage within, and an end that only the ring knows: nobody can say how much is lost."""
    _made(tmp_path / "s", clock, build)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    for _ in range(2):
        write(backend, build, "a")
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    backend.close()
    clock.reboot()
    _flip(tmp_path / "copy", 4)
    segment = tmp_path / "copy" / SEGMENT
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:-1]))
    reader = FilesBackend(tmp_path / "copy", clock=clock, read_only=True)
    assert "commits 10 and later are lost" in _refused(reader, "a")
    found = list(reader.inspect.remains())
    last = [one for one in found if isinstance(one, list)][-1]
    assert (last[0].stream, last[0].revision) == ("a", 5), "the ring still has it"
    reader.close()


def test_the_ring_gives_back_a_line_that_the_text_has_lost(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    for stream in NAMES:
        write(backend, build, stream)
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    backend.close()
    clock.reboot()
    _flip(tmp_path / "copy", 4)
    _flip(tmp_path / "copy", 7)
    reader = FilesBackend(tmp_path / "copy", clock=clock, read_only=True)
    found = list(reader.inspect.remains())
    assert [one[0].stream for one in found if isinstance(one, list)] == list(NAMES)
    damage = [one for one in found if isinstance(one, Finding)]
    assert all(one.harmless and "the ring still holds 1" in one.problem for one in damage)
    reader.close()
    # Whoever may write puts it back.
    backend = FilesBackend(tmp_path / "copy", clock=clock)
    assert revisions(backend.read("b")) == [1, 2, 3]
    backend.close()


def test_remains_of_a_damaged_text_are_its_lines_its_gaps_and_its_marks(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    accepted(backend, build.commit(build.append("a"), marks=(Mark("i", "1"), Mark("i", "2"))))
    append = build.append("a", behind=backend.heads(["a"])[0])
    accepted(backend, build.commit(append, marks=(Cleared("i", "1"),)))
    for stream in NAMES:
        write(backend, build, stream)
    backend.close()
    _flip(tmp_path / "s", 6)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    found = list(backend.inspect.remains())
    kinds = [type(one) for one in found]
    assert kinds == [list] * 6 + [Gap] + [list] * 3 + [Mark]
    assert found[-1] == Mark("i", "2")
    backend.close()


@pytest.mark.parametrize("name", ["head.json", "holdfast.json"])
def test_a_damaged_record_of_the_store_proves_nothing_and_remains_say_so(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, name: str
) -> None:
    _made(tmp_path / "s", clock, build)
    (tmp_path / "s" / name).write_bytes(b"{")
    backend = FilesBackend(tmp_path / "s", clock=clock)
    for stream in ("a", "late", "never seen"):
        assert name in _refused(backend, stream)
    with pytest.raises(CorruptError, match=name):
        backend.streams()
    *commits, gap = backend.inspect.remains()
    assert len(commits) == len(NAMES)
    assert isinstance(gap, Gap)
    assert gap.finding.where == name
    [found] = [one for one in backend.inspect.verify(read_all=True) if not one.harmless]
    assert found.streams == ("a", "b", "early", "late")
    assert "the end of no stream is proved" in found.problem
    backend.close()


def test_a_line_that_takes_a_stream_up_elsewhere_proves_nothing(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """Whole lines in order, but of another history: a revision is there twice."""
    _made(tmp_path / "s", clock, build)
    other = _made(tmp_path / "other", clock, RecordBuilder())
    (tmp_path / "s" / SEGMENT).write_bytes(b"".join([*other[:5], _numbered(other[0], 6)]))
    (tmp_path / "s" / "head.json").unlink()
    backend = FilesBackend(tmp_path / "s", clock=clock)
    # Nobody recorded an end. A whole line is not a torn one, and is not cut, if it is the last.
    assert "it holds 'a'@1: expected 3" in _refused(backend, "a")
    backend.close()
    lines = [*other[:5], _numbered(other[0], 6), _numbered(other[5], 7)]
    (tmp_path / "other" / SEGMENT).write_bytes(b"".join(lines))
    (tmp_path / "other" / "head.json").unlink()
    backend = FilesBackend(tmp_path / "other", clock=clock)
    assert "it holds 'a'@1: expected 3" in _refused(backend, "b")
    backend.close()


@pytest.mark.parametrize("n", [1 << 21, 1 << 40, 10**19])
def test_a_line_whose_position_cannot_be_is_damage_and_fills_no_memory(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, n: int
) -> None:
    lines = _made(tmp_path / "s", clock, build)
    (tmp_path / "s" / SEGMENT).write_bytes(b"".join([*lines[:4], _numbered(lines[4], n)]))
    (tmp_path / "s" / "head.json").unlink()
    backend = FilesBackend(tmp_path / "s", clock=clock)
    assert f"its position is {n}: expected 5" in _refused(backend, "b")
    backend.close()


def _numbered(line: bytes, n: int) -> bytes:
    """Returns a line as one with another position, and its checksum right."""
    body = line[: line.index(b',"crc"')]
    body = b'{"n":%d' % n + body[body.index(b",") :]
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


@pytest.mark.usefixtures("small")
def test_damage_after_the_index_leaves_what_the_index_knows(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    backend = FilesBackend(path, clock=clock)
    for number in range(40):
        write(backend, build, f"old {number}")
    backend.catalog.flush()  # type: ignore[union-attr]
    backend.close()
    backend = FilesBackend(path, clock=clock)
    monkeypatch.setattr(catalog, "FLUSH_BYTES", 1 << 30)
    monkeypatch.setattr(opening, "WORTH_INDEXING_BYTES", 1 << 30)
    for stream in NAMES:
        write(backend, build, stream)
    backend.close()
    newest = max((path / "log").iterdir())
    lines = newest.read_bytes().splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if b'["early"' in line) + 1
    changed = bytearray(lines[place])
    changed[60] ^= 4
    lines[place] = bytes(changed)
    newest.write_bytes(b"".join(lines))
    backend = FilesBackend(path, clock=clock)
    assert backend.catalog.tail.base.position == 40
    assert revisions(backend.read("a")) == [1, 2, 3]
    assert "may have lost" in _refused(backend, "old 3")
    assert (path / "index.sqlite").exists()
    backend.close()


@pytest.mark.usefixtures("small")
def test_long_damaged_text_is_packed_as_it_is_read(
    tmp_path: Path, clock: FakeClock, trial: dict[str, Any]
) -> None:
    """Memory does not grow with the length of the text: an index of our own takes it in."""
    path = tmp_path / "s"
    backend = FilesBackend(path, clock=clock)
    trial["Filler"]().fill(backend)
    whole = backend.read("a")
    total = int(backend.wait(START, timeout_s=0))
    backend.close()
    (path / "index.sqlite").unlink()
    first = min((path / "log").iterdir())
    text = bytearray(first.read_bytes())
    text[40] ^= 4
    first.write_bytes(text)
    backend = FilesBackend(path, clock=clock)
    assert backend.catalog.tail.base.position > 0, "nothing was packed"
    with pytest.raises(CorruptError):
        backend.read_all()
    records, after = [], Position(1)
    while found := backend.read_all(after=after, limit=7):
        records += [one for one in found if one.stream == "a"]
        after = found[-1].position
    assert after == total
    assert len(records) >= len(whole) - 1
    backend.close()


def test_what_a_living_writer_adds_to_a_damaged_store_is_seen(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """One process had read the text before it was damaged, and goes on; another comes later."""
    path = tmp_path / "s"
    _made(path, clock, build)
    writer = FilesBackend(path, clock=clock)
    _flip(path, 4)
    reader = FilesBackend(path, clock=clock)
    _refused(reader, "early")
    write(writer, build, "early")
    assert revisions(reader.read("early")) == [1, 2], "it goes on after the damage: it is whole"
    write(writer, build, "begun now")
    assert revisions(reader.read("begun now")) == [1]
    assert not writer.opened.page_words[BUSY]
    reader.close()
    writer.close()


def test_a_handle_on_a_damaged_store_is_dead_in_a_forked_child(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    _made(tmp_path / "s", clock, build)
    _flip(tmp_path / "s", 4)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    child = os.fork()
    if child == 0:
        try:
            backend.read("a")
        except UsageError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert revisions(backend.read("a")) == [1, 2, 3]
    backend.close()


def test_two_handles_can_have_a_damaged_store_open(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    _made(tmp_path / "s", clock, build)
    _flip(tmp_path / "s", 4)
    one = FilesBackend(tmp_path / "s", clock=clock)
    other = FilesBackend(tmp_path / "s", clock=clock)
    assert one.read("a") == other.read("a")
    one.close()
    assert revisions(other.read("a")) == [1, 2, 3]
    other.close()


def test_a_store_that_has_lost_its_only_line_names_nothing(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    write(backend, build, "a")
    backend.close()
    _flip(tmp_path / "s", 0)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    _refused(backend, "a")
    [found] = [one for one in backend.inspect.verify(read_all=True) if not one.harmless]
    assert "no stream that is known" in found.problem
    [gap] = backend.inspect.remains()
    assert isinstance(gap, Gap)
    backend.close()


def test_remains_of_a_text_that_was_cut_end_in_a_gap(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    lines = _made(tmp_path / "s", clock, build)
    (tmp_path / "s" / SEGMENT).write_bytes(b"".join(lines[:5]))
    backend = FilesBackend(tmp_path / "s", clock=clock)
    *commits, gap = backend.inspect.remains()
    assert [type(one) for one in commits] == [list] * 5
    assert isinstance(gap, Gap)
    assert "commits 6 to 8 are lost" in gap.finding.problem
    backend.close()


def test_many_streams_in_doubt_are_shown_by_a_few_names(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    for number in range(9):
        write(backend, build, f"s{number}")
    backend.close()
    _flip(tmp_path / "s", 8)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    [found] = [one for one in backend.inspect.verify(read_all=True) if not one.harmless]
    assert found.streams == tuple(f"s{number}" for number in range(8))
    assert '"s4" and 3 more' in found.problem
    backend.close()


def test_a_disk_that_fails_while_damage_is_looked_at_is_said_to_fail(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _made(tmp_path / "s", clock, build)
    _flip(tmp_path / "s", 4)

    def fails(self: object, end: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(DamagedCatalog, "read_on", fails)
    with pytest.raises(UnavailableError, match="input/output error"):
        FilesBackend(tmp_path / "s", clock=clock)


def test_a_child_gives_up_its_share_of_a_damaged_store(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    _made(tmp_path / "s", clock, build)
    _flip(tmp_path / "s", 4)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    backend.after_fork()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(backend.directory.fd)
    backend.close()


def test_verify_goes_on_after_a_blob_that_is_too_large_to_be_one(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    write(backend, build, "a")
    for name in ("0" * 64, "1" * 64):
        backend.objects.put("blob", name, b"something else")
    os.truncate(tmp_path / "s" / "objects" / "blob" / "00" / ("0" * 64), 1 << 40)
    found = [one.where for one in backend.inspect.verify(read_all=True)]
    assert found == ["objects/blob/00/" + "0" * 64, "objects/blob/11/" + "1" * 64]
    backend.close()


def test_verify_names_a_revision_that_is_there_twice(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """Whole lines with right positions, put in under a living handle."""
    lines = _made(tmp_path / "s", clock, build)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    changed = [*lines[:7], _numbered(lines[0], 8)]
    (tmp_path / "s" / SEGMENT).write_bytes(b"".join(changed).ljust(len(b"".join(lines)), b"\n"))
    found = [one.problem for one in backend.inspect.verify(read_all=True)]
    assert any("it holds 'a'@1: expected 4" in problem for problem in found)
    with pytest.raises(FilesTakenError):
        backend.close()  # its last line is not there any more


def test_guarantee_6_a_flipped_byte_is_found_by_a_read_of_payloads(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    lines = _made(tmp_path / "s", clock, build)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    segment = tmp_path / "s" / SEGMENT
    whole = segment.read_bytes()
    for place in range(len(lines[0])):
        segment.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(CorruptError):
            backend.read_payloads("a", after=0, until=3)
    segment.write_bytes(whole)
    assert len(backend.read_payloads("a", after=0, until=3)) == 3
    backend.close()

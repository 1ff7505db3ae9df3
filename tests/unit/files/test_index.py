"""The index is disposable: whatever becomes of it, the answers are those of the text."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends import checked_pages
from holdfast.backends.files import FilesBackend, catalog, index
from holdfast.backends.protocol import START, Mark, MarkQuery
from holdfast.clock import SystemClock
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import accepted, head_of, revisions, write

pytestmark = pytest.mark.usefixtures("small")


def _filled(path: Path, clock: FakeClock, seed: int = 1) -> FilesBackend:
    """Returns a store with several streams, most of it known to the index."""
    chance, build = random.Random(seed), RecordBuilder()
    backend = FilesBackend(path, clock=clock)
    for number in range(400):
        stream = chance.choice(["a", "b", "c/é", f"s{number % 40:02}"])
        payloads = [b'"%d"' % number] * chance.choice((1, 1, 1, 3, 300 if number % 97 == 0 else 2))
        head = backend.heads([stream])[0]
        append = build.append(
            stream,
            *payloads,
            behind=head,
            key=f"k{number}" if number % 3 == 0 else None,
            checkpoint=f"c{number % 7}" if number % 5 == 0 else None,
        )
        marks = [Mark("i", f"m{number % 11}", number, number % 4)] if number % 2 else []
        accepted(backend, build.commit(append, marks=marks))
    return backend


def _answers(backend: FilesBackend) -> list[Any]:
    streams = backend.streams()
    return [
        streams,
        backend.heads(streams),
        [backend.read(stream) for stream in streams],
        [backend.read(stream, after=2, limit=3) for stream in streams],
        [backend.read(stream, after=250, until=260) for stream in streams],
        [backend.find(stream) for stream in streams],
        [backend.find(stream, checkpoint="c5", limit=2) for stream in streams],
        [backend.find(stream, key="k300") for stream in streams],
        [backend.find(stream, key="k3") for stream in streams],
        backend.streams(prefix="s", after="s07", limit=5),
        backend.streams(prefix="c/"),
        backend.marks.list(),
        backend.marks.list("i", due_before=395, limit=4),
        backend.read_all(limit=10**6),
        [r.revision for r in backend.read_all(after=backend.read_all()[150].position, limit=7)],
    ]


def test_answers_are_the_same_with_an_index_without_one_and_after_a_rebuild(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = _filled(tmp_path / "s", clock)
    answers = _answers(backend)
    backend.close()
    path = tmp_path / "s" / "index.sqlite"
    assert path.exists()
    with_index = FilesBackend(tmp_path / "s", clock=clock)
    assert with_index.catalog.tail.base.position > 300
    assert _answers(with_index) == answers
    assert list(with_index.inspect.verify(read_all=True)) == []
    with_index.close()
    path.unlink()
    monkeypatch.setattr(catalog, "FLUSH_BYTES", 1 << 30)
    without = FilesBackend(tmp_path / "s", clock=clock)
    assert without.catalog.tail.base.position == 0
    assert _answers(without) == answers
    without.close()
    read_only = FilesBackend(tmp_path / "s", clock=clock, read_only=True)
    assert _answers(read_only) == answers
    read_only.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_index_is_noticed_and_built_anew(
    tmp_path: Path, clock: FakeClock, seed: int
) -> None:
    backend = _filled(tmp_path / "s", clock)
    answers = _answers(backend)
    backend.close()
    path = tmp_path / "s" / "index.sqlite"
    chance, data = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(3):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    findings = list(backend.inspect.verify(read_all=True))
    assert all(found.harmless for found in findings)
    assert _answers(backend) == answers
    write(backend, RecordBuilder(), "new")
    backend.close()
    backend = FilesBackend(tmp_path / "s", clock=clock)
    assert revisions(backend.read("new")) == [1]
    backend.close()


@pytest.mark.parametrize("content", [b"", b"not a database", bytes(9000)])
def test_a_file_that_is_no_index_is_replaced(
    tmp_path: Path, clock: FakeClock, content: bytes
) -> None:
    backend = _filled(tmp_path / "s", clock)
    answers = _answers(backend)
    backend.close()
    (tmp_path / "s" / "index.sqlite").write_bytes(content)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    assert _answers(backend) == answers
    backend.close()


def test_an_index_of_another_store_is_not_believed(tmp_path: Path, clock: FakeClock) -> None:
    one, two = _filled(tmp_path / "one", clock, 1), _filled(tmp_path / "two", clock, 2)
    answers = _answers(one)
    one.close()
    two.close()
    os.replace(tmp_path / "two" / "index.sqlite", tmp_path / "one" / "index.sqlite")
    one = FilesBackend(tmp_path / "one", clock=clock)
    assert _answers(one) == answers
    assert "another store" in one.inspect.describe()["reports"][0]
    one.close()


def test_an_index_ahead_of_the_text_is_not_believed(tmp_path: Path, clock: FakeClock) -> None:
    backend = _filled(tmp_path / "s", clock)
    [segment, *_] = sorted((tmp_path / "s" / "log").iterdir())
    first_end = segment.stat().st_size
    backend.close()
    for later in sorted((tmp_path / "s" / "log").iterdir())[1:]:
        later.unlink()
    (tmp_path / "s" / "head.json").unlink()
    backend = FilesBackend(tmp_path / "s", clock=clock)
    assert backend.catalog.tail.cursor.end == first_end
    assert "of which" in backend.inspect.describe()["reports"][0]
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()


def test_two_processes_worth_of_handles_share_one_index(tmp_path: Path, clock: FakeClock) -> None:
    one = FilesBackend(tmp_path / "s", clock=clock)
    two = FilesBackend(tmp_path / "s", clock=clock)
    build = RecordBuilder()
    for number in range(200):
        writer, reader = (one, two) if number % 3 else (two, one)
        write(writer, build, f"s{number % 7}", b'"%b"' % (b"x" * 200), key=f"k{number}")
        if number % 10 == 0:
            assert head_of(reader, "s0") == head_of(writer, "s0")
            assert reader.find(f"s{number % 7}", key=f"k{number}")
    assert one.catalog.tail.base.position > 0
    assert two.catalog.tail.base.position > 0
    assert _answers(one) == _answers(two)
    assert list(two.inspect.verify(read_all=True)) == []
    two.close()
    assert one.read_all(after=START, limit=10**6)
    one.close()


def test_a_handle_that_slept_takes_the_index_for_what_it_missed(
    tmp_path: Path, clock: FakeClock
) -> None:
    sleeper = FilesBackend(tmp_path / "s", clock=clock)
    build = RecordBuilder()
    write(sleeper, build, "a")
    other = FilesBackend(tmp_path / "s", clock=clock)
    for _ in range(100):
        write(other, build, "a", b'"%b"' % (b"x" * 400))
    assert head_of(sleeper, "a") == head_of(other, "a")
    assert sleeper.catalog.tail.base.position > 50
    assert revisions(sleeper.read("a")) == list(range(1, 102))
    sleeper.close()
    other.close()


def test_an_index_that_cannot_be_written_does_not_stop_commits(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)

    def refuse(*_: Any, **__: Any) -> None:
        raise index.StaleIndex("no room")

    monkeypatch.setattr(index.Index, "_update", refuse)
    build = RecordBuilder()
    for _ in range(40):
        write(backend, build, "a", b'"%b"' % (b"x" * 400))
    monkeypatch.undo()
    assert len(backend.read("a")) == 40
    assert any("no room" in report for report in backend.inspect.describe()["reports"])
    backend.close()
    backend = FilesBackend(tmp_path / "s", clock=clock)
    assert len(backend.read("a")) == 40
    backend.close()


def test_streams_are_found_by_prefix_in_code_point_order(tmp_path: Path, clock: FakeClock) -> None:
    names = ["a", "a\ud7ff", "a\ue000", "a\U0010ffff", "a\U0010ffffb", "b", "é", "\U0010ffff"]
    backend = FilesBackend(tmp_path / "s", clock=clock)
    for name in names:
        write(backend, RecordBuilder(), name)
    backend.catalog.flush()
    assert backend.catalog.tail.spans == {}
    assert backend.streams() == sorted(names)
    for prefix in ("a", "a\ud7ff", "a\U0010ffff", "\U0010ffff", "x", "\ud800"):
        assert backend.streams(prefix=prefix) == sorted(n for n in names if n.startswith(prefix))
    backend.close()


def test_other_users_of_sqlite_keep_their_file_system_layer() -> None:
    import apsw

    checked_pages.checking_vfs()
    assert apsw.Connection(":memory:").open_vfs != "cksmvfs"
    assert apsw.vfs_names()[0] != "cksmvfs"


def test_the_whole_of_a_conversation_costs_at_most_1_3_bytes_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 12: 1,000 turns of 900 bytes, everything counted after close."""
    monkeypatch.undo()
    backend = FilesBackend(tmp_path / "s", clock=SystemClock(), durability="none")
    build = RecordBuilder()
    head = None
    for number in range(1000):
        payload = b'{"role":"user","text":"%05d %b"}' % (number, b"x" * 865)
        append = build.append("conversation/c1", payload, behind=head)
        accepted(backend, build.commit(append))
        head = append.records[-1]
    backend.close()
    stored = sum(p.stat().st_size for p in (tmp_path / "s").rglob("*") if p.is_file())
    assert (tmp_path / "s" / "index.sqlite").exists()
    assert stored / (1000 * len(payload)) < 1.3


def test_marks_are_found_in_the_index_as_they_are_in_memory(
    tmp_path: Path, clock: FakeClock
) -> None:
    """Clause 32: by keys, by group, and from any place on, in the index and in what is newer."""
    backend = _filled(tmp_path, clock)
    try:
        build = RecordBuilder()
        more = [Mark("j", f"m{number}", number % 3, number % 2, "g") for number in range(9)]
        accepted(backend, build.commit(marks=more))
        every = backend.marks.list()
        assert backend.catalog.tail.base.position > 0
        for name in ("i", "j", None):
            for keys in (None,) if name is None else (None, ["m1", "m3", "\ud800"]):
                for group in (None, "", "g"):
                    for after in (None, every[2], every[-3], Mark("j", "m1", 1, 1)):
                        query = MarkQuery(name, keys, group, after, limit=4)
                        assert backend.marks.find(query) == query.pick(every), query
    finally:
        backend.close()

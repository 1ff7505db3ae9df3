"""The catalog when its index fails in the middle of something, or says what the text does not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.backends.files import FilesBackend, catalog, index
from holdfast.backends.files.catalog import Tail, split_lines
from holdfast.backends.files.index import Index, LogCursor
from holdfast.backends.files.text import BadLine, decode_line, encode_line
from holdfast.backends.protocol import Mark
from holdfast.errors import CorruptError
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import accepted, revisions, write

pytestmark = pytest.mark.usefixtures("small")
INDEX = "index.sqlite"


def fill(backend: FilesBackend, build: RecordBuilder, count: int, streams: int = 1) -> None:
    begin = backend.catalog.tail.cursor.position
    for number in range(begin, begin + count):
        stream = f"s{number % streams:02}"
        head = backend.heads([stream])[0]
        append = build.append(stream, b'"%0300d"' % number, behind=head, key=f"k{number}")
        accepted(backend, build.commit(append))


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock, build: RecordBuilder) -> Path:
    """A store of 60 commits, all known to its index."""
    backend = FilesBackend(tmp_path / "s", clock=clock)
    fill(backend, build, 60, streams=3)
    backend.close()
    assert (tmp_path / "s" / INDEX).exists()
    return tmp_path / "s"


@pytest.fixture
def unindexed(store: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, with 30 more commits that the index does not know."""
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.backends.files.opening.WORTH_INDEXING_BYTES", 1 << 30)
        patch.setattr(catalog, "FLUSH_BYTES", 1 << 30)
        backend = FilesBackend(store, clock=clock)
        for number in range(30):
            stream = f"s{number % 3:02}"
            head = backend.heads([stream])[0]
            build = RecordBuilder(2_000_000_000_000_000 + number)
            accepted(backend, build.commit(build.append(stream, b"%d" % number, behind=head)))
        backend.close()
    return store


def all_there(backend: FilesBackend, each: int) -> None:
    for stream in ("s00", "s01", "s02"):
        assert revisions(backend.read(stream)) == list(range(1, each + 1))
        assert backend.heads([stream])[0] == backend.heads([stream])[0]
    assert len(backend.read_all(limit=10**6)) == 3 * each


def failing_on_disk(monkeypatch: pytest.MonkeyPatch, name: str, problem: Exception) -> None:
    """Makes one question fail for every index that is a file."""
    real = getattr(Index, name)

    def question(self: Index, *arguments: Any) -> Any:
        if not self.is_private:
            raise problem
        return real(self, *arguments)

    monkeypatch.setattr(Index, name, question)


@pytest.mark.parametrize("read_only", [False, True], ids=["recovery", "read-only"])
def test_an_index_that_fails_while_lines_are_applied_is_done_without(
    unindexed: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    (unindexed / "head.json").unlink()  # nothing is recorded: lines are kept as far as they verify
    failing_on_disk(monkeypatch, "head", apsw.CorruptError("page 7 fails its checksum"))
    backend = FilesBackend(unindexed, clock=clock, read_only=read_only)
    all_there(backend, 30)
    assert "page 7 fails its checksum" in str(backend.inspect.describe()["reports"])
    backend.close()


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
def test_a_file_that_is_no_index_is_removed_by_who_may(
    store: Path, clock: FakeClock, read_only: bool
) -> None:
    (store / INDEX).write_bytes(b"no index" * 1000)
    backend = FilesBackend(store, clock=clock, read_only=read_only)
    all_there(backend, 20)
    backend.close()
    assert ((store / INDEX).read_bytes() == b"no index" * 1000) == read_only


def test_an_index_that_takes_a_line_for_another_is_not_believed(
    store: Path, clock: FakeClock
) -> None:
    wrong = Index(str(store / INDEX), _store_of(store, clock))
    base = wrong.base
    vars_of = wrong._put_cursor  # pyright: ignore[reportPrivateUsage]
    vars_of(LogCursor(base.end, base.position + 1, base.digest), wrong.last_start)
    wrong.close()
    backend = FilesBackend(store, clock=clock)
    assert "takes line 60 for line 61" in str(backend.inspect.describe()["reports"])
    all_there(backend, 20)
    backend.close()


def _store_of(path: Path, clock: FakeClock) -> str:
    backend = FilesBackend(path, clock=clock, read_only=True)
    store: str = backend.inspect.describe()["store"]
    backend.close()
    return store


def test_a_handle_whose_index_went_ahead_of_it_begins_after_it(
    store: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """Between two looks another process may commit and bring the index up to date."""
    mine, other = (FilesBackend(store, clock=clock) for _ in range(2))
    known = mine.catalog.tail.cursor.position
    fill(other, build, 60)
    other.catalog.flush()
    found = mine.catalog.find_key("s00", "k61")  # without the look that every call begins with
    assert found is not None
    assert mine.catalog.tail.base.position == 120 > known
    assert mine.heads(["s00"]) == other.heads(["s00"])
    assert revisions(mine.read("s00")) == list(range(1, 81))
    mine.close()
    other.close()


def test_a_handle_that_slept_lets_go_of_what_the_index_has_learnt(
    store: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    mine, other = (FilesBackend(store, clock=clock) for _ in range(2))
    fill(other, build, 60)
    other.catalog.flush()
    assert mine.heads(["s00"]) == other.heads(["s00"])
    assert mine.catalog.tail.base.position == 120
    assert mine.catalog.tail.spans == {}
    mine.close()
    other.close()


def test_an_index_whose_last_line_is_not_in_the_text_is_not_believed(
    store: Path, clock: FakeClock
) -> None:
    (store / "head.json").unlink()
    segment = max((store / "log").iterdir())
    text = bytearray(segment.read_bytes())
    text[-100] ^= 1
    segment.write_bytes(text)
    backend = FilesBackend(store, clock=clock)
    reports = str(backend.inspect.describe()["reports"])
    assert "the last line that it knows is not in the text" in reports
    assert "of an unacknowledged commit" in reports
    assert len(backend.read_all(limit=1000)) == 59
    backend.close()


def test_a_pipe_in_the_place_of_the_index_is_not_waited_at(store: Path, clock: FakeClock) -> None:
    (store / INDEX).unlink()
    os.mkfifo(store / INDEX)
    backend = FilesBackend(store, clock=clock)
    all_there(backend, 20)
    assert "it is not a file" in str(backend.inspect.describe()["reports"])
    backend.close()


def test_an_index_that_is_deleted_while_it_is_opened_is_none(
    store: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader has no lock: whoever writes may delete the index between its look and its use."""
    backend = FilesBackend(store, clock=clock, read_only=True)
    real = index._connect
    kept = (store / INDEX).read_bytes()

    def vanishing(path: str | None, *, read_only: bool) -> Any:
        (store / INDEX).unlink(missing_ok=True)
        return real(path, read_only=read_only)

    monkeypatch.setattr(index, "_connect", vanishing)
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()
    (store / INDEX).write_bytes(kept)
    backend = FilesBackend(store, clock=clock, read_only=True)
    all_there(backend, 20)
    assert backend.inspect.describe()["reports"] == []
    backend.close()


def test_an_index_that_cannot_be_opened_is_reported(
    store: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(path: str | None, *, read_only: bool) -> Any:
        raise apsw.CantOpenError("unable to open database file")

    with monkeypatch.context() as patch:
        patch.setattr(index, "_connect", refusing)
        backend = FilesBackend(store, clock=clock, read_only=True)
    assert "unable to open" in str(backend.inspect.describe()["reports"])
    all_there(backend, 20)
    backend.close()


@pytest.mark.parametrize("has_index", [False, True], ids=["without", "with"])
def test_a_reader_keeps_what_it_need_not_in_an_index_of_its_own(
    unindexed: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, has_index: bool
) -> None:
    """The memory of a handle that may not write is bounded too; it writes nothing for it."""
    monkeypatch.setattr(catalog, "FLUSH_BYTES", 3000)
    if not has_index:
        (unindexed / INDEX).unlink()
    before = {path.name: path.stat().st_mtime_ns for path in unindexed.iterdir()}
    backend = FilesBackend(unindexed, clock=clock, read_only=True)
    all_there(backend, 30)
    base = backend.catalog.tail.base.position
    assert base == 60 if has_index else base > 60
    backend.close()
    assert {path.name: path.stat().st_mtime_ns for path in unindexed.iterdir()} == before


@pytest.mark.parametrize("way", ["deleted", "replaced", "failed"])
def test_a_writer_whose_index_is_gone_makes_a_new_one(
    store: Path,
    clock: FakeClock,
    build: RecordBuilder,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    backend = FilesBackend(store, clock=clock)
    backend.read("s00")
    if way == "failed":
        with monkeypatch.context() as patch:
            failing_on_disk(patch, "spans", apsw.IOError("disk I/O error"))
            backend.read("s01")
        assert backend.catalog.tail.base.position == 60
    (store / INDEX).unlink()
    if way == "replaced":
        (store / INDEX).write_bytes(b"")
    fill(backend, build, 60, streams=3)
    backend.catalog.flush()
    all_there(backend, 40)
    backend.close()
    again = FilesBackend(store, clock=clock)
    assert again.catalog.tail.base.position >= 110
    all_there(again, 40)
    assert list(again.inspect.verify(read_all=True)) == []
    again.close()


def test_what_a_failed_update_dropped_is_read_again(
    store: Path, clock: FakeClock, build: RecordBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FilesBackend(store, clock=clock)
    with monkeypatch.context() as patch:
        failing_on_disk(patch, "update", apsw.FullError("database or disk is full"))
        fill(backend, build, 60, streams=3)
        all_there(backend, 40)
    assert "database or disk is full" in str(backend.inspect.describe()["reports"])
    backend.close()


def test_heads_in_memory_are_bounded(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "HEADS_MAX", 4)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    fill(backend, build, 120, streams=40)
    backend.catalog.flush()
    assert len(backend.catalog.tail.heads) <= 4
    for stream in backend.streams():
        (head,) = backend.heads([stream])
        assert head is not None
        assert head.revision == 3
        assert len(backend.catalog.tail.heads) <= 2 * 4 + 1
    backend.close()


def test_keys_with_one_digest_are_told_apart(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_key_digest", lambda key: 7)
    backend = FilesBackend(tmp_path / "s", clock=clock)
    fill(backend, build, 20)
    backend.catalog.flush()
    assert backend.catalog.tail.keys == {}
    found = [backend.find("s00", key=f"k{number}") for number in range(20)]
    assert [[one.revision for one in some] for some in found] == [[n] for n in range(1, 21)]
    assert backend.find("s00", key="k20") == []
    backend.close()


def test_a_line_longer_than_what_is_read_at_once_is_read_whole(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    long = b'"%b"' % (b"x" * 300_000)
    accepted(backend, build.commit(build.append("long", long)))
    for stream in ("one", "two", "three"):
        write(backend, build, stream)
    (first,) = backend.read_all(limit=1)
    assert first.payload == long
    assert len(backend.read_all()) == 4
    backend.close()


def test_spans_that_the_index_lacks_are_corruption_and_not_an_absence(
    store: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FilesBackend(store, clock=clock)
    real = Index.spans
    for lie in (lambda places: places[1:], lambda places: places[:-1], lambda places: []):
        monkeypatch.setattr(Index, "spans", lambda self, *a, lie=lie: lie(real(self, *a)))
        with pytest.raises(CorruptError, match="is not where the index says"):
            backend.read("s00", after=3, until=9)
    monkeypatch.undo()
    assert revisions(backend.read("s00", after=3, until=9)) == [4, 5, 6, 7, 8, 9]
    backend.close()


def test_a_line_damaged_under_an_open_store_is_named(store: Path, clock: FakeClock) -> None:
    backend = FilesBackend(store, clock=clock)
    segment = min((store / "log").iterdir())
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptError, match="checksum does not match") as caught:
        backend.read("s00")
    assert caught.value.where == f"log/{segment.name} byte 0"
    backend.close()


def test_a_span_of_another_stream_is_corruption(
    store: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FilesBackend(store, clock=clock)
    real = Index.spans
    monkeypatch.setattr(Index, "spans", lambda self, stream, *rest: real(self, "s01", *rest))
    with pytest.raises(CorruptError, match="holds nothing of 's00'"):
        backend.read("s00")
    backend.close()


def test_a_position_where_the_index_says_another_is_corruption(
    store: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FilesBackend(store, clock=clock)
    monkeypatch.setattr(Index, "start_near", lambda self, position: (5, 0))
    with pytest.raises(CorruptError, match="its position is 1: expected 6"):
        backend.read_all()
    backend.close()


def test_an_index_knows_nothing_of_a_stream_that_it_never_saw() -> None:
    empty = Index(None, "store")
    assert empty.spans("nobody", 0, 9) == []
    assert empty.head("nobody") is None
    assert empty.streams("", "", 10) == []
    assert not empty.is_replaced()
    empty.close()


def test_a_reading_that_did_not_begin_is_not_ended() -> None:
    asked: list[str] = []

    class Locked:
        in_transaction = False

        def execute(self, sql: str) -> None:
            asked.append(sql)
            raise apsw.BusyError("database is locked")

    empty = Index(None, "store")
    real, vars(empty)["_db"] = vars(empty)["_db"], Locked()
    with pytest.raises(apsw.BusyError), empty.reading():
        raise AssertionError("there is no state to look at")
    assert asked == ["BEGIN"]
    vars(empty)["_db"] = real
    empty.close()


def test_a_line_of_many_events_is_found_from_the_middle_of_it(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """Its place is in the block of its first event, which may be far before the one asked for."""
    backend = FilesBackend(tmp_path / "s", clock=clock)
    accepted(backend, build.commit(build.append("a", *[b"%d" % n for n in range(700)])))
    head = backend.heads(["a"])[0]
    accepted(backend, build.commit(build.append("a", b'"last"', behind=head)))
    backend.catalog.flush()
    assert backend.catalog.tail.spans == {}
    assert revisions(backend.read("a", after=599, until=602)) == [600, 601, 602]
    assert revisions(backend.read("a", after=699)) == [700, 701]
    backend.close()


# --- lines and the tail --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a\n", b"b\n"]),
        (b"a\nb", [b"a\n", b"b"]),
        (b"a\rb\nc\r\n", [b"a\rb\n", b"c\r\n"]),
        (b"a\r\nb\rc", [b"a\r\n", b"b\rc"]),
    ],
)
def test_only_a_line_feed_ends_a_line(text: bytes, lines: list[bytes]) -> None:
    assert split_lines(text) == lines


def _line(build: RecordBuilder, position: int, *arguments: Any, **named: Any) -> tuple[Any, int]:
    marks = [Mark("i", f"m{position}")]
    commit = build.commit(build.append(*arguments, **named), marks=marks)
    encoded, _ = encode_line(commit, position)
    return decode_line(encoded), len(encoded)


def test_a_line_that_was_applied_in_part_is_applied_again(build: RecordBuilder) -> None:
    """An interrupt leaves the cursor where it was; every step of the line may be done twice."""
    behind = build.append("a", b"1")
    lines = [_line(build, 1, "a", b"1", checkpoint="one")]
    lines += [_line(build, 2, "a", b"2", b"3", behind=behind, key="k", checkpoint="two")]
    once, twice = Tail(LogCursor(), lambda stream: None), Tail(LogCursor(), lambda stream: None)
    for line, length in lines:
        once.apply(line, length)
        before = twice.cursor
        twice.apply(line, length)
        twice.cursor = before
        twice.apply(line, length)
    assert _content(twice) == _content(once)
    taken = Tail(LogCursor(), lambda stream: None)
    taken.take(once)
    taken.take(once)
    assert _content(taken) == _content(once)


def _content(tail: Tail) -> dict[str, Any]:
    return {name: value for name, value in vars(tail).items() if name != "_head_before"}


def test_a_line_that_does_not_continue_its_streams_is_bad(build: RecordBuilder) -> None:
    first = build.append("a", b"1")
    tail = Tail(LogCursor(), lambda stream: None)
    tail.apply(*_line(build, 1, "a", b"1"))
    skipping = build.append("a", b"2", behind=first)
    with pytest.raises(BadLine, match="'a'@3: expected 2"):
        tail.apply(*_line(build, 2, "a", b"3", behind=skipping))
    with pytest.raises(BadLine, match="begins 'b' at revision 2: expected 1"):
        tail.apply(*_line(build, 2, "b", b"3", behind=first))
    with pytest.raises(BadLine, match="its position is 3: expected 2"):
        tail.apply(*_line(build, 3, "a", b"2", behind=first))
    assert tail.cursor.position == 1


def test_a_commit_stands_though_the_index_cannot_be_brought_up_to_date(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)

    def fails() -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(backend.catalog, "flush", fails)
    monkeypatch.setattr(backend.catalog, "flush_at", 0)
    accepted(backend, build.commit(build.append("s", b"1")))
    assert revisions(backend.read("s")) == [1]
    monkeypatch.undo()
    backend.close()


def test_an_index_of_another_process_that_cannot_be_used_yet_is_left(
    store: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would know stays in memory."""
    backend = FilesBackend(store, clock=clock)

    def fails(*_: object) -> None:
        raise apsw.BusyError

    monkeypatch.setattr(backend.catalog, "_index", None)
    monkeypatch.setattr(backend.catalog, "_adopt_index", fails)
    backend.catalog._trim(0)
    monkeypatch.undo()
    assert len(revisions(backend.read("s00"))) == 20
    backend.close()


def test_an_index_that_is_damaged_while_it_is_open_is_made_anew(
    store: Path, clock: FakeClock
) -> None:
    """Else every flush failed, and the whole log was read into memory again each time."""
    backend = FilesBackend(store, clock=clock)
    size = (store / INDEX).stat().st_size
    with open(store / INDEX, "r+b") as file:
        file.seek(1024)
        file.write(b"\xff" * (size - 1024))
    all_there(backend, 20)
    build = RecordBuilder(clock.now_us())
    for _ in range(8):
        write(backend, build, "b", b'"%b"' % (b"y" * 900))
    found = index.open_existing(str(store / INDEX), backend.directory.store, read_only=True)
    assert found is not None
    head = found.head("b")
    assert head is not None
    assert head.revision >= 4
    found.close()
    backend.close()

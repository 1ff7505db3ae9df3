"""Files taken from under an open store: nothing more is acknowledged, and what is held is kept.

The hands of an operator, each on each file, with inotify and without.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from holdfast.backends import file_watch
from holdfast.backends.files import FilesBackend, directory, taken
from holdfast.backends.files.disk import Disk
from holdfast.backends.files.leases import FileLeases
from holdfast.errors import CorruptError, FilesTakenError, UnavailableError
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import accepted, revisions, write

SEGMENT = Path("log") / "0000000000000000.jsonl"
NAMES = ("ring", "shared", "lock", "workers", "log", str(SEGMENT))


@pytest.fixture(params=[0, 1 << 30], ids=["inotify", "stats"])
def notified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "NOTIFY_AFTER", request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def backend(path: Path, clock: FakeClock, build: RecordBuilder) -> Iterator[FilesBackend]:
    made = FilesBackend(path, clock=clock)
    for _ in range(3):
        write(made, build, "a")
    yield made
    if made.is_open:
        made._poison = "the test is over"  # pyright: ignore[reportPrivateUsage]
        made.close()


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def replace(path: Path) -> None:
    """Puts a copy of the same content in its place, as `git checkout` and editors do."""
    copy = path.with_name("copy")
    shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
    path.rename(path.with_name("moved"))
    copy.rename(path)


HANDS: dict[str, Callable[[Path], None]] = {"remove": remove, "move": move, "replace": replace}


def count(path: Path, clock: FakeClock) -> int:
    """Opens a store, and returns how many events it has; they must be whole."""
    backend = FilesBackend(path, clock=clock)
    found = backend.read("a")
    assert revisions(found) == list(range(1, len(found) + 1))
    assert [f for f in backend.inspect.verify(read_all=True) if not f.harmless] == []
    backend.close()
    return len(found)


@pytest.mark.usefixtures("notified")
@pytest.mark.parametrize("hand", HANDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_commit_on_files_that_were_taken_is_not_acknowledged(
    path: Path, backend: FilesBackend, build: RecordBuilder, name: str, hand: str
) -> None:
    HANDS[hand](path / name)
    with pytest.raises(FilesTakenError) as raised:
        write(backend, build, "a")
    assert name in raised.value.message
    assert "put back what was taken" in str(raised.value)
    for call in (lambda: write(backend, build, "a"), lambda: backend.heads(["a"])):
        with pytest.raises(FilesTakenError) as again:
            call()
        assert again.value.message == raised.value.message
        assert again.value.rescued == raised.value.rescued
        assert again.value.outcome_known
    backend.close()


@pytest.mark.parametrize("hand", HANDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_close_on_files_that_were_taken_says_so_and_keeps_the_ring(
    path: Path, backend: FilesBackend, name: str, hand: str
) -> None:
    ring = (path / "ring").read_bytes()
    HANDS[hand](path / name)
    with pytest.raises(FilesTakenError):
        backend.close()
    rings = [found for found in path.parent.rglob("*") if found.is_file()]
    assert ring in [found.read_bytes() for found in rings]
    assert not (path / "head.json").exists()


@pytest.mark.parametrize("hand", HANDS)
@pytest.mark.parametrize("name", NAMES)
def test_an_idle_handle_finds_what_was_taken(
    path: Path, backend: FilesBackend, name: str, hand: str
) -> None:
    backend.look_while_idle()
    assert backend.heads(["a"]) != [None]
    HANDS[hand](path / name)
    backend.look_while_idle()
    backend.look_while_idle()  # once is enough
    with pytest.raises(FilesTakenError) as raised:
        backend.heads(["a"])
    assert raised.value.outcome_known


def test_a_look_while_a_commit_is_under_way_is_left_to_it(
    path: Path, backend: FilesBackend
) -> None:
    (path / SEGMENT).unlink()
    with backend._committing:  # pyright: ignore[reportPrivateUsage]
        looker = Thread(target=backend.look_while_idle)
        looker.start()
        looker.join()
        assert backend.heads(["a"]) != [None]


@pytest.mark.usefixtures("notified")
def test_what_is_taken_in_the_middle_of_a_commit_leaves_its_outcome_unknown(
    path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    def reach(point: str) -> None:
        if point == "files.ring.synced" and is_due:
            (path / SEGMENT).unlink()

    is_due = False
    backend = FilesBackend(path, clock=clock, reach=reach)
    write(backend, build, "a")
    is_due = True
    with pytest.raises(FilesTakenError) as raised:
        write(backend, build, "a")
    assert not raised.value.outcome_known
    rescued = raised.value.rescued
    assert rescued is not None
    backend.close()
    assert count(Path(rescued), clock) == 2


@pytest.mark.usefixtures("notified")
def test_a_log_that_is_removed_is_rescued_whole(
    tmp_path: Path, path: Path, backend: FilesBackend, clock: FakeClock, build: RecordBuilder
) -> None:
    text = (path / SEGMENT).read_bytes()
    shutil.rmtree(path / "log")
    with pytest.raises(FilesTakenError) as raised:
        write(backend, build, "a")
    backend.close()
    rescued = Path(raised.value.rescued or "")
    assert rescued.parent == tmp_path / "rescued"
    assert (rescued / SEGMENT).read_bytes().startswith(text)
    report = (rescued / "report.txt").read_text()
    assert str(SEGMENT) in report
    assert "position   3" in report
    assert count(rescued, clock) >= 3
    assert stat_mode(rescued) == 0o700


def stat_mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_report_is_shown_by_those_who_open_the_store_next(
    path: Path, backend: FilesBackend, clock: FakeClock, build: RecordBuilder
) -> None:
    (path / SEGMENT).unlink()
    with pytest.raises(FilesTakenError):
        write(backend, build, "a")
    backend.close()
    after = FilesBackend(path, clock=clock)  # from the ring
    assert len(after.read("a")) >= 3
    reports = after.inspect.describe()["reports"]
    assert any("were removed, replaced or moved" in report for report in reports)
    after.close()


def _another_system(path: str, fd: int) -> bool:
    del path, fd
    return False


@pytest.mark.parametrize("why", ["others may write beside it", "another file system"])
def test_what_is_rescued_lies_inside_where_beside_is_no_place_for_it(
    tmp_path: Path,
    path: Path,
    backend: FilesBackend,
    build: RecordBuilder,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    if why == "another file system":
        monkeypatch.setattr(taken, "is_one_system", _another_system)
    else:
        (tmp_path / "rescued").mkdir()
        (tmp_path / "rescued").chmod(0o777)
    (path / SEGMENT).rename(path / "moved")
    with pytest.raises(FilesTakenError) as raised:
        write(backend, build, "a")
    assert Path(raised.value.rescued or "").parent == path / "rescued"


def test_what_is_rescued_lies_beside_a_directory_that_was_deleted(
    tmp_path: Path, path: Path, backend: FilesBackend, clock: FakeClock, build: RecordBuilder
) -> None:
    shutil.rmtree(path)
    with pytest.raises(FilesTakenError) as raised:
        write(backend, build, "a")
    rescued = Path(raised.value.rescued or "")
    assert rescued.parent == tmp_path / "rescued"
    assert not path.exists()
    assert count(rescued, clock) >= 3


def test_what_cannot_be_rescued_is_said(
    tmp_path: Path, path: Path, backend: FilesBackend, build: RecordBuilder
) -> None:
    shutil.rmtree(path)
    (tmp_path / "rescued").write_bytes(b"in the way")
    with pytest.raises(FilesTakenError, match="could not be written down") as raised:
        write(backend, build, "a")
    assert raised.value.rescued is None


def test_a_moved_store_is_whole_where_it_is_now(
    tmp_path: Path, path: Path, backend: FilesBackend, clock: FakeClock, build: RecordBuilder
) -> None:
    path.rename(tmp_path / "moved")
    with pytest.raises(FilesTakenError, match="it is whole") as raised:
        write(backend, build, "a")
    assert str(tmp_path / "moved") in raised.value.message
    assert raised.value.rescued is None
    backend.close()
    assert count(tmp_path / "moved", clock) >= 3


def test_a_store_whose_way_is_gone_is_rescued_where_it_is(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    above = tmp_path / "above"
    backend = FilesBackend(above / "s", clock=clock)
    write(backend, build, "a")
    above.rename(tmp_path / "moved")
    (tmp_path / "moved" / "s" / SEGMENT).unlink()
    with pytest.raises(FilesTakenError) as raised:
        write(backend, build, "a")
    assert Path(raised.value.rescued or "").parent == tmp_path / "moved" / "s" / "rescued"
    assert not above.exists()
    backend.close()


def test_a_moved_store_whose_text_was_taken_too_is_rescued_where_it_is(
    tmp_path: Path, path: Path, backend: FilesBackend, build: RecordBuilder
) -> None:
    path.rename(tmp_path / "moved")
    (tmp_path / "moved" / SEGMENT).unlink()
    (tmp_path / "rescued").write_bytes(b"in the way")
    with pytest.raises(FilesTakenError) as raised:
        write(backend, build, "a")
    assert Path(raised.value.rescued or "").parent == tmp_path / "moved" / "rescued"


def test_a_text_that_was_cut_is_not_recorded_by_a_close(
    path: Path, backend: FilesBackend, clock: FakeClock
) -> None:
    os.truncate(path / SEGMENT, 10)
    backend.look_while_idle()
    with pytest.raises(FilesTakenError, match="the end of the open segment"):
        backend.heads(["a"])
    backend.close()
    assert not (path / "head.json").exists()
    assert count(path, clock) == 3


@pytest.mark.parametrize("other", ["noise", "lines"])
def test_a_text_that_was_written_over_is_not_recorded_by_a_close(
    path: Path, backend: FilesBackend, clock: FakeClock, other: str
) -> None:
    """Into the same file, so that its name still leads there, and no shorter."""
    text = (path / SEGMENT).read_bytes()
    first, *lines = text.splitlines(keepends=True)
    over = b"x" * len(text) if other == "noise" else b"".join([first, *reversed(lines)])
    (path / SEGMENT).write_bytes(over)
    with pytest.raises(FilesTakenError, match="the end of the open segment"):
        backend.close()
    assert (path / "ring").exists()
    assert not (path / "head.json").exists()
    assert count(path, clock) == 3


@pytest.mark.parametrize("size", [0, 600, 5000])
def test_a_ring_that_was_cut_is_used_by_nobody_more(
    path: Path, clock: FakeClock, build: RecordBuilder, size: int
) -> None:
    """Who came later took it for one of that size, and wrote a number below zero into the page."""
    backend = FilesBackend(path, clock=clock)
    for _ in range(20):
        write(backend, build, "a")
    os.truncate(path / "ring", size)
    newcomer = FilesBackend(path, clock=clock)
    with pytest.raises(FilesTakenError, match=f"was cut to {size} bytes"):
        write(newcomer, build, "a")
    newcomer.close()
    backend.look_while_idle()
    with pytest.raises(FilesTakenError, match="ring"):
        backend.heads(["a"])
    backend.close()
    assert count(path, clock) == 20


def test_a_ring_that_is_gone_makes_the_text_durable_at_once(
    path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    class Noted(Disk):
        synced = 0

        def __init__(self) -> None:
            self.sync = self.note  # type: ignore[method-assign]

        def note(self, fd: int) -> None:
            self.synced += 1
            os.fdatasync(fd)
            if self.fails:
                raise OSError(5, "gone")

        fails = False

    disk = Noted()
    backend = FilesBackend(path, clock=clock, disk=disk)
    write(backend, build, "a")
    (path / "ring").unlink()
    before = disk.synced
    disk.fails = True  # whose error is not the one that is told
    backend.look_while_idle()
    assert disk.synced == before + 1
    with pytest.raises(FilesTakenError):
        backend.heads(["a"])
    backend.close()


# --- several who use one store --------------------------------------------------------------------


def test_a_second_lock_lets_nobody_in(
    path: Path, backend: FilesBackend, clock: FakeClock, build: RecordBuilder
) -> None:
    """`rm lock`: two writers at once, each with a lock of its own."""
    (path / "lock").unlink()
    with pytest.raises(FilesTakenError, match=r"the lock of .* was deleted while in use"):
        FilesBackend(path, clock=clock)
    with pytest.raises(FilesTakenError):
        write(backend, build, "a")
    with pytest.raises(FilesTakenError):
        FilesBackend(path, clock=clock)
    backend.close()
    assert count(path, clock) >= 3


def test_a_page_that_names_no_lock_is_of_an_older_version(
    path: Path, backend: FilesBackend, clock: FakeClock
) -> None:
    backend.opened.page_words[directory.LOCK] = 0
    FilesBackend(path, clock=clock).close()


@pytest.mark.usefixtures("notified")
def test_leases_are_not_given_out_by_files_that_were_taken(
    path: Path, backend: FilesBackend, build: RecordBuilder
) -> None:
    lease = backend.leases.acquire("work", "w1", ttl_s=60)
    assert lease is not None
    write(backend, build, "a")
    assert backend.leases.renew(lease, ttl_s=60) is not None
    (path / "lock").unlink()
    with pytest.raises(FilesTakenError):
        backend.leases.acquire("more", "w1", ttl_s=60)


@pytest.mark.parametrize("hand", HANDS)
def test_a_worker_whose_file_is_taken_is_told(
    path: Path, backend: FilesBackend, clock: FakeClock, build: RecordBuilder, hand: str
) -> None:
    """Without it the worker passes for dead, and its lease goes to another."""
    assert backend.leases.acquire("work", "w1", ttl_s=60) is not None
    [worker] = [found for found in (path / "workers").iterdir() if found.name != "probe"]
    HANDS[hand](worker)
    other = FilesBackend(path, clock=clock)
    if hand != "replace":
        assert other.leases.acquire("work", "w2", ttl_s=60) is not None
    other.close()
    with pytest.raises(FilesTakenError, match="workers/"):
        write(backend, build, "a")


def test_the_worker_of_a_moved_store_lives_in_it(
    tmp_path: Path, path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """Its file went to the new store at the old path: here it was taken for dead."""
    old = FilesBackend(path, clock=clock)
    write(old, build, "a")
    path.rename(tmp_path / "moved")
    new = FilesBackend(path, clock=clock)
    assert isinstance(old.leases, FileLeases)
    old.leases.hold("w1")
    moved = FilesBackend(tmp_path / "moved", clock=clock)
    for store, is_alive in ((moved, True), (new, False)):
        assert isinstance(store.leases, FileLeases)
        assert store.leases.is_alive("w1") is is_alive
    moved.close()
    new.close()
    with pytest.raises(FilesTakenError):
        old.close()


# --- handles that only read -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log", str(SEGMENT), ""])
@pytest.mark.parametrize("hand", HANDS)
def test_a_reader_does_not_answer_from_memory_for_ever(
    path: Path, backend: FilesBackend, clock: FakeClock, name: str, hand: str
) -> None:
    reader = FilesBackend(path, clock=clock, read_only=True)
    assert len(reader.read("a")) == 3
    reader.look_while_idle()
    HANDS[hand](path / name)
    reader.look_while_idle()
    with pytest.raises(FilesTakenError, match="answer from what it remembers"):
        reader.heads(["a"])
    reader.close()
    assert not list(path.parent.rglob("rescued"))


def test_a_reader_whose_page_is_gone(path: Path, backend: FilesBackend, clock: FakeClock) -> None:
    reader = FilesBackend(path, clock=clock, read_only=True)
    (path / "shared").unlink()
    reader.look_while_idle()
    with pytest.raises(FilesTakenError, match="shared"):
        reader.read("a")
    reader.close()


def test_a_reader_stays_while_the_writers_come_and_go(
    path: Path, backend: FilesBackend, clock: FakeClock, build: RecordBuilder
) -> None:
    reader = FilesBackend(path, clock=clock, read_only=True)
    backend.close()
    reader.look_while_idle()
    assert len(reader.read("a")) == 3
    after = FilesBackend(path, clock=clock)
    write(after, build, "a")
    reader.look_while_idle()
    assert len(reader.read("a")) == 4
    after.close()
    reader.close()


# --- text after a clean close ---------------------------------------------------------------------


def closed(path: Path, clock: FakeClock, build: RecordBuilder) -> Path:
    backend = FilesBackend(path, clock=clock)
    for _ in range(3):
        write(backend, build, "a")
    backend.close()
    return path


def test_lines_of_another_copy_are_not_cut(
    tmp_path: Path, path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """Two copies of one store went on; git merged their texts by union, and kept one head.json."""
    closed(path, clock, build)
    end = (path / SEGMENT).stat().st_size
    shutil.copytree(path, tmp_path / "copy")
    backend = FilesBackend(tmp_path / "copy", clock=clock)
    for _ in range(2):
        write(backend, build, "a")
    backend.close()
    theirs = (tmp_path / "copy" / SEGMENT).read_bytes()[end:]
    ours = FilesBackend(path, clock=clock)
    accepted(ours, build.commit(build.append("b")))
    ours.close()
    end = (path / SEGMENT).stat().st_size
    with (path / SEGMENT).open("ab") as file:
        file.write(theirs)
    merged = (path / SEGMENT).read_bytes()
    for read_only in (False, True):
        with pytest.raises(CorruptError) as raised:
            FilesBackend(path, clock=clock, read_only=read_only)
        message = str(raised.value)
        assert f"{len(theirs)} bytes after byte {end}" in message
        assert "2 whole lines" in message
        assert f"cut {SEGMENT} to {end} bytes" in message
        assert raised.value.where == f"{SEGMENT} byte {end}"
    assert (path / SEGMENT).read_bytes() == merged
    assert not (path / "torn").exists()
    os.truncate(path / SEGMENT, end)
    assert count(path, clock) == 3


@pytest.mark.parametrize("extra", [b"x", b'{"n":4}\n', b"\n" * 100, bytes(40 << 20)])
def test_no_text_after_a_clean_close_is_cut(
    path: Path, clock: FakeClock, build: RecordBuilder, extra: bytes
) -> None:
    closed(path, clock, build)
    with (path / SEGMENT).open("ab") as file:
        file.write(extra)
    size = (path / SEGMENT).stat().st_size
    for read_only in (False, True):
        with pytest.raises(CorruptError, match="0 whole lines"):
            FilesBackend(path, clock=clock, read_only=read_only)
    assert (path / SEGMENT).stat().st_size == size


def test_a_whole_line_that_does_not_follow_is_not_cut_from_an_older_record(
    path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """A head.json from before it said `closed`; a store that nobody uses."""
    closed(path, clock, build)
    head = json.loads((path / "head.json").read_bytes())
    assert head.pop("closed") is True
    (path / "head.json").write_text(json.dumps(head))
    first, rest = (path / SEGMENT).read_bytes().split(b"\n", 1)
    (path / SEGMENT).write_bytes(first + b"\n" + rest + first + b"\n")
    backend = FilesBackend(path, clock=clock)
    with pytest.raises(CorruptError, match="nothing can be written"):
        backend.commit([])
    assert "a whole line of another text" in str(backend.inspect.describe()["reports"])
    backend.close()
    assert not (path / "torn").exists()


def test_a_store_in_use_is_not_recorded_as_closed(
    tmp_path: Path, path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    """A copy of a living store has text after the recorded end, and it is its own."""
    closed(path, clock, build)
    backend = FilesBackend(path, clock=clock)
    write(backend, build, "a")
    copy = tmp_path / "copy"
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("ring", "shared"))
    backend.close()
    assert json.loads((copy / "head.json").read_bytes())["closed"] is False
    assert count(copy, clock) == 4
    assert json.loads((path / "head.json").read_bytes())["closed"] is True
    visit = FilesBackend(path, clock=clock)
    assert len(visit.read("a")) == 4
    assert json.loads((path / "head.json").read_bytes())["closed"] is True
    visit.close()


def test_a_reader_that_comes_as_a_writer_begins_sees_no_stranger(
    path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    closed(path, clock, build)
    writer = FilesBackend(path, clock=clock)
    write(writer, build, "a")
    reader = FilesBackend(path, clock=clock, read_only=True)
    assert len(reader.read("a")) == 4
    reader.close()
    writer.close()


def test_an_unwritable_record_stops_the_first_write(
    path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    closed(path, clock, build)

    class NoRename(Disk):
        def rename(self, old: str, new: str, *, at: int) -> None:
            if new == "head.json":
                raise OSError(28, "full")
            super().rename(old, new, at=at)

    backend = FilesBackend(path, clock=clock, disk=NoRename())
    with pytest.raises(UnavailableError, match="full") as raised:
        write(backend, build, "a")
    assert raised.value.outcome_known
    assert len(backend.read("a")) == 3
    backend.close()


def test_what_is_rescued_of_a_store_that_became_shorter_says_its_format(
    path: Path, backend: FilesBackend, clock: FakeClock, build: RecordBuilder
) -> None:
    """Another handle packed the segment, after this one read the format of the store."""
    write(backend, build, "a", b'"%b"' % (b"x" * 9000))
    other = FilesBackend(path, clock=clock)
    other.rewrite({"a": [4]})
    other._poison = "the store is about to go"  # pyright: ignore[reportPrivateUsage]
    other.close()
    found = backend.read("a")
    shutil.rmtree(path)
    backend.look_while_idle()
    with pytest.raises(FilesTakenError) as raised:
        backend.read("a")
    rescued = Path(raised.value.rescued or "")
    assert (rescued / SEGMENT).read_bytes().startswith(b'{"packed":')
    identity = json.loads((rescued / "holdfast.json").read_bytes())
    assert (identity["format"], identity["store"]) == (3, backend.directory.store)
    with closing(FilesBackend(rescued, clock=clock, read_only=True)) as again:
        assert again.read("a") == found

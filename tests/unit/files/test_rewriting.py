"""Letting go on plain files: whole wherever it is killed, and nobody beside it is harmed (0041)."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import signal
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.backends.files import FilesBackend, opening, packing, text
from holdfast.backends.files.disk import Disk
from holdfast.backends.files.text import BadLine, decode_line, parse_line, rewrite_line
from holdfast.backends.protocol import GONE, Record
from holdfast.clock import SystemClock
from holdfast.errors import CorruptError, FilesTakenError, UnavailableError
from holdfast.testing.clock import FakeClock
from holdfast.testing.faults import CrashPoints
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import write

WANTED = {"a": [1, 2, 4, 15, 16], "b": [2, 4]}
POINTS = (
    "files.segment.added",
    "files.rewrite.sealed",
    "files.ring.emptied",
    "files.ring.wiped",
    "files.rewrite.written",
    "files.rewrite.numbered",
    "files.rewrite.replaced",
)


@pytest.fixture
def filled(
    tmp_path: Path, trial: dict[str, Any], small: None, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A closed store of several segments, where each payload holds its number."""
    del small
    monkeypatch.setattr(packing, "SAVED_BYTES_MIN", 1)
    monkeypatch.setattr(packing, "PLACE_BYTES", 1000)
    backend = FilesBackend(tmp_path / "filled", clock=SystemClock())
    trial["Filler"]().fill(backend)
    write(backend, RecordBuilder(SystemClock().now_us()), "b", b'{"b":"CANARY"}')
    backend.close()
    return tmp_path / "filled"


def records_of(path: Path) -> list[Record]:
    backend = FilesBackend(path, clock=SystemClock())
    records = backend.read_all(limit=1000)
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()
    return records


def is_wanted(record: Record) -> bool:
    return record.revision in WANTED.get(record.stream, ())


def judge(path: Path, before: list[Record]) -> None:
    """Asserts that each record is as it was or let go of, and that a second run does the rest."""
    found = records_of(path)
    for record, was in zip(found, before, strict=True):
        assert record == was or (is_wanted(was) and record == replace(was, payload=GONE))
    backend = FilesBackend(path, clock=SystemClock())
    backend.rewrite(WANTED)
    assert backend.purge() == []
    backend.close()
    for record, was in zip(records_of(path), before, strict=True):
        assert record == (replace(was, payload=GONE) if is_wanted(was) else was)
    gone = [was.payload for was in before if is_wanted(was) and was.payload != GONE]
    for file in path.rglob("*"):
        if file.is_file():
            assert not any(payload in file.read_bytes() for payload in gone), file
    assert not list((path / "log").glob("*.new"))


def work(path: Path, **options: Any) -> None:
    with closing(FilesBackend(path, clock=SystemClock(), **options)) as backend:
        backend.rewrite(WANTED)
        backend.purge()


def test_killed_at_any_call_it_leaves_a_whole_store(
    filled: Path, tmp_path: Path, trial: dict[str, Any], disks: dict[str, Any]
) -> None:
    before = records_of(filled)
    opened = disks["faulty"](lambda _count, _name, run, _arguments: run())
    FilesBackend(shutil.copytree(filled, tmp_path / "o"), clock=SystemClock(), disk=opened)
    number, killed, code = opened.count, 0, -signal.SIGKILL
    while code:
        path = shutil.copytree(filled, tmp_path / str(number))
        disk = disks["kill_at"](number, torn=number % 2 == 0)
        _, code = trial["in_child"](lambda _, p=path, d=disk: work(p, disk=d))
        judge(path, before)
        killed += code == -signal.SIGKILL
        number += 1 if number < opened.count + 30 else 17
    assert killed > 30


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_at_any_call_harms_nothing(
    filled: Path, tmp_path: Path, disks: dict[str, Any], problem: int
) -> None:
    before = records_of(filled)
    writing = ("open", "pwrite", "sync", "sync_directory", "rename", "truncate", "reserve")
    number, failed = 12, 0
    while True:
        path = shutil.copytree(filled, tmp_path / str(number))
        disk = disks["fail_at"](number, problem, only=writing)
        try:
            work(path, disk=disk)
        except UnavailableError:
            failed += 1
        judge(path, before)
        if disk.count < number or number > 130:
            break
        number += 3
    assert failed


@pytest.mark.parametrize("point", POINTS)
def test_a_living_handle_goes_on_after_a_killed_one(
    filled: Path, trial: dict[str, Any], point: str
) -> None:
    before = records_of(filled)
    mine = FilesBackend(filled, clock=SystemClock())
    assert mine.read_all(limit=1000) == before
    points = CrashPoints()
    points.kill_at(point, 1)
    _, code = trial["in_child"](lambda _: work(filled, reach=points.reach))
    assert code == -signal.SIGKILL
    mine.look_while_idle()
    write(mine, RecordBuilder(SystemClock().now_us()), "a")
    for record, was in zip(mine.read_all(limit=1000), before, strict=False):
        assert record == was or (is_wanted(was) and record == replace(was, payload=GONE))
    mine.close()
    judge(filled, records_of(filled))


def test_every_named_point_is_passed(filled: Path) -> None:
    points = CrashPoints()
    work(filled, reach=points.reach)
    assert {*POINTS} <= {*points.names}


def test_power_that_is_lost_takes_nothing_else(filled: Path, disks: dict[str, Any]) -> None:
    before = records_of(filled)
    disk = disks["power"]()
    backend = FilesBackend(filled, clock=SystemClock(), disk=disk)
    backend.rewrite(WANTED)
    disk.lose_power(random.Random(7))
    backend.after_fork()
    for record, was in zip(records_of(filled), before, strict=True):
        assert record == (replace(was, payload=GONE) if is_wanted(was) else was)


class Cut(BaseException):
    """The power is gone."""


def cut_at(disk: Any, number: int) -> Callable[[], bool]:
    """Has a disk fail for good at a call; returns what says whether it came to that.

    Names that were not made durable may be lost too: the old file is then where it was.
    """
    count, renames = 0, list[tuple[str, bytes | None]]()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count >= number:
                raise Cut
            if name == "rename":
                path = Path(os.readlink(f"/proc/self/fd/{named['at']}"), arguments[1])
                renames.append((str(path), path.read_bytes() if path.exists() else None))
            if name == "sync_directory":
                renames.clear()
            return real(*arguments, **named)

        return call

    for name in ("pwrite", "sync", "truncate", "rename", "unlink", "mkdir", "sync_directory"):
        setattr(disk, name, counted(name, getattr(disk, name)))
    lose = disk.lose_power

    def lose_power(chance: random.Random) -> None:
        lose(chance)
        for path, before in reversed(renames):
            if chance.random() < 0.5 and before is not None:
                Path(path).write_bytes(before)

    disk.lose_power = lose_power
    return lambda: count >= number


def test_power_that_is_lost_at_any_call_takes_nothing_else(
    filled: Path, tmp_path: Path, disks: dict[str, Any]
) -> None:
    before = records_of(filled)
    number = cuts = 0
    is_cut = True
    while is_cut:
        number += 2
        path = shutil.copytree(filled, tmp_path / str(number))
        disk = disks["power"]()
        backend = FilesBackend(path, clock=SystemClock(), disk=disk)
        was_cut = cut_at(disk, number)
        with suppress(Cut):
            backend.rewrite(WANTED)
            backend.purge(whole=True)
        is_cut = was_cut()
        cuts += is_cut
        disk.lose_power(random.Random(number))
        backend.mark_closed()
        assert isinstance(backend.opened, opening.Opened)
        backend.opened.release()
        backend.directory.close()
        judge(path, before)
    assert cuts > 20


def test_readers_beside_see_it_and_miss_nothing(filled: Path) -> None:
    readers = [FilesBackend(filled, clock=SystemClock(), read_only=True)]  # nobody has it open
    assert readers[0].read("a", limit=1)[0].payload != GONE
    work(filled)
    assert readers[0].opened.taken() == []
    writer = FilesBackend(filled, clock=SystemClock())
    readers.append(FilesBackend(filled, clock=SystemClock(), read_only=True))
    other = FilesBackend(filled, clock=SystemClock())
    readers.append(other)
    for one in readers:
        assert one.read("a", limit=1)[0].payload == GONE
        assert one.read("a")[2].payload != GONE
    writer.rewrite({"a": [3]})
    [left] = writer.purge()
    assert "process" in left.remedy
    for one in readers:
        one.look_while_idle()
        assert one.read("a")[2].payload == GONE
    write(other, RecordBuilder(SystemClock().now_us()), "a")
    writer.rewrite({"a": [17]})
    other.rewrite({"a": [5, 17]})
    for one in (writer, *readers):
        assert one.read("a")[4].payload == GONE
        one.look_while_idle()
        one.check_open()
        one.close()


def test_another_file_in_the_place_of_a_segment_is_still_noticed(filled: Path) -> None:
    for change in (
        lambda name, data: name.write_bytes(data[:-1]),
        lambda name, data: name.write_bytes(data.replace(b"x", b"y")),
        lambda name, data: name.write_bytes(data.replace(b"\n", b" ", 1)),
        lambda name, data: name.write_bytes(data.replace(b'"crc"', b'"was"', 1)),
        lambda name, data: None,
    ):
        reader = FilesBackend(filled, clock=SystemClock(), read_only=True)
        reader.read("a")
        name = sorted((filled / "log").iterdir())[0]
        data = name.read_bytes()
        name.unlink()
        change(name, data)
        reader.look_while_idle()
        with pytest.raises(FilesTakenError):
            reader.read("a")
        reader.close()
        name.unlink(missing_ok=True)
        name.write_bytes(data)


def test_what_recovery_cut_off_goes_too(filled: Path) -> None:
    torn = filled / "torn"
    torn.mkdir()
    (torn / "0001").write_bytes(b"CANARY")
    (filled / "log" / "left.new").write_bytes(b"CANARY")
    backend = FilesBackend(filled, clock=SystemClock())
    assert backend.purge() == []
    backend.close()
    assert list(torn.iterdir()) == []
    assert not (filled / "log" / "left.new").exists()


def die_in_rename(path: Path, kind: str, name: str) -> None:
    """Puts an object in a process that is killed right before the object has its name."""
    pid = os.fork()
    if pid == 0:
        backend = FilesBackend(path, clock=SystemClock())
        backend.directory.disk.rename = lambda *_, **__: os.kill(  # type: ignore[method-assign]
            os.getpid(), signal.SIGKILL
        )
        backend.objects.put(kind, name, b"CANARY")
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)


def cut_off(path: Path) -> list[Path]:
    return [one for one in path.rglob("=new-*") if one.read_bytes() == b"CANARY"]


def test_what_a_killed_process_left_of_an_object_goes_too(filled: Path) -> None:
    """Nobody else is there, so nobody writes: what has no name yet will never have one."""
    for kind, name in (("blob", "ab" * 32), ("snapshot", "12ab/7")):
        die_in_rename(filled, kind, name)
    assert len(cut_off(filled)) == 2
    with closing(FilesBackend(filled, clock=SystemClock())) as backend:
        with closing(FilesBackend(filled, clock=SystemClock())):
            objects, log = backend.purge()
            assert (objects.where, log.where) == ("objects", "log")
            assert objects.remedy.startswith("2 files of writes that did not end, or are under way")
        assert len(cut_off(filled)) == 2
        assert backend.purge() == []
        assert list(backend.inspect.verify(read_all=True)) == []
    assert cut_off(filled) == []


def test_what_this_handle_is_writing_stays(filled: Path) -> None:
    with closing(FilesBackend(filled, clock=SystemClock())) as backend:
        rename = backend.directory.disk.rename
        left: list[Path] = []

        def purge_first(*names: Any, **more: Any) -> None:
            assert backend.objects.unfinished(remove=True) == 0
            left.extend(cut_off(filled))
            rename(*names, **more)

        backend.directory.disk.rename = purge_first  # type: ignore[method-assign]
        backend.objects.put("blob", "ab" * 32, b"CANARY")
        assert len(left) == 1
        assert backend.objects.get("blob", "ab" * 32) == b"CANARY"


def test_whether_others_have_the_store_open_is_asked_of_the_lock_itself(filled: Path) -> None:
    """The kernel's list of locks, read in pieces, named one twice, and missed others."""
    with closing(FilesBackend(filled, clock=SystemClock())) as backend:
        for _ in range(3):
            assert backend.purge() == []
            with closing(FilesBackend(filled, clock=SystemClock())) as other:
                assert len(backend.purge()) == len(other.purge()) == 1
                assert len(backend.purge()) == 1


def test_a_handle_that_cannot_take_its_place_back_writes_no_more(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FilesBackend(filled, clock=SystemClock())
    lock = backend.directory.disk.lock

    def fails(fd: int, how: int) -> None:
        if how == fcntl.LOCK_SH:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        lock(fd, how)

    with monkeypatch.context() as broken:
        broken.setattr(backend.directory.disk, "lock", fails)
        with pytest.raises(UnavailableError, match="cannot be written"):
            backend.purge()
    with pytest.raises(UnavailableError, match="has it open"):
        write(backend, RecordBuilder(SystemClock().now_us()), "a")
    backend.close()
    assert len(records_of(filled)) == 20


def test_a_segment_that_another_process_rewrote_meanwhile_is_read_again(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = records_of(filled)
    one, two = (FilesBackend(filled, clock=SystemClock()) for _ in range(2))
    writes = text.Segments.write_beside
    others: list[Callable[[], object]] = [
        lambda: two.rewrite({"a": [3]}),
        lambda: [
            two.catalog.segments.remove_beside(name) for name in two.catalog.segments.beside()
        ],
    ]

    def write_beside(segments: text.Segments, *arguments: Any) -> text.Beside:
        beside = writes(segments, *arguments)
        if segments is one.catalog.segments and others:
            others.pop(0)()
        return beside

    monkeypatch.setattr(text.Segments, "write_beside", write_beside)
    one.rewrite(WANTED)
    assert not others
    for record, was in zip(one.read_all(limit=1000), before, strict=True):
        is_gone = is_wanted(was) or (was.stream, was.revision) == ("a", 3)
        assert record == (replace(was, payload=GONE) if is_gone else was)
    one.close()
    two.close()


def test_a_damaged_line_is_not_rewritten(filled: Path) -> None:
    backend = FilesBackend(filled, clock=SystemClock())
    name = sorted((filled / "log").iterdir())[0]
    data = name.read_bytes()
    with open(name, "r+b") as file:
        file.write(data.replace(b"000001x", b"000001y", 1))
    with pytest.raises(CorruptError, match="checksum does not match"):
        backend.rewrite({"a": [1]})
    with open(name, "r+b") as file:
        file.write(data)
    backend.rewrite({"a": [1]})
    backend.close()
    assert not list(filled.rglob("*.new"))


def test_a_rewritten_line_says_when_its_bytes_changed(filled: Path) -> None:
    encoded = sorted((filled / "log").iterdir())[0].read_bytes().splitlines(True)[0]
    line = decode_line(encoded)
    rewritten = rewrite_line(encoded, {"a": {1: GONE}})
    assert len(rewritten) == len(encoded)
    assert rewrite_line(rewritten, {"a": {1: GONE}}) == rewritten
    assert rewrite_line(encoded, {"a": {7: GONE}}) == encoded
    assert decode_line(rewritten).crc == line.crc
    for changed in (
        rewritten.replace(b"Z", b"Y", 1),
        rewritten[:-11] + b"!" * 8 + rewritten[-3:],
        rewritten[:-11] + b"AAAA====" + rewritten[-3:],
        rewritten[:-11] + b"AAAAA!!!" + rewritten[-3:],
    ):
        with pytest.raises(BadLine):
            decode_line(changed)
    with pytest.raises(BadLine, match="no checksum"):
        parse_line(encoded.replace(b'"crc":"', b'"saw":"'))


def test_a_full_disk_when_the_segment_is_sealed_changes_nothing(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = records_of(filled)
    backend = FilesBackend(filled, clock=SystemClock())

    def full(_: text.Segments, __: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(text.Segments, "add", full)
        with pytest.raises(UnavailableError, match="full"):
            backend.rewrite({"a": [16], "b": [4]})
    assert backend.read_all(limit=1000) == before
    write(backend, RecordBuilder(SystemClock().now_us()), "a")

    def added(segments: text.Segments, start: int) -> None:
        add(segments, start)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    add = text.Segments.add
    with monkeypatch.context() as broken:
        broken.setattr(text.Segments, "add", added)
        with pytest.raises(UnavailableError):
            backend.rewrite({"a": [17]})
    with pytest.raises(UnavailableError):
        backend.read("a")  # what the disk holds is for the next one in to find out
    backend.close()
    assert [r.revision for r in records_of(filled) if r.stream == "a"] == list(range(1, 18))


def test_a_store_without_a_ring_is_rewritten(tmp_path: Path) -> None:
    backend = FilesBackend(tmp_path / "s", clock=SystemClock(), durability="process")
    write(backend, RecordBuilder(SystemClock().now_us()), "a", b'"CANARY"')
    backend.rewrite({"a": [1], "b": []})
    backend.rewrite({})
    backend.close()
    assert not any(b"CANARY" in one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())


def beside_of(path: Path) -> list[Path]:
    return sorted((path / "log").glob("*.new"))


def test_the_file_of_another_one_takes_no_place(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two handles of one process, or of two containers, are at work on the same segment."""
    one, two = (FilesBackend(filled, clock=FakeClock()) for _ in range(2))
    writes = text.Segments.write_beside

    def write_beside(segments: text.Segments, start: int, *arguments: Any) -> Any:
        beside = writes(segments, start, *arguments)
        if segments is one.catalog.segments and not beside_of(filled)[1:]:
            whole, _ = two.catalog.segments.content(start)
            writes(two.catalog.segments, start, whole, whole, *arguments[2:])
        return beside

    monkeypatch.setattr(text.Segments, "write_beside", write_beside)
    one.rewrite({"a": [1]})
    assert len(beside_of(filled)) == 1  # that of the other one
    for backend in (one, two):
        assert [record.payload == GONE for record in backend.read("a", limit=2)] == [True, False]
    one.purge()
    one.close()
    two.close()
    assert beside_of(filled) == []


def test_a_file_that_was_not_written_here_takes_no_place(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FilesBackend(filled, clock=SystemClock())
    writes, count = text.Segments.write_beside, 0

    def write_beside(segments: text.Segments, *arguments: Any) -> Any:
        nonlocal count
        beside = writes(segments, *arguments)
        if not count:
            torn = filled / "log" / "torn"
            torn.write_bytes(b"torn")
            torn.rename(beside_of(filled)[0])
        count += 1
        return beside

    monkeypatch.setattr(text.Segments, "write_beside", write_beside)
    backend.rewrite({"a": [1]})
    backend.close()
    assert count == 2
    assert records_of(filled)[0].payload == GONE
    assert beside_of(filled) == []


@pytest.mark.parametrize("call", ["pwrite", "sync"])
def test_a_file_that_cannot_be_written_does_not_stay(
    filled: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    backend = FilesBackend(filled, clock=SystemClock())
    disk = backend.directory.disk
    sound = getattr(disk, call)

    def fails(fd: int, *arguments: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".new"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return sound(fd, *arguments)

    with monkeypatch.context() as broken:
        broken.setattr(disk, call, fails)
        with pytest.raises(UnavailableError, match="full"):
            backend.rewrite({"a": [1]})
    assert beside_of(filled) == []
    backend.close()


def is_segment(name: str) -> bool:
    return name.endswith(".jsonl")


@pytest.mark.parametrize("again", ["rewrite", "purge"])
def test_who_finds_it_done_makes_the_names_durable_and_tells_the_others(
    filled: Path, trial: dict[str, Any], monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """The one that did it was killed between the rename and the sync of the folder."""
    reader = FilesBackend(filled, clock=SystemClock())
    first = reader.read("a", limit=1)
    assert first[0].payload != GONE

    class Killed(Disk):
        def rename(self, old: str, new: str, *, at: int) -> None:
            super().rename(old, new, at=at)
            if is_segment(new):
                os.kill(os.getpid(), signal.SIGKILL)

    _, code = trial["in_child"](
        lambda _: FilesBackend(filled, clock=SystemClock(), disk=Killed()).rewrite({"a": [1]})
    )
    assert code == -signal.SIGKILL
    assert reader.read("a", limit=1) == first
    backend = FilesBackend(filled, clock=SystemClock())
    synced: list[str] = []
    disk = backend.directory.disk
    sound = disk.sync_directory

    def sync_directory(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        sound(fd)

    monkeypatch.setattr(disk, "sync_directory", sync_directory)
    if again == "rewrite":
        backend.rewrite({"a": [1]})
    else:
        backend.purge()
    assert "log" in synced
    assert reader.read("a", limit=1)[0].payload == GONE
    reader.close()
    backend.close()


def test_a_folder_that_cannot_be_synced_leaves_nobody_with_the_old_file(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, reader = (FilesBackend(filled, clock=SystemClock()) for _ in range(2))
    for one in (backend, reader):
        assert one.read("a", limit=1)[0].payload != GONE
    disk = backend.directory.disk
    rename, sync = disk.rename, disk.sync_directory
    failing: list[str] = []

    def renamed(old: str, new: str, *, at: int) -> None:
        rename(old, new, at=at)
        failing.extend([new] if is_segment(new) else [])

    def synced(fd: int) -> None:
        if failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    with monkeypatch.context() as broken:
        broken.setattr(disk, "rename", renamed)
        broken.setattr(disk, "sync_directory", synced)
        with pytest.raises(UnavailableError):
            backend.rewrite({"a": [1]})
    assert len(failing) == 1
    for one in (backend, reader):
        assert one.read("a", limit=1)[0].payload == GONE
        one.close()


def test_a_damaged_line_keeps_no_other_segment_as_it_was(filled: Path) -> None:
    name = sorted((filled / "log").iterdir())[0]
    data = name.read_bytes()
    backend = FilesBackend(filled, clock=SystemClock())
    with open(name, "r+b") as file:
        file.write(data.replace(b"000001x", b"000001y", 1))
    for _ in range(2):
        with pytest.raises(CorruptError, match="checksum does not match"):
            backend.rewrite({"a": [1, 15]})
    with open(name, "r+b") as file:
        file.write(data)
    found = backend.read("a")
    assert [found[0].payload == GONE, found[14].payload == GONE] == [False, True]
    backend.close()

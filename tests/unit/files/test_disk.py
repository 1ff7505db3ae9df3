"""The thin layer over the kernel: what it does where a call is missing, short, or refused."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.files import disk as disks
from holdfast.backends.files import journal
from holdfast.backends.files.directory import PAGE_BYTES, SharedPage, open_page
from holdfast.backends.files.disk import Disk, read_file, replace_file, write_all
from holdfast.backends.files.text import Segments
from holdfast.errors import CorruptError
from holdfast.testing import FakeClock
from tests.descriptors import descriptors
from tests.unit.files.conftest import FaultyDisk


@pytest.fixture
def place(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_is_not_opened_as_one(tmp_path: Path, place: int, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "x")
    else:
        (tmp_path / "x").mkdir()
    before = descriptors(tmp_path)
    with pytest.raises(OSError) as caught:
        Disk().open("x", os.O_RDONLY, at=place)
    assert caught.value.errno == errno.ENXIO
    assert descriptors(tmp_path) == before


def test_a_file_larger_than_any_of_ours_is_not_read(tmp_path: Path, place: int) -> None:
    """A sparse one takes no room on the disk, and would take all memory."""
    with open(tmp_path / "x", "wb") as file:
        file.truncate(1 << 40)
    before = descriptors(tmp_path)
    with pytest.raises(CorruptError, match="x takes 1099511627776 bytes"):
        read_file(Disk(), "x", at=place)
    assert descriptors(tmp_path) == before
    assert read_file(Disk(), "y", at=place) is None


class Stubborn(Disk):
    """Writes nothing at all from the second call on."""

    def __init__(self) -> None:
        self.pwrite = self._pwrite  # type: ignore[method-assign]
        self.calls = 0

    def _pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self.calls += 1
        return os.pwrite(fd, data[:3], offset) if self.calls == 1 else 0


def test_a_write_that_writes_nothing_is_an_error_and_not_a_loop(tmp_path: Path, place: int) -> None:
    disk = Stubborn()
    fd = disk.open("x", os.O_RDWR | os.O_CREAT, at=place)
    with pytest.raises(OSError, match="a write wrote nothing"):
        write_all(disk, fd, b"abcdef", 0)
    assert disk.calls == 2
    disk.close(fd)


def test_the_ring_is_written_in_pieces_of_a_page(tmp_path: Path, place: int) -> None:
    """One write of all of it would cost every commit after it 15 microseconds."""
    writes: list[tuple[int, int]] = []

    def note(_: int, name: str, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if name == "pwrite":
            _, data, offset = arguments
            writes.append((offset, len(data)))
        return run()

    journal.create(FaultyDisk(note), at=place, size=journal.RING_BYTES)
    assert writes == [(offset, 4096) for offset in range(0, journal.RING_BYTES, 4096)]
    assert (tmp_path / "ring").read_bytes() == bytes(journal.RING_BYTES)


def test_a_file_of_no_bytes_is_a_file(tmp_path: Path, place: int) -> None:
    replace_file(Disk(), "x", b"", at=place, temp="x.new", durable=True)
    assert os.listdir(tmp_path) == ["x"]


# --- where the kernel has no such call -----------------------------------------------------------


def test_where_fsync_leaves_data_in_the_drive_the_drive_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(disks, "_FULL_SYNC", 51)
    monkeypatch.setattr(disks.fcntl, "fcntl", lambda fd, call: asked.append((fd, call)))
    disks._sync_through(7)  # pyright: ignore[reportPrivateUsage]
    assert asked == [(7, 51)]


@pytest.mark.parametrize("advice", [4, None])
def test_where_nothing_can_be_begun_early_nothing_is(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, advice: int | None
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Disk, "advise", lambda _disk, *arguments: asked.append(arguments))
    monkeypatch.setattr(journal, "NOT_NEEDED", advice)
    with holdfast.open(tmp_path / "s", settings=Settings(clock=clock)) as hf:
        hf.global_().set("a", 1)
    assert [arguments[3] for arguments in asked] == ([] if advice is None else [advice])


@pytest.mark.parametrize(
    ("problem", "is_told"),
    [
        (errno.ENOSPC, True),
        (errno.EDQUOT, True),
        (errno.EIO, True),
        (errno.EOPNOTSUPP, False),
        (errno.EINVAL, False),
    ],
)
def test_only_a_disk_without_room_is_told_when_room_is_reserved(
    monkeypatch: pytest.MonkeyPatch, problem: int, is_told: bool
) -> None:
    """A file system that cannot reserve anything is used without."""

    def fallocate(*arguments: int) -> int:
        ctypes.set_errno(problem)
        return -1

    monkeypatch.setattr(disks, "_fallocate", lambda: fallocate)
    if is_told:
        with pytest.raises(OSError) as caught:
            Disk().reserve(7, 0, 512)
        assert caught.value.errno == problem
    else:
        Disk().reserve(7, 0, 512)


def test_a_library_without_fallocate_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    find = disks._fallocate  # pyright: ignore[reportPrivateUsage]
    find.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda *arguments, **named: SimpleNamespace())
        assert find() is None
        Disk().reserve(-1, 0, 512)  # which the real call would refuse
    find.cache_clear()
    assert find() is not None


# --- segments and the page -----------------------------------------------------------------------


def test_a_segment_that_is_gone_is_corruption_with_its_name(tmp_path: Path, place: int) -> None:
    segments = Segments(Disk(), place, read_only=False)
    segments.add(0)
    segments.close()
    (tmp_path / "0000000000000000.jsonl").unlink()
    with pytest.raises(CorruptError, match=r"the segment log/0000000000000000\.jsonl is missing"):
        segments.read(0, 10)


def test_a_segment_that_a_killed_writer_made_is_made_again(tmp_path: Path, place: int) -> None:
    (tmp_path / "0000000000000000.jsonl").touch()
    segments = Segments(Disk(), place, read_only=False)
    assert segments.size_of(0) == 0  # which opens it
    before = descriptors(tmp_path)
    segments.add(0)
    segments.append(0, b"line\n")
    assert segments.read(0, 5) == b"line\n"
    assert segments.starts == [0]
    assert descriptors(tmp_path) == before
    segments.close()


@pytest.mark.parametrize("call", ["sync", "sync_directory"])
def test_a_segment_that_cannot_be_made_durable_is_taken_back(
    tmp_path: Path, place: int, call: str
) -> None:
    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk = Disk()
    setattr(disk, call, failing)
    segments = Segments(disk, place, read_only=False)
    before = descriptors(tmp_path)
    with pytest.raises(OSError, match="Input/output error"):
        segments.add(0)
    assert os.listdir(tmp_path) == []
    assert segments.starts == []
    assert descriptors(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["x.jsonl", "zzzzzzzzzzzzzzzz.jsonl", "0000000000000000", "0000000000000000.json"]
)
def test_a_file_of_another_name_is_no_segment(tmp_path: Path, place: int, name: str) -> None:
    (tmp_path / name).write_bytes(b"foreign")
    assert Segments(Disk(), place, read_only=True).starts == []


def test_a_page_of_another_size_is_none_to_a_reader_and_made_by_a_writer(
    tmp_path: Path, place: int
) -> None:
    (tmp_path / "shared").write_bytes(b"short")
    before = descriptors(tmp_path)
    assert open_page(Disk(), at=place, read_only=True) is None
    assert descriptors(tmp_path) == before
    assert (tmp_path / "shared").read_bytes() == b"short"
    page = open_page(Disk(), at=place, read_only=False)
    assert isinstance(page, SharedPage)
    assert (tmp_path / "shared").stat().st_size == PAGE_BYTES
    page.close()
    page.close()  # the second time there is nothing left to close
    assert descriptors(tmp_path) == before

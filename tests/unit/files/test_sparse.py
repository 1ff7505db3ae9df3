"""Logs with holes of gigabytes: opened, cut and checked in little memory and on little disk."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from holdfast.backends.files import FilesBackend, pieces, recovery
from holdfast.backends.files.disk import Disk
from holdfast.errors import CorruptError
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import revisions, write

SEGMENT = Path("log") / "0000000000000000.jsonl"
MEMORY_BYTES = 256 << 20


def _closed(path: Path, clock: FakeClock, build: RecordBuilder, *, bare: bool = True) -> Path:
    backend = FilesBackend(path, clock=clock)
    for _ in range(3):
        write(backend, build, "a", b'"%0200d"' % 1)
    backend.close()
    if bare:
        (path / "head.json").unlink()
    return path / SEGMENT


def _used(path: Path) -> int:
    return sum(one.stat().st_blocks * 512 for one in path.rglob("*"))


def _in_little_memory(work: object) -> None:
    """Runs work in a child that may take 256 MiB more than it has; it must end with 0."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                has = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY_BYTES,) * 2)
            assert callable(work)
            work()
            code = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("gigabytes", [1, 8])
def test_a_sparse_log_takes_no_memory_and_no_room_in_torn(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, gigabytes: int
) -> None:
    path = tmp_path / "s"
    segment = _closed(path, clock, build)
    whole = segment.read_bytes()
    os.truncate(segment, gigabytes << 30)

    def work() -> None:
        reader = FilesBackend(path, clock=clock, read_only=True)
        assert revisions(reader.read("a")) == [1, 2, 3]
        reader.close()
        backend = FilesBackend(path, clock=clock)
        assert revisions(backend.read("a")) == [1, 2, 3]
        [report] = backend.inspect.describe()["reports"]
        assert f"cut {(gigabytes << 30) - len(whole)} bytes" in report
        assert f"zeros from log/{segment.name} byte" in report
        assert list(backend.inspect.verify(read_all=True)) == []
        backend.close()

    _in_little_memory(work)
    assert segment.read_bytes() == whole
    assert _used(path) < 4 << 20
    [kept] = (one for one in (path / "torn").iterdir() if one.suffix != ".txt")
    assert kept.stat().st_size < 1 << 20


def test_bytes_between_two_holes_are_kept_and_the_holes_are_named(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    path = tmp_path / "s"
    segment = _closed(path, clock, build)
    end = segment.stat().st_size
    with segment.open("r+b") as file:
        file.seek(end)
        file.write(b"torn text")
        file.seek(1 << 30)
        file.write(b"in the middle")
        file.truncate(2 << 30)

    def work() -> None:
        backend = FilesBackend(path, clock=clock)
        [report] = backend.inspect.describe()["reports"]
        assert report.count("zeros from") == 2
        backend.close()

    _in_little_memory(work)
    [kept] = (one for one in (path / "torn").iterdir() if one.suffix != ".txt")
    assert kept.read_bytes().replace(b"\0", b"") == b"torn textin the middle"


@pytest.mark.parametrize("knows_holes", [True, False])
def test_what_is_put_into_torn_is_capped_and_says_what_it_left_out(
    tmp_path: Path,
    clock: FakeClock,
    build: RecordBuilder,
    monkeypatch: pytest.MonkeyPatch,
    knows_holes: bool,
) -> None:
    path = tmp_path / "s"
    segment = _closed(path, clock, build)
    rubbish = b"x" * 5000 + bytes(8192) + b"y" * 30_000
    with segment.open("ab") as file:
        file.write(rubbish)
    monkeypatch.setattr(recovery, "TORN_BYTES_MAX", 20_000)
    monkeypatch.setattr(recovery, "TORN_RUNS_MAX", 0)
    monkeypatch.setattr(pieces, "CHUNK_BYTES", 16_384)
    if not knows_holes:
        monkeypatch.setattr("holdfast.backends.files.disk._SEEK_DATA", None)
    backend = FilesBackend(path, clock=clock)
    [report] = backend.inspect.describe()["reports"]
    assert f"cut {len(rubbish)} bytes" in report
    [kept] = (one for one in (path / "torn").iterdir() if one.suffix != ".txt")
    left = len(rubbish) - kept.stat().st_size
    assert kept.stat().st_size == 20_000
    assert "4096 zeros in 1 other places" in report
    assert f"the last {left - 4096} bytes, as 20000 were kept" in report
    backend.close()


def test_a_file_system_without_holes_has_data_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"1")
    os.truncate(path, 1 << 20)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert Disk().next_data(fd, 1 << 19) is None
        assert Disk().next_data(fd, 0) == 0
    finally:
        os.close(fd)
    read, write_end = os.pipe()
    assert Disk().next_data(read, 7) == 7
    os.close(read)
    os.close(write_end)


def test_a_hole_in_a_store_that_nobody_used_is_looked_over_for_lines(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    path = tmp_path / "s"
    segment = _closed(path, clock, build)
    whole = segment.read_bytes()
    os.truncate(segment, 4 << 20)
    FilesBackend(path, clock=clock).close()
    assert segment.read_bytes() == whole
    with segment.open("r+b") as file:
        file.truncate(4 << 20)
        file.seek(4 << 20)
        file.write(b"\n" + whole.splitlines(keepends=True)[0])
    (path / "head.json").unlink()
    backend = FilesBackend(path, clock=clock)
    with pytest.raises(CorruptError, match="nothing can be written"):
        backend.commit([])
    assert segment.stat().st_size > 4 << 20, "nothing is cut where whole lines follow"
    backend.close()

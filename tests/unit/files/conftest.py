"""Disks that fail, and a way to fill a store and to judge what is left of it."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.file_watch import idle_looks
from holdfast.backends.files import FilesBackend, catalog, journal, opening
from holdfast.backends.files import journal as ring
from holdfast.backends.files.disk import Disk
from holdfast.backends.protocol import Head, Mark, Receipt
from holdfast.clock import SystemClock
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder

CALLS = (
    *("open", "close", "size", "stat", "truncate", "rename", "unlink", "mkdir", "listdir"),
    *("pread", "pwrite", "sync", "sync_directory", "lock", "reserve"),
)


class FaultyDisk(Disk):
    """Numbers every call; `fault(number, name, run)` decides what becomes of it."""

    def __init__(
        self, fault: Callable[[int, str, Callable[..., Any], tuple[Any, ...]], Any]
    ) -> None:
        self.count = 0
        self.names: list[str] = []
        for name in CALLS:
            setattr(self, name, self._wrapped(name, getattr(Disk(), name), fault))

    def _wrapped(self, name: str, real: Callable[..., Any], fault: Callable[..., Any]) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            self.names.append(name)
            return fault(self.count, name, lambda *a: real(*(a or arguments), **named), arguments)

        return call


def fail_at(number: int, problem: int, *, only: tuple[str, ...] = CALLS, persistent: bool = False):
    """Returns a disk whose nth call of the given kinds fails, and those after it if persistent."""
    seen = 0

    def fault(_: int, name: str, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal seen
        if name in only:
            seen += 1
            if seen == number or (persistent and seen > number):
                raise OSError(problem, os.strerror(problem))
        return run()

    return FaultyDisk(fault)


def kill_at(number: int, *, torn: bool = False):
    """Returns a disk that ends this process at its nth call, in the middle of a write if torn."""

    def fault(count: int, name: str, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if count == number:
            if torn and name == "pwrite":
                fd, data, offset = arguments
                run(fd, data[: len(data) * 2 // 3], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return run()

    return FaultyDisk(fault)


def short_writes():
    """Returns a disk that writes and reads at most 700 bytes at a time."""

    def fault(_: int, name: str, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if name == "pwrite":
            fd, data, offset = arguments
            return run(fd, data[:700], offset)
        if name == "pread":
            fd, size, offset = arguments
            return run(fd, min(size, 700), offset)
        return run()

    return FaultyDisk(fault)


class PowerDisk(Disk):
    """Remembers what was not synced, so that a test can take it away as a power loss would.

    Names are taken to survive: the file systems in use order them. Bytes that were not synced
    survive in part, in any order, torn at 512.
    """

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self._synced: dict[str, bytes] = {}
        self._unsynced: dict[str, list[tuple[int, bytes]]] = {}

    def open(self, name: str, flags: int, *, at: int, mode: int = 0o600) -> int:
        fd = super().open(name, flags, at=at, mode=mode)
        path = os.readlink(f"/proc/self/fd/{fd}")
        self._paths[fd] = path
        if os.path.isfile(path):
            self._synced.setdefault(path, Path(path).read_bytes())
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:  # type: ignore[override]
        self._unsynced.setdefault(self._paths[fd], []).append((offset, bytes(data)))
        return os.pwrite(fd, data, offset)

    def sync(self, fd: int) -> None:  # type: ignore[override]
        path = self._paths[fd]
        os.fdatasync(fd)
        self._synced[path] = Path(path).read_bytes()
        self._unsynced.pop(path, None)

    def truncate(self, fd: int, length: int) -> None:
        super().truncate(fd, length)
        path = self._paths[fd]
        self._synced[path] = self._synced.get(path, b"")[:length]
        self._unsynced.pop(path, None)

    def rename(self, old: str, new: str, *, at: int) -> None:
        super().rename(old, new, at=at)
        folder = os.readlink(f"/proc/self/fd/{at}")
        before, after = os.path.join(folder, old), os.path.join(folder, new)
        self._synced[after] = self._synced.pop(before, b"")
        self._unsynced[after] = self._unsynced.pop(before, [])

    def lose_power(self, chance: random.Random) -> None:
        """Puts every file into a state that it may have after a power loss."""
        for path, writes in self._unsynced.items():
            if not os.path.exists(path) or not writes:
                continue
            content = bytearray(self._synced.get(path, b""))
            for offset, data in writes:
                if chance.random() < 0.5:
                    kept = data[: chance.randrange(0, len(data) + 512, 512)]
                    content[len(content) :] = bytes(max(0, offset - len(content)))
                    content[offset : offset + len(kept)] = kept
            Path(path).write_bytes(content)


@pytest.fixture(autouse=True)
def no_idle_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the look of another thread: a test that harms files says itself who looks when."""
    monkeypatch.setattr(idle_looks, "begin", lambda _: None)


@pytest.fixture
def disks() -> dict[str, Any]:
    return {
        "fail_at": fail_at,
        "kill_at": kill_at,
        "short_writes": short_writes,
        "power": PowerDisk,
        "faulty": FaultyDisk,
    }


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes everything happen early: the ring wraps, segments rotate, the index is flushed."""
    monkeypatch.setattr(ring, "RING_BYTES", 8192)
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 6000)
    monkeypatch.setattr(catalog, "FLUSH_BYTES", 5000)
    monkeypatch.setattr(opening, "WORTH_INDEXING_BYTES", 1000)


SIZES = (10, 900, 10, 2000, 6000, 300, 300, 1200, 10, 4100, 900, 900, 900, 900, 50, 2500)


class Filler:
    """Writes commits of many sizes; each is told to `told` when it was acknowledged."""

    def __init__(self, told: Callable[[int], object] = lambda number: None) -> None:
        self.told = told

    def fill(self, backend: FilesBackend, sizes: tuple[int, ...] = SIZES) -> None:
        build = RecordBuilder(SystemClock().now_us())
        a: Head | None
        for size in sizes:
            a, b = backend.heads(["a", "b"])
            number = (a.revision if a else 0) + 1
            payload = b'"%06d%b"' % (number, b"x" * size)
            commits = [build.commit(build.append("a", payload, behind=a, key=f"k{number}"))]
            if number % 5 == 0:
                two = build.append("b", behind=b, checkpoint=f"c{number}")
                commits.append(build.commit(two, marks=[Mark("i", f"m{number}")]))
            outcomes = backend.commit(commits)
            assert all(isinstance(outcome, Receipt) for outcome in outcomes), outcomes
            self.told(number)


def judge(path: Path, told: int, *, extra: int = 1, clock: Any = None) -> int:
    """Opens the store, asserts that all that was told is there and whole; returns how many are."""
    clock = clock or SystemClock()
    backend = FilesBackend(path, clock=clock)
    records = backend.read("a")
    assert told <= len(records) <= told + extra, f"told {told}, found {len(records)}"
    assert [record.revision for record in records] == list(range(1, len(records) + 1))
    assert [int(r.payload[1:7]) for r in records] == list(range(1, len(records) + 1))
    names = [found.name for found in backend.find("b")]
    assert names == [f"c{n}" for n in range(len(names) * 5, 0, -5)]
    assert len(names) in (told // 5, len(records) // 5)
    assert sorted(m.key for m in backend.marks.list("i")) == sorted(f"m{n[1:]}" for n in names)
    everything = backend.read_all(limit=10**6)
    assert [r for r in everything if r.stream == "a"] == records
    assert [r.position for r in everything] == sorted(r.position for r in everything)
    assert [f for f in backend.inspect.verify(read_all=True) if not f.harmless] == []
    Filler().fill(backend, (5, 700))
    assert len(backend.read("a")) == len(records) + 2
    digest = backend.inspect.describe()["digest"]
    backend.close()
    again = FilesBackend(path, clock=clock)
    assert again.inspect.describe()["digest"] == digest
    assert list(again.inspect.verify(read_all=True)) == []
    again.close()
    assert not (path / "ring").exists()
    return len(records)


def in_child(work: Callable[[Callable[[int], object]], object]) -> tuple[int, int]:
    """Runs `work` in a forked child; returns the last number that it told, and its exit status."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_fd)
            work(lambda number: os.write(write_fd, b"%08d" % number))
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    os.close(write_fd)
    told = b""
    while chunk := os.read(read_fd, 65536):
        told += chunk
    os.close(read_fd)
    _, status = os.waitpid(child, 0)
    return int(told[-8:] or 0), os.waitstatus_to_exitcode(status)


@pytest.fixture
def trial() -> dict[str, Any]:
    return {"Filler": Filler, "judge": judge, "in_child": in_child, "SIZES": SIZES}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def build() -> RecordBuilder:
    return RecordBuilder()


@pytest.fixture
def backend(tmp_path: Path, clock: FakeClock) -> Iterator[FilesBackend]:
    backend = FilesBackend(tmp_path / "store", clock=clock)
    yield backend
    backend.close()


ENOSPC, EIO = errno.ENOSPC, errno.EIO

"""Calls that fail: what a handle does then. Any may fail: tests/torture, t5 to t7, shows that."""

from __future__ import annotations

import contextlib
import errno
import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.files import FilesBackend
from holdfast.backends.protocol import Receipt
from holdfast.clock import SystemClock
from holdfast.errors import UnavailableError
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import head_of, write

# flock releases a lock, and close a descriptor, without fail; everything else may be refused.
FALLIBLE = (
    *("open", "size", "stat", "truncate", "rename", "unlink", "mkdir", "listdir"),
    *("pread", "pwrite", "sync", "sync_directory", "lock", "reserve"),
)


def _faulty(disks: dict[str, Any], hits: Callable[[int, str], bool], problem: int) -> Any:
    count = 0

    def fault(_: int, name: str, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal count
        if name in FALLIBLE and not (name == "lock" and arguments[1] == fcntl.LOCK_UN):
            count += 1
            if hits(count, name):
                disk.hits += 1
                raise OSError(problem, "refused by the test")
        return run()

    disk = disks["faulty"](fault)
    disk.hits = 0
    return disk


def test_a_failed_sync_poisons_the_handle_and_is_never_tried_again(
    tmp_path: Path, trial: dict[str, Any], disks: dict[str, Any], build: RecordBuilder
) -> None:
    """T6."""
    armed = False
    disk = _faulty(disks, lambda _, name: armed and name == "sync", errno.EIO)
    backend = FilesBackend(tmp_path / "s", clock=SystemClock(), disk=disk)
    write(backend, build, "x")
    armed = True
    with pytest.raises(UnavailableError) as caught:
        write(backend, build, "x")
    assert not caught.value.outcome_known
    armed = False
    calls = disk.count
    with pytest.raises(UnavailableError, match="open the store again"):
        write(backend, build, "x")
    assert disk.count == calls
    other = FilesBackend(tmp_path / "s", clock=SystemClock())
    assert head_of(other, "x").revision in (1, 2)
    assert isinstance(write(other, build, "x"), Receipt)
    backend.close()
    other.close()


@pytest.mark.parametrize("name", ["reserve", "open", "pwrite"])
def test_a_full_disk_that_is_freed_lets_the_same_handle_go_on(
    tmp_path: Path, disks: dict[str, Any], build: RecordBuilder, name: str
) -> None:
    """T7: what fails before the ring is written has a known outcome."""
    full = False
    disk = _faulty(disks, lambda _, called: full and called == name, errno.ENOSPC)
    backend = FilesBackend(tmp_path / "s", clock=SystemClock(), disk=disk)
    full = True
    for _ in range(3):
        with pytest.raises(UnavailableError, match="free some space") as caught:
            write(backend, build, "x")
        assert caught.value.outcome_known
        assert backend.heads(["x"]) == [None]
    full = False
    write(backend, build, "x")
    assert head_of(backend, "x").revision == 1
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()


def test_a_large_commit_on_a_full_disk_is_taken_back(
    tmp_path: Path, disks: dict[str, Any], build: RecordBuilder
) -> None:
    full = False

    def hits(_: int, name: str) -> bool:
        return full and name == "pwrite"

    disk = _faulty(disks, hits, errno.ENOSPC)
    backend = FilesBackend(tmp_path / "s", clock=SystemClock(), disk=disk)
    write(backend, build, "x")
    full = True
    with pytest.raises(UnavailableError, match="free some space") as caught:
        write(backend, build, "x", b'"%b"' % (b"y" * 700_000))
    assert caught.value.outcome_known
    full = False
    write(backend, build, "x", b'"%b"' % (b"y" * 700_000))
    assert head_of(backend, "x").revision == 2
    backend.close()


@pytest.mark.usefixtures("small")
def test_short_writes_and_reads_are_completed(
    tmp_path: Path, trial: dict[str, Any], disks: dict[str, Any]
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=SystemClock(), disk=disks["short_writes"]())
    trial["Filler"]().fill(backend)
    backend.close()
    trial["judge"](tmp_path / "s", len(trial["SIZES"]), extra=0)


def test_an_object_that_cannot_be_written_is_not_there(
    tmp_path: Path, disks: dict[str, Any]
) -> None:
    """BOOT-14."""
    left = [0]

    def hits(_: int, __: str) -> bool:
        left[0] -= 1
        return left[0] == 0

    disk = _faulty(disks, hits, errno.ENOSPC)
    backend = FilesBackend(tmp_path / "s", clock=SystemClock(), disk=disk)
    for number in range(1, 20):
        backend.objects.put("blob", "ab/old", b"old")
        left[0] = number
        with contextlib.suppress(UnavailableError):
            backend.objects.put("blob", "ab/old", b"new")
        left[0] = 0
        assert backend.objects.get("blob", "ab/old") in (b"old", b"new")
        assert backend.objects.names("blob") == ["ab/old"]
    backend.close()

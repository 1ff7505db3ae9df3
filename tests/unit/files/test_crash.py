"""Killed at every step, the store keeps what it acknowledged (guarantees 1, 2 and 7; clause 2)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.files import FilesBackend
from holdfast.clock import SystemClock
from holdfast.errors import UnavailableError, UsageError
from holdfast.testing.clock import FakeClock
from holdfast.testing.faults import CrashPoints

COMMIT_POINTS = [
    "files.segment.added",
    "files.ring.created",
    "files.ring.written",
    "files.ring.synced",
    "files.text.appended",
    "files.text.syncing",
    "files.text.synced",
    "files.published",
]
CLOSE_POINTS = [
    "files.close.indexed",
    "files.close.synced",
    "files.close.recorded",
    "files.close.unringed",
]
RECOVERY_POINTS = [
    "files.recovery.begun",
    "files.recovery.completed",
    "files.recovery.synced",
    "files.recovery.published",
]


def _work(path: Path, trial: dict[str, Any], told: Any, **options: Any) -> None:
    backend = FilesBackend(path, clock=SystemClock(), **options)
    trial["Filler"](told).fill(backend)
    backend.close()


@pytest.mark.usefixtures("small")
def test_every_named_point_is_passed(tmp_path: Path, trial: dict[str, Any]) -> None:
    points = CrashPoints()
    _work(tmp_path / "s", trial, lambda number: None, reach=points.reach)
    assert set(points.names) == {*COMMIT_POINTS, *CLOSE_POINTS, *RECOVERY_POINTS}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize("point", [*COMMIT_POINTS, *CLOSE_POINTS, *RECOVERY_POINTS])
def test_a_process_killed_at_a_named_point_loses_nothing(
    tmp_path: Path, trial: dict[str, Any], point: str, nth: int
) -> None:
    points = CrashPoints()
    points.kill_at(point, nth)
    told, code = trial["in_child"](
        lambda told: _work(tmp_path / "s", trial, told, reach=points.reach)
    )
    # A point may be passed less often than that; the first time it is always met.
    assert code == -signal.SIGKILL or (code == 0 and nth > 1)
    trial["judge"](tmp_path / "s", told)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_another_living_handle_goes_on_after_a_killed_writer(
    tmp_path: Path, trial: dict[str, Any], point: str, nth: int
) -> None:
    mine = FilesBackend(tmp_path / "s", clock=SystemClock())
    points = CrashPoints()
    points.kill_at(point, nth)
    told, _ = trial["in_child"](lambda told: _work(tmp_path / "s", trial, told, reach=points.reach))
    # What is acknowledged is seen without recovery; recovery comes with the next commit.
    assert len(mine.read("a")) >= told
    assert mine.commit([]) == []
    trial["Filler"]().fill(mine, (20,))
    count = len(mine.read("a"))
    assert count - 1 in (told, told + 1)
    mine.close()
    trial["judge"](tmp_path / "s", count, extra=0)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_a_process_killed_at_any_call_loses_nothing(
    tmp_path: Path, trial: dict[str, Any], disks: dict[str, Any], torn: bool
) -> None:
    """T1: every disk call of a store's whole life, until a run ends by itself."""
    number, killed = 1, 0
    while True:
        path = tmp_path / str(number)
        disk = disks["kill_at"](number, torn=torn)
        told, code = trial["in_child"](lambda told, p=path, d=disk: _work(p, trial, told, disk=d))
        trial["judge"](path, told)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
        # Every call of the first commits and a sample of the rest: the same code, other offsets.
        number += 1 if number < 50 else 13
    assert killed > 50


@pytest.mark.usefixtures("small")
def test_recovery_that_is_killed_is_done_again(
    tmp_path: Path, trial: dict[str, Any], disks: dict[str, Any]
) -> None:
    points = CrashPoints()
    points.kill_at("files.ring.synced", 9)
    path = tmp_path / "s"
    told, code = trial["in_child"](lambda told: _work(path, trial, told, reach=points.reach))
    assert code == -signal.SIGKILL
    number, code = 1, -signal.SIGKILL
    while code != 0:
        disk = disks["kill_at"](number)

        def recover(told: Any, disk: Any = disk) -> None:
            del told
            FilesBackend(path, clock=SystemClock(), disk=disk)
            os._exit(0)  # open, and gone without a close

        _, code = trial["in_child"](recover)
        number += 1
    trial["judge"](path, told)


@pytest.mark.parametrize("point", COMMIT_POINTS)
@pytest.mark.usefixtures("small")
def test_an_interrupted_commit_is_settled_by_the_next_handle_of_the_process(
    tmp_path: Path, trial: dict[str, Any], point: str
) -> None:
    points = CrashPoints()
    points.raise_at(point, KeyboardInterrupt(), 2)
    told: list[int] = [0]
    broken = FilesBackend(tmp_path / "s", clock=SystemClock(), reach=points.reach)
    with contextlib.suppress(KeyboardInterrupt):
        trial["Filler"](told.append).fill(broken)
    if point != "files.ring.created":  # which is passed once
        other = FilesBackend(tmp_path / "s", clock=SystemClock())
        trial["Filler"]().fill(other, (10,))
        assert len(other.read("a")) - 1 in (told[-1], told[-1] + 1)
        assert [f for f in other.inspect.verify(read_all=True) if not f.harmless] == []
        told.append(len(other.read("a")))
        other.close()
    broken.close()
    trial["judge"](tmp_path / "s", told[-1], extra=0)


def test_a_handle_that_failed_in_a_write_refuses_every_call(
    tmp_path: Path, trial: dict[str, Any]
) -> None:
    points = CrashPoints()
    backend = FilesBackend(tmp_path / "s", clock=SystemClock(), reach=points.reach)
    trial["Filler"]().fill(backend, (1,))
    points.raise_at("files.ring.synced", OSError(5, "no disk"))
    with pytest.raises(UnavailableError) as caught:
        trial["Filler"]().fill(backend, (1,))
    assert not caught.value.outcome_known
    for call in (
        lambda: backend.read("a"),
        lambda: backend.commit([]),
        lambda: backend.leases.holder("x"),
        lambda: backend.heads(["a"]),
    ):
        with pytest.raises(UnavailableError, match="open the store again"):
            call()
    backend.close()
    with pytest.raises(UsageError):
        backend.read("a")
    # The batch was synced: it is there.
    assert trial["judge"](tmp_path / "s", 1) == 2


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(60))
def test_power_loss_at_any_commit_loses_nothing(
    tmp_path: Path, trial: dict[str, Any], disks: dict[str, Any], seed: int
) -> None:
    """T4: unsynced bytes survive in part, in any order; the seed replays the case."""
    chance = random.Random(seed)
    sizes = [chance.choice((5, 200, 900, 1500, 3000, 7000)) for _ in range(chance.randrange(1, 30))]
    clock, disk = FakeClock(seed=seed), disks["power"]()
    points = CrashPoints()
    last = chance.choice(["files.ring.written", "files.ring.synced", "files.text.appended"])
    points.raise_at(last, KeyboardInterrupt(), max(1, len(sizes) - 1))
    told = [0]
    backend = FilesBackend(tmp_path / "s", clock=clock, disk=disk, reach=points.reach)
    with contextlib.suppress(KeyboardInterrupt):
        trial["Filler"](told.append).fill(backend, tuple(sizes))
    disk.lose_power(chance)
    clock.reboot()
    # The old handle belongs to the world before; only its lock on the directory must go.
    os.close(backend.opened._workers_fd)
    backend.directory._fds.remove(backend.opened._workers_fd)
    trial["judge"](tmp_path / "s", told[-1], clock=clock)


def test_the_name_of_a_segment_that_a_killed_writer_made_is_durable_before_it_is_used(
    tmp_path: Path, trial: dict[str, Any], disks: dict[str, Any]
) -> None:
    """It was killed after it made the file, and before it synced the directory."""
    place = tmp_path / "s"
    points = CrashPoints()
    points.kill_at("files.published", 3)
    trial["in_child"](lambda told: _work(place, trial, told, reach=points.reach))
    [segment] = (place / "log").iterdir()
    end = len(segment.read_bytes().rstrip(b"\0"))
    segment.with_name(f"{end:016x}.jsonl").touch()
    synced: list[int] = []

    def note(_: int, name: str, run: Any, arguments: tuple[Any, ...]) -> Any:
        if name == "sync_directory":
            synced.append(os.fstat(arguments[0]).st_ino)
        return run()

    backend = FilesBackend(place, clock=SystemClock(), disk=disks["faulty"](note))
    assert synced == [os.stat(place / "log").st_ino, os.stat(place).st_ino]
    backend.close()

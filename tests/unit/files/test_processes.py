"""Many processes and threads, one store (guarantees 3 and 5; clauses 9, 11 and 16)."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from holdfast.backends.files import FilesBackend, directory
from holdfast.backends.files.disk import Disk
from holdfast.backends.protocol import START, Receipt
from holdfast.clock import SystemClock
from holdfast.errors import UsageError
from holdfast.testing.durable import check_links
from holdfast.testing.faults import CrashPoints
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import head_of, write

EACH = 40


def _append_many(path: Path, worker: int, told: Any) -> None:
    backend = FilesBackend(path, clock=SystemClock())
    build = RecordBuilder(SystemClock().now_us(), actor=f"w{worker}")
    for number in range(EACH):
        while True:
            payload = b"[%d,%d]" % (worker, number)
            append = build.append("shared", payload, behind=backend.heads(["shared"])[0])
            own = build.append(f"own{worker}", payload, behind=backend.heads([f"own{worker}"])[0])
            build.time = max(append.records[0].time, own.records[0].time)
            append = build.append("shared", payload, behind=backend.heads(["shared"])[0])
            own = build.append(f"own{worker}", payload, behind=backend.heads([f"own{worker}"])[0])
            if append.records[0].time != own.records[0].time:
                continue
            if isinstance(backend.commit([build.commit(append, own)])[0], Receipt):
                break
        told(number + 1)
    backend.close()


@pytest.mark.usefixtures("small")
def test_eight_processes_append_to_one_stream_and_lose_nothing(
    tmp_path: Path, trial: dict[str, Any]
) -> None:
    path = tmp_path / "s"
    children = []
    for worker in range(8):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _append_many(path, worker, lambda number: None)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    backend = FilesBackend(path, clock=SystemClock())
    records = backend.read("shared")
    assert len(records) == 8 * EACH
    assert len({record.payload for record in records}) == 8 * EACH
    check_links(records)
    for worker in range(8):
        assert [r.payload for r in backend.read(f"own{worker}")] == [
            b"[%d,%d]" % (worker, number) for number in range(EACH)
        ]
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()
    assert not (path / "ring").exists()
    assert not (path / "shared").exists()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(6))
def test_processes_that_are_killed_among_others_cost_nothing(
    tmp_path: Path, trial: dict[str, Any], seed: int
) -> None:
    """One after another dies in the middle of a commit while a living one goes on."""
    chance = random.Random(seed)
    path = tmp_path / "s"
    told = 0
    mine = FilesBackend(path, clock=SystemClock())
    points = ["files.ring.written", "files.ring.synced", "files.text.appended", "files.published"]
    for _ in range(6):
        crash = CrashPoints()
        crash.kill_at(chance.choice(points), chance.randrange(1, 5))

        def work(tell: Any, crash: CrashPoints = crash) -> None:
            backend = FilesBackend(path, clock=SystemClock(), reach=crash.reach)
            trial["Filler"](tell).fill(backend)

        heard, code = trial["in_child"](work)
        assert code == -signal.SIGKILL
        told = max(told, heard)
        mine.commit([])
        count = len(mine.read("a"))
        assert told <= count <= told + 1
        trial["Filler"]().fill(mine, (chance.randrange(1, 2000),))
        told = count + 1
    mine.close()
    trial["judge"](path, told, extra=0)


def test_a_killed_holder_of_the_lock_does_not_keep_it(
    tmp_path: Path, trial: dict[str, Any]
) -> None:
    crash = CrashPoints()
    crash.kill_at("files.ring.written")

    def work(tell: Any) -> None:
        backend = FilesBackend(tmp_path / "s", clock=SystemClock(), reach=crash.reach)
        trial["Filler"](tell).fill(backend)

    assert trial["in_child"](work)[1] == -signal.SIGKILL
    trial["judge"](tmp_path / "s", 0)


def test_a_forked_child_does_not_keep_the_store_open(tmp_path: Path, build: RecordBuilder) -> None:
    """A child that lives on must not make its parent's clean close look like another's."""
    backend = FilesBackend(tmp_path / "s", clock=SystemClock())
    write(backend, build, "a")
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_fd)
        os.read(read_fd, 1)
        os._exit(0)
    os.close(read_fd)
    backend.close()
    assert not (tmp_path / "s" / "ring").exists()
    os.close(write_fd)
    os.waitpid(child, 0)


def test_the_ring_appears_with_the_first_commit_and_goes_with_the_last_handle(
    tmp_path: Path, build: RecordBuilder
) -> None:
    path = tmp_path / "s"
    one = FilesBackend(path, clock=SystemClock())
    two = FilesBackend(path, clock=SystemClock())
    assert not (path / "ring").exists()
    write(one, build, "a")
    assert (path / "ring").stat().st_size == 1 << 20
    one.close()
    assert (path / "ring").exists()
    assert not (path / "head.json").exists()
    write(two, build, "a")
    two.close()
    assert not (path / "ring").exists()
    assert (path / "head.json").exists()


def test_readers_do_not_wait_for_a_writer_in_its_sync(tmp_path: Path, build: RecordBuilder) -> None:
    """Clause 11 without a lock: a commit that hangs in its sync delays no reader (BOOT-52)."""
    syncing, go = Event(), Event()

    def reach(name: str) -> None:
        if name == "files.ring.written" and syncing.is_set() is False and armed:
            syncing.set()
            assert go.wait(60)

    armed = False
    backend = FilesBackend(tmp_path / "s", clock=SystemClock(), reach=reach)
    other = FilesBackend(tmp_path / "s", clock=SystemClock())
    write(backend, build, "a")
    armed = True
    thread = Thread(target=lambda: write(backend, build, "a"))
    thread.start()
    assert syncing.wait(60)
    for handle in (backend, other):
        assert head_of(handle, "a").revision == 1
        assert len(handle.read("a")) == 1
        assert handle.wait(START, timeout_s=0) == 1
    go.set()
    thread.join()
    assert head_of(other, "a").revision == 2
    backend.close()
    other.close()


def test_wait_wakes_at_once_for_a_commit_of_the_same_process(
    tmp_path: Path, build: RecordBuilder
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=SystemClock())
    found: list[int] = []
    thread = Thread(target=lambda: found.append(backend.wait(START, timeout_s=60)))
    thread.start()
    write(backend, build, "a")
    thread.join(120)
    assert found == [1]
    backend.close()


def test_close_ends_a_wait(tmp_path: Path) -> None:
    backend = FilesBackend(tmp_path / "s", clock=SystemClock())
    raised: list[BaseException] = []
    begun = Event()

    def wait() -> None:
        begun.set()
        try:
            backend.wait(START, timeout_s=60)
        except UsageError as exc:
            raised.append(exc)

    thread = Thread(target=wait)
    thread.start()
    assert begun.wait(120)
    backend.close()
    thread.join(120)
    assert len(raised) == 1


def test_whoever_opens_while_the_last_one_leaves_comes_in_first(
    tmp_path: Path, build: RecordBuilder
) -> None:
    """Found by T10: the one who left was still counted while it let its descriptors go."""
    found: list[int] = []

    class Slow(Disk):
        is_leaving = False

        def unlink(self, name: str, *, at: int) -> None:
            super().unlink(name, at=at)
            self.is_leaving = name == directory.NAME  # the last thing that it does under the lock

        def close(self, fd: int) -> None:
            if self.is_leaving:
                self.is_leaving = False
                other = FilesBackend(tmp_path / "store", clock=SystemClock())
                found.append(len(other.read("a")))
                other.close()
            super().close(fd)

    disk = Slow()
    backend = FilesBackend(tmp_path / "store", clock=SystemClock(), disk=disk)
    backend.commit([build.commit(build.append("a"))])
    backend.close()
    assert found == [1]

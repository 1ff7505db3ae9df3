"""What a forked child does with the handles it was born with (clause 13), one step at a time.

The hooks are called here without a fork, on handles of this process: the tests of real children are
in tests/faults/test_handles.py.
"""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from holdfast.backends import handle, liveness
from holdfast.backends.files import FilesBackend
from holdfast.backends.liveness import Workers
from holdfast.backends.sqlite import SqliteBackend
from holdfast.errors import UsageError
from holdfast.testing import FakeClock, RecordBuilder
from tests.descriptors import descriptors


@pytest.fixture(autouse=True)
def _only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the hooks away from handles of other tests."""
    monkeypatch.setattr(handle, "_handles", WeakSet())
    monkeypatch.setattr(liveness, "_open_workers", WeakSet())


def born() -> None:
    """Does what happens in a child before any of its code runs."""
    handle._mark_inherited()  # pyright: ignore[reportPrivateUsage]
    liveness._after_fork()  # pyright: ignore[reportPrivateUsage]


def calls(backend: Any) -> list[Any]:
    build = RecordBuilder()
    return [
        lambda: backend.commit([build.commit(build.append("a"))]),
        lambda: backend.read("a"),
        lambda: backend.heads(["a"]),
        lambda: backend.leases.acquire("l", "w", ttl_s=1),
        lambda: backend.objects.put("blob", "ab/cd", b""),
        lambda: list(backend.inspect.verify(read_all=True)),
    ]


@pytest.mark.parametrize("has_ring", [True, False])
def test_a_files_handle_gives_up_its_share_of_every_lock(tmp_path: Path, has_ring: bool) -> None:
    clock, build = FakeClock(), RecordBuilder()
    backend = FilesBackend(tmp_path / "s", clock=clock)
    if has_ring:
        backend.commit([build.commit(build.append("a"))])
    born()
    for call in calls(backend):
        with pytest.raises(UsageError, match="inherited by a forked child"):
            call()
    # With its share gone the next one in is the first, and recovers: nobody else has it open.
    reached: list[str] = []
    alone = FilesBackend(tmp_path / "s", clock=clock, reach=reached.append)
    assert "files.recovery.begun" in reached
    assert len(alone.read("a")) == has_ring
    alone.close()
    backend.close()  # which has nothing left to do, and takes no lock


def test_a_read_only_handle_closes_its_directory(tmp_path: Path) -> None:
    clock = FakeClock()
    FilesBackend(tmp_path / "s", clock=clock).close()
    reader = FilesBackend(tmp_path / "s", clock=clock, read_only=True)
    fd = reader.directory.fd
    born()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(UsageError, match="inherited by a forked child"):
        reader.read("a")


@pytest.mark.parametrize("read_only", [False, True])
def test_a_sqlite_handle_is_never_freed(tmp_path: Path, read_only: bool) -> None:
    """Freeing it would close connections, whose mutexes a thread of the parent may have held."""
    clock, build = FakeClock(), RecordBuilder()
    SqliteBackend(tmp_path / "s.db", clock=clock).close()
    backend = SqliteBackend(tmp_path / "s.db", clock=clock, read_only=read_only)
    gate = vars(backend)["_checkout"]
    reader = weakref.ref(gate.reader)
    connections = [gate.reader.connection]
    if not read_only:
        backend.commit([build.commit(build.append("a"))])
        connections.append(gate.writer.connection)
    born()
    for call in calls(backend):
        with pytest.raises(UsageError, match="inherited by a forked child"):
            call()
    backend.close()
    del backend, gate, call
    gc.collect()
    assert reader() is not None
    for connection in connections:
        assert connection.execute("SELECT count(*) FROM sqlite_schema").get > 0  # still open
        connection.close()


def test_a_handle_that_was_closed_before_is_left_alone(tmp_path: Path) -> None:
    backend = FilesBackend(tmp_path / "s", clock=FakeClock())
    backend.close()
    born()
    with pytest.raises(UsageError, match="store is closed"):
        backend.read("a")


def test_workers_are_let_go_without_ending_them(tmp_path: Path) -> None:
    mine, other = Workers(tmp_path / "workers"), Workers(tmp_path / "workers")
    mine.hold("w1")
    born()
    assert vars(mine)["_held"] == {}
    assert (tmp_path / "workers").is_dir()
    assert len(list((tmp_path / "workers").iterdir())) == 1  # the parent's file is not removed
    mine.close()
    assert not other.is_alive("w1")  # here the descriptor was the only one


def test_workers_that_held_nobody_have_nothing_to_let_go(tmp_path: Path) -> None:
    idle = Workers(tmp_path / "workers")
    idle.after_fork()
    idle.close()
    assert descriptors(tmp_path) == []

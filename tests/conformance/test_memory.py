"""The memory backend keeps the contract."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import START, Backend, Lease, Mark, Record
from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.testing import FakeClock, RecordBuilder
from holdfast.testing.contract import BackendContract


class TestMemory(BackendContract):
    def make(self, place: Path, clock: Clock) -> Backend:
        return MemoryBackend(clock=clock)

    def raw(self, backend: Backend, place: Path, stream: str) -> list[Record]:
        return list(vars(backend)["_streams"].get(stream, ()))


def test_close_wakes_a_waiting_thread() -> None:
    backend = MemoryBackend(clock=FakeClock())
    waiting, raised = Event(), list[UsageError]()

    def follow() -> None:
        waiting.set()
        try:
            backend.wait(START, timeout_s=60)
        except UsageError as error:
            raised.append(error)

    follower = Thread(target=follow)
    follower.start()
    waiting.wait()
    backend.close()
    follower.join(30)
    assert [str(error) for error in raised] == ["store is closed"]


def test_read_only_refuses_writes_and_allows_reads() -> None:
    backend = MemoryBackend(clock=FakeClock(), read_only=True)
    build = RecordBuilder()
    with pytest.raises(UsageError, match="read-only"):
        backend.commit([build.commit(build.append("a"))])
    with pytest.raises(UsageError, match="read-only"):
        backend.objects.put("blob", "ab/cd", b"")
    with pytest.raises(UsageError, match="read-only"):
        backend.leases.acquire("l", "w1", ttl_s=10)
    with pytest.raises(UsageError, match="read-only"):
        backend.leases.release(Lease("l", "w1", 1, 0))
    with pytest.raises(UsageError, match="read-only"):
        backend.marks.claim("i", "w1", n=1, ttl_s=10)
    assert backend.read("a") == backend.streams() == backend.marks.list() == []


@pytest.mark.parametrize("durability", ["full", "process", "none"])
def test_durability_is_shown_as_stated(durability: str) -> None:
    backend = MemoryBackend(clock=FakeClock(), durability=durability)  # pyright: ignore
    assert backend.inspect.describe()["durability"] == durability


def test_a_callers_mistake_is_a_bug() -> None:
    backend = MemoryBackend(clock=FakeClock())
    build = RecordBuilder()
    a1 = build.append("a")
    for commit in (
        build.commit(a1, build.append("a", behind=a1)),
        build.commit(marks=[Mark("i", "m"), Mark("i", "m")]),
    ):
        with pytest.raises(AssertionError, match=r"^BUG: "):
            backend.commit([commit])
    assert backend.streams() == []

"""Which lease fences what is committed here: the innermost block of one of the same log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.core.commit import Fence, NewEvent, ProposedCommit, StreamWrite
from holdfast.core.leases import HeldLease, LeaseKeeper
from holdfast.core.log import LEASE_BLOCK, WRITER, Log, Writer
from holdfast.errors import LeaseLostError
from holdfast.testing import FakeClock

COMMIT = ProposedCommit((StreamWrite("team/t", (NewEvent("noted", b"null"),)),))


class OfRun:
    def __init__(self, log: Log) -> None:
        self._log = log

    def fences(self, log: Log) -> bool:
        return log is self._log


@pytest.fixture
def logs() -> Iterator[list[Log]]:
    clock = FakeClock()
    made = [Log(MemoryBackend(clock=clock), clock=clock, actor="tester") for _ in range(2)]
    yield made
    for log in made:
        log.close()
    assert LEASE_BLOCK.get() is None


def held(log: Log, name: str = "L") -> HeldLease:
    lease = log.leases.acquire(name, "w", ttl_s=60)
    assert lease is not None
    return HeldLease(*_fields(lease), keeper=LeaseKeeper(log, "w"), ttl_s=60.0)


def _fields(lease: Any) -> tuple[Any, ...]:
    return tuple(getattr(lease, name) for name in lease.__struct_fields__)


def test_each_log_finds_its_own_block(logs: list[Log]) -> None:
    a, b = logs
    first, second, third = held(a), held(b), held(a, "M")
    assert [log.fence_here() for log in logs] == [None, None]
    first.fence()
    assert [log.fence_here() for log in logs] == [Fence("L", "w", first.epoch), None]
    second.fence()
    third.fence()
    assert [log.is_fenced_here for log in logs] == [True, True]
    first.unfence()  # in any order
    assert a.fence_here() == Fence("M", "w", third.epoch)
    b.leases.release(second)
    a.commit(COMMIT)
    with pytest.raises(LeaseLostError):
        b.commit(COMMIT)
    third.unfence()
    assert [log.is_fenced_here for log in logs] == [False, True]
    second.unfence()
    b.commit(COMMIT)


def test_a_block_that_ends_where_it_was_not_entered_ends_no_other(logs: list[Log]) -> None:
    a, b = logs
    mine, elsewhere = held(a), held(b)
    elsewhere.fence()
    LEASE_BLOCK.set(None)  # as in another task
    elsewhere.unfence()
    elsewhere.fence()
    mine.fence()
    around = LEASE_BLOCK.get()
    assert around is not None
    assert around.without(b.stored_at, Fence("N", "w", 1)) is around
    mine.unfence()
    elsewhere.unfence()


def test_a_run_fences_its_own_log(logs: list[Log]) -> None:
    token = WRITER.set(cast("Writer", OfRun(logs[0])))
    assert [log.is_fenced_here for log in logs] == [True, False]
    WRITER.reset(token)

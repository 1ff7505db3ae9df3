"""Clause 16: an epoch never repeats, also where the rows that knew it were lost.

Redis behind a failover is in test_redis_faults.py; a wall clock that jumps is in the contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.backends.files import FilesBackend
from holdfast.backends.postgresql import PostgresqlBackend
from holdfast.backends.protocol import Backend, Fence, Refusal
from holdfast.backends.redis import RedisBackend
from holdfast.clock import SystemClock
from holdfast.testing import FakeClock, RecordBuilder
from tests.servers import ground, postgresql, redis
from tests.servers.postgresql import NEWEST, program


@pytest.fixture
def own_postgresql() -> Iterator[postgresql.Server]:
    running = postgresql.new_server(NEWEST)
    yield running
    running.remove()


def pass_on(backend: Backend, times: int) -> list[int]:
    """Lets a lease pass from owner to owner; returns the epochs."""
    epochs: list[int] = []
    for n in range(times):
        lease = backend.leases.acquire("l", f"w{n}", ttl_s=60)
        assert lease is not None
        epochs.append(lease.epoch)
        backend.leases.release(lease)
    return epochs


def check_above(backend: Backend, known: list[int], owner: str) -> None:
    """Epochs go on above all that were ever given, and a late commit under one is fenced."""
    assert known == sorted(set(known))
    lease = backend.leases.acquire("l", "later", ttl_s=60)
    assert lease is not None
    assert lease.epoch > known[-1]
    build = RecordBuilder()
    late = build.commit(build.append("a"), fence=Fence("l", owner, known[-1]))
    [outcome] = backend.commit([late])
    assert isinstance(outcome, Refusal)
    assert outcome.reason == "fenced"


def test_an_older_dump_that_was_restored_gives_greater_epochs(
    own_postgresql: postgresql.Server,
) -> None:
    running = own_postgresql
    backend = PostgresqlBackend(running.url(), clock=SystemClock())
    known = pass_on(backend, 3)
    file = f"{running.directory}/older.sql"
    login = ("-h", str(running.directory), "-p", str(running.port), "-U", "tester")
    ground.run(program(NEWEST, "pg_dump"), "-f", file, *login, "-d", "postgres")
    known += pass_on(backend, 5)
    backend.close()
    running.create_database("restored")
    options = ("-q", "-v", "ON_ERROR_STOP=1", "-f", file)
    ground.run(program(NEWEST, "psql"), *options, *login, "-d", "restored")
    restored = PostgresqlBackend(running.url("restored"), clock=SystemClock())
    check_above(restored, known, "w4")
    restored.close()


def test_a_standby_that_had_not_got_the_newest_gives_greater_epochs(
    own_postgresql: postgresql.Server,
) -> None:
    primary = own_postgresql
    backend = PostgresqlBackend(primary.url(), clock=SystemClock())
    known = pass_on(backend, 3)
    standby = primary.standby()
    known += pass_on(backend, 5)
    backend.close()
    primary.crash()
    standby.promote()
    promoted = PostgresqlBackend(standby.url(), clock=SystemClock())
    check_above(promoted, known, "w4")
    promoted.close()
    standby.remove()


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_a_redis_server_that_comes_back_gives_greater_epochs(lost: bool) -> None:
    """Started again with everything, and with nothing of the leases."""
    running = redis.new_server(redis.OLDEST)
    backend = RedisBackend(running.url(), clock=SystemClock())
    known = pass_on(backend, 5)
    running.kill()
    running.start()
    if lost:
        with running.client() as client:
            for key in client.scan_iter("holdfast:*:leases"):
                client.delete(key)
    check_above(backend, known, "w4")
    backend.close()
    running.remove()


@pytest.mark.parametrize("jump_s", [3600, -3600], ids=["ahead", "back"])
def test_a_files_store_that_lost_its_leases_gives_greater_epochs(
    tmp_path: Path, jump_s: int
) -> None:
    """`leases.json` is never synced. The clock that was ahead may be set right, but the file is
    not lost in the same moment: what it forgot while the clock was ahead, it still knows."""
    clock = FakeClock()
    backend = FilesBackend(tmp_path / "store", clock=clock)
    known = pass_on(backend, 3)
    clock.set(clock.now_us() + jump_s * 1_000_000)
    known += pass_on(backend, 3)
    backend.close()
    if jump_s > 0:
        (tmp_path / "store" / "leases.json").unlink()
    again = FilesBackend(tmp_path / "store", clock=clock)
    clock.advance(0.01)
    check_above(again, known, "w2")
    again.close()

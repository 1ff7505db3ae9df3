"""Clause 16: an epoch never repeats, also where the rows that knew it were lost.

Redis after a failover is in test_redis_faults.py; a wall clock that jumps is in the contract.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.files import FilesBackend
from holdfast.backends.postgresql import PostgresqlBackend
from holdfast.backends.protocol import Backend, Fence, Lease, Refusal
from holdfast.backends.redis import RedisBackend
from holdfast.clock import SystemClock
from holdfast.testing import FakeClock, RecordBuilder
from tests.servers import ground, postgresql, redis
from tests.servers.postgresql import NEWEST, program

STANDING = """CREATE OR REPLACE FUNCTION holdfast.now_us() RETURNS bigint LANGUAGE sql VOLATILE
 AS $$ SELECT 1000000::bigint $$"""


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


def come_and_go(store: holdfast.Store, times: int) -> None:
    """Takes so many leases, each of a name of its own, and gives them back."""
    leases = store._log._backend.leases
    for n in range(times):
        lease = leases.acquire(f"n{n}", store.workers.own, ttl_s=60)
        assert lease is not None
        leases.release(lease)


def epoch_of(store: holdfast.Store, name: str) -> int:
    lease = store._log._backend.leases.acquire(name, store.workers.own, ttl_s=60)
    assert lease is not None
    store._log._backend.leases.release(lease)
    return lease.epoch


@contextmanager
def sqlite(path: Path) -> Generator[Any]:
    connection = apsw.Connection(str(path))
    yield connection
    connection.close()


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


def test_released_leases_leave_no_rows(tmp_path: Path) -> None:
    """Each run, worker and group has a lease of its own: they would pile up for ever."""
    running = redis.new_server(redis.OLDEST)
    try:
        with holdfast.open(running.url()) as store, running.client() as client:
            come_and_go(store, 200)
            assert client.hlen("holdfast:{default}:leases") == 0
            greatest = int(client.hget("holdfast:{default}", "epoch"))  # type: ignore
            backend: Any = store._log._backend
            backend._checkout.clock = "local function now_us() return 1000000 end\n"  # set back
            assert epoch_of(store, "n0") == greatest + 1
    finally:
        running.remove()
    with holdfast.open(
        f"sqlite:{tmp_path / 'state.db'}", settings=Settings(clock=FakeClock())
    ) as store:
        come_and_go(store, 200)
        assert epoch_of(store, "n0") == epoch_of(store, "n1") - 1
    with sqlite(tmp_path / "state.db") as rows:
        assert [name for (name,) in rows.execute("SELECT name FROM leases")] == [""]
    with holdfast.open(str(tmp_path / "files"), settings=Settings(clock=FakeClock())) as store:
        come_and_go(store, 200)
        context = json.loads((tmp_path / "files" / "leases.json").read_text())
        assert context["leases"] == {}
        assert epoch_of(store, "n0") > context["forgotten"]


def test_released_leases_of_a_postgresql_store_are_deleted_now_and_then(
    own_postgresql: postgresql.Server,
) -> None:
    with holdfast.open(own_postgresql.url()) as store:
        come_and_go(store, 200)
        kept = own_postgresql.psql("postgres", "SELECT name FROM holdfast.leases").splitlines()
        assert 0 < len(kept) <= 64
        greatest = int(
            own_postgresql.psql("postgres", "SELECT epoch FROM holdfast.leases WHERE name = ''")
        )
        own_postgresql.psql("postgres", STANDING)  # set back: the one row is all that knows
        assert epoch_of(store, "n0") == greatest + 1


def test_epochs_grow_while_released_leases_are_being_deleted(
    own_postgresql: postgresql.Server,
) -> None:
    """Two owners pass one lease to and fro under a standing clock, two others delete its row."""
    url = own_postgresql.url()
    with holdfast.open(url) as first:
        own_postgresql.psql("postgres", STANDING)
        leases = [PostgresqlBackend(url, clock=SystemClock()) for _ in range(4)]
        given: list[int] = []
        stop = Event()

        def forget(backend: PostgresqlBackend) -> None:
            while not stop.is_set():
                backend.leases.release(Lease("none", "nobody", 1, 0))

        def take(backend: PostgresqlBackend, owner: str) -> None:
            taken = 0
            while taken < 50:
                lease = backend.leases.acquire("l", owner, ttl_s=60)
                if lease is not None:
                    taken += 1
                    given.append(lease.epoch)
                    backend.leases.release(lease)

        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as pool:
            patch.setattr("holdfast.backends.postgresql.backend._FORGET_EVERY", 1)
            deleting = [pool.submit(forget, backend) for backend in leases[:2]]
            taking = [pool.submit(take, backend, f"w{n}") for n, backend in enumerate(leases[2:])]
            for each in taking:
                each.result()
            stop.set()
            for each in deleting:
                each.result()
        assert len(set(given)) == len(given) == 100
        assert epoch_of(first, "l") > max(given)
        for backend in leases:
            backend.close()


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

"""Workers that are killed, that hang and wake, on every durable backend (BOOT-70, VIC-31).

Real processes and real servers. On files and SQLite a dead worker is known at once; on a server
when its lease has expired by the server's clock.
"""

from __future__ import annotations

import os
import random
import select
import signal
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from time import monotonic

import pytest

import holdfast
from holdfast import Event, LeaseLostError, Settings, Store, UnavailableError
from holdfast.backends.protocol import START, Lease
from holdfast.core.consumers import Delivery
from holdfast.core.leases import Worker
from tests.concurrency.player import PATIENCE_S, SHARED, Player
from tests.selection import RUNS_ALL
from tests.servers import postgresql, redis

EMBEDDED = ("files", "sqlite")


@pytest.fixture(params=[*EMBEDDED, "redis", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(kind: str, tmp_path: Path) -> str:
    """A store of this test's own."""
    application = f"workers-{tmp_path.name}"[:60]
    if kind == "redis":
        return redis.server(redis.OLDEST).url(application=application)
    if kind == "postgresql":
        return postgresql.server(postgresql.NEWEST).url(application=application)
    return str(tmp_path / "store") if kind == "files" else f"sqlite:{tmp_path / 'x.db'}"


def until(holds: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE_S
    while not holds():
        assert monotonic() < deadline, "it did not come to that"
        select.select([], [], [], 0.02)


def take_when_free(store: Store) -> Lease:
    found: list[Lease] = []

    def took() -> bool:
        try:
            found.append(store.workers.lease("boss", ttl_s=600))
        except (LeaseLostError, UnavailableError):  # a server that was cut off may be slow at first
            return False
        return True

    until(took)
    return found[0]


def take_kept(store: Store) -> Lease:
    """Returns a kept lease that is not lost: a busy machine may take its time over the first."""
    found: list[Lease] = []

    def took() -> bool:
        found.append(store.workers.lease("boss", ttl_s=1.5, keep=True))
        return not store.workers.lost(found[-1])

    until(took)
    return found[-1]


def test_guarantee_4_a_hung_worker_is_a_suspect_and_fenced_when_it_wakes(url: str) -> None:
    with Player(url, "a", "live", 2500) as hung, holdfast.open(url) as store:
        worker, epoch = hung.hear()
        hung.tell("first")
        assert hung.hear() == ["written", False]
        until(lambda: [(w.id, w.alive) for w in store.workers.list()] == [(worker, True)])
        [known] = store.workers.list()
        assert (known.leases, known.started is not None) == (("boss",), True)
        assert store.workers.suspects() == []
        hung.signal(signal.SIGSTOP)
        until(lambda: [suspect.id for suspect in store.workers.suspects()] == [worker])
        assert not store._kernel.leases.is_alive(worker)
        [suspect] = store.workers.suspects()
        assert suspect.leases == ("boss",)
        assert suspect.silent_s > 2.1
        lease = take_when_free(store)
        assert lease.epoch > epoch
        scope = store.scope(SHARED)
        with store.commit(lease=lease) as tx:
            tx.scope(scope).set("boss", "b")
        hung.signal(signal.SIGCONT)
        hung.tell("late")
        assert hung.hear() == ["refused", True]
        assert scope.get("boss") == "b"
        # It lives, and says so again: in a new epoch of its own lease, the other one stays lost.
        until(lambda: store._kernel.leases.is_alive(worker))
        assert store.workers.suspects() == []
        hung.tell("late again")
        assert hung.hear() == ["refused", True]
        types = [
            event.type
            for event in store.follow(as_events=True, after=START, timeout_s=0)
            if event.stream == "store/workers"
        ]
        assert types == ["worker.registered", "worker.returned"]


def test_boot_70_a_killed_worker_is_a_suspect_with_what_it_left(kind: str, url: str) -> None:
    with Player(url, "a", "live", 600_000) as doomed, holdfast.open(url) as store:
        worker, epoch = doomed.hear()
        doomed.kill()
        if kind in EMBEDDED:
            # The kernel tells, though neither lease has expired.
            assert [suspect.id for suspect in store.workers.suspects()] == [worker]
            assert store.workers.lease("boss").epoch > epoch
        else:
            until(lambda: [suspect.id for suspect in store.workers.suspects()] == [worker])
            [suspect] = store.workers.suspects()
            assert suspect.leases == ("boss",)
            with pytest.raises(LeaseLostError):
                store.workers.lease("boss")
        assert not store._kernel.leases.is_alive(worker)


def test_a_worker_that_ends_cleanly_is_no_suspect(url: str) -> None:
    with Player(url, "a", "live", 600_000) as worker, holdfast.open(url) as store:
        _, epoch = worker.hear()
        worker.tell("end")
        until(lambda: store.workers.list() == [])
        assert store.workers.lease("boss").epoch > epoch


def test_killed_consumers_skip_nothing_and_redelivery_is_bounded_and_marked(url: str) -> None:
    """VIC-32, BOOT-56: at least once, in order; each counted once by its idempotency key."""
    seed = int(os.environ["HOLDFAST_SEED"])
    print(f"seed {seed}")
    chance = random.Random(seed)
    batch, total, seen = 4, 30 if RUNS_ALL else 15, 0
    with holdfast.open(url) as store:
        expected: list[str] = []
        for n in range(total):
            revision = store.team(f"t{n % 3}").set("n", n)
            expected.append(f"billing/team/t{n % 3}@{revision}")
        while seen < total:
            got = play(url, batch, expected, chance)
            start = expected.index(got[0][0])
            keys = [key for key, _ in got]
            assert start <= seen, "something was skipped"
            assert keys == expected[start : start + len(keys)]
            assert seen - start <= batch, "too much came again"
            assert all(again for _, again in got[: seen - start])
            assert not any(again for _, again in got[batch:])
            seen = max(seen, start + len(keys))
        finish(store, batch)
        assert store.workflow("ledger").get("n") == total
        [status] = store.workers.groups()
        assert (status.member, status.lag_events) == (None, 0)
        moves = [
            event
            for event in store.follow(as_events=True, after=START, timeout_s=0)
            if event.stream == "group/billing"
        ]
        assert moves[0].data["done"] == "0"


def play(
    url: str, batch: int, expected: list[str], chance: random.Random
) -> list[tuple[str, bool]]:
    """Lets a consumer live for some deliveries, kills it, and returns what it was given."""
    got: list[tuple[str, bool]] = []
    with Player(url, "c", "consume", batch) as consumer:
        assert consumer.hear() == "ready"
        for _ in range(chance.randint(3, 12)):
            key, again = consumer.hear()
            got.append((key, again))
            if chance.random() < 0.1:
                break  # killed before it is done
            consumer.tell()
            if chance.random() < 0.1 or key == expected[-1]:
                break  # killed while it is at it
            assert consumer.hear() == "done"
            consumer.tell("go on")
        consumer.kill()
    return got


def finish(store: Store, batch: int) -> None:
    """Takes over from a consumer that was killed, and does what is left."""
    with store.workers.group("billing", prefix="team/", batch=batch, ttl_s=1.0) as group:
        left: list[Delivery] = []

        def joined() -> bool:
            left.extend(group.take(batch))
            return group.after is not None

        until(joined)
        for delivery in chain(left, group.deliveries(timeout_s=0)):
            with store.commit(key=delivery.key, lease=delivery.lease) as tx:
                tx.scope(store.workflow("ledger")).increment("n", 1)
            delivery.done()


def test_guarantee_4_a_hung_consumer_is_taken_over_and_cannot_finish(url: str) -> None:
    with Player(url, "c", "consume", 5) as hung, holdfast.open(url) as store:
        for n in range(3):
            store.team("t").set("n", n)
        assert hung.hear() == "ready"
        assert hung.hear() == ["billing/team/t@1", False]
        group = store.workers.group("billing", prefix="team/", batch=5, ttl_s=60)
        assert group.take() == []
        hung.signal(signal.SIGSTOP)
        taken: list[Delivery] = []
        until(lambda: bool(taken.extend(group.take(3)) or taken))
        assert [(each.key, each.again) for each in taken] == [
            (f"billing/team/t@{n}", True) for n in (1, 2, 3)
        ]
        hung.signal(signal.SIGCONT)
        hung.tell()
        assert hung.hear() == "lost"
        assert store.workflow("ledger").get("n") is None
        for delivery in taken:
            delivery.done()
        group.close()
        # It stands by, and goes on where the other one left off.
        store.team("t").set("n", 3)
        hung.tell("go on")
        assert hung.hear() == ["billing/team/t@4", False]


@pytest.mark.parametrize("name", ["redis", "postgresql"])
def test_a_heart_cut_off_from_its_server_loses_its_leases_and_comes_back(name: str) -> None:
    """While nobody can be asked, the holder must assume the worst; the heart goes on trying."""
    if name == "redis":
        running = redis.new_server(redis.OLDEST)
    else:
        running = postgresql.new_server(postgresql.NEWEST)
    try:
        holdfast.open(running.url()).close()  # made with patience
        with holdfast.open(running.url(timeout=0.5), settings=Settings(heartbeat_s=0.5)) as store:
            lease = take_kept(store)
            running.freeze()
            until(lambda: store.workers.lost(lease))
            select.select([], [], [], 1.0)  # until its time is over for the server too
            running.thaw()
            until(lambda: [worker.alive for worker in _workers(store)] == [True])
            # By the server's clock its time was over too, so it stays lost.
            until(lambda: [event.type for event in _events(store)][-1:] == ["worker.returned"])
            assert store.workers.lost(lease)
            assert take_when_free(store).epoch > lease.epoch
    finally:
        running.thaw()
        running.remove()


def _workers(store: Store) -> list[Worker]:
    try:
        return store.workers.list()
    except UnavailableError:
        return []


def _events(store: Store) -> list[Event]:
    try:
        return [
            event
            for event in store.follow(as_events=True, after=START, timeout_s=0)
            if event.stream == "store/workers"
        ]
    except UnavailableError:
        return []

"""Heartbeats and kept leases, by a clock under the test's hand (guarantee 4, BOOT-70, VIC-31)."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    CorruptError,
    LeaseLostError,
    Settings,
    Store,
    UnavailableError,
    UsageError,
    aio,
)
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import START, Lease, Leases, renew_many
from holdfast.core.leases import FORGET_S
from holdfast.testing import FakeClock

BEAT_S = 1000.0
LEASE_S = 3 * BEAT_S

Open = Callable[[], Store]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["files", "sqlite"])
def open_store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Open]:
    """Opens one store again and again, each time as another worker, whose heart the test beats.

    tests/servers/test_workers.py has hearts that beat by themselves.
    """

    def dead(*_: object) -> None:
        return

    monkeypatch.setattr("holdfast.core.leases._live", dead)
    url = str(tmp_path / "s") if request.param == "files" else f"sqlite:{tmp_path / 's.db'}"
    stores: list[Store] = []

    def opened() -> Store:
        stores.append(holdfast.open(url, settings=Settings(clock=clock, heartbeat_s=BEAT_S)))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


def types_of(store: Store, stream: str) -> list[str]:
    return [
        event.type
        for event in store.follow(as_events=True, after=START, timeout_s=0)
        if event.stream == stream
    ]


def test_only_what_others_must_know_of_registers_a_worker(hf: Store) -> None:
    hf.team("a").set("n", 1)
    list(hf.follow(as_events=True, after=START, timeout_s=0))
    lease = hf.workers.lease("plain")
    hf.workers.renew(lease)
    hf.workers.release(lease)
    assert hf.workers.list() == hf.workers.suspects() == []
    assert types_of(hf, "store/workers") == []
    hf._kernel.leases.register()
    hf._kernel.leases.register()
    [worker] = hf.workers.list()
    assert (worker.id, worker.alive, worker.pid) == (hf.workers.own, True, os.getpid())
    assert worker.host
    assert worker.actor == hf.workers.own
    assert worker.started is not None
    assert 0 <= worker.silent_s < 30
    assert types_of(hf, "store/workers") == ["worker.registered"]


def test_boot_70_a_silent_worker_is_a_suspect_until_it_returns(
    open_store: Open, clock: FakeClock
) -> None:
    one, other = open_store(), open_store()
    boss = one.workers.lease("boss", ttl_s=LEASE_S, keep=True)
    with one.commit() as tx:
        tx.mark("todo", "t1")
        tx.mark("todo", "t2")
    assert [mark.key for mark in one.workers.claim("todo", n=2, ttl_s=10 * LEASE_S)] == ["t1", "t2"]
    one._log._backend.marks.release("todo", "t2", one.workers.own)
    clock.advance(LEASE_S - 1)
    assert other.workers.suspects() == []
    assert other._kernel.leases.is_alive(one.workers.own)
    clock.advance(2)
    [suspect] = other.workers.suspects()
    assert (suspect.id, suspect.leases, suspect.claims) == (
        one.workers.own,
        ("boss",),
        (("todo", "t1"),),
    )
    assert suspect.silent_s == pytest.approx(LEASE_S + 1, abs=0.1)
    assert (suspect.last_heartbeat.timestamp() + suspect.silent_s) * 1e6 == pytest.approx(
        clock.now_us(), abs=10
    )
    assert not other._kernel.leases.is_alive(one.workers.own)
    assert one._kernel.leases.is_alive(one.workers.own)
    one._kernel.leases.tend()
    assert other.workers.suspects() == []
    assert one.workers.lost(boss)
    assert types_of(other, "store/workers") == ["worker.registered", "worker.returned"]
    with pytest.raises(LeaseLostError), one.commit(lease=boss) as tx:
        tx.scope(one.team("a")).set("n", 1)


def test_a_heart_that_beats_keeps_its_leases_and_writes_no_events(
    open_store: Open, clock: FakeClock
) -> None:
    one, other = open_store(), open_store()
    lease = one.workers.lease("boss", ttl_s=LEASE_S, keep=True)
    before = len(list(one.follow(as_events=True, after=START, timeout_s=0)))
    for _ in range(20):
        clock.advance(BEAT_S)
        assert one._kernel.leases.tend() == pytest.approx(BEAT_S)
    assert not one.workers.lost(lease)
    assert [worker.alive for worker in other.workers.list()] == [True]
    assert len(list(one.follow(as_events=True, after=START, timeout_s=0))) == before
    with one.commit(lease=lease) as tx:
        tx.scope(one.team("a")).set("n", 1)
    one._kernel.leases.drop(lease)
    clock.advance(LEASE_S + 1)
    one._kernel.leases.tend()
    assert other.workers.lease("boss").epoch > lease.epoch


def test_a_lease_counts_as_lost_when_nobody_could_be_asked_for_its_time(
    open_store: Open, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_store()
    lease = one.workers.lease("boss", ttl_s=LEASE_S, keep=True)

    def unreachable(*_: object, **__: object) -> None:
        raise UnavailableError("the server is away")

    with monkeypatch.context() as patch:
        patch.setattr(one._log._backend.leases, "renew_many", unreachable)
        clock.advance(LEASE_S - 1)
        assert one._kernel.leases.tend() <= 1
        assert not one.workers.lost(lease)
        clock.advance(1)
        assert one.workers.lost(lease)
    # The backend's word counts in the end, and it says the same: the time was over there too.
    one._kernel.leases.tend()
    assert one.workers.lost(lease)


def test_a_heart_that_comes_through_in_time_has_lost_nothing(
    open_store: Open, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_store()
    lease = one.workers.lease("boss", ttl_s=LEASE_S, keep=True)

    def unreachable(*_: object, **__: object) -> None:
        raise UnavailableError("the server is away")

    for _ in range(5):
        with monkeypatch.context() as patch:
            patch.setattr(one._log._backend.leases, "renew_many", unreachable)
            clock.advance(LEASE_S - 2)
            one._kernel.leases.tend()
        clock.advance(1)
        one._kernel.leases.tend()
        assert not one.workers.lost(lease)


def test_the_dead_are_struck_off_after_a_day_by_whoever_registers(
    open_store: Open, clock: FakeClock
) -> None:
    one, other = open_store(), open_store()
    one.workers.lease("boss", ttl_s=LEASE_S, keep=True)
    clock.advance(LEASE_S + FORGET_S - 1)
    other._kernel.leases.register()
    assert [suspect.id for suspect in other.workers.suspects()] == [one.workers.own]
    clock.advance(2)
    third = open_store()
    assert [suspect.id for suspect in third.workers.suspects()] == [one.workers.own]
    third._kernel.leases.register()
    assert [worker.id for worker in third.workers.list()] == sorted(
        [other.workers.own, third.workers.own]
    )
    assert third.workers.lease("boss").epoch > 0


def test_a_host_that_was_started_again_leaves_suspects(open_store: Open, clock: FakeClock) -> None:
    one = open_store()
    one.workers.lease("boss", ttl_s=LEASE_S, keep=True)
    other = open_store()
    clock.reboot()
    [suspect] = other.workers.suspects()
    assert (suspect.id, suspect.leases) == (one.workers.own, ("boss",))


def test_a_clean_end_leaves_nothing(open_store: Open) -> None:
    one, other = open_store(), open_store()
    lease = one.workers.lease("boss", ttl_s=LEASE_S, keep=True)
    one.close()
    one.close()
    assert other.workers.list() == []
    assert other.workers.lease("boss").epoch > lease.epoch
    for call in (one._kernel.leases.register, one.workers.list, lambda: one.workers.lost(lease)):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_a_forked_child_has_no_heart_and_its_parent_keeps_its_own(open_store: Open) -> None:
    one, other = open_store(), open_store()
    lease = one.workers.lease("boss", ttl_s=LEASE_S, keep=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            one._kernel.leases.register()
        except UsageError:
            one.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert other._kernel.leases.is_alive(one.workers.own)
    assert not one.workers.lost(lease)


def test_keep_and_lost_speak_of_leases_that_are_held(hf: Store) -> None:
    lease = hf.workers.lease("boss")
    with pytest.raises(UsageError, match="not kept"):
        hf.workers.lost(lease)
    hf._kernel.leases.keep(lease)
    assert not hf.workers.lost(lease)
    hf.workers.release(lease)
    with pytest.raises(UsageError, match="not kept"):
        hf.workers.lost(lease)
    with pytest.raises(LeaseLostError, match="no longer held"):
        hf._kernel.leases.keep(lease)
    hf._kernel.leases.drop(lease)
    for wrong in (None, 1, "boss"):
        with pytest.raises(UsageError):
            hf._kernel.leases.keep(wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            hf.workers.lost(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        hf.workers.lease("boss", keep="yes")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        hf.workers.lease("boss", ttl_s=0, keep=True)
    with pytest.raises(UsageError):
        hf._kernel.leases.is_alive(7)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="heartbeat_s"):
        holdfast.open("memory:", settings=Settings(heartbeat_s=0))
    assert not hf._kernel.leases.is_alive("nobody")


def test_what_a_worker_said_of_itself_may_be_lost(hf: Store) -> None:
    """The lease alone says that it lives."""
    assert hf._log._backend.leases.acquire("worker/w9", "w9", ttl_s=600) is not None
    [worker] = hf.workers.list()
    assert (worker.id, worker.alive, worker.host, worker.started) == ("w9", True, None, None)
    hf._log._backend.leases.release(Lease("worker/w9", "w9", 0, 0))


def test_a_store_that_was_let_go_of_has_no_heart_left() -> None:
    before = set(threading.enumerate())
    store = holdfast.open("memory:", settings=Settings(heartbeat_s=0.1))
    store._kernel.leases.register()
    [thread] = set(threading.enumerate()) - before
    assert thread.name == "holdfast-heart"
    del store
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_the_heart_in_asyncio(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            lease = await hf.workers.lease("boss", keep=True)
            assert not hf.workers.lost(lease)
            [worker] = await hf.workers.list()
            assert (worker.id, worker.leases) == (hf.workers.own, ("boss",))
            assert await hf.workers.suspects() == []

    asyncio.run(main())


def test_a_close_that_cannot_reach_the_backend_tries_once(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_store()
    for n in range(3):
        one.workers.lease(f"l{n}", keep=True)
    asked: list[str] = []

    def unreachable(lease: Lease) -> None:
        asked.append(lease.name)
        raise UnavailableError("the server is away")

    monkeypatch.setattr(one._log._backend.leases, "release", unreachable)
    one.close()
    assert asked == ["l2"]


class _Counted:
    """A backend's leases that count their calls, and may be told to fail at one lease."""

    def __init__(self, inner: Leases) -> None:
        self._inner = inner
        self.asked: list[int] = []
        self.bad: str | None = None

    def renew_many(self, leases: Sequence[Lease], *, ttl_s: float) -> Sequence[Lease | None]:
        self.asked.append(len(leases))
        if self.bad in [lease.name for lease in leases]:
            raise CorruptError(f"lease {self.bad} is damaged")
        return renew_many(self._inner, leases, ttl_s=ttl_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _counted(store: Store) -> _Counted:
    backend = store._log._backend
    backend.leases = counted = _Counted(backend.leases)
    return counted


def test_leases_that_were_taken_one_by_one_are_renewed_together(
    open_store: Open, clock: FakeClock
) -> None:
    """Calls, not time: over a network each is a round trip, and 1,500 of them took too long."""
    one = open_store()
    kept = []
    for n in range(600):
        kept.append(one._kernel.leases.hold(f"run/{n}", ttl_s=LEASE_S))
        clock.advance(BEAT_S / 2400)
    counted = _counted(one)
    for _ in range(8):
        clock.advance(BEAT_S)
        one._kernel.leases.tend()
    assert not any(one.workers.lost(lease) for lease in kept)
    assert sum(counted.asked) == 8 * 601, "each is renewed once a beat"
    assert len(counted.asked) == 8 * 3, "in as few calls as 250 a call allow"


def test_leases_of_many_ages_come_together(open_store: Open, clock: FakeClock) -> None:
    """However they were spread when they were taken, a few beats later few calls renew all."""
    one = open_store()
    for n in range(90):
        one._kernel.leases.hold(f"run/{n}", ttl_s=LEASE_S)
        clock.advance(BEAT_S / 100)
    counted = _counted(one)
    began_us = clock.boot_us()
    while clock.boot_us() < began_us + 10 * BEAT_S * 1e6:
        clock.advance(one._kernel.leases.tend())
    assert len(counted.asked) <= 10 * 5
    assert not any(held.left_us < 0 for held in one._log.leases.list())


def test_one_damaged_lease_costs_no_other(open_store: Open, clock: FakeClock) -> None:
    one = open_store()
    kept = {name: one._kernel.leases.hold(name, ttl_s=LEASE_S) for name in ("a", "b", "c")}
    other = open_store()
    for name in ("c",):
        one._log.leases.release(kept[name])
        other.workers.lease(name)
    counted = _counted(one)
    counted.bad = "b"
    for _ in range(4):
        clock.advance(BEAT_S)
        one._kernel.leases.tend()
    assert [name for name, lease in kept.items() if one.workers.lost(lease)] == ["b", "c"]


def test_a_part_that_is_away_costs_the_others_nothing(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.leases._live", lambda *_: None)
    urls = {"conversation": f"sqlite:{tmp_path / 'c.db'}", "*": str(tmp_path / "rest")}
    with holdfast.open(urls, settings=Settings(clock=clock, heartbeat_s=BEAT_S)) as one:
        kept = [
            one.workers.lease(name, ttl_s=LEASE_S, keep=True)
            for name in ("nightly", "conversation/c1", "weekly", "conversation/c2")
        ]
        # In one call too, whichever parts they lie in, each answer is its own.
        one.workers.release(one.workers.lease("conversation/c3"))
        lost = Lease("conversation/c3", one.workers.own, 1, 0)
        answers = one._log.leases.renew_many([kept[0], lost, kept[1]], ttl_s=LEASE_S)
        assert [answer and answer.name for answer in answers] == ["nightly", None, kept[1].name]

        def unreachable(*_: object, **__: object) -> None:
            raise UnavailableError("the server is away")

        part = one._log.routes.parts()[one._log.routes.place_of("conversation/c1")]
        monkeypatch.setattr(part.leases, "renew_many", unreachable)
        for _ in range(4):
            clock.advance(BEAT_S)
            one._kernel.leases.tend()
        assert [one.workers.lost(lease) for lease in kept] == [False, True, False, True]


def test_a_backend_without_renew_many_is_renewed_lease_by_lease(clock: FakeClock) -> None:
    """One of somebody else's, made before clause 21."""
    backend = MemoryBackend(clock=clock)

    class Older:
        acquire, renew, release = (
            backend.leases.acquire,
            backend.leases.renew,
            backend.leases.release,
        )
        holder, list = backend.leases.holder, backend.leases.list

    one, two = (backend.leases.acquire(name, "w", ttl_s=9) for name in ("one", "two"))
    assert one is not None
    assert two is not None
    backend.leases.release(two)
    renewed = renew_many(Older(), [one, two], ttl_s=20)  # type: ignore[arg-type]
    assert [lease and lease.name for lease in renewed] == ["one", None]


@pytest.mark.parametrize("lapses", [1, 100])
def test_a_lease_that_lapses_before_it_is_recorded_is_taken_again(
    open_store: Open, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, lapses: int
) -> None:
    """A machine may be so busy that a new worker has lost its lease before its first commit."""
    store = open_store()
    keeper = store._kernel.leases
    own, taken = keeper._own, list[Lease]()

    def slow() -> Lease:
        taken.append(own())
        if len(taken) <= lapses:
            clock.advance(LEASE_S + 1)
        return taken[-1]

    monkeypatch.setattr(keeper, "_own", slow)
    if lapses == 1:
        keeper.register()
        assert len(taken) == 2
        assert [worker.id for worker in store.workers.list()] == [keeper.worker]
        return
    with pytest.raises(LeaseLostError):
        keeper.register()
    assert len(taken) == 5

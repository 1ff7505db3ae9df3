"""Guarantee 4: who lost a lease cannot write, whether it died, slept, or does not know."""

from __future__ import annotations

import select
import signal
from pathlib import Path

import pytest

import holdfast
from holdfast import LeaseLostError, Store
from holdfast.backends.protocol import START, Lease
from tests.concurrency.player import SHARED, Player

TRIES_MAX = 6000


@pytest.fixture(params=["files", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "files" else f"sqlite:{tmp_path / 'x.db'}"


def take_when_free(store: Store) -> Lease:
    """Asks for the lease until the holder's time is up."""
    for _ in range(TRIES_MAX):
        try:
            return store.workers.lease("boss")
        except LeaseLostError:
            select.select([], [], [], 0.01)
    raise AssertionError("the lease did not expire")


def test_guarantee_4_a_lease_passes_on_after_a_kill_and_the_old_epoch_is_fenced(url: str) -> None:
    with Player(url, "a", "hold", 3_600_000) as holder, holdfast.open(url) as store:
        owner, epoch = holder.hear()
        with pytest.raises(LeaseLostError) as refused:
            store.workers.lease("boss")
        assert (refused.value.lease, refused.value.epoch) == ("boss", epoch)
        holder.kill()
        lease = store.workers.lease("boss")
        assert lease.epoch > epoch
        scope = store.scope(SHARED)
        before = scope.revision
        stale = Lease("boss", owner, epoch, lease.expires_us)
        with pytest.raises(LeaseLostError), store.commit(lease=stale) as tx:
            tx.scope(scope).set("boss", "a ghost")
        assert (scope.revision, scope.get("boss")) == (before, "a")
        with store.commit(lease=lease) as tx:
            tx.scope(scope).set("boss", "b")
        assert scope.get("boss") == "b"
        assert store.check().ok


def test_guarantee_4_a_holder_that_was_stopped_is_refused_when_it_wakes(url: str) -> None:
    with Player(url, "a", "hold", 200) as holder, holdfast.open(url) as store:
        _, epoch = holder.hear()
        holder.signal(signal.SIGSTOP)
        lease = take_when_free(store)
        assert lease.epoch > epoch
        scope = store.scope(SHARED)
        with store.commit(lease=lease) as tx:
            tx.scope(scope).set("boss", "b")
        before = scope.revision
        holder.signal(signal.SIGCONT)
        holder.tell("write")
        assert holder.hear() == [f"refused in epoch {epoch}"] * 2 + ["not renewed"]
        assert (scope.revision, scope.get("boss")) == (before, "b")
        epochs = [
            event.data["epoch"]
            for event in store.follow(as_events=True, after=START, timeout_s=0)
            if event.type == "lease"
        ]
        assert epochs[-2:] == [epoch, lease.epoch]

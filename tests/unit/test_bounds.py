"""What a process keeps in mind of scopes is bounded, however many it meets (a server runs long)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Lease, Position
from holdfast.core.folds import FOLD_BYTES
from holdfast.testing.clock import FakeClock
from tests.unit.mixture import memories, store_on


def test_memory_does_not_grow_with_the_scopes_that_were_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("holdfast.core.log.KNOWN_MAX", "holdfast.core.blobs.KNOWN_MAX"):
        monkeypatch.setattr(name, 50)
    monkeypatch.setattr("holdfast.core.snapshot.GROWING_MAX", 50)
    monkeypatch.setattr("holdfast.core.expiry._KNOWN_MAX", 50)
    with holdfast.open("memory:") as store:
        log: Any = store._log
        log.folds.bytes_max = 50 * FOLD_BYTES
        for number in range(300):
            chat = store.conversation(f"c{number}", ttl_s=3600)
            chat.set("text", f"{number:09d}" * 8000)
            log._states.clear()
            assert chat.get("text")
        kept = {
            "origins": len(log._origins),
            "growth": len(log.snapshots.growth),
            "blobs": len(log.blobs._known),
            "intended": len(log.expiry._intended),
            "ends": len(log.expiry._known),
            "folds": len(log._states),
        }
    assert all(number <= 50 for number in kept.values()), kept


def test_what_is_forgotten_from_the_front_is_not_a_dict() -> None:
    """To find the first key of a dict takes a look at every place before it that is empty by now.

    At 100,000 scopes, more than the tables hold, that was a third of each commit.
    """
    with holdfast.open("memory:") as store:
        log: Any = store._log
        tables = [
            log._origins,
            log.snapshots.growth,
            log.blobs._known,
            log.expiry._known,
            log.folds.ends,
            log.folds._sizes,
        ]
    assert [type(table) for table in tables] == [OrderedDict] * len(tables)


def test_a_lifetime_is_intended_until_the_scope_begins() -> None:
    """Decision 0010: whatever is written first begins it, however long that takes."""
    with holdfast.open("memory:", settings=Settings(clock=FakeClock())) as store:
        chat = store.conversation("c", ttl_s=60)
        assert chat.get("n") is None
        chat.checkpoint("first")
        assert chat.life.expires_at is not None
        again = store.conversation("c", ttl_s=9999)
        again.set("n", 1)
        assert again.life.expires_at == chat.life.expires_at


def test_a_heart_goes_on_after_an_error_that_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread must not end in silence: every lease of a worker that lives would lapse."""
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as store:
        lease = store.workers.lease("nightly", ttl_s=30, keep=True)
        renew = store._log._backend.leases.renew

        def broken(lease: Lease, *, ttl_s: float) -> Lease | None:
            raise RuntimeError("a driver's bug")

        monkeypatch.setattr(store._log._backend.leases, "renew", broken)
        clock.advance(11)
        assert store._kernel.leases.tend() <= 3
        monkeypatch.setattr(store._log._backend.leases, "renew", renew)
        clock.advance(3)
        store._kernel.leases.tend()
        clock.advance(20)
        assert not store.workers.lost(lease)


def test_who_waits_for_a_mix_is_told_of_an_error_that_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the watching thread is gone and noted as there: nobody would be woken ever after."""
    backend = memories()
    real = MemoryBackend.wait

    def wait(self: MemoryBackend, after: Position, *, timeout_s: float) -> Position:
        if timeout_s and self is backend.parts[1]:
            raise RuntimeError("a driver's bug")
        return real(self, after, timeout_s=timeout_s)

    with store_on(backend) as store:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryBackend, "wait", wait)
            with pytest.raises(RuntimeError, match="bug"):
                backend.wait(store.position, timeout_s=60)
        before = store.position
        store.team("t").set("n", 1)
        assert backend.wait(before, timeout_s=60) > before

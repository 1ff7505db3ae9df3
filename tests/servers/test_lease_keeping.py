"""Many leases over a long way: one call renews many, so none lapses while others are renewed.

Round trips are counted, not time. At 30 ms each, 1,500 leases that were renewed one by one took
longer than they last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.backends.postgresql.rows import lock_of
from holdfast.testing import FakeClock
from tests.servers import postgresql, redis
from tests.servers.proxy import Proxy

LEASES = 1500
LEASE_S = 3000.0


@pytest.fixture(params=["redis", "postgresql"])
def proxy_and_url(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, str]]:
    running: Any = (
        redis.server(redis.OLDEST)
        if request.param == "redis"
        else postgresql.server(postgresql.NEWEST)
    )
    with Proxy(running.port) as proxy:
        yield proxy, running.tcp_url(application=f"many-{request.param}", port=proxy.port)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(
    proxy_and_url: tuple[Proxy, str], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """A store whose keeper is tended by the test; the server judges the leases by its own clock."""
    monkeypatch.setattr("holdfast.core.leases._live", lambda *_: None)
    with holdfast.open(
        proxy_and_url[1], settings=Settings(clock=clock, heartbeat_s=LEASE_S / 3)
    ) as opened:
        yield opened


def test_1500_leases_are_renewed_in_few_round_trips(
    proxy_and_url: tuple[Proxy, str], store: Store, clock: FakeClock
) -> None:
    proxy, _ = proxy_and_url
    keeper = store._kernel.leases
    kept = [keeper.hold(f"run/{n}", ttl_s=LEASE_S) for n in range(LEASES)]
    ends = {held.name: held.left_us for held in store._log.leases.list(limit=2 * LEASES)}
    assert len(ends) == LEASES + 1  # and the worker's own
    clock.advance(LEASE_S / 3)
    before, proxy.delay_s = proxy.requests, 0.03
    keeper.tend()
    asked, proxy.delay_s = proxy.requests - before, 0.0
    # Six calls of 250 and one lease more: seven, and what the way cuts into pieces.
    assert asked < 40, f"{asked} requests for {LEASES} leases"
    assert not any(keeper.lost(lease) for lease in kept if lease is not None)
    held = store._log.leases.list(limit=2 * LEASES)
    assert sum(one.is_held for one in held) == LEASES + 1
    # Each was really renewed: by now it would have less time left than when it was taken.
    assert all(one.left_us > LEASE_S * 1e6 - 600e6 for one in held)


def test_a_renewal_does_not_wait_for_a_commit_under_way() -> None:
    """A commit that hangs in one run must not cost a thousand others their leases."""
    running = postgresql.server(postgresql.NEWEST)
    with (
        holdfast.open(running.url(application="under-way", timeout=5)) as store,
        psycopg.connect(running.url()) as stranger,
    ):
        lease = store._log.leases.acquire("boss", "w", ttl_s=100)
        assert lease is not None
        # As a commit under this lease does, until its end.
        held = lock_of("lease", "under-way", "boss")
        stranger.execute("SELECT pg_advisory_xact_lock_shared(%s)", (held,))
        assert store._log.leases.renew_many([lease], ttl_s=200)[0] is not None

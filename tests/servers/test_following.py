"""Following between processes on both servers: what it costs, and how soon it tells (VIC-32)."""

from __future__ import annotations

import random
import select
from statistics import median, quantiles
from time import monotonic

import pytest

import holdfast
from tests.concurrency.player import SHARED, Player
from tests.servers import postgresql, redis
from tests.servers.proxy import Proxy

COMMITS = 40
IDLE_S = 4.0


@pytest.mark.parametrize("part", ["clock", "clock_in_asyncio"])
@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_a_follower_asks_at_most_twenty_times_a_second(kind: str, part: str) -> None:
    """Every request is counted on its way to the server. Times are printed, and not judged."""
    running = {
        "redis": lambda: redis.server(redis.OLDEST),
        "postgresql": lambda: postgresql.server(postgresql.NEWEST),
    }[kind]()
    with Proxy(running.port) as proxy:
        url = running.tcp_url(application=f"following-{part}")
        through = url.replace(f":{running.port}", f":{proxy.port}")
        with holdfast.open(url) as store, Player(through, "f", part, COMMITS) as follower:
            assert follower.hear() == "ready"
            before, began = proxy.requests, monotonic()
            select.select([], [], [], IDLE_S)
            asked = (proxy.requests - before) / (monotonic() - began)
            scope, chance = store.scope(SHARED), random.Random(COMMITS)
            committed: list[float] = []
            for n in range(COMMITS):
                scope.set("n", n)
                committed.append(monotonic())
                select.select([], [], [], chance.uniform(0, 0.1))
            seen = follower.hear()
    took = [max(late - early, 0.0) * 1000 for late, early in zip(seen, committed, strict=True)]
    print(
        f"{kind}, {part}: {asked:.1f} requests a second when idle; a commit is seen after "
        f"{median(took):.0f} ms at the median, {quantiles(took, n=100)[98]:.0f} ms at p99"
    )
    assert 0 < asked <= 20

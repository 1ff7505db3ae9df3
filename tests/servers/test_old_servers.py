"""A server that was replaced and is still alive, PostgreSQL and Redis alike.

Behind a failover some connections lead to the new server and some to the old one, which may not
know that it is over. The new one is a real copy; a proxy turns from the one to the other, as an
address that moves does, and leaves the connections that are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.backends.postgresql import PostgresqlBackend
from holdfast.backends.redis import RedisBackend
from holdfast.clock import SystemClock
from holdfast.errors import LostCommitsError
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import revisions, write
from tests.servers import postgresql, redis
from tests.servers.kinds import SERVERS, borrowed
from tests.servers.proxy import Proxy


class Failover:
    """A store that is open on a server, and a copy of the server to go over to."""

    def __init__(self, kind: str, proxy: Proxy, old: Any) -> None:
        self.kind, self.proxy, self.old = kind, proxy, old
        url = old.tcp_url(port=proxy.port, timeout=20)
        backend = PostgresqlBackend if kind == "postgresql" else RedisBackend
        self.backend: Any = backend(url, clock=SystemClock())
        self.new: Any = None

    def copy(self) -> None:
        """Makes the new server, with what is there now."""
        if self.kind == "redis":
            self.new = redis.new_server(redis.OLDEST)
            self.new.become_copy(self.old)
        else:
            self.new = self.old.standby(streams=True)
            self.new.catch_up(self.old)
            self.new.promote()

    def go_over(self) -> None:
        """Leads every connection from now on to the new server; those that are there stay."""
        self.proxy._target = ("127.0.0.1", self.new.port)


@pytest.fixture(params=SERVERS)
def failover(request: pytest.FixtureRequest) -> Iterator[Failover]:
    kind = request.param
    servers = redis if kind == "redis" else postgresql
    old = servers.new_server(redis.OLDEST if kind == "redis" else postgresql.NEWEST)
    with Proxy(old.port) as proxy:
        made = Failover(kind, proxy, old)
        yield made
        made.backend.close()
    for running in (old, made.new):
        running.remove()


@pytest.mark.parametrize("when", ["in use", "idle"])
def test_clause_11_who_wrote_to_the_new_server_does_not_read_from_the_old(
    failover: Failover, when: str
) -> None:
    """Nor is told that its own write is lost: the old server never had it."""
    backend, build = failover.backend, RecordBuilder()
    write(backend, build, "a")
    failover.copy()
    pool = backend._checkout.pool
    with borrowed(pool):
        if when == "idle":
            with borrowed(pool):
                pass  # a second line to the old server, which nobody uses
            with borrowed(pool):
                failover.go_over()
                write(backend, build, "a")
        else:
            failover.go_over()
            write(backend, build, "a")
    for _ in range(3):
        assert revisions(backend.read("a")) == [1, 2]
    assert write(backend, build, "a").position == backend.wait(0, timeout_s=0)


def test_clause_3_what_the_old_server_acknowledged_as_the_new_one_was_met_is_looked_for(
    failover: Failover,
) -> None:
    """One thread has its receipt and has not remembered it; another looks at the new server."""
    backend, build = failover.backend, RecordBuilder()
    write(backend, build, "a")
    failover.copy()
    tracker, note = backend._ack_tracker, backend._ack_tracker.note

    def late(*told: Any) -> None:
        if failover.proxy._target[1] == failover.old.port:
            failover.go_over()
            failover.old.kill()
            assert revisions(backend.read("a")) == [1]
        note(*told)

    tracker.note = late
    write(backend, build, "a")
    for _ in range(2):
        with pytest.raises(LostCommitsError, match='event 2 of "a"'):
            backend.read("a")

"""PostgreSQL that is killed or locked by strangers, and how often it is asked.

T2 and T12 of the reliability programme; `test_faults.py` has what Redis is tested for too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from time import monotonic

import psycopg
import pytest

from holdfast.backends.postgresql import PostgresqlBackend
from holdfast.backends.postgresql.rows import lock_of
from holdfast.backends.protocol import START, Backend, Fence, Mark, Receipt, Refusal
from holdfast.clock import SystemClock
from holdfast.errors import UnavailableError
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import PATIENCE_S, write
from tests.servers.postgresql import NEWEST, Server, installations, new_server, server
from tests.servers.proxy import Proxy
from tests.servers.writers import live_through


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A store of this test's own on the shared server."""
    return server(NEWEST).tcp_url(application=request.node.name.replace("[", "-").rstrip("]"))


@pytest.fixture(params=installations())
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that this test may kill."""
    running = new_server(request.param)
    yield running
    running.remove()


def _open(url: str, **options: object) -> PostgresqlBackend:
    more = "".join(f"&{name}={value}" for name, value in options.items())
    return PostgresqlBackend(url + more, clock=SystemClock())


def _through(proxy: Proxy, url: str, **options: object) -> PostgresqlBackend:
    port = server(NEWEST).port
    return _open(url.replace(f":{port}/", f":{proxy.port}/"), **options)


@pytest.mark.parametrize("how", ["kill", "crash", "stop"])
def test_a_server_that_goes_down_and_comes_back_loses_and_doubles_nothing(
    own_server: Server, how: str
) -> None:
    """T2: whatever was under way is settled when the server is back; the writers notice nothing."""
    live_through(lambda: _open(own_server.url()), own_server, how, turns=3)


def test_a_commit_is_one_round_trip(url: str) -> None:
    """Counted on the wire: one event, several streams, a batch, one of which some is refused."""
    build = RecordBuilder()
    with Proxy(server(NEWEST).port) as proxy:
        backend = _through(proxy, url)
        write(backend, build, "a", b"1")
        [head] = backend.heads(["a"])
        lease = backend.leases.acquire("l", "w", ttl_s=60)
        assert lease is not None
        one = build.append("a", b"2", behind=head)
        single = build.commit(one)
        more = build.append("a", b"3", behind=one, key="k"), build.append("b", b"1", b"2")
        guarded = build.commit(
            *more,
            reads=[("c", 0)],
            fence=Fence("l", "w", lease.epoch),
            marks=[Mark("i", "m")],
            watch=["a"],
        )
        batch = [build.commit(build.append(f"s{n}")) for n in range(20)]
        batch.append(build.commit(build.append("s0", behind=batch[0].appends[0])))
        batch.append(build.commit(marks=[Mark("i", "n")]))
        for commits in ([single], [guarded], batch):
            before = proxy.requests
            assert all(isinstance(outcome, Receipt) for outcome in backend.commit(commits))
            assert proxy.requests == before + 1
        before = proxy.requests
        outcomes = backend.commit(
            [build.commit(build.append("a")), build.commit(build.append("z"))]
        )
        assert [type(outcome) for outcome in outcomes] == [Refusal, Receipt]
        assert proxy.requests == before + 1
        backend.close()


def test_an_idle_process_asks_at_most_twenty_times_a_second(url: str) -> None:
    """However many of its threads follow."""
    with Proxy(server(NEWEST).port) as proxy:
        backend = _through(proxy, url)
        newest = write(backend, RecordBuilder(), "a").position
        for _ in range(4):
            backend.wait(START, timeout_s=0)
        before, began = proxy.requests, monotonic()
        threads = [
            threading.Thread(target=backend.wait, args=(newest,), kwargs={"timeout_s": 1.0})
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        asked, seconds = proxy.requests - before, monotonic() - began
        # Each thread looks once when it comes; connections that are new say a few words more.
        assert asked <= 20 * seconds + 4 * 6
        backend.close()


def test_a_stream_that_a_stranger_has_locked_is_an_error_in_time(url: str) -> None:
    """The one connection waits for it; whether the commit will be there is not known."""
    backend = _open(url, pool=1, timeout=1)
    build = RecordBuilder()
    application = backend.server_url.application
    with psycopg.connect(server(NEWEST).url()) as stranger:
        lock = lock_of("stream", application, "a")
        stranger.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
        first = threading.Thread(target=_ignored, args=(backend, build.commit(build.append("a"))))
        first.start()
        with psycopg.connect(server(NEWEST).url(), autocommit=True) as look:
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while look.execute(waiting).fetchone() == (0,):
                pass
        other = _open(url, timeout=1)
        with pytest.raises(UnavailableError, match="did not answer") as caught:
            other.commit([build.commit(build.append("a"))])
        assert not caught.value.outcome_known
        other.close()
        first.join(PATIENCE_S)
    backend.close()


def test_a_connection_that_lay_unused_for_long_is_not_trusted(url: str) -> None:
    """A router may have forgotten it: a call on it would wait until its deadline."""
    backend = _open(url)
    backend.heads(["a"])
    [line] = backend._checkout.pool._idle
    backend.heads(["a"])
    assert backend._checkout.pool._idle == [line]
    line.returned -= 60
    backend.heads(["a"])
    assert line.closed
    assert line not in backend._checkout.pool._idle
    backend.close()


def _ignored(backend: Backend, commit: object) -> None:
    with contextlib.suppress(UnavailableError):
        backend.commit([commit])  # type: ignore[list-item]

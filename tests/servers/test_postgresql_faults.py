"""PostgreSQL that is killed, cut off, frozen, busy: nothing acknowledged is lost, nothing doubled.

T2 and T12 of the reliability programme. A call never hangs beyond its deadline, and its error says
whether the outcome is known.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from time import monotonic

import psycopg
import pytest

from holdfast.backends.postgresql import PostgresqlBackend
from holdfast.backends.postgresql.batch import lock_of
from holdfast.backends.protocol import START, Backend, Fence, Mark, Receipt, Refusal
from holdfast.clock import SystemClock
from holdfast.errors import UnavailableError
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import PATIENCE_S, accepted, head_of, revisions, write
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


def test_a_server_that_stays_away_is_an_error_in_time_with_the_outcome_unknown(
    own_server: Server,
) -> None:
    backend = _open(own_server.url(), timeout=1)
    build = RecordBuilder()
    write(backend, build, "a")
    head = head_of(backend, "a")
    own_server.freeze()
    with pytest.raises(UnavailableError, match="did not answer within 1 s") as caught:
        backend.commit([build.commit(build.append("a", behind=head))])
    assert not caught.value.outcome_known
    with pytest.raises(UnavailableError) as caught:
        backend.read("a")
    assert caught.value.outcome_known
    own_server.thaw()
    own_server.crash()
    with pytest.raises(UnavailableError) as caught:
        backend.commit([build.commit(build.append("b"))])
    assert caught.value.outcome_known, "nothing was ever sent"
    own_server.start()
    assert revisions(backend.read("a")) in ([1], [1, 2])
    backend.close()


@pytest.mark.parametrize("fault", ["drop", "mute", "hold", "half"])
@pytest.mark.parametrize("what", ["event", "events", "marks"])
def test_a_connection_cut_in_mid_commit_is_settled(url: str, fault: str, what: str) -> None:
    """T12: sent or not, answered or not, even delivered late: the commit is there once."""
    build = RecordBuilder()
    with Proxy(server(NEWEST).port) as proxy:
        backend = _through(proxy, url)
        write(backend, build, "a")
        behind = head_of(backend, "a")
        if what == "event":
            commit = build.commit(build.append("a", b"2", behind=behind))
        elif what == "events":
            appends = build.append("a", b"2", b"3", behind=behind, key="k"), build.append("b")
            commit = build.commit(*appends, marks=[Mark("i", "m")], watch=["a", "c"])
        else:
            commit = build.commit(marks=[Mark("i", "m")])
        proxy.arm(fault)
        [outcome] = backend.commit([commit])
        assert proxy.struck.is_set()
        assert isinstance(outcome, Receipt)
        if fault == "hold":
            proxy.release()
        written = [append.records for append in commit.appends]
        for records in written:
            found = backend.read(records[0].stream, after=records[0].revision - 1)
            assert [record.link for record in found] == [record.link for record in records]
            assert {record.position for record in found} == {outcome.position}
        if what == "events":
            assert outcome.news == {"a": 3, "c": 0}
        if what != "event":
            assert backend.marks.list() == [Mark("i", "m")]
        assert backend.wait(START, timeout_s=0) == outcome.position
        backend.close()


def test_a_commit_is_one_round_trip(url: str) -> None:
    """Counted on the wire: one event, several streams, a batch; only a refusal takes a second."""
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
        assert proxy.requests == before + 2
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


def test_a_refusal_whose_answer_was_lost_stays_a_refusal(url: str) -> None:
    build = RecordBuilder()
    with Proxy(server(NEWEST).port) as proxy:
        backend = _through(proxy, url)
        write(backend, build, "a", b"1", b"2")
        stale = build.commit(build.append("a", b"other"))
        for fault in ("mute", "drop"):
            proxy.arm(fault)
            [outcome] = backend.commit([stale])
            assert outcome == Refusal("conflict", "a", 0, head_of(backend, "a"))
        assert revisions(backend.read("a")) == [1, 2]
        backend.close()


def test_a_black_network_is_an_error_in_time(url: str) -> None:
    build = RecordBuilder()
    with Proxy(server(NEWEST).port) as proxy:
        backend = _through(proxy, url, timeout=1)
        write(backend, build, "a")
        head = head_of(backend, "a")
        proxy.arm("black")
        with pytest.raises(UnavailableError, match="did not answer within 1 s") as caught:
            backend.commit([build.commit(build.append("a", behind=head))])
        assert not caught.value.outcome_known
        proxy.heal()
        [head] = backend.heads(["a"])
        accepted(backend, build.commit(build.append("a", behind=head)))
        backend.close()


def test_reads_leases_and_objects_go_on_over_a_cut_connection(url: str) -> None:
    build = RecordBuilder()
    with Proxy(server(NEWEST).port) as proxy:
        backend = _through(proxy, url)
        write(backend, build, "a", marks=[Mark("i", "m")])
        lease = backend.leases.acquire("l", "w", ttl_s=60)
        for fault in ("drop", "mute"):
            for call in (
                lambda: backend.read("a"),
                lambda: backend.heads(["a"]),
                lambda: backend.read_all(),
                lambda: backend.streams(),
                lambda: backend.wait(START, timeout_s=0),
                lambda: backend.objects.put("blob", "ab/cd", b"x"),
                lambda: backend.objects.get("blob", "ab/cd"),
                lambda: backend.leases.holder("l"),
                lambda: backend.inspect.describe(),
            ):
                proxy.arm(fault)
                call()
                assert proxy.struck.is_set()
            proxy.arm(fault)
            again = backend.leases.acquire("l", "w", ttl_s=60)
            assert again is not None
            assert lease is not None
            assert again.epoch == lease.epoch
        proxy.arm("mute")
        with pytest.raises(UnavailableError) as caught:
            backend.marks.claim("i", "w", n=1, ttl_s=60)
        assert not caught.value.outcome_known, "the claim may have been made"
        assert backend.marks.claim("i", "w", n=1, ttl_s=60) == []
        backend.close()


def test_a_busy_pool_is_an_error_in_time_and_the_outcome_is_known(url: str) -> None:
    """The one connection waits for a stream that somebody else has locked."""
    backend = _open(url, pool=1, timeout=1)
    build = RecordBuilder()
    application = backend.place.application
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
    tight = _open(url, pool=1, timeout=1)
    with tight._gate.lines._line(monotonic() + PATIENCE_S):
        with pytest.raises(UnavailableError, match="all 1 connections") as caught:
            tight.heads(["a"])
        assert caught.value.outcome_known
    assert tight.heads(["nobody"]) == [None]
    tight.close()


def test_a_connection_that_lay_unused_for_long_is_not_trusted(url: str) -> None:
    """A router may have forgotten it: a call on it would wait until its deadline."""
    backend = _open(url)
    backend.heads(["a"])
    [line] = backend._gate.lines._idle
    backend.heads(["a"])
    assert backend._gate.lines._idle == [line]
    line.returned -= 60
    backend.heads(["a"])
    assert line.closed
    assert line not in backend._gate.lines._idle
    backend.close()


def _ignored(backend: Backend, commit: object) -> None:
    with contextlib.suppress(UnavailableError):
        backend.commit([commit])  # type: ignore[list-item]

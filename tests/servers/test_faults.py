"""Servers that are cut off, frozen, busy or away, PostgreSQL and Redis alike.

T2 and T12 of the reliability programme. A call never hangs beyond its deadline, and its error says
whether the outcome is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.backends.postgresql import PostgresqlBackend
from holdfast.backends.protocol import START, Mark, Receipt, Refusal
from holdfast.backends.redis import RedisBackend
from holdfast.clock import SystemClock
from holdfast.errors import UnavailableError
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import accepted, head_of, revisions, write
from tests.servers import ground, postgresql, redis
from tests.servers.kinds import borrowed
from tests.servers.proxy import Proxy

Backend = PostgresqlBackend | RedisBackend
Installed = tuple[Any, Any]

REDIS: list[Installed] = [(redis, name) for name in redis.installations()]
SHARED: list[Installed] = [(postgresql, postgresql.NEWEST), *REDIS]
EVERY: list[Installed] = [*((postgresql, one) for one in postgresql.installations()), *REDIS]


def _shown(installed: Installed) -> str:
    return str(installed[1]) if installed[0] is redis else f"postgresql-{installed[1]}"


def _open(url: str) -> Backend:
    kind = PostgresqlBackend if url.startswith("postgresql:") else RedisBackend
    return kind(url, clock=SystemClock())


class Line:
    """A store of one test's own on a shared server, behind a network that fails on command."""

    def __init__(self, proxy: Proxy, url: Callable[..., str]) -> None:
        self.proxy = proxy
        self._url = url

    def open(self, **options: float) -> Backend:
        return _open(self._url(port=self.proxy.port, **options))


@pytest.fixture(params=SHARED, ids=_shown)
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    servers, version = request.param
    running = servers.server(version)
    application = request.node.name.replace("[", "-").rstrip("]")
    with Proxy(running.port) as proxy:
        yield Line(proxy, lambda **options: running.tcp_url(application=application, **options))


@pytest.fixture(params=EVERY, ids=_shown)
def own_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server that this test may kill."""
    servers, version = request.param
    running = servers.new_server(version)
    yield running
    running.remove()


def test_a_server_that_stays_away_is_an_error_in_time_with_the_outcome_unknown(
    own_server: Any,
) -> None:
    backend = _open(own_server.url(timeout=1))
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
    own_server.kill()
    with pytest.raises(UnavailableError) as caught:
        backend.commit([build.commit(build.append("b"))])
    assert caught.value.outcome_known, "nothing was ever sent"
    own_server.start()
    assert revisions(backend.read("a")) in ([1], [1, 2])
    backend.close()


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_a_server_that_is_not_there_is_told_as_every_error_is(scheme: str) -> None:
    """With the place, what was found and a remedy; drivers end their sentences, and we do not."""
    where = f"127.0.0.1:{ground.free_port()}"
    with pytest.raises(UnavailableError, match=f'^"{scheme}://{where}/0') as caught:
        _open(f"{scheme}://{where}/0?timeout=0.5")
    assert "refused" in caught.value.message.lower()
    assert not caught.value.message.endswith(".")
    assert caught.value.hint


@pytest.mark.parametrize("fault", ["drop", "mute", "hold", "half"])
@pytest.mark.parametrize("what", ["event", "events", "marks"])
def test_a_connection_cut_in_mid_commit_is_settled(line: Line, fault: str, what: str) -> None:
    """T12: sent or not, answered or not, even delivered late: the commit is there once."""
    build = RecordBuilder()
    backend, proxy = line.open(), line.proxy
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
    for records in [append.records for append in commit.appends]:
        found = backend.read(records[0].stream, after=records[0].revision - 1)
        assert [record.link for record in found] == [record.link for record in records]
        assert {record.position for record in found} == {outcome.position}
    if what == "events":
        assert outcome.news == {"a": 3, "c": 0}
    if what != "event":
        assert backend.marks.list() == [Mark("i", "m")]
    assert backend.wait(START, timeout_s=0) == outcome.position
    backend.close()


def test_a_refusal_whose_answer_was_lost_stays_a_refusal(line: Line) -> None:
    build = RecordBuilder()
    backend = line.open()
    write(backend, build, "a", b"1", b"2")
    stale = build.commit(build.append("a", b"other"))
    for fault in ("mute", "drop"):
        line.proxy.arm(fault)
        [outcome] = backend.commit([stale])
        assert outcome == Refusal("conflict", "a", 0, head_of(backend, "a"))
    assert revisions(backend.read("a")) == [1, 2]
    backend.close()


def test_a_black_network_is_an_error_in_time(line: Line) -> None:
    build = RecordBuilder()
    backend = line.open(timeout=1)
    write(backend, build, "a")
    head = head_of(backend, "a")
    line.proxy.arm("black")
    with pytest.raises(UnavailableError, match="did not answer within 1 s") as caught:
        backend.commit([build.commit(build.append("a", behind=head))])
    assert not caught.value.outcome_known
    line.proxy.heal()
    [head] = backend.heads(["a"])
    accepted(backend, build.commit(build.append("a", behind=head)))
    backend.close()


def test_a_list_of_which_a_part_is_there_leaves_the_outcome_open(own_server: Any) -> None:
    """Clause 1: one call takes so much; a server that goes in between has written the beginning."""
    url = own_server.url(timeout=1)
    kind = PostgresqlBackend if url.startswith("postgresql:") else RedisBackend
    backend = kind(
        url,
        clock=SystemClock(),
        reach=lambda point: own_server.kill() if point.endswith(".committed") else None,
    )
    build = RecordBuilder()
    commits = [build.commit(build.append(f"s{n:04}")) for n in range(1001)]
    with pytest.raises(UnavailableError, match="commits of the same list were written") as caught:
        backend.commit(commits)
    assert not caught.value.outcome_known
    own_server.start()
    assert backend.heads(["s0000", "s1000"])[1] is None
    assert backend.heads(["s0000"]) != [None]
    backend.close()


def test_reads_leases_and_objects_go_on_over_a_cut_connection(line: Line) -> None:
    backend, proxy = line.open(), line.proxy
    write(backend, RecordBuilder(), "a", marks=[Mark("i", "m")])
    lease = backend.leases.acquire("l", "w", ttl_s=60)
    assert lease is not None
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
        assert again.epoch == lease.epoch
    assert backend.marks.claim("none", "w", n=1, ttl_s=60) == []
    proxy.arm("mute")
    with pytest.raises(UnavailableError) as caught:
        backend.marks.claim("i", "w", n=1, ttl_s=60)
    assert not caught.value.outcome_known, "the claim may have been made"
    assert backend.marks.claim("i", "w", n=1, ttl_s=60) == []
    backend.close()


def test_a_busy_pool_is_an_error_in_time_and_the_outcome_is_known(line: Line) -> None:
    tight = line.open(pool=1, timeout=1)
    with borrowed(tight._checkout.pool):
        for call in (
            lambda: tight.heads(["a"]),
            lambda: tight.commit([RecordBuilder().commit(marks=[Mark("i", "m")])]),
        ):
            with pytest.raises(UnavailableError, match="all 1 connections") as caught:
                call()
            assert caught.value.outcome_known
    assert tight.heads(["nobody"]) == [None]
    tight.close()

"""PostgreSQL after a failover: what was acknowledged and is gone is raised, by every call.

The standby is a real one that streams asynchronously and is cut off before it is promoted. Requests
go through a proxy that turns from the old primary to the new one, as an address that moves does.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from holdfast.backends.postgresql import PostgresqlBackend
from holdfast.backends.protocol import START, Durability, Mark, Refusal
from holdfast.clock import SystemClock
from holdfast.errors import LostCommitsError
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import accepted, head_of, refused, revisions, write
from tests.servers import ground
from tests.servers.pooler import Pooler
from tests.servers.postgresql import NEWEST, Server, installations, new_server
from tests.servers.proxy import Proxy


@pytest.fixture
def primary(request: pytest.FixtureRequest) -> Iterator[Server]:
    running = new_server(getattr(request, "param", NEWEST))
    yield running
    running.remove()


def _open(url: str, durability: Durability = "full") -> PostgresqlBackend:
    return PostgresqlBackend(url, clock=SystemClock(), durability=durability)


@pytest.mark.parametrize("primary", installations(), indirect=True)
def test_a_failover_that_lost_commits_is_noticed_by_whoever_was_told(primary: Server) -> None:
    """Who was told nothing that is gone goes on, above every position that anybody has seen."""
    build = RecordBuilder()
    with Proxy(primary.port) as proxy:
        url = primary.tcp_url(port=proxy.port, timeout=20)
        told, other, idle = _open(url), _open(url), _open(url)
        standby = primary.standby(streams=True)
        write(told, build, "a")
        write(other, build, "b")
        standby.catch_up(primary)
        standby.stop_streaming()
        lost = [write(told, build, "a").position for _ in range(5)]
        primary.kill()
        standby.promote()
        proxy._target = ("127.0.0.1", standby.port)
        for call in (
            lambda: told.heads(["a"]),
            lambda: told.read("b"),
            lambda: told.wait(START, timeout_s=0),
            lambda: told.commit([build.commit(build.append("c"))]),
            lambda: told.leases.holder("l"),
        ):
            with pytest.raises(LostCommitsError, match='event 6 of "a" was acknowledged and is'):
                call()
        for backend in (other, idle):
            assert revisions(backend.read("a")) == [1]
            assert write(backend, build, "b").position > lost[-1]
        again = _open(url)
        assert revisions(again.read("a")) == [1]
        assert [record.stream for record in again.read_all(after=lost[-1])] == ["b", "b"]
        for backend in (told, other, idle, again):
            backend.close()
        standby.remove()


def test_a_failover_that_lost_nothing_goes_unnoticed(primary: Server) -> None:
    build = RecordBuilder()
    with Proxy(primary.port) as proxy:
        backend = _open(primary.tcp_url(port=proxy.port, timeout=20))
        standby = primary.standby(streams=True)
        write(backend, build, "a")
        accepted(backend, build.commit(marks=[Mark("i", "m")]))
        standby.catch_up(primary)
        primary.kill()
        standby.promote()
        proxy._target = ("127.0.0.1", standby.port)
        write(backend, build, "a")
        assert revisions(backend.read("a")) == [1, 2]
        backend.close()
        standby.remove()


@pytest.mark.parametrize("what", ["events", "marks", "a key"])
def test_older_data_after_a_restart_are_noticed(primary: Server, what: str) -> None:
    """Somebody put a copy of the data in place: same system, same timeline, less in it."""
    build = RecordBuilder()
    writer, backend = _open(primary.url()), _open(primary.url())
    write(writer, build, "a")
    primary.stop()
    kept = primary.directory / "kept"
    ground.run("cp", "-a", primary.data, kept)
    primary.start()
    if what == "events":
        write(backend, build, "a")
    elif what == "marks":
        accepted(backend, build.commit(marks=[Mark("i", "m")]))
    else:  # it wrote nothing itself, and learned of a commit that its key was there
        write(writer, build, "a", key="k")
        again = build.append("a", behind=head_of(backend, "a"), key="k")
        assert refused(backend, build.commit(again)).reason == "duplicate"
    writer.close()
    primary.kill()
    shutil.rmtree(primary.data)
    kept.rename(primary.data)
    primary.start()
    for _ in range(2):
        with pytest.raises(LostCommitsError, match="was acknowledged and is gone"):
            backend.heads(["a"])
    backend.close()


def test_a_restart_of_the_same_server_is_no_loss(primary: Server) -> None:
    """Also where another handle has gone on writing after what was acknowledged to this one."""
    build = RecordBuilder()
    backends = [_open(primary.url()), _open(primary.url(), "process")]
    for backend in backends:
        for stream in ("a", "b"):
            write(backend, build, stream)
    primary.stop()
    primary.start()
    for backend in backends:
        write(backend, build, "a")
    assert revisions(backends[0].read("a")) == [1, 2, 3, 4]
    for backend in backends:
        backend.close()


@pytest.mark.parametrize("shows_by", ["position", "refusal"])
def test_a_pooler_that_goes_over_to_a_poorer_server_is_seen_through(
    primary: Server, shows_by: str
) -> None:
    """The handle's own connections stay: the first answer that does not fit raises the doubt."""
    build = RecordBuilder()

    def socket(one: Server) -> str:
        return f"{one.directory}/.s.PGSQL.{one.port}"

    with Pooler(socket(primary)) as pooler:
        url = f"postgresql://tester@127.0.0.1:{pooler.port}/postgres?sslmode=disable"
        backend = _open(url)
        write(backend, build, "a")
        standby = primary.standby(streams=True)
        standby.catch_up(primary)
        standby.stop_streaming()
        write(backend, build, "a")
        head = head_of(backend, "a")
        standby.promote()
        pooler.switch(socket(standby))
        if shows_by == "position":
            write(backend, build, "b")  # durable, and acknowledged as such
        else:
            [outcome] = backend.commit([build.commit(build.append("a", behind=head))])
            assert isinstance(outcome, Refusal)
        for _ in range(2):
            with pytest.raises(LostCommitsError, match='event 2 of "a"'):
                backend.read("a")
        backend.close()
        again = _open(url)
        assert again.streams() == (["a", "b"] if shows_by == "position" else ["a"])
        again.close()
        standby.remove()

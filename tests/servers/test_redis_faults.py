"""Redis that is killed, full, replaced: nothing acknowledged is lost unnoticed.

T2 and T12 of the reliability programme; `test_faults.py` has what PostgreSQL is tested for too.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.backends.protocol import Mark
from holdfast.backends.redis import RedisBackend
from holdfast.clock import SystemClock
from holdfast.errors import LostCommitsError, NotFoundError, UnavailableError, UsageError
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import accepted, head_of, refused, revisions, write
from tests.servers.proxy import Proxy
from tests.servers.redis import Server, installations, new_server, server
from tests.servers.writers import live_through

NAMES = list(installations())


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def own_server(name: str) -> Iterator[Server]:
    """A server that this test may kill."""
    running = new_server(name)
    yield running
    running.remove()


def _open(url: str, **options: Any) -> RedisBackend:
    return RedisBackend(url, clock=SystemClock(), **options)


def _shared(request: pytest.FixtureRequest, name: str, **options: Any) -> str:
    """Returns the URL of a store of this test's own on the shared server."""
    application = request.node.name.replace("[", "-").rstrip("]")
    return server(name).tcp_url(application=application, **options)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_server_that_goes_down_and_comes_back_loses_and_doubles_nothing(
    own_server: Server, how: str
) -> None:
    """T2, `appendfsync always`: what was under way is settled when the server is back."""
    live_through(lambda: _open(own_server.url(timeout=60)), own_server, how, turns=5)


def test_everysec_is_waited_for_where_the_server_can(name: str) -> None:
    """WAITAOF after each write, in the same round trip; where there is none, `full` is refused."""
    running = new_server(name, "appendfsync everysec")
    build = RecordBuilder()
    try:
        backend = _open(running.url())
    except UsageError as exc:
        backend = _open(running.url(), durability="process")
        waits = "CONFIG SET appendfsync always" not in str(exc)
    else:
        waits = True
    assert waits == backend.inspect.describe()["waits_for_sync"]
    for n in range(3):
        write(backend, build, "a", b"%d" % n)
    backend.objects.put("blob", "ab/cd", b"x")
    running.kill()
    running.start()
    if waits:
        assert revisions(backend.read("a")) == [1, 2, 3]
        assert backend.objects.get("blob", "ab/cd") == b"x"
    else:
        # Up to about a second may be gone; if it is, that is said.
        with contextlib.suppress(LostCommitsError):
            assert revisions(backend.read("a")) == [1, 2, 3]
    backend.close()
    running.remove()


def test_a_server_that_comes_back_unfit_leaves_the_outcome_open(
    request: pytest.FixtureRequest, name: str
) -> None:
    running = new_server(name)
    build = RecordBuilder()
    with Proxy(running.port) as proxy:
        backend = _open(running.tcp_url(port=proxy.port))
        write(backend, build, "a")
        head = head_of(backend, "a")
        with running.client() as client:
            client.config_set("appendonly", "no")
        proxy.arm("mute")
        with pytest.raises(UnavailableError, match="CONFIG SET appendonly yes") as caught:
            backend.commit([build.commit(build.append("a", behind=head))])
        assert not caught.value.outcome_known
        backend.close()
    running.remove()


# --- servers that answer with an error --------------------------------------------------------


def test_a_server_that_forgot_its_scripts_is_told_again(
    request: pytest.FixtureRequest, name: str
) -> None:
    backend = _open(_shared(request, name))
    build = RecordBuilder()
    write(backend, build, "a")
    with server(name).client() as client:
        client.script_flush()
    write(backend, build, "a")
    assert revisions(backend.read("a")) == [1, 2]
    backend.close()


def test_a_full_server_refuses_and_goes_on_when_it_has_room(own_server: Server) -> None:
    backend = _open(own_server.url())
    build = RecordBuilder()
    write(backend, build, "a", b"1")
    commit = build.commit(
        build.append("a", b"2", behind=head_of(backend, "a")),
        build.append("b"),
        marks=[Mark("i", "m")],
    )
    with own_server.client() as client:
        client.config_set("maxmemory", "1")
        with pytest.raises(UnavailableError, match="raise maxmemory") as caught:
            backend.commit([commit])
        assert caught.value.outcome_known
        with pytest.raises(UnavailableError, match="OOM"):
            backend.objects.put("blob", "ab/cd", b"x")
        assert revisions(backend.read("a")) == [1]
        client.config_set("maxmemory", "0")
    assert (backend.streams(), backend.marks.list()) == (["a"], [])
    accepted(backend, commit)
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()


def test_a_server_that_cannot_save_refuses_in_clear_words(own_server: Server) -> None:
    backend = _open(own_server.url())
    build = RecordBuilder()
    write(backend, build, "a")
    mode = own_server.directory.stat().st_mode
    with own_server.client() as client:
        client.config_set("save", "3600 1")
        own_server.directory.chmod(0o555)
        client.bgsave()
        while client.info("persistence")["rdb_last_bgsave_status"] != "err":
            pass
        commit = build.commit(build.append("b"))
        with pytest.raises(UnavailableError, match="cannot write its files") as caught:
            backend.commit([commit])
        assert caught.value.outcome_known
        own_server.directory.chmod(mode)
        client.config_set("save", "")
    accepted(backend, commit)
    backend.close()


def test_a_replica_is_refused_with_the_remedy(own_server: Server, name: str) -> None:
    replica = new_server(name, f"replicaof 127.0.0.1 {own_server.port}")
    backend = _open(own_server.url(timeout=1))
    build = RecordBuilder()
    write(backend, build, "a")
    with pytest.raises(UnavailableError, match="name the master") as caught:
        _open(replica.url(timeout=0.3))
    assert caught.value.outcome_known
    # A master that is made a replica while a store is open on it.
    with own_server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", replica.port)
    with pytest.raises(UnavailableError, match="name the master") as caught:
        backend.commit([build.commit(build.append("b"))])
    assert caught.value.outcome_known
    backend.close()
    replica.remove()


def test_an_emptied_database_is_never_an_empty_store(own_server: Server) -> None:
    """Guarantee 7: never empty by accident."""
    backend = _open(own_server.url())
    build = RecordBuilder()
    write(backend, build, "a")
    with own_server.client() as client:
        client.flushall()
        for call in (
            lambda: backend.read("a"),
            lambda: backend.heads(["a"]),
            lambda: backend.streams(),
            lambda: backend.read_all(),
            lambda: backend.leases.holder("l"),
            lambda: backend.marks.list(),
            lambda: backend.commit([build.commit(build.append("b"))]),
        ):
            with pytest.raises(NotFoundError, match="no longer in"):
                call()
        assert client.dbsize() == 0
    backend.close()


# --- acknowledged commits that are gone -------------------------------------------------------


@pytest.mark.parametrize("told", ["written", "by its key"])
def test_an_older_file_after_a_restart_is_noticed(own_server: Server, told: str) -> None:
    """A lost acknowledged commit is raised, and the handle goes no further.

    Also by a handle that wrote nothing itself, and learned of a commit that its key was there.
    """
    writer, backend = _open(own_server.url()), _open(own_server.url())
    build = RecordBuilder()
    write(writer, build, "a")
    kept = own_server.directory.with_suffix(".kept")
    shutil.copytree(own_server.directory, kept, ignore=shutil.ignore_patterns("*.sock", "*.pid"))
    if told == "written":
        write(backend, build, "a")
    else:
        write(writer, build, "a", key="k")
        again = build.append("a", behind=head_of(backend, "a"), key="k")
        assert refused(backend, build.commit(again)).reason == "duplicate"
    writer.close()
    own_server.kill()
    files = [
        "appendonly.aof",
        *(p.relative_to(kept).as_posix() for p in kept.glob("appendonlydir/*")),
    ]
    for file in files:
        if (kept / file).exists():
            (own_server.directory / file).write_bytes((kept / file).read_bytes())
    own_server.start()
    for call in (
        lambda: backend.heads(["a"]),
        lambda: backend.commit([build.commit(build.append("b"))]),
        lambda: backend.read("a"),
    ):
        with pytest.raises(LostCommitsError, match='event 2 of "a" was acknowledged and is gone'):
            call()
    backend.close()
    again = _open(own_server.url())
    assert revisions(again.read("a")) == [1]
    again.close()
    shutil.rmtree(kept)


def test_a_failover_that_lost_commits_is_noticed_and_nothing_is_given_again(
    own_server: Server, name: str
) -> None:
    """Epochs and positions never repeat, though the new master never saw the newest ones."""
    other = new_server(name)
    build = RecordBuilder()
    with Proxy(own_server.port) as proxy:
        backend = _open(own_server.tcp_url(port=proxy.port, timeout=5))
        idle = _open(own_server.tcp_url(port=proxy.port, timeout=5))
        write(backend, build, "a")
        first = backend.leases.acquire("l", "w1", ttl_s=0.001)
        other.become_copy(own_server)
        lost = [write(backend, build, "a").position for _ in range(20)]
        epochs = {first and first.epoch}
        for turn in range(5):
            lease = backend.leases.acquire("m", f"w{turn}", ttl_s=60)
            assert lease is not None
            epochs.add(lease.epoch)
            backend.leases.release(lease)
        proxy._target = ("127.0.0.1", other.port)
        own_server.kill()
        with pytest.raises(LostCommitsError):
            backend.heads(["a"])
        # Who was told nothing that is gone goes on, above everything that others have seen.
        assert revisions(idle.read("a")) == [1]
        assert write(idle, build, "b").position > lost[-1]
        assert [record.stream for record in idle.read_all(after=lost[-1])] == ["b"]
        lease = idle.leases.acquire("m", "w9", ttl_s=60)
        assert lease is not None
        assert lease.epoch not in epochs
        assert lease.epoch > max(epoch for epoch in epochs if epoch)
        backend.close()
        idle.close()
    other.remove()


def test_clause_9_positions_go_on_though_every_commit_was_lost(
    own_server: Server, name: str
) -> None:
    """The new server has the store as it was made: a follower must not take new commits for old.

    Found by T2, `t2-redis-everysec-power --seed 77 --point 0`.
    """
    other = new_server(name)
    with Proxy(own_server.port) as proxy:
        backend, idle = (_open(own_server.tcp_url(port=proxy.port, timeout=5)) for _ in range(2))
        other.become_copy(own_server)
        build = RecordBuilder()
        lost = [write(backend, build, "a").position for _ in range(5)]
        assert lost == [1, 2, 3, 4, 5]
        proxy._target = ("127.0.0.1", other.port)
        own_server.kill()
        assert write(idle, RecordBuilder(), "b").position > lost[-1]
        assert [record.stream for record in idle.read_all(after=lost[-1])] == ["b"]
        backend.close()
        idle.close()
    other.remove()

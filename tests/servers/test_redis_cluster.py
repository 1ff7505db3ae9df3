"""A store in a Redis Cluster of six: in one slot, wherever that is, moves to or fails over to."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
import redis
from redis.crc import key_slot

import holdfast
from holdfast.backends.protocol import Append, Commit, Head, Lease, Mark
from holdfast.backends.redis import RedisBackend
from holdfast.clock import SystemClock
from holdfast.errors import LostCommitsError, UnavailableError, UsageError
from holdfast.testing import RecordBuilder
from holdfast.testing.durable import check_links
from holdfast.testing.trial import PATIENCE_S, accepted, head_of, revisions, write
from tests.selection import this_turn
from tests.servers.redis import PASSWORD, Cluster, Server, cluster, installations


@pytest.fixture(params=this_turn(list(installations()), len(installations())))
def running(request: pytest.FixtureRequest) -> Cluster:
    """The shared cluster of a version."""
    return cluster(request.param)


def _open(url: str, **options: Any) -> RedisBackend:
    return RedisBackend(url, clock=SystemClock(), **options)


def _tag(application: str) -> str:
    return f"holdfast:{{{application}}}"


def _fill(backend: RedisBackend) -> None:
    """Writes something of every kind."""
    build = RecordBuilder()
    write(backend, build, "a", b"1", b"2", key="k", checkpoint="p", marks=[Mark("i", "m")])
    accepted(backend, build.commit(build.append("b"), build.append("c/{x}"), reads=[("a", 2)]))
    accepted(backend, build.commit(marks=[Mark("i", "n")]))
    assert backend.leases.acquire("l", "w", ttl_s=600) is not None
    assert [mark.key for mark in backend.marks.claim("i", "w", n=1, ttl_s=600)] == ["m"]
    backend.objects.put("blob", "ab/cd", b"x")


def _check_held(backend: RedisBackend) -> None:
    """Clause 19: what is held is listed; a lease that is released goes, and its epoch does not."""
    [lease] = backend.leases.list()
    assert (lease.name, lease.owner, lease.is_held) == ("l", "w", True)
    assert [(c.index, c.key, c.owner) for c in backend.marks.claims()] == [("i", "m", "w")]
    backend.leases.release(Lease("l", "w", lease.epoch, 0))
    assert backend.leases.list() == []
    again = backend.leases.acquire("l", "w", ttl_s=600)
    assert again is not None
    assert again.epoch > lease.epoch


def test_a_store_works_whichever_node_is_named(running: Cluster) -> None:
    for number, node in enumerate(running.servers):  # replicas too: they say where to go
        backend = _open(node.tcp_url(application=f"named-{number}"))
        _fill(backend)
        assert [record.stream for record in backend.read_all()] == ["a", "a", "b", "c/{x}"]
        assert backend.inspect.describe()["cluster"]
        _check_held(backend)
        assert list(backend.inspect.verify(read_all=True)) == []
        backend.close()


def test_all_of_a_store_is_in_one_slot_and_stores_spread_over_the_nodes(running: Cluster) -> None:
    applications = [f"spread-{number}" for number in range(12)]
    for application in applications:
        backend = _open(running.url(application=application))
        _fill(backend)
        backend.close()
    holders: set[int] = set()
    for application in applications:
        master = running.master_of(_tag(application))
        holders.add(master.port)
        keys = _keys(master, application)
        assert len(keys) > 15
        assert len({key_slot(key) for key in keys}) == 1
        for other in running.servers[:3]:
            assert other is master or _keys(other, application) == []
    assert len(holders) == 3


def _keys(node: Server, application: str) -> list[bytes]:
    with node.client() as client:
        return [key for key in client.keys("*") if key.startswith(_tag(application).encode())]


def test_levels_are_spread_by_stores_of_their_own(running: Cluster) -> None:
    """What must be committed together is one application; two of them are two stores."""
    with (
        holdfast.open(running.url(application="left")) as left,
        holdfast.open(running.url(application="right")) as right,
    ):
        left.conversation("c1").set("n", 1)
        assert right.conversation("c1").get("n") is None
    with pytest.raises(UsageError, match="has no braces"):
        holdfast.open(running.url(application="{left}right"))


def test_a_slot_that_moves_is_never_half_a_store(running: Cluster) -> None:
    """Resharding: with any one key already elsewhere, a commit is whole or refused whole."""
    application = "moving"
    backend = _open(running.url(application=application, timeout=1))
    _fill(backend)
    build = RecordBuilder(RecordBuilder().time + 1000)
    later = Mark("i", "later", due=1 << 52)
    accepted(backend, build.commit(marks=[later]))
    tails: list[Head | Append] = [head_of(backend, "a"), head_of(backend, "b")]
    source = running.master_of(_tag(application))
    target = next(node for node in running.servers[:3] if node is not source)
    slot = key_slot(_tag(application).encode())
    refused: set[str] = set()
    keys = _keys(source, application)
    with source.client() as here, target.client() as there:
        ids = [c.execute_command("CLUSTER", "MYID").decode() for c in (here, there)]
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        for key in keys:
            here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
            _migrate(here, target, key)
            appends = [
                build.append("a", behind=tails[0], key=key.decode(), checkpoint="p"),
                build.append("b", behind=tails[1]),
            ]
            commit = build.commit(*appends, marks=[later])
            if _is_taken(backend, commit):
                tails[:] = appends
            else:
                refused.add(key.decode())
            here.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
            _migrate(there, source, key)
        # All but the objects, the lease, tokens and the stream that the commit does not touch.
        assert len(refused) == len(keys) - 6, sorted(refused)
        patient = _open(running.url(application=application))
        assert len(patient.read("b")) == 1 + 6
        assert list(patient.inspect.verify(read_all=True)) == []
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        # A key that was never there cannot be told from one that has moved.
        with pytest.raises(UnavailableError, match="moves this store"):
            backend.commit([build.commit(build.append("fresh"))])
        for key in _keys(source, application):
            _migrate(here, target, key)
        for client in (there, here):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
    _until(lambda: running.master_of(_tag(application)) is target)
    assert patient.streams() == ["a", "b", "c/{x}"]
    _check_held(patient)
    write(patient, build, "a")
    assert list(patient.inspect.verify(read_all=True)) == []
    patient.close()
    backend.close()


def _is_taken(backend: RedisBackend, commit: Commit) -> bool:
    """Returns whether the commit was accepted, False if it was refused for the slot that moves.

    On a busy machine a second may be over in the middle of an attempt: then it is made again.
    """
    deadline = monotonic() + PATIENCE_S
    while True:
        try:
            accepted(backend, commit)
        except UnavailableError as exc:
            if exc.outcome_known and "moves this store" in str(exc):
                return False
            if monotonic() > deadline:
                raise
        else:
            return True


def _migrate(client: Any, target: Server, key: bytes) -> None:
    where = ("127.0.0.1", target.port, key, 0, 10_000)
    client.execute_command("MIGRATE", *where, "AUTH", PASSWORD)


def _until(holds: Any) -> None:
    deadline = monotonic() + PATIENCE_S
    while not holds():
        assert monotonic() < deadline, "it does not come true"


@pytest.fixture(params=this_turn(list(installations()), len(installations())))
def own_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of which this test may kill a node."""
    running = Cluster(request.param)
    yield running
    running.remove()


def test_a_failover_goes_on_or_says_what_was_lost(own_cluster: Cluster) -> None:
    """The master of the store's slot dies, and its replica takes over."""
    application = "failing"
    backend = _open(own_cluster.url(application=application, timeout=60))
    build = RecordBuilder()
    for _ in range(20):
        write(backend, build, "a")
    lease = backend.leases.acquire("l", "w1", ttl_s=0.001)
    assert lease is not None
    master = own_cluster.master_of(_tag(application))
    with master.client() as client:
        client.execute_command("SET", f"{_tag(application)}waited", 1)  # it waits for its own
        assert client.execute_command("WAIT", 1, 60_000) == 1
    before = head_of(backend, "a")
    master.kill()
    # Everything had reached the replica: the same handle goes on, above all former positions.
    receipt = write(backend, build, "a")
    assert receipt.position > before.position
    records = backend.read("a")
    assert revisions(records) == list(range(1, 22))
    check_links(records)
    later = backend.leases.acquire("l", "w2", ttl_s=60)
    assert later is not None
    assert later.epoch > lease.epoch
    # A handle that was told of more than is there goes no further.
    backend._ack_tracker._acked["a"] = (22, bytes(32))
    backend._checkout.pool.doubt()
    with pytest.raises(LostCommitsError, match="event 22"):
        backend.heads(["a"])
    backend.close()
    with pytest.raises(redis.RedisError):
        master.client().ping()

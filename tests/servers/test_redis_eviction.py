"""A Redis that forgets: policies that evict keys, and what is gone before its end (guarantee 1)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.backends.protocol import START
from holdfast.backends.redis import RedisBackend, connection
from holdfast.backends.redis import server as redis_server
from holdfast.backends.redis.server import server_of
from holdfast.clock import SystemClock
from holdfast.errors import ExpiredError, LostCommitsError, UsageError
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import PATIENCE_S, write
from tests.servers.redis import OLDEST, Server, new_server
from tests.servers.redis_clock import CLOCK

POLICIES = (
    *("allkeys-lru", "allkeys-lfu", "allkeys-random"),
    *("volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"),
)
EVENTS = "holdfast:{default}:events:conversation/%s"
KEYS = "holdfast:{default}:keys:conversation/%s"
DAY_S = 86_400


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server whose settings this test may change."""
    running = new_server(OLDEST)
    yield running
    running.remove()


def _evict_all(client: Any, *keys: str) -> None:
    """Makes the server evict whatever its policy allows, by leaving it one byte of memory."""
    client.config_set("maxmemory", "1")
    deadline = time.monotonic() + PATIENCE_S
    while client.exists(*keys):
        assert time.monotonic() < deadline, "the server does not evict"
    client.config_set("maxmemory", "0")


@pytest.mark.parametrize("policy", POLICIES)
def test_full_is_refused_by_every_policy_that_evicts(
    own_server: Server, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a limit too: `maxmemory` can be set while the store is open."""
    with own_server.client() as client:
        client.config_set("maxmemory-policy", policy)
    with pytest.raises(UsageError, match=policy) as caught:
        holdfast.open(own_server.url())
    assert "CONFIG SET maxmemory-policy noeviction" in str(caught.value)
    for durability in ("process", "none"):
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING, "holdfast.backends"),
            holdfast.open(own_server.url(), durability=durability) as store,
        ):
            facts = store.status()
        assert facts["maxmemory_policy"] == policy
        assert any(policy in report for report in facts["reports"])
        assert [one for one in caplog.messages if policy in one] != []


def test_a_policy_that_nobody_knows_yet_counts_as_one_that_evicts() -> None:
    for policy in ("allkeys-lrm", "volatile-lrm", ""):
        told = f"maxmemory_policy:{policy}\r\n" if policy else ""
        info = f"redis_version:8.6.0\r\nrole:master\r\naof_enabled:1\r\n{told}"
        facts = server_of(info.encode(), [b"appendfsync", b"always"], None)
        assert facts.evicts, policy
        assert any((policy or "hidden") in report for report in facts.reports())


def test_what_was_evicted_is_lost_and_never_expired(own_server: Server) -> None:
    """Twenty scopes of a day each, evicted within seconds: an error for each, by name."""
    with own_server.client() as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        with holdfast.open(own_server.url(), durability="process") as store:
            store.conversation("lasts").set("n", 1)
            chats = [store.conversation(f"c{n}", ttl_s=DAY_S) for n in range(20)]
            for chat in chats:
                chat.set("n", 1, key="k")
            _evict_all(client, *(EVENTS % chat.id for chat in chats))
            for chat in chats:
                with pytest.raises(LostCommitsError, match="volatile-lru"):
                    chat.set("n", 2)
            assert store.conversation("lasts").state == {"n": 1}
        with holdfast.open(own_server.url(), durability="process") as store:
            for chat in (store.conversation(f"c{n}") for n in range(20)):
                with pytest.raises(LostCommitsError, match="volatile-lru"):
                    chat.get("n")
            with pytest.raises(LostCommitsError):
                list(store.follow(as_events=True, after=START, timeout_s=0))
            assert store.conversation("lasts").state == {"n": 1}
            assert any("evicted" in report for report in store.status()["reports"])
            assert not store.check().ok


def test_what_is_called_expired_because_it_is_gone_is_found(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a scope with a lifetime has expired if its events are gone, whatever the time."""
    read = redis_server._file

    def planted(file: str) -> str:
        text = read(file)
        assert file != "redis_counts.lua" or "if ends <= math.max(now_us(), seen)" in text
        return text.replace("if ends <= math.max(now_us(), seen)", "if ends > 0")

    monkeypatch.setattr(redis_server, "_file", planted)
    with own_server.client() as client, holdfast.open(own_server.url()) as store:
        chat = store.conversation("c", ttl_s=DAY_S)
        chat.set("n", 1)
        client.delete(EVENTS % "c")
        with pytest.raises(ExpiredError):  # which the tests here would not take
            chat.set("n", 2)


def test_a_key_that_was_evicted_alone_is_not_written_twice(own_server: Server) -> None:
    with own_server.client() as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        with holdfast.open(own_server.url(), durability="process") as store:
            chat = store.conversation("c", ttl_s=DAY_S)
            chat.set("n", 1, key="k")
            client.delete(KEYS % "c")  # one of the keys that a sample of the server may be
            with pytest.raises(LostCommitsError, match="volatile-lru"):
                chat.set("n", 1, key="k")
            assert chat.revision == 2  # its beginning and one change


def test_a_policy_that_is_set_at_run_time_is_noticed_when_something_is_gone(
    own_server: Server,
) -> None:
    with own_server.client() as client, holdfast.open(own_server.url()) as store:
        chat = store.conversation("c", ttl_s=DAY_S)
        chat.set("n", 1)
        client.config_set("maxmemory-policy", "allkeys-random")
        client.delete(EVENTS % "c")
        with pytest.raises(LostCommitsError, match="allkeys-random"):
            store._log.read("conversation/c", after=0)


def test_a_policy_that_is_set_at_run_time_is_noticed_by_a_connection_in_use(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RedisBackend(own_server.url(), clock=SystemClock())
    build = RecordBuilder()
    write(backend, build, "a")
    with own_server.client() as client:
        client.config_set("maxmemory-policy", "volatile-ttl")
        write(backend, build, "a")  # its settings are still fresh
        monkeypatch.setattr(connection, "EXAMINED_FOR_S", -1.0)
        with pytest.raises(UsageError, match="volatile-ttl"):
            backend.commit([build.commit(build.append("b"))])
        with pytest.raises(UsageError, match="volatile-ttl"):
            backend.heads(["a"])
        client.config_set("maxmemory-policy", "noeviction")
    assert write(backend, build, "b").position == 3
    backend.close()


@pytest.mark.parametrize("is_over", [True, False])
def test_a_clock_that_was_set_back_tells_what_had_ended_by_what_it_saw(
    own_server: Server, is_over: bool
) -> None:
    """The latest time that a commit was made at is kept: what ended before that has ended."""
    with own_server.client() as client:
        store = holdfast.open(own_server.url())
        store._log._backend._checkout.clock = CLOCK  # type: ignore[attr-defined]
        chat = store.conversation("c", ttl_s=60)
        chat.set("n", 1)
        client.set("test:clock", (61 if is_over else 59) * 1_000_000)
        store.conversation("lasts").set("n", 1)
        client.set("test:clock", 0)
        client.delete(EVENTS % "c")
        with pytest.raises(ExpiredError if is_over else LostCommitsError):
            store._log.read("conversation/c", after=0)
        with pytest.raises(ExpiredError if is_over else LostCommitsError):
            chat.set("n", 2)
        found = list(store._log.verify(read_all=True))
        assert (found == []) == is_over
        store.close()

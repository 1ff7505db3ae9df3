"""Redis lets go by itself of a scope that was begun with a lifetime, in its own time (0010)."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis as driver

import holdfast
from holdfast.errors import ExpiredError
from tests.servers import redis
from tests.servers.redis_clock import CLOCK

LARGE = "x" * 100_000


@pytest.mark.parametrize("name", redis.installations())
def test_redis_lets_go_by_itself(name: str) -> None:
    """What is left of such a scope is its name and head; the server itself removed the rest."""
    application = "lets-go"
    running = redis.new_server(name)
    try:
        with holdfast.open(running.url(application=application), durability="none") as store:
            client: Any = driver.Redis.from_url(running.url())  # type: ignore
            lasting = store.conversation("lasts")
            lasting.set("n", 1, key="k", checkpoint="p")
            store._log.snapshots.flush({})
            before = set(client.scan_iter(count=1000))
            chat = store.conversation("c1", ttl_s=1.5)
            chat.set("text", LARGE, key="k", checkpoint="p")
            position = store.position
            made = set(client.scan_iter(count=1000)) - before
            lives = {key: client.pttl(key) for key in made if not _is_shared(key)}
            assert len(lives) == 5  # events, keys, checkpoints, named, blob
            assert all(0 < left <= 61_500 for left in lives.values()), lives
            events = f"holdfast:{{{application}}}:events:conversation/c1"
            deadline = time.monotonic() + 60
            while client.exists(events) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not client.exists(events)
            with pytest.raises(ExpiredError):
                chat.get("text")
            with pytest.raises(ExpiredError):
                store._log._backend.read("conversation/c1")
            assert store._log._backend.find("conversation/c1", key="k") == []
            assert [event.stream for event in store.follow_events()] == ["conversation/lasts"]
            assert list(store.follow_events(after=position)) == []
            assert store.check().findings == []
            assert lasting.state == {"n": 1}
            [head] = store._log._backend.heads(["conversation/c1"])
            assert head is not None
            assert head.revision == 2
    finally:
        running.remove()


def test_what_was_dropped_hides_nothing_after_it() -> None:
    """Clauses 10 and 18: a page of the log of which nothing is left is not the end of the store."""
    application = "let-go-pages"
    running = redis.new_server(next(iter(redis.installations())))
    try:
        with holdfast.open(running.url(application=application), durability="none") as store:
            store.conversation("before").set("n", 1)
            chat = store.conversation("c1", ttl_s=3600)
            for number in range(1100):
                with store.submit() as tx:
                    tx.scope(chat).set("n", number)
            store.conversation("behind").set("n", 2)
            client: Any = driver.Redis.from_url(running.url())  # type: ignore
            store._log._backend._checkout.clock = CLOCK  # type: ignore[attr-defined]
            client.set("test:clock", 3_601_000_000)
            client.delete(f"holdfast:{{{application}}}:events:conversation/c1")  # as at its end
            seen = [event.stream for event in store.follow_events()]
            assert seen == ["conversation/before", "conversation/behind"]
            assert store._log._backend.read_all(after=store.position, limit=1) == []
            first = store._log._backend.read_all(limit=1)
            behind = store._log._backend.read_all(after=first[-1].position, limit=1)
            assert [record.stream for record in behind] == ["conversation/behind"]
            taken = store.group("g").take(10)
            assert [delivery.event.stream for delivery in taken] == seen
    finally:
        running.remove()


def test_what_is_kept_for_good_after_it_had_ended_is_listed() -> None:
    running = redis.server(redis.OLDEST)
    with holdfast.open(running.url(application="kept-again")) as store:
        objects, backend = store._log._backend.objects, store._log._backend
        objects.put("blob", "ab", b"1", expires_us=backend.now_us("") + 1000)
        deadline = time.monotonic() + 60
        while objects.get("blob", "ab") is not None and time.monotonic() < deadline:
            time.sleep(0.001)
        objects.put("blob", "ab", b"2")
        assert (objects.get("blob", "ab"), objects.names("blob")) == (b"2", ["ab"])
        assert list(backend.inspect.verify(read_all=True)) == []


def _is_shared(key: bytes) -> bool:
    """Returns whether a key belongs to the store and not to one stream."""
    kind = key.decode().partition("}:")[2].partition(":")[0]
    return kind not in ("events", "keys", "checkpoints", "named", "object")

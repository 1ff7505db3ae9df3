"""Redis lets go by itself of a scope that was begun with a lifetime, in its own time (0010)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis as driver

import holdfast
from holdfast.backends.protocol import START, Mark
from holdfast.copy import copy
from holdfast.core.retention import Retainer
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
            assert [
                event.stream for event in store.follow(as_events=True, after=START, timeout_s=0)
            ] == ["conversation/lasts"]
            assert list(store.follow(as_events=True, after=position, timeout_s=0)) == []
            assert store.check().findings == []
            assert lasting.state == {"n": 1}
            [head] = store._log._backend.heads(["conversation/c1"])
            assert head is not None
            assert head.revision == 2
    finally:
        running.remove()


@pytest.mark.parametrize("name", redis.installations())
def test_every_key_of_a_stream_is_given_an_end_that_moves(name: str) -> None:
    """Clause 36: a write renews, in the same script, what earlier commits wrote in other keys."""
    running = redis.server(name)
    with holdfast.open(running.url(application="renews"), durability="none") as store:
        client: Any = driver.Redis.from_url(running.url())  # type: ignore
        chat = store.conversation("c1", ttl_s=1000, slides=True)
        chat.set("text", LARGE, key="k", checkpoint="p")
        root = "holdfast:{renews}:"
        keys = [
            f"{root}{kind}:conversation/c1" for kind in ("events", "keys", "checkpoints", "named")
        ]
        for key in keys:
            assert client.pexpire(key, 500_000)  # as if half of the time had passed
        blobs = list(client.scan_iter(f"{root}object:blob:*"))
        assert [client.pttl(blob) for blob in blobs] == [-1]  # it stays until `retain`
        store.conversation("c1").set("n", 1)
        left = [client.pttl(key) for key in keys]
        assert all(900_000 < one <= 1_001_000 for one in left), left
        assert store.check().findings == []


def test_what_was_dropped_hides_nothing_after_it() -> None:
    """Clauses 10 and 18: a page of the log of which nothing is left is not the end of the store."""
    application = "let-go-pages"
    running = redis.new_server(next(iter(redis.installations())))
    try:
        with holdfast.open(running.url(application=application), durability="none") as store:
            store.conversation("before").set("n", 1)
            chat = store.conversation("c1", ttl_s=3600)
            for number in range(1100):
                with store.commit(waits=False) as tx:
                    tx.scope(chat).set("n", number)
            store.conversation("behind").set("n", 2)
            client: Any = driver.Redis.from_url(running.url())  # type: ignore
            store._log._backend._checkout.clock = CLOCK  # type: ignore[attr-defined]
            client.set("test:clock", 3_601_000_000)
            client.delete(f"holdfast:{{{application}}}:events:conversation/c1")  # as at its end
            seen = [
                event.stream for event in store.follow(as_events=True, after=START, timeout_s=0)
            ]
            assert seen == ["conversation/before", "conversation/behind"]
            assert store._log._backend.read_all(after=store.position, limit=1) == []
            first = store._log._backend.read_all(limit=1)
            behind = store._log._backend.read_all(after=first[-1].position, limit=1)
            assert [record.stream for record in behind] == ["conversation/behind"]
            taken = store.workers.group("g").take(10)
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


def test_a_hold_keeps_the_keys_of_a_scope_until_it_is_released() -> None:
    """Clause 30: nothing of a held scope goes at its end; released, it goes as it would have."""
    running = redis.new_server(next(iter(redis.installations())))
    try:
        with holdfast.open(running.url(application="held"), durability="none") as store:
            client: Any = driver.Redis.from_url(running.url())  # type: ignore
            chat = store.conversation("c1", ttl_s=1.5)
            other = store.conversation("c2", ttl_s=1.5)
            chat.set("text", LARGE)
            other.set("n", 1)
            store.retention.hold(chat, "a court asked for it")
            chat.set("more", LARGE + "y", key="k", checkpoint="p")  # after the hold: no new end
            _until(lambda: not client.exists("holdfast:{held}:events:conversation/c2"))
            lives = [client.pttl(key) for key in client.scan_iter(count=1000) if b"/c1" in key]
            assert lives == [-1] * 4  # events, keys, checkpoints, named
            blobs = [key for key in client.scan_iter(count=1000) if b":object:blob:" in key]
            assert [client.pttl(key) for key in blobs] == [-1, -1]
            assert (chat["text"], chat.at("p")["more"]) == (LARGE, LARGE + "y")
            with pytest.raises(ExpiredError):
                store.retention.hold(other)
            assert [one.scope for one in store.retention.holds()] == ["conversation/c1"]
            assert store.check().findings == []
            store.retention.unhold(chat)
            _until(lambda: not client.exists("holdfast:{held}:events:conversation/c1"))
            with pytest.raises(ExpiredError):
                chat.get("text")
            assert store.check().findings == []
            assert store._log._backend.kept() == []  # type: ignore[attr-defined]
    finally:
        running.remove()


def test_a_hold_that_was_half_made_is_put_right_by_retain() -> None:
    """A process killed between the two parts of a hold, and a mark that came without the other."""
    running = redis.server(redis.OLDEST)
    with holdfast.open(running.url(application="half-held")) as store:
        backend: Any = store._log._backend
        store.conversation("c1", ttl_s=3600).set("n", 1)
        store.conversation("c2", ttl_s=3600).set("text", LARGE)
        backend.keep("conversation/c1", True)  # and killed: there is no mark
        store._kernel.part(Retainer)._commit([], marks=[Mark("retention.hold", "conversation/c2")])
        store.retention.run()
        assert backend.kept() == ["conversation/c2"]
        client: Any = driver.Redis.from_url(running.url())  # type: ignore
        root = "holdfast:{half-held}"
        assert client.pttl(f"{root}:events:conversation/c1") > 0
        assert client.pttl(f"{root}:events:conversation/c2") == -1
        [blob] = client.scan_iter(f"{root.replace('{', '?').replace('}', '?')}:object:blob:*")
        assert client.pttl(blob) == -1
        assert store.check().findings == []


def test_a_copy_is_held_where_its_source_is() -> None:
    running = redis.server(redis.OLDEST)
    with (
        holdfast.open(running.url(application="held-source")) as source,
        holdfast.open(running.url(application="held-target")) as target,
    ):
        source.conversation("c1", ttl_s=3600).set("text", LARGE)
        source.retention.hold("conversation/c1")
        copy(source, target)
        backend: Any = target._log._backend
        assert backend.kept() == ["conversation/c1"]
        source.retention.unhold("conversation/c1")
        copy(source, target)
        assert backend.kept() == []
        assert target.retention.holds() == []


def _until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_true()


def _is_shared(key: bytes) -> bool:
    """Returns whether a key belongs to the store and not to one stream."""
    kind = key.decode().partition("}:")[2].partition(":")[0]
    return kind not in ("events", "keys", "checkpoints", "named", "object")

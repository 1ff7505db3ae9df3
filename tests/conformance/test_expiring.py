"""Scopes that end by themselves are alike on every backend (BOOT-54, BOOT-55, guarantee 11, 0010).

Each backend's own clock is moved by the test: this host's, or the one that the server's functions
and scripts ask. That Redis lets go by itself is shown by tests/servers/test_redis_expiring.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast import Settings
from holdfast.backends.protocol import START
from holdfast.errors import ConflictError, ExpiredError, NotFoundError, UsageError
from holdfast.store import Store
from holdfast.testing import FakeClock
from holdfast.transfer.copy import copy_log as copy
from tests.servers import redis
from tests.servers.databases import database
from tests.servers.postgresql import NEWEST
from tests.servers.redis_clock import CLOCK, FAKE, shared_ground

# The portable suites run where no driver is installed.
SERVERS = [name for name, there in (("postgresql", NEWEST), ("redis", redis.OLDEST)) if there]
KINDS = ["memory", "files", "sqlite", *SERVERS]
LARGE = "x" * 100_000


class World:
    """A kind of backend, and the clock that judges it."""

    def __init__(self, kind: str, place: Path) -> None:
        self.kind = kind
        self.clock = FakeClock()
        name = sha256(str(place).encode()).hexdigest()[:16]
        if kind == "postgresql":
            ground = database(NEWEST, "fake")
            ground.follow(self.clock)
            self.url = ground.url(application=name)
        elif kind == "redis":
            shared = shared_ground(redis.OLDEST)
            shared.follow(self.clock)
            self.url = shared.url(FAKE, name)
        else:
            self.url = {"memory": "memory:", "sqlite": f"sqlite:{place / 's.db'}"}.get(
                kind, str(place / "files")
            )

    def open(self) -> Store:
        store = holdfast.open(self.url, durability="none", settings=Settings(clock=self.clock))
        if self.kind == "redis":
            backend: Any = store._log._backend
            backend._checkout.clock = CLOCK
        return store


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(request.param, tmp_path)


@pytest.fixture
def store(world: World) -> Iterator[Store]:
    with world.open() as store:
        yield store


def test_a_scope_is_there_until_its_end(world: World, store: Store) -> None:
    chat = store.conversation("c1", ttl_s=60)
    assert chat.life.expires_at is None
    chat.set("stage", "triage", checkpoint="begun")
    ends = chat.life.expires_at
    assert ends is not None
    assert abs(ends.timestamp() - world.clock.now_us() / 1e6 - 60) < 0.002
    world.clock.advance(59)
    store.conversation("c1").set("stage", "open")
    assert chat.life.expires_at == ends
    assert chat.at("begun") == {"stage": "triage"}
    assert [event.type for event in chat.history()] == ["opened", "changed", "changed"]
    assert [mark.key for mark in store.workers.marks("scope.expires")] == ["conversation/c1"]


def test_from_its_end_on_it_is_gone(world: World, store: Store) -> None:
    """Whatever asks for it is told that it expired, and when."""
    chat = store.conversation("c1", ttl_s=60)
    chat.set("stage", "triage", key="k", checkpoint="begun")
    ends = chat.life.expires_at
    world.clock.advance(61)
    asks: dict[str, Callable[[], object]] = {
        "state": lambda: chat.state,
        "revision": lambda: chat.revision,
        "updated_at": lambda: chat.life.updated_at,
        "expires_at": lambda: chat.life.expires_at,
        "is_closed": lambda: chat.life.is_closed,
        "at": lambda: chat.at(1),
        "at name": lambda: chat.at("begun"),
        "checkpoints": chat.checkpoints,
        "history": lambda: list(chat.history()),
        "diff": lambda: chat.diff(1),
        "set": lambda: chat.set("stage", "open"),
        "set without ttl": lambda: store.conversation("c1").set("stage", "open"),
        "set again": lambda: chat.set("stage", "triage", key="k"),
        "edit": lambda: chat.edit(lambda draft: draft.update(a=1)),
        "undo": chat.undo,
        "close": chat.close,
        "fork": lambda: chat.fork("c2"),
        "follow": lambda: list(store.follow(chat, after=0, timeout_s=0)),
        "view": lambda: store.view().state(chat),
    }
    for name, ask in asks.items():
        with pytest.raises(ExpiredError) as caught:
            ask()
        assert caught.value.ended == ends, name
        assert isinstance(caught.value, NotFoundError)
    with world.open() as other:
        if world.kind == "memory":
            return
        for scope in (other.conversation("c1"), other.conversation("c1", ttl_s=60)):
            with pytest.raises(ExpiredError, match="expired at"):
                scope.get("stage")
            with pytest.raises(ExpiredError):
                scope.set("stage", "again")
        assert [scope.name for scope in other.scopes()] == ["conversation/c1"]


async def _streams_of_feed(store: Store) -> list[str]:
    with ThreadPoolExecutor(1) as executor:
        skin = holdfast.aio.AsyncStore(store, executor)
        return [
            event.stream async for event in skin.follow(as_events=True, after=START, timeout_s=0)
        ]


def test_the_feed_leaves_out_what_is_gone(world: World, store: Store) -> None:
    team = store.team("red")
    team.set("n", 1)
    store.conversation("c1", ttl_s=60).set("a", 1)
    middle = store.position
    store.conversation("c1").set("a", 2)
    team.set("n", 2)
    world.clock.advance(61)
    assert [event.stream for event in store.follow(as_events=True, after=START, timeout_s=0)] == [
        "team/red",
        "team/red",
    ]
    assert asyncio.run(_streams_of_feed(store)) == ["team/red", "team/red"]
    with world.open() as other:
        if world.kind != "memory":
            assert [
                event.stream for event in other.follow(as_events=True, after=middle, timeout_s=0)
            ] == ["team/red"]
    assert store.check().findings == []


def test_what_expires_is_not_committed_with_what_lasts(store: Store) -> None:
    team, chat = store.team("red"), store.conversation("c1", ttl_s=60)
    for _ in range(2):  # neither when it begins nor later
        with pytest.raises(UsageError, match="expires by itself"), store.commit() as tx:
            tx.scope(team).set("n", 1)
            tx.scope(chat).set("n", 1)
        assert team.revision == 0
        chat.set("begun", True)
    with store.commit() as tx:
        tx.scope(chat).set("n", 1)
        tx.scope(store.conversation("c2", ttl_s=60)).set("n", 1)
    assert store.conversation("c2").life.expires_at is not None


def test_what_expires_may_be_read_as_a_guard(store: Store) -> None:
    team, chat = store.team("red"), store.conversation("c1", ttl_s=60)
    chat.set("n", 1)
    with store.commit() as tx:
        tx.scope(team).set("n", tx.scope(chat).get("n"))
    assert team.get("n") == 1
    pending = store.commit()
    with pytest.raises(ConflictError), pending as tx:
        tx.scope(team).set("n", tx.scope(chat).get("n"))
        chat.set("n", 2)


def test_what_expires_is_not_forked(store: Store) -> None:
    chat = store.conversation("c1", ttl_s=60)
    chat.set("n", 1)
    with pytest.raises(UsageError, match="a fork of it would lose the past"):
        chat.fork("c2")
    assert store.conversation("c2").revision == 0


def test_what_lasts_stays(world: World, store: Store) -> None:
    store.conversation("c1").set("n", 1)
    with pytest.raises(UsageError, match="begun without ttl_s"):
        store.conversation("c1", ttl_s=60).set("n", 2)
    world.clock.advance(61)
    store.conversation("c1").set("n", 3)
    assert store.conversation("c1").state == {"n": 3}


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf"), "60", True, 0.000_1])
def test_a_lifetime_is_a_number_of_seconds(ttl_s: Any) -> None:
    with holdfast.open("memory:", durability="none") as store, pytest.raises(UsageError):
        store.conversation("c1", ttl_s=ttl_s)


def test_large_values_last_as_long_as_what_needs_them(world: World, store: Store) -> None:
    """A blob that a lasting scope shares with one that is gone is still there."""
    chat, team = store.conversation("c1", ttl_s=60), store.team("red")
    chat.set("text", LARGE)
    team.set("text", LARGE)
    assert chat.get("text") == LARGE
    world.clock.advance(61)
    with world.open() as other:
        shown = store if world.kind == "memory" else other
        assert shown.team("red").get("text") == LARGE
    assert store.check().findings == []


def test_a_scope_in_a_layer_above_expires_too(store: Store) -> None:
    """Whatever is written first begins the scope as its handle says, a checkpoint for one."""
    chat = store.conversation("c1", ttl_s=60, parent=store.team("red"))
    chat.checkpoint("begun")
    assert chat.life.expires_at is not None
    assert chat.parent == store.team("red")


def test_a_copy_has_the_same_end_and_leaves_out_what_is_gone(
    world: World, store: Store, tmp_path: Path
) -> None:
    store.conversation("gone", ttl_s=60).set("n", 1)
    store.conversation("there", ttl_s=600).set("n", 1)
    store.conversation("lasts").set("n", 1)
    world.clock.advance(61)
    with holdfast.open(
        f"sqlite:{tmp_path / 'copy.db'}", settings=Settings(clock=world.clock)
    ) as target:
        copy(store._log, target._log)
        assert (
            target.conversation("there").life.expires_at
            == store.conversation("there").life.expires_at
        )
        names = [scope.name for scope in target.scopes()]
        assert names == ["conversation/lasts", "conversation/there"]
        world.clock.advance(600)
        with pytest.raises(ExpiredError):
            target.conversation("there").get("n")


def test_what_is_held_does_not_end_and_takes_no_commit(world: World, store: Store) -> None:
    """A hold on a scope with a lifetime (BOOT-54, 0066): it is read past its end, and copied."""
    chat = store.conversation("c1", ttl_s=60)
    chat.set("text", LARGE, key="k", checkpoint="begun")
    store.conversation("c2", ttl_s=60).set("n", 1)
    store.retention.hold(chat, "asked for")
    world.clock.advance(61)
    assert store.conversation("c1").get("text") == LARGE
    assert chat.at("begun") == {"text": LARGE}
    with pytest.raises(ExpiredError):
        chat.set("n", 2)
    with pytest.raises(ExpiredError):
        store.conversation("c2").get("n")
    done = store.retention.run(grace_s=0)
    assert "conversation/c1" not in [one.scope for one in done.scopes]
    with holdfast.open("memory:", settings=Settings(clock=world.clock)) as other:
        copy(store._log, other._log)
        assert other.conversation("c1").get("text") == LARGE
        assert [one.scope for one in other.retention.holds()] == ["conversation/c1"]
        other.retention.unhold("conversation/c1")
        with pytest.raises(ExpiredError):
            other.conversation("c1").get("text")
    assert store.check().findings == []
    store.retention.unhold(chat)
    with pytest.raises(ExpiredError):
        store.conversation("c1").get("text")


def test_asyncio_has_it_too() -> None:
    async def work() -> None:
        async with await holdfast.aio.open("memory:", durability="none") as store:
            chat = store.conversation("c1", ttl_s=60)
            await chat.set("n", 1)
            assert await chat.life.expires_at is not None

    asyncio.run(work())

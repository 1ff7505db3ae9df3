"""Scopes whose end slides are alike on every backend (BOOT-54, clauses 36 and 37)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast import Settings
from holdfast.backends.protocol import START
from holdfast.errors import ConflictError, ExpiredError, NotFoundError, UsageError
from holdfast.store import Store
from holdfast.transfer.copy import copy_log as copy
from tests.conformance.test_expiring import KINDS, LARGE, World


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(request.param, tmp_path)


@pytest.fixture
def store(world: World) -> Iterator[Store]:
    with world.open() as store:
        yield store


@pytest.fixture
def other(world: World, store: Store) -> Iterator[Store]:
    """Another handle of the same store, as another process has it."""
    if world.kind == "memory":
        yield store
    else:
        with world.open() as another:
            yield another


def types(store: Store) -> list[str]:
    return [event.type for event in store.conversation("c1").history()]


def test_each_write_moves_the_end(world: World, store: Store, other: Store) -> None:
    chat = store.conversation("c1", ttl_s=60, slides=True)
    chat.set("text", LARGE, key="k", checkpoint="begun")
    for n in range(3):
        world.clock.advance(50)
        other.conversation("c1").set("n", n)  # by one that does not know how long it lasts
        ends = other.conversation("c1").life.expires_at
        assert ends is not None
        assert abs(ends.timestamp() - world.clock.now_us() / 1e6 - 60) < 0.002
        assert chat.life.expires_at == ends
        [mark] = store.workers.marks("scope.expires")
        assert mark.due == ends.timestamp() * 1e6
    # All of it is there, whatever it was written with.
    assert chat.at("begun") == {"text": LARGE}
    assert chat.set("text", LARGE, key="k", checkpoint="begun") == 2  # the key is known
    assert len(chat.checkpoints()) == 1
    world.clock.advance(61)
    for handle in (store, other):
        with pytest.raises(ExpiredError):
            handle.conversation("c1").get("n")
        with pytest.raises(ExpiredError):
            handle.conversation("c1").set("n", 9)
        assert [
            e.stream
            for e in handle.follow(as_events=True, after=START, timeout_s=0)
            if e.stream == "conversation/c1"
        ] == []
    assert store.check().findings == []


def test_a_touch_moves_the_end_at_most_once_in_a_tenth(
    world: World, store: Store, other: Store
) -> None:
    chat = store.conversation("c1", ttl_s=100, slides=True)
    chat.set("n", 1)
    begun = chat.life.expires_at
    for _ in range(9):
        assert chat.life.touch() == begun
        assert other.conversation("c1").life.touch() == begun
        world.clock.advance(1)
    assert types(store) == ["opened", "changed"]
    world.clock.advance(2)
    moved = chat.life.touch()
    assert begun is not None
    assert abs((moved - begun).total_seconds() - 11) < 0.01
    assert other.conversation("c1").life.touch() == moved  # which another has moved already
    assert types(store) == ["opened", "changed", "scope.touched"]
    assert chat.state == {"n": 1}
    for _ in range(5):
        world.clock.advance(95)
        other.conversation("c1").life.touch()
    assert chat.get("n") == 1
    world.clock.advance(101)
    with pytest.raises(ExpiredError):
        chat.life.touch()


def test_what_cannot_be_touched(store: Store) -> None:
    with pytest.raises(NotFoundError, match="no scope"):
        store.conversation("none", ttl_s=60, slides=True).life.touch()
    store.conversation("lasts").set("n", 1)
    with pytest.raises(UsageError, match="lasts"):
        store.conversation("lasts").life.touch()
    store.conversation("fixed", ttl_s=60).set("n", 1)
    with pytest.raises(UsageError, match="an end that is fixed"):
        store.conversation("fixed").life.touch()
    gone = store.conversation("removed", ttl_s=60, slides=True)
    gone.set("n", 1)
    gone.remove()
    with pytest.raises(NotFoundError, match="no scope"):
        gone.life.touch()
    closed = store.conversation("closed", ttl_s=0.002, slides=True)
    with pytest.raises(UsageError, match="slides"):
        store.conversation("c9", slides=True)
    del closed


@pytest.mark.parametrize("ttl_s", [0, -1, True, float("nan"), float("inf"), 1e11, "1000000w", None])
def test_a_lifetime_that_is_none(ttl_s: Any) -> None:
    with holdfast.open("memory:", durability="none") as store:
        with pytest.raises(UsageError):
            store.conversation("c1", ttl_s=ttl_s, slides=True)
        if ttl_s is not None:
            with pytest.raises(UsageError):
                store.retention.expire("conversation", ttl_s=ttl_s)
        with pytest.raises(UsageError):
            store.retention.expire("global")
        with pytest.raises(UsageError):
            store.retention.expire("conversation", slides=1)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            store.retention.expire("nowhere")


def test_a_writer_that_lost_the_race_with_the_end_is_refused(
    world: World, store: Store, other: Store
) -> None:
    """And one that knows an end which another has moved since is not."""
    chat, theirs = store.conversation("c1", ttl_s=60, slides=True), other.conversation("c1")
    chat.set("n", 1)
    assert theirs.get("n") == 1
    world.clock.advance(50)
    chat.set("n", 2)
    world.clock.advance(50)  # the end that the other handle knows has come
    theirs.set("m", 1)
    assert chat.state == {"n": 2, "m": 1}
    world.clock.advance(50)
    assert theirs.at(2) == {"n": 1}
    view = other.view()
    assert view.get(theirs, "n") == 2
    world.clock.advance(11)
    for scope in (chat, theirs):
        with pytest.raises(ExpiredError):
            scope.set("n", 3)
    with pytest.raises(ExpiredError):
        view.get(theirs, "n")
    [head] = store._log.heads(["conversation/c1"])
    assert head is not None
    assert head.revision == 4


def test_what_was_read_must_not_have_ended(world: World, store: Store) -> None:
    """By its revision alone, and by what is at a path: the commit stands on what is gone."""
    team, chat = store.team("red"), store.conversation("c1", ttl_s=60)
    chat.set("n", 1)
    with pytest.raises(ExpiredError) as caught, store.commit() as tx:
        tx.scope(team).set("n", tx.scope(chat).get("n"))
        world.clock.advance(61)
    assert caught.value.stream == "conversation/c1"
    sliding = store.conversation("c2", ttl_s=60, slides=True)
    sliding.set("n", 1)
    with pytest.raises(ExpiredError), store.commit() as tx:
        tx.scope(sliding).expect(sliding.revision)
        tx.scope(team).set("n", 1)
        world.clock.advance(61)
    assert team.revision == 0


def test_what_was_read_may_have_been_touched_since(
    world: World, store: Store, other: Store
) -> None:
    """The end that a commit knows has come, and another has moved it: then that one counts."""
    team, chat = store.team("red"), store.conversation("c1", ttl_s=60, slides=True)
    chat.set("n", 1)
    with store.commit() as tx:
        tx.scope(team).set("n", tx.scope(chat).get("n"))
        world.clock.advance(50)
        other.conversation("c1").life.touch()
        world.clock.advance(50)
    assert team.get("n") == 1
    seen = chat.revision
    with pytest.raises(ConflictError), store.commit() as tx:
        tx.scope(chat).expect(seen)
        tx.scope(team).set("n", 2)
        other.conversation("c1").life.touch()
        world.clock.advance(50)
    assert chat.get("n") == 1
    with pytest.raises(ExpiredError), store.commit() as tx:
        tx.scope(team).set("n", tx.scope(store.team("blue")).get("n") or tx.scope(chat).get("n"))
        other.conversation("c1").life.touch()
        world.clock.advance(61)
    hold = store.conversation("c2", ttl_s=60)
    hold.set("n", 5)
    store.retention.hold(hold, "asked for")
    world.clock.advance(61)
    with store.commit() as tx:  # what is held does not end for those who read it
        tx.scope(team).set("n", tx.scope(hold).get("n"))
    assert team.get("n") == 5


def test_two_that_slide_are_committed_together(world: World, store: Store) -> None:
    one, two = (
        store.conversation("c1", ttl_s=60, slides=True),
        store.conversation("c2", ttl_s=600, slides=True),
    )
    for n in range(3):
        with store.commit() as tx:
            tx.scope(one).set("n", n)
            tx.scope(two).set("n", n)
        world.clock.advance(59)
    world.clock.advance(2)
    with pytest.raises(ExpiredError), store.commit() as tx:
        tx.scope(one).set("n", 9)
        tx.scope(two).set("n", 9)
    assert two.get("n") == 2
    with pytest.raises(UsageError, match="expires by itself"):
        two.fork("c3")


def test_a_level_has_a_lifetime(world: World, store: Store, other: Store) -> None:
    """BOOT-54: an hour unless said otherwise, for every process, of what begins from then on."""
    store.conversation("before").set("n", 1)
    store.retention.expire("conversation")
    chat = other.conversation("c1")
    chat.set("n", 1)
    store.team("red").set("n", 1)
    other.conversation("short", ttl_s=60).set("n", 1)
    world.clock.advance(3599)
    with pytest.raises(ExpiredError):
        store.conversation("short").get("n")
    chat.set("n", 2)
    world.clock.advance(3599)
    assert store.conversation("c1").get("n") == 2
    store.retention.expire("conversation", ttl_s=None)
    world.clock.advance(2)
    for gone in (lambda: chat.get("n"), lambda: chat.at(2), lambda: list(chat.history())):
        with pytest.raises(ExpiredError):  # BOOT-6: no earlier revision is left
            gone()
    other.conversation("c2").set("n", 1)
    for lasting in (store.conversation("before"), store.conversation("c2"), store.team("red")):
        assert lasting.life.expires_at is None
        assert lasting.get("n") == 1
    other.retention.expire("conversation", ttl_s="10m", slides=False)
    fixed = store.conversation("c4")
    fixed.set("n", 1)
    world.clock.advance(599)
    fixed.set("n", 2)
    world.clock.advance(2)
    with pytest.raises(ExpiredError):
        fixed.get("n")


def test_a_clock_that_is_set_back_moves_no_end_back(world: World, store: Store) -> None:
    """On a server it is the server's clock that counts: this host's says nothing of an end."""
    chat = store.conversation("c1", ttl_s=60, slides=True)
    chat.set("n", 1)
    ends = chat.life.expires_at
    assert ends is not None
    world.clock.advance(30)
    world.clock.set(world.clock.now_us() - 60_000_000)
    chat.set("n", 2)
    moved = 0 if world.kind in ("memory", "files", "sqlite") else 30
    found = chat.life.expires_at
    assert found is not None
    assert abs((found - ends).total_seconds() - moved) < 0.01
    assert chat.life.touch() == found
    world.clock.advance(59 if moved else 89)
    assert chat.get("n") == 2
    world.clock.advance(2)
    with pytest.raises(ExpiredError):
        chat.set("n", 3)


def test_a_copy_slides_on_from_where_it_was(world: World, store: Store, tmp_path: Path) -> None:
    chat = store.conversation("c1", ttl_s=60, slides=True)
    chat.set("n", LARGE)
    world.clock.advance(50)
    chat.set("m", 2)
    with holdfast.open(
        f"sqlite:{tmp_path / 'copy.db'}", settings=Settings(clock=world.clock)
    ) as target:
        copy(store._log, target._log)
        there = target.conversation("c1")
        assert there.life.expires_at == chat.life.expires_at
        world.clock.advance(50)
        chat.life.touch()
        copy(store._log, target._log)
        assert there.life.expires_at == chat.life.expires_at
        assert [m.due for m in target.workers.marks("scope.expires")] == [
            m.due for m in store.workers.marks("scope.expires")
        ]
        world.clock.advance(50)
        assert there.get("n") == LARGE
        there.set("m", 3)
        world.clock.advance(50)
        assert there.get("m") == 3
        with pytest.raises(ExpiredError):
            chat.get("m")


def test_what_is_found_ends_with_its_scope(world: World, store: Store) -> None:
    chat = store.conversation("c1", ttl_s=60, slides=True)
    chat.say("a walnut table")
    assert [found.scope for found in store.query(text="walnut")] == ["conversation/c1"]
    world.clock.advance(50)
    chat.set("n", 1)
    world.clock.advance(50)
    assert [found.scope for found in store.query(text="walnut")] == ["conversation/c1"]
    world.clock.advance(11)
    assert list(store.query(text="walnut")) == []


def test_a_follower_goes_on_until_the_last_end(world: World, store: Store, other: Store) -> None:
    chat = store.conversation("c1", ttl_s=60, slides=True)
    chat.set("n", 1)
    world.clock.advance(50)
    following = other.follow(other.conversation("c1"), after=0, timeout_s=0)
    assert [change.new for change in following] == [1]
    chat.set("n", 2)
    world.clock.advance(50)
    changes = list(other.follow(other.conversation("c1"), after=2, timeout_s=0))
    assert [change.new for change in changes] == [2]
    world.clock.advance(11)
    with pytest.raises(ExpiredError):
        list(other.follow(other.conversation("c1"), after=3, timeout_s=0))


def test_asyncio_has_it_too() -> None:
    async def work() -> None:
        async with await holdfast.aio.open("memory:", durability="none") as store:
            await store.retention.expire("team", ttl_s=60)
            chat = store.conversation("c1", ttl_s=60, slides=True)
            await chat.set("n", 1)
            assert await chat.life.touch() == await chat.life.expires_at
            await store.team("red").set("n", 1)
            assert await store.team("red").life.expires_at is not None

    asyncio.run(work())


def test_a_file_says_it_of_levels(tmp_path: Path) -> None:
    """VIC-22, BOOT-54: what a level's scopes last, and what closing one does, is in the file."""
    (tmp_path / "holdfast.toml").write_text(
        '[store]\n"*" = "sqlite:s.db"\n[levels]\nsaved = "conversation"\n'
        '[levels.conversation]\nexpires = "2h"\non_close = "drop"\n'
        '[levels.visit]\nbelow = "conversation"\nexpires = 60\nslides = false\n'
    )
    with holdfast.open(tmp_path / "holdfast.toml", durability="none") as store:
        assert store.retention.expiry == {"conversation": (7200.0, True), "visit": (60, False)}
        position = store.position
        store.conversation("c1").set("n", 1)
        store.scope("saved", "s1").set("n", 1)
        store.conversation("c1").close()
        with pytest.raises(holdfast.ClosedError):
            store.conversation("c1").get("n")
        assert store.scope("saved", "s1").life.expires_at is None
    with holdfast.open(f"sqlite:{tmp_path / 's.db'}", durability="none") as store:
        assert (
            next(iter(store.follow(as_events=True, after=position, timeout_s=0))).stream
            == "conversation/c1"
        )
        store.conversation("c2").set("n", 1)
        assert store.conversation("c2").life.expires_at is not None
    for wrong in ('expires = "soon"', "expires = 0", 'on_close = "burn"', "slides = 1", "ends = 1"):
        (tmp_path / "holdfast.toml").write_text(
            f'[store]\n"*" = "sqlite:s.db"\n[levels.conversation]\n{wrong}\n'
        )
        with pytest.raises(UsageError, match=r"levels\.conversation"):
            holdfast.open(tmp_path / "holdfast.toml")
    (tmp_path / "holdfast.toml").write_text(
        '[store]\n"*" = "sqlite:s.db"\n[levels.nowhere]\nexpires = 60\n'
    )
    with pytest.raises(UsageError, match="nowhere"):
        holdfast.open(tmp_path / "holdfast.toml")


def test_what_has_ended_and_was_let_go_of_has_still_ended(world: World, store: Store) -> None:
    """One that reads it afresh after a retain is told that it has ended, and not that data went."""
    store.conversation("c1", ttl_s=60).set("n", 1)
    world.clock.advance(61)
    store.retention.run(grace_s=0)
    store._log.folds.trim()
    for ask in (lambda: store.conversation("c1").get("n"), lambda: store.conversation("c1").state):
        with pytest.raises(ExpiredError):
            ask()

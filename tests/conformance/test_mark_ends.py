"""Marks that end are passed over and cleared, alike on every backend (BOOT-54, 0073)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast.aio
from holdfast import Settings, Store
from holdfast.backends.protocol import Cleared
from holdfast.core import mark_ends
from holdfast.core.commit import ProposedCommit
from holdfast.core.mark_ends import ENDS
from holdfast.errors import UsageError
from tests.conformance.test_expiring import KINDS, World


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(request.param, tmp_path)


@pytest.fixture
def store(world: World) -> Iterator[Store]:
    with world.open() as store:
        yield store


def mark(store: Store, *keys: str, **named: Any) -> None:
    with store.commit() as tx:
        for key in keys:
            tx.mark("todo", key, **named)


def keys(store: Store) -> list[str]:
    return [one.key for one in store.workers.marks("todo")]


def stored(store: Store) -> list[str]:
    return [one.key for one in store._log.marks.list("todo")]


def test_a_mark_with_an_end_is_passed_over_and_cleared(world: World, store: Store) -> None:
    mark(store, "a", "b", ttl_s=60)
    mark(store, "c")
    assert keys(store) == ["a", "b", "c"]
    world.clock.advance(61)
    assert keys(store) == ["c"]
    assert [one.key for one in store.workers.claim("todo", n=3)] == ["c"]
    assert store.workers.claim("todo", n=3) == []
    assert stored(store) == ["a", "b", "c"]
    store.recover()
    assert stored(store) == ["c"]
    assert store._log.marks.list(ENDS) == []
    mark(store, "d", ttl_s=60)
    world.clock.advance(61)
    store.retention.preview()
    assert stored(store) == ["c", "d"]
    store.retention.run()
    assert stored(store) == ["c"]
    assert store.check().findings == []


def test_a_mark_that_is_set_again_has_the_end_that_it_is_given(world: World, store: Store) -> None:
    mark(store, "a", "b", "c", ttl_s=60)
    mark(store, "a")
    with store.commit() as tx:
        tx.scope(store.team("t")).set("n", 1)
        tx.mark("todo", "b", ttl_s=600)
        tx.clear("todo", "c")
    world.clock.advance(61)
    assert keys(store) == ["a", "b"]
    store.recover()
    assert stored(store) == ["a", "b"]
    world.clock.advance(600)
    assert keys(store) == ["a"]
    with store.commit() as tx:
        tx.mark("todo", "b", ttl_s=60)
        tx.mark("todo", "b")  # the last word counts
    assert keys(store) == ["a", "b"]
    store.recover()
    world.clock.advance(61)
    assert stored(store) == keys(store) == ["a", "b"]


def test_none_is_cleared_that_was_set_anew_meanwhile(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right before a recovery clears an ended mark, another process sets it again."""
    for scope in (None, store.team("t")):
        with store.commit() as tx:
            if scope is not None:
                tx.scope(scope).set("n", 1)
            tx.mark("todo", "a", ttl_s=60)
        world.clock.advance(61)
        genuine = store._log.commit

        def late(proposed: ProposedCommit, genuine: Any = genuine) -> Any:
            if any(isinstance(one, Cleared) for one in proposed.marks):
                monkeypatch.undo()
                mark(store, "a")
            return genuine(proposed)

        monkeypatch.setattr(store._log, "commit", late)
        assert mark_ends.sweep(store._log) == 0
        assert keys(store) == stored(store) == ["a"]
        with store.commit() as tx:
            tx.clear("todo", "a")


def test_a_mark_goes_with_the_scope_that_it_was_set_with(world: World, store: Store) -> None:
    visit = store.conversation("v", ttl_s=60, slides=True)
    with store.commit() as tx:
        tx.scope(visit).set("n", 1)
        tx.mark("todo", "of the visit")
    with store.commit() as tx:
        tx.scope(store.team("t")).set("n", 1)
        tx.mark("todo", "of the team")
    world.clock.advance(50)
    visit.set("n", 2)  # its end slides, and so does the mark's
    world.clock.advance(50)
    assert keys(store) == ["of the team", "of the visit"]
    world.clock.advance(20)
    assert keys(store) == ["of the team"]
    assert [one.key for one in store.workers.claim("todo", n=2)] == ["of the team"]
    store.recover()
    assert stored(store) == ["of the team"]
    # It goes with a removal, and comes back with it.
    cart = store.conversation("w", ttl_s=60)
    with store.commit() as tx:
        tx.scope(cart).set("n", 1)
        tx.mark("todo", "of the cart", ttl_s=30)
    cart.remove()
    assert keys(store) == ["of the team"]
    cart.undo()
    assert keys(store) == ["of the cart", "of the team"]
    world.clock.advance(31)
    assert keys(store) == ["of the team"]
    store.recover()
    assert stored(store) == ["of the team"]


def test_bad_input_writes_nothing(store: Store) -> None:
    for ttl_s in (0, -1, "soon", True, 1e11):
        with pytest.raises(UsageError, match="ttl_s"), store.commit() as tx:
            tx.mark("todo", "a", ttl_s=ttl_s)
    assert stored(store) == []


def test_asyncio_has_the_same(world: World, store: Store) -> None:
    store.close()

    async def live() -> None:
        async with await holdfast.aio.open(world.url, settings=Settings(clock=world.clock)) as hf:
            async with hf.commit() as tx:
                tx.mark("todo", "a", ttl_s=60)
            assert [one.key for one in await hf.workers.marks("todo")] == ["a"]

    asyncio.run(live())

"""Following and viewing a mixed store (guarantees 2 and 5)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from holdfast import aio
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.mixed import MixedBackend, PositionVector
from holdfast.backends.protocol import START, Mark, Position
from holdfast.clock import SystemClock
from holdfast.core.layers import kept_with
from holdfast.errors import HoldfastError, UsageError
from holdfast.store import Store
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import PATIENCE_S, accepted, write
from tests.unit.mixture import LARGE, memories, store_on


@pytest.fixture
def backend() -> Iterator[MixedBackend]:
    backend = memories()
    yield backend
    backend.close()


@pytest.fixture
def store(backend: MixedBackend) -> Store:
    return store_on(backend)


def test_events_come_once_in_each_streams_order_and_go_on_from_any_of_them(store: Store) -> None:
    """Guarantee 5."""
    names = ["team/red", "conversation/c1", "workflow/w", "conversation/c2"] * 5
    for name in names:
        store.scope(name).increment("n")
    events = list(store.follow(as_events=True, after=START, timeout_s=0))
    assert [event.stream for event in events] == names  # merged by time
    positions = [event.position for event in events]
    for earlier, later in pairwise(positions):
        assert earlier < later
        assert earlier <= later
        assert later > earlier >= START
        assert not earlier >= later
    assert positions[-1] == store.position
    for count, event in enumerate(events, 1):
        # As an int it can be stored; it is the same place.
        after = Position(int(event.position))
        assert [
            one.stream for one in store.follow(as_events=True, after=after, timeout_s=0)
        ] == names[count:]


def test_of_two_positions_neither_need_be_the_later_one(backend: MixedBackend) -> None:
    build = RecordBuilder()
    one = write(backend, build, "team/a").position
    other = write(backend, build, "conversation/a").position
    assert not one <= other
    assert not other <= one
    assert not one < other
    assert not one > other
    both = backend.wait(START, timeout_s=0)
    assert one < both > other
    assert int(one) <= both
    assert isinstance(both, PositionVector)


def test_a_follower_does_not_spin_where_one_backend_has_begun_anew() -> None:
    """Guarantee 5: a part in memory is empty again, and another has a commit without events.

    So the newest position is neither after the follower's nor equal to it.
    """
    old = memories()
    write(old, RecordBuilder(), "conversation/c")
    write(old, RecordBuilder(), "team/a")
    after = Position(int(old.wait(START, timeout_s=0)))
    old.close()
    backend = memories()
    write(backend, RecordBuilder(), "team/a")
    accepted(backend, RecordBuilder().commit(marks=[Mark("i", "m")]))
    newest = backend.wait(after, timeout_s=0)
    assert newest > after
    assert list(store_on(backend)._log.follow(after=after, timeout_s=0)) == []
    write(backend, RecordBuilder(), "team/b")
    assert [record.stream for record in backend.read_all(after=newest)] == ["team/b"]
    backend.close()


def test_small_pages_pass_nothing_over(backend: MixedBackend) -> None:
    build = RecordBuilder()
    for n in range(30):
        write(backend, build, f"{('team', 'conversation', 'workflow')[n % 3]}/{n % 2}", b"1", b"2")
    for limit in (1, 2, 7, 1000):
        seen: list[tuple[str, int]] = []
        after = START
        while page := backend.read_all(after=after, limit=limit):
            assert len(page) <= limit + 1
            seen += [(record.stream, record.revision) for record in page]
            after = page[-1].position
        assert len(seen) == len(set(seen)) == 60
        for stream in backend.streams():
            assert [revision for name, revision in seen if name == stream] == list(range(1, 11))


@pytest.mark.parametrize("bad", [-1, True, "1", 1 << 63, (1 << 64) - 1, 5, 1 << 300], ids=repr)
def test_a_position_of_another_store_is_refused(store: Store, bad: Any) -> None:
    with pytest.raises(UsageError, match="position"):
        list(store.follow(as_events=True, after=bad, timeout_s=0))


def test_a_position_of_other_routes_is_refused(store: Store) -> None:
    clock = SystemClock()
    shown = {"*": "a", "team": "b"}
    routes = {"*": MemoryBackend(clock=clock), "team": MemoryBackend(clock=clock)}
    other = store_on(MixedBackend(routes, shown, kept_with()))
    other.team("red").set("a", 1)
    with pytest.raises(UsageError, match="not a position of this store"):
        list(store.follow(as_events=True, after=other.position, timeout_s=0))


def test_a_view_never_straddles_a_commit(store: Store) -> None:
    """Guarantee 2, for scopes of every backend at once."""
    chat, team = store.conversation("c1"), store.team("red")
    with store.commit() as tx:
        tx.scope(chat).set("a", 1)
        tx.scope(store.conversation("c2")).set("a", 1)
    team.set("a", 1)
    view = store.view()
    with store.commit() as tx:
        tx.scope(chat).set("a", 2)
        tx.scope(store.conversation("c2")).set("a", 2)
    team.set("a", 2)
    store.workflow("new").set("a", 2)
    seen = [view.get(scope, "a") for scope in (chat, store.conversation("c2"), team)]
    assert seen == [1, 1, 1]
    assert view.revision(store.workflow("new")) == 0
    assert store.view().get(team, "a") == 2


@pytest.mark.parametrize("name", ["team/red", "conversation/c1", "workflow/w"])
def test_followers_wake_for_every_backend(store: Store, name: str) -> None:
    """Two followers, of a scope and of the store; neither asks in a loop."""
    heard: list[object] = []
    started = threading.Barrier(3)

    def follow_scope() -> None:
        started.wait(PATIENCE_S)
        heard.append(next(store.follow(name, after=0)).new)

    def follow_store() -> None:
        events = store.follow(as_events=True, timeout_s=None, after=START)
        started.wait(PATIENCE_S)
        heard.append(next(events).stream)

    threads = [threading.Thread(target=one) for one in (follow_scope, follow_store)]
    for thread in threads:
        thread.start()
    started.wait(PATIENCE_S)
    store.scope(name).set("a", 7)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(map(str, heard)) == ["7", name]


@pytest.mark.parametrize("name", ["team/red", "conversation/c1"])
def test_whoever_waits_is_woken_by_the_threads_that_watch(
    store: Store, backend: MixedBackend, name: str
) -> None:
    after = backend.wait(START, timeout_s=0)
    woken: list[Position] = []
    waiter = threading.Thread(
        target=lambda: woken.append(backend.wait(after, timeout_s=10 * PATIENCE_S))
    )
    waiter.start()
    while not all(vars(backend)["_watch"]._watched):
        threading.Event().wait(0.001)
    store.scope(name).set("a", 1)
    waiter.join(PATIENCE_S)
    assert woken == [store.position]


def test_an_interrupt_while_waiting_leaves_no_thread_that_watches(
    store: Store, backend: MixedBackend
) -> None:
    watch: Any = vars(backend)["_watch"]

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    watch._changed.wait_for, sound = interrupted, watch._changed.wait_for
    with pytest.raises(KeyboardInterrupt):
        backend.wait(backend.wait(START, timeout_s=0), timeout_s=PATIENCE_S)
    watch._changed.wait_for = sound
    assert watch._waiting == 0
    store.team("red").set("a", 1)  # a thread that watched for the one who left looks up, and ends
    store.conversation("c1").set("a", 1)
    store.workflow("w").set("a", 1)
    while any(watch._watched):
        threading.Event().wait(0.001)


def test_waiting_does_not_spin_and_ends_with_the_store() -> None:
    class Counting(MemoryBackend):
        asked = 0

        def wait(self, after: Position, *, timeout_s: float) -> Position:
            self.asked += 1
            return super().wait(after, timeout_s=timeout_s)

    clock = SystemClock()
    parts = [Counting(clock=clock), Counting(clock=clock)]
    routes = {"*": parts[0], "team": parts[1]}
    backend = MixedBackend(routes, {"*": "a", "team": "b"})
    assert backend.wait(START, timeout_s=0.3) == START
    assert sum(part.asked for part in parts) <= 8
    raised: list[HoldfastError] = []

    def wait() -> None:
        try:
            backend.wait(START, timeout_s=PATIENCE_S)
        except HoldfastError as error:
            raised.append(error)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len([one for one in threading.enumerate() if "holdfast-watch" in one.name]) < 2:
        threading.Event().wait(0.001)
    backend.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [str(error) for error in raised] == ["store is closed"] * 2


def test_groups_have_a_place_in_a_mixed_store(store: Store, backend: MixedBackend) -> None:
    names = ["team/red", "conversation/c1", "workflow/w"]
    seen: list[str] = []
    for round in range(2):
        for name in names:
            store.scope(name).set("a", round)
        with (
            store_on(backend) as other,
            other.workers.group("readers", types=("changed",)) as group,
        ):
            for delivery in group.deliveries(timeout_s=0):
                seen.append(delivery.event.stream)
                delivery.done()
            other.close = lambda: None  # type: ignore[method-assign]  # the parts are shared
    assert seen == names * 2


def test_asyncio_has_the_same(backend: MixedBackend) -> None:
    async def story() -> list[str]:
        from concurrent.futures import ThreadPoolExecutor

        store = aio.AsyncStore(store_on(backend), ThreadPoolExecutor(2))
        chat, team = store.conversation("c1"), store.team("red")
        await chat.set("large", LARGE)
        with pytest.raises(UsageError, match="span two backends"):
            async with store.commit() as tx:
                tx.scope(chat).set("a", 1)
                tx.scope(team).set("a", 1)
        await team.set("a", 1)
        streams = [
            event.stream async for event in store.follow(as_events=True, after=START, timeout_s=0)
        ]
        start = int(await store.position)
        await team.set("a", 2)
        streams += [
            event.stream
            async for event in store.follow(as_events=True, after=Position(start), timeout_s=0)
        ]
        with pytest.raises(UsageError, match="position"):
            [event async for event in store.follow(as_events=True, after=Position(3), timeout_s=0)]
        assert await team.state == {"a": 2}
        return streams

    assert asyncio.run(story()) == ["conversation/c1", "team/red", "team/red"]

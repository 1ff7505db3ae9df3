"""What a group does when something fails in the middle: nothing is lost, nobody is shut out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import LeaseLostError, Settings, Store, UnavailableError, UsageError, aio
from holdfast.core.consumers import Delivery, Groups, Member
from holdfast.errors import OtherStoreError
from holdfast.testing.clock import FakeClock
from holdfast.transfer.copy import copy_log as copy
from tests.unit.mixture import memories, store_on

Reopen = Callable[[], Store]


def fill(store: Store, count: int, *, team: str = "t") -> None:
    for n in range(count):
        store.team(team).set("n", n)


def keys(deliveries: list[Delivery]) -> list[str]:
    return [delivery.key for delivery in deliveries]


def fail_from(monkeypatch: pytest.MonkeyPatch, call: int, error: Exception) -> None:
    """Makes the n-th and every later step of a member fail."""
    calls = 0
    real = Member.next

    def next_one(self: Member) -> Delivery | None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise error
        return real(self)

    monkeypatch.setattr(Member, "next", next_one)


def test_what_was_taken_before_a_failure_is_handed_out(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BOOT-56: else nobody could say that it is done, and the group would stand still for good."""
    fill(hf, 5)
    group = hf.workers.group("g")
    with monkeypatch.context() as patch:
        fail_from(patch, 3, UnavailableError("no server"))
        taken = group.take(5)
        assert keys(taken) == ["g/team/t@1", "g/team/t@2"]
        with pytest.raises(UnavailableError):
            group.take(5)
    assert keys(group.take(5)) == ["g/team/t@3", "g/team/t@4", "g/team/t@5"]


def test_more_than_a_batch_at_once_is_a_batch(hf: Store) -> None:
    fill(hf, 5)
    group = hf.workers.group("g", batch=3)
    taken = group.take(100)
    assert keys(taken) == [f"g/team/t@{n}" for n in (1, 2, 3)]
    with pytest.raises(UsageError, match="3 deliveries that are not done"):
        group.take()
    for delivery in taken:
        delivery.done()
    assert keys(group.take(100)) == ["g/team/t@4", "g/team/t@5"]


def test_a_group_that_could_not_say_goodbye_is_left_all_the_same(
    reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the heart would renew the lease of a group that nobody here reads, for ever."""
    store, other = reopen(), reopen()
    fill(store, 2)
    group = store.workers.group("g")
    group.take()[0].done()
    with monkeypatch.context() as patch:

        def broken(self: Member, open: int) -> None:
            raise UnavailableError("no server")

        patch.setattr(Member, "_move", broken)
        with pytest.raises(UnavailableError):
            group.close()
    assert keys(other.workers.group("g").take(2)) == ["g/team/t@1", "g/team/t@2"]


def test_a_member_that_was_fenced_asks_no_more(reopen: Reopen) -> None:
    """Guarantee 4: its heart may not know yet; it must stand by, and not try without end."""
    store, other = reopen(), reopen()
    fill(store, 3)
    group = store.workers.group("g", batch=1)
    [first] = group.take()
    first.done()
    store._log._backend.leases.release(first.lease)  # as if it had expired
    [again] = other.workers.group("g", batch=1).take()
    assert again.key == first.key
    assert group.take() == []
    assert group.after is None
    with pytest.raises(LeaseLostError):
        first.done()


def test_who_releases_a_membership_himself_joins_anew(hf: Store) -> None:
    fill(hf, 2)
    group = hf.workers.group("g")
    [first] = group.take()
    hf.workers.release(first.lease)
    with pytest.raises(LeaseLostError):
        first.done()
    assert keys(group.take()) == [first.key]


def test_a_cancelled_take_in_asyncio_loses_nothing(url: str) -> None:
    """`wait_for` around a take is what anybody writes: what was taken meanwhile comes next."""

    async def scenario() -> None:
        async with await aio.open(url) as hf:
            for n in range(3):
                await hf.team("t").set("n", n)
            group = hf.workers.group("g")
            entered, leave = threading.Event(), threading.Event()
            real = Member.next

            def slow(self: Member) -> Delivery | None:
                entered.set()
                assert leave.wait(60)
                return real(self)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Member, "next", slow)
                taking = asyncio.ensure_future(group.take(2))
                await asyncio.to_thread(entered.wait, 60)
                taking.cancel()
                await asyncio.sleep(0)
                leave.set()
                with pytest.raises(asyncio.CancelledError):
                    await taking
            assert keys(await group.take(9)) == [f"g/team/t@{n}" for n in (1, 2, 3)]

    asyncio.run(scenario())


def test_a_scope_that_has_ended_is_delivered_to_nobody(url_of: Any, tmp_path: Path) -> None:
    """Decision 0010: from its end on it is gone, for groups as for everybody else."""
    clock = FakeClock()
    with holdfast.open(url_of("sqlite", tmp_path), settings=Settings(clock=clock)) as hf:
        fill(hf, 1)
        hf.conversation("short", ttl_s=60).set("n", 1)
        fill(hf, 1)
        clock.advance(61)
        group = hf.workers.group("g")
        taken = group.take(9)
        assert keys(taken) == ["g/team/t@1", "g/team/t@2"]
        assert [status.lag_events for status in hf.workers.groups()] == [2]


def test_in_a_mix_what_was_delivered_before_is_never_called_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two clocks disagree: a later event of one part is read before an earlier one of another."""
    real = Member._load  # pyright: ignore[reportPrivateUsage]
    with store_on(memories()) as hf:
        clock = hf._log.clock = FakeClock()
        fill(hf, 1)
        [first] = hf.workers.group("g").take()
        hf.workers.release(first.lease)
        clock.set(clock.now_us() - 3_600_000_000)

        def load(self: Member) -> bool:
            if hf.conversation("c").revision == 0:  # committed behind the joining
                hf.conversation("c").set("n", 1)
            return real(self)

        monkeypatch.setattr(Member, "_load", load)
        taken = [(each.event.stream, each.again) for each in hf.workers.group("g").take(9)]
    assert [stream for stream, _ in taken] == ["conversation/c", "team/t"]
    assert taken[1] == ("team/t", True)


@pytest.mark.parametrize("start", [1 << 63, 1 << 70, -1, 2.5, True, "last", None, [1]])
def test_a_start_that_is_no_position_is_refused_at_once(hf: Store, start: Any) -> None:
    with pytest.raises(UsageError, match="start"):
        hf.workers.group("g", start=start)
    with pytest.raises(UsageError, match="start"):
        hf.workers.group("g").restart(start)


def test_groups_of_another_store_are_shown(hf: Store, tmp_path: Path) -> None:
    """A copy brings groups with it whose positions mean nothing here: the others must be seen."""
    fill(hf, 3)
    for name in ("a", "b"):
        hf.workers.group(name).take()[0].done()
        hf.workers.group(name).close()
    with holdfast.open(str(tmp_path / "copied")) as copied:
        copy(hf._log, copied._log)
        copied.workers.group("a").restart("first")
        a, b = copied.workers.groups()
        assert (a.name, a.position, a.lag_events) == ("a", 0, 3)
        assert (b.name, b.position, b.lag_events, b.waiting_since) == ("b", None, None, None)
        with pytest.raises(OtherStoreError):
            copied.workers.group("b").take()


def test_a_forked_child_is_told_and_does_not_wait_for_a_thread_it_has_not(hf: Store) -> None:
    """Clause 13: a lock that another thread held at the fork is held in the child for ever."""
    import os

    group = hf.workers.group("g")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with hf._kernel.part(Groups)._mutex:  # pyright: ignore[reportPrivateUsage]
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        for call in (group.save, lambda: group.restart("now"), group.take):
            try:
                call()
            except UsageError:
                continue
            os._exit(1)
        group.close()
        os._exit(0)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_group_may_be_closed_behind_its_store(url: str) -> None:
    store = holdfast.open(url)
    group = store.workers.group("g")
    group.take()
    store.close()
    group.close()

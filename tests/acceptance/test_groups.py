"""Consumer groups: at least once, in order, from a durable place (BOOT-56, VIC-32)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import LeaseLostError, Store, UnavailableError, UsageError, aio
from holdfast.aio.workers import AsyncGroup
from holdfast.backends.protocol import START, Lease
from holdfast.core.consumers import Delivery, Group
from holdfast.errors import OtherStoreError
from holdfast.transfer.copy import copy_log as copy
from tests.acceptance.test_aio import parameters, public

Reopen = Callable[[], Store]


def fill(store: Store, count: int, *, team: str = "t", start: int = 0) -> None:
    for n in range(start, start + count):
        store.team(team).set("n", n)


def keys(deliveries: list[Delivery]) -> list[str]:
    return [delivery.key for delivery in deliveries]


def moves(store: Store) -> int:
    head = store._log.head("group/g")
    return head.revision if head else 0


def test_every_event_is_delivered_once_in_order_while_nobody_dies(hf: Store) -> None:
    fill(hf, 7)
    group = hf.workers.group("g")
    got: list[Delivery] = []
    for delivery in group.deliveries(timeout_s=0):
        assert delivery.event.data
        assert not delivery.again
        got.append(delivery)
        delivery.done()
    assert keys(got) == [f"g/team/t@{n}" for n in range(1, 8)]
    fill(hf, 2, start=7)
    assert keys(group.take(9)) == ["g/team/t@8", "g/team/t@9"]
    assert group.take(9) == []


def test_the_place_is_durable_and_what_is_not_done_comes_again(reopen: Reopen) -> None:
    store = reopen()
    fill(store, 6)
    first = store.workers.group("g").take(4)
    for delivery in (first[0], first[1], first[3]):
        delivery.done()
    store.close()
    again = reopen().workers.group("g").take(9)
    assert [(each.key, each.again) for each in again] == [
        ("g/team/t@3", True),
        ("g/team/t@4", True),
        ("g/team/t@5", False),
        ("g/team/t@6", False),
    ]
    assert first[2].key == again[0].key


def test_a_commit_is_passed_only_when_all_of_it_is_done(reopen: Reopen) -> None:
    store = reopen()
    with store.commit() as tx:
        for name in ("a", "b", "c"):
            tx.scope(store.team(name)).set("n", 1)
    one, two = store.workers.group("g").take(2)
    one.done()
    two.done()
    store.close()
    store = reopen()
    again = store.workers.group("g").take(9)
    assert [(each.key, each.again) for each in again] == [
        (f"g/team/{name}@1", True) for name in ("a", "b", "c")
    ]
    for delivery in again:
        delivery.done()
    store.close()
    assert reopen().workers.group("g").take(9) == []


def test_the_log_grows_by_a_move_for_many_deliveries(hf: Store) -> None:
    fill(hf, 100)
    group = hf.workers.group("g", batch=25)
    for delivery in group.deliveries(timeout_s=0):
        delivery.done()
    assert moves(hf) <= 6
    before = moves(hf)
    for _ in range(5):
        assert group.take() == []
    assert moves(hf) == before
    group.close()
    assert moves(hf) == before + 1
    group.take()
    group.close()
    assert moves(hf) == before + 1


def test_no_more_than_a_batch_may_be_undone(hf: Store) -> None:
    fill(hf, 10)
    group = hf.workers.group("g", batch=3)
    held = group.take(3)
    with pytest.raises(UsageError, match="3 deliveries that are not done"):
        group.take()
    with pytest.raises(UsageError, match="call done"):
        group.take()
    held[0].done()
    assert keys(group.take()) == ["g/team/t@4"]
    for delivery in held:
        delivery.done()
    assert keys(group.take(2)) == ["g/team/t@5", "g/team/t@6"]


def test_a_commit_larger_than_a_batch_is_delivered_whole(reopen: Reopen) -> None:
    store = reopen()
    with store.commit() as tx:
        for n in range(8):
            tx.scope(store.team(f"t{n}")).set("n", 1)
    fill(store, 3)
    assert len(store.workers.group("g", batch=3).take(8)) == 8
    store.close()
    again = reopen().workers.group("g", batch=3)
    got = again.take(8)
    assert [each.again for each in got] == [True] * 8
    for delivery in got:
        delivery.done()
    assert [each.again for each in again.take(3)] == [False] * 3


def test_a_group_gets_what_it_asked_for(hf: Store) -> None:
    fill(hf, 2)
    fill(hf, 2, team="other")
    hf.conversation("c").set("n", 1)
    hf.team("t").checkpoint("named")
    assert keys(hf.workers.group("a", prefix="team/t").take(9)) == [
        *("a/team/t@1", "a/team/t@2", "a/team/t@3"),
    ]
    assert keys(hf.workers.group("b", prefix="conversation/").take(9)) == ["b/conversation/c@1"]
    named = hf.workers.group("c", types=("checkpointed",)).take(9)
    assert [delivery.event.type for delivery in named] == ["checkpointed"]
    assert hf.workers.group("d", start="now").take(9) == []
    fill(hf, 1, start=9)
    assert keys(hf.workers.group("d", start="now").take(9)) == ["d/team/t@4"]
    assert len(hf.workers.group("e", start=hf.position).take(9)) == 0
    assert all("group/" not in delivery.key for delivery in hf.workers.group("f").take(99))


def test_what_is_passed_over_is_not_read_again_for_ever(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.consumers._SKIPPED_MAX", 5)
    fill(hf, 30)
    group = hf.workers.group("g", prefix="conversation/")
    assert group.take() == []
    place = [
        event.data["done"]
        for event in hf.follow(as_events=True, after=START, timeout_s=0)
        if event.stream == "group/g"
    ]
    assert len(place) == 2
    assert int(place[1]) >= 30


def test_members_of_two_stores_take_turns(reopen: Reopen) -> None:
    one, other = reopen(), reopen()
    fill(one, 3)
    mine, theirs = one.workers.group("g"), other.workers.group("g")
    first = mine.take()
    assert theirs.take(9) == []
    assert list(theirs.deliveries(timeout_s=0.01)) == []
    assert (mine.after is None, theirs.after is None) == (False, True)
    assert [status.member for status in other.workers.groups()] == [one.workers.own]
    first[0].done()
    mine.close()
    assert keys(theirs.take(9)) == ["g/team/t@2", "g/team/t@3"]
    with pytest.raises(LeaseLostError, match="left or taken over"):
        first[0].done()
    assert mine.take() == []


def test_handles_of_one_store_share_a_membership(hf: Store) -> None:
    fill(hf, 2)
    assert keys(hf.workers.group("g").take()) == ["g/team/t@1"]
    assert keys(hf.workers.group("g").take()) == ["g/team/t@2"]
    with pytest.raises(UsageError, match="another prefix, types or batch"):
        hf.workers.group("g", prefix="team/").take()


def test_a_group_waits_for_more_and_ends_when_told(hf: Store) -> None:
    fill(hf, 1)
    with hf.commit() as tx:
        tx.mark("todo", "only marks")
    group = hf.workers.group("g")
    got: list[str] = []
    for delivery in group.deliveries(timeout_s=0.05):
        got.append(delivery.key)
        delivery.done()
        if len(got) < 3:
            fill(hf, 1, start=len(got))
    assert got == [f"g/team/t@{n}" for n in (1, 2, 3)]
    assert [status.lag_events for status in hf.workers.groups()] == [0]
    assert repr(group) == "<Group g>"
    fill(hf, 1, start=9)
    assert repr(next(iter(group))) == "<Delivery team/t@4>"


def test_lag_is_what_is_not_known_to_be_done(hf: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(hf, 5)
    group = hf.workers.group("g", prefix="team/")
    taken = group.take(2)
    [status] = hf.workers.groups()
    assert (status.name, status.lag_events, status.member) == ("g", 5, hf.workers.own)
    assert status.waiting_since == taken[0].event.time
    for delivery in taken:
        delivery.done()
    group.save()
    [status] = hf.workers.groups()
    assert (status.lag_events, status.waiting_since) == (
        3,
        next(hf.team("t").history(after=2)).time,
    )
    monkeypatch.setattr("holdfast.core.consumers.LAG_EVENTS_MAX", 2)
    assert hf.workers.groups()[0].lag_events == 2


def test_a_delivery_key_makes_a_commit_once(reopen: Reopen) -> None:
    store = reopen()
    fill(store, 3)
    for _ in range(3):
        for delivery in store.workers.group("g").take(3):
            with store.commit(key=delivery.key, lease=delivery.lease) as tx:
                tx.scope(store.workflow("ledger")).increment("n", 1)
        store.close()
        store = reopen()
    assert store.workflow("ledger").get("n") == 3


def test_a_position_of_another_store_is_refused_by_name(hf: Store, tmp_path: Path) -> None:
    fill(hf, 3)
    for delivery in hf.workers.group("g").take(2):
        delivery.done()
    hf.workers.group("g").close()
    with holdfast.open(str(tmp_path / "copied")) as copied:
        copy(hf._log, copied._log)
        group = copied.workers.group("g")
        with pytest.raises(OtherStoreError, match="means nothing"):
            group.take()
        group.restart("first")
        assert len(group.take(9)) == 3
        group.restart("now")
        assert group.take() == []
        group.restart(copied.position)
        assert group.take() == []


def test_restart_takes_over_from_nobody(reopen: Reopen) -> None:
    one, other = reopen(), reopen()
    fill(one, 1)
    one.workers.group("g").take()
    with pytest.raises(LeaseLostError):
        other.workers.group("g").restart("first")


def test_long_names_have_keys_that_fit(hf: Store) -> None:
    name = "n" * 500
    hf.team(name).set("n", 1)
    [delivery] = hf.workers.group("g" * 100).take()
    assert len(delivery.key) == 64
    with hf.commit(key=delivery.key) as tx:
        tx.scope(hf.team("t")).set("n", 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": 7},
        {"prefix": 7},
        {"types": "changed"},
        {"types": ()},
        {"types": (7,)},
        {"start": "later"},
        {"start": -1},
        {"start": True},
        {"batch": 0},
        {"batch": "1"},
        {"ttl_s": 0},
    ],
    ids=str,
)
def test_bad_arguments_are_usage_errors(hf: Store, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        hf.workers.group(**{"name": "g", **wrong})  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        hf.workers.group("g").take(0)
    with pytest.raises(UsageError):
        next(hf.workers.group("g").deliveries(timeout_s="soon"))  # type: ignore[arg-type]


def test_a_closed_store_has_no_groups(reopen: Reopen) -> None:
    store = reopen()
    fill(store, 1)
    group = store.workers.group("g")
    [delivery] = group.take()
    store.close()
    with pytest.raises(LeaseLostError):
        delivery.done()
    for call in (group.take, group.save, store.workers.groups):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_parity_of_groups() -> None:
    ours, theirs = public(Group), public(AsyncGroup)
    assert set(ours) == set(theirs)
    for name, member in ours.items():
        if callable(member):
            mine = [(p.name, p.kind, p.default) for p in parameters(member)]
            assert mine == [(p.name, p.kind, p.default) for p in parameters(theirs[name])], name


def test_groups_in_asyncio(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            for n in range(3):
                await hf.team("t").set("n", n)
            got: list[str] = []
            async with hf.workers.group("g", batch=2) as group:
                async for delivery in group.deliveries(timeout_s=0.05):
                    got.append(delivery.key)
                    delivery.done()
                assert group.after is not None
                assert await group.take() == []
                await group.save()
            assert got == [f"g/team/t@{n}" for n in (1, 2, 3)]
            assert [status.lag_events for status in await hf.workers.groups()] == [0]
            await group.restart("first")
            async for delivery in group:
                assert delivery.key == "g/team/t@1"
                break
            assert repr(group) == "<AsyncGroup g>"

    asyncio.run(main())


def test_a_store_closes_also_where_its_groups_cannot_say_goodbye(
    reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = reopen()
    fill(store, 2)
    for delivery in store.workers.group("g").take(2):
        delivery.done()

    def unreachable(*_: object) -> None:
        raise UnavailableError("the server is away")

    monkeypatch.setattr(store._log, "commit", unreachable)
    store.close()
    assert [each.again for each in reopen().workers.group("g").take(2)] == [True, True]


def test_what_is_done_while_another_thread_leaves_is_told_so(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 4: it is delivered again, and that is no wrong use of the group."""
    hf.team("t").set("n", 1)
    group = hf.workers.group("g", prefix="team/")
    [delivery] = group.take()
    keeps = hf._kernel.leases.keeps

    def then_left(lease: Lease) -> bool:
        kept = keeps(lease)
        monkeypatch.undo()
        group.close()
        return kept

    monkeypatch.setattr(hf._kernel.leases, "keeps", then_left)
    with pytest.raises(LeaseLostError, match="was left or taken over"):
        delivery.done()
    assert [one.key for one in group.take()] == [delivery.key]

"""The time of an import, as the log judges it: bounds, order, and what it may follow (0033)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

import holdfast
from holdfast import Settings, Store, UsageError
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import AHEAD_US
from holdfast.core.commit import ProposedCommit, StreamWrite, changed
from holdfast.core.event import from_datetime, to_datetime
from holdfast.core.log import Log
from holdfast.core.tree import set_op
from holdfast.store import Meta
from holdfast.testing import FakeClock
from holdfast.testing.clock import START_US
from tests.opening import store_of_log
from tests.unit.test_ahead import Server

LONG_AGO = datetime(2001, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
NOW = to_datetime(START_US)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def hf(clock: FakeClock) -> Store:
    return holdfast.open("memory:", actor="w", settings=Settings(clock=clock))


def put(store: Store, name: str, value: int, time: datetime | None, **how: Any) -> None:
    with store.commit(time=time, **how) as tx:
        tx.scope(store.scope(name)).set("n", value)


def proposed(name: str, value: int, time: datetime | None) -> ProposedCommit:
    write = StreamWrite(name, (changed((set_op(("n",), value),)),))
    return ProposedCommit((write,), time=None if time is None else from_datetime(time))


def test_the_event_has_the_time_of_the_import_and_says_when_it_was_stored(hf: Store) -> None:
    put(hf, "team/a", 1, LONG_AGO, meta=Meta(source="mail"))
    [event] = hf.team("a").history()
    assert event.time == LONG_AGO
    assert event.meta == Meta(source="mail", imported_at=NOW)
    assert hf.team("a").at(LONG_AGO) == {"n": 1}
    assert hf.team("a").at(LONG_AGO - timedelta(microseconds=1)) == {}


def test_what_is_not_imported_has_the_time_of_the_clock_and_no_meta(hf: Store) -> None:
    put(hf, "team/a", 1, None)
    [event] = hf.team("a").history()
    assert (event.time, event.meta) == (NOW, None)


def test_times_may_be_equal_and_never_go_back(hf: Store) -> None:
    put(hf, "team/a", 1, LONG_AGO)
    put(hf, "team/a", 2, LONG_AGO)
    with pytest.raises(UsageError, match=r"2001-02-03T04:05:06.000788.*times never go back"):
        put(hf, "team/a", 3, LONG_AGO - timedelta(microseconds=1))
    assert hf.team("a").state == {"n": 2}


def test_a_time_is_at_most_as_far_ahead_as_clocks_differ(hf: Store) -> None:
    bound = timedelta(microseconds=AHEAD_US)
    put(hf, "team/a", 1, NOW + bound)
    with pytest.raises(UsageError, match="ahead of the clock: expected a time that has passed"):
        put(hf, "team/b", 1, NOW + bound + timedelta(microseconds=1))
    assert hf.team("b").revision == 0


def test_a_server_s_clock_bounds_an_import_too() -> None:
    """The host's clock is right as far as it knows; nothing is learned of it from an import."""
    server = Server()
    store = server.client(FakeClock(START_US + AHEAD_US))
    with pytest.raises(UsageError, match="ahead of the clock"):
        put(store, "team/a", 1, NOW + timedelta(microseconds=AHEAD_US + 1))
    assert store.status()["reports"] == []
    put(store, "team/a", 1, NOW)
    assert store.team("a").at(NOW) == {"n": 1}


def test_a_scope_that_was_written_to_by_the_clock_is_not_imported_into(
    hf: Store, clock: FakeClock
) -> None:
    put(hf, "team/a", 1, None)
    clock.advance(3600)
    with pytest.raises(UsageError, match='"team/a" has events that were not imported'):
        put(hf, "team/a", 2, to_datetime(START_US + 1))
    put(hf, "team/b", 1, LONG_AGO)
    put(hf, "team/b", 2, None)
    with pytest.raises(UsageError, match='"team/b" has events that were not imported'):
        put(hf, "team/b", 3, to_datetime(clock.now_us()))
    assert hf.team("b").at(LONG_AGO) == {"n": 1}


def test_every_scope_of_the_commit_is_judged_and_none_is_written(hf: Store) -> None:
    put(hf, "team/a", 1, None)
    with pytest.raises(UsageError, match="not imported"), hf.commit(time=LONG_AGO) as tx:
        tx.scope(hf.team("new")).set("n", 1)
        tx.scope(hf.team("a")).set("n", 2)
    assert (hf.team("new").revision, hf.team("a").state) == (0, {"n": 1})


def test_a_handle_that_finds_the_scope_goes_on_with_the_import(clock: FakeClock) -> None:
    backend = MemoryBackend(clock=clock)
    one, two = (
        store_of_log(Log(backend, clock=clock, actor=w), url="memory:", worker=w) for w in "ab"
    )
    put(one, "team/a", 1, LONG_AGO)
    put(two, "team/a", 2, LONG_AGO + timedelta(days=1))
    put(one, "team/a", 3, LONG_AGO + timedelta(days=2))
    put(two, "team/a", 4, None)
    with pytest.raises(UsageError, match="not imported"):  # one has not seen the fourth yet
        put(one, "team/a", 5, LONG_AGO + timedelta(days=3))
    assert two.team("a").at(LONG_AGO + timedelta(days=1)) == {"n": 2}


def test_imports_of_one_batch_follow_each_other(hf: Store) -> None:
    times = [LONG_AGO + timedelta(days=n) for n in range(50)]
    work = [proposed(f"team/{n % 2}", n, time) for n, time in enumerate(times)]
    for request in hf._log.submit_all(work):
        hf._log.wait(request)
    assert [event.time for event in hf.team("0").history()] == times[::2]
    assert [event.time for event in hf.team("1").history()] == times[1::2]


def test_an_import_after_a_live_neighbour_of_its_batch_is_refused(hf: Store) -> None:
    work = [proposed("team/a", 1, None), proposed("team/a", 2, NOW)]
    first, second = hf._log.submit_all(work)
    hf._log.wait(first)
    with pytest.raises(UsageError, match="not imported"):
        hf._log.wait(second)
    assert hf.team("a").state == {"n": 1}


def test_a_removed_scope_is_not_imported_into(hf: Store) -> None:
    put(hf, "team/a", 1, LONG_AGO)
    hf.team("a").remove()
    with pytest.raises(UsageError, match="not imported"):
        put(hf, "team/a", 2, LONG_AGO)


@pytest.mark.parametrize(
    ("time", "says"),
    [
        (datetime(2020, 1, 1), "with a time zone"),
        (1_600_000_000, "with a time zone, found 1600000000"),
        (datetime(1969, 12, 31, tzinfo=UTC), "before 1970"),
    ],
)
def test_what_is_no_time_is_refused(hf: Store, time: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        hf.commit(time=time)


def test_nobody_but_the_log_says_that_an_event_was_imported(hf: Store) -> None:
    with pytest.raises(UsageError, match="imported_at is said by the log itself"):
        hf.commit(meta=Meta(imported_at=NOW))


def test_a_backend_without_meta_is_not_imported_into(clock: FakeClock) -> None:
    """The true time would be lost there, and with it what may be imported next."""
    backend = MemoryBackend(clock=clock)
    cast("Any", backend).keeps_meta = False
    store = store_of_log(Log(backend, clock=clock, actor="w"), url="memory:", worker="w")
    with pytest.raises(UsageError, match="does not keep meta"):
        put(store, "team/a", 1, LONG_AGO)

"""A clock that is years ahead, on stores of every kind: what it leaves, and whom it reaches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.protocol import AHEAD_US, START
from holdfast.backends.redis.backend import RedisBackend
from holdfast.clock import SystemClock
from holdfast.errors import UsageError
from holdfast.store import Store
from holdfast.testing import FakeClock
from holdfast.transfer.copy import copy_log
from tests.servers.kinds import KINDS, SERVERS, url_of

EMBEDDED = tuple(kind for kind in KINDS if kind not in SERVERS)
YEARS = timedelta(days=3650)


class Skewed(SystemClock):
    """The clock of a host that somebody set ten years ahead."""

    def now_us(self) -> int:
        return super().now_us() + YEARS // timedelta(microseconds=1)


def _now() -> datetime:
    return datetime.now(UTC)


def _poisoned(place: Path) -> Store:
    """Returns a store whose scope `team/a` is ten years ahead from its second change on."""
    clock = FakeClock(SystemClock().now_us())
    store = holdfast.open(
        str(place / "poisoned"), durability="process", settings=Settings(clock=clock)
    )
    store.scope("team/a").set("n", 1)
    clock.set(clock.now_us() + YEARS // timedelta(microseconds=1))
    store.scope("team/a").set("n", 2)
    return store


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_s_clock_bounds_the_times_of_its_clients(kind: str, tmp_path: Path) -> None:
    url = url_of(kind, tmp_path, "s")
    began = _now()
    with holdfast.open(url, settings=Settings(clock=Skewed())) as store:
        one, two = store.scope("team/a"), store.scope("team/b")
        one.set("n", 1)
        with store.commit() as tx:
            tx.scope(one).set("n", 2)
            tx.scope(two).set("n", 2)
        fork = one.fork("c", at=1)
        store.conversation("c", ttl_s=3600).set("n", 3)
        for event in store.follow(as_events=True, after=START, timeout_s=0):
            assert abs(event.time - began) < timedelta(hours=1), event
        reports = store.status()["reports"]
        assert any("days ahead of the server's" in report for report in reports)
    with holdfast.open(url) as store:
        assert store.scope("team/a").at(_now()) == {"n": 2}
        assert store.scope(fork.name).at(_now()) == {"n": 1}
        with store.commit() as tx:
            tx.scope(store.scope("team/a")).set("n", 4)
            tx.scope(store.scope("team/b")).set("n", 4)
        assert store.status()["reports"] == [] or kind == "postgresql"
        assert store.check().ok


@pytest.mark.parametrize("kind", SERVERS)
def test_a_scope_that_is_ahead_on_a_server_takes_no_other_with_it(
    kind: str, tmp_path: Path
) -> None:
    """It comes there by a copy; it is read and written, alone, and a fork before it is sound."""
    with _poisoned(tmp_path) as source, holdfast.open(url_of(kind, tmp_path, "s")) as store:
        copy_log(source._log, store._log)
        ahead, other = store.scope("team/a"), store.scope("team/b")
        assert ahead.state == {"n": 2}
        other.set("n", 1)
        with (
            pytest.raises(UsageError, match='"team/a" has a time that is 36') as caught,
            store.commit() as tx,
        ):
            tx.scope(other).set("n", 3)
            tx.scope(ahead).set("n", 3)
        assert '"holdfast doctor" names' in str(caught.value)
        with pytest.raises(UsageError, match='"team/a" has a time'):
            ahead.fork("late")
        ahead.set("n", 3)
        fork = ahead.fork("sound", at=1)
        with store.commit() as tx:
            tx.scope(fork).set("n", 4)
            tx.scope(other).set("n", 4)
        assert (fork.at(_now()), other.at(_now())) == ({"n": 4}, {"n": 4})
        assert (ahead.state, ahead.at(2), ahead.at(_now())) == ({"n": 3}, {"n": 2}, {"n": 1})
        assert any("at(datetime)" in report for report in store.status()["reports"])
        assert store.check().ok


@pytest.mark.parametrize("kind", EMBEDDED)
def test_an_embedded_store_warns(kind: str, tmp_path: Path) -> None:
    """Its clock may be the wrong one, as before a host has asked for the time: so it goes on."""
    clock = FakeClock()
    right = clock.now_us()
    with holdfast.open(url_of(kind, tmp_path, "s"), settings=Settings(clock=clock)) as store:
        one, two = store.scope("team/a"), store.scope("team/b")
        clock.set(right + YEARS // timedelta(microseconds=1))
        one.set("n", 1)
        clock.set(right)
        with store.commit() as tx:
            tx.scope(one).set("n", 2)
            tx.scope(two).set("n", 2)
        [report] = store.status()["reports"]
        assert '"team/a" has a time that is 3650 days ahead' in report
        assert (one.state, two.state, one.at(1)) == ({"n": 2}, {"n": 2}, {"n": 1})


def test_both_servers_have_the_same_bound() -> None:
    """Redis is told it with each commit; PostgreSQL has it in its functions."""
    folder = Path(holdfast.__file__).parent / "backends"
    assert f"now_us() + {AHEAD_US}" in (folder / "sql" / "postgresql_0001.sql").read_text()


@pytest.mark.parametrize("kind", SERVERS)
def test_a_client_that_is_ahead_pays_once(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    """The refusal costs one more round trip; what the server said is kept in mind."""
    sent: list[int] = []
    with holdfast.open(url_of(kind, tmp_path, "s"), settings=Settings(clock=Skewed())) as store:
        backend: Any = store._log._backend
        commit = backend.commit

        def counted(commits: Any) -> Any:
            sent.append(len(commits))
            return commit(commits)

        monkeypatch.setattr(backend, "commit", counted)
        for n in range(5):
            store.scope("team/a").set("n", n)
    assert sent == [1] * 6
    assert isinstance(backend, RedisBackend) == (kind == "redis")

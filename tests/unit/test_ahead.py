"""A time that is far ahead: bounded by a backend with a clock of its own, reported by any log."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Settings
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import AHEAD_US, START, Append, Commit, Receipt, Refusal
from holdfast.core.clocks import StreamAhead, skew_us, streams_ahead
from holdfast.core.event import to_datetime
from holdfast.core.log import Log
from holdfast.errors import UsageError, show_us
from holdfast.store import Store
from holdfast.testing import FakeClock
from holdfast.testing.clock import START_US
from tests.opening import store_of_log

YEARS_US = 10 * 365 * 86_400_000_000


class ServerLike(MemoryBackend):
    """A memory with a clock of its own, as a server has (clause 22)."""

    refused = 0

    def _commit(self, commit: Commit) -> Receipt | Refusal:
        now_us = self._checkout.clock.now_us()
        for append in commit.appends if commit.time > now_us + AHEAD_US else ():
            head = self._heads.get(append.stream)
            if (head is None or head.time < commit.time) and not commit.is_copy:
                self.refused += 1
                return Refusal("ahead", append.stream, append.expected, now_us=now_us)
        return super()._commit(commit)


class Server:
    """A server with its clock, and stores of clients with theirs."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.backend = ServerLike(clock=self.clock)

    def client(self, clock: FakeClock) -> Store:
        return store_of_log(Log(self.backend, clock=clock, actor="w"), url="memory:", worker="w")

    def poison(self, name: str) -> None:
        """Leaves a stream with a time that is ahead, as one that was written before the bound."""
        clock = FakeClock(START_US + YEARS_US)
        elsewhere = holdfast.open("memory:", actor="w", settings=Settings(clock=clock))
        elsewhere.scope(name).set("n", 1)
        [record] = elsewhere._log._backend.read_all()
        copied = Commit(record.time, "w", (Append(name, 0, (record,)),), is_copy=True)
        [outcome] = self.backend.commit([copied])
        assert isinstance(outcome, Receipt)


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_client_whose_clock_is_ahead_writes_the_server_s_time(server: Server) -> None:
    wrong = FakeClock(START_US + YEARS_US)
    store = server.client(wrong)
    store.scope("team/a").set("n", 1)
    store.scope("team/b").set("n", 1)
    assert [
        event.record.time for event in store.follow(as_events=True, after=START, timeout_s=0)
    ] == [START_US] * 2
    assert server.backend.refused == 1  # what the server said is kept in mind
    assert [r for r in store.status()["reports"] if "3650 days ahead of the server's" in r] != []
    server.clock.advance(90)
    wrong.advance(90)
    store.scope("team/a").set("n", 2)
    assert (
        list(store.follow(as_events=True, after=START, timeout_s=0))[-1].record.time
        == START_US + 90_000_000
    )
    # Somebody sets the clock right: the time is this host's again.
    wrong.set(server.clock.now_us() - 1_000_000)
    store.scope("team/c").set("n", 3)
    assert (
        list(store.follow(as_events=True, after=START, timeout_s=0))[-1].record.time
        == START_US + 89_000_000
    )
    assert server.backend.refused == 1


def test_a_clock_that_goes_wrong_twice_is_told_once(server: Server) -> None:
    clock = FakeClock(START_US + YEARS_US)
    store = server.client(clock)
    store.scope("team/a").set("n", 1)
    server.clock.set(START_US - YEARS_US)  # the server's own is set back
    store.scope("team/b").set("n", 1)
    assert (
        list(store.follow(as_events=True, after=START, timeout_s=0))[-1].record.time
        == START_US - YEARS_US
    )
    assert len([r for r in store.status()["reports"] if "ahead of the server's" in r]) == 1


def test_a_stream_that_is_ahead_is_written_alone(server: Server) -> None:
    server.poison("team/a")
    store = server.client(FakeClock())
    ahead, other = store.scope("team/a"), store.scope("team/b")
    ahead.set("n", 2)
    other.set("n", 1)
    with (
        pytest.raises(UsageError, match='"team/a" has a time that is 3650 days ahead') as caught,
        store.commit() as tx,
    ):
        tx.scope(other).set("n", 2)
        tx.scope(ahead).set("n", 3)
    assert "fork it at a revision before" in str(caught.value)
    with pytest.raises(UsageError, match='"team/a" has a time'):
        ahead.fork("c")
    assert (ahead.state, other.state) == ({"n": 2}, {"n": 1})
    times = {
        event.stream: event.record.time
        for event in store.follow(as_events=True, after=START, timeout_s=0)
    }
    assert times == {"team/a": START_US + YEARS_US, "team/b": START_US}


def test_a_stream_that_is_ahead_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where the writer's clock is the only one nothing is refused: it may be this one's fault."""
    clock = FakeClock(START_US + YEARS_US)
    store = holdfast.open("memory:", settings=Settings(clock=clock))
    one, two = store.scope("team/a"), store.scope("team/b")
    one.set("n", 1)
    clock.set(START_US)
    assert store.status()["reports"] == []
    with caplog.at_level(logging.WARNING, "holdfast.log"), store.commit() as tx:
        tx.scope(two).set("n", 1)
        tx.scope(one).set("n", 2)
    [report] = store.status()["reports"]
    assert 'scope "team/a" has a time that is 3650 days ahead of this host\'s clock' in report
    assert report in caplog.messages
    two.set("n", 3)
    assert store.status()["reports"] == [report]


def test_a_state_by_time_of_a_stream_that_is_ahead_says_so() -> None:
    clock = FakeClock(START_US)
    store = holdfast.open("memory:", settings=Settings(clock=clock))
    scope = store.scope("team/a")
    scope.set("n", 1)
    clock.set(START_US + YEARS_US)
    scope.set("n", 2)
    clock.set(START_US + 1)
    assert scope.at(to_datetime(START_US + 1)) == {"n": 1}
    assert "at(datetime) cannot tell them apart" in store.status()["reports"][0]
    assert (scope.state, scope.at(2)) == ({"n": 2}, {"n": 2})
    assert store.scope("team/b").life.revision_at(to_datetime(START_US)) == 0


def test_a_time_of_the_usual_difference_is_not_reported() -> None:
    clock = FakeClock(START_US)
    store = holdfast.open("memory:", settings=Settings(clock=clock))
    scope = store.scope("team/a")
    scope.set("n", 1)
    clock.set(START_US - AHEAD_US)
    scope.set("n", 2)
    assert scope.life.revision_at(to_datetime(START_US)) == 2
    assert store.status()["reports"] == []


@pytest.mark.parametrize(
    ("us", "shown"),
    [
        (YEARS_US, "3650 days"),
        (7_200_000_000, "2 hours"),
        (7_199_999_999, "119 minutes"),
        (61_000_000, "61 s"),
    ],
)
def test_a_span_is_shown_in_its_largest_unit(us: Any, shown: str) -> None:
    assert show_us(us) == shown


def test_streams_that_are_ahead_are_listed_with_their_last_sound_revision() -> None:
    clock = FakeClock(START_US)
    store = holdfast.open("memory:", settings=Settings(clock=clock))
    store.scope("team/a").set("n", 1)
    store.scope("team/sound").set("n", 1)
    clock.set(START_US + YEARS_US)
    store.scope("team/a").set("n", 2)
    store.scope("team/new").set("n", 1)
    clock.set(START_US)
    found = list(streams_ahead(store._log))
    assert StreamAhead("team/a", YEARS_US, 1) in found
    assert StreamAhead("team/new", YEARS_US, 0) in found
    assert "team/sound" not in {one.stream for one in found}
    assert list(streams_ahead(Log(MemoryBackend(clock=clock), clock=clock, actor="w"))) == []


def test_a_stream_that_has_ended_is_not_listed(server: Server) -> None:
    """Its end came and its time did not: it was begun by a clock that was ahead."""
    clock = FakeClock()
    store = server.client(clock)
    store.conversation("c", ttl_s=60).set("n", 1)
    backend = store._log._backend
    [head] = backend.heads(["conversation/c"])
    assert head is not None
    server.backend._heads["conversation/c"] = replace(head, time=START_US + YEARS_US)
    assert [one.stream for one in streams_ahead(store._log)] == ["conversation/c"]
    server.clock.advance(61)
    assert list(streams_ahead(store._log)) == []


def test_a_stream_is_judged_by_the_clock_of_its_own_backend() -> None:
    """In a page of names of several backends, the first one's clock is not everyone's."""

    class TwoClocks(MemoryBackend):
        def now_us(self, stream: str) -> int:
            return START_US + (YEARS_US if stream == "team/b" else 0)

    clock = FakeClock(START_US + YEARS_US)
    log = Log(TwoClocks(clock=clock), clock=clock, actor="w")
    store = store_of_log(log, url="memory:", worker="w")
    store.scope("team/a").set("n", 1)
    store.scope("team/b").set("n", 1)
    assert [one.stream for one in streams_ahead(log)] == ["team/a"]


def test_skew_is_this_host_s_clock_against_the_one_that_judges(server: Server) -> None:
    for ahead_us in (YEARS_US, -5_000_000, 0):
        store = server.client(FakeClock(START_US + ahead_us))
        assert skew_us(store._log, "team/a") == ahead_us

"""A view costs what was written since the last one, however long the history is (guarantee 2).

Calls of the backend are counted, not time: over a network each is a round trip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Settings, Store
from holdfast.backends.memory import MemoryBackend
from holdfast.core import log as log_module
from holdfast.errors import ExpiredError
from holdfast.store import View
from holdfast.testing import FakeClock

READS = ("read", "heads", "moment", "find", "read_all", "wait")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def backend(clock: FakeClock) -> MemoryBackend:
    return MemoryBackend(clock=clock)


@pytest.fixture
def calls(backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the questions that the backend is asked."""
    found: Counter[str] = Counter()

    def counted(name: str, sound: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            found[name] += 1
            return sound(*arguments, **options)

        return call

    for name in READS:
        monkeypatch.setattr(backend, name, counted(name, getattr(backend, name)))
    return found


@pytest.fixture
def hf(backend: MemoryBackend, calls: Counter[str], clock: FakeClock) -> Iterator[Store]:
    """The store whose views are looked at; its reads are counted."""
    with holdfast.open(backend, settings=Settings(clock=clock)) as store:
        yield store


@pytest.fixture
def other(backend: MemoryBackend, clock: FakeClock) -> Store:
    """Another process on the same backend, so to speak; the first one closes it."""
    return holdfast.open(backend, settings=Settings(clock=clock))


def write(store: Store, n: int) -> None:
    with store.commit() as tx:
        for name in ("team/red", "team/blue"):
            tx.scope(store.scope(name)).set("n", n)


def look(hf: Store, view: View | None = None) -> tuple[Any, Any]:
    view = hf.view() if view is None else view
    return view.get(hf.team("red"), "n"), view.get(hf.team("blue"), "n")


@pytest.mark.parametrize("history", [10, 3000])
def test_a_view_beside_writers_reads_only_what_came(
    hf: Store, other: Store, calls: Counter[str], history: int
) -> None:
    for n in range(history):
        write(other, n)
    assert look(hf) == (history - 1, history - 1)
    asked: list[Counter[str]] = []
    for n in range(5):
        calls.clear()
        view = hf.view()
        write(other, history + n)  # between the view and the look at it
        calls.clear()
        before = n + history - 1
        assert look(hf, view) == (before, before)
        assert look(hf, view) == (before, before), "a second look costs nothing"
        asked.append(Counter(calls))
    # The first finds out that others write; from then on each scope is one question.
    assert asked[0] == Counter(heads=2, read=2)
    assert asked[1:] == [Counter(read=2)] * 4


def test_a_quiet_scope_is_asked_only_where_it_is(
    hf: Store, other: Store, calls: Counter[str]
) -> None:
    write(other, 1)
    look(hf)
    write(other, 2)
    look(hf)
    calls.clear()
    for _ in range(log_module.QUIET_VIEWS):
        assert look(hf) == (2, 2)  # it may be written to again: each reads, and finds nothing
    assert (calls["heads"], calls["read"]) == (0, 2 * log_module.QUIET_VIEWS)
    calls.clear()
    assert look(hf) == (2, 2)
    assert (calls["heads"], calls["read"]) == (2, 0)


def test_a_view_without_anything_in_memory_stops_at_its_moment(hf: Store, other: Store) -> None:
    view = hf.view()
    write(other, 1)
    assert look(hf, view) == (None, None), "made after the view"
    for n in range(2, 10):
        write(other, n)
    view = hf.view()
    write(other, 10)
    hf._log._states.clear()
    view._bases.clear()
    assert look(hf, view) == (9, 9)
    assert look(hf) == (10, 10)


def test_a_view_that_is_looked_at_late_is_found_by_halves(
    hf: Store, other: Store, calls: Counter[str]
) -> None:
    for n in range(40):
        write(other, n)
    view = hf.view()
    view._bases.clear()
    for n in range(40, 600):
        write(other, n)
    hf._log._states.clear()
    calls.clear()
    assert look(hf, view) == (39, 39)
    assert calls["read"] < 60


def test_a_fork_that_was_made_later_is_not_there_yet(hf: Store, other: Store) -> None:
    write(other, 1)
    write(other, 2)
    view = hf.view()
    other.team("red").fork("green", at=1)
    assert view.revision(hf.team("green")) == 0
    assert view.state(hf.team("green")) == {}
    assert hf.view().get(hf.team("green"), "n") == 1


def test_much_that_came_is_read_page_by_page(
    hf: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "READ_CHUNK", 5)
    write(other, 0)
    look(hf)
    for n in range(1, 24):
        write(other, n)
    view = hf.view()
    write(other, 24)
    assert look(hf, view) == (23, 23)
    for n in range(25, 29):  # as many as one page holds, with the one that is known
        write(other, n)
    assert look(hf) == (28, 28)


def test_a_state_that_the_store_no_longer_has_is_no_base(hf: Store, other: Store) -> None:
    """A server that came back without its newest commits, and was then written to."""
    for n in range(3):
        write(other, n)
    look(hf)
    backend: Any = hf._log._backend
    records = backend.read("team/red")
    stale = hf._log.states_in_memory()["team/red"]
    moment = hf._log.moment()
    # Another event in its place.
    changed = replace(stale, link=b"x" * 32)
    assert hf._log.state_at("team/red", moment, changed).link == records[-1].link
    # Nothing in its place.
    hf._log._busy["team/red"] = 1
    ahead = replace(stale, revision=stale.revision + 5)
    assert hf._log.state_at("team/red", moment, ahead).revision == stale.revision
    # Not even the stream.
    hf._log._busy.clear()
    assert hf._log.state_at("team/none", moment, stale).revision == 0
    # A base that is newer than the moment.
    write(other, 3)
    newest = hf._log.newest("team/red")
    assert hf._log.state_at("team/red", moment, newest).revision == stale.revision


def test_what_is_known_of_busy_streams_is_bounded(
    hf: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.log.BUSY_MAX", 2)
    for name in ("a", "b", "c"):
        other.team(name).set("n", 1)
        base = hf._log.newest(f"team/{name}")
        other.team(name).set("n", 2)
        hf._log.state_at(f"team/{name}", hf._log.moment(), base)
    assert list(hf._log._busy) == ["team/c"]


def test_a_view_of_a_scope_whose_time_is_over_says_so(hf: Store, clock: FakeClock) -> None:
    chat = hf.conversation("c", ttl_s=60)
    chat.set("n", 1)
    view = hf.view()
    assert view.get(chat, "n") == 1
    again = hf.view()
    clock.advance(61)
    for late in (view, again):
        with pytest.raises(ExpiredError):
            late.get(chat, "n")

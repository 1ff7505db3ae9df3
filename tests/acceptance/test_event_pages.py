"""Events page by page, in both directions, on every backend and on a mixed store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store, aio
from holdfast.backends.files.backend import FilesBackend
from holdfast.backends.protocol import START, Position, read_back
from holdfast.core.event import Event
from holdfast.core.page import write_cursor
from holdfast.errors import UsageError
from holdfast.store import Page
from tests.record.stores import ALL, new_url

MIXED = "mixed"


@pytest.fixture(params=[*ALL, MIXED])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    if request.param == MIXED:
        return {"team": f"sqlite:{tmp_path / 'teams.db'}", "*": str(tmp_path / "rest")}
    return new_url(request.param, tmp_path)


@pytest.fixture
def hf(place: object) -> Iterator[Store]:
    with holdfast.open(place, actor="ada") as store:
        yield store


def _fill(hf: Store) -> None:
    """Commits of one and of several events, of several scopes, and some without any."""
    chat, team = hf.conversation("c"), hf.team("t")
    for n in range(6):
        chat.set("n", n)
        team.set("n", n)
        with hf.commit() as tx:
            tx.scope(chat).set("both", n)
            tx.scope(hf.conversation(f"d{n % 2}")).set("both", n)
        with hf.commit() as tx:
            tx.mark("todo", f"m{n}")
    team.checkpoint("named")


def _named(events: list[Event]) -> list[tuple[str, int]]:
    return [(event.stream, event.revision) for event in events]


def _walk(hf: Store, *, newest_first: bool, limit: int, **fits: str) -> list[Page[Event]]:
    way = "before" if newest_first else "after"
    pages = [hf.events(newest_first=newest_first, limit=limit, **fits)]
    while pages[-1].more:
        place = {way: pages[-1].cursor}
        pages.append(hf.events(newest_first=newest_first, limit=limit, **place, **fits))
    return pages


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_hold_every_event_once(hf: Store, newest_first: bool) -> None:
    _fill(hf)
    everything = sorted(_named(list(hf.follow(as_events=True, after=START, timeout_s=0))))
    assert len(everything) == 25
    for limit in (1, 2, 3, 7, 24, 25, 26):
        pages = _walk(hf, newest_first=newest_first, limit=limit)
        found = [one for page in pages for one in _named(page)]
        assert sorted(found) == everything, limit
        assert all(limit <= len(page) <= limit + 1 for page in pages[:-1])
        for stream in {stream for stream, _ in found}:
            revisions = [revision for name, revision in found if name == stream]
            assert revisions == sorted(revisions, reverse=newest_first)
        times = [event.time for page in pages for event in page]
        assert times == sorted(times, reverse=newest_first)
    assert len(hf.events(limit=None)) == 25


def test_a_page_leads_both_ways(hf: Store) -> None:
    _fill(hf)
    newest = hf.events(newest_first=True, limit=4)
    assert newest.start is not None
    assert hf.events(after=newest.start) == []
    assert not hf.events(after=newest.start).more
    hf.team("t").set("n", "later")
    [later] = hf.events(after=newest.start)
    assert later.stream == "team/t"
    older = hf.events(newest_first=True, before=newest.cursor, limit=4)
    again = hf.events(newest_first=True, before=newest.start, after=newest.cursor)
    assert (_named(again), again.more) == (_named(newest), False)
    between = hf.events(before=newest.start, after=older.cursor)
    assert sorted(_named(between)) == sorted(_named([*newest, *older]))
    first = hf.events(limit=3)
    assert hf.events(before=first.start) == [] == hf.events(before=first.start, newest_first=True)
    back = hf.events(before=first.cursor, newest_first=True)
    assert _named(back) == _named(first)[::-1]


def test_events_of_one_scope(hf: Store) -> None:
    _fill(hf)
    fork = hf.conversation("c").fork("f", at=9)
    fork.set("own", 1)
    for scope, last in (("conversation/c", 12), (hf.team("t"), 7), (fork, 11)):
        for newest_first in (False, True):
            for limit in (1, 4, 100):
                pages = _walk(hf, newest_first=newest_first, limit=limit, scope=scope)  # pyright: ignore[reportArgumentType]
                found = [event.revision for page in pages for event in page]
                wanted = list(range(1, last + 1))
                assert found == (wanted[::-1] if newest_first else wanted)
    chat = hf.conversation("c")
    assert [e.revision for e in hf.events(scope=chat, after=3, before=6)] == [4, 5]
    assert [e.revision for e in hf.events(scope=chat, before=3, newest_first=True)] == [2, 1]
    assert hf.events(scope="team/none") == [] == hf.events(scope="team/none", newest_first=True)
    assert hf.events(scope=chat, after=99) == []


def test_events_by_type_and_actor(place: object, hf: Store) -> None:
    _fill(hf)
    [named] = hf.events(type="checkpointed")
    assert (named.checkpoint, named.stream) == ("named", "team/t")
    pages = _walk(hf, newest_first=True, limit=5, type="changed")
    assert sum(map(len, pages)) == 24
    assert not hf.events(type="changed", limit=24).more
    assert hf.events(actor="bo") == []
    assert len(hf.events(actor="ada", scope="team/t", limit=3)) == 3
    if place != "memory:":
        with holdfast.open(place, actor="bo") as other:
            other.team("t").set("by", "bo")
        [event] = hf.events(actor="bo")
        assert event.data
        assert hf.events(actor="bo", type="checkpointed", newest_first=True) == []


def test_positions_and_revisions_are_places_too(place: object, hf: Store) -> None:
    _fill(hf)
    events = list(hf.follow(as_events=True, after=START, timeout_s=0))
    middle = events[10].position
    assert _named(hf.events(after=middle)) == _named(
        [event for event in events[11:] if event.position != middle]
    )
    if isinstance(place, dict):
        with pytest.raises(UsageError, match="no common order"):
            hf.events(before=middle)
    else:
        before = [event for event in events if event.position < middle]
        assert _named(hf.events(before=middle, newest_first=True)) == _named(before)[::-1]
    assert hf.events(after=hf.position) == []


def test_an_empty_store_has_an_empty_page(hf: Store) -> None:
    pages = [hf.events(newest_first=newest_first) for newest_first in (False, True)]
    assert [(page, page.more) for page in pages] == [([], False)] * 2
    hf.team("t").set("n", 1)
    for page in pages:
        assert len(hf.events(after=page.start)) == 1 == len(hf.events(after=page.cursor))
        assert hf.events(before=page.cursor) == []
        assert hf.events(before=page.cursor, newest_first=True) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"after": "nonsense"},
        {"before": "nonsense"},
        {"after": -1},
        {"before": 0},
        {"after": write_cursor("events", "team/t", 1)},
        {"after": write_cursor("events", 1), "scope": "team/t"},
        {"after": write_cursor("events", "team/u", 1), "scope": "team/t"},
        {"after": write_cursor("events", "x")},
        {"after": write_cursor("runs", 1)},
        {"after": -1, "scope": "team/t"},
        {"before": 0, "scope": "team/t"},
        {"type": 7},
        {"actor": b"ada"},
        {"scope": 7},
        {"newest_first": 1},
    ],
)
def test_arguments_are_checked(wrong: dict[str, object]) -> None:
    with holdfast.open("memory:") as hf:
        hf.team("t").set("n", 1)
        with pytest.raises(UsageError):
            hf.events(**wrong)  # pyright: ignore[reportArgumentType]


def test_what_has_expired_is_left_out(hf: Store) -> None:
    ends = hf.conversation("ends", ttl_s=0.3)
    ends.set("n", 1)
    hf.conversation("lasts").set("n", 1)
    while hf.view().states([ends]):
        hf._log.wait_after(hf.position, 0.05)
    for newest_first in (False, True):
        page = hf.events(newest_first=newest_first)
        assert _named(page) == [("conversation/lasts", 1)]


def test_a_page_never_begins_inside_a_long_commit(hf: Store) -> None:
    hf.conversation("first").set("n", 1)
    with hf.commit() as tx:
        for n in range(150):
            tx.scope(hf.conversation(f"c{n:03}")).set("n", n)
    page = hf.events(newest_first=True, limit=1)
    assert (len(page), page.more) == (150, True)
    assert _named(hf.events(newest_first=True, before=page.cursor)) == [("conversation/first", 1)]


def test_pages_for_asyncio(place: object, hf: Store) -> None:
    _fill(hf)

    async def look() -> None:
        async with await aio.open(place) as store:
            page = await store.events(newest_first=True, limit=4)
            assert page.more
            rest = await store.events(newest_first=True, before=page.cursor, limit=None)
            assert len(page) + len(rest) == 25
            team = await store.events(scope=store.team("t"), type="changed", actor="ada")
            assert len(team) == 6

    if place != "memory:":
        asyncio.run(look())


def test_reading_back_without_a_method_of_its_own_widens_its_window(tmp_path: Path) -> None:
    """The default of clause 24: many commits without records, and commits of many."""
    with holdfast.open(tmp_path / "store") as hf:
        backend = hf._log._backend
        assert isinstance(backend, FilesBackend)
        assert read_back(backend) == []
        chat = hf.conversation("c")
        chat.set("n", 0)
        with hf.commit() as tx:
            for n in range(1200):
                tx.scope(hf.team(f"t{n}")).set("n", n)
        for n in range(40):
            with hf.commit() as tx:
                tx.mark("todo", f"m{n}")
        assert len(read_back(backend, limit=3)) == 1200
        assert len(read_back(backend, limit=1201)) == 1201
        assert [one.stream for one in read_back(backend, until=Position(1))] == [chat.name]
        assert read_back(backend, until=START) == []
        assert len(hf.events(newest_first=True, limit=2)) == 1200

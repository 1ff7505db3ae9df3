"""Lists of scopes: by level and prefix, page by page, whoever registered the level."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store, aio
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Mark, MarkQuery, Marks
from holdfast.core.commit import ProposedCommit
from holdfast.core.listing import adopt_levels, register_level
from holdfast.core.log import BULK_EVENTS, LEVELS
from holdfast.core.page import write_cursor
from holdfast.core.tree import apply, set_op
from holdfast.errors import CorruptError, ExistsError, UsageError
from holdfast.names import Levels
from holdfast.testing import FakeClock
from tests.opening import store_of_log
from tests.record.stores import ALL, new_url

MIXED = "mixed"


@pytest.fixture(params=[*ALL, MIXED])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    """Where a store is; a mixed one keeps teams apart from the rest."""
    if request.param == MIXED:
        return {"team": f"sqlite:{tmp_path / 'teams.db'}", "*": str(tmp_path / "rest")}
    return new_url(request.param, tmp_path)


@pytest.fixture
def hf(place: object) -> Iterator[Store]:
    with holdfast.open(place, settings=Settings(levels={"session": "conversation"})) as store:
        yield store


def _names(scopes: list[holdfast.Scope]) -> list[str]:
    return [scope.name for scope in scopes]


def _fill(hf: Store) -> list[str]:
    for n in range(7):
        hf.team(f"red/{n}").set("n", n)
        hf.team(f"blue/{n}").set("n", n)
        hf.conversation(f"c{n}").set("n", n)
    hf.scope("session", "s").set("n", 1)
    hf.global_().set("n", 1)
    hf.workers.lease("a stream of the store's own")
    return sorted(
        [f"team/{word}/{n}" for word in ("red", "blue") for n in range(7)]
        + [f"conversation/c{n}" for n in range(7)]
        + ["session/s", "global"]
    )


def test_pages_of_scopes_by_level_and_prefix(hf: Store) -> None:
    everything = _fill(hf)
    for level, prefix, fits in (
        (None, "", everything),
        ("team", "", [name for name in everything if name.startswith("team/")]),
        ("team", "red/", [f"team/red/{n}" for n in range(7)]),
        (None, "team/b", [f"team/blue/{n}" for n in range(7)]),
        (None, "t", [name for name in everything if name.startswith("team/")]),
        (None, "glo", ["global"]),
        (None, "global/", []),
        ("global", "", ["global"]),
        ("global", "x", []),
        ("session", "", ["session/s"]),
        ("workflow", "", []),
        ("nowhere", "", []),
    ):
        for limit in (1, 3, 7, 1000, None):
            found: list[str] = []
            page = hf.scopes(level, prefix=prefix, limit=limit)
            while True:
                found += _names(page)
                assert page.more == (len(found) < len(fits)), (level, prefix, limit)
                if not page.more:
                    break
                assert len(page) == limit
                page = hf.scopes(level, prefix=prefix, after=page.cursor, limit=limit)
            assert found == fits, (level, prefix, limit)
    assert hf.scopes(after="zzz") == []
    assert hf.scopes("team", after="team/red/5", limit=5)[0].state["n"] == 6
    assert _names(hf.scopes("team", prefix="red/")) == [f"team/red/{n}" for n in range(7)]


def test_a_list_longer_than_a_page_says_so(hf: Store) -> None:
    with hf.commit() as tx:
        for n in range(1005):
            tx.scope(hf.conversation(f"c{n:04}")).set("n", n)
    page = hf.scopes("conversation")
    assert (len(page), page.more) == (1000, True)
    assert len(hf.scopes("conversation", after=page.cursor)) == 5
    assert len(hf.scopes("conversation", limit=None)) == 1005
    states = hf.view().states(hf.scopes("conversation", limit=None))
    assert [state["n"] for state in states.values()] == [*range(1005)]


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": "9"}, {"after": 7}, {"prefix": 7}, {"level": "No Level"}]
)
def test_arguments_of_a_list_are_checked(wrong: dict[str, object]) -> None:
    with holdfast.open("memory:") as hf, pytest.raises(UsageError):
        hf.scopes(**wrong)  # pyright: ignore[reportArgumentType]


@contextmanager
def _another(hf: Store, place: object) -> Generator[Store]:
    """A handle that has registered no level."""
    if place == "memory:":
        yield store_of_log(hf._log, url=hf.url, worker="another")
    else:
        with holdfast.open(place) as store:
            yield store


def test_levels_that_another_process_registered_are_listed(place: object, hf: Store) -> None:
    """Until now `scopes` left them out in silence."""
    register_level(hf._kernel, "draft", below="session", keep=False)
    with _another(hf, place) as other:
        with pytest.raises(UsageError, match="no level"):
            other.scope("draft/d")
        assert other.scopes() == [] == other.scopes("draft")
        hf.scope("draft", "d").set("n", 1)
        assert other.scope("draft/d").state["n"] == 1
        hf.scope("session", "s").set("n", 1)
        assert _names(other.scopes()) == ["draft/d", "session/s"]
        assert not other._kernel.levels.keeps("draft")
        order = other._kernel.levels.names()
        if place != "memory:":  # there both have one table of marks
            assert order[3:] == ["conversation", "session", "draft"]
        assert other.scope("session/s").fork("t").name == "session/t"
        assert _names(other.scopes("session")) == ["session/s", "session/t"]


def test_a_level_is_recorded_once_and_by_the_first_of_its_scopes(hf: Store) -> None:
    recorded = Mark(LEVELS, "session", priority=1, group="conversation")
    assert hf.workers.marks(LEVELS) == []
    hf.team("t").set("n", 1)
    assert hf.workers.marks(LEVELS) == []
    with hf.commit() as tx:
        tx.scope(hf.scope("session", "a")).set("n", 1)
        tx.scope(hf.scope("session", "b")).set("n", 1)
    assert hf.workers.marks(LEVELS) == [recorded]
    assert not hf._log.unrecorded
    position = hf.position
    hf.scope("session", "c").set("n", 1)
    [event] = hf.events(after=position)
    assert event.stream == "session/c"


def test_a_level_that_was_adopted_can_be_registered_otherwise() -> None:
    levels = Levels()
    levels.adopt("draft", below="session", keep=False)
    levels.adopt("draft", below="team")
    assert levels.names()[-1] == "draft"
    assert not levels.keeps("draft")
    with pytest.raises(UsageError, match="below itself"):
        levels.register("draft", below="draft")
    with pytest.raises(UsageError, match="no level"):
        levels.register("draft", below="nowhere")
    levels.register("draft", below="team")
    assert levels.names() == ["global", "team", "draft", "workflow", "conversation"]
    assert levels.keeps("draft")
    assert [level.name for level in levels.registered()] == ["draft"]
    with pytest.raises(ExistsError):
        levels.register("draft", below="team")


def test_levels_are_adopted_from_the_widest_on() -> None:
    with holdfast.open("memory:") as hf:
        pairs = (("a", "b"), ("b", "team"), ("c", "gone"), ("d", "c"))
        marks = tuple(Mark(LEVELS, name, priority=1, group=below) for name, below in pairs)
        hf._log.commit(ProposedCommit((), marks=marks))
        adopt_levels(hf._log, hf._kernel.levels)
        assert hf._kernel.levels.names() == [
            *("global", "team", "b", "a", "workflow", "conversation", "c", "d")
        ]


def test_streams_of_a_level_that_nobody_recorded_are_reported(
    place: object, hf: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that was written before levels were recorded."""
    hf._log.unrecorded.clear()
    hf.scope("session", "s").set("n", 1)
    hf.team("t").set("n", 1)
    with _another(hf, place) as other, caplog.at_level(logging.WARNING, "holdfast.log"):
        assert _names(other.scopes()) == ["team/t"]
        assert other.scopes(limit=1)
        [report] = [one for one in other.status()["reports"] if "levels=" in one]
        assert '"session/…"' in report
        with pytest.raises(UsageError, match="no level"):
            other.scopes("session")
        register_level(other._kernel, "session", below="conversation")
        assert _names(other.scopes()) == ["session/s", "team/t"]


def test_a_damaged_store_reads_what_is_whole_of_a_registered_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def damaged(*_: object, **__: object) -> object:
        raise CorruptError("marks cannot be listed")

    with holdfast.open("memory:") as hf:
        monkeypatch.setattr(hf._log.marks, "list", damaged)
        with pytest.raises(UsageError, match="no level"):
            hf.scope("session/s")
        with pytest.raises(CorruptError):
            hf.scopes()
        register_level(hf._kernel, "session", below="conversation")
        assert hf.scope("session/s").state == {}


def test_an_id_is_looked_up_across_levels(place: object, hf: Store) -> None:
    for scope in (hf.team("x"), hf.scope("session", "x"), hf.conversation("y")):
        scope.set("n", 1)
    with _another(hf, place) as other:
        assert _names(other.scopes(id="x")) == ["team/x", "session/x"]
        assert _names(other.scopes(id="y")) == ["conversation/y"]
        assert other.scopes(id="z") == [] == other.scopes(id="global")
        with pytest.raises(UsageError):
            other.scopes(id="")
        hf.team("x").remove()
        assert _names(other.scopes(id="x")) == ["session/x"]
        assert _names(other.scopes(prefix="team/")) == []


# --- states in bulk -------------------------------------------------------------------------------


def test_the_states_of_many_scopes_are_read_at_once(place: object, hf: Store) -> None:
    chats = [hf.conversation(f"c{n}") for n in range(5)]
    for n, chat in enumerate(chats):
        chat.set("n", n)
    chats[1].set("n", 10)
    long = hf.team("long")
    for n in range(BULK_EVENTS + 3):
        long.set("n", n)
    fork = chats[1].fork("f", at=1)
    fork.set("own", True)
    wanted = {
        **{"conversation/c0": {"n": 0}, "conversation/c1": {"n": 10}},
        **{"conversation/c4": {"n": 4}, "conversation/f": {"n": 1, "own": True}},
        **{"team/long": {"n": BULK_EVENTS + 2}, "conversation/none": {}},
    }
    asked = [*wanted, chats[0]]
    for _ in range(2):
        found = hf.view().states(asked)
        assert {name: state.to_dict() for name, state in found.items()} == wanted
        assert list(found) == list(wanted)
    with _another(hf, place) as other:
        for change in (lambda: None, lambda: chats[4].set("n", 5)):
            change()
            wanted["conversation/c4"] = chats[4].state.to_dict()
            found = other.view().states(wanted)
            assert {name: state.to_dict() for name, state in found.items()} == wanted
    assert hf.view().states([]) == {}


def test_states_in_bulk_pass_the_transforms(hf: Store) -> None:
    hf.team("t").set("secret", 1)
    hf._log.add_transform(lambda state, name: apply(state, [set_op("seen", name)], revision=None))
    assert hf.view().states(["team/t"])["team/t"].to_dict() == {"secret": 1, "seen": "team/t"}


def test_states_in_bulk_leave_out_what_has_expired(place: object, hf: Store) -> None:
    lasts, ends = hf.conversation("lasts"), hf.conversation("ends", ttl_s=0.3)
    other = hf.conversation("other")
    for scope in (lasts, ends, other):
        scope.set("n", 1)
    while len(hf.view().states([ends])):
        hf._log.wait_after(hf.position, 0.05)
    with _another(hf, place) as fresh:
        assert list(fresh.view().states([lasts.name, ends.name, other.name])) == [
            lasts.name,
            other.name,
        ]


def test_lists_and_states_for_asyncio(place: object, hf: Store) -> None:
    everything = _fill(hf)

    async def look() -> None:
        async with await aio.open(place) as store:
            page = await store.scopes(limit=3)
            assert [scope.name for scope in page] == everything[:3]
            assert page.more
            rest = await store.scopes(after=page.cursor, limit=None)
            assert [scope.name for scope in rest] == everything[3:]
            assert not rest.more
            states = await (await store.view()).states([*page, "team/red/1"])
            assert states["team/red/1"]["n"] == 1
            assert len(states) == 4
            assert [scope.name for scope in await store.scopes(id="red/1")] == ["team/red/1"]

    if place != "memory:":
        asyncio.run(look())


class CountsMarks(MemoryBackend):
    """Counts the marks that it returns."""

    returned = 0

    def __init__(self) -> None:
        super().__init__(clock=FakeClock())
        own = self._marks.find

        def find(query: MarkQuery) -> Sequence[Mark]:
            found = own(query)
            self.returned += len(found)
            return found

        self._marks.find = find  # type: ignore[method-assign]

        listed = self._marks.list

        def few(index: str | None = None, *, limit: int = 1000, **more: Any) -> list[Mark]:
            assert limit == 1 or index == LEVELS, "all marks were listed"
            return listed(index, limit=limit, **more)

        self._marks.list = few  # type: ignore[method-assign]


def test_lists_and_removals_ask_for_the_marks_that_they_need() -> None:
    """However many scopes were removed, and however many marks others have."""
    backend = CountsMarks()
    with holdfast.open(backend) as hf:
        with hf.commit() as tx:
            for number in range(300):
                tx.scope(hf.team(f"{number:03}")).set("n", 1)
                tx.mark("jobs", f"{number:03}", due=number)
        for number in range(0, 300, 2):
            hf.team(f"{number:03}").remove()
        backend.returned = 0
        assert [scope.id for scope in hf.scopes("team", limit=3)] == ["001", "003", "005"]
        assert backend.returned <= 4
        assert hf.scopes(id="002") == []
        assert backend.returned <= 5
        page = hf.workers.marks("jobs", limit=10)
        backend.returned = 0
        for _ in range(3):
            page = hf.workers.marks("jobs", limit=10, after=page.cursor)
        assert [mark.due for mark in page] == list(range(30, 40))
        assert backend.returned == 33
        for wrong in ("x", write_cursor("marks", 1, 2), write_cursor("runs", 1)):
            with pytest.raises(UsageError, match="is not a cursor of marks"):
                hf.workers.marks(after=wrong)
        backend.returned = 0
        hf.team("001").remove()
        assert backend.returned == 0


class ListsMarks(MemoryBackend):
    """A backend of a third party: it has no `find` for marks."""

    def __init__(self) -> None:
        super().__init__(clock=FakeClock())
        self.marks = _OnlyListed(self._marks)


class _OnlyListed:
    def __init__(self, marks: Marks) -> None:
        self.list, self.claim = marks.list, marks.claim
        self.release, self.claims = marks.release, marks.claims


def test_a_backend_without_find_has_its_marks_looked_through() -> None:
    with holdfast.open(ListsMarks()) as hf:
        for id in ("a", "b", "c"):
            hf.team(id).set("n", 1)
            hf.team(id).facts.state("f", "true")
        hf.team("b").remove()
        assert [scope.id for scope in hf.scopes("team")] == ["a", "c"]
        assert [fact.scope for fact in hf.team("a").facts.list()] == ["team/a"]
        first = hf.workers.marks(limit=1)
        assert first.more
        assert len(first) + len(hf.workers.marks(after=first.cursor)) == len(hf.workers.marks())

"""Every list of a store is bounded, says whether there is more, and goes on from its cursor."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Scope, Settings, Store, aio
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Found
from holdfast.core.commit import ProposedCommit
from holdfast.core.log import Log
from holdfast.core.page import write_cursor
from holdfast.errors import UsageError
from holdfast.record import sessions
from holdfast.record.context import RecordContext
from holdfast.record.facts import Facts
from holdfast.record.messages import Messages
from holdfast.record.tasks import Tasks
from holdfast.store import Page
from holdfast.testing import FakeClock
from holdfast.workers import Mark
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


def _walk(ask: Callable[..., Page[Any]], limit: int) -> list[Any]:
    found: list[Any] = []
    page = ask(limit=limit)
    while True:
        assert len(page) == limit or not page.more
        found += page
        if not page.more:
            return found
        page = ask(limit=limit, after=page.cursor)


def _check(ask: Callable[..., Page[Any]], count: int, *, by_id: bool = False) -> None:
    everything = ask(limit=None)
    assert (len(everything), everything.more) == (count, False)
    for limit in (1, 2, count - 1, count, count + 1):
        assert _walk(ask, limit) == everything, limit
    assert ask() == everything
    for wrong in (7,) if by_id else ("nonsense", 7, write_cursor("nothing", 1)):
        with pytest.raises(UsageError):
            ask(after=wrong)
    with pytest.raises(UsageError):
        ask(limit=0)


def test_marks(hf: Store) -> None:
    with hf.commit() as tx:
        for n in range(6):
            tx.mark("todo", f"m{n}", due=n % 2, priority=n % 3)
            tx.mark("other", f"m{n}", due=n % 2, priority=n % 3)
    _check(lambda **page: hf.workers.marks("todo", **page), 6)
    _check(hf.workers.marks, 12)


def test_marks_past_a_thousand_are_not_left_out_in_silence(hf: Store) -> None:
    with hf.commit() as tx:
        for n in range(1203):
            tx.mark("todo", f"m{n:04}")
    page = hf.workers.marks("todo")
    assert (len(page), page.more) == (1000, True)
    assert len(hf.workers.marks("todo", after=page.cursor)) == 203
    assert len(hf.workers.marks("todo", limit=None)) == 1203


def test_checkpoints(hf: Store) -> None:
    chat = hf.conversation("c")
    for n in range(5):
        chat.set("n", n, checkpoint=f"named {n % 2}")
    fork = chat.fork("f", at=4)
    fork.set("n", "own", checkpoint="own")
    _check(chat.checkpoints, 5)
    _check(fork.checkpoints, 5)
    assert [one.revision for one in fork.checkpoints(limit=2)] == [6, 4]
    assert hf.team("none").checkpoints() == []


def test_a_page_of_checkpoints_reads_no_more_names_than_it_needs(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.log._CHECKPOINTS_FIRST", 8)
    chat = hf.conversation("c")
    for n in range(50):
        chat.set("n", n, checkpoint=f"at {n}")
    read: list[int] = []
    log_find = Log.find

    def counting(self: Log, stream: str, **ask: Any) -> list[Found]:
        found = log_find(self, stream, **ask)
        read.append(len(found))
        return found

    monkeypatch.setattr(Log, "find", counting)
    page = chat.checkpoints(limit=3)
    assert [one.name for one in page] == ["at 49", "at 48", "at 47"]
    assert page.more
    assert read == [8]
    assert len(chat.checkpoints(limit=None)) == 50


def test_a_checkpoint_that_comes_while_others_are_read_repeats_none(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.log._CHECKPOINTS_FIRST", 4)
    chat = hf.conversation("c")
    for n in range(20):
        chat.set("n", n, checkpoint=f"at {n}")
    reading = hf._log.checkpoints(chat.name)
    first = [next(reading) for _ in range(3)]
    for n in range(3):
        chat.set("late", n, checkpoint=f"late {n}")
    names = [one.name for one in (*first, *reading)]
    assert names == [f"at {n}" for n in reversed(range(20))]


def test_leases(hf: Store) -> None:
    for n in range(4):
        hf.workers.lease(f"team/l{n}")
        hf.workers.lease(f"l{n}")
    page = hf.workers.leases(prefix="team/", limit=3)
    assert ([one.name for one in page], page.more) == ([f"team/l{n}" for n in range(3)], True)
    [last] = hf.workers.leases(prefix="team/", after=page.cursor)
    assert (last.name, last.owner, last.is_held) == ("team/l3", hf.workers.own, True)
    names = [one.name for one in _walk(lambda **ask: hf.workers.leases(prefix="l", **ask), 1)]
    assert (
        names == [one.name for one in hf.workers.leases(prefix="l")] == [f"l{n}" for n in range(4)]
    )
    assert hf.workers.leases(prefix="x") == []
    for wrong in ({"prefix": 7}, {"after": 7}, {"limit": 0}):
        with pytest.raises(UsageError):
            hf.workers.leases(**wrong)  # pyright: ignore[reportArgumentType]


def test_tasks_of_a_scope_and_of_all(hf: Store) -> None:
    team, chat = hf.team("t"), hf.conversation("c")
    for n in range(12):
        (team if n % 2 else chat).tasks.add(f"task {n}", priority=n % 3)
    _check(hf.tasks.list, 12)
    _check(team.tasks.list, 6)
    assert [task.title for task in team.tasks.list(limit=2)] == ["task 5", "task 11"]
    ranks = [(-task.priority, task.created_at) for task in hf.tasks.list()]
    assert ranks == sorted(ranks)
    with pytest.raises(UsageError):
        hf.tasks.list(after=team.tasks.list(limit=1).cursor)


def test_decisions_of_a_scope_of_all_and_the_open_ones(hf: Store) -> None:
    team, chat = hf.team("t"), hf.conversation("c")
    for n in range(8):
        made = (team if n % 2 else chat).decide(f"decision {n}", priority=n % 3)
        if n >= 6:
            with made as open_one:
                open_one.outcome("done")
        else:
            made.__enter__()
    _check(hf.decisions.list, 8)
    _check(lambda **page: hf.decisions.list(scope=team, **page), 4)
    _check(lambda **page: hf.decisions.list(incomplete=True, **page), 6)
    _check(lambda **page: hf.decisions.list(incomplete=True, scope="team/t", **page), 3)
    assert [one.decision for one in hf.decisions.list(limit=2)] == ["decision 7", "decision 6"]
    page = hf.decisions.list(scope=team, limit=2)
    assert hf.decisions.list(
        scope=team, after=page.cursor, before=page[1].revision
    ) == hf.decisions.list(scope=team, before=page[1].revision)
    with pytest.raises(UsageError, match="of one scope"):
        hf.decisions.list(scope=team, after=hf.decisions.list(limit=1).cursor)


@holdfast.run
def waits(ctx: Any) -> None:
    ctx.wait("for ever")


@holdfast.run
def ends(ctx: Any) -> int:
    return 1


def test_runs(hf: Store) -> None:
    for n in range(3):
        hf.runs.start(ends, id=f"done-{n}").result()
        hf.runs.start(waits, id=f"queued-{n}", queue="later")
    _check(hf.runs.list, 6, by_id=True)
    _check(lambda **page: hf.runs.list(status="completed", **page), 3, by_id=True)
    _check(lambda **page: hf.runs.list(status="pending", **page), 3, by_id=True)
    assert [run.id for run in hf.runs.list(after="done-1", limit=2)] == ["done-2", "queued-0"]
    assert hf.runs.list(status="failed") == []


def test_lists_for_asyncio(place: object, hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1, checkpoint="one")
    chat.set("n", 2, checkpoint="two")
    hf._log.commit(ProposedCommit((), marks=(Mark("i", "a"), Mark("i", "b"))))

    async def look() -> None:
        async with await aio.open(place) as store:
            page = await store.workers.marks("i", limit=1)
            assert page.more
            assert [one.key for one in await store.workers.marks("i", after=page.cursor)] == ["b"]
            named = await store.conversation("c").checkpoints(limit=1)
            rest = await store.conversation("c").checkpoints(after=named.cursor)
            assert [one.name for one in [*named, *rest]] == ["two", "one"]
            for ask in (
                store.tasks.list,
                store.decisions.list,
                store.runs.list,
                store.workers.leases,
            ):
                found = await ask(limit=3)
                assert not found.more

    if place != "memory:":
        asyncio.run(look())


@holdfast.node
def doubled(n: int) -> int:
    return 2 * n


@holdfast.node
def tripled(n: int) -> int:
    return 3 * n


def test_groups_and_nodes_are_pages(hf: Store) -> None:
    hf.team("a").set("n", 1)
    for name in ("one", "two", "three", "four"):
        for delivery in hf.workers.group(name, batch=1).deliveries(timeout_s=0):
            delivery.done()
    _check(hf.workers.groups, 4)
    graph = holdfast.Graph("page", [doubled, tripled])
    for team in ("a", "b"):
        hf.nodes.process(graph, hf.team(team), n=1)
    _check(hf.nodes.list, 4)
    _check(lambda **page: hf.nodes.list("page", "team/b", **page), 2)


def test_workers_and_sessions_are_pages() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    with ExitStack() as stack:
        # A store closes its backend: so they are closed together, at the end.
        stores = [
            stack.enter_context(holdfast.open(backend, settings=Settings(clock=clock)))
            for _ in range(3)
        ]
        for number, store in enumerate(stores):
            sessions.begin_session(
                store._kernel.part(RecordContext), store.conversation(f"c{number}"), keep=True
            )
            store._kernel.leases.register()
        _check(stores[0].workers.list, 3)
        _check(stores[0].sessions.list, 3)
        assert stores[0].workers.suspects() == []


ROOMS = [
    "runs", "tasks", "decisions", "facts", "sessions", "nodes", "projections", "search",
    "retention", "subjects", "keys", "secrets", "schemas", "workers",
]  # fmt: skip
WHOLE = {
    "Store": "stale",
    "hf.facts": "stale",
    "hf.runs": "remove",
    "hf.schemas": "list",
    "hf.search": "similar dangling_links",
    "hf.retention": "bin holds past",
    "hf.subjects": "list finish receipts",
    "hf.workers": "claim",
    "chat.decisions": "catches catch_unrecorded",
    "Tasks": "ready",
    "Facts": "list",
    "Messages": "add_many import_many merge last items for_request select turns summaries "
    "file_changes",
}
"""Lists that are no pages: of what a call did, of as many as it asked for, or all that there are of
what is few. None of them leaves anything out."""


def test_every_list_is_a_page_or_is_whole() -> None:
    """A new list is a page, or has its place above."""
    pages = set[str]()
    kinds: dict[str, type] = {one.__name__: one for one in (Store, Scope, Tasks, Facts, Messages)}
    with holdfast.open("memory:") as hf:
        chat = hf.conversation("c")
        kinds |= {f"hf.{room}": type(getattr(hf, room)) for room in ROOMS}
        kinds |= {f"chat.{room}": type(getattr(chat, room)) for room in ("decisions", "life")}
    for kind, of in kinds.items():
        for name, method in inspect.getmembers(of, callable):
            returned = str(getattr(method, "__annotations__", {}).get("return", ""))
            if name.startswith("_") or not returned.startswith(("list[", "Page[")):
                continue
            if returned.startswith("Page["):
                assert {"limit", "after"} <= set(inspect.signature(method).parameters), name
                pages.add(f"{kind}.{name}")
            else:
                assert name in WHOLE.get(kind, "").split(), f"{kind}.{name} -> {returned}"
    assert pages >= {
        "Store.scopes", "Store.events", "Scope.checkpoints", "hf.runs.list", "hf.tasks.list",
        "hf.decisions.list", "hf.decisions.catches", "hf.sessions.list", "hf.nodes.list",
        "hf.workers.list", "hf.workers.suspects", "hf.workers.leases", "hf.workers.marks",
        "hf.workers.groups",
    }  # fmt: skip

"""Tasks on every backend: claimed by one, suspect when the owner is silent (BOOT-7, 70, 79)."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import (
    ConflictError,
    ExistsError,
    LeaseLostError,
    NotFoundError,
    Settings,
    Store,
    Task,
    UnavailableError,
    UsageError,
    aio,
)
from holdfast.backends.memory import MemoryBackend
from holdfast.core.event import from_datetime
from holdfast.core.log import Log
from holdfast.errors import ExpiredError
from holdfast.record import task_events
from holdfast.record.task_events import project
from holdfast.testing import FakeClock, FaultyBackend
from tests.opening import store_of_log
from tests.record.stores import begun_and_seen, new_url


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


def test_boot_79_a_task_goes_from_open_through_in_progress_to_completed(hf: Store) -> None:
    tasks = hf.team("t").tasks
    added = tasks.add("review the change", priority="high", epic="v2", tags=["ui", "slow"])
    assert (added.id, added.status, added.owner, added.scope) == ("t1", "open", None, "team/t")
    assert (added.priority, added.epic, added.tags) == (1, "v2", ("ui", "slow"))
    assert added.created_at == added.updated_at
    claimed = tasks.claim()
    assert claimed is not None
    assert (claimed.id, claimed.status) == ("t1", "in_progress")
    assert (claimed.owner, claimed.worker, claimed.suspect) == (
        hf.workers.own,
        hf.workers.own,
        False,
    )
    assert claimed.heartbeat is not None
    closed = tasks.close(claimed, "merged")
    assert (closed.status, closed.outcome) == ("completed", "merged")
    assert closed == tasks.get("t1")
    lines = [(state.status, state.owner) for state in closed.history]
    assert lines == [("open", None), ("in_progress", hf.workers.own), ("completed", hf.workers.own)]
    times = [closed.created_at, closed.started_at, closed.completed_at]
    assert [state.at for state in closed.history] == times
    assert all(a <= b for a, b in pairwise(times) if a and b)
    assert hf.workers.marks("task") == hf.workers.marks("claim") == hf.tasks.list() == []
    assert project(hf.team("t").history()) == {"t1": bare(closed)}
    assert hf.check().ok


def bare(task: Task) -> Task:
    """Returns a task without the fields that are known only when it is read."""
    return replace(task, scope="", suspect=False, heartbeat=None, waits_for=())


def test_the_next_is_the_highest_whose_dependencies_are_closed(hf: Store) -> None:
    tasks = hf.workflow("w").tasks
    tasks.add("design", id="design", priority=1)
    tasks.add("build", id="build", priority=5, depends_on=["design"])
    tasks.add("ship", id="ship", priority=9, depends_on=["build", "design"])
    tasks.add("tidy", id="tidy")
    assert ids(tasks.list()) == ["ship", "build", "design", "tidy"]
    assert tasks.get("ship").waits_for == ("build", "design")
    order: list[str] = []
    while (task := tasks.claim()) is not None:
        order.append(task.id)
        tasks.close(task, "done")
    assert order == ["design", "build", "ship", "tidy"]
    assert tasks.get("ship").waits_for == ()
    assert tasks.get("ship").dependencies == ("build", "design")


def test_claims_are_found_and_filtered(hf: Store) -> None:
    a, b = hf.team("a").tasks, hf.team("b").tasks
    a.add("one", tags=["x"], epic="e")
    a.add("two", priority=2)
    b.add("three", priority=1, tags=["x"])
    assert [(task.scope, task.id) for task in hf.tasks.list()] == [
        ("team/a", "t2"),
        ("team/b", "t1"),
        ("team/a", "t1"),
    ]
    assert [task.title for task in hf.tasks.list(tag="x")] == ["three", "one"]
    assert [task.title for task in hf.tasks.list(epic="e")] == ["one"]
    claimed = a.claim(tag="x", owner="agent-a")
    assert claimed is not None
    assert (claimed.title, claimed.owner) == ("one", "agent-a")
    assert [task.title for task in hf.tasks.list(owner="agent-a")] == ["one"]
    assert [task.title for task in hf.tasks.list(status="open")] == ["two", "three"]
    assert [task.title for task in a.list(status=["in_progress", "blocked"])] == ["one"]
    assert [mark.group for mark in hf.workers.marks("claim")] == ["team/a"]
    assert hf.tasks.list(suspect=True) == hf.stale() == []
    assert ids(hf.tasks.list(limit=1)) == ["t2"]
    assert a.list(older_than="1h") == []
    assert b.claim(epic="e") is None


def test_every_transition_is_in_the_schema(hf: Store) -> None:
    tasks = hf.team("t").tasks
    tasks.add("one")
    with pytest.raises(ConflictError, match="is open: it cannot become open"):
        tasks.unblock("t1")
    with pytest.raises(ConflictError, match="is open: it cannot become open"):
        tasks.release("t1")
    blocked = tasks.block("t1", why="no key yet")
    assert (blocked.status, blocked.why) == ("blocked", "no key yet")
    assert tasks.claim() is None
    with pytest.raises(ConflictError, match="is blocked: it cannot be claimed"):
        tasks.claim("t1")
    assert tasks.unblock("t1").why is None
    first = tasks.claim("t1")
    assert first is not None
    with pytest.raises(LeaseLostError, match="is held by"):
        tasks.claim("t1")
    assert tasks.release(first, why="no time").owner is None
    second = tasks.claim("t1")
    assert second is not None
    assert second.claim > first.claim
    for late in (
        lambda: tasks.close(first, "late"),
        lambda: tasks.release(first),
        lambda: tasks.block(first),
    ):
        with pytest.raises(LeaseLostError) as lost:
            late()
        assert lost.value.epoch == second.claim
    assert tasks.close(second, "no use", status="cancelled").status == "cancelled"
    with pytest.raises(ConflictError, match="is cancelled: it cannot become"):
        tasks.close("t1", "again")
    with pytest.raises(ConflictError, match="is cancelled: it cannot be changed"):
        tasks.update("t1", title="other")
    assert tasks.update("t1", note="why not").note == "why not"
    reopened = tasks.reopen("t1", why="needed after all")
    assert (reopened.status, reopened.outcome, reopened.completed_at) == ("open", None, None)
    statuses = [state.status for state in reopened.history]
    assert statuses == [
        "open",
        "blocked",
        "open",
        "in_progress",
        "open",
        "in_progress",
        "cancelled",
        "open",
    ]
    assert [mark.index for mark in hf.workers.marks("task")] == ["task"]
    assert hf.workers.marks("claim") == []


WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda tasks: tasks.add(""), "title is text"),
    (lambda tasks: tasks.add(7), "title is text"),
    (lambda tasks: tasks.add("x", priority="urgent"), "a priority is"),
    (lambda tasks: tasks.add("x", priority=1.5), "a priority is"),
    (lambda tasks: tasks.add("x", tags="ui"), "tags is a list"),
    (lambda tasks: tasks.add("x", tags=[1]), "one of tags must be text"),
    (lambda tasks: tasks.add("x", epic=3), "an epic must be text"),
    (lambda tasks: tasks.add("x", depends_on="t1"), "dependencies is a list"),
    (lambda tasks: tasks.add("x", id=""), "id is empty"),
    (lambda tasks: tasks.add("x", key=b"k"), "key must be text"),
    (lambda tasks: tasks.update("t1"), "nothing to change"),
    (lambda tasks: tasks.update("t1", status="completed"), "close and reopen change it"),
    (lambda tasks: tasks.update("t1", estimate=3), "no field 'estimate'"),
    (lambda tasks: tasks.update("t1", title=None), "title is text"),
    (lambda tasks: tasks.update(None, title="x"), "a task is a Task or its id"),
    (lambda tasks: tasks.list(status="done"), "status is one of"),
    (lambda tasks: tasks.list(limit=0), "limit is a whole number"),
    (lambda tasks: tasks.claim("t1", lasts="1h"), "needs a name"),
    (lambda tasks: tasks.claim("t1", owner="ana", lasts="soon"), "a length of time"),
    (lambda tasks: tasks.close("t1", ""), "an outcome is text"),
    (lambda tasks: tasks.close("t1", "x", status="open"), "a task ends"),
    (lambda tasks: tasks.block("t1", why=3), "why is text"),
]


@pytest.mark.parametrize(("call", "says"), WRONG)
def test_the_schema_is_enforced_on_every_write(call: Callable[[Any], object], says: str) -> None:
    with holdfast.open("memory:") as hf:
        tasks = hf.team("t").tasks
        tasks.add("one")
        before = hf.position
        with pytest.raises(UsageError, match=says):
            call(tasks)
        assert hf.position == before, "something was written"


def test_bad_ids_and_dependencies_are_refused(hf: Store) -> None:
    tasks = hf.team("t").tasks
    for id, after in (("a", []), ("b", ["a"]), ("c", ["b"])):
        tasks.add(id, id=id, depends_on=after)
    with pytest.raises(ExistsError, match='already has a task "a"'):
        tasks.add("other", id="a")
    with pytest.raises(NotFoundError, match='cannot depend on "z"'):
        tasks.add("d", depends_on=["z"])
    with pytest.raises(UsageError, match="would wait for itself: a -> c -> b -> a"):
        tasks.update("a", depends_on=["c"])
    with pytest.raises(UsageError, match="would wait for itself: d -> d"):
        tasks.add("d", id="d", depends_on=["d"])
    with pytest.raises(NotFoundError, match="has no task 'z'"):
        tasks.close("z", "done")
    with pytest.raises(ConflictError, match='"c" waits for "b"'):
        tasks.claim("c")
    assert tasks.update("c", depends_on=[]).dependencies == ()
    assert tasks.update("a", depends_on=["c"]).waits_for == ("c",)


def test_the_same_key_adds_once(hf: Store) -> None:
    tasks = hf.team("t").tasks
    first = tasks.add("one", key="k")
    assert tasks.add("one", key="k") == first
    with pytest.raises(UsageError, match="was used for another task"):
        tasks.add("two", key="k")
    assert ids(tasks.list()) == ["t1"]


def test_task_numbers_guard_tasks_whatever_else_is_written(hf: Store, url: str) -> None:
    """The scope's state and other records do not get in the way, and ids stay distinct."""
    team = hf.team("t", parent=hf.global_())
    with holdfast.open(url) as other:
        # A store in memory has only one handle.
        theirs = (hf if url == "memory:" else other).team("t").tasks
        for n in range(5):
            team.set("n", n)
            team.tasks.add(f"mine {n}")
            team.facts.state("f", n)
            theirs.add(f"theirs {n}")
        assert ids(theirs.list()) == ids(team.tasks.list()) == [f"t{n + 1}" for n in range(10)]
        assert project(team.history()).keys() == {f"t{n + 1}" for n in range(10)}


# --- history, forks, endings ---------------------------------------------------------------------


def test_a_restore_restores_tasks_but_no_claims(hf: Store) -> None:
    team = hf.team("t")
    tasks = team.tasks
    for n in range(4):
        tasks.add(f"task {n}")
    held = tasks.claim("t1")
    gone = tasks.claim("t2")
    assert held is not None
    assert gone is not None
    team.set("stage", "first")
    mark = team.checkpoint("before")
    tasks.close("t2", "done")
    tasks.close("t3", "done")
    tasks.update("t4", priority=7)
    tasks.add("later")
    team.set("stage", "second")
    revision = team.revision
    team.restore("before")
    now = {task.id: task for task in tasks.list()}
    assert now.keys() == {"t1", "t2", "t3", "t4"}
    assert (now["t1"].status, now["t1"].owner, now["t1"].claim) == (
        "in_progress",
        hf.workers.own,
        held.claim,
    )
    assert (now["t2"].status, now["t2"].owner) == ("open", None)
    assert (now["t3"].status, now["t4"].priority) == ("open", 0)
    assert team.get("stage") == "first"
    assert {mark.key.partition(":")[2]: mark.priority for mark in hf.workers.marks("task")} == {
        "t1": 0,
        "t2": 0,
        "t3": 0,
        "t4": 0,
    }
    assert [mark.key.partition(":")[2] for mark in hf.workers.marks("claim")] == ["t1"]
    with pytest.raises(LeaseLostError):
        tasks.close(gone, "done twice")
    assert tasks.close(held, "done").status == "completed"
    # And forward again: nothing was rewritten.
    team.restore(revision)
    assert {task.id: task.status for task in tasks.list()} == {
        "t1": "open",
        "t2": "completed",
        "t3": "completed",
        "t4": "open",
        "t5": "open",
    }
    then = {task.id: task.status for task in tasks.list(at=mark.revision)}
    assert then == {"t1": "in_progress", "t2": "in_progress", "t3": "open", "t4": "open"}
    assert {id: bare(task) for id, task in project(team.history()).items()} == {
        task.id: bare(task) for task in tasks.list()
    }
    # Undoing one change of the state leaves tasks alone.
    team.set("stage", "third")
    tasks.add("newest", id="newest")
    team.undo()
    assert team.get("stage") == "second"
    assert tasks.get("newest").status == "open"


def test_a_fork_carries_tasks_and_leaves_the_original_alone(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.tasks.add("one")
    chat.tasks.claim("t1")
    chat.tasks.add("two")
    fork = chat.fork("what-if")
    chat.tasks.add("three")
    assert [(task.id, task.status) for task in fork.tasks.list()] == [
        ("t1", "open"),
        ("t2", "open"),
    ]
    assert {task.scope for task in hf.tasks.list()} == {"conversation/c"}
    claimed = fork.tasks.claim()
    assert claimed is not None
    assert claimed.id == "t1"
    assert fork.tasks.add("mine").id == "t3"
    fork.tasks.update("t2", priority=3)
    assert chat.tasks.get("t2").priority == 0
    assert {task.id for task in hf.tasks.list() if task.scope == fork.name} == {"t1", "t2", "t3"}
    assert chat.tasks.close("t1", "done").status == "completed"
    assert fork.tasks.get("t1").status == "in_progress"
    assert project(fork.history()) == {task.id: bare(task) for task in fork.tasks.list()}
    assert hf.check().ok


def test_closing_a_scope_cancels_what_was_not_done(hf: Store) -> None:
    team = hf.team("t")
    team.tasks.add("one")
    team.tasks.add("two")
    team.tasks.close("t1", "done")
    team.tasks.claim("t2")
    team.close(keep=True)
    [two] = team.tasks.list(status="cancelled")
    assert (two.outcome, two.worker) == ("the scope was closed", None)
    assert hf.workers.marks("task") == hf.workers.marks("claim") == []
    with pytest.raises(holdfast.ClosedError):
        team.tasks.add("three")


def test_the_tasks_of_an_expired_scope_are_gone(hf: Store) -> None:
    """Decision 0010: its marks stay, and are passed over."""
    chat, ends = begun_and_seen(hf, 0.3)
    while hf._log._backend.now_us(chat.name) <= from_datetime(ends):
        select.select([], [], [], 0.02)
    assert hf.tasks.list() == hf.stale() == []
    with pytest.raises(ExpiredError):
        chat.tasks.list()
    with pytest.raises(ExpiredError):
        chat.tasks.add("two")


def test_boot_82_a_snapshot_bounds_what_is_folded(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_events, "SNAPSHOT_EVENTS", 8)
    with holdfast.open(url) as hf:
        tasks = hf.team("t").tasks
        for n in range(30):
            tasks.add(f"task {n}")
            hf.team("t").set("n", n)
        tasks.close("t7", "done")
        expected = tasks.list()
        read: list[int] = []
        fold = task_events.TaskTable._fold  # pyright: ignore[reportPrivateUsage]

        def counted(self: Any, record: Any) -> None:
            read.append(record.revision)
            fold(self, record)

        monkeypatch.setattr(task_events.TaskTable, "_fold", counted)
        fresh = task_events.TaskTable(hf._log, "team/t")
        fresh.refresh()
        assert [bare(task) for task in expected] == [fresh.tasks[task.id] for task in expected]
        assert len(read) < 8
        # A snapshot that is not what was written is not believed.
        objects = hf._log._backend.objects
        [name] = objects.names("snapshot", prefix="tasks/")
        data = objects.get("snapshot", name)
        assert data is not None
        objects.put("snapshot", name, data.replace(b"task 3", b"task X"))
        read.clear()
        again = task_events.TaskTable(hf._log, "team/t")
        again.refresh()
        assert again.tasks == fresh.tasks
        assert len(read) == 31


def test_tasks_are_found_in_a_long_stream_without_reading_it(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = hf.team("t")
    for n in range(5):
        team.tasks.add(f"task {n}")
        for m in range(100):
            team.set("n", m)
    read: list[int] = []
    genuine = type(hf._log._backend).read

    def counted(self: Any, stream: str, **bounds: Any) -> Any:
        records = genuine(self, stream, **bounds)
        read.append(len(records))
        return records

    monkeypatch.setattr(type(hf._log._backend), "read", counted)
    fresh = task_events.TaskTable(hf._log, "team/t")
    fresh.refresh()
    assert len(fresh.tasks) == 5
    assert sum(read) < 120


# --- claims by name ------------------------------------------------------------------------------


def test_a_claim_by_name_lasts_its_time(url: str) -> None:
    """For an owner that is not a process: a person, or a command that has ended."""
    clock = FakeClock()
    with holdfast.open(url, settings=Settings(clock=clock)) as hf:
        tasks = hf.team("t").tasks
        tasks.add("one")
        held = tasks.claim("t1", owner="ana", lasts="8h")
        assert held is not None
        assert (held.owner, held.worker, held.lease, held.suspect) == ("ana", None, None, False)
        assert hf.workers.list() == [], "nobody registered for it"
        with pytest.raises(LeaseLostError):
            tasks.close("t1", "done")
        with pytest.raises(LeaseLostError):
            tasks.claim("t1")
        clock.advance(7 * 3600)
        beaten = tasks.heartbeat("t1", owner="ana", lasts="8h")
        assert beaten.heartbeat == held.heartbeat + timedelta(hours=7)  # pyright: ignore
        clock.advance(7 * 3600)
        assert not tasks.get("t1").suspect
        clock.advance(2 * 3600)
        assert tasks.get("t1").suspect
        [found] = hf.stale()
        assert (found.kind, found.id, found.scope, found.why) == (
            "task",
            "t1",
            "team/t",
            "owner silent",
        )
        taken = tasks.claim(owner="bob", lasts="1h")
        assert taken is not None
        assert taken.claim > held.claim
        for late in (held, "t1"):
            with pytest.raises(LeaseLostError, match='is held by "bob"'):
                tasks.close(late, "done", owner="ana")
        with pytest.raises(LeaseLostError):
            tasks.heartbeat(held, lasts="1h")
        assert tasks.close(taken, "done").outcome == "done"
        with pytest.raises(LeaseLostError, match="nobody holds it"):
            tasks.heartbeat(taken, lasts="1h")


def test_a_worker_holds_the_claims_of_its_agents(hf: Store) -> None:
    tasks = hf.team("t").tasks
    tasks.add("one")
    claimed = tasks.claim(owner="agent-a")
    assert claimed is not None
    assert tasks.heartbeat(claimed).heartbeat is not None
    with pytest.raises(LeaseLostError):
        tasks.close("t1", "done", owner="agent-b")
    with hf.commit(lease=claimed.lease) as tx:
        tx.scope(hf.team("t")).set("result", 1)
    assert tasks.close("t1", "done", owner="agent-a").owner == "agent-a"


def test_tasks_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            tasks = hf.team("t").tasks
            await asyncio.gather(*[tasks.add(f"task {n}") for n in range(20)])
            claimed = await asyncio.gather(*[tasks.claim() for _ in range(25)])
            taken = [task for task in claimed if task is not None]
            assert len({task.id for task in taken}) == len(taken) == 20
            await asyncio.gather(*[tasks.close(task, "done") for task in taken[:19]])
            [left] = await hf.tasks.list()
            assert left.id == taken[19].id
            assert (await tasks.update(left, note="slow")).note == "slow"
            assert (await tasks.heartbeat(left)).suspect is False
            assert (await tasks.release(left)).status == "open"
            assert (await tasks.block(left.id)).status == "blocked"
            assert (await tasks.unblock(left.id)).status == "open"
            assert (await tasks.close(left.id, "done")).status == "completed"
            assert (await tasks.reopen(left.id)).status == "open"
            assert len(await tasks.list()) == 20

    asyncio.run(main())


# --- answers that were lost -----------------------------------------------------------------------


class Unsure:
    """A store on which the answer of a certain commit is lost."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.plan: dict[int, Any] = {}
        self.backend = FaultyBackend(MemoryBackend(clock=clock), self.plan)
        self.log = Log(self.backend, clock=clock, actor="ada")
        self.tasks = self.tasks_of("w")

    def tasks_of(self, worker: str) -> Any:
        hf = store_of_log(self.log, url="memory:", worker=worker)
        hf._kernel.leases.register()
        return hf.team("t").tasks

    def lose(self, when: str, **claim: Any) -> None:
        """Claims without getting an answer: the claim was not written, or was."""
        self.plan[self.backend.commits + 1] = when
        with pytest.raises(UnavailableError) as caught:
            self.tasks.claim(**claim)
        assert not caught.value.outcome_known


def held_by(task: Task | None) -> tuple[str, str | None]:
    assert task is not None
    return task.id, task.owner


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "how", [{}, {"id": "t1"}, {"tag": "ui"}, {"owner": "ana"}, {"owner": "ana", "lasts": "1h"}]
)
def test_a_claim_whose_answer_was_lost_is_found_by_the_next_call(when: str, how: Any) -> None:
    """BOOT-79: else the task lies, until its worker dies, with one that does not know of it."""
    unsure = Unsure()
    tasks = unsure.tasks
    tasks.add("one", priority=1, tags=["ui"])
    tasks.add("two", tags=["ui"])
    unsure.lose(when, **how)
    owner = how.get("owner", "w")
    again = tasks.claim(**how)
    assert held_by(again) == ("t1", owner)
    if "id" in how:
        with pytest.raises(LeaseLostError):  # it was told once: now it is held
            tasks.claim(**how)
    else:
        assert held_by(tasks.claim(**how)) == ("t2", owner)
    assert again is not None
    assert tasks.close(again, "done").status == "completed"


def test_a_lost_claim_is_not_the_answer_to_another_question() -> None:
    unsure = Unsure()
    tasks = unsure.tasks
    tasks.add("one", priority=1, tags=["ui"])
    tasks.add("two")
    tasks.add("three")
    tasks.add("four")
    unsure.lose("after", tag="ui")
    assert held_by(tasks.claim("t2")) == ("t2", "w")
    assert held_by(tasks.claim(owner="ana")) == ("t3", "ana")
    assert held_by(tasks.claim(owner="w", lasts="1h")) == ("t4", "w")
    assert held_by(tasks.claim()) == ("t1", "w")
    assert tasks.claim() is None


def test_a_lost_claim_that_was_given_back_meanwhile_is_forgotten() -> None:
    unsure = Unsure()
    tasks = unsure.tasks
    tasks.add("one")
    unsure.lose("after")
    tasks.release("t1")
    first = tasks.claim()
    assert held_by(first) == ("t1", "w")
    assert tasks.claim() is None  # what is held was told: it is told to nobody else


def test_a_claim_whose_answer_is_lost_again_and_again_is_told_once() -> None:
    unsure = Unsure()
    tasks = unsure.tasks
    tasks.add("one")
    for when in ("before", "before", "after"):
        unsure.lose(when)
    assert held_by(tasks.claim()) == ("t1", "w")
    assert tasks.claim() is None


def test_a_lost_claim_that_was_not_written_is_not_that_of_another_worker() -> None:
    unsure = Unsure()
    tasks, others = unsure.tasks, unsure.tasks_of("v")
    tasks.add("one", priority=1)
    tasks.add("two")
    unsure.lose("before")
    assert held_by(others.claim()) == ("t1", "v")
    assert held_by(tasks.claim()) == ("t2", "w")
    assert tasks.claim() is None


def test_an_owner_is_found_by_the_name_of_its_actor(durable: str, tmp_path: Path):
    """Python and the command line name an owner alike; two workers of one actor are two."""
    url = new_url(durable, tmp_path)
    with holdfast.open(url, actor="ana") as ana, holdfast.open(url, actor="ana") as other:
        team = ana.team("support")
        team.tasks.add("write", id="t1")
        team.tasks.add("read", id="t2")
        team.tasks.add("think", id="t3")
        mine = team.tasks.claim("t1")
        assert mine.owner == ana.workers.own
        assert ana.workers.own.startswith("ana-")
        assert other.workers.own != ana.workers.own
        other.team("support").tasks.claim("t2")
        assert [task.id for task in team.tasks.list(owner="ana")] == ["t1", "t2"]
        assert [task.id for task in team.tasks.list(owner=ana.workers.own)] == ["t1"]
        assert [*team.tasks.list(owner="an")] == []


def test_an_actor_whose_name_is_not_plain_is_left_out_of_its_workers_id():
    with holdfast.open("memory:", actor="ana b.") as hf:
        assert len(hf.workers.own) == 8

"""Tasks among real processes: claimed once, none lost, fenced after a death or a pause.

Every child is a process of its own; those that die, die by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import LeaseLostError, Store, Task
from holdfast.record.task_events import project
from tests.crash.children import Child, tell
from tests.record.kills import PATIENCE_S, await_deaths, kill_everywhere, open_dying, open_watched
from tests.record.stores import new_url

AGENTS = 5
UPDATES = 50
TASKS = 50


def finish(children: list[Child]) -> None:
    for child in children:
        child.end()
        assert child.trouble is None, child.trouble


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.02)


def statuses(tasks: list[Task]) -> Counter[str]:
    return Counter(task.status for task in tasks)


def test_boot_80_five_agents_of_fifty_updates_each_lose_none(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        for agent in range(AGENTS):
            hf.team("t").tasks.add(f"of agent {agent}", id=f"a{agent}")

    def work(agent: int) -> Callable[[int, int], None]:
        def live(pipe: int, _stop: int) -> None:
            with holdfast.open(url) as hf:
                tasks = hf.team("t").tasks
                for n in range(UPDATES):
                    # Half of them to a task of its own, half to the one that all share.
                    id = f"a{agent}" if n % 2 else "a0"
                    tasks.update(id, note=f"{agent}.{n}", priority=n)
                tell(pipe, done=True)

        return live

    finish([Child(work(agent)) for agent in range(AGENTS)])
    with holdfast.open(url) as hf:
        team = hf.team("t")
        notes = [event.data["note"] for event in team.history(type="task.changed")]
        assert len(notes) == len(set(notes)) == AGENTS * UPDATES
        for agent in range(AGENTS):
            mine = [note for note in notes if note.startswith(f"{agent}.")]
            assert mine == [f"{agent}.{n}" for n in range(UPDATES)]
        assert [mark.priority for mark in hf.workers.marks("task")] == [
            task.priority for task in team.tasks.list()
        ]
        assert hf.check().ok


def test_two_processes_claim_each_of_fifty_tasks_once(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        for n in range(TASKS):
            hf.team("t").tasks.add(f"task {n}", priority=n % 3)

    def work(pipe: int, stop: int) -> None:
        with holdfast.open(url) as hf:
            tasks = hf.team("t").tasks
            tell(pipe, ready=True)
            os.read(stop, 1)
            claimed: list[str] = []
            while (task := tasks.claim()) is not None:
                claimed.append(task.id)
                tasks.close(task, "done")
            tell(pipe, claimed=claimed)

    children = [Child(work) for _ in range(2)]
    for child in children:
        child.hear_until(lambda child=child: bool(child.lines))
    for child in children:
        child.tell_to_stop()
    finish(children)
    claimed = [id for child in children for id in child.lines[-1]["claimed"]]
    assert len(claimed) == len(set(claimed)) == TASKS
    with holdfast.open(url) as hf:
        assert statuses(hf.team("t").tasks.list()) == {"completed": TASKS}
        assert len(list(hf.team("t").history(type="task.claimed"))) == TASKS
        assert hf.workers.marks("task") == hf.workers.marks("claim") == []


def test_a_cycle_is_refused_also_when_two_processes_close_it(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        for id in ("a", "b"):
            hf.team("t").tasks.add(id, id=id)

    def work(id: str, other: str) -> Callable[[int, int], None]:
        def live(pipe: int, stop: int) -> None:
            with holdfast.open(url) as hf:
                tasks = hf.team("t").tasks
                tasks.list()
                tell(pipe, ready=True)
                os.read(stop, 1)
                try:
                    tasks.update(id, depends_on=[other])
                except holdfast.UsageError as refused:
                    tell(pipe, said=str(refused))
                else:
                    tell(pipe, said="")

        return live

    children = [Child(work("a", "b")), Child(work("b", "a"))]
    for child in children:
        child.hear_until(lambda child=child: bool(child.lines))
    for child in children:
        child.tell_to_stop()
    finish(children)
    said = sorted(child.lines[-1]["said"] for child in children)
    assert said[0] == ""
    assert "would wait for itself" in said[1]


# --- silent owners -------------------------------------------------------------------------------


def hold(url: str) -> Callable[[int, int], None]:
    """A worker that claims the task, and later tries whatever a late owner might try."""

    def live(pipe: int, stop: int) -> None:
        store = open_watched(url)
        team = store.team("t")
        task = team.tasks.claim("t1")
        assert task is not None
        tell(pipe, worker=store.workers.own, claim=task.claim)
        os.read(stop, 1)
        refused: list[str] = []
        for late in (
            lambda: team.tasks.close(task, "late"),
            lambda: team.tasks.close("t1", "late"),
            lambda: team.tasks.release(task),
            lambda: team.tasks.block("t1"),
            lambda: team.tasks.heartbeat(task),
            lambda: write_under(store, task),
        ):
            try:
                late()
            except LeaseLostError as lost:
                refused.append(str(lost))
        tell(pipe, refused=refused)

    return live


def write_under(store: Store, task: Task) -> None:
    with store.commit(lease=task.lease) as tx:
        tx.scope(store.team("t")).set("result", "late")


def test_guarantee_4_a_stopped_owner_is_suspect_and_fenced_when_it_wakes(
    durable: str, tmp_path: Path
) -> None:
    """BOOT-70: silent beyond its interval. It was only stopped, and wakes up too late."""
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        hf.team("t").tasks.add("one")
    owner = Child(hold(url))
    owner.hear_until(lambda: bool(owner.lines))
    worker = owner.lines[0]["worker"]
    try:
        with holdfast.open(url) as hf:
            tasks = hf.team("t").tasks
            before = tasks.get("t1")
            assert (before.owner, before.suspect) == (worker, False)
            assert before.heartbeat is not None
            with pytest.raises(LeaseLostError):
                tasks.claim("t1")
            assert tasks.claim() is None
            assert hf.stale() == []
            os.kill(owner.pid, signal.SIGSTOP)
            until(lambda: tasks.get("t1").suspect)
            [found] = hf.stale()
            assert (found.kind, found.id, found.why) == ("task", "t1", "owner silent")
            assert [task.id for task in hf.tasks.list(suspect=True)] == ["t1"]
            mine = tasks.claim()
            assert mine is not None
            assert (mine.owner, mine.suspect) == (hf.workers.own, False)
            assert mine.claim > owner.lines[0]["claim"]
            with hf.commit(lease=mine.lease) as tx:
                tx.scope(hf.team("t")).set("result", "mine")
            os.kill(owner.pid, signal.SIGCONT)
            owner.tell_to_stop()
            finish([owner])
            assert len(owner.lines[-1]["refused"]) == 6, owner.lines[-1]
            assert tasks.close(mine, "done").outcome == "done"
            assert hf.team("t").get("result") == "mine"
            assert len(list(hf.team("t").history(type="task.closed"))) == 1
            assert hf.check().ok
    finally:
        owner.kill()


def test_an_owner_that_was_not_replaced_continues(tmp_path: Path) -> None:
    """It was silent, so its claim is suspect; it lives, and claims it again."""
    url = new_url("sqlite", tmp_path)
    with holdfast.open(url) as hf:
        hf.team("t").tasks.add("one")

    def live(pipe: int, stop: int) -> None:
        store = open_watched(url)
        tasks = store.team("t").tasks
        first = tasks.claim("t1")
        assert first is not None
        tell(pipe, claim=first.claim)
        os.read(stop, 1)
        again = tasks.claim("t1")
        assert again is not None
        with store.commit(lease=again.lease) as tx:
            tx.scope(store.team("t")).set("result", "mine")
        tasks.close(again, "done")
        tell(pipe, again=again.claim)

    owner = Child(live)
    try:
        owner.hear_until(lambda: bool(owner.lines))
        with holdfast.open(url) as hf:
            os.kill(owner.pid, signal.SIGSTOP)
            until(lambda: hf.team("t").tasks.get("t1").suspect)
        os.kill(owner.pid, signal.SIGCONT)
        with holdfast.open(url) as hf:
            until(lambda: all(worker.alive for worker in hf.workers.list()))
        owner.tell_to_stop()
        finish([owner])
        assert owner.lines[-1]["again"] > owner.lines[0]["claim"]
        with holdfast.open(url) as hf:
            assert hf.team("t").tasks.get("t1").outcome == "done"
    finally:
        owner.kill()


def test_boot_71_the_task_of_a_killed_owner_is_found_and_taken_over(
    durable: str, tmp_path: Path
) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        hf.team("t").tasks.add("one", priority=3)
        hf.team("t").tasks.add("two")
    owner = Child(hold(url))
    owner.hear_until(lambda: bool(owner.lines))
    owner.kill()
    with holdfast.open(url) as hf:
        tasks = hf.team("t").tasks
        if durable in ("redis", "postgresql"):
            until(lambda: tasks.get("t1").suspect)
        # On one host the death is known at once, by the kernel.
        [task] = tasks.list(suspect=True)
        assert (task.owner, task.status) == (owner.lines[0]["worker"], "in_progress")
        assert [found.id for found in hf.stale()] == ["t1"]
        taken = tasks.claim()
        assert taken is not None
        assert (taken.id, taken.owner) == ("t1", hf.workers.own)
        assert [state.owner for state in taken.history] == [None, task.owner, hf.workers.own]
        assert hf.stale() == []


# --- killed between every two commits ------------------------------------------------------------


def work(url: str) -> None:
    """Every operation on tasks, one after the other."""
    store = open_dying(url)
    team = store.team("t")
    tasks = team.tasks
    tasks.add("one", id="one", key="k1", tags=["x"])
    tasks.add("two", id="two", depends_on=["one"], priority=4)
    team.checkpoint("planned")
    tasks.update("one", note="begun", priority=2)
    task = tasks.claim()
    assert task is not None
    tasks.release(task)
    tasks.block("one", why="no key")
    tasks.unblock("one")
    tasks.claim("one", owner="ana", lasts="1h")
    tasks.heartbeat("one", owner="ana", lasts="2h")
    tasks.close("one", "done", owner="ana")
    tasks.claim("two")
    tasks.close("two", "no use", status="cancelled")
    tasks.reopen("two")
    team.set("stage", "second")
    team.restore("planned")
    team.close(keep=True)


def test_every_operation_killed_anywhere_happens_fully_or_not_at_all(
    durable: str, tmp_path: Path
) -> None:
    """Marks agree with the table, the table with the events, and the next worker can go on."""
    for kill in kill_everywhere(work, lambda: new_url(durable, tmp_path), in_turns=True):
        assert kill.commits >= 17
        with holdfast.open(kill.url) as hf:
            team = hf.team("t")
            found = {task.id: task for task in team.tasks.list()}
            assert project(team.history()).keys() == found.keys(), kill
            open_ids = {id for id, task in found.items() if not task.is_closed}
            assert {mark.key.partition(":")[2] for mark in hf.workers.marks("task")} == open_ids, (
                kill
            )
            priorities = {
                mark.key.partition(":")[2]: mark.priority for mark in hf.workers.marks("task")
            }
            assert priorities == {id: found[id].priority for id in open_ids}, kill
            claimed = {id for id, task in found.items() if task.status == "in_progress"}
            assert {mark.key.partition(":")[2] for mark in hf.workers.marks("claim")} == claimed, (
                kill
            )
            if not team.life.is_closed:
                go_on(hf, found)
            assert hf.check().ok, kill


def go_on(hf: Store, found: dict[str, Task]) -> None:
    """The same key adds no second task, and every task can be closed."""
    tasks = hf.team("t").tasks
    if "one" in found:
        assert tasks.add("one", id="one", key="k1").id == "one"
    if any(task.worker for task in found.values()):
        await_deaths(hf)
    for id in ("one", "two"):
        if id in found and not found[id].is_closed:
            known = tasks.get(id)
            if known.status == "blocked":
                known = tasks.unblock(id)
            if known.until is None:
                taken = tasks.claim(id)
                assert taken is not None
                tasks.close(taken, "done")
            else:
                tasks.close(id, "done", owner="ana")
    assert all(task.is_closed for task in tasks.list())
    assert hf.workers.marks("task") == hf.workers.marks("claim") == []

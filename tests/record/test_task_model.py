"""The task projector against a model that knows nothing of events (BOOT-79, hypothesis)."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

import holdfast
from holdfast import ConflictError, ExistsError, LeaseLostError, NotFoundError, Task, UsageError
from holdfast.record.task_events import TaskTable, project
from holdfast.scope import Scope

NAMES = ["a", "b", "c", "d"]
name = st.sampled_from(NAMES)
REFUSED = (ConflictError, ExistsError, LeaseLostError, NotFoundError, UsageError)

Row = dict[str, Any]


class Tasks(RuleBasedStateMachine):
    """Every operation, in any order; the model is a dict of rows and says what must be refused."""

    def __init__(self) -> None:
        super().__init__()
        self.store = holdfast.open("memory:")
        self.scope: Scope = self.store.workflow("w0")
        self.rows: dict[str, Row] = {}
        self.past: list[tuple[int, dict[str, Row]]] = []
        self.forks = 0

    def teardown(self) -> None:
        self.store.close()

    def expect(self, is_fine: bool, call: Any) -> Any:
        try:
            result = call()
        except REFUSED:
            assert not is_fine, "refused what the model allows"
            return None
        assert is_fine, "allowed what the model refuses"
        return result

    def reaches(self, start: list[str], goal: str) -> bool:
        seen: set[str] = set()
        waiting = list(start)
        while waiting:
            one = waiting.pop()
            if one == goal:
                return True
            if one not in seen:
                seen.add(one)
                waiting += self.rows[one]["needs"] if one in self.rows else []
        return False

    def is_ready(self, id: str) -> bool:
        rows = self.rows
        closed = ("completed", "cancelled")
        return all(rows[need]["status"] in closed for need in rows[id]["needs"])

    def move(self, id: str, sources: tuple[str, ...], target: str, call: Any) -> None:
        row = self.rows.get(id)
        is_fine = row is not None and row["status"] in sources
        self.expect(is_fine, call)
        if row is not None and is_fine:
            row |= {"status": target, "owned": target == "in_progress"}

    @rule(id=name, priority=st.integers(-2, 2), needs=st.lists(name, max_size=2, unique=True))
    def add(self, id: str, priority: int, needs: list[str]) -> None:
        is_fine = id not in self.rows and all(need in self.rows for need in needs)
        add = self.scope.tasks.add
        self.expect(is_fine, lambda: add(id, id=id, priority=priority, depends_on=needs))
        if is_fine:
            order = len(self.rows)
            row = {"priority": priority, "needs": needs, "status": "open", "owned": False}
            self.rows[id] = {**row, "order": order}

    @rule(id=name, priority=st.integers(-2, 2), needs=st.lists(name, max_size=2, unique=True))
    def update(self, id: str, priority: int, needs: list[str]) -> None:
        row = self.rows.get(id)
        is_fine = (
            row is not None
            and row["status"] not in ("completed", "cancelled")
            and all(need in self.rows for need in needs)
            and not self.reaches(needs, id)
        )
        update = self.scope.tasks.update
        self.expect(is_fine, lambda: update(id, priority=priority, depends_on=needs))
        if row is not None and is_fine:
            row |= {"priority": priority, "needs": needs}

    @rule()
    def claim_next(self) -> None:
        ready = [
            id for id, row in self.rows.items() if row["status"] == "open" and self.is_ready(id)
        ]
        ready.sort(key=lambda id: (-self.rows[id]["priority"], self.rows[id]["order"]))
        task = self.scope.tasks.claim()
        assert (None if task is None else task.id) == (ready[0] if ready else None)
        if ready:
            self.rows[ready[0]] |= {"status": "in_progress", "owned": True}

    @rule(id=name)
    def claim(self, id: str) -> None:
        ready = id in self.rows and self.is_ready(id)
        sources = ("open",) if ready else ()
        self.move(id, sources, "in_progress", lambda: self.scope.tasks.claim(id))

    @rule(id=name)
    def release(self, id: str) -> None:
        self.move(id, ("in_progress",), "open", lambda: self.scope.tasks.release(id))

    @rule(id=name)
    def block(self, id: str) -> None:
        tasks = self.scope.tasks
        self.move(id, ("open", "in_progress"), "blocked", lambda: tasks.block(id))

    @rule(id=name)
    def unblock(self, id: str) -> None:
        self.move(id, ("blocked",), "open", lambda: self.scope.tasks.unblock(id))

    @rule(id=name, status=st.sampled_from(["completed", "cancelled"]))
    def close(self, id: str, status: Any) -> None:
        sources = ("open", "in_progress", "blocked")
        close = self.scope.tasks.close
        self.move(id, sources, status, lambda: close(id, "x", status=status))

    @rule(id=name)
    def reopen(self, id: str) -> None:
        sources = ("completed", "cancelled")
        self.move(id, sources, "open", lambda: self.scope.tasks.reopen(id))

    @rule()
    def remember(self) -> None:
        if self.scope.revision:
            rows = {id: dict(row) for id, row in self.rows.items()}
            self.past.append((self.scope.revision, rows))

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        """What was in progress stays so only if it was never anything else in between."""
        if not self.past:
            return
        revision, rows = data.draw(st.sampled_from(self.past))
        claims = {task.id: task.claim for task in self.scope.tasks.list(at=revision)}
        now = {task.id: task for task in self.scope.tasks.list(status="in_progress")}
        self.scope.restore(revision)
        self.rows = {id: dict(row) for id, row in rows.items()}
        for id, row in self.rows.items():
            stands = id in now and now[id].claim == claims[id]
            if row["status"] == "in_progress" and not stands:
                row |= {"status": "open", "owned": False}

    @rule()
    def fork(self) -> None:
        """Continues in the fork, where no claim counts."""
        if not self.scope.revision or self.forks == 3:
            return
        self.forks += 1
        self.scope = self.scope.fork(f"w{self.forks}")
        self.past = []
        for row in self.rows.values():
            if row["status"] == "in_progress":
                row |= {"status": "open", "owned": False}

    @invariant()
    def the_table_is_the_model(self) -> None:
        tasks = self.scope.tasks.list()
        found = {
            task.id: {
                "priority": task.priority,
                "needs": list(task.dependencies),
                "status": task.status,
                "owned": task.worker == self.store.workers.own,
            }
            for task in tasks
        }
        model = {
            id: {key: row[key] for key in ("priority", "needs", "status", "owned")}
            for id, row in self.rows.items()
        }
        assert found == model

    @invariant()
    def every_way_to_fold_it_is_the_same(self) -> None:
        mine = {task.id: bare(task) for task in self.scope.tasks.list()}
        assert project(self.scope.history()) == mine
        fresh = TaskTable(self.store._log, self.scope.name)
        fresh.refresh()
        assert fresh.tasks == mine
        changed = {
            task.id for task in self.store.tasks.list() if task.scope == self.scope.name
        } | fresh.inherited
        closed = {id for id, task in mine.items() if task.is_closed}
        assert changed - closed == mine.keys() - closed


def bare(task: Task) -> Task:
    return replace(task, scope="", suspect=False, heartbeat=None, waits_for=())


TestTasks = Tasks.TestCase
TestTasks.settings = settings(max_examples=60, stateful_step_count=30)

"""The tasks that can be begun, kept in order as events arrive.

So listing a few does not sort all tasks. A task can be begun while it is open and everything that
it depends on is closed. The order is that of every list of tasks: highest priority first, then
oldest. The cost of an event depends on the tasks that it changes and those that wait for them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.record.task_events import Task

Rank = tuple[int, int]


def rank(task: Task) -> Rank:
    """Returns the sort key of tasks: highest priority first, then oldest."""
    return -task.priority, task.order


class ReadyTasks:
    """The tasks of one table that can be begun, and those that are in progress."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self.in_progress: set[str] = set()
        self._tasks = tasks
        self._order: list[tuple[Rank, str]] = []
        self._ranks: dict[str, Rank] = {}
        self._needs: dict[str, tuple[str, ...]] = {}
        self._needed_by: dict[str, set[str]] = {}
        self.update(tasks)

    def update(self, changed: Iterable[str]) -> None:
        """Updates the order after the tasks with these ids have changed."""
        touched: set[str] = set()
        for id in changed:
            touched.add(id)
            touched.update(self._needed_by.get(id, ()))
            self._link(id)
        for id in touched:
            self._place(id)

    def _link(self, id: str) -> None:
        task = self._tasks.get(id)
        needs = () if task is None else task.dependencies
        before = self._needs.get(id, ())
        if needs == before:
            return
        for one in before:
            self._needed_by[one].discard(id)
        for one in needs:
            self._needed_by.setdefault(one, set()).add(id)
        self._needs[id] = needs

    def _place(self, id: str) -> None:
        task = self._tasks.get(id)
        status = None if task is None else task.status
        (self.in_progress.add if status == "in_progress" else self.in_progress.discard)(id)
        wanted = None
        if task is not None and status == "open" and not self._is_waiting(task):
            wanted = rank(task)
        before = self._ranks.get(id)
        if wanted == before:
            return
        if before is not None:
            del self._order[bisect_left(self._order, (before, id))]
            del self._ranks[id]
        if wanted is not None:
            insort(self._order, (wanted, id))
            self._ranks[id] = wanted

    def _is_waiting(self, task: Task) -> bool:
        return any(
            (found := self._tasks.get(one)) is not None and not found.is_closed
            for one in task.dependencies
        )

    def __iter__(self) -> Iterator[Task]:
        """Yields the tasks that can be begun, in order."""
        return (self._tasks[id] for _, id in self._order)

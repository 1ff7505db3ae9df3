"""Who owns tasks, and whether they live: what only the moment of reading can tell."""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from holdfast.event import to_datetime
from holdfast.record.book import Book
from holdfast.record.task import Task
from holdfast.wanted import Lease


class Eyes:
    """What one moment tells of the owners of tasks; each worker is asked about once."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._leases: dict[str, Lease | None] = {}
        self._heartbeats: dict[str, datetime] | None = None

    def is_held(self, task: Task) -> bool:
        """Says whether the claim of a task in progress stands."""
        if task.until is not None:
            return to_datetime(self._book.log.clock.now_us()) < task.until
        assert task.worker is not None, "BUG: in progress without an owner"
        if task.worker not in self._leases:
            name = f"worker/{task.worker}"
            self._leases[task.worker] = self._book.log.backend.leases.holder(name)
        lease = self._leases[task.worker]
        # A worker that was silent too long lives on in a new epoch: what it had claimed in the old
        # one it may have lost already, and has to claim again.
        return lease is not None and lease.epoch == task.epoch

    def look(self, scope: str, tasks: dict[str, Task], task: Task) -> Task:
        """Returns one of a scope's tasks with what only this moment can tell."""
        is_claimed = task.status == "in_progress"
        return replace(
            task,
            scope=scope,
            suspect=is_claimed and not self.is_held(task),
            heartbeat=self._heartbeat(task) if is_claimed else None,
            waits_for=waits_for(tasks, task),
        )

    def _heartbeat(self, task: Task) -> datetime | None:
        if task.worker is None:
            return task.held_at
        if self._heartbeats is None:
            workers = self._book.heart.workers()
            self._heartbeats = {worker.id: worker.last_heartbeat for worker in workers}
        return self._heartbeats.get(task.worker)


def waits_for(tasks: dict[str, Task], task: Task) -> tuple[str, ...]:
    """Returns the dependencies of a task that are not closed; none once it is closed itself."""
    if task.is_closed:
        return ()
    return tuple(id for id in task.dependencies if not tasks[id].is_closed)

"""The tasks of all scopes: `hf.tasks`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.kernel import Kernel
from holdfast.core.page import PAGE_SIZE, Page
from holdfast.record.context import RecordContext
from holdfast.record.task_events import Task
from holdfast.record.tasks import Tasks, open_tasks
from holdfast.renamed import NotCalled

__all__ = ["Task", "Tasks", "TasksRoom"]


class TasksRoom(NotCalled):
    """What is to be done in any scope; `scope.tasks` has those of one."""

    def __init__(self, kernel: Kernel) -> None:
        self._context = kernel.part(RecordContext)

    def __repr__(self) -> str:
        return "<TasksRoom>"

    def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        owner: str | None = None,
        epic: str | None = None,
        tag: str | None = None,
        suspect: bool | None = None,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[Task]:
        """Returns the tasks of all scopes that are not closed, highest priority first, then oldest.

        They are found by their marks; `suspect=True` are those whose owner is silent. The cursor
        of a page, given as `after`, leads to the next one.
        """
        return open_tasks(
            self._context,
            status=status,
            owner=owner,
            epic=epic,
            tag=tag,
            suspect=suspect,
            after=after,
            limit=limit,
        )

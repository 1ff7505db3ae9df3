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
    """The tasks of all scopes; `scope.tasks` has those of one scope, and the methods to write."""

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
        """Returns a page of the tasks of all scopes that are not closed.

        Tasks of the highest priority come first, and of those the oldest. The arguments filter by
        status, owner, epic and tag; `suspect=True` selects tasks whose owner is silent. Pass the
        cursor of a page as `after` to get the next page. Tasks are found by their marks, without
        reading any stream.
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

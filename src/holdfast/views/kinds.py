"""The views that there are, by name: what a configuration and the command line can ask for.

A view is a pair, a form (how items look in a file) and a source (where they are in the log), with
the file that it is written to. `register_view` adds a kind of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.arguments import check_call
from holdfast.errors import NotFoundError, show_value
from holdfast.names import check_name
from holdfast.record.task_events import check_status
from holdfast.scope import Scope
from holdfast.views.item_view import ItemView
from holdfast.views.markdown import MarkdownList
from holdfast.views.sources import ListSource, TaskSource

MakeView = Callable[..., ItemView]


def task_list(
    scope: Scope,
    file: str = "TASKS.md",
    *,
    title: str = "Tasks",
    statuses: str | Sequence[str] | None = None,
) -> ItemView:
    """Returns the tasks of a scope as a markdown list; those of some statuses, if given.

    A task that has no such status any more loses its line, unless something stands below it.
    """
    return ItemView(file, TaskSource(scope, check_status(statuses)), MarkdownList(title))


def goal_list(scope: Scope, file: str = "GOALS.md", *, title: str = "Goals") -> ItemView:
    """Returns the goals of a scope, `state["goals"]`, as a markdown list."""
    return ItemView(file, ListSource(scope, "goals", "g"), MarkdownList(title))


def progress_list(scope: Scope, file: str = "PROGRESS.md", *, title: str = "Progress") -> ItemView:
    """Returns what was done in a scope, `state["progress"]`, as a markdown list."""
    form = MarkdownList(title, has_box=False, heading=title)
    return ItemView(file, ListSource(scope, "progress", "p"), form)


def todo_list(scope: Scope, file: str = "TODO.md", *, title: str = "To do") -> ItemView:
    """Returns the next steps of a scope, `state["todo"]`, as a markdown list."""
    return ItemView(file, ListSource(scope, "todo", "n"), MarkdownList(title))


def learning_list(scope: Scope, file: str = "AGENT.md", *, title: str = "Learnings") -> ItemView:
    """Returns what was learnt in a scope, `state["learnings"]`, below one heading of a file."""
    form = MarkdownList(title, has_box=False, heading=title)
    return ItemView(file, ListSource(scope, "learnings", "l"), form)


_KINDS: dict[str, MakeView] = {
    "tasks": task_list,
    "goals": goal_list,
    "progress": progress_list,
    "todo": todo_list,
    "learnings": learning_list,
}


def register_view(name: str, make: MakeView) -> None:
    """Adds a kind of view: `make(scope, file, **options)` returns one."""
    check_call(make, "what makes a view")
    _KINDS[check_name(name, "the name of a view")] = make


def make_view(kind: str, scope: Scope, file: str | None = None, **options: Any) -> ItemView:
    """Returns a view of a kind; without a file, in the one that it has by itself."""
    make = _KINDS.get(kind)
    if make is None:
        raise NotFoundError(
            f"there is no view {show_value(kind)}", hint=f"there are {', '.join(sorted(_KINDS))}"
        )
    return make(scope, **options) if file is None else make(scope, file, **options)

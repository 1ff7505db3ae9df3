"""The kinds of views by name, for configuration files and the command line.

A view has a form (how items look in a file), a source (where they are in the log) and the file that
it is written to. `register_view` adds a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from holdfast.core.arguments import check_call
from holdfast.errors import NotFoundError, show_value
from holdfast.names import check_name
from holdfast.record.task_events import check_status
from holdfast.scope import Scope
from holdfast.views.directory import FileView
from holdfast.views.item_view import ItemView
from holdfast.views.mapping import JsonMapping, YamlMapping
from holdfast.views.markdown import MarkdownList
from holdfast.views.rows import CatchRows, EventRows, RowView, TsvRows, YamlRows
from holdfast.views.sources import (
    DecisionSource,
    IndexSource,
    ListSource,
    StateSource,
    TaskSource,
)
from holdfast.views.yaml_list import YamlList

MakeView = Callable[..., FileView]


def task_list(
    scope: Scope,
    file: str = "TASKS.md",
    *,
    title: str = "Tasks",
    statuses: str | Sequence[str] | None = None,
) -> ItemView:
    """Returns a view of a scope's tasks as a markdown list, or only of those with some statuses.

    A task that no longer has such a status loses its line, unless something else belongs to it.
    """
    return ItemView(file, TaskSource(scope, check_status(statuses)), MarkdownList(title))


def goal_list(scope: Scope, file: str = "GOALS.md", *, title: str = "Goals") -> ItemView:
    """Returns a view of a scope's goals, `state["goals"]`, as a markdown list."""
    return ItemView(file, ListSource(scope, "goals", "g"), MarkdownList(title))


def progress_list(scope: Scope, file: str = "PROGRESS.md", *, title: str = "Progress") -> ItemView:
    """Returns a view of a scope's progress, `state["progress"]`, as a markdown list."""
    form = MarkdownList(title, has_box=False, heading=title)
    return ItemView(file, ListSource(scope, "progress", "p"), form)


def todo_list(scope: Scope, file: str = "TODO.md", *, title: str = "To do") -> ItemView:
    """Returns a view of a scope's next steps, `state["todo"]`, as a markdown list."""
    return ItemView(file, ListSource(scope, "todo", "n"), MarkdownList(title))


def learning_list(scope: Scope, file: str = "AGENT.md", *, title: str = "Learnings") -> ItemView:
    """Returns a view of a scope's learnings, `state["learnings"]`, below one heading of a file."""
    form = MarkdownList(title, has_box=False, heading=title)
    return ItemView(file, ListSource(scope, "learnings", "l"), form)


def decision_list(
    scope: Scope, file: str = "DECISIONS.md", *, title: str = "Decisions"
) -> ItemView:
    """Returns a view of a scope's decisions as a markdown list; they can be added, not changed."""
    return ItemView(file, DecisionSource(scope), MarkdownList(title))


def backlog(scope: Scope, file: str = "backlog.yaml", *, root: str = "backlog") -> ItemView:
    """Returns a view of a scope's tasks as a list in YAML."""
    return ItemView(file, TaskSource(scope), YamlList(root))


def state_file(
    scope: Scope,
    file: str | None = None,
    *,
    at: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> ItemView:
    """Returns a view of a scope's newest state, as YAML or JSON by the suffix of the file.

    With `at`, only the part below that key. Keys that only `defaults` has are shown, too.
    """
    name = f"{quote(scope.name, safe='')}.json" if file is None else file
    form = YamlMapping() if name.endswith((".yaml", ".yml")) else JsonMapping()
    return ItemView(name, StateSource(scope, at, dict(defaults or {})), form)


KEEL = {
    "head": None,
    "decision": 0,
    "bearing": {"work": None, "last_commit": None, "notes": None},
    "officer": None,
    "true_north": None,
    "gate": None,
    "tests": {"passed": 0, "failed": 0},
    "weave": None,
    "register": None,
    "tempo": None,
}
"""The defaults of a `.keel-state`."""


def keel_state(scope: Scope, file: str = ".keel-state", *, at: str = "keel") -> ItemView:
    """Returns a view of `state["keel"]` of a scope as JSON, with defaults for unset keys."""
    return state_file(scope, file, at=at, defaults=KEEL)


def event_rows(scope: Scope, file: str = "events.yaml") -> RowView:
    """Returns a view of a scope's own events as a YAML file that only grows."""
    return RowView(file, EventRows(scope), YamlRows(EventRows.columns))


def catch_rows(scope: Scope, file: str = "catch-log.tsv") -> RowView:
    """Returns a view of a scope's catches as a table that only grows."""
    return RowView(file, CatchRows(scope), TsvRows(CatchRows.columns))


def decision_index(
    scope: Scope, file: str = "session-decisions-index.yaml", *, recent: int = 20
) -> ItemView:
    """Returns a view of a scope's standing orders and newest decisions, as YAML."""
    return ItemView(file, IndexSource(scope, recent), YamlMapping())


_KINDS: dict[str, MakeView] = {
    "decisions": decision_list,
    "backlog": backlog,
    "state": state_file,
    "keel": keel_state,
    "events": event_rows,
    "catches": catch_rows,
    "decision-index": decision_index,
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


def make_view(kind: str, scope: Scope, file: str | None = None, **options: Any) -> FileView:
    """Returns a view of a kind, in its default file if none is given."""
    make = _KINDS.get(kind)
    if make is None:
        raise NotFoundError(
            f"there is no view {show_value(kind)}", hint=f"there are {', '.join(sorted(_KINDS))}"
        )
    return make(scope, **options) if file is None else make(scope, file, **options)

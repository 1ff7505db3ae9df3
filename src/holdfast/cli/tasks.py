"""Verbs for tasks: task add, list, claim, update, close.

A command ends, and so does its worker. So on the command line a task is claimed in somebody's name
and for a length of time, and `task update --lasts` is the heartbeat.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from holdfast.cli.completion import ScopeName
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Words,
    open_reading,
    open_writing,
    print_more,
)
from holdfast.cli.parsing import find_scope, parse_priority
from holdfast.cli.printing import print_facts, print_json, print_note, print_table
from holdfast.core.kernel import kernel_of
from holdfast.errors import UsageError
from holdfast.record.task_events import Task
from holdfast.record.tasks import Tasks
from holdfast.render.record import one_task_document, tasks_document

COLUMNS = ("scope", "id", "status", "priority", "owner", "title")
UNCLOSED = ("open", "in_progress", "blocked")


def add(
    scope: ScopeName,
    title: str,
    /,
    *,
    priority: str = "normal",
    epic: str | None = None,
    tag: Words = None,
    depends_on: Words = None,
    id: str | None = None,
    key: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Add a task to a scope; prints its id.

    Parameters
    ----------
    scope
        The scope, such as team/red; created if it does not exist.
    title
        What to do, in a sentence.
    priority
        A whole number, higher first, or low, normal or high.
    epic
        The larger piece of work that it belongs to.
    tag
        A tag to find it by; may be given again.
    depends_on
        The id of a task that must be closed first; may be given again.
    id
        Its id in the scope. Without it the next of t1, t2 and so on.
    key
        An idempotency key: the same key adds once.
    """
    with open_writing(options) as store:
        task = find_scope(store, scope, must_exist=False).tasks.add(
            title,
            priority=parse_priority(priority),
            epic=epic,
            tags=tag or (),
            depends_on=depends_on or (),
            id=id,
            key=key,
        )
        print_task(task, options)


def list_tasks(
    scope: ScopeName | None = None,
    /,
    *,
    status: Words = None,
    owner: str | None = None,
    epic: str | None = None,
    tag: str | None = None,
    suspect: Flag = False,
    open: Flag = False,
    limit: int = 100,
    after: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """List the tasks of a scope, highest priority first; or what is open in every scope.

    Parameters
    ----------
    scope
        The scope; without it those of every scope that are not closed.
    status
        Only these: open, in_progress, blocked, completed or cancelled; may be given again.
    owner
        Only those of this owner.
    epic
        Only those of this larger piece of work.
    tag
        Only those with this tag.
    suspect
        Only those in progress whose owner is silent.
    open
        Only those that are not closed.
    limit
        How many at most.
    after
        Continue after this cursor, which the page before ended with.
    """
    fits: dict[str, Any] = {"owner": owner, "epic": epic, "tag": tag, "after": after}
    fits |= {"suspect": suspect or None, "status": status, "limit": limit}
    with open_reading(options) as store:
        if scope is None:
            found = store.tasks.list(**fits)
        else:
            fits["status"] = status or (UNCLOSED if open else None)
            found = (named := find_scope(store, scope)).tasks.list(**fits)
            scope = named.name
    if options.json:
        print_json(tasks_document(scope, found))
        return
    print_table(COLUMNS, [_row(task) for task in found]) if found else print_note("no tasks")
    asked = {"--owner": owner, "--epic": epic, "--tag": tag}
    flags = [flag for flag, is_set in (("--suspect", suspect), ("--open", open)) if is_set]
    print_more(found, [*_page_words(scope, asked, status), *flags], options, limit)


def _page_words(
    scope: str | None, asked: dict[str, str | None], status: list[str] | None
) -> list[str]:
    """Returns the words to type for the next page of this list."""
    words = ["task", "list", *([scope] if scope else [])]
    words += [word for pair in asked.items() if pair[1] is not None for word in map(str, pair)]
    return [*words, *(word for one in status or () for word in ("--status", one))]


def claim(
    scope: ScopeName,
    id: str | None = None,
    /,
    *,
    owner: str | None = None,
    lasts: str = "8h",
    epic: str | None = None,
    tag: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Claim a task; without an id the highest whose dependencies are closed.

    Parameters
    ----------
    scope
        The scope, such as team/red.
    id
        The task. Without it the next one without an owner, or whose owner is silent.
    owner
        Who claims it. Without it the actor.
    lasts
        How long the claim lasts, such as 45m or 8h; then others may claim the task.
    epic
        Only a task of this larger piece of work.
    tag
        Only a task with this tag.
    """
    with open_writing(options) as store:
        named = find_scope(store, scope)
        scope, tasks = named.name, named.tasks
        name = owner or kernel_of(store).log.actor
        task = tasks.claim(id, owner=name, lasts=lasts, epic=epic, tag=tag)
        if options.json:
            print_json(one_task_document(scope, task))
        elif task is None:
            print_note("no task can be claimed")
        else:
            print_task(task, options)


def update(
    scope: ScopeName,
    id: str,
    /,
    *,
    title: str | None = None,
    priority: str | None = None,
    epic: str | None = None,
    tag: Words = None,
    depends_on: Words = None,
    note: str | None = None,
    status: Literal["open", "blocked"] | None = None,
    why: str | None = None,
    owner: str | None = None,
    lasts: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Change a task: its fields, its status, or how long its claim lasts.

    Parameters
    ----------
    scope
        The scope, such as team/red.
    id
        The id of the task.
    title
        The new title, in a sentence.
    epic
        Another larger piece of work.
    priority
        A whole number, higher first, or low, normal or high.
    tag
        A tag; replaces those it has; may be given again.
    depends_on
        The id of a task to wait for; replaces those it has; may be given again.
    note
        A note about it.
    status
        Blocked, or open again: released, unblocked or reopened.
    why
        Why the status changes.
    owner
        Who holds it. Without it the actor.
    lasts
        Extend the claim to this long from now: a heartbeat.
    """
    fields: dict[str, Any] = {"title": title, "epic": epic, "note": note, "tags": tag}
    fields |= {"depends_on": depends_on, "priority": priority and parse_priority(priority)}
    given = {name: value for name, value in fields.items() if value is not None}
    if not given and lasts is None and status is None:
        raise UsageError("there is nothing to change", hint="holdfast task update --help")
    with open_writing(options) as store:
        tasks, name = find_scope(store, scope).tasks, owner or kernel_of(store).log.actor
        if lasts is not None:
            tasks.heartbeat(id, owner=name, lasts=lasts)
        if given:
            tasks.update(id, **given)
        if status is not None:
            set_status(tasks, id, status, name, why)
        print_task(tasks.get(id), options)


def close(
    scope: ScopeName,
    id: str,
    outcome: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    cancelled: Flag = False,
    owner: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Close a task with its outcome.

    Parameters
    ----------
    scope
        The scope, such as team/red.
    id
        The id of the task.
    outcome
        The outcome, in a sentence.
    cancelled
        Close it as cancelled: it will not be done.
    owner
        Who holds it. Without it the actor.
    """
    with open_writing(options) as store:
        name = owner or kernel_of(store).log.actor
        status = "cancelled" if cancelled else "completed"
        tasks = find_scope(store, scope).tasks
        print_task(tasks.close(id, outcome, status=status, owner=name), options)


def set_status(tasks: Tasks, id: str, status: str, owner: str, why: str | None) -> None:
    """Blocks a task, or makes it open again: releases, unblocks or reopens it."""
    now = tasks.get(id).status
    if status == "blocked":
        tasks.block(id, owner=owner, why=why)
    elif now == "in_progress":
        tasks.release(id, owner=owner, why=why)
    elif now == "blocked":
        tasks.unblock(id)
    else:
        tasks.reopen(id, why=why)


def print_task(task: Task, options: Options) -> None:
    """Prints one task."""
    if options.json:
        print_json(one_task_document(task.scope, task))
    else:
        print_facts([("id", task.id), ("status", task.status), ("title", task.title)])


def _row(task: Task) -> tuple[str, ...]:
    status = f"{task.status} (silent)" if task.suspect else task.status
    return task.scope, task.id, status, str(task.priority), task.owner or "", task.title

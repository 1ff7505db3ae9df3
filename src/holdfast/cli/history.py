"""Verbs for what happened to a scope, and for earlier moments of it.

log, diff, checkpoints, follow; checkpoint, restore, undo, fork
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from holdfast.cli.options import DEFAULTS, Flag, Options, command, open_reading, open_writing
from holdfast.cli.parsing import find_revision, find_scope, newest_revision
from holdfast.cli.printing import (
    is_terminal,
    print_json,
    print_json_line,
    print_line,
    print_note,
    print_table,
)
from holdfast.core.event import Change, Event, Position
from holdfast.core.log import Log
from holdfast.errors import UsageError
from holdfast.render.history import (
    change_document,
    checkpoint_document,
    checkpoints_document,
    diff_document,
    event_document,
    events_document,
    fork_document,
    restored_document,
)
from holdfast.render.text import change_cells, clean, show_summary, show_time
from holdfast.scope import Scope
from holdfast.store import Store

LOG_COLUMNS = ("revision", "time", "type", "actor", "what")


def log(
    scope: str | None = None,
    /,
    *,
    limit: int = 20,
    before: int | None = None,
    options: Options = DEFAULTS,
) -> None:
    """List events, newest first: of a scope, or of the whole store.

    Parameters
    ----------
    scope
        The scope, such as team/support; without it every scope.
    limit
        How many events at most.
    before
        Only events before this revision, or before this position without a scope.
    """
    if limit < 1:
        raise UsageError(f"--limit is at least 1, found {limit}")
    with open_reading(options) as store:
        if scope is None:
            events, more = store_events(store, limit, before)
        else:
            events, more = scope_events(store, find_scope(store, scope), limit, before)
        if options.json:
            print_json(events_document(scope, events, more))
            return
        show_row = terminal_row if is_terminal() else event_row
        rows = [show_row(event, with_scope=scope is None) for event in events]
    if rows:
        print_table(LOG_COLUMNS, rows)
    else:
        print_note("no events")
    if more is not None:
        words = f"log {shlex.quote(scope)}" if scope else "log"
        print_note(f"older ones: {command(f'{words} --before {more}', options.place)}")


def scope_events(
    store: Store, scope: Scope, limit: int, before: int | None
) -> tuple[list[Event], int | None]:
    """Returns the newest events of a scope, newest first, and where to go on."""
    newest = newest_revision(store, scope)
    last = newest if before is None else max(0, min(newest, before - 1))
    after = max(0, last - limit)
    events = list(scope.history(after=after, until=last))[::-1]
    return events, after + 1 if after else None


def store_events(store: Store, limit: int, before: int | None) -> tuple[list[Event], int | None]:
    """Returns the newest events of the store, newest first, whole commits, and where to go on.

    A commit may have many events or none, so the window is widened until it holds enough. A window
    may begin inside a commit, whose events then are not counted: the next page has them all.
    """
    if store._log.routes.parts():
        return mixed_events(store, limit, before)
    end = store.position if before is None else Position(min(store.position, before - 1))
    width = limit
    while True:
        start = Position(max(0, end - width))
        events: list[Event] = []
        for event in store.events(after=start):
            if event.position > end:
                break
            events.append(event)
        if start and events:
            first = events[0].position
            events = [event for event in events if event.position != first]
        if len(events) >= limit or start == 0:
            break
        width *= 4
    cut = max(0, len(events) - limit)
    while cut > 0 and events[cut - 1].position == events[cut].position:
        cut -= 1
    more = events[cut].position if cut or start else None
    return events[cut:][::-1], more


def mixed_events(store: Store, limit: int, before: int | None) -> tuple[list[Event], int | None]:
    """Returns the newest events of every backend of a mixed store, merged by their times.

    The backends have no common order, so there is no place in it to go on from.
    """
    if before is not None:
        raise UsageError(
            "--before without a scope: the backends of a mixed store have no common order",
            hint="give a scope, or a larger --limit",
        )
    events: list[Event] = []
    for part in store._log.routes.parts():
        log = Log(part, clock=store._log.clock, actor=store._log.actor)
        events += store_events(Store(log, url=store.url, worker=store.worker), limit, None)[0]
    # Sorted from oldest to newest and turned: what has one time stays in its order.
    events = sorted(reversed(events), key=lambda event: event.time)
    return events[-limit:][::-1], None


def event_row(event: Event, *, with_scope: bool) -> list[str]:
    """Returns every column, for programs; those of a scope's log begin with the revision."""
    row = [
        str(event.revision),
        show_time(event.time),
        event.type,
        event.actor,
        event.checkpoint or "",
        show_summary(event),
    ]
    return [str(event.position), event.stream, *row] if with_scope else row


def terminal_row(event: Event, *, with_scope: bool) -> list[str]:
    """Returns the columns that fit on a screen; a checkpoint's name stands before what was done."""
    name = f'"{event.checkpoint}" ' if event.checkpoint else ""
    where = f"{event.stream}@{event.revision}" if with_scope else str(event.revision)
    return [where, show_time(event.time), event.type, event.actor, name + show_summary(event)]


def diff(scope: str, a: str, b: str | None = None, /, *, options: Options = DEFAULTS) -> None:
    """Show what differs between two moments of a scope.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    a
        The moment to start from: a revision, a checkpoint's name, or a time.
    b
        The moment to compare with; without it now.
    """
    with open_reading(options) as store:
        found = find_scope(store, scope)
        since = find_revision(found, a)
        until = find_revision(found, b)
        changes = found.diff(since, until)
        if options.json:
            print_json(diff_document(scope, since, until, changes))
        else:
            print_changes(changes)
            if not changes:
                print_note(f"revisions {since} and {until} have the same state")


def print_changes(changes: Sequence[Change]) -> None:
    """Prints each change: a sign, the place, what was and what is."""
    if changes:
        print_table(("", "path", "old", "new"), [change_cells(change) for change in changes])


def checkpoints(scope: str, /, *, options: Options = DEFAULTS) -> None:
    """List the checkpoints of a scope, newest first.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    """
    with open_reading(options) as store:
        found = find_scope(store, scope).checkpoints()
    if options.json:
        print_json(checkpoints_document(scope, found))
        return
    rows = [(str(each.revision), show_time(each.time), each.name) for each in found]
    if rows:
        print_table(("revision", "time", "name"), rows)
    else:
        print_note(f"{scope} has no checkpoints")


def checkpoint(
    scope: str,
    name: str,
    /,
    *,
    expected: int | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Name the state of a scope as it is now, to come back to it.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    name
        The name; a name may be given again, and then means the newest.
    expected
        Refuse unless the scope is at this revision.
    """
    with open_writing(options) as store:
        made = find_scope(store, scope).checkpoint(name, expected=expected)
    if options.json:
        print_json(checkpoint_document(made))
    else:
        print_line(f'{clean(scope)} is at revision {made.revision}, named "{clean(name)}"')


def restore(
    scope: str,
    moment: str,
    /,
    *,
    expected: int | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Bring the state of an earlier moment back as a new revision.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    moment
        The moment: a revision, a checkpoint's name, or a time.
    expected
        Refuse unless the scope is at this revision.
    """
    with open_writing(options) as store:
        found = find_scope(store, scope)
        target = find_revision(found, moment)
        revision = found.restore(target, expected=expected)
        report_return(found, revision, target, options)


def undo(scope: str, /, *, options: Options = DEFAULTS) -> None:
    """Take back the newest change; undo again takes the undo back.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    """
    with open_writing(options) as store:
        found = find_scope(store, scope)
        revision = found.undo()
        made = next(found.history(after=revision - 1, until=revision))
        report_return(found, revision, made.data["to"], options)


def report_return(scope: Scope, revision: int, target: int, options: Options) -> None:
    """Says what a return to an earlier state changed, and how to take it back."""
    changes = scope.diff(revision - 1, revision)
    if options.json:
        print_json(restored_document(scope.name, revision, target, changes))
        return
    name = clean(scope.name)
    print_line(f"{name} is at revision {revision}, with the state of revision {target}")
    print_changes(changes)
    print_note(f"take it back: {command(f'undo {shlex.quote(scope.name)}', options.place)}")


def fork(scope: str, new_id: str, /, *, at: str | None = None, options: Options = DEFAULTS) -> None:
    """Make a new scope that begins where this one is, or was.

    Parameters
    ----------
    scope
        The scope to begin from, such as conversation/ticket-7.
    new_id
        The id of the new scope; its level is that of the first.
    at
        The moment to begin at: a revision, a checkpoint's name, or a time.
    """
    with open_writing(options) as store:
        found = find_scope(store, scope)
        revision = find_revision(found, at)
        made = found.fork(new_id, at=revision)
        document = fork_document(made.name, made.revision, scope, revision)
    if options.json:
        print_json(document)
    else:
        print_line(f"{clean(made.name)} is a fork of {clean(scope)} at revision {revision}")
        print_note(
            f"compare: {command(f'diff {shlex.quote(made.name)} {revision}', options.place)}"
        )


def follow(
    scope: str | None = None,
    /,
    *,
    all: Flag = False,
    after: int | None = None,
    timeout: float | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Print each change as it is committed, until interrupted.

    Parameters
    ----------
    scope
        The scope, such as team/support; it need not exist yet.
    all
        Follow every scope, event by event.
    after
        Begin behind this revision (with --all: position) instead of now.
    timeout
        Stop when nothing came for this many seconds.
    """
    if (scope is None) != all:
        raise UsageError("follow takes one scope or --all", hint="holdfast follow team/support")
    if timeout is not None and not timeout >= 0:
        raise UsageError(f"--timeout is a number of seconds, at least 0, found {timeout}")
    if after is not None and after < 0:
        raise UsageError(f"--after is at least 0, found {after}")
    with open_reading(options) as store:
        if scope is None:
            follow_store(store, after, timeout, options)
        else:
            follow_scope(store, scope, after, timeout, options)


def follow_store(store: Store, after: int | None, timeout: float | None, options: Options) -> None:
    start = store.position if after is None else Position(after)
    print_note(f"following every scope from position {start}; Ctrl-C ends it")
    for event in store.events(after=start, timeout_s=timeout):
        if options.json:
            print_json_line(event_document(event))
        else:
            print_line("\t".join(clean(cell) for cell in event_row(event, with_scope=True)))


def follow_scope(
    store: Store, name: str, after: int | None, timeout: float | None, options: Options
) -> None:
    scope = find_scope(store, name, must_exist=False)
    start = scope.revision if after is None else after
    print_note(f"following {name} from revision {start}; Ctrl-C ends it")
    for change in store.follow(scope, after=start, timeout_s=timeout):
        if options.json:
            print_json_line(change_document(change))
        else:
            print_line(show_change(change))


def show_change(change: Change) -> str:
    """Returns a line with revision, sign, path, old and new, parted by tabs."""
    return "\t".join(clean(cell) for cell in (str(change.revision), *change_cells(change)))

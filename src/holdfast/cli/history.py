"""Verbs for what happened to a scope, and for earlier moments of it.

log, diff, checkpoints, follow; checkpoint, restore, remove, fork
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from holdfast.cli.completion import Moment, ScopeName
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Seconds,
    command,
    confirm_removal,
    open_reading,
    open_writing,
    print_more,
)
from holdfast.cli.parsing import find_revision, find_scope, parse_limit, parse_place
from holdfast.cli.printing import (
    is_terminal,
    print_json,
    print_json_line,
    print_line,
    print_note,
    print_table,
)
from holdfast.core.event import Change, Event, Position
from holdfast.core.kernel import kernel_of
from holdfast.core.page import PAGE_SIZE
from holdfast.errors import UsageError
from holdfast.names import split_name, unescape
from holdfast.record.difference import Difference, Restored
from holdfast.record.message_events import Message
from holdfast.record.task_events import Task
from holdfast.render.history import (
    change_document,
    checkpoint_document,
    checkpoints_document,
    diff_document,
    event_document,
    events_document,
    fork_document,
    removed_document,
    restored_document,
)
from holdfast.render.text import (
    change_cells,
    clean,
    preview,
    shorten,
    show_summary,
    show_time,
)
from holdfast.scope import Scope
from holdfast.store import Store

LOG_COLUMNS = ("revision", "time", "type", "actor", "what")


def log(
    scope: ScopeName | None = None,
    /,
    *,
    limit: int = 20,
    before: str | None = None,
    after: str | None = None,
    type: str | None = None,
    actor: str | None = None,
    source: str | None = None,
    trust: str | None = None,
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
        Only events before this revision, without a scope before this position; or a page's cursor.
    after
        Only events after it.
    type
        Only events of this type, such as changed.
    actor
        Only events of this actor.
    source
        Only events from this source: human, model, tool, import or file.
    trust
        Only events with this trust: your own word for how far a source is trusted.
    """
    place = {"before": parse_place(before), "after": parse_place(after)}
    with open_reading(options) as store:
        scope = None if scope is None else find_scope(store, scope, even_removed=True).name
        page = store.events(
            **place,
            limit=parse_limit(limit),
            scope=scope,
            type=type,
            actor=actor,
            source=source,
            trust=trust,
            newest_first=True,
        )
        if options.json:
            print_json(events_document(scope, page))
            return
        show_row = terminal_row if is_terminal() else event_row
        rows = [show_row(event, with_scope=scope is None) for event in page]
    if rows:
        print_table(LOG_COLUMNS, rows)
    else:
        print_note("no events")
    given = {"--after": after, "--type": type, "--actor": actor}
    given |= {"--source": source, "--trust": trust}
    words = [word for pair in given.items() if pair[1] is not None for word in pair]
    print_more(
        page, ["log", *([scope] if scope else []), *map(str, words)], options, limit, "--before"
    )


def event_row(event: Event, *, with_scope: bool) -> list[str]:
    """Returns all columns, for programs; with the scope, position and name of the stream first."""
    row = [
        str(event.revision),
        show_time(event.time),
        event.type,
        event.actor,
        event.checkpoint or "",
        show_summary(event),
    ]
    return [str(event.position), unescape(event.stream), *row] if with_scope else row


def terminal_row(event: Event, *, with_scope: bool) -> list[str]:
    """Returns the columns that fit on a screen, with a checkpoint's name before what was done."""
    name = f'"{event.checkpoint}" ' if event.checkpoint else ""
    where = f"{unescape(event.stream)}@{event.revision}" if with_scope else str(event.revision)
    return [where, show_time(event.time), event.type, event.actor, name + show_summary(event)]


def diff(
    scope: ScopeName, a: Moment, b: Moment | None = None, /, *, options: Options = DEFAULTS
) -> None:
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
        scope = found.name
        since = find_revision(found, a)
        difference = found.diff(since, None if b is None else find_revision(found, b))
        if options.json:
            print_json(diff_document(scope, difference))
        else:
            rows = difference_rows(difference)
            print_differing(rows)
            if not rows:
                print_note(f"revisions {since} and {difference.until} are the same")


def difference_rows(difference: Difference) -> list[tuple[str, str, str, str]]:
    """Returns what differs: a sign, the path, the old and the new value.

    A path has no space in it, so one with a word before it is of a message or a task.
    """
    rows = [change_cells(change) for change in difference]
    for message in difference.messages:
        words = [(each and each.text) or "" for each in (message.old, message.new)]
        rows.append(sides("message", message.old, message.new, words))
    for task in difference.tasks:
        words = [f"{each.status}: {each.title}" if each else "" for each in (task.old, task.new)]
        rows.append(sides("task", task.old, task.new, words))
    return rows


def sides(
    what: str, old: Message | Task | None, new: Message | Task | None, words: Sequence[str]
) -> tuple[str, str, str, str]:
    """Returns the cells of a message or a task that differs."""
    sign = "+" if old is None else "-" if new is None else "~"
    found = old or new
    assert found is not None, "BUG: a difference without sides"
    return sign, f"{what} {found.id}", shorten(words[0]), shorten(words[1])


def print_differing(rows: Sequence[Sequence[str]]) -> None:
    """Prints what differs as a table, if anything does."""
    if rows:
        print_table(("", "path", "old", "new"), rows)


def checkpoints(
    scope: ScopeName,
    /,
    *,
    limit: int = PAGE_SIZE,
    after: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """List the checkpoints of a scope, newest first.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    limit
        How many at most.
    after
        Continue after this cursor, which the page before ended with.
    """
    with open_reading(options) as store:
        named = find_scope(store, scope)
        scope = named.name
        page = named.checkpoints(after=after, limit=parse_limit(limit))
    if options.json:
        print_json(checkpoints_document(scope, page))
        return
    rows = [(str(each.revision), show_time(each.time), each.name) for each in page]
    if rows:
        print_table(("revision", "time", "name"), rows)
    else:
        print_note(f"{scope} has no checkpoints")
    print_more(page, ["checkpoints", scope], options, limit)


def checkpoint(
    scope: ScopeName,
    name: str,
    /,
    *,
    expected: int | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Name the current state of a scope, to come back to it later.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    name
        The name. A name that is used again means the newest one.
    expected
        Refuse unless the scope is at this revision.
    """
    with open_writing(options) as store:
        made = find_scope(store, scope).checkpoint(name, expected=expected)
        scope = made.stream
    if options.json:
        print_json(checkpoint_document(made))
    else:
        print_line(f'{clean(scope)} is at revision {made.revision}, named "{clean(name)}"')


def restore(
    scope: ScopeName,
    moment: Moment,
    /,
    *,
    expected: int | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Restore the state of an earlier moment, as a new revision.

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
        print_restored(found, found.restore(target, expected=expected), options)


def remove(
    scope: ScopeName,
    /,
    *,
    yes: Flag = False,
    expected: int | None = None,
    options: Options = DEFAULTS,
) -> int:
    """Remove a scope: its name can be used again. Asks first.

    Parameters
    ----------
    scope
        The scope, such as conversation/ticket-7.
    yes
        Do not ask; for scripts.
    expected
        Refuse unless the scope is at this revision.
    """
    with open_writing(options) as store:
        found = find_scope(store, scope)
        what = f"{clean(found.name)}, {found.revision} revisions"
        if not yes and not confirm_removal(what, options):
            print_line("nothing was removed")
            return 1
        revision = found.remove(expected=expected)
    if options.json:
        print_json(removed_document(found.name, revision))
    else:
        print_line(f"{clean(found.name)} was removed at revision {revision}")
        print_note(f"undo it: {command(f'undo {shlex.quote(found.name)}', options.place)}")
    return 0


def print_restored(scope: Scope, restored: Restored, options: Options) -> None:
    """Prints what the return to an earlier moment changed, what stays, and how to undo it."""
    if options.json:
        print_json(restored_document(scope.name, restored))
        return
    name = clean(scope.name)
    print_line(f"{name} is at revision {restored}, with the state of revision {restored.to}")
    rows = difference_rows(restored.changes)
    for decision in restored.decisions:
        rows.append(("=", f"decision {decision.key}", "", shorten(decision.decision)))
    for fact in restored.facts:
        rows.append(("=", f"fact {fact.name}", "", shorten(preview(fact.value))))
    print_differing(rows)
    if restored.decisions or restored.facts:
        print_note("decisions and facts (=) stay: the world does not go back")
    print_note(f"undo it: {command(f'undo {shlex.quote(scope.name)}', options.place)}")


def fork(
    scope: ScopeName, new_id: str, /, *, at: Moment | None = None, options: Options = DEFAULTS
) -> None:
    """Create a scope that starts from the state of this one, now or earlier.

    Parameters
    ----------
    scope
        The scope to fork, such as conversation/ticket-7.
    new_id
        The name of the new scope, or its id alone; its level is the same.
    at
        The moment to fork at: a revision, a checkpoint's name, or a time.
    """
    with open_writing(options) as store:
        found = find_scope(store, scope)
        scope = found.name
        revision = find_revision(found, at)
        made = found.fork(id_at_level(new_id, found, store), at=revision)
        newest = made.revision
    if options.json:
        print_json(fork_document(made.name, newest, scope, revision))
    else:
        print_line(f"{clean(made.name)} is a fork of {clean(scope)} at revision {revision}")
        print_note(
            f"compare: {command(f'diff {shlex.quote(made.name)} {revision}', options.place)}"
        )


def id_at_level(typed: str, scope: Scope, store: Store) -> str:
    """Returns the id of a new scope at the level of another one, typed with or without the level.

    Ids may contain a slash, so only the name of a level before it makes a whole name.
    """
    level = split_name(scope.name)[0]
    head, slash, id = typed.partition("/")
    if not slash or head not in kernel_of(store).levels.names():
        return typed
    if head != level:
        raise UsageError(
            f'a fork of "{scope.name}" is a {level} too, found "{typed}"',
            hint=f"write {level}/{id}",
        )
    return id


def follow(
    scope: ScopeName | None = None,
    /,
    *,
    all: Flag = False,
    after: int | None = None,
    timeout: Seconds = None,
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
        Start after this revision (with --all: position) instead of now.
    timeout
        Stop after this time without a change, in seconds or such as 1h30m.
    """
    if (scope is None) != all:
        raise UsageError("follow takes one scope or --all", hint="holdfast follow team/support")
    if after is not None and after < 0:
        raise UsageError(f"--after must be at least 0, found {after}")
    with open_reading(options) as store:
        if scope is None:
            follow_store(store, after, timeout, options)
        else:
            follow_scope(store, scope, after, timeout, options)


def follow_store(store: Store, after: int | None, timeout: float | None, options: Options) -> None:
    start = store.position if after is None else Position(after)
    print_note(f"following every scope from position {start}; Ctrl-C ends it")
    for event in store.follow(as_events=True, after=start, timeout_s=timeout):
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
    """Returns revision, sign, path, old and new value, separated by tabs."""
    return "\t".join(clean(cell) for cell in (str(change.revision), *change_cells(change)))

"""Verbs that name a moment or come back to one: checkpoint, restore, undo, fork."""

from __future__ import annotations

import shlex
from typing import Any

from holdfast.cli.history import print_changes
from holdfast.cli.options import DEFAULTS, Options, command, open_writing
from holdfast.cli.parsing import find_revision, find_scope
from holdfast.cli.printing import print_json, print_line, print_note
from holdfast.render import change_shape, checkpoint_shape, clean
from holdfast.scope import Scope


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
        print_json(checkpoint_shape(made))
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
        shapes = [change_shape(change) for change in changes]
        print_json({"scope": scope.name, "revision": revision, "to": target, "changes": shapes})
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
        shape: dict[str, Any] = {
            "scope": made.name,
            "revision": made.revision,
            "from": scope,
            "at": revision,
        }
    if options.json:
        print_json(shape)
    else:
        print_line(f"{clean(made.name)} is a fork of {clean(scope)} at revision {revision}")
        print_note(
            f"compare: {command(f'diff {shlex.quote(made.name)} {revision}', options.place)}"
        )

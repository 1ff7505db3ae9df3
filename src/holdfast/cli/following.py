"""The verb that goes on: follow."""

from __future__ import annotations

from holdfast.cli.history import change_row, event_row
from holdfast.cli.options import DEFAULTS, Flag, Options, open_reading
from holdfast.cli.printing import clean, print_json_line, print_line, print_note
from holdfast.cli.shapes import change_shape, event_shape
from holdfast.cli.words import find_scope
from holdfast.errors import UsageError
from holdfast.event import Change, Position
from holdfast.store import Store


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
            print_json_line(event_shape(event))
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
            print_json_line(change_shape(change))
        else:
            print_line(show_change(change))


def show_change(change: Change) -> str:
    """Returns a line with revision, sign, path, old and new, parted by tabs."""
    return "\t".join(clean(cell) for cell in (str(change.revision), *change_row(change)))

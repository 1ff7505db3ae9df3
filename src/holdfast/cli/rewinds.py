"""Verbs for going back with files, state and conversation: rewind, rewind mark, list, undo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.history import difference_rows, print_differing
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Words,
    check_terminal,
    command,
    confirm,
    open_reading,
    open_writing,
)
from holdfast.cli.parsing import find_scope
from holdfast.cli.printing import print_json, print_line, print_note, print_table
from holdfast.git.rewinds import Preview, Rewound, What
from holdfast.record.difference import Difference
from holdfast.render.git import (
    path_text,
    point_document,
    points_document,
    preview_document,
    rewound_document,
)
from holdfast.render.text import clean, show_time

_SIGNS = {"make": "+", "remove": "-", "write": "~"}


def mark(
    name: Annotated[str, Parameter(name="NAME")],
    /,
    *,
    scope: Words = None,
    no_files: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Make a point to go back to: of scopes, and of the files of the git work tree here.

    Parameters
    ----------
    name
        The name of the point. A name that is used again means the newest one.
    scope
        A scope that goes back with it, such as conversation/ticket-7. May be given again.
    no_files
        Leave the files alone. They are left out where there is no git repository, too.
    """
    with open_writing(options) as store:
        named = [find_scope(store, one, must_exist=False) for one in scope or ()]
        point = store.git().mark(name, named, files=False if no_files else None)
    if options.json:
        print_json(point_document(point))
        return
    covered = [f"{each}@{revision}" for each, revision in point.scopes.items()]
    files = f"files as commit {point.commit[:12]}" if point.commit else "no files"
    print_line(f"point {point.id}: {clean(', '.join([files, *covered]))}")
    for path, reason in point.left_out.items():
        print_note(f"left out: {clean(path)}: {reason}")


def list_points(*, options: Options = DEFAULTS) -> None:
    """List the points to go back to, newest first."""
    with open_reading(options) as store:
        rewinds = store.git()
        points, interrupted = rewinds.list(), rewinds.interrupted()
    if options.json:
        print_json(points_document(points, interrupted))
        return
    rows = [
        (
            point.id,
            show_time(point.time),
            point.name,
            ", ".join(f"{each}@{revision}" for each, revision in point.scopes.items()),
            (point.commit or "")[:12],
        )
        for point in points
    ]
    if rows:
        print_table(("point", "time", "name", "scopes", "files"), rows)
    else:
        print_note("no points")
    if interrupted is not None:
        print_note(
            "a rewind did not end: do it again, or take it back; what that would do is shown by "
            + command("rewind undo --dry-run", options.place)
        )


def rewind(
    point: Annotated[str, Parameter(name="POINT")],
    /,
    *,
    what: What = "all",
    dry_run: Flag = False,
    yes: Flag = False,
    overwrite: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Go back to a point: files, state and conversation. Shows what it would do, and asks.

    Parameters
    ----------
    point
        The point: its id or its name.
    what
        What goes back: conversation, state (tasks too), files, or all.
    dry_run
        Show what would go back; change nothing.
    yes
        Do not ask; for scripts.
    overwrite
        Also take back files that somebody changed after the messages that changed them.
    """
    with open_writing(options) as store:
        preview = store.git().preview(point, what=what, overwrite=overwrite)
        return preview_and_apply(preview, options, dry_run=dry_run, yes=yes)


def undo(*, dry_run: Flag = False, yes: Flag = False, options: Options = DEFAULTS) -> int:
    """Take back the newest rewind. Shows what it would do, and asks.

    Parameters
    ----------
    dry_run
        Show what would be taken back; change nothing.
    yes
        Do not ask; for scripts.
    """
    with open_writing(options) as store:
        preview = store.git().preview_undo()
        return preview_and_apply(preview, options, dry_run=dry_run, yes=yes)


def preview_and_apply(
    preview: Preview,
    options: Options,
    *,
    dry_run: bool = False,
    yes: bool,
    apply: Callable[[Preview], Rewound] = Preview.apply,
) -> int:
    """Prints what a rewind would do, asks, and does it; returns the exit code of the verb."""
    if dry_run:
        if options.json:
            print_json(preview_document(preview))
        else:
            _print_preview(preview)
        return 0
    if not yes:
        check_terminal("a rewind", is_json=options.json)
        _print_preview(preview)
        if not confirm(f"go back to {clean(preview.point.name)}"):
            print_line("nothing was changed")
            return 1
    done = apply(preview)
    if options.json:
        print_json(rewound_document(done))
    else:
        _print_done(done, options)
    return 0


def _print_preview(preview: Preview) -> None:
    for name, difference in preview.scopes.items():
        print_line(f"{clean(name)} goes back to revision {preview.point.scopes[name]}")
        print_differing(_chosen(difference, preview.what))
    for step in preview.files:
        print_line(f"{_SIGNS[step.act]} {clean(path_text(step.path))}")
    _print_rest(preview)


def _chosen(difference: Difference, what: What) -> list[tuple[str, str, str, str]]:
    """Returns the rows of what goes back: only messages, all but messages, or all."""
    rows = difference_rows(difference)
    if what == "all":
        return rows
    is_wanted = what == "conversation"
    return [row for row in rows if row[1].startswith("message ") == is_wanted]


def _print_done(done: Rewound, options: Options) -> None:
    for name, revision in done.scopes.items():
        print_line(f"{clean(name)} is at revision {revision}")
    for step in done.files:
        print_line(f"{_SIGNS[step.act]} {clean(path_text(step.path))}")
    _print_rest(done)
    print_note(f"undo it: {command('rewind undo', options.place)}")


def _print_rest(found: Preview | Rewound) -> None:
    for path, reason in found.skipped.items():
        print_line(f"= {clean(path_text(path))}: stays: {clean(reason)}")
    for line in found.stays:
        print_line(f"= {clean(line)}")

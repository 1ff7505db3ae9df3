"""The verb undo: the newest change of a scope, or all that a source wrote."""

from __future__ import annotations

from holdfast.cli.completion import ScopeName
from holdfast.cli.history import print_restored
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    check_terminal,
    confirm,
    open_reading,
    open_writing,
)
from holdfast.cli.parsing import find_scope, read_time
from holdfast.cli.printing import print_json, print_line, print_note, print_table
from holdfast.errors import UsageError
from holdfast.render.text import change_cells, clean, show_path
from holdfast.render.undo import undone_document
from holdfast.undo import Undone


def undo(
    scope: ScopeName | None = None,
    /,
    *,
    source: str | None = None,
    by: str | None = None,
    trust: str | None = None,
    since: str | None = None,
    dry_run: Flag = False,
    yes: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Undo the newest change of a scope, or all that a source wrote to states; this asks first.

    Parameters
    ----------
    scope
        The scope, such as team/support; with --source, --by or --trust a pattern, or none for all.
    source
        Take back what came from this source: human, model, tool, import or file.
    by
        Take back what this actor wrote.
    trust
        Take back what has this trust: your own word for how far a source is trusted.
    since
        Only what was written since: 2026-11-16T09:30, or 7d for seven days.
    dry_run
        Show what would go, what would stay and what depends on it; change nothing.
    yes
        Do not ask; for scripts.
    """
    if source is None and by is None and trust is None:
        if scope is None or since is not None or dry_run:
            raise UsageError(
                "undo takes a scope, or --source, --by or --trust",
                hint="holdfast undo --source tool --since 1d --dry-run",
            )
        with open_writing(options) as store:
            found = find_scope(store, scope, even_removed=True)
            print_restored(found, found.undo(), options)
        return 0
    moment = None if since is None else read_time(since) or since
    if not yes:
        with open_reading(options) as store:
            preview = store.undo(
                source=source, actor=by, trust=trust, since=moment, scope=scope, dry_run=True
            )
        if dry_run or not preview.taken_back:
            _print(preview, options)
            return 0
        if not _is_confirmed(preview, options):
            print_line("nothing was taken back")
            return 1
    with open_writing(options) as store:
        done = store.undo(source=source, actor=by, trust=trust, since=moment, scope=scope)
        _print(done, options)
    return 0


def _is_confirmed(preview: Undone, options: Options) -> bool:
    """Shows what would be taken back, asks on the terminal, and returns what was answered."""
    hint = "look with --dry-run, then add --yes"
    check_terminal("what is taken back", is_json=options.json, hint=hint)
    _print(preview, options)
    return confirm("take it back")


def _print(undone: Undone, options: Options) -> None:
    if options.json:
        print_json(undone_document(undone))
        return
    rows = [
        (one.scope, *change_cells(change)) for one in undone.taken_back for change in one.changes
    ]
    if rows:
        print_table(("scope", "", "path", "old", "new"), rows)
    would = "would be taken back" if undone.is_preview else "were taken back"
    print_line(f"{len(rows)} paths in {len(undone.taken_back)} scopes {would}")
    for one in undone.not_taken_back:
        what = show_path(one.path) if one.path else one.type
        print_line(f"stays\t{clean(one.scope)}@{one.revision}\t{clean(what)}\t{clean(one.why)}")
    for one in undone.dependents:
        print_line(f"depends\t{one.kind}\t{clean(one.scope)}\t{clean(one.id)}\t{clean(one.of)}")
    if undone.dependents:
        print_note("what depends on it was not changed: look at it")

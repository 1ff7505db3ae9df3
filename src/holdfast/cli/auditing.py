"""The verb that shows what a state is made of, and what of it changes: audit."""

from __future__ import annotations

from typing import Any

from holdfast.cli.options import DEFAULTS, Options, open_reading
from holdfast.cli.printing import is_terminal, print_json, print_note, print_table
from holdfast.cli.shapes import show_time, time_text
from holdfast.cli.words import find_scope, show_path
from holdfast.record.audit import Item

COLUMNS = ("changes", "size", "changed", "key")


def audit(scope: str, /, *, options: Options = DEFAULTS) -> None:
    """Show the keys of a scope's state: how large each is, how often and when it changed.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    """
    with open_reading(options) as store:
        found = find_scope(store, scope)
        revision = found.revision
        items = store.audit(found).items()
    if options.json:
        shapes = [item_shape(item) for item in items]
        print_json({"scope": scope, "revision": revision, "items": shapes})
        return
    print_table(COLUMNS, [row_of(item) for item in items])
    if not items:
        print_note(f"{scope} has no state")


def item_shape(item: Item) -> dict[str, Any]:
    """Returns an item as the command line prints it as JSON."""
    return {
        "path": list(item.path),
        "size": item.size,
        "changes": item.changes,
        "changed_at": None if item.changed_at is None else time_text(item.changed_at),
    }


def row_of(item: Item) -> tuple[str, str, str, str]:
    """Returns an item as a row of a table."""
    show = show_time if is_terminal() else time_text
    changed = "" if item.changed_at is None else show(item.changed_at)
    return str(item.changes), str(item.size), changed, show_path(item.path)

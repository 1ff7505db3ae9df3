"""The verb that says what state is for: architecture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from holdfast.cli.options import DEFAULTS, Flag, Options, open_reading
from holdfast.cli.printing import print_json, print_note, print_raw, print_table
from holdfast.contrib.architecture import COLUMNS, StateKind, of_folder, of_store, to_markdown
from holdfast.opening import DEFAULT_PLACE
from holdfast.render.store import architecture_document
from holdfast.render.text import clean

_SHOWN = 6
"""How many columns a terminal has room for."""


def architecture(
    path: str | None = None, /, *, markdown: Flag = False, options: Options = DEFAULTS
) -> None:
    """Say what each kind of state is for, and what is lost with it.

    Parameters
    ----------
    path
        A folder of YAML, TSV, JSON and markdown files; without it the store.
    markdown
        Print the whole table as markdown.
    """
    found: list[StateKind] = [] if path is None else of_folder(path)
    beside = os.path.join(path or ".", DEFAULT_PLACE)
    if path is None or (options.store is None and os.path.isdir(beside)):
        chosen = options if path is None else replace(options, store=beside)
        with open_reading(chosen) as store:
            found += of_store(store)
    if options.json:
        print_json(architecture_document(found))
    elif markdown:
        print_raw(clean(to_markdown(found), keep="\n").encode("utf-8", "replace"))
    else:
        _show(found)


def _show(found: Sequence[StateKind]) -> None:
    if not found:
        print_note("no file that holds state")
        return
    shown = COLUMNS[:_SHOWN]
    rows = [[str(getattr(kind, field)) for field, _ in shown] for kind in found]
    print_table([heading for _, heading in shown], rows)
    print_note("--markdown or --json shows all columns")

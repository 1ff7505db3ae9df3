"""The names that a program has bound, read from its journal alone."""

from __future__ import annotations

import re

from holdfast.runs.journal import Entry, Journal, block_of

_BINDS = frozenset(("let", "const", "set"))
_SHARED = re.compile(
    r"(?:^|(?<=/))(?:block\.(?:if|try|catch|do)|cleanup\.finally)(?:[=#][^/]*)?(?:/|$)"
)
"""Blocks whose names are visible after them: they are no scope of their own."""


class Variable:
    """One name of a program with its newest value."""

    def __init__(self, entry: Entry, scope: str) -> None:
        self.name = entry.name
        self.scope = scope
        self.kind = "const" if entry.kind == "const" else "let"
        self.entry = entry


def variables_of(journal: Journal) -> dict[tuple[str, str], Variable]:
    """Returns the names that a program has bound, by scope and name, in order."""
    found: dict[tuple[str, str], Variable] = {}
    binding = [e for e in journal.entries.values() if e.kind in _BINDS and e.state == "done"]
    for entry in sorted(binding, key=lambda entry: entry.revision):
        scope = scope_of(entry.path)
        if entry.kind == "set":
            while scope and (scope, entry.name) not in found:
                scope = block_of(scope)
        known = found.get((scope, entry.name))
        if known is not None and entry.kind == "set":
            known.entry = entry
        else:
            found[scope, entry.name] = Variable(entry, scope)
    return found


def scope_of(path: str) -> str:
    """Returns the scope that an operation binds names in; empty for that of the program."""
    return _SHARED.sub("", f"{block_of(path)}/").rstrip("/")

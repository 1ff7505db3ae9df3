"""The names that a program has bound, read from its journal alone; and edited answers for a fork.

The values of names follow from answers. So to edit a value is to edit the answer of the session or
the wait that the name was bound from. A value that the program computed is edited in its source.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from msgspec import Struct

from holdfast.errors import NotFoundError, UsageError
from holdfast.prose import values
from holdfast.runs.journal import Entry, Journal, block_of

_BINDS = frozenset(("let", "const", "set"))
_SHARED = re.compile(
    r"(?:^|(?<=/))(?:block\.(?:if|try|catch|do)|cleanup\.finally)(?:[=#][^/]*)?(?:/|$)"
)
"""Blocks whose names are visible after them, because they have no separate scope."""


class Variable:
    """One name of a program, with the entry that has its newest value."""

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
    """Returns the scope in which an operation binds names; "" for that of the program."""
    return _SHARED.sub("", f"{block_of(path)}/").rstrip("/")


class EditedAnswer(Struct, frozen=True):
    """An answer with another value, and the revision at which the name was bound from it."""

    path: str
    value: Any
    bound: int


def edited_answers(
    journal: Journal, edits: dict[str, Any], load: Callable[[Any], Any]
) -> list[EditedAnswer]:
    """Returns the answers that give names other values.

    Raises NotFoundError for a name that is not bound, and UsageError for one that was computed.
    """
    known = {name: one for (scope, name), one in variables_of(journal).items() if not scope}
    found: list[EditedAnswer] = []
    for name, value in edits.items():
        if name not in known:
            listed = ", ".join(known) or "none"
            raise NotFoundError(f'the program has bound no name "{name}": it has {listed}')
        bound = known[name].entry
        answer = _answer_of(journal, name, bound)
        if answer is None:
            raise UsageError(
                f'"{name}" was given by no session and no input: the program computed it',
                hint="edit the program, then resume the fork with its file",
            )
        before = load(answer.value) if answer.value else None
        found.append(EditedAnswer(answer.path, _changed(before, value), bound.revision))
    return found


def _answer_of(journal: Journal, name: str, bound: Entry) -> Entry | None:
    """Returns the session or wait that a name was bound from; None if it was computed."""
    block = block_of(bound.path)
    begin = f"{block}/" if block else ""
    sessions, wait = f"{begin}session={name}", f"{begin}wait.{name}"
    candidates = [
        entry
        for entry in journal.entries.values()
        if entry.state == "done"
        and entry.revision < bound.revision
        and (entry.path in (sessions, wait) or entry.path.startswith(f"{sessions}:"))
    ]
    return max(candidates, key=lambda entry: entry.revision, default=None)


def _changed(before: Any, value: Any) -> Any:
    """Returns a value in the form of the one that it replaces."""
    if not isinstance(before, dict):
        return value
    stored = cast("dict[str, Any]", before)
    field = "out" if "out" in stored else "text"
    return {**stored, field: values.text_of(value)}

"""The tables of format 1, made in groups, each by the transaction that first needs it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from holdfast.backends.sqlite.driver import Execute

# As SQLite looks for one itself: a bit that makes a capital letter of a small one hides no table.
HAS_TABLE = "SELECT count(*) FROM sqlite_schema WHERE name = ? COLLATE NOCASE"
_GROUP = "-- group: "

INDEX_FROM_ROW = 32
"""The row that brings the index of names with it: up to there the index would cost a page of 16 KiB
and spare a scan of one or a few."""


@cache
def statements(group: str) -> str:
    """Returns the statements that make the tables of a group; the first is named like it."""
    parts = (part.partition("\n") for part in _text().split(_GROUP)[1:])
    return {name: body for name, _, body in parts}[group]


@cache
def parts() -> frozenset[tuple[str, str]]:
    """Returns every table and index that a store can have: its kind and its name."""
    found = re.findall(r"CREATE [A-Z ]*(TABLE|INDEX) IF NOT EXISTS (\w+)", _text())
    return frozenset((kind.lower(), name) for kind, name in found)


def _text() -> str:
    # Not by importlib.resources: loading it takes as long as recovering a run of some 300 steps.
    return (Path(__file__).parents[1] / "sql" / "sqlite_0001.sql").read_text("utf-8")


class Tables:
    """Which groups are there. Tables are never dropped, so what was seen once needs no look."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._made: set[str] = set()

    def exist(self, group: str, execute: Execute) -> bool:
        """Returns whether the group is there, as seen by that connection."""
        if group in self._known:
            return True
        found = execute(HAS_TABLE, (group,)).get == 1
        if found and group not in self._made:
            self._known.add(group)
        return found

    def ensure(self, group: str, execute: Execute) -> None:
        """Makes the group in the transaction that is under way, unless it is there."""
        if group not in self._known and group not in self._made:
            execute(statements(group)).fetchall()
            self._made.add(group)

    def settle(self) -> None:
        """Counts what the transaction made: it is durable."""
        if self._made:
            self._known |= self._made
            self._made.clear()

    def forget(self) -> None:
        """Counts nothing of what the transaction made: it was rolled back."""
        self._made.clear()

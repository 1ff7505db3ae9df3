"""Declared indexes on paths of the state, such as `holdfast.index("team", "customer.id")`.

For each state and each declared path, a row holds the value there. The rows only narrow a question:
each state they select is then compared itself. So a row may match too much, but never too little.
That is why numbers are kept as floats, and texts by their beginnings.

Declared indexes are stored with the index of questions. Every process that follows the log keeps
their rows up to date, whatever it declares itself. The rows hold values as they are stored. A
program whose schema shows states as another version compares every state of other versions itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.codec import Path, kept_closed
from holdfast.core.event import StreamState
from holdfast.core.tree import MISSING, Ends, List, Map, get
from holdfast.errors import UsageError, show_value
from holdfast.names import check_level, fits_pattern, is_pattern
from holdfast.query.form import Condition, check_place, sort_of
from holdfast.query.words import plain

if TYPE_CHECKING:
    from holdfast.backends.derived_tables import Condition as SqlCondition
    from holdfast.backends.derived_tables import SideSession
    from holdfast.core.typed import Typed

TABLES = """
CREATE TABLE paths (of_ {whole}, sort {text}, number {real}, said {text}, version {whole},
 n {whole})
CREATE INDEX paths_number ON paths (of_, sort, number)
CREATE INDEX paths_said ON paths (of_, sort, said)
CREATE INDEX paths_version ON paths (of_, version)
CREATE INDEX paths_n ON paths (n)
"""
ADD = "INSERT INTO paths (of_, sort, number, said, version, n) VALUES (?, ?, ?, ?, ?, ?)"
SAID_CHARACTERS = 100
IN_MAX = 50
_SCALARS = ("number", "text", "flag", "other")
_ALWAYS = "sort IN ('outside', 'odd')"
"""Rows that any comparison may match: scopes that the index does not cover, and texts that a
database cannot store."""
Row = tuple[int, str, float | None, str | None, int]
"""The index, the kind of the value, its number or text, and the version of the state."""


class StateIndex(Struct, frozen=True):
    """A declared index: the scopes that it covers, and its path."""

    scopes: str
    path: tuple[str | int, ...]


def index(scopes: str, path: str | tuple[str | int, ...]) -> StateIndex:
    """Declares an index on the values of states at a path, for `Settings(indexes=[…])`.

    `scopes` is a level, or a pattern of names in which * matches any characters. `path` is text
    such as `customer.id`, or a tuple of keys. Questions and lists with `where=` on that path then
    read only the states that may match, instead of all.
    """
    if not isinstance(scopes, str) or not is_pattern(scopes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            "an index is of a level, or of a pattern such as conversation/support-*, "
            f"found {show_value(scopes)}"
        )
    if "*" not in scopes:
        check_level(scopes)
    return StateIndex(scopes, check_place(path))


def check_indexes(indexes: object) -> tuple[StateIndex, ...]:
    """Returns declared indexes, or raises UsageError."""
    if not isinstance(indexes, Sequence) or isinstance(indexes, str):
        raise UsageError(f"indexes is a list of holdfast.index(…), found {show_value(indexes)}")
    listed: tuple[Any, ...] = tuple(indexes)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for one in listed:
        if not isinstance(one, StateIndex):
            raise UsageError(
                f"indexes is a list of holdfast.index(…), found {show_value(one)}",
                hint='write holdfast.index("conversation", "customer.id")',
            )
    return tuple(dict.fromkeys(listed))


def read_indexes(path: str, tables: object) -> list[StateIndex]:
    """Returns the indexes that `[[indexes]]` of a file declares; a UsageError names the file."""
    found: list[StateIndex] = []
    for table in cast("list[object]", tables if isinstance(tables, list) else [tables]):
        try:
            found.append(index(**cast("dict[str, Any]", table)))
        except TypeError as error:
            raise UsageError(
                f'"{path}" has a [[indexes]] that is none: {error}',
                hint='write [[indexes]], scopes = "conversation/*", path = "customer.id"',
            ) from error
    return found


class Listed(Struct, frozen=True):
    """An index in the tables: its number there, and whether all states have rows in it yet."""

    number: int
    of: StateIndex
    is_whole: bool


def read_listed(told: str) -> list[Listed]:
    """Decodes the declared indexes from the tables."""
    return [
        Listed(number, StateIndex(scopes, tuple(path)), is_whole)
        for number, (scopes, path, is_whole) in enumerate(json.loads(told))
    ]


def note_listed(session: SideSession, listed: Iterable[Listed]) -> None:
    """Writes the declared indexes to the tables."""
    told = json.dumps([(one.of.scopes, one.of.path, one.is_whole) for one in listed])
    session.ask("UPDATE about SET value = ? WHERE name = 'paths'", [told])


def declare(session: SideSession, told: str, declared: Sequence[StateIndex]) -> None:
    """Adds the indexes that a program declares; every follower of the log maintains them now."""
    listed = read_listed(told)
    new = [one for one in declared if one not in [known.of for known in listed]]
    note_listed(
        session,
        [*listed, *(Listed(n, one, is_whole=False) for n, one in enumerate(new, len(listed)))],
    )


def add_rows(session: SideSession, states: Sequence[Any], rows: dict[str, list[Row]]) -> None:
    """Adds the rows of states, given by number and scope, that are still in the index.

    A state that was replaced since has another number, and got its rows with it. Rows are deleted
    before they are added, so adding them twice is safe.
    """
    marks = ", ".join("?" * len(states))
    there = session.ask(f"SELECT n FROM docs WHERE n IN ({marks})", [n for n, _ in states])
    kept = {n for (n,) in there}
    added = [(*row, n) for n, scope in states if n in kept for row in rows.get(scope, ())]
    session.many("DELETE FROM paths WHERE of_ = ? AND n = ?", [(row[0], row[-1]) for row in added])
    session.many(ADD, added)


def mark_whole(session: SideSession, told: str, numbers: Sequence[int]) -> None:
    """Notes that every state has its rows in some indexes, which may be used from now on."""
    note_listed(
        session,
        [
            replace(one, is_whole=True) if one.number in numbers else one
            for one in read_listed(told)
        ],
    )


# --- rows -----------------------------------------------------------------------------------------


def rows_of(listed: Sequence[Listed], stream: str, state: StreamState) -> list[Row]:
    """Returns the rows of a state, one for each declared index."""
    rows: list[Row] = []
    for one in listed:
        # Sealed data in the index would be a copy in clear. A value with an end is not in it
        # either: only the state itself knows whether the value still exists.
        path = one.of.path
        is_kept = state.subject is None and not (state.ends and _may_end(state.ends, path))
        if is_kept and fits_pattern(one.of.scopes, stream):
            with kept_closed():
                value = get(state.root, path, MISSING)
            sort, number, said = _kept(value)
            rows.append((one.number, sort, number, said, state.version))
        else:
            rows.append((one.number, "outside", None, None, 0))
    return rows


def _may_end(ends: Ends, path: Path) -> bool:
    """Returns whether the value at a path, or one around or inside it, has an end."""
    return any(one and one[: len(path)] == path[: len(one)] for one in ends)


def _kept(value: Any) -> tuple[str, float | None, str | None]:
    if value is MISSING:
        return "missing", None, None
    if isinstance(value, Map | List):
        return "nested", None, None
    match sort_of(value):
        case "number":
            return "number", _float(value), None
        case "flag":
            return "flag", float(value), None
        case "text":
            said = value[:SAID_CHARACTERS]
            return ("text", None, said) if plain(said) == said else ("odd", None, None)
        case _:
            return "other", None, None


def _float(value: float) -> float:
    """Returns the nearest float. Equal stays equal, and the order is kept, except that different
    numbers may become equal."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


# --- questions ------------------------------------------------------------------------------------


def narrowed(
    conditions: Sequence[Condition], listed: Sequence[Listed], typed: Typed
) -> list[SqlCondition]:
    """Returns, for each comparison on an indexed path, the SQL condition that narrows it."""
    found: list[SqlCondition] = []
    for condition in conditions:
        for one in listed:
            if one.is_whole and one.of.path == condition.path:
                parts: list[SqlCondition] = [(_ALWAYS, []), *_parts(condition)]
                trusted = _trusted(typed, one.of)
                if trusted is not None:
                    marks = ", ".join(map(str, sorted(trusted))) or "-1"
                    parts.append((f"version NOT IN ({marks})", []))
                each = [
                    f"SELECT n FROM paths WHERE of_ = {one.number} AND {part}" for part, _ in parts
                ]
                values = [value for _, some in parts for value in some]
                found.append((f"docs.n IN ({' UNION ALL '.join(each)})", values))
                break
    return found


def _parts(condition: Condition) -> list[SqlCondition]:
    """Returns conditions for the rows that a comparison may match."""
    match condition.operator:
        case "exists":
            sign = "<>" if condition.value else "="
            return [(f"sort {sign} 'missing'", [])]
        case "!=":
            return [(f"sort IN ({', '.join(map(repr, _SCALARS))})", [])]
        case "in" if len(condition.value) > IN_MAX:
            return [(f"sort IN ({', '.join(map(repr, _SCALARS))})", [])]
        case "in":
            return [part for value in condition.value for part in _compared("=", value)]
        case sign:
            return _compared(sign, condition.value)


def _compared(sign: str, value: Any) -> list[SqlCondition]:
    # Different values may have equal beginnings or nearest floats, so < and > must include those.
    sign = {"<": "<=", ">": ">="}.get(sign, sign)
    sort, number, said = _kept(value)
    if sort in ("number", "flag"):
        return [(f"sort = '{sort}' AND number {sign} ?", [number])]
    if sort == "text":
        return [(f"sort = 'text' AND said {sign} ?", [said])]
    return [("sort = 'text'", [])] if sort == "odd" else [("sort = 'other'", [])]


def _trusted(typed: Typed, one: StateIndex) -> set[int] | None:
    """Returns the versions of states that this program shows as stored; None means all.

    Of several schemas that scopes of the index may have, all must show a version as stored.
    """
    level = one.scopes.partition("/")[0]
    schemas = [
        schema for schema in typed.all if "*" in level or schema.name.partition("/")[0] == level
    ]
    if not schemas:
        return None
    versions: list[set[int]] = []
    for schema in schemas:
        if schema.renames(one.path):
            return set()
        known = {schema.version}
        versions.append(known | {0} if schema.stored_version(0) == schema.version else known)
    return versions[0].intersection(*versions[1:])

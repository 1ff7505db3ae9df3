"""Indexes on paths of the state that a program declares: `holdfast.index("team", "customer.id")`.

For each state and each declared path a row says what is there. The rows narrow a question; whether
a state fits is then seen by the state itself, so a row may stand for more than it says, and never
for less: numbers are kept as floats, and texts by their beginnings.

What is declared is kept with the index, and every process that follows the log keeps the rows up to
date, whatever it declares itself. The rows hold what is stored. A program whose schema shows a
state as another version looks at the state of every row of a version that is not its own.
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
from holdfast.query.documents import plain
from holdfast.query.form import Condition, check_place, sort_of

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
"""Rows that any comparison may hold for: of scopes that the index is not for, and of texts that a
database cannot keep."""
Row = tuple[int, str, float | None, str | None, int]
"""Which index, the sort of what is there, the number or the text of it, and the state's version."""


class StateIndex(Struct, frozen=True):
    """A declared index: of which scopes, and the path that it is on."""

    scopes: str
    path: tuple[str | int, ...]


def index(scopes: str, path: str | tuple[str | int, ...]) -> StateIndex:
    """Declares an index on what states have at a path, for `Settings(indexes=[…])`.

    `scopes` is a level, or a pattern of names in which * is any characters. The path is text such
    as `customer.id`, or a tuple of keys. Questions and lists that compare what is there
    (`where=`) look at the scopes that fit, and not at all.
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
    """Returns what `[[indexes]]` of a file declares, or raises UsageError that names the file."""
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
    """An index as the tables have it: its number there, and whether all states have their rows."""

    number: int
    of: StateIndex
    is_whole: bool


def read_listed(told: str) -> list[Listed]:
    """Returns the indexes that tables have."""
    return [
        Listed(number, StateIndex(scopes, tuple(path)), is_whole)
        for number, (scopes, path, is_whole) in enumerate(json.loads(told))
    ]


def note_listed(session: SideSession, listed: Iterable[Listed]) -> None:
    """Has tables keep indexes."""
    told = json.dumps([(one.of.scopes, one.of.path, one.is_whole) for one in listed])
    session.ask("UPDATE about SET value = ? WHERE name = 'paths'", [told])


def declare(session: SideSession, told: str, declared: Sequence[StateIndex]) -> None:
    """Adds the indexes that a program declares: whoever follows the log keeps them from here on."""
    listed = read_listed(told)
    new = [one for one in declared if one not in [known.of for known in listed]]
    note_listed(
        session,
        [*listed, *(Listed(n, one, is_whole=False) for n, one in enumerate(new, len(listed)))],
    )


def add_rows(session: SideSession, states: Sequence[Any], rows: dict[str, list[Row]]) -> None:
    """Adds the rows of states, which are given by number and scope, but of those that are gone.

    Those have been replaced, and have their rows. What is added twice replaces itself.
    """
    marks = ", ".join("?" * len(states))
    there = session.ask(f"SELECT n FROM docs WHERE n IN ({marks})", [n for n, _ in states])
    kept = {n for (n,) in there}
    added = [(*row, n) for n, scope in states if n in kept for row in rows.get(scope, ())]
    session.many("DELETE FROM paths WHERE of_ = ? AND n = ?", [(row[0], row[-1]) for row in added])
    session.many(ADD, added)


def mark_whole(session: SideSession, told: str, numbers: Sequence[int]) -> None:
    """Notes that every state has its rows of some indexes."""
    note_listed(
        session,
        [
            replace(one, is_whole=True) if one.number in numbers else one
            for one in read_listed(told)
        ],
    )


# --- rows -----------------------------------------------------------------------------------------


def rows_of(listed: Sequence[Listed], stream: str, state: StreamState) -> list[Row]:
    """Returns the rows of a state."""
    rows: list[Row] = []
    for one in listed:
        # What is sealed enters no index: that would be a copy in clear.
        # And of what has an end: whether it is there must be asked of the state.
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
    """Says whether what is at a path, or something in it, has an end."""
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
    """Returns the nearest float: what is equal or in order stays so, perhaps as equal."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


# --- questions ------------------------------------------------------------------------------------


def narrowed(
    conditions: Sequence[Condition], listed: Sequence[Listed], typed: Typed
) -> list[SqlCondition]:
    """Returns, for each comparison of a path with an index, what documents it may hold for."""
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
    """Returns what rows a comparison may hold for."""
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
    # Beginnings of texts and nearest floats may be equal where the values are not.
    sign = {"<": "<=", ">": ">="}.get(sign, sign)
    sort, number, said = _kept(value)
    if sort in ("number", "flag"):
        return [(f"sort = '{sort}' AND number {sign} ?", [number])]
    if sort == "text":
        return [(f"sort = 'text' AND said {sign} ?", [said])]
    return [("sort = 'text'", [])] if sort == "odd" else [("sort = 'other'", [])]


def _trusted(typed: Typed, one: StateIndex) -> set[int] | None:
    """Returns the versions of states that this program shows as they are stored; None means all.

    Those of which every schema says so that a scope of the index may have.
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

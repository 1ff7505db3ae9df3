"""What a file shows: items with fields, and what a person changed in them. Pure data.

Fields with their default are left out, so that two items are equal if their mappings are equal.
What is reported about a file is a `Finding`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import datetime
from math import isfinite
from typing import Any, Literal, cast

from msgspec import Struct

Fields = Mapping[str, Any]
"""The fields of one item by name: `title`, `status`, `priority`, …"""

DEFAULTS: dict[str, Any] = {"status": "open", "priority": 0}


def plain_fields(fields: Fields) -> dict[str, Any]:
    """Returns the fields without empty ones and defaults, with tuples instead of lists."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list):
            value = tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if value is None or value == () or DEFAULTS.get(name) == value:
            continue
        found[name] = value
    return found


def same(one: Any, other: Any) -> bool:
    """Returns whether two values are written alike: 1 and true are not, nor are 1 and 1.0."""
    if one != other or type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return all(same(value, other[key]) for key, value in cast("dict[str, Any]", one).items())
    if isinstance(one, list | tuple):
        return all(map(same, cast("list[Any]", one), other))
    return True


def shown(value: Any) -> Any:
    """Returns a value as files can show it; times, bytes, NaN and infinity become text."""
    if isinstance(value, dict):
        return {key: shown(one) for key, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [shown(one) for one in cast("list[Any]", value)]
    if isinstance(value, datetime | str):  # text may be a word for what is sealed or erased
        return str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


def taken(value: Any, before: Any) -> Any:
    """Returns a value from a file, in which unchanged parts keep their stored form.

    Otherwise a time beside an edited part would become text.
    """
    if isinstance(value, dict) and isinstance(before, dict):
        olds = cast("dict[str, Any]", before)
        return {
            key: taken(one, olds[key]) if key in olds else one
            for key, one in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list) and isinstance(before, list):
        items, old = cast("list[Any]", value), cast("list[Any]", before)
        return [*map(taken, items, old), *items[len(old) :]]
    if isinstance(value, str) and value == shown(before):
        return before
    return cast("Any", value)


FindingKind = Literal[
    "added",
    "changed",
    "removed",
    "conflict",
    "refused",
    "broken",
    "pending",
    "deleted",
    "unknown",
]


class Finding(Struct, frozen=True):
    """One thing that was found in a file, and what was done about it."""

    file: str
    kind: FindingKind
    message: str
    item: str | None = None
    diff: str = ""

    def __str__(self) -> str:
        where = self.file if self.item is None else f"{self.file} {self.item}"
        return f"{where}: {self.kind}: {self.message}"


class BrokenFile(Exception):
    """A file cannot be parsed; nothing is imported from it."""


def decode_text(data: bytes) -> str:
    """Returns the text of a file; raises BrokenFile if it is not UTF-8 text."""
    if b"\0" in data:
        raise BrokenFile("it holds a NUL byte")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BrokenFile(
            f"it is not UTF-8: byte {error.start} is {data[error.start]:#04x}"
        ) from error


class Item(Struct, frozen=True):
    """An item as a file has it. `id` is None for a line that somebody typed."""

    id: str | None
    fields: dict[str, Any]
    problem: str = ""
    """Why a part of it cannot be parsed; that field is missing in `fields`."""
    fits: bool = True
    """False if it breaks the schema of its file; then it is not accepted as a new item."""


class ItemEdit(Struct, frozen=True):
    """One item that a person added, changed or removed.

    `before` has the fields of the last text, or None if the item is new. `after` has those of the
    file, or None if it is gone. `place` is its number among the items of the file.
    """

    id: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    place: int = -1

    @property
    def changed(self) -> list[str]:
        """The names of the fields that differ."""
        before, after = self.before or {}, self.after or {}
        names: Iterable[str] = dict.fromkeys([*before, *after])
        return [name for name in names if not same(before.get(name), after.get(name))]

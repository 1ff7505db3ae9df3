"""What a file shows: items with fields, and what a person changed in them. Pure data.

Fields that say nothing are left out, so that two items are equal when their mappings are. What is
told about a file is a `Finding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

from msgspec import Struct

Fields = Mapping[str, Any]
"""The fields of one item by name: `title`, `status`, `priority`, …"""

DEFAULTS: dict[str, Any] = {"status": "open", "priority": 0}


def plain_fields(fields: Fields) -> dict[str, Any]:
    """Returns fields without those that say nothing, lists as tuples."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list):
            value = tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if value is None or value == () or DEFAULTS.get(name) == value:
            continue
        found[name] = value
    return found


def same(one: Any, other: Any) -> bool:
    """Says whether two values are written alike: 1 and true are not, nor are 1 and 1.0."""
    if one != other or type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return all(same(value, other[key]) for key, value in cast("dict[str, Any]", one).items())
    if isinstance(one, list | tuple):
        return all(map(same, cast("list[Any]", one), other))
    return True


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
    """What was found in one file, and what became of it."""

    file: str
    kind: FindingKind
    message: str
    item: str | None = None
    diff: str = ""

    def __str__(self) -> str:
        where = self.file if self.item is None else f"{self.file} {self.item}"
        return f"{where}: {self.kind}: {self.message}"


class BrokenFile(Exception):
    """A file cannot be read as what it should be: nothing in it is believed."""


def decode_text(data: bytes) -> str:
    """Returns the text of a file, or raises BrokenFile if it is no text."""
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
    """What cannot be understood in it: the field it is about is left out of `fields`."""
    fits: bool = True
    """False: it breaks the schema of its file, and a new one like that is not taken at all."""


class ItemEdit(Struct, frozen=True):
    """One item that a person added, changed or removed.

    `before` has the fields as they were last rendered, None if it is new; `after` those that the
    file has, None if it is gone. `place` is its number among the items of the file.
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

"""What callers pass to name a place in a state, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast import tree
from holdfast.errors import UsageError
from holdfast.tree import Op

Path = str | tuple[str | int, ...]


def update_ops(values: Mapping[str, Any]) -> list[Op]:
    """Returns one op per key."""
    if not isinstance(values, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"update takes a mapping, found {type(values).__name__}")
    if not values:
        raise UsageError("update was given nothing to set")
    return [tree.set_op(key, value) for key, value in values.items()]


def check_path(path: object) -> tuple[str | int, ...]:
    """Returns a path as a tuple: text is one key, a tuple is a path of keys and indexes."""
    if isinstance(path, str):
        return (path,)
    if not isinstance(path, tuple):
        raise UsageError(f"a path is text (one key) or a tuple, found {type(path).__name__}")
    for part in path:  # pyright: ignore[reportUnknownVariableType]
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise UsageError(f"a path holds keys (text) and list indexes (int), found {part!r}")
    return path  # pyright: ignore[reportUnknownVariableType]


def check_expected(expected: object) -> int:
    """Returns the revision, or raises UsageError."""
    if isinstance(expected, bool) or not isinstance(expected, int) or expected < 0:
        raise UsageError(f"expected is a revision (0, 1, 2, …) or None, found {expected!r}")
    return expected

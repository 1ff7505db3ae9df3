"""Keys and paths as callers give them."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from holdfast import UsageError
from holdfast.core.arguments import check_path


class Name(enum.StrEnum):
    STAGE = "stage"


class Number(enum.IntEnum):
    FIRST = 0


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("stage", ("stage",)),
        (Name.STAGE, ("stage",)),
        ((Name.STAGE, Number.FIRST), ("stage", 0)),
        ((), ()),
    ],
)
def test_a_path_is_plain_text_and_numbers(path: Any, steps: tuple[str | int, ...]) -> None:
    """What is stored must not depend on the caller's classes (guarantee 10)."""
    found = check_path(path)
    assert found == steps
    assert [type(step) for step in found] == [type(step) for step in steps]


@pytest.mark.parametrize("path", [None, 0, b"stage", ["stage"], ("stage", True), (1.5,), (b"x",)])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(UsageError, match="a path"):
        check_path(path)

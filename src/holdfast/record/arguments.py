"""What callers pass to the record, checked."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.arguments import check_duration
from holdfast.errors import UsageError, show_value
from holdfast.event import to_datetime
from holdfast.ids import check_name

TEXT_CHARACTERS_MAX = 65_536


def check_text(text: Any, what: str, *, optional: bool = False) -> Any:
    """Returns a text of reasonable length, or None where that is allowed; else UsageError."""
    if optional and text is None:
        return None
    if not isinstance(text, str) or not text.strip() or len(text) > TEXT_CHARACTERS_MAX:
        size = f"text of {len(text)} characters" if isinstance(text, str) and text else None
        raise UsageError(
            f"{what} is text of 1 to {TEXT_CHARACTERS_MAX} characters, "
            f"found {size or show_value(text)}"
        )
    return str.__str__(text)


def name_of(scope: object) -> str:
    """Returns the name of a scope, for asyncio or not, that is given itself or by its name."""
    name = getattr(scope, "name", scope)
    if not isinstance(name, str):
        raise UsageError(f"a scope is a scope or its name, found {show_value(scope)}")
    return check_name(name, "scope")


def older_bound(now_us: int, older_than: object) -> datetime:
    """Returns the moment that lies a length of time before now."""
    return to_datetime(now_us - round(check_duration(older_than, "older_than") * 1_000_000))

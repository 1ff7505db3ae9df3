"""Checks of arguments that many calls share: paths, numbers, lengths of time, texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from holdfast.core import tree
from holdfast.core.codec import Thawable, closed_items
from holdfast.core.event import from_datetime, to_datetime
from holdfast.core.tree import Op
from holdfast.errors import UsageError, show_value
from holdfast.names import check_scope_name

Path = str | tuple[str | int, ...]


def update_ops(values: Mapping[str, Any]) -> list[Op]:
    """Returns one `set` op for each key of a mapping, which must not be empty."""
    if not isinstance(values, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"update takes a mapping, found {type(values).__name__}")
    if not values:
        raise UsageError("update was given nothing to set")
    items = closed_items(values) if isinstance(values, Thawable) else values
    return [tree.set_op(key, value) for key, value in items.items()]


def check_path(path: object) -> tuple[str | int, ...]:
    """Returns a path as a tuple: text is one key, a tuple is a path of keys and indexes.

    A text is always one key, even with dots, because a state is a mapping: `for key in state:
    state[key]` must find each. `parse_path` is for text that is a path. A subclass of str or int,
    such as a StrEnum, counts as the plain text or number.
    """
    if type(path) is str:
        return (path,)
    if isinstance(path, str):
        return (str.__str__(path),)
    if not isinstance(path, tuple):
        raise UsageError(f"a path is text (one key) or a tuple, found {type(path).__name__}")
    return tuple(map(_check_step, cast("tuple[object, ...]", path)))


def _check_step(step: object) -> str | int:
    if isinstance(step, str):
        return str.__str__(step)
    if isinstance(step, bool) or not isinstance(step, int):
        raise UsageError(
            f"a path holds keys (text) and list indexes (int), found {show_value(step)}"
        )
    return int(step)


_STEP = re.compile(r"(?:\A|\.)(?P<key>[^.\[\]]+)|\[(?P<index>-?[0-9]{1,18})\]")


def parse_path(text: str) -> tuple[str | int, ...]:
    """Returns the path that a text means, as typed on the command line and in queries.

    Dots separate keys, list indexes stand in brackets: `customer.name`, `messages[0].text`. A text
    that begins with `[` is a JSON array of keys and indexes, so that any key can be reached:
    `["a.b",0]`; `[]` is the whole state.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a path is text such as customer.name, found {show_value(text)}")
    if text.startswith("["):
        return _parse_json_path(text)
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        match = None if text.startswith(".") else _STEP.match(text, at)
        if match is None:
            raise _bad_path(text, at)
        steps.append(match["key"] if match["key"] is not None else int(match["index"]))
        at = match.end()
    if not steps:
        raise _bad_path(text, 0)
    return tuple(steps)


def _parse_json_path(text: str) -> tuple[str | int, ...]:
    try:
        steps = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad_path(text, getattr(error, "pos", 0)) from error
    for step in steps:
        if isinstance(step, bool) or not isinstance(step, str | int):
            raise UsageError(
                f"path {text!r:.80} holds {step!r:.40}: expected keys (text) and list indexes",
                hint='write it like ["a.b",0]',
            )
    return tuple(steps)


def _bad_path(text: str, at: int) -> UsageError:
    found = repr(text[at]) if at < len(text) else "its end"
    return UsageError(
        f"path {text!r:.80} cannot be read at character {at + 1}, found {found}",
        hint="""write it like customer.name, messages[0].text or '["a.b",0]'""",
    )


def check_whole(value: object, what: str, *, least: int = 0) -> int:
    """Returns a whole number that every backend can hold, or raises UsageError."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 63:
        raise UsageError(f"{what} is a whole number from {least} on, found {show_value(value)}")
    return value


Duration = float | str | timedelta
"""A length of time as callers give it: seconds, text such as "1h30m", or a timedelta."""


def check_seconds(value: object, what: str, *, above: float = 0) -> float:
    """Returns the seconds of a length of time, or raises UsageError."""
    seconds = _length_of(value, what) if isinstance(value, str | timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not above < cast("float", seconds) < 1e12:
        raise UsageError(
            f'{what} is a number of seconds above {max(above, 0)}, or a text such as "1h30m", '
            f"found {show_value(value)}"
        )
    return cast("float", seconds)


def check_ttl(value: object) -> float:
    """Returns a lifetime in seconds, from a millisecond to a thousand years; else UsageError."""
    seconds = check_seconds(value, "ttl_s", above=0.000_999)
    if seconds > DURATION_MAX_S:
        raise UsageError(
            f"ttl_s is at most a thousand years, found {show_value(value)}",
            hint="leave ttl_s out: then it lasts",
        )
    return seconds


def check_key_ttl(ops: Sequence[Op], ttl_s: object) -> dict[tuple[str | int, ...], int]:
    """Returns how long the values of some `set` ops last, in microseconds, by path."""
    ttl_us = round(check_ttl(ttl_s) * 1_000_000)
    for op in ops:
        if not op.keys:
            raise UsageError(
                "the whole state has no end of its own: name a key or a path",
                hint="scope(…, ttl_s=…) begins a scope that ends as a whole",
            )
        if any(type(step) is int for step in op.keys):
            raise UsageError(
                f"{tree.describe(op.keys)} lies in a list: expected a path of keys, because items "
                "of a list move, and an end stays at its path",
                hint="give the list an end as a whole, or keep the values in a mapping",
            )
    return {op.keys: ttl_us for op in ops}


def check_ends_alone(*, diff: object) -> None:
    """Raises UsageError if `diff` is given together with `ttl_s`."""
    if check_flag(diff, "diff"):
        raise UsageError(
            "ttl_s gives a new value an end, and diff stores parts of one: expected one of them"
        )


def check_alone(what: str, **others: object) -> None:
    """Raises UsageError if an argument is given together with others that exclude it."""
    if given := [name for name, value in others.items() if value not in (None, False)]:
        raise UsageError(f"{what} does not go with {' or '.join(given)}: expected one of them")


def check_timeout(value: object) -> float | None:
    """Returns how long to wait in seconds, or None to wait for ever; else UsageError."""
    return None if value is None else check_seconds(value, "timeout_s", above=-1e-9)


def check_flag(value: object, what: str) -> bool:
    """Returns a bool; raises UsageError for anything else, even for a truthy value."""
    if not isinstance(value, bool):
        raise UsageError(f"{what} is True or False, found {show_value(value)}")
    return value


def check_call(value: object, what: str) -> None:
    """Raises UsageError if a value cannot be called."""
    if not callable(value):
        raise UsageError(f"{what} is a function, found {show_value(value)}")


def check_expected(expected: object) -> int:
    """Returns an expected revision, or raises UsageError."""
    if isinstance(expected, bool) or not isinstance(expected, int) or not 0 <= expected < 1 << 63:
        raise UsageError(
            f"expected is a revision (0, 1, 2, …) or None, found {show_value(expected)}"
        )
    return expected


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
DURATION_MAX_S = 1000 * 366 * 86400.0
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?[smhdw])+\Z")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")


def check_duration(value: object, what: str) -> float:
    """Returns seconds for "45s", "1h30m", "2d", a timedelta or a number, or raises UsageError."""
    seconds = check_seconds(value, what)
    if seconds > DURATION_MAX_S:
        # A datetime cannot express moments much further away than this.
        raise UsageError(f"{what} is at most 1000 years, found {show_value(value)}")
    return seconds


def _length_of(value: str | timedelta, what: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if len(value) > 64 or not _DURATION.match(value):
        raise UsageError(
            f'{what} is a length of time such as "45s", "1h30m" or "2d", found {show_value(value)}'
        )
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(value))


# --- arguments ------------------------------------------------------------------------------------
#
# Checks of arguments that the calls for the record take.


TEXT_CHARACTERS_MAX = 65_536


def check_text(text: Any, what: str, *, optional: bool = False) -> Any:
    """Returns a text of at most 65,536 characters, or None if `optional`; else UsageError."""
    if optional and text is None:
        return None
    if not isinstance(text, str) or not text.strip() or len(text) > TEXT_CHARACTERS_MAX:
        size = f"text of {len(text)} characters" if isinstance(text, str) and text else None
        raise UsageError(
            f"{what} is text of 1 to {TEXT_CHARACTERS_MAX} characters, "
            f"found {size or show_value(text)}"
        )
    return str.__str__(text)


def check_word(given: object, what: str) -> str | None:
    """Returns a text that a query compares with; None if the query leaves it open."""
    if given is None:
        return None
    if isinstance(given, str) and given:
        return str.__str__(given)
    raise UsageError(f"{what} is text, found {show_value(given)}")


def name_of(scope: object) -> str:
    """Returns the name of a scope, given the scope (sync or async) or its name."""
    name = getattr(scope, "name", scope)
    if not isinstance(name, str):
        raise UsageError(f"a scope is a scope or its name, found {show_value(scope)}")
    return check_scope_name(name)


def check_import_time(time: object) -> int:
    """Returns the stored form of an import's time, or raises UsageError."""
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UsageError(
            f"the time of an import is a datetime with a time zone, found {show_value(time)}"
        )
    stored = from_datetime(time)
    if stored < 0:
        raise UsageError(f"the time of an import is before 1970: found {time.isoformat()}")
    return stored


def older_bound(now_us: int, older_than: object) -> datetime:
    """Returns the moment that is a length of time before now."""
    return to_datetime(now_us - round(check_duration(older_than, "older_than") * 1_000_000))


def check_since(given: object, what: str, now_us: int) -> int:
    """Returns the stored form of a time, given as a datetime or as "7d" before now."""
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise UsageError(f"{what} needs a time zone, found {show_value(given)}")
        return from_datetime(given)
    if isinstance(given, str) and not given[:1].isdecimal():
        raise UsageError(
            f'{what} is a time, or a length of time before now such as "7d", '
            f"found {show_value(given)}"
        )
    return now_us - round(check_duration(given, what) * 1_000_000)

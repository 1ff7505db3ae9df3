"""Values of a program: how text is converted where another kind is needed. Pure functions.

A session returns text. A member or an index of a text parses it as JSON; a collection is a JSON
array or lines; a number is a text that is one. A value that does not fit raises a StepError with
the line.
"""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from holdfast.errors import StepError

_FENCED = re.compile(r"```[\w-]*\s*\n(.*?)\n?```", re.DOTALL)
_MARKER = re.compile(r"\s*(?:[-*]|\d+[.)])\s+")
_NUMBER = re.compile(r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\s*\Z")
_YES = re.compile(r"\W*(?:yes|true|keep|1)\b", re.IGNORECASE)
_NO = re.compile(r"\W*(?:no|false|drop|0)\b", re.IGNORECASE)


def failure(kind: str, text: str, line: int) -> StepError:
    """Returns an error of the program with its line, which `catch` can handle."""
    return StepError(kind, text, {"line": line})


def _misfit(kind: str, text: str, line: int) -> StepError:
    """Returns the error for a value of the wrong kind; its message names the line."""
    return failure(kind, f"line {line}: {text}", line)


def text_of(value: Any) -> str:
    """Converts a value to text: a list to lines, an object to JSON."""
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    if isinstance(value, list):
        return "\n".join(text_of(item) for item in cast("list[Any]", value))
    return json_of(value)


def json_of(value: Any) -> str:
    """Returns a value as JSON."""
    return msgspec.json.encode(value).decode()


def parsed(text: str) -> tuple[bool, Any]:
    """Returns whether a text, or the first fenced block in it, is JSON, and the parsed value."""
    for found in (text, *_FENCED.findall(text)[:1]):
        try:
            return True, msgspec.json.decode(found.strip())
        except msgspec.DecodeError:
            continue
    return False, None


def structure(value: Any, shown: str, line: int) -> Any:
    """Returns a value, parsed as JSON if it is text; raises if the text is not JSON."""
    if isinstance(value, str):
        is_json, found = parsed(value)
        if not is_json:
            raise _misfit("TypeError", f"{shown}: the text before it is not JSON", line)
        return found
    return value


def member(value: Any, name: str, shown: str, line: int) -> Any:
    """Returns a member of an object."""
    found = structure(value, shown, line)
    if not isinstance(found, dict):
        raise _misfit("TypeError", f"{shown}: there is no object to take .{name} of", line)
    known = cast("dict[str, Any]", found)
    if name not in known:
        raise _misfit("KeyError", f"{shown}: it has no member {name}", line)
    return known[name]


def item(value: Any, index: Any, shown: str, line: int) -> Any:
    """Returns an item of a list, or a member of an object by its name."""
    found = structure(value, shown, line)
    if isinstance(found, dict):
        return member(cast("Any", found), text_of(index), shown, line)
    place = number(index)
    if not isinstance(found, list) or not isinstance(place, int):
        raise _misfit("TypeError", f"{shown}: there is no list, or no whole number", line)
    items = cast("list[Any]", found)
    if not 0 <= place < len(items):
        raise _misfit("IndexError", f"{shown}: it has {len(items)} items", line)
    return items[place]


def collection(value: Any, line: int) -> list[Any]:
    """Returns the items of a list, an object or a text."""
    if value is None or value == "":
        return []
    if isinstance(value, list):
        return cast("list[Any]", value)
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    if not isinstance(value, str):
        raise _misfit("TypeError", f"{json_of(value)} is no collection", line)
    is_json, found = parsed(value)
    if is_json and isinstance(found, list | dict):
        return collection(cast("Any", found), line)
    lines = (_MARKER.sub("", one, count=1).strip() for one in value.splitlines())
    return [one for one in lines if one]


def number(value: Any) -> int | float | None:
    """Converts a number, or a text that is one, to a number; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, str) and _NUMBER.match(value):
        text = value.strip()
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    return None


def whole(value: Any, what: str, line: int) -> int:
    """Returns a count, which must be a whole number from 0 up."""
    found = number(value)
    if not isinstance(found, int) or found < 0:
        raise _misfit("TypeError", f"{what} is a whole number, found {json_of(value)}", line)
    return found


def said(value: Any) -> bool | None:
    """Returns a value as an answer to a yes or no question; None if it does not say."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not value.strip() or _NO.match(value):
            return False
        return True if _YES.match(value) else None
    return bool(value)


def added(left: Any, right: Any) -> Any:
    """Returns a sum: of numbers, of lists, else of texts."""
    if _is_number(left) and _is_number(right):
        return left + right
    if isinstance(left, list):
        more: list[Any] = cast("list[Any]", right) if isinstance(right, list) else [right]
        return [*cast("list[Any]", left), *more]
    return text_of(left) + text_of(right)


def calculated(operator: str, left: Any, right: Any, line: int) -> Any:
    """Returns a difference, a product or a quotient of numbers."""
    first, second = number(left), number(right)
    if first is None or second is None:
        wrong = left if first is None else right
        raise _misfit("TypeError", f"{operator} takes numbers, found {json_of(wrong)}", line)
    if operator == "-":
        return first - second
    if operator == "*":
        return first * second
    if second == 0:
        raise _misfit("ZeroDivisionError", f"{json_of(left)} / 0", line)
    found = first / second
    return int(found) if found.is_integer() and abs(found) < 1 << 53 else found


def compared(operator: str, left: Any, right: Any) -> bool:
    """Compares two values: as numbers if both are, else as texts."""
    if operator in ("==", "!="):
        return _equal(left, right) == (operator == "==")
    first, second = number(left), number(right)
    one: Any = first
    other: Any = second
    if first is None or second is None:
        one, other = text_of(left), text_of(right)
    if operator == "<":
        return one < other
    if operator == "<=":
        return one <= other
    return one > other if operator == ">" else one >= other


def _equal(left: Any, right: Any) -> bool:
    if _is_number(left) or _is_number(right):
        first, second = number(left), number(right)
        if first is not None and second is not None:
            return first == second
    return type(left) is type(right) and left == right


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

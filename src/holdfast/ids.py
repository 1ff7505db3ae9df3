"""Ids that sort by time, and the rule for names that users choose."""

from __future__ import annotations

import re

from holdfast.clock import Clock
from holdfast.errors import UsageError, show_value

NAME_BYTES_MAX = 512

_LEVEL = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_BY_CHANCE = (_ALPHABET * 8).encode()
"""A character for each byte, every one for as many: five bits of it count."""


def new_id(clock: Clock) -> str:
    """Returns 26 characters that sort by creation time: 48 bits of milliseconds, 80 of chance."""
    ms = clock.now_us() // 1000 & (1 << 48) - 1
    when = "".join([_PAIRS[ms >> shift & 1023] for shift in (40, 30, 20, 10, 0)])
    return when + clock.random_bytes(16).translate(_BY_CHANCE).decode()


def short_id(clock: Clock) -> str:
    """Returns 8 random characters, enough to tell the workers of one store apart."""
    return clock.random_bytes(8).translate(_BY_CHANCE).decode()


def check_level(level: object) -> str:
    """Returns the level, or raises UsageError: lower-case letters, digits, `_` and `-`."""
    if not isinstance(level, str) or not _LEVEL.match(level):
        raise UsageError(
            f"level {show_value(level)} is not a name: expected a lower-case letter, then at most "
            "31 letters, digits, '_' or '-'"
        )
    return str.__str__(level)


def check_name(name: object, what: str) -> str:
    """Returns a user's name for a scope, checkpoint, lease or key, or raises UsageError.

    Any text that a person could type is fine, slashes and emoji included: a name is data, never a
    path. Control characters and lone surrogates are refused because they could not be shown.
    """
    if not isinstance(name, str):
        raise UsageError(f"{what} must be text, found {type(name).__name__}")
    if type(name) is not str:
        # A StrEnum is text too, and is kept as what it holds; not every encoder would take it.
        name = str.__str__(name)
    if 0 < len(name) <= NAME_BYTES_MAX and name.isascii() and name.isprintable():
        return name
    if not name:
        raise UsageError(f"{what} is empty: expected at least one character")
    bad = _CONTROL.search(name)
    if bad:
        raise UsageError(
            f"{what} {name[:40]!r} holds the character {bad.group()!r} at {bad.start()}: "
            "control characters and lone surrogates cannot be part of a name"
        )
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        raise UsageError(f"{what} {name[:40]!r}… takes {size} bytes: at most {NAME_BYTES_MAX} fit")
    return name

"""Which messages a prompt needs, where the newest few are not the ones: by a scorer or by names.

It reads every message of the conversation. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import cast

from holdfast.errors import UsageError, show_value
from holdfast.record.facts import Fact
from holdfast.record.message import Message

Score = Callable[[Message], float]
By = Score | Iterable[str]
"""What messages are chosen by: a function that scores one, or names that they mention."""


def check_names(by: object) -> tuple[str, ...] | None:
    """Returns the names to choose by, None for a function, or raises UsageError."""
    if callable(by):
        return None
    names = (by,) if isinstance(by, str) else by
    if isinstance(names, Iterable):
        found = tuple(cast("Iterable[object]", names))
        if found and all(isinstance(name, str) and name.strip() for name in found):
            return cast("tuple[str, ...]", found)
    raise UsageError(
        f"messages are chosen by a function that scores one, or by names, found {show_value(by)}"
    )


def choose(messages: Iterable[Message], by: By, n: int) -> list[Message]:
    """Returns the n messages with the highest score above 0, of equals the newest, oldest first."""
    names = check_names(by)
    score = cast("Score", by) if names is None else _mentions(names)
    scored: list[tuple[float, int, Message]] = []
    for at, message in enumerate(messages):
        found = _check_score(score(message))
        if found > 0:
            scored.append((found, at, message))
    best = sorted(scored, key=lambda one: one[:2])[-n:] if n else []
    return [message for _, _, message in sorted(best, key=lambda one: one[1])]


def _check_score(score: object) -> float:
    if not isinstance(score, int | float) or score != score:
        raise UsageError(f"a score is a number, found {show_value(score)}")
    return score


def about(facts: Iterable[Fact], names: tuple[str, ...]) -> list[str]:
    """Returns a line for each fact that is about one of the names; a stale one says so."""
    has = _pattern(names)
    return [
        f"{fact.name}: {fact.value}{f' (stale: {fact.reason})' if fact.stale else ''}"
        for fact in facts
        if has.search(fact.about or "") or has.search(fact.name)
    ]


def _mentions(names: tuple[str, ...]) -> Score:
    has = _pattern(names)
    return lambda message: len(has.findall(message.text))


def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Returns what finds a name as a word of its own, however it is capitalised."""
    words = "|".join(re.escape(name.strip()) for name in names)
    return re.compile(rf"(?<![^\W_])(?:{words})(?![^\W_])", re.IGNORECASE)

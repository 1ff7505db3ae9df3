"""Which scopes there are: names by level and prefix, and the levels that the store itself knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.backends.protocol import Mark
from holdfast.core.log import LEVELS, Log
from holdfast.core.page import PAGE_SIZE
from holdfast.names import GLOBAL, Level, Levels

_LEVELS_MAX = 10_000


def note_level(log: Log, level: Level) -> None:
    """Sees to it that the store knows a registered level as soon as it has a scope of it.

    The commit that begins the first such scope sets a mark. Nothing is written before: to open a
    store and look at it leaves it as it is. A mark lies where the scope does, in a store over
    several backends too.
    """
    log.unrecorded[level.name] = Mark(
        LEVELS, level.name, priority=int(level.keep), group=level.below
    )


def adopt_levels(log: Log, levels: Levels) -> None:
    """Adds the levels that are recorded in the store to those that this process has registered."""
    waiting = {mark.key: mark for mark in log.marks.list(LEVELS, limit=_LEVELS_MAX)}
    while waiting:
        # Those first whose level above is known; what is left then is below the narrowest.
        fits = [mark for mark in waiting.values() if levels.has(mark.group)]
        for mark in fits or list(waiting.values()):
            levels.adopt(mark.key, below=mark.group, keep=mark.priority > 0)
            del waiting[mark.key]


def scope_names(
    log: Log, levels: Sequence[str], *, prefix: str, after: str, limit: int | None
) -> list[str]:
    """Returns the names of scopes of some levels, sorted: those that begin with a prefix.

    One question for each level, however many other streams lie between them.
    """
    absent = log.absent()
    names: list[str] = []
    for root in sorted(GLOBAL if level == GLOBAL else f"{level}/" for level in levels):
        if root.startswith(prefix) or (prefix.startswith(root) and root != GLOBAL):
            left = None if limit is None else limit - len(names)
            names += _names_below(log, max(root, prefix), after, left, absent)
        if limit is not None and len(names) >= limit:
            break
    return names


def _names_below(
    log: Log, prefix: str, after: str, limit: int | None, absent: set[str]
) -> list[str]:
    if prefix == GLOBAL:
        # The first that begins so, if it is there; a level may be named `global-…`.
        page = log.stream_page(prefix=prefix, after=after, limit=1)
        return [name for name in page if name == GLOBAL and name not in absent]
    names: list[str] = []
    while limit is None or len(names) < limit:
        wanted = PAGE_SIZE if limit is None else limit - len(names)
        page = log.stream_page(prefix=prefix, after=after, limit=wanted)
        names += [name for name in page if name not in absent]
        if len(page) < wanted:
            break
        after = page[-1]
    return names


def first_words(log: Log) -> Iterator[str]:
    """Yields what names of streams begin with, up to the first slash: one question for each."""
    after = ""
    while names := log.stream_page(after=after, limit=1):
        word, slash, _ = names[0].partition("/")
        yield word
        after = f"{word}0" if slash else word  # "0" follows "/"

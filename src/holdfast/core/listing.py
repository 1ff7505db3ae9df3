"""Which scopes there are: names by level and prefix, and the levels that the store itself knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.backends.protocol import Mark
from holdfast.core import event
from holdfast.core.log import LEVELS, Log
from holdfast.core.page import PAGE_SIZE
from holdfast.errors import CorruptError, NotFoundError
from holdfast.names import (
    ESCAPE,
    GLOBAL,
    HEAD_BYTES_MIN,
    Level,
    Levels,
    cut_escaped,
    escape,
    has_digest,
    split_name,
    stored_id,
    unescape,
)

if TYPE_CHECKING:
    from holdfast.core.kernel import Kernel

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


def register_level(kernel: Kernel, name: str, *, below: str, keep: bool = True) -> None:
    """Adds a level of scopes to an open store; `keep` says what closing one does to its state.

    The first scope of it that is begun records it in the store, for every other process.
    """
    kernel.levels.register(name, below=below, keep=keep)
    for level in kernel.levels.registered():
        if level.name == name:
            note_level(kernel.log, level)


def adopt_levels(log: Log, levels: Levels) -> None:
    """Adds the levels that are recorded in the store to those that this process has registered."""
    waiting = {mark.key: mark for mark in log.marks.list(LEVELS, limit=_LEVELS_MAX)}
    while waiting:
        # Those first whose level above is known; what is left then is below the narrowest.
        fits = [mark for mark in waiting.values() if levels.has(mark.group)]
        for mark in fits or list(waiting.values()):
            levels.adopt(mark.key, below=mark.group, keep=mark.priority > 0)
            del waiting[mark.key]


class NamePage(Protocol):
    """What returns names that begin with a prefix and come after another, in order."""

    def __call__(self, *, prefix: str, after: str, limit: int) -> list[str]: ...


def scope_names(
    log: Log,
    levels: Sequence[str],
    *,
    prefix: str,
    after: str,
    limit: int | None,
    pages: NamePage | None = None,
) -> list[str]:
    """Returns the names of scopes of some levels, sorted: those that begin with a prefix.

    One question for each level, however many other streams lie between them. `pages` is what has
    the names, where they are not those of all streams.
    """
    pages = pages or log.stream_page
    names: list[str] = []
    for root in sorted(GLOBAL if level == GLOBAL else f"{level}/" for level in levels):
        if root.startswith(prefix) or (prefix.startswith(root) and root != GLOBAL):
            left = None if limit is None else limit - len(names)
            if max(root, prefix) == GLOBAL:
                # The first that begins so, if it is there; a level may be named `global-…`.
                page = pages(prefix=GLOBAL, after=after, limit=1)
                names += [name for name in page if name == GLOBAL and not log.absent(page)]
            else:
                names += names_beginning(log, max(root, prefix), after, left, pages)
        if limit is not None and len(names) >= limit:
            break
    return names


def names_beginning(
    log: Log, prefix: str, after: str, limit: int | None, pages: NamePage | None = None
) -> list[str]:
    """Returns stored names that begin so and come after another, but for scopes that are removed.

    Of each page of names it is asked which of them are: however many others there are.
    """
    pages = pages or log.stream_page
    names: list[str] = []
    asked = _asked(prefix)
    while limit is None or len(names) < limit:
        wanted = PAGE_SIZE if limit is None else limit - len(names)
        page = pages(prefix=asked, after=after, limit=wanted)
        fitting = page if asked == prefix else _beginning(log, page, prefix)
        absent = log.absent(fitting)
        names += [name for name in fitting if name not in absent]
        if len(page) < wanted:
            break
        after = page[-1]
    return names


def stored_prefix(level: str | None, prefix: str) -> str:
    """Returns what stored names begin with if ids of a level, or whole names, begin with a text.

    A prefix of whole names in which there is an escape is one of stored names.
    """
    if level is not None:
        return prefix and f"{level}/{escape(prefix)}"
    above, slash, id = prefix.partition("/")
    return prefix if ESCAPE in id else f"{above}{slash}{escape(id)}"


def _asked(prefix: str) -> str:
    """Returns the part of a prefix that every stored name has in which a digest follows it."""
    level, slash, id = prefix.partition("/")
    return f"{level}{slash}{cut_escaped(id, HEAD_BYTES_MIN)}"


def _beginning(log: Log, names: list[str], prefix: str) -> list[str]:
    """Returns the names whose ids begin as a prefix does that is longer than names can tell."""
    long = [name for name in names if has_digest(name)]
    whole = {
        name: f"{split_name(name)[0]}/{escape(id)}"
        for name, id in zip(long, whole_ids(log, long), strict=True)
    }
    return [name for name in names if whole.get(name, name).startswith(prefix)]


def whole_ids(log: Log, names: Sequence[str]) -> list[str]:
    """Returns the ids of scopes whose names have a digest, in one read where that is possible.

    The first event of each has the whole id, which the digest is of.
    """
    ids: list[str] = []
    for name, first in zip(names, log.first_of(names), strict=True):
        if first is None:
            raise NotFoundError(
                f'scope "{name}" is not there: the digest in its name does not tell its id',
                hint="open it with its level and its whole id",
            )
        id = unescape(event.id_of(first) or "")
        if not id or stored_id(id) != split_name(name)[1]:
            raise CorruptError(
                f'event {first.revision} of "{name}" does not have the id that its name has a '
                "digest of",
                stream=name,
                revision=first.revision,
            )
        ids.append(id)
    return ids


def first_words(log: Log) -> Iterator[str]:
    """Yields what names of streams begin with, up to the first slash: one question for each."""
    after = ""
    while names := log.stream_page(after=after, limit=1):
        word, slash, _ = names[0].partition("/")
        yield word
        after = f"{word}0" if slash else word  # "0" follows "/"

"""Lists scopes by level and prefix, and reads the levels that the store itself has recorded."""

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
    """Makes the store record a registered level with the first scope of it that begins.

    The commit that begins that scope sets a mark. Nothing is written before, so a store that is
    only opened and read does not change. In a mixed store the mark is kept where the scope is.
    """
    log.unrecorded[level.name] = Mark(
        LEVELS, level.name, priority=int(level.keep), group=level.below
    )


def register_level(kernel: Kernel, name: str, *, below: str, keep: bool = True) -> None:
    """Adds a level of scopes to an open store; `keep` says whether closing one keeps its state.

    The first scope of the level that begins records it in the store, for all other processes.
    """
    kernel.levels.register(name, below=below, keep=keep)
    for level in kernel.levels.registered():
        if level.name == name:
            note_level(kernel.log, level)


def adopt_levels(log: Log, levels: Levels) -> None:
    """Adds the levels that are recorded in the store to those that this process has registered."""
    waiting = {mark.key: mark for mark in log.marks.list(LEVELS, limit=_LEVELS_MAX)}
    while waiting:
        # First those whose level above is known. If there is none, all that are left are adopted.
        fits = [mark for mark in waiting.values() if levels.has(mark.group)]
        for mark in fits or list(waiting.values()):
            levels.adopt(mark.key, below=mark.group, keep=mark.priority > 0)
            del waiting[mark.key]


class NamePage(Protocol):
    """Returns names in order that begin with a prefix and come after a name."""

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

    Each level is asked for by itself, so other streams between them cost nothing. `pages` returns
    the names to choose from, if these are not those of all streams.
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
    """Returns stored names that begin with a prefix and come after a name, without removed scopes.

    Which of them are removed is asked for each page of names, so other removed scopes cost nothing.
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
    """Returns the prefix of stored names for a prefix of the ids of a level, or of whole names.

    A prefix of whole names that has an escape in it counts as one of stored names already.
    """
    if level is not None:
        return prefix and f"{level}/{escape(prefix)}"
    above, slash, id = prefix.partition("/")
    return prefix if ESCAPE in id else f"{above}{slash}{escape(id)}"


def _asked(prefix: str) -> str:
    """Returns the part of a prefix that is sure to stand in stored names that have a digest."""
    level, slash, id = prefix.partition("/")
    return f"{level}{slash}{cut_escaped(id, HEAD_BYTES_MIN)}"


def _beginning(log: Log, names: list[str], prefix: str) -> list[str]:
    """Returns the names that begin with a prefix; those with a digest are judged by their ids."""
    long = [name for name in names if has_digest(name)]
    whole = {
        name: f"{split_name(name)[0]}/{escape(id)}"
        for name, id in zip(long, whole_ids(log, long), strict=True)
    }
    return [name for name in names if whole.get(name, name).startswith(prefix)]


def whole_ids(log: Log, names: Sequence[str]) -> list[str]:
    """Returns the ids of scopes whose names have a digest, in one read where that is possible.

    The first event of each scope has the whole id, and the name has the digest of it.
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
    """Yields the first words of stream names, up to the first slash, with one read for each."""
    after = ""
    while names := log.stream_page(after=after, limit=1):
        word, slash, _ = names[0].partition("/")
        yield word
        after = f"{word}0" if slash else word  # "0" follows "/"

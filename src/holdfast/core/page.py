"""One page of a list, and the cursors that lead from one page to the next.

Every list of a store is bounded and says whether there is more: scopes, events, runs, decisions,
tasks, marks, checkpoints, workers. A cursor is text that only the list that gave it can read.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar, cast

from holdfast.backends.protocol import Mark, mark_order
from holdfast.core.arguments import check_whole
from holdfast.errors import UsageError, show_value

T = TypeVar("T")

PAGE_SIZE = 1000
"""How many items a page has at most, unless the caller gives another number, or None for all."""

NO_LIMIT = 1 << 31
"""More than a store has of anything: as a limit it means all."""

Key = tuple[Any, ...]
"""What a list is sorted by: plain values, different for each of its items."""


class Page(list[T]):
    """Some items of a longer list; it is a `list` itself."""

    def __init__(
        self,
        items: Iterable[T] = (),
        *,
        more: bool = False,
        cursor: str | None = None,
        start: str | None = None,
    ) -> None:
        super().__init__(items)
        self.more = more
        """Whether the list goes on after this page."""
        self.cursor = cursor
        """Where this page ends. Give it to the same call as `after` to get the next page (as
        `before` for events that are read from the newest on)."""
        self.start = start
        """For events, where this page begins: it leads to the events on the other side."""


def check_limit(limit: object) -> int | None:
    """Returns how many items are asked for, None for all, or raises UsageError."""
    return None if limit is None else check_whole(limit, "limit", least=1)


def mark_key(mark: Mark) -> Key:
    """Returns the key that marks are sorted by (clause 17)."""
    return mark_order(mark)


def read_mark(cursor: object) -> Mark:
    """Returns the mark that a page of marks ended with, without its group; or raises UsageError."""
    parts = read_cursor("marks", cursor)
    if list(map(type, parts)) != [int, int, str, str]:
        raise _not_a_cursor("marks", cursor)
    below, due, key, index = parts
    return Mark(index, key, due, -below)


def write_cursor(kind: str, *parts: object) -> str:
    """Returns the cursor of a place in a list of that kind."""
    text = json.dumps([kind, *parts], ensure_ascii=False, separators=(",", ":"))
    return urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def read_cursor(kind: str, cursor: object) -> Key:
    """Returns what was written into a cursor, or raises UsageError if it is not of that kind."""
    try:
        text = str.__str__(cast("str", cursor))
        parts = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if parts[0] == kind:
            return tuple(parts[1:])
    except (TypeError, ValueError, LookupError, RecursionError) as error:
        raise _not_a_cursor(kind, cursor) from error
    raise _not_a_cursor(kind, cursor)


def _not_a_cursor(kind: str, cursor: object) -> UsageError:
    return UsageError(
        f"{show_value(cursor)} is not a cursor of {kind}",
        hint="give the cursor of the page before, as it is",
    )


def is_after(key: Key, passed: Key) -> bool:
    """Returns whether an item comes after the place that a cursor holds, or raises UsageError."""
    try:
        return key > passed
    except TypeError as error:  # of another list, or made up
        raise UsageError(
            "the cursor is one of another list", hint="give the cursor of the page before, as it is"
        ) from error


def cut(
    kind: str,
    items: Iterable[T],
    key: Callable[[T], Key],
    *,
    after: str | None,
    limit: int | None,
) -> Page[T]:
    """Returns one page of items that are sorted by a key that no two of them share.

    It goes on by the key and not by a count, so items that come or go between two pages neither
    repeat nor hide another. Items may be an iterator: only one item after the page is read, which
    says that there is more.
    """
    limit = check_limit(limit)
    rest = iter(items)
    if after is not None:
        passed = read_cursor(kind, after)
        rest = (item for item in items if is_after(key(item), passed))
    page = list(islice(rest, limit))
    cursor = write_cursor(kind, *key(page[-1])) if page else after
    return Page(page, more=any(True for _ in rest), cursor=cursor)

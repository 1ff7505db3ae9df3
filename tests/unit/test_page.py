"""Pages of a list that is at hand, and the cursors between them."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest

from holdfast.core.page import Key, Page, check_limit, cut, read_cursor, write_cursor
from holdfast.errors import UsageError


def _key(item: tuple[int, str]) -> Key:
    return (-item[0], item[1])


def _pages(items: list[tuple[int, str]], limit: int | None) -> list[Page[tuple[int, str]]]:
    pages = [cut("things", items, _key, after=None, limit=limit)]
    while pages[-1].more:
        pages.append(cut("things", items, _key, after=pages[-1].cursor, limit=limit))
    return pages


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7, None])
def test_pages_hold_each_item_once(limit: int | None) -> None:
    items = sorted([(n % 3, name) for n, name in enumerate(("é", "b", "\ud800", "d", "\n", "f"))])
    items.sort(key=_key)
    pages = _pages(items, limit)
    assert [item for page in pages for item in page] == items
    assert all(len(page) == limit for page in pages[:-1])
    last = cut("things", items, _key, after=pages[-1].cursor, limit=limit)
    assert (last, last.more, last.cursor) == ([], False, pages[-1].cursor)


def test_what_comes_and_goes_between_two_pages_hides_nothing() -> None:
    items = [(9, "a"), (8, "a"), (7, "a"), (6, "a")]
    first = cut("things", items, _key, after=None, limit=2)
    changed = [(10, "new"), (9, "a"), (7, "a"), (6, "a")]
    second = cut("things", changed, _key, after=first.cursor, limit=2)
    assert ([*first, *second], second.more) == (items, False)


def test_an_empty_list_has_one_empty_page() -> None:
    page = cut("things", list[tuple[int, str]](), _key, after=None, limit=3)
    assert (page, page.more, page.cursor, page.start) == ([], False, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        *(7, None, b"x", "", "é", "a", "!", "null"),
        write_cursor("others", 1, "a"),
        urlsafe_b64encode(b"[]").decode(),
        urlsafe_b64encode(b"7").decode(),
        urlsafe_b64encode(b"[" * 100_000).decode(),
    ],
)
def test_a_cursor_of_something_else_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match="is not a cursor of things"):
        read_cursor("things", wrong)


def test_a_cursor_that_was_made_up_is_refused() -> None:
    with pytest.raises(UsageError, match="of another list"):
        cut("things", [(1, "a")], _key, after=write_cursor("things", "x", 1), limit=1)


@pytest.mark.parametrize("wrong", [0, -1, "7", 1.5, True, 1 << 63])
def test_a_limit_is_a_number_or_none(wrong: object) -> None:
    assert check_limit(None) is None
    with pytest.raises(UsageError, match="limit is a whole number"):
        check_limit(wrong)

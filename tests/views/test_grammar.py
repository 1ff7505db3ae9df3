"""One item as one line of markdown, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.views.grammar import parse_line, render_line
from holdfast.views.item import Fields, plain_fields
from holdfast.views.markdown import MarkdownList

WORDS = ["; by ann", "(high)", "[x]", "<!-- hf:t1 -->", "\\", "&#10;", "- a", "1. b", "```", "\r\n"]
TEXTS = st.lists(st.one_of(st.text(max_size=6), st.sampled_from(WORDS)), max_size=4).map("".join)
TITLES = TEXTS.filter(lambda text: bool(text.strip()))
NAMES = st.text(min_size=1, max_size=8).filter(lambda text: bool(text.strip()))
ITEMS = st.fixed_dictionaries(
    {"title": TITLES},
    optional={
        "status": st.sampled_from(["open", "in_progress", "blocked", "completed", "cancelled"]),
        "priority": st.integers(-999, 999),
        "dependencies": st.lists(NAMES, max_size=3, unique=True),
        "tags": st.lists(NAMES, max_size=3, unique=True),
        "owner": NAMES,
        "epic": NAMES,
        "why": TITLES,
        "outcome": TITLES,
        "note": TITLES,
    },
).map(plain_fields)


@given(ITEMS, NAMES, st.booleans())
def test_a_line_says_the_item_that_it_was_made_of(
    fields: dict[str, Any], id: str, has_box: bool
) -> None:
    if not has_box:
        fields = {name: value for name, value in fields.items() if name != "status"}
    id = id.strip().encode("utf-8", "ignore").decode() or "t1"
    line = render_line(id, fields, has_box=has_box)
    assert not {"\n", "\r"} & set(line)
    item = parse_line(line, has_box=has_box)
    assert (item.id, item.fields, item.problem) == (id, fields, "")


@given(st.lists(ITEMS, min_size=1, max_size=5), st.booleans())
def test_recovery_from_the_file_alone_gives_equal_items(items: list[Fields], has_box: bool) -> None:
    """RALPH-22: what is rendered is an item of the list, whatever its title holds."""
    form = MarkdownList("Tasks", has_box=has_box, heading=None if has_box else "Tasks")
    wanted = {
        f"t{number}": {k: v for k, v in fields.items() if has_box or k != "status"}
        for number, fields in enumerate(items)
    }
    made = form.splice(form.parse(b""), wanted)
    read = form.parse(made.encode())
    assert {item.id: item.fields for item in read.items} == wanted
    assert read == made


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "[ ] (high) build the form; after t1; by ann <!-- hf:t3 -->",
            {"title": "build the form", "priority": 1, "dependencies": ("t1",), "owner": "ann"},
        ),
        (
            "[/] a; after t1, t2",
            {"title": "a", "status": "in_progress", "dependencies": ("t1", "t2")},
        ),
        ("[!] a; why no key", {"title": "a", "status": "blocked", "why": "no key"}),
        (
            "[X] a; outcome done; really",
            {"title": "a; outcome done; really", "status": "completed"},
        ),
        ("[-] (7) a", {"title": "a", "status": "cancelled", "priority": 7}),
        ("[ ] buy milk; and eggs", {"title": "buy milk; and eggs"}),
        (r"[ ] C:\new; by ann", {"title": r"C:\new", "owner": "ann"}),
        (r"[ ] a\; by ann", {"title": "a; by ann"}),
        ("[ ] (urgent) a", {"title": "(urgent) a"}),
    ],
)
def test_what_people_type(line: str, fields: Fields) -> None:
    assert parse_line(line).fields == fields


@pytest.mark.parametrize("line", ["[?] a <!-- hf:t1 -->", "a <!-- hf:t1 -->"])
def test_a_box_that_means_nothing_is_named(line: str) -> None:
    item = parse_line(line)
    assert item.fields == {"title": "a"}
    assert "box" in item.problem

"""The list of requirements is current, and only tests and that list name them."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_references import ROOT, pages
from tools import requirements


def test_the_page_is_current():
    is_current = requirements.PAGE.read_text("utf-8") == requirements.render()
    assert is_current, "run `python tools/requirements.py`, which writes docs/requirements.md"


def test_no_test_cites_an_unknown_requirement():
    _titles, listed = requirements.load()
    known = {each.id for each in listed}
    unknown = {id: tests for id, tests in requirements.citations().items() if id not in known}
    assert not unknown


def test_numbers_of_a_family_have_no_gaps():
    titles, listed = requirements.load()
    for family in titles:
        numbers = [each.number for each in listed if each.family == family]
        assert numbers == list(range(1, len(numbers) + 1)), family


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("(VIC-11).", ["VIC-11"]),
        ("BOOT-8, BOOT-20: orders", ["BOOT-8", "BOOT-20"]),
        (
            "BOOT-4, 7, 10 to 12, 50",
            ["BOOT-4", "BOOT-7", *("BOOT-10", "BOOT-11", "BOOT-12"), "BOOT-50"],
        ),
        ("VIC-2 to VIC-4", ["VIC-2", "VIC-3", "VIC-4"]),
        ("NODE-1..3", ["NODE-1", "NODE-2", "NODE-3"]),
        ("RALPH-2, 3; OP-1", ["RALPH-2", "RALPH-3", "OP-1"]),
        ("BOOT-55, guarantee 11, 0010", ["BOOT-55"]),
        ("BOOT-88: 5 and 500 here", ["BOOT-88"]),
    ],
)
def test_citations_are_read_as_people_write_them(text: str, ids: list[str]):
    assert [id for _offset, id in requirements.cited_in_text(text)] == ids


def test_citations_are_read_from_names():
    assert list(requirements.cited_in_name("test_time_travel_vic_33_boot_81")) == [
        "VIC-33",
        "BOOT-81",
    ]
    assert list(requirements.cited_in_name("test_boot_75_76_a_write")) == ["BOOT-75", "BOOT-76"]
    assert list(requirements.cited_in_name("test_a_stop_5_times")) == []


def test_sources_and_other_documents_name_no_requirement():
    """Users need none of them; tests cite them."""
    pattern = re.compile(rf"\b(?:{requirements.FAMILY})-\d+")
    others = [page for page in pages() if page != requirements.PAGE]
    others += [
        path
        for folder in ("src", "bench", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in others
        for match in pattern.finditer(path.read_text("utf-8"))
    ]
    assert not found

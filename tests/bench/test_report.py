"""The page of figures is made by a program from what was measured, and says nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bench.__main__ import BENCHMARKS
from bench.report import FIGURES, MARKED, PAGE, gather, render, table, title

MACHINE = {
    "processor": "a processor",
    "processors": 2,
    "memory_gib": 1.0,
    "virtual": False,
    "kernel": "Linux 6.1 x86_64",
    "file_system": "ext4",
    "python": "3.11.7",
    "sqlite": "3.54.1",
    "versions": {"holdfast": "0.1.0"},
}


def run(started: str, **changes: Any) -> dict[str, Any]:
    report = {
        "title": "one writer",
        "durability": "full",
        "speeds": [],
        "releases": {},
        "rows": [{"what": "bare", "p50_ms": 0.25}],
        "bars": [{"what": "time", "asked": "<= 1", "found": "2", "kept": False}],
        "notes": ["a note"],
        "series": {},
        "seconds": 60.0,
    }
    machine = {**MACHINE, "load": {"before": 0.1, "after": 0.2}}
    made: dict[str, Any] = {"started": started, "quick": False, "machine": machine}
    return {**made, "reports": {"a": {**report, **changes}}}


def test_the_newest_run_of_each_benchmark_counts():
    figures = gather([run("20260102T000000Z", title="newer"), run("20260101T000000Z")])
    assert figures["parts"]["a"]["title"] == "newer"


def test_runs_of_two_machines_do_not_stand_on_one_page():
    other = run("20260102T000000Z")
    other["machine"]["processors"] = 64
    with pytest.raises(SystemExit, match="another machine"):
        gather([run("20260101T000000Z"), other])


def test_marked_places_are_filled_and_filled_again():
    page = "before\n<!-- figures: a -->\nold\n<!-- end -->\nafter\n"
    figures = gather([run("20260101T000000Z")])
    once = render(page, figures)
    assert once.startswith("before\n<!-- figures: a -->\n*one writer. Durability: full.*\n")
    assert "| bare | 0.25 |" in once
    assert "- A note.\n<!-- end -->\nafter\n" in once
    assert "old" not in once
    assert render(once, figures) == once


def test_bars_and_machine_are_told():
    page = "<!-- figures: machine -->\n<!-- end -->\n<!-- figures: bars -->\n<!-- end -->\n"
    found = render(page, gather([run("20260101T000000Z")]))
    assert "a processor, 2 processors, 1.0 GiB of memory, machine" in found
    assert "2026-01-01; load average before a run 0.1 at most; 1 minutes in all" in found
    assert "| a | time | <= 1 | 2 | **missed** |" in found
    assert "Quick" not in found


def test_a_page_of_quick_runs_says_so():
    quick = run("20260101T000000Z")
    quick["quick"] = True
    page = "<!-- figures: machine -->\n<!-- end -->\n"
    assert "**Quick runs" in render(page, gather([quick]))


def test_a_table_names_its_columns_in_words_and_keeps_numbers_right():
    lines = table([{"n": 1_000, "kind": "files", "turn_10_p50_ms": 0.5, "per_s": None}])
    assert lines[0] == "| kind | size | turn 10 p50, ms | per second |"
    assert lines[1] == "| --- | ---: | ---: | ---: |"
    assert lines[2] == "| files | 1,000 | 0.5 |  |"


@pytest.mark.parametrize(
    ("column", "words"),
    [("open_and_get_ms", "open and get, ms"), ("get_us", "get, µs"), ("jain", "jain")],
)
def test_columns_in_words(column: str, words: str):
    assert title(column) == words


def test_every_benchmark_has_a_place_on_the_page():
    marked = {match["name"] for match in MARKED.finditer(PAGE.read_text("utf-8"))}
    assert marked == {*BENCHMARKS, "machine", "bars"}


def test_the_page_shows_the_published_figures():
    page = PAGE.read_text("utf-8")
    assert render(page, json.loads(FIGURES.read_text("utf-8"))) == page


def test_every_plot_of_the_page_is_there():
    shown = re.findall(r"\]\((performance/\w+\.png)\)", PAGE.read_text("utf-8"))
    assert shown
    for name in shown:
        assert (PAGE.parent / name).read_bytes()[1:4] == b"PNG", name

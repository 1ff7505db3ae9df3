"""`splice(parse(x), {}) == x`, of every kind of file: real ones, and generated ones (RALPH-22).

The whole corpus, 10,000 generated files of each kind and up to 300 real ones beside ours, is read
with all tests; a commit reads a share of it, and the next commit the next one.

Real is a file that somebody wrote for another reason than this test. Those of this repository are
always there, so a number of them is demanded, `OWN`. Those of installed packages and of the system
are read as far as a machine has any: nobody can say how many that are.
"""

from __future__ import annotations

import os
import random
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.views.item import BrokenFile
from holdfast.views.mapping import JsonMapping, YamlMapping
from holdfast.views.markdown import MarkdownList
from holdfast.views.rows import TsvRows, YamlRows
from holdfast.views.yaml_list import YamlList
from tests.selection import RUNS_ALL, turn
from tests.views.test_forms import json_text, yaml_text
from tests.views.test_markdown import generated

ROOT = Path(__file__).resolve().parents[2]
PLACES = [Path(sysconfig.get_paths()["purelib"]), Path("/usr/share")]
REAL, GENERATED, SIZE = (300, 10_000, 20_000) if RUNS_ALL else (6, 40, 2_000)
TURNS = 1 if RUNS_ALL else 20
OWN = {"boxes": 100, "heading": 100, "json": 1, "yaml": 3, "backlog": 2, "rows": 2, "tsv": 8}
"""How many files of this repository there are at least that each kind believes."""
MADE = ("__pycache__", "build", "dist", "node_modules", "site", "venv")


def yaml_list_text(draw: random.Random) -> str:
    lines = ["# a backlog", "items:"] if draw.random() < 0.9 else ["items: []"]
    for number in range(draw.randrange(5) if len(lines) == 2 else 0):
        lines += [f"  - id: b{number}", f"    title: 'item {number}'  # said by ann"]
        lines += draw.choice([[], ["    status: open"], ["", "    priority: high"], ["    # note"]])
    end = draw.choice(["\n", "\r\n"])
    return end.join(lines) + draw.choice(["", end])


def rows_text(draw: random.Random) -> str:
    lines = ["# events", "events:"]
    lines += [
        f"- type: {draw.choice(['seen', 'said'])}\n  data: {{n: {number}}}  # c"
        for number in range(draw.randrange(5))
    ]
    return "\n".join(lines) + draw.choice(["", "\n"])


def tsv_text(draw: random.Random) -> str:
    words = ["a", "é", "two words", "", "\\t", "x;y"]
    lines = ["time\twhat\tby"]
    lines += ["\t".join(draw.choices(words, k=3)) for _ in range(draw.randrange(6))]
    return "\n".join(lines) + draw.choice(["", "\n"])


Make = Callable[[random.Random], str | bytes]
KINDS: dict[str, tuple[Any, Make, tuple[str, ...]]] = {
    "boxes": (MarkdownList("Tasks"), lambda draw: generated(draw.randrange(1 << 30)), ("*.md",)),
    "heading": (
        MarkdownList("Learnings", has_box=False, heading="Learnings"),
        lambda draw: generated(draw.randrange(1 << 30)),
        ("*.md", "*.rst"),
    ),
    "json": (JsonMapping(), json_text, ("*.json",)),
    "yaml": (YamlMapping(), yaml_text, ("*.yaml", "*.yml", "*.toml")),
    "backlog": (YamlList("items"), yaml_list_text, ("*.yaml", "*.yml")),
    "rows": (YamlRows(("type", "data")), rows_text, ("*.yaml", "*.yml")),
    "tsv": (TsvRows(("time", "what", "by")), tsv_text, ("*.tsv", "*.csv", "*.txt")),
}


def own_files(patterns: tuple[str, ...]) -> list[Path]:
    """Returns the files of this repository, without those that tools have put there."""
    found: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            one for one in folders if one == ".github" or not (one in MADE or one[0] == ".")
        ]
        found += [Path(folder, name) for name in names]
    return sorted(one for one in found if any(one.match(pattern) for pattern in patterns))


def real_files(patterns: tuple[str, ...]) -> Iterator[bytes]:
    """Yields files that people wrote: those of packages, and those of the system."""
    for place in PLACES:
        for pattern in patterns:
            for path in place.rglob(pattern):
                if path.is_file() and path.stat().st_size < SIZE:
                    yield path.read_bytes()


def comes_back(form: Any, data: bytes) -> bool:
    """Says whether a file is believed; one that is comes back byte for byte."""
    try:
        document = form.parse(data)
    except BrokenFile:
        return False
    # Rows are never spliced: a file of them that lacks none is written as it was read.
    same = document if hasattr(form, "append") else form.splice(document, {})
    assert same.encode() == data
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_files_come_back_byte_for_byte(kind: str) -> None:
    form, make, patterns = KINDS[kind]
    believed = 0
    first = 0 if RUNS_ALL else turn() * GENERATED % 10_000
    for number in range(first, first + GENERATED):
        made = make(random.Random(number))
        believed += comes_back(form, made if isinstance(made, bytes) else made.encode())
    assert believed > GENERATED // 4
    own = own_files(patterns)
    assert len(own) >= OWN[kind]
    taken = [path for at, path in enumerate(own) if at % TURNS == turn() % TURNS]
    whole = [comes_back(form, path.read_bytes()) for path in taken]
    if RUNS_ALL:
        assert sum(whole) >= OWN[kind]
    for count, data in enumerate(real_files(patterns)):
        if count >= REAL:
            break
        comes_back(form, data)

"""Writes docs/requirements.md: each requirement in one line, with the tests that cite it.

    python tools/requirements.py           write the page
    python tools/requirements.py --check   only say whether it is current

The list is docs/requirements.toml. A test cites a requirement in its name (`test_vic_19_…`), in its
docstring or in a comment: "VIC-19", "BOOT-8, BOOT-20", "BOOT-39 to 47", "NODE-1..26". A citation
outside of any test, such as in the docstring of a module, stands for the whole file; it is shown
only for ids that no single test of that file cites.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "docs/requirements.toml"
PAGE = ROOT / "docs/requirements.md"
WIDTH = 100

FAMILY = "VIC|BOOT|OP|NODE|RALPH"
CITATION = re.compile(
    rf"\b(?P<family>{FAMILY})-(?P<numbers>\d+(?:(?:,\s+|\s+and\s+|\s+to\s+|\.\.)(?:(?P=family)-)?\d+\b)*)"
)
IN_NAME = re.compile(rf"(?<=_)(?P<family>{FAMILY.lower()})(?P<numbers>(?:_\d+)+)(?=_|$)")
MAY_CITE = re.compile(rf"\b(?:{FAMILY})-\d|_(?:{FAMILY.lower()})_\d")

INTRODUCTION = """\
# Requirements

Generated from [requirements.toml](requirements.toml) and the tests by `python
tools/requirements.py`. Each requirement stands in one line, with the tests that cite it. *Not yet*
means that no test cites it; *lacks* names what is missing of one that is built in part.
"""


class Requirement(NamedTuple):
    """One line of the list."""

    family: str
    number: int
    text: str
    lacks: str

    @property
    def id(self) -> str:
        return f"{self.family}-{self.number}"


def load() -> tuple[dict[str, str], list[Requirement]]:
    """Returns the title of each family, and every requirement."""
    families = tomllib.loads(SOURCE.read_text("utf-8"))
    titles = {family: table["title"] for family, table in families.items()}
    listed = [
        Requirement(family, int(number), text, table["lacks"].get(number, ""))
        for family, table in families.items()
        for number, text in table.items()
        if number.isdigit()
    ]
    return titles, listed


def cited_in_text(text: str) -> Iterator[tuple[int, str]]:
    """Yields offset and id of every citation; a range cites each id between its ends."""
    for match in CITATION.finditer(text):
        previous = 0
        for joint, digits in re.findall(rf"(\D*?)(?:{match['family']}-)?(\d+)", match["numbers"]):
            number = int(digits)
            first = previous + 1 if joint.strip() in ("to", "..") else number
            for each in range(first, number + 1):
                yield match.start(), f"{match['family']}-{each}"
            previous = number


def cited_in_name(name: str) -> Iterator[str]:
    """Yields the ids in the name of a test."""
    for match in IN_NAME.finditer(name):
        for digits in re.findall(r"\d+", match["numbers"]):
            yield f"{match['family'].upper()}-{int(digits)}"


class TestFunction(NamedTuple):
    """A test, and the lines that it takes up."""

    name: str
    first: int
    last: int


def tests_of(tree: ast.Module) -> list[TestFunction]:
    """Returns the tests of a module in the order of its text, methods as `Class::test`."""
    found: list[TestFunction] = []
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for function in inner:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
                last = function.end_lineno or function.lineno
                found.append(TestFunction(f"{prefix}{function.name}", first, last))
    return [test for test in found if test.name.rpartition("::")[2].startswith("test_")]


def citations_of(path: Path) -> dict[str, list[str]]:
    """Returns for each id that a file cites its tests that do so, or the file itself."""
    text = path.read_text("utf-8")
    if not MAY_CITE.search(text):
        return {}  # most files: they need not be parsed
    file = path.relative_to(ROOT).as_posix()
    tests = tests_of(ast.parse(text))
    by_test: dict[str, list[str]] = {}
    whole: set[str] = set()
    for test in tests:
        for id in cited_in_name(test.name):
            by_test.setdefault(id, []).append(test.name)
    for offset, id in cited_in_text(text):
        line = text.count("\n", 0, offset) + 1
        around = [test.name for test in tests if test.first <= line <= test.last]
        if around:
            by_test.setdefault(id, []).extend(around)
        else:
            whole.add(id)
    order = [test.name for test in tests]
    found = {
        id: [f"{file}::{name}" for name in sorted(set(names), key=order.index)]
        for id, names in by_test.items()
    }
    return found | {id: [file] for id in whole - by_test.keys()}


def citations() -> dict[str, list[str]]:
    """Returns the tests that cite each id, by file."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.parent == ROOT / "tests/docs":
            continue  # they hold examples of citations
        for id, tests in citations_of(path).items():
            found.setdefault(id, []).extend(tests)
    return found


def render() -> str:
    """Returns the page."""
    titles, listed = load()
    cited = citations()
    lines = [INTRODUCTION, "| requirements | with tests | of these in part | not yet |"]
    lines.append("| --- | --- | --- | --- |")
    for family, title in titles.items():
        own = [each for each in listed if each.family == family]
        tested = [each for each in own if each.id in cited]
        partly = [each for each in tested if each.lacks]
        absent = len(own) - len(tested)
        anchor = re.sub(r"[^\w\- ]", "", f"{family}: {title}".lower()).replace(" ", "-")
        lines.append(
            f"| [{family}](#{anchor}): {len(own)} | {len(tested)} | {len(partly)} | {absent} |"
        )
    for family, title in titles.items():
        lines += ["", f"## {family}: {title}", ""]
        for each in listed:
            if each.family == family:
                lines += entry(each, cited.get(each.id, []))
    return "\n".join(lines) + "\n"


def entry(requirement: Requirement, tests: list[str]) -> list[str]:
    """Returns the lines of one requirement."""
    text = f"- **{requirement.id}** {requirement.text}"
    if not tests:
        text += " *Not yet.*"
    elif requirement.lacks:
        text += f" *Lacks*: {requirement.lacks}."
    folded = wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False)
    return [*folded, *(f"  - `{test}`" for test in tests)]


def main(words: list[str]) -> int:
    page = render()
    if words == ["--check"]:
        if PAGE.exists() and PAGE.read_text("utf-8") == page:
            return 0
        print("docs/requirements.md is not current: run `python tools/requirements.py`")
        return 1
    PAGE.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

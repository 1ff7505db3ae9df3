"""Numbers and anchors that code, tests and documents cite lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUARANTEES = ROOT / "docs/guarantees.md"
CITED = re.compile(
    r"\b(?P<kind>guarantee|rule|clause)s?\s+"
    r"(?P<numbers>\d+(?:(?:,\s+(?:and\s+)?|\s+and\s+|\s+or\s+|\s+to\s+|-)\d+\b)*)",
    re.I,
)
HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.M)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)


def pages() -> list[Path]:
    """Returns every document of the project."""
    folders = ("docs", "bench", "tests", "examples")
    nested = [page for folder in folders for page in sorted((ROOT / folder).rglob("*.md"))]
    return [*sorted(ROOT.glob("*.md")), *nested]


def sources() -> list[Path]:
    """Returns every file of text that people write."""
    folders = ("src", "tests", "bench", "tools", "examples")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page: of its headings, as hosts of Markdown form them, and ids."""
    text = page.read_text("utf-8")
    named = set(re.findall(r'<a id="([^"]+)">', text))
    for title in HEADING.findall(FENCED.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        named.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return named


def cited(text: str) -> Iterator[str]:
    """Yields the anchor of every number that a text cites; "1 to 9" cites each between."""
    for match in CITED.finditer(text):
        previous = 0
        for joint, digits in re.findall(r"(\D*)(\d+)", match["numbers"]):
            number = int(digits)
            first = previous + 1 if joint.strip() in ("to", "-") else number
            for each in range(first, number + 1):
                yield f"{match['kind'].lower()}-{each}"
            previous = number
    for kind, digits in re.findall(r"_(guarantee|clause)_0?(\d+)_", text):
        yield f"{kind}-{digits}"


def test_the_page_has_every_guarantee_rule_and_clause():
    expected = {f"guarantee-{number}" for number in range(1, 13)}
    expected |= {f"rule-{number}" for number in range(1, 13)}
    contract = (ROOT / "src/holdfast/backends/protocol.py").read_text("utf-8")
    expected |= {f"clause-{number}" for number in re.findall(r"^ ?\((\d+)\) ", contract, re.M)}
    found = {name for name in anchors(GUARANTEES) if re.fullmatch(r"[a-z]+-\d+", name)}
    assert found == expected


def test_cited_numbers_are_found_in_ranges_and_lists():
    text = "Guarantees 1, 6 and 12; rule 7; clauses 3 to 5, or (clause 20); test_clause_02_x"
    assert list(cited(text)) == [
        *("guarantee-1", "guarantee-6", "guarantee-12", "rule-7"),
        *("clause-3", "clause-4", "clause-5", "clause-20", "clause-2"),
    ]


def test_every_cited_guarantee_rule_and_clause_exists():
    known = anchors(GUARANTEES)
    unknown = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*sources(), *pages()]
        for name in cited(path.read_text("utf-8"))
        if name not in known
    ]
    assert not unknown


def test_documents_link_the_guarantees_that_they_cite():
    """In text; a heading and the page itself need no link."""
    bare = [
        f"{page.relative_to(ROOT)}: {match[0]}"
        for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
        if page != GUARANTEES
        for match in re.finditer(r"(?<!\[)\bguarantees?\s+\d+", page.read_text("utf-8"), re.I)
    ]
    assert not bare


def test_links_to_a_part_of_a_page_find_it():
    broken: list[str] = []
    for page in pages():
        for target, part in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8")):
            if "://" in target:
                continue
            other = (page.parent / target).resolve() if target else page
            if other.suffix == ".md" and part not in anchors(other):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{part}")
    assert not broken


def test_paths_that_documents_name_exist():
    """In backticks, from the root of the project: `tests/unit/test_log.py::test_name` too."""
    named = re.compile(r"`((?:src|tests|docs|tools|bench|examples)/[\w./*-]+)(?:::(\w+))?`")
    missing: list[str] = []
    for page in pages():
        for path, test in named.findall(page.read_text("utf-8")):
            found = [file for file in ROOT.glob(path.rstrip("/")) if file.exists()]
            is_there = bool(found) or path.startswith("bench/out")
            if is_there and test:
                is_there = any(f"def {test}(" in file.read_text("utf-8") for file in found)
            if not is_there:
                missing.append(f"{page.relative_to(ROOT)}: {path}{test and f'::{test}'}")
    assert not missing


def test_make_targets_that_documents_name_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    named = {
        (page.relative_to(ROOT).as_posix(), target)
        for page in pages()
        for target in re.findall(r"(?:`|\$ )make ([a-z][a-z-]*)", page.read_text("utf-8"))
    }
    assert not {(page, target) for page, target in named if target not in targets}


def test_the_changelog_has_the_sections_of_its_form():
    """https://keepachangelog.com/en/1.1.0/"""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    sections = re.findall(r"^### (.*)$", text, re.M)
    known = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert sections
    assert not set(sections) - known
    assert re.findall(r"^## (.*)$", text, re.M)[0] == "Unreleased"


def test_the_readme_fits_on_a_few_screens():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150

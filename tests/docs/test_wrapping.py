"""Documents wrap at 100 columns, so that a change of a sentence is a small difference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.docs.test_references import ROOT, pages

WIDTH = 100


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yields number and text of each line that is no code, no table and not generated."""
    is_code = is_generated = False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if line.startswith(("<!-- figures:", "<!-- end -->")):
            is_generated = not line.startswith("<!-- end")
        elif line.lstrip().startswith("```"):
            is_code = not is_code
        elif not (is_code or is_generated or line.lstrip().startswith("|")):
            yield number, line


def can_be_wrapped(line: str) -> bool:
    """Returns whether a line has a space to break at: one long word or an image has none."""
    text = line.strip().removeprefix("- ")
    return " " in text and not text.startswith("![")


def test_documents_wrap_at_100_columns():
    wide = [
        f"{page.relative_to(ROOT)}:{number}: {len(line)}"
        for page in pages()
        for number, line in prose(page)
        if len(line) > WIDTH and can_be_wrapped(line)
    ]
    assert not wide

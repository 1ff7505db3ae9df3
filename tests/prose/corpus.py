"""Programs of the corpora: each with a title and the problems that it has.

A file holds many: a line `=== title` begins one, and lines `--- line:column code` after it are its
problems, all of them, in order.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Sample(NamedTuple):
    """One program."""

    title: str
    text: str
    problems: list[str]


def read_samples(folder: str) -> list[Sample]:
    """Returns the programs of a corpus."""
    found: list[Sample] = []
    for path in sorted((HERE / folder).glob("*.txt")):
        for part in path.read_text("utf-8").split("=== ")[1:]:
            title, _, rest = part.partition("\n")
            lines = rest.split("\n")[:-1]
            problems = [line.removeprefix("--- ") for line in lines if line.startswith("--- ")]
            text = "".join(f"{line}\n" for line in lines if not line.startswith("--- "))
            found.append(Sample(f"{path.stem}: {title}", text, problems))
    return found

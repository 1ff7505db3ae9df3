"""Parses the content of texts: escapes, interpolations, and the indentation of long texts."""

from __future__ import annotations

import re
from bisect import bisect_right

from holdfast.prose.problems import Problem, make_problem
from holdfast.prose.syntax import Constant, Doubt, Index, Interpolation, Member, Name

Parts = tuple[str | Interpolation, ...]

ESCAPES = {
    "\\": "\\",
    '"': '"',
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "{": "{",
    "}": "}",
    "#": "#",
}

_WORD = r"[A-Za-z_][A-Za-z0-9_]*(?:-+[A-Za-z0-9_]+)*"
_SPECIAL = re.compile(r"[\\{]")
_REFERENCE = re.compile(rf"\{{({_WORD})((?:\.{_WORD}|\[(?:[0-9]{{1,15}}|{_WORD})\])*)\}}")
_STEP = re.compile(rf"\.({_WORD})|\[(?:([0-9]+)|({_WORD}))\]")
_DOUBTFUL = re.compile(
    rf"\{{\{{\s*(?P<doubled>{_WORD})[^{{}}]*\}}\}}"
    rf"|\{{\s*(?P<operand>{_WORD})(?:\.{_WORD}|\[[^\]{{}}]*\])*\s*[-+*/<>=!][^{{}}]*\}}"
    rf"|\{{(?P<reached>{_WORD})[.\[(][^{{}}]*\}}"
    rf"|\{{(?P<open>{_WORD})"
)
"""Braces that look like an interpolation: {{x}}, {x + 1}, {x.f()}, {x without an end."""


def read_text(
    written: str, line: int, column: int, problems: list[Problem], *, is_strict: bool
) -> tuple[Parts, tuple[Doubt, ...]]:
    """Returns the parts of a text on one line, which begins at `line` and `column`.

    With `is_strict`, an unknown escape is an error; otherwise it stays text, with a warning.
    """
    if "{" not in written and "\\" not in written:
        return (written,) if written else (), ()
    return _Reading(written, _OneLine(line, column), problems, is_strict).read()


def read_long_text(
    written: str, line: int, column: int, problems: list[Problem]
) -> tuple[Parts, tuple[Doubt, ...]]:
    """Returns the parts of a text over several lines.

    A line end at the beginning and the indentation that all lines have in common are dropped. Blank
    lines do not count for the common indentation.
    """
    lines = written.split("\n")
    place = _Lines(line, column)
    if len(lines) > 1 and not lines[0]:
        del lines[0]
        place.line, place.column, place.is_first = line + 1, 1, False
    later = lines[1:] if place.is_first else lines
    common = _common_indentation(later)
    kept = lines[:1] if place.is_first else []
    for one in later:
        kept.append(one[common:] if one[:common].isspace() else one.lstrip(" \t"))
    place.common = common
    text = "\n".join(kept)
    if "{" not in text and "\\" not in text:
        return (text,) if text else (), ()
    place.find(kept)
    return _Reading(text, place, problems, is_strict=False).read()


def _common_indentation(lines: list[str]) -> int:
    common: str | None = None
    for one in lines:
        body = one.lstrip(" \t")
        if not body:
            continue
        indent = one[: len(one) - len(body)]
        if common is None:
            common = indent
        while not indent.startswith(common):
            common = common[:-1]
    return len(common or "")


class _OneLine:
    def __init__(self, line: int, column: int) -> None:
        self._line, self._column = line, column

    def at(self, offset: int) -> tuple[int, int]:
        return self._line, self._column + offset


class _Lines:
    """Maps the characters of a long text to their places in the file."""

    def __init__(self, line: int, column: int) -> None:
        self.line, self.column = line, column
        self.is_first = True  # the text begins on the line of its marks
        self.common = 0
        self._starts: list[int] = []

    def find(self, lines: list[str]) -> None:
        at = 0
        for one in lines:
            self._starts.append(at)
            at += len(one) + 1

    def at(self, offset: int) -> tuple[int, int]:
        number = bisect_right(self._starts, offset) - 1
        within = offset - self._starts[number]
        if number == 0 and self.is_first:
            return self.line, self.column + within
        return self.line + number, self.common + 1 + within


class _Reading:
    """One text while it is split into parts."""

    def __init__(
        self, text: str, place: _OneLine | _Lines, problems: list[Problem], is_strict: bool
    ) -> None:
        self._text = text
        self._place = place
        self._problems = problems
        self._is_strict = is_strict
        self._parts: list[str | Interpolation] = []
        self._plain: list[str] = []
        self._doubts: list[Doubt] = []
        self._last = text.rfind("}")

    def read(self) -> tuple[Parts, tuple[Doubt, ...]]:
        text, at = self._text, 0
        while found := _SPECIAL.search(text, at):
            start = found.start()
            self._plain.append(text[at:start])
            at = self._escape(start) if found.group() == "\\" else self._brace(start)
        self._plain.append(text[at:])
        self._end_plain()
        return tuple(self._parts), tuple(self._doubts)

    def _end_plain(self) -> None:
        plain = "".join(self._plain)
        self._plain.clear()
        if plain:
            self._parts.append(plain)

    def _escape(self, start: int) -> int:
        letter = self._text[start + 1 : start + 2]
        meant = ESCAPES.get(letter)
        if meant is not None:
            self._plain.append(meant)
            return start + 2
        code = "unknown-escape" if self._is_strict else "unknown-escape-text"
        known = " ".join(f"\\{one}" for one in ESCAPES)
        rest = f"expected one of {known}" if self._is_strict else "it stays text"
        self._problems.append(
            make_problem(*self._place.at(start), code, f"unknown escape \\{letter}: {rest}")
        )
        self._plain.append("\\")
        return start + 1

    def _brace(self, start: int) -> int:
        found = _REFERENCE.match(self._text, start)
        if found is None:
            return self._doubtful(start)
        line, column = self._place.at(start)
        self._end_plain()
        reference: Name | Member | Index = Name(line, column + 1, found[1])
        for step in _STEP.finditer(found[2]):
            if step[1]:
                reference = Member(line, column + 1, reference, step[1])
            elif step[2]:
                reference = Index(line, column + 1, reference, Constant(line, column, int(step[2])))
            else:
                reference = Index(line, column + 1, reference, Name(line, column, step[3]))
        self._parts.append(Interpolation(line, column, reference, found.group()))
        return found.end()

    def _doubtful(self, start: int) -> int:
        """Keeps braces as text; those that look like an interpolation are noted for the checker."""
        found = _DOUBTFUL.match(self._text, start)
        if found and (found.lastgroup != "open" or start > self._last):
            name = found[found.lastgroup or ""]
            source = found.group().split("\n", 1)[0][:40]
            self._doubts.append(Doubt(*self._place.at(start), name, source))
            end = found.end() if found.lastgroup == "doubled" else start + 1
            self._plain.append(self._text[start:end])
            return end
        self._plain.append("{")
        return start + 1

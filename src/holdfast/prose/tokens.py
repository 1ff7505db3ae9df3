"""Splits a program into tokens: names, numbers, texts, conditions, operators and line ends.

One regular expression finds every token. Blank lines and comments yield none. A line end outside of
brackets is one token, whose value is the indentation of the next line. The parser compares these
indentations to find bodies and lines that continue a statement.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from holdfast.prose.problems import Problem, make_problem

RESERVED = frozenset(
    (
        "use",
        "import",
        "agent",
        "block",
        "session",
        "resume",
        "let",
        "const",
        "do",
        "parallel",
        "for",
        "in",
        "repeat",
        "loop",
        "until",
        "while",
        "if",
        "elif",
        "else",
        "choice",
        "option",
        "try",
        "catch",
        "finally",
        "throw",
        "as",
        "true",
        "false",
        "null",
        "and",
        "or",
        "not",
    )
)
"""Words that cannot be names."""

NAME = "name"
NUMBER = "number"
TEXT = "text"
LONG_TEXT = "long text"
CONDITION = "condition"
WIDE_CONDITION = "wide condition"
LINE = "line"
END = "end"
BROKEN = "broken"
"""Kinds of tokens. Reserved words and operators are their own kinds."""

NAME_MAX = 100
_DIGITS_MAX = 15

_TOKEN = re.compile(
    r"""[ \t]*(?:
    (?P<word>[A-Za-z_][A-Za-z0-9_]*(?:-+[A-Za-z0-9_]+)*)
    |(?:\#[^\n]*)?\n(?:[ \t]*(?:\#[^\n]*)?\n)*(?P<indent>[ ]*)
    |\"\"\"(?P<long>[\s\S]*?)\"\"\"(?P<more_long>\"*)
    |(?P<text>"(?!"")(?:[^"\\\n]|\\.)*")
    |(?P<operator>->|<=|>=|==|!=|[()\[\]{}:,.=|+\-/<>]|\*(?!\*))
    |(?P<number>[0-9]+(?:\.[0-9]+)?)(?![A-Za-z0-9_])
    |(?P<empty>\*\*\*\*(?!\*))
    |\*\*\*(?P<wide>[\s\S]*?)\*\*\*(?P<more_wide>\**)
    |\*\*(?P<condition>[^\n*]*(?:\*(?!\*)[^\n*]*)*)\*\*(?P<more_condition>\**)
    |(?P<bad_number>[0-9][A-Za-z0-9_.]*)
    |(?P<bad>\"\"\"[\s\S]*|"[^\n]*|\*\*\*[\s\S]*|\*\*[^\n]*|[^\n])
    )""",
    re.VERBOSE,
)


class Tokens(Struct, gc=False):
    """The tokens of a program, in four lists of equal length, and the problems found."""

    kinds: list[str]
    values: list[Any]
    lines: list[int]
    columns: list[int]
    problems: list[Problem]


def read_tokens(text: str) -> Tokens:
    """Returns the tokens of a program. The first is a line end, and so is the last but one."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    reader = _Reader(text, is_mending=False)
    reader.read()
    if reader.brackets:
        # An unclosed bracket would hide every later error. Read again, and end the bracket at the
        # first line that begins a statement and is indented no deeper than the bracket's line.
        reader = _Reader(text, is_mending=True)
        reader.read()
    return reader.tokens


_BEGINS_STATEMENT = re.compile(
    "(?:use|import|agent|block|session|resume|let|const|do|parallel|for|repeat|loop|if|elif|else|"
    "choice|option|try|catch|finally|throw|input|output|assert)(?![A-Za-z0-9_-])"
)
_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")
_KINDS = {word: word for word in RESERVED}
_WRITTEN = {
    "more_long": (LONG_TEXT, 3),
    "more_wide": (WIDE_CONDITION, 3),
    "more_condition": (CONDITION, 2),
}
"""The kind of token between marks, and the length of a mark."""


class _Reader:
    """One pass over a text."""

    def __init__(self, text: str, *, is_mending: bool) -> None:
        # The line end before the first line carries its indentation, and the last line ends.
        self._text = f"\n{text}\n"
        self._is_mending = is_mending
        self.tokens = Tokens([], [], [], [], [])
        self.brackets: list[tuple[int, int, int]] = []  # line, column, indentation of its line
        self._line, self._begin = 0, 0  # the line, and where it begins in the text
        self._indent = 0
        self._unclosed: set[int] = set()  # lines with unclosed texts

    def read(self) -> None:
        """Reads every token."""
        add, brackets = self._add, self.brackets
        kind_of = _KINDS.get
        for found in _TOKEN.finditer(self._text):
            group = found.lastgroup or ""
            if group == "word":
                word = found["word"]
                add(kind_of(word, NAME), word, found.start("word"))
                if len(word) > NAME_MAX:
                    self._report("name-too-long", f"a name has at most {NAME_MAX} characters")
            elif group == "indent":
                self._end_line(found)
            elif group == "operator":
                operator = found["operator"]
                add(operator, operator, found.start("operator"))
                if operator in _OPENING:
                    brackets.append((self._line, self.tokens.columns[-1], self._indent))
                elif operator in _CLOSING and brackets:
                    brackets.pop()
            elif group == "text":
                add(TEXT, found["text"][1:-1], found.start("text"))
            elif group in _WRITTEN:
                self._add_written(found, group)
            else:
                self._add_rare(found, group)
        self._end()

    def _add(self, kind: str, value: Any, start: int) -> None:
        tokens = self.tokens
        tokens.kinds.append(kind)
        tokens.values.append(value)
        tokens.lines.append(self._line)
        tokens.columns.append(start - self._begin)

    def _report(self, code: str, message: str) -> None:
        tokens = self.tokens
        tokens.problems.append(make_problem(tokens.lines[-1], tokens.columns[-1], code, message))

    def _add_written(self, found: re.Match[str], group: str) -> None:
        """Adds the text between marks. In a run of mark characters, the last ones close it."""
        kind, width = _WRITTEN[group]
        name = group.removeprefix("more_")
        self._add(kind, found[name] + found[group], found.start(name) - width)
        self._pass_lines(found.start(name), found.end())

    def _pass_lines(self, start: int, end: int) -> None:
        count = self._text.count("\n", start, end)
        if count:
            self._line += count
            self._begin = self._text.rindex("\n", start, end)

    def _add_rare(self, found: re.Match[str], group: str) -> None:
        start = found.start(group)
        written = found[group]
        if group == "number" and len(written) <= _DIGITS_MAX:
            self._add(NUMBER, float(written) if "." in written else int(written), start)
        elif group in ("number", "bad_number"):
            self._add(BROKEN, written, start)
            expected = f"expected digits, at most {_DIGITS_MAX}, such as 3 or 0.5"
            self._report("bad-number", f"{written[:40]} is no number: {expected}")
        elif group == "empty":
            self._add(CONDITION, "", start)
        else:
            self._add_bad(found, written, start)

    def _add_bad(self, found: re.Match[str], written: str, start: int) -> None:
        """Adds one token for text that cannot begin a token, and reports why."""
        self._add(BROKEN, written[:40], start)
        if written[0] in '"*':
            self._unclosed.add(self._line)
        if written.startswith('"""'):
            self._report("unclosed-text", 'a text that begins with """ is not closed by """')
        elif written.startswith('"'):
            self._report("unclosed-text", 'a text is not closed: expected " on the same line')
        elif written.startswith("***"):
            self._report("unclosed-condition", "a condition that begins with *** is not closed")
        elif written.startswith("**"):
            self._report("unclosed-condition", "a condition is not closed: expected ** on the line")
        else:
            self._report("bad-character", f"{written!r} has no meaning here")
        self._pass_lines(start, found.end())

    def _end_line(self, found: re.Match[str]) -> None:
        """Reads a line end with the blank lines and comments after it."""
        indent, after = len(found["indent"]), found.end()
        is_end = not self.brackets or self._closes_brackets(after, indent)
        if is_end:
            self._indent = indent
            self._add(LINE, indent, found.start())
        self._pass_lines(found.start(), after)
        if is_end and self._text[after : after + 1] == "\t":
            place = self._line, after - self._begin
            said = "a tab in indentation: indent with spaces"
            self.tokens.problems.append(make_problem(*place, "tab-indentation", said))

    def _closes_brackets(self, after: int, indent: int) -> bool:
        if not self._is_mending or indent > self.brackets[0][2]:
            return False
        if _BEGINS_STATEMENT.match(self._text, after) is None:
            return False
        self._report_open_bracket()
        return True

    def _report_open_bracket(self) -> None:
        line, column, _ = self.brackets[-1]
        # An unclosed text swallows the rest of its line, closing brackets included, and is already
        # reported.
        if line not in self._unclosed:
            said = "this bracket is not closed"
            problem = make_problem(line, column, "unclosed-bracket", said)
            self.tokens.problems.append(problem)
        self.brackets.clear()
        self._add(BROKEN, "", self._begin + 1)

    def _end(self) -> None:
        """Adds the end, after a line end that is shallower than any line, which ends all bodies."""
        tokens = self.tokens
        if self.brackets:
            if not self._is_mending:
                return
            self._report_open_bracket()
        if tokens.kinds[-1] == LINE:
            tokens.values[-1] = -1
        else:
            self._add(LINE, -1, len(self._text))
        self._add(END, "", len(self._text))

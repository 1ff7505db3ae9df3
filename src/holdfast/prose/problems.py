"""The problems that a program may have: every code, and how a problem is shown.

A code never changes its meaning, and is never reused for another problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

ERRORS: dict[str, str] = {
    # how a program is written
    "encoding": "the file is not UTF-8",
    "syntax": "something else is expected here",
    "indentation": "a line is indented in a way that fits no block",
    "tab-indentation": "a tab in indentation: blocks are indented by spaces",
    "bad-character": "a character that the language does not have",
    "bad-number": "a number that is no number, or has too many digits",
    "name-too-long": "a name of more than 100 characters",
    "unclosed-text": "a text that is not closed",
    "unclosed-condition": "a condition that is not closed",
    "unclosed-bracket": "a bracket that is not closed",
    "unknown-escape": "an escape that a one-line text does not have",
    "too-deep": "blocks or expressions that are nested too deeply",
    # forms
    "empty-body": "a body without statements",
    "misplaced-clause": "a clause without the block that it belongs to, or in the wrong order",
    "doubled-clause": "a second else, catch or finally",
    "try-alone": "try without catch and finally",
    "no-break": "break and continue: the language does not have them",
    "nested-definition": "an agent or a block that is not defined at top level",
    "nested-import": "use or import that is not at top level",
    "late-import": "use or import after other statements",
    "use-name": "a program whose path gives no name",
    "reserved-name": "a reserved word as a name",
    "operand": "a session or a block as an operand of an operator",
    "chained-comparison": "a comparison of a comparison",
    "unary-minus": "a minus without a left operand",
    "arrow-operand": "-> between other things than sessions and blocks",
    "literal-collection": "a literal text or number as a collection",
    "collection": "a collection of for that is no name, member or array",
    "pipe-names": "names in the head of map, filter or pmap",
    "reduce-names": "reduce without two names",
    "empty-condition": "a condition without text",
    "bad-interpolation": "braces after a bound name that hold no name, member or index",
    "output-in-arm": "output without a name in a parallel arm or a pipe",
    # values of modifiers and properties
    "whole-number": "retry, max, count, repeat or max_depth that is not whole, or below 1",
    "unknown-modifier": "a modifier that the block does not have",
    "duplicate-modifier": "a modifier that is given twice",
    "unknown-join": 'a join that is not "all", "first" or "any"',
    "unknown-on-fail": 'an on-fail that is not "fail-fast", "continue" or "ignore"',
    "unknown-backoff": "a backoff that is not none, linear, exponential or milliseconds",
    "count-without-any": 'count without "any"',
    "count-above-branches": "count above the number of branches",
    "unknown-model": "a model that is not sonnet, opus or haiku",
    "property-value": "a property with a value of the wrong kind",
    "duplicate-property": "a property that is given twice",
    "agent-context": "context on an agent",
    "no-prompt": "a session without a prompt and without an agent",
    "resume-without-persist": "resume of an agent that keeps no memory",
    # names
    "duplicate-agent": "two agents of one name",
    "duplicate-block": "two blocks of one name",
    "duplicate-import": "two imports of one name",
    "duplicate-input": "two inputs of one name",
    "duplicate-parameter": "two parameters of one name",
    "duplicate-variable": "two variables of one name in one scope",
    "undefined-agent": "an agent that is not defined",
    "undefined-block": "a block that is not defined",
    "undefined-program": "a program that is not brought in by use",
    "unbound": "a variable that is not bound before",
    "not-assignable": "assigning a const, input, parameter, loop or catch variable",
    "agent-name": "a variable with the name of an agent",
    "argument-count": "a block called with too many or too few arguments",
}

WARNINGS: dict[str, str] = {
    "empty-do": "do: without statements",
    "deeper-property": "a property that is indented deeper than its siblings",
    "shadowing": "a name that hides one of an outer scope",
    "empty-prompt": "a prompt without text",
    "long-prompt": "a prompt of more than 10,000 characters",
    "short-condition": "a condition of fewer than 3 characters",
    "endless-loop": "a loop that nothing ends",
    "high-retry": "retry above 10",
    "unknown-property": "a property that sessions or agents do not have",
    "unknown-permission": "a permission other than read, write, execute, bash and network",
    "unknown-skill": "a skill that is not imported",
    "agent-incomplete": "an agent without model or without prompt",
    "any-without-count": '"any" without count',
    "one-branch": "a parallel block with one branch",
    "equal-options": "two options with the same text",
    "throw-outside-try": "throw outside try",
    "unbound-text": 'braces around a name that is not bound stay text (in """ and conditions)',
    "unknown-escape-text": 'an unknown escape stays text (in """ and conditions)',
    "arms-replace": "two parallel arms that replace one variable",
}

CODES = ERRORS | WARNINGS


class Problem(Struct, frozen=True, gc=False):
    """An error or warning in a program, and its place. Lines and columns count from 1."""

    line: int
    column: int
    severity: Literal["error", "warning"]
    code: str
    message: str


def make_problem(line: int, column: int, code: str, message: str) -> Problem:
    """Returns a problem; its code decides whether it is an error."""
    return Problem(line, column, "error" if code in ERRORS else "warning", code, message)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Returns problems in the order of their places, each once."""
    return sorted(set(problems), key=lambda one: (one.line, one.column, one.code, one.message))


def show_problems(problems: Iterable[Problem], text: str, file: str) -> Iterator[str]:
    """Yields each problem for people: place, message, and the line with a caret.

    Of a long line, the part around the place is shown. Control characters are replaced, so that
    they do not act on a terminal. A tab counts as one column, as it does for `column`.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    for one in problems:
        said = f"{file}:{one.line}:{one.column}: {one.severity}: {one.message} [{one.code}]"
        written = lines[one.line - 1] if one.line <= len(lines) else ""
        begin = max(0, one.column - 1 - _SHOWN // 2) if len(written) > _SHOWN else 0
        part = written[begin : begin + _SHOWN]
        shown = "".join(letter if letter.isprintable() else " " for letter in part)
        caret = " " * (one.column - 1 - begin) + "^"
        yield f"{said}\n    {shown.rstrip()}\n    {caret}"


_SHOWN = 120

"""Parses, checks and loads the text of a program, with the parser and the checker."""

from __future__ import annotations

from holdfast.errors import ProgramError
from holdfast.prose.checker import check_tree
from holdfast.prose.parser import Parsed, read_program
from holdfast.prose.problems import Problem, in_order, make_problem, show_problems
from holdfast.prose.syntax import Program


def parse(source: str | bytes, file: str = "program.prose") -> Program:
    """Returns the syntax tree of a program; raises ProgramError for syntax errors."""
    text, problem = _decode(source)
    parsed = read_program(text, file)
    _refuse(problem or parsed.problems, text, file)
    return parsed.program


def check(source: str | bytes, file: str = "program.prose") -> list[Problem]:
    """Returns all errors and warnings of a program, in the order of their places."""
    text, problem = _decode(source)
    return problem or _check(text, file)[1]


def load(source: str | bytes, file: str = "program.prose") -> Program:
    """Returns the syntax tree of a program; raises ProgramError with every error if it has any."""
    text, problem = _decode(source)
    parsed, problems = _check(text, file)
    _refuse(problem or problems, text, file)
    return parsed.program


def decoded(source: bytes, file: str) -> str:
    """Returns the text of a program; raises ProgramError for the first byte that is not UTF-8."""
    text, problem = _decode(source)
    _refuse(problem, text, file)
    return text


def _decode(source: str | bytes) -> tuple[str, list[Problem]]:
    if isinstance(source, str):
        return source, []
    try:
        return source.decode("utf-8"), []
    except UnicodeDecodeError as error:
        before = source[: error.start].decode("utf-8")
        line = before.count("\n") + 1
        column = len(before) - before.rfind("\n")
        said = f"the byte 0x{source[error.start]:02x} is no UTF-8 here: save the file as UTF-8"
        return source.decode("utf-8", "replace"), [make_problem(line, column, "encoding", said)]


def _check(text: str, file: str) -> tuple[Parsed, list[Problem]]:
    parsed = read_program(text, file)
    return parsed, in_order([*parsed.problems, *check_tree(parsed)])


def _refuse(problems: list[Problem], text: str, file: str) -> None:
    errors = [one for one in in_order(problems) if one.severity == "error"]
    if errors:
        shown = "\n".join(show_problems(errors, text, file))
        raise ProgramError(file, errors, shown)

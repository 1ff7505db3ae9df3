"""Programs read and checked: the entrance to this package's parts."""

from __future__ import annotations

from holdfast.errors import ProgramError
from holdfast.prose.parser import Parsed, read_program
from holdfast.prose.problems import Problem, in_order, show_problem
from holdfast.prose.syntax import Program


def parse(text: str, file: str = "program.prose") -> Program:
    """Returns the syntax tree of a program. ProgramError says what is wrong with its form."""
    parsed = read_program(text, file)
    _refuse(parsed.problems, text, file)
    return parsed.program


def check(text: str, file: str = "program.prose") -> list[Problem]:
    """Returns everything that is wrong with a program or doubtful, in the order of places."""
    return _check(text, file)[1]


def load(text: str, file: str = "program.prose") -> Program:
    """Returns the syntax tree of a program that can be run. ProgramError has every error of it."""
    parsed, problems = _check(text, file)
    _refuse(problems, text, file)
    return parsed.program


def _check(text: str, file: str) -> tuple[Parsed, list[Problem]]:
    parsed = read_program(text, file)
    return parsed, in_order(parsed.problems)


def _refuse(problems: list[Problem], text: str, file: str) -> None:
    errors = [one for one in in_order(problems) if one.severity == "error"]
    if errors:
        shown = "\n".join(show_problem(one, text, file) for one in errors)
        raise ProgramError(file, errors, shown)

"""Verbs for `.prose` programs: check them."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli.options import Flag
from holdfast.cli.printing import print_json, print_line
from holdfast.errors import NotFoundError, UnavailableError, UsageError
from holdfast.prose import Problem, check
from holdfast.prose.problems import show_problems
from holdfast.render.prose import check_document
from holdfast.render.text import clean


def check_programs(*files: str, json: Flag = False) -> int:
    """Check programs: print every error and warning with its place; run nothing.

    Parameters
    ----------
    files
        Files with programs.
    json
        Print one JSON document.
    """
    if not files:
        raise UsageError("no file is given", hint="holdfast prose check FILE…")
    found: dict[str, list[Problem]] = {}
    for file in files:
        data = read_program_file(file)
        found[file] = check(data, file)
        if not json:
            _print_problems(found[file], data.decode("utf-8", "replace"), file)
    if json:
        print_json(check_document(found))
    errors = [one for problems in found.values() for one in problems if one.severity == "error"]
    return UsageError.exit_code if errors else 0


def _print_problems(problems: list[Problem], text: str, file: str) -> None:
    for shown in show_problems(problems, text, file):
        for line in shown.split("\n"):
            print_line(clean(line))
    errors = sum(problem.severity == "error" for problem in problems)
    print_line(
        clean(f"{file}: {_count(errors, 'error')}, {_count(len(problems) - errors, 'warning')}")
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number or 'no'} {what}s"


def read_program_file(file: str) -> bytes:
    """Returns what is in a file, or says why it cannot be read."""
    try:
        return Path(file).read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f'there is no file "{file}"', hint="check the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnavailableError(f'the file "{file}" cannot be read: {reason}') from error

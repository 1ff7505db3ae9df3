"""Documents of `.prose` programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.prose import Problem


def check_document(found: Mapping[str, Iterable[Problem]]) -> Any:
    """Returns the problems of each file, errors and warnings apart."""
    files: list[Any] = []
    for file, problems in found.items():
        documents: dict[str, list[Any]] = {"error": [], "warning": []}
        for one in problems:
            documents[one.severity].append(problem_document(one))
        files.append({"file": file, "errors": documents["error"], "warnings": documents["warning"]})
    return {"files": files}


def problem_document(problem: Problem) -> Any:
    """Returns one problem."""
    return {
        "line": problem.line,
        "column": problem.column,
        "code": problem.code,
        "message": problem.message,
    }

"""Documents of git: points to go back to, what a rewind does, files and commits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.git.rewinds import FileStep, Preview, RewindPoint, Rewound
from holdfast.render.history import diff_document
from holdfast.render.text import time_text


def path_text(path: str) -> str:
    """Returns a path as text: a byte that is none is written out."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def point_document(point: RewindPoint) -> dict[str, Any]:
    """Returns a point to go back to."""
    return {
        "id": point.id,
        "name": point.name,
        "time": time_text(point.time),
        "actor": point.actor,
        "scopes": point.scopes,
        "commit": point.commit,
        "branch": point.branch,
        "head": point.head,
        "left_out": point.left_out,
        "rewinds": point.rewinds,
    }


def points_document(
    points: Iterable[RewindPoint], interrupted: RewindPoint | None
) -> dict[str, Any]:
    """Returns the points, newest first, and the one before a rewind that was killed."""
    return {
        "points": [point_document(one) for one in points],
        "interrupted": None if interrupted is None else interrupted.id,
    }


def preview_document(preview: Preview) -> dict[str, Any]:
    """Returns what a rewind would do."""
    return {
        "done": False,
        "point": point_document(preview.point),
        "what": preview.what,
        "scopes": {
            name: diff_document(name, difference) for name, difference in preview.scopes.items()
        },
        "files": _steps(preview.files),
        "skipped": _reasons(preview.skipped),
        "stays": preview.stays,
    }


def rewound_document(done: Rewound) -> dict[str, Any]:
    """Returns what a rewind did."""
    return {
        "done": True,
        "point": point_document(done.point),
        "before": done.before.id,
        "what": done.what,
        "scopes": done.scopes,
        "files": _steps(done.files),
        "skipped": _reasons(done.skipped),
        "stays": done.stays,
    }


def _steps(steps: Iterable[FileStep]) -> list[dict[str, str]]:
    return [{"path": path_text(one.path), "act": one.act} for one in steps]


def _reasons(reasons: Mapping[str, str]) -> dict[str, str]:
    return {path_text(path): reason for path, reason in reasons.items()}

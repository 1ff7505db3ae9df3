"""Documents of git: points to go back to, what a rewind does, files and commits."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.git.commit_trailers import Rebuilt
from holdfast.git.commits import events_named
from holdfast.git.files import FileDifference
from holdfast.git.repository import Commit
from holdfast.git.rewinds import FileStep, Preview, RewindPoint, Rewound
from holdfast.git.work_tree import FileStatus
from holdfast.git_recovery import BroughtBack, LostRevisions
from holdfast.query.form import Hit
from holdfast.render.history import diff_document
from holdfast.render.query import hit_document
from holdfast.render.text import time_text


def path_text(path: str) -> str:
    """Returns a path as text; a byte that is not UTF-8 is written as an escape."""
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


def commit_document(commit: Commit) -> dict[str, Any]:
    """Returns a commit of git, and the events that its message names."""
    return {
        "commit": commit.id,
        "parents": list(commit.parents),
        "author": commit.author,
        "time": time_text(commit.time),
        "summary": commit.summary,
        "names": [str(place) for place in events_named(commit)],
    }


def commits_document(
    commits: Iterable[Commit], linked: Mapping[str, Sequence[Hit]]
) -> dict[str, Any]:
    """Returns commits, each with what was recorded that links to it."""
    return {
        "commits": [
            {**commit_document(one), "linked": [hit_document(hit) for hit in linked[one.id]]}
            for one in commits
        ]
    }


def file_document(
    path: str, status: FileStatus | None, commits: Iterable[Commit], linked: Sequence[Hit]
) -> dict[str, Any]:
    """Returns what is known of a file: how it differs, and what changed it."""
    return {
        "path": path_text(path),
        "staged": status.staged if status else None,
        "changed": status.changed if status else None,
        "commits": [commit_document(one) for one in commits],
        "linked": [hit_document(hit) for hit in linked],
    }


def file_at_document(path: str, commit: Commit, data: bytes) -> dict[str, Any]:
    """Returns what a file held at a commit, as text, or in base64 if it is not UTF-8."""
    try:
        content: dict[str, Any] = {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        content = {"base64": b64encode(data).decode()}
    return {"path": path_text(path), "commit": commit.id, **content}


def file_diff_document(difference: FileDifference) -> dict[str, Any]:
    """Returns how a file differs from what a commit has."""
    return {
        "path": path_text(difference.path),
        "commit": difference.commit,
        "change": difference.change,
        "diff": difference.text,
        "lost": difference.lost,
    }


def git_status_document(
    root: str, branch: str | None, commits: Sequence[Commit], files: Iterable[FileStatus]
) -> dict[str, Any]:
    """Returns where a repository is, its newest commits and the files that differ."""
    return {
        "work_tree": path_text(root),
        "branch": branch,
        "head": commits[0].id if commits else None,
        "commits": [commit_document(one) for one in commits],
        "files": [
            {"path": path_text(one.path), "staged": one.staged, "changed": one.changed}
            for one in files
        ],
    }


def lost_document(lost: Iterable[LostRevisions], *, accepted: bool) -> dict[str, Any]:
    """Returns the revisions that git took back; `commit` is null if no commit has them."""
    return {"lost": [_lost(one) for one in lost], "accepted": accepted}


def brought_back_document(done: BroughtBack) -> dict[str, Any]:
    """Returns what was brought back, and what did not fit."""
    return {
        "regained": [_lost(one) for one in done.regained],
        "merged": [_lost(one) for one in done.merged],
        "events": done.events,
        "not_applied": [
            {
                "scope": one.stream,
                "revision": one.revision,
                "type": one.type,
                "why": one.why,
                "link": one.link,
            }
            for one in done.not_applied
        ],
    }


def made_commit_document(commit: Commit | None) -> dict[str, Any]:
    """Returns the commit that was made, null if nothing was new."""
    return {"made": None if commit is None else commit_document(commit)}


def hook_document(root: str, path: str | None) -> dict[str, Any]:
    """Returns where the hook of a repository is, null if there is none."""
    return {"work_tree": path_text(root), "hook": None if path is None else path_text(path)}


def rebuilt_document(done: Rebuilt) -> dict[str, Any]:
    """Returns what a rebuild from commits did."""
    return {
        "added": done.added,
        "agree": done.agree,
        "differ": done.differ,
        "missing": done.missing,
    }


def merge_driver_document(root: str, attributes: Sequence[str]) -> dict[str, Any]:
    """Returns where the merge driver was installed, and the attributes that name it."""
    return {"work_tree": path_text(root), "attributes": list(attributes)}


def _lost(one: LostRevisions) -> dict[str, Any]:
    return {
        "scope": one.stream,
        "first": one.first,
        "last": one.last,
        "commit": one.commit,
        "diverged": one.is_diverged,
    }

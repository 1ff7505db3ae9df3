"""What was recovered after a crash, and from where: the files, the log, git.

A new coordinator first imports what people have edited, so that edits made before a restart count.
The report names each fact with its source, and each difference between a file and the log with the
side that won. If the store is lost, everything comes from the files and git: a store that knows
nothing of a project imports its files, with the ids in them. Files that are gone, too, are those of
the last commit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from holdfast.clock import SystemClock
from holdfast.errors import GitError, NotFoundError, UnavailableError
from holdfast.exchange import put, write_new
from holdfast.git.repository import Repository
from holdfast.names import short_id
from holdfast.projects.tree import committed, work_tree

if TYPE_CHECKING:
    from holdfast.projects.coordinator import Coordinator, Result
    from holdfast.projects.project import Project

FactSource = Literal["log", "file", "git"]
Winner = Literal["file", "log", "nobody"]
COMMITS_SHOWN = 5
_WINNERS: dict[str, Winner] = {
    "added": "file",
    "changed": "file",
    "removed": "file",
    "conflict": "file",
    "refused": "log",
    "unknown": "log",
    "deleted": "log",
    "broken": "nobody",
    "pending": "nobody",
}


class RecoveredFact(Struct, frozen=True):
    """One recovered fact, and its source."""

    name: str
    value: str
    source: FactSource


class RecoveredDifference(Struct, frozen=True):
    """A difference between a file and the log, and which of them counts now."""

    file: str
    item: str | None
    found: str
    winner: Winner


class RecoveryReport(Struct, frozen=True):
    """What was recovered. `work` has the runs that can be resumed."""

    facts: tuple[RecoveredFact, ...]
    differences: tuple[RecoveredDifference, ...]
    work: tuple[str, ...]
    results: tuple[Result, ...] = ()
    """What became of that work, if it was resumed."""


def fetch_files(project: Project) -> tuple[str, ...]:
    """Puts back files of a project that are gone, from the last commit of git; returns their names.

    Only for a store that knows nothing of the project: to any other the log says what they hold.
    """
    found: list[str] = []
    if project.scope.revision or not project.settings.views:
        return ()
    for name in project.files:
        path = project.root / name
        if os.path.lexists(path):
            continue
        text = None
        with contextlib.suppress(NotFoundError, GitError):  # the report says what is with git
            text = committed(project, name)
        if text is None:
            continue
        beside = path.with_name(f"{path.name}.new-{short_id(SystemClock())}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_new(beside, text)
            if put(beside, path):
                found.append(name)
        except OSError as error:
            raise UnavailableError(
                f'"{path}" cannot be brought back from git: {error}', hint="make room"
            ) from error
        finally:
            beside.unlink(missing_ok=True)
    return tuple(found)


def report(main: Coordinator, fetched: Sequence[str] = ()) -> RecoveryReport:
    """Returns what a coordinator knows when it has just begun, and from where."""
    facts = [*_from_files(main, fetched), *_from_log(main), *_from_git(main)]
    differences = tuple(
        RecoveredDifference(one.file, one.item, one.message, _WINNERS[one.kind])
        for one in main.findings
    )
    return RecoveryReport(tuple(facts), differences, tuple(main.unfinished()))


def _from_files(main: Coordinator, fetched: Sequence[str]) -> list[RecoveredFact]:
    taken: dict[str, int] = {}
    for one in main.findings:
        taken[one.file] = taken.get(one.file, 0) + (_WINNERS[one.kind] == "file")
    return [
        RecoveredFact(
            name,
            ("was gone, is as the last commit has it: " if name in fetched else "")
            + (f"{taken[name]} items taken over" if taken.get(name) else "read"),
            "git" if name in fetched else "file",
        )
        for name in main.project.files
        if (main.project.root / name).is_file()
    ]


def _from_log(main: Coordinator) -> list[RecoveredFact]:
    counts: dict[str, int] = {}
    for task in main.tasks.list(limit=None):
        counts[task.status] = counts.get(task.status, 0) + 1
    found = [
        RecoveredFact("mode", main.mode, "log"),
        RecoveredFact("tasks", ", ".join(f"{n} {name}" for name, n in counts.items()), "log"),
        RecoveredFact("messages that wait", str(len(main.waiting())), "log"),
    ]
    children = main.scope.get("children", {})
    for run in main.unfinished():
        what = "child" if run in children else "work"
        progress = main.store.runs.get(run).progress
        found.append(RecoveredFact(what, f"{run}: {progress}", "log"))
    return found


def _from_git(main: Coordinator) -> list[RecoveredFact]:
    try:
        repository = Repository.find(main.project.root)
        commits = repository.last_commits(COMMITS_SHOWN)
        tree = work_tree(main.project)
        changed = [] if tree is None else tree.status()
    except (NotFoundError, GitError) as error:
        return [RecoveredFact("git", f"absent: {error}", "git")]
    paths = ", ".join(one.path for one in changed[:COMMITS_SHOWN])
    return [
        RecoveredFact("branch", repository.branch or "none", "git"),
        *(RecoveredFact("commit", f"{one.id[:12]} {one.summary}", "git") for one in commits),
        RecoveredFact("changed files", f"{len(changed)}: {paths}" if changed else "none", "git"),
    ]

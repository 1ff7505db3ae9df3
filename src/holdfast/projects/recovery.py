"""What was recovered after a crash, and from where: the files, the log, git.

A new coordinator first imports what people have edited, so that edits made before a restart count.
The report names each fact with its source, and each difference between a file and the log with the
side that won. If the store is lost, everything comes from the files and git: a store that knows
nothing of a project imports its files, with the ids in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from holdfast.errors import GitError, NotFoundError
from holdfast.git.repository import Repository
from holdfast.projects.tree import work_tree

if TYPE_CHECKING:
    from holdfast.projects.coordinator import Coordinator

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


def report(main: Coordinator) -> RecoveryReport:
    """Returns what a coordinator knows when it has just begun, and from where."""
    facts = [*_from_files(main), *_from_log(main), *_from_git(main)]
    differences = tuple(
        RecoveredDifference(one.file, one.item, one.message, _WINNERS[one.kind])
        for one in main.findings
    )
    return RecoveryReport(tuple(facts), differences, tuple(main.unfinished()))


def _from_files(main: Coordinator) -> list[RecoveredFact]:
    taken: dict[str, int] = {}
    for one in main.findings:
        taken[one.file] = taken.get(one.file, 0) + (_WINNERS[one.kind] == "file")
    return [
        RecoveredFact(
            name, f"{taken[name]} items taken over" if taken.get(name) else "read", "file"
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

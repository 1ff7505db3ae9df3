"""The problems of a project, and the remedies for each; finding them changes nothing.

A file of the project can be restored from the log, restored from git, or kept as it was edited. For
the store there are `holdfast check` and `holdfast salvage`, or it is made again from the files.
Problems of git, the work and the disk are reported with advice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from holdfast.errors import GitError, LimitError, NotFoundError, UnavailableError, UsageError
from holdfast.git.repository import Repository
from holdfast.projects.housekeeping import check_disk
from holdfast.projects.tree import committed

if TYPE_CHECKING:
    from holdfast.projects.project import Project

Remedy = Literal["log", "git", "keep"]
REMEDIES: tuple[Remedy, ...] = ("log", "git", "keep")


class Ailment(Struct, frozen=True):
    """One problem: where it is, what was found, and what can be done."""

    part: Literal["file", "store", "git", "work", "disk", "speed"]
    name: str
    found: str
    options: tuple[str, ...]


def examine(project: Project) -> list[Ailment]:
    """Returns the problems of a project; changes nothing."""
    parts = (_files, _store, _git, _work, _disk, _speed)
    return [one for part in parts for one in part(project)]


def _files(project: Project) -> list[Ailment]:
    if not project.settings.views or not project.scope.revision:
        return []
    found: list[Ailment] = []
    try:
        statuses = project.views().status()
    except UnavailableError as error:
        # Their folder cannot be made, for example. The other parts are looked at all the same.
        options = ("free some space, or look at it", "holdfast project restore FILE --remedy log")
        return [Ailment("file", str(project.root), error.message, options)]
    for one in statuses:
        if one.status in ("fresh", "behind"):
            continue
        text = f"{one.status}: {one.message}" if one.message else one.status
        verb = f"holdfast project restore {one.file} --remedy"
        options = [f"{verb} log", f"{verb} git"]
        if one.status in ("edited", "pending"):
            options.append(f"{verb} keep")
        found.append(Ailment("file", one.file, text, tuple(options)))
    return found


def _store(project: Project) -> list[Ailment]:
    report = project.store.check(read_all=False)
    options = ("holdfast check", "holdfast salvage", "holdfast project recover --from-files")
    return [
        Ailment("store", str(project.store.url), str(one), options)
        for one in report.findings
        if not one.harmless
    ]


def _git(project: Project) -> list[Ailment]:
    try:
        repository = Repository.find(project.root)
        repository.last_commits(1)
    except NotFoundError:
        return []  # a project need not be in a repository
    except GitError as error:
        fix = ("git fsck", "git init, or another clone")
        return [Ailment("git", str(project.root), str(error), fix)]
    before = project.store.git(project.root).interrupted()
    if before is None:
        return []
    # What was done since would go back, too: each is looked at before it is done.
    options = ["holdfast rewind undo --dry-run"]
    if before.rewinds is not None and not before.rewinds.startswith("commit:"):
        options.insert(0, f"holdfast project rewind {before.rewinds} --dry-run")
    return [Ailment("git", before.name, "a rewind did not end", tuple(options))]


def _work(project: Project) -> list[Ailment]:
    status = project.status()
    found: list[Ailment] = []
    if status.coordinator is None and status.work is not None:
        text = f"work on task {status.work['task']} was left, and nobody coordinates"
        options = ("holdfast project recover --go-on",)
        found.append(Ailment("work", str(status.work["run"]), text, options))
    for one in project.sessions(limit=None):
        if one.status == "crashed":
            options = (f"holdfast project chat --resume {one.id}",)
            found.append(Ailment("work", one.id, "the process of this session died", options))
    return found


def _disk(project: Project) -> list[Ailment]:
    try:
        check_disk(project)
    except LimitError as error:
        options = ("free some space", "holdfast project prune", "holdfast retain")
        return [Ailment("disk", str(project.root), error.message, options)]
    return []


def _speed(project: Project) -> list[Ailment]:
    found: list[Ailment] = []
    for one in project.slow():
        times = "once" if one.times == 1 else f"{one.times} times"
        text = f"took {one.seconds:g} s, {times}; the last time at {one.at}"
        options = ("holdfast check", "holdfast project prune", "[project] slow in holdfast.toml")
        found.append(Ailment("speed", one.what, text, options))
    return found


def restore(project: Project, file: str, remedy: Remedy) -> list[str]:
    """Restores a file from the log or from git, or imports the edit; returns what was done."""
    if remedy not in REMEDIES:
        raise UsageError(f"a file is restored from one of {', '.join(REMEDIES)}, found {remedy!r}")
    views = project.views()
    if remedy == "git":
        if file not in project.files:
            raise NotFoundError(f'"{file}" is none of the five files of project "{project.id}"')
        text = committed(project, file)
        if text is None:
            raise NotFoundError(f'the last commit of git has no file "{file}"')
        found = views.replace(file, text)
    else:
        found = views.reject(file) if remedy == "log" else views.accept(file)
    return [str(one) for one in found]

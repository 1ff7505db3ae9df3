"""The files of a project as git sees them: what has changed, and points to go back to.

A project may be outside of any git repository, and git may not be installed. Then no files are
reported, and points cover only state and conversation. Problems with git are logged and do not stop
work.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import GitError, NotFoundError
from holdfast.git.repository import GITLINK, Entry, Repository
from holdfast.git.rewinds import RewindPoint
from holdfast.git.work_tree import WorkTree
from holdfast.record.message_events import FileChange
from holdfast.scope import Scope

if TYPE_CHECKING:
    from holdfast.projects.project import Project

CHANGES_MAX = 200
"""The most files that one message is linked to."""
_logger = logging.getLogger("holdfast.projects")

Files = dict[str, Entry]


def work_tree(project: Project) -> WorkTree | None:
    """Returns the work tree of a project; None if there is none, or no git."""
    try:
        return project.store.git(project.root).work_tree()
    except (NotFoundError, GitError) as error:
        _logger.debug('project "%s" has no work tree: %s', project.id, error)
        return None


def look(project: Project) -> Files:
    """Returns what every file of the work tree holds, by path; empty without git."""
    tree = work_tree(project)
    try:
        return {} if tree is None else tree.look().files
    except GitError as error:
        _logger.warning("the files of the project cannot be looked at: %s", error)
        return {}


def changed(before: Files, after: Files) -> tuple[str, ...]:
    """Returns the paths that differ between two looks."""
    return tuple(sorted(path for path in {*before, *after} if before.get(path) != after.get(path)))


def changed_paths(project: Project) -> list[str]:
    """Returns the files that differ from the last commit, without views; empty without git."""
    tree = work_tree(project)
    try:
        found = [] if tree is None else [one.path for one in tree.status()]
    except GitError as error:
        _logger.warning("what is not committed is not known: %s", error)
        return []
    return [path for path in found if tree is not None and not tree.is_view(path)]


def changed_files(project: Project, before: Files) -> tuple[str, ...]:
    """Returns the files of the work tree that have changed since a look, without views."""
    tree, now = work_tree(project), look(project)
    return tuple(path for path in changed(before, now) if tree is None or not tree.is_view(path))


def committed(project: Project, file: str) -> bytes | None:
    """Returns what a file holds in the last commit of git; None if that has no such file."""
    repository = Repository.find(project.root)
    head = repository.head
    path = os.path.relpath(project.root / file, repository.root)
    entry = None if head is None else repository.files_of(head).get(path)
    return None if entry is None else repository.read_objects([entry.id])[entry.id]


def mark(project: Project, name: str, session: str | None) -> RewindPoint:
    """Makes a point of the project's state, a session's conversation, and the files."""
    scopes: list[Scope] = [project.scope]
    if session is not None:
        scopes.append(project.conversation(session))
    rewinds = project.store.git(project.root)
    try:
        return rewinds.mark(name, scopes)
    except GitError as error:
        _logger.warning("the point %r has no files: %s", name, error)
        return rewinds.mark(name, scopes, files=False)


def changes_since(project: Project, commit: str | None) -> tuple[list[FileChange], int]:
    """Returns the files that changed since the commit of a point, and how many are left out."""
    tree = None if commit is None else work_tree(project)
    if tree is None or commit is None:
        return [], 0
    try:
        before, after = tree.repository.files_of(commit), tree.look().files
        paths = [path for path in changed(before, after) if not tree.is_view(path)]
        left_out, paths = len(paths[CHANGES_MAX:]), paths[:CHANGES_MAX]
        plain = [path for path in paths if path in before and before[path].mode != GITLINK]
        held = tree.repository.read_objects(before[path].id for path in plain)
    except GitError as error:
        _logger.warning("what has changed since %s is not known: %s", commit, error)
        return [], 0
    old = {path: held.get(before[path].id) for path in plain}
    found = [
        FileChange.of(path, old.get(path), _read(Path(tree.repository.root) / path))
        for path in paths
    ]
    return found, left_out


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None

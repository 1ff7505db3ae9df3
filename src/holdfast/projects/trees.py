"""Work trees of children: each has a copy of the files, which is merged when its task is done.

A child begins with all files of the project's directory, including uncommitted changes. Its own
changes are merged back by a three-way merge of each file. If there is a conflict, or the task was
not done, nothing is merged: the files are one commit on a ref of ours, and the task is blocked with
a reason that names the command to bring them back. The project's five files are never merged: they
show the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import GitError, HoldfastError, NotFoundError, UsageError
from holdfast.git.linked_trees import LinkedTrees, MergedFile
from holdfast.git.repository import Entry

if TYPE_CHECKING:
    from holdfast.projects.project import Project

_logger = logging.getLogger("holdfast.projects")


def trees_of(project: Project) -> LinkedTrees:
    """Returns the work trees of a project's children; raises UsageError without git."""
    try:
        tree = project.store.git(project.root).work_tree()
    except (NotFoundError, GitError) as error:
        raise UsageError(
            f"a work tree of its own needs git: {error.message}",
            hint="git init, or leave out worktree: the child then works in the project's directory",
        ) from error
    return LinkedTrees(tree, os.path.join(project.root, ".holdfast-trees"))


def grow(project: Project, run: str) -> str:
    """Makes the work tree of a child, and returns the commit that it begins with."""
    trees = trees_of(project)
    base = trees.keep_files(run)
    trees.make(run, base)
    return base


def directory_of(project: Project, run: str, base: str | None) -> str:
    """Returns where a run works: the project's directory, or its own tree.

    If somebody has removed the tree, it is made again, with the files that were gathered last.
    """
    if base is None:
        return str(project.root)
    trees = trees_of(project)
    path = trees.path_of(run)
    if not trees.is_whole(run):
        trees.make(run, trees.main.repository.commit_id(trees.ref_of(run)) or base)
    return os.path.normpath(
        os.path.join(path, os.path.relpath(project.root, trees.main.repository.root))
    )


def gather(project: Project, run: str, base: str, title: str, *, merges: bool) -> dict[str, Any]:
    """Commits the files of a child's tree, and returns what a merge would change."""
    trees = trees_of(project)
    if not trees.is_whole(run):
        commit = trees.main.repository.commit_id(trees.ref_of(run)) or base
    else:
        commit = trees.gather(run, base, f"{title}\n\nHoldfast-Run: {run}\n")
    root = trees.main.repository.root
    own = [os.path.relpath(project.root / name, root) for name in project.files]
    plan = trees.plan(base, commit, without=own)
    odd = [one.path for one in plan.files if not _is_text(one.path)]
    conflicts = [_shown(path) for path in (*plan.conflicts, *odd)]
    return {
        "commit": commit,
        "merges": merges and not conflicts,
        "files": [] if odd else [_stored(one) for one in plan.files],
        "conflicts": conflicts,
        "ref": trees.ref_of(run),
    }


def merge(project: Project, files: Sequence[Any]) -> dict[str, str]:
    """Writes merged files; returns those that were left unchanged, each with the reason."""
    return trees_of(project).apply([_loaded(one) for one in files])


def clear(project: Project, run: str, *, keeps_ref: bool) -> None:
    """Removes the tree of a child whose task is over, and its ref unless `keeps_ref`."""
    trees = trees_of(project)
    trees.remove(run)
    if not keeps_ref:
        trees.forget(run)


def retire(project: Project, run: str) -> str | None:
    """Commits the files of a run that ended without an answer, and removes its tree.

    Returns the ref of that commit; None if nothing was changed. A tree that was not completely made
    holds nobody's work, so it is only removed.
    """
    trees = trees_of(project)
    base = trees.main.repository.commit_id(trees.whole_ref(run))
    changed = False
    if base is not None and trees.is_whole(run):
        changed = trees.gather(run, base, f"What {run} left\n") != base
    trees.remove(run)
    if not changed:
        trees.forget(run)
    return trees.ref_of(run) if changed else None


def sweep(project: Project, known: Iterable[str]) -> list[str]:
    """Removes trees that no longer belong to a run, and returns the refs of their files.

    It never fails: what cannot be removed now is left for the next coordinator.
    """
    if not os.path.isdir(project.root / ".holdfast-trees"):
        return []
    found: list[str] = []
    try:
        trees = trees_of(project)
        for name in trees.left(known):
            ref = retire(project, name)
            _logger.warning('the work tree "%s" was left: %s', name, ref or "nothing was in it")
            found += [ref] if ref else []
    except (HoldfastError, OSError) as error:
        _logger.warning("work trees that were left cannot be looked at: %s", error)
    return found


def _is_text(path: str) -> bool:
    return path.isprintable()


def _shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _stored(one: MergedFile) -> list[Any]:
    sides = [None if side is None else [side.mode, side.id] for side in (one.before, one.after)]
    return [one.path, *sides]


def _loaded(stored: Any) -> MergedFile:
    path, *sides = stored
    before, after = (None if side is None else Entry(*side) for side in sides)
    return MergedFile(path, before, after)

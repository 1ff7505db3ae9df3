"""Linked work trees beside the user's: an agent works in one, and its files are merged back.

    made      a commit of all files of the user's work tree is checked out in a separate folder
    gathered  the folder's files become one commit on top of that one, on a ref of ours
    planned   a three-way merge, file by file, into the current files of the user's work tree
    applied   each file is put in its place, unless it changed since the plan was made
    removed   the folder, and git's record of it

The user's branch, index and stash are never moved. Git's own `checkout` and `merge` would run
filters and merge drivers that a repository names. So files are written byte by byte, and two
changes of one text are merged with `git merge-file`, which reads no attributes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from holdfast.errors import GitError, NotFoundError, UnavailableError
from holdfast.git.repository import GITLINK, NAMESPACE, SYMLINK, Entry, Repository
from holdfast.git.work_tree import WorkTree, is_safe

REFS = f"{NAMESPACE}trees/"
_READ_BYTES_AT_ONCE = 32 << 20
_CONFLICTS_MAX = 127  # merge-file exits with the number of conflicts, up to this one
_IGNORE = ".gitignore"
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARACTERS_MAX = 40
_DIGEST = 8


class MergedFile(Struct, frozen=True):
    """One file that a merge changes: what it must hold before, and what it holds afterwards."""

    path: str
    before: Entry | None
    after: Entry | None


class MergePlan(Struct, frozen=True):
    """What a merge would do. If there are conflicts, it must not be applied."""

    files: tuple[MergedFile, ...]
    conflicts: tuple[str, ...]


class LinkedTrees:
    """Our work trees beside one of the user's; the name of a tree is any text."""

    def __init__(self, main: WorkTree, folder: str) -> None:
        """`main` is the user's work tree. Ours are in `folder`, which git ignores."""
        self.main = main
        self.folder = folder

    def path_of(self, name: str) -> str:
        """Returns the folder of the tree of that name."""
        return os.path.join(self.folder, _plain(name))

    def ref_of(self, name: str) -> str:
        """Returns the ref of the tree's files: as it began, and once gathered, as it ended."""
        return REFS + _plain(name)

    def left(self, names: Iterable[str]) -> list[str]:
        """Returns the names of trees, complete or not, that are none of these.

        A tree whose folder is gone counts too, as long as git lists it.
        """
        known = {_plain(name) for name in names}
        there = {os.path.basename(path) for path in self._listed()}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folders = os.scandir(self.folder)
            there.update(one.name for one in folders if one.is_dir(follow_symlinks=False))
        return sorted(there - known)

    # --- making ----------------------------------------------------------------------------------

    def keep_files(self, name: str) -> str:
        """Commits the files of the user's work tree on the tree's ref; returns the commit."""
        repository = self.main.repository
        written = repository.write_tree(self.main.look(keep=True).files)
        head = repository.head
        commit = repository.write_commit(
            written, f"What {name} began with\n", parents=[head] if head else []
        )
        repository.point_ref(self.ref_of(name), commit)
        return commit

    def make(self, name: str, commit: str) -> str:
        """Checks out a commit in the tree's folder, and returns the folder.

        An existing folder is removed first, such as one that a killed process left incomplete.
        """
        path, repository = self.path_of(name), self.main.repository
        self.remove(name)
        _make_folder(self.folder)
        self._run("add", "--quiet", "--no-checkout", "--detach", path, commit)
        tree = WorkTree(Repository.find(path))
        tree.repository.run("read-tree", commit)
        files = tree.repository.files_of(commit)
        for group in _groups(tree.repository, files):
            held = tree.repository.read_objects(files[one].id for one in group)
            for one in group:
                if reason := tree.put(one, files[one], None, held[files[one].id]):
                    raise UnavailableError(f'"{os.path.join(path, one)}" {reason}')
        for one in (file for file, entry in files.items() if entry.mode == GITLINK):
            if is_safe(one):
                os.makedirs(os.path.join(path, one), exist_ok=True)
        # The ref that marks the tree as complete comes last: after a crash before it, the tree
        # counts as incomplete and is made again.
        repository.point_ref(self.whole_ref(name), commit)
        return path

    def is_whole(self, name: str) -> bool:
        """Returns whether a tree exists and was made completely."""
        if not os.path.lexists(os.path.join(self.path_of(name), ".git")):
            return False
        return self.whole_ref(name) in self.main.repository.refs(self.whole_ref(name))

    def whole_ref(self, name: str) -> str:
        """Returns the ref of the commit that a tree began with; it marks a complete tree."""
        return f"{NAMESPACE}whole/{_plain(name)}"

    # --- what it came to -------------------------------------------------------------------------

    def gather(self, name: str, base: str, message: str) -> str:
        """Commits the files of a tree on top of `base`, the commit it began with, on its ref.

        Returns that commit, or `base` itself if nothing was changed. Repeating the call after a
        crash is safe: it finds the same files and writes an equivalent commit.
        """
        repository = Repository.find(self.path_of(name))
        if repository.common_dir != self.main.repository.common_dir:
            raise GitError(
                f'"{self.path_of(name)}" is a work tree of "{repository.common_dir}": expected '
                f'"{self.main.repository.common_dir}"',
                hint="what the agent has done is in that folder; move it away",
            )
        tree = WorkTree(repository)
        written = repository.write_tree(tree.look(keep=True).files)
        [began] = repository.commits([base])
        commit = base
        if written != began.tree:
            commit = repository.write_commit(written, message, parents=[base])
        self.main.repository.point_ref(self.ref_of(name), commit)
        return commit

    def remove(self, name: str) -> None:
        """Removes the folder of a tree and git's record of it; its ref stays."""
        path, repository = self.path_of(name), self.main.repository
        # First it is no longer complete: a removal that is interrupted leaves nothing to be used.
        repository.point_ref(self.whole_ref(name), None)
        if os.path.lexists(path):
            shutil.rmtree(path)
        if path in self._listed():
            self._run("remove", "--force", "--force", path)

    def _listed(self) -> list[str]:
        """Returns the paths of our trees that git lists."""
        printed = self._run("list", "--porcelain", "-z")
        lines = [os.fsdecode(line) for line in printed.split(b"\0")]
        paths = [one.removeprefix("worktree ") for one in lines if one.startswith("worktree ")]
        return [path for path in paths if os.path.dirname(path) == self.folder]

    def _run(self, *words: str) -> bytes:
        """Runs `git worktree` under a lock, and returns what it prints.

        Git examines every linked tree, and fails if another call is just making one.
        """
        repository = self.main.repository
        with repository.locked("trees"):
            return repository.run("worktree", *words)[1]

    def forget(self, name: str) -> None:
        """Removes the ref of a tree whose files have been merged, or that changed nothing."""
        self.main.repository.point_ref(self.ref_of(name), None)

    # --- merging ---------------------------------------------------------------------------------

    def plan(self, base: str, commit: str, *, without: Iterable[str] = ()) -> MergePlan:
        """Returns a plan to merge the changes from `base` to `commit` into the user's work tree.

        A file that only one side changed is taken from that side. A text that both changed is
        merged line by line; if that fails, the file is a conflict. Files in `without` are skipped.
        """
        repository = self.main.repository
        old, theirs = repository.files_of(base), repository.files_of(commit)
        ours, left = self.main.look(keep=True).files, set(without)
        files: list[MergedFile] = []
        conflicts: list[str] = []
        for path in sorted({*old, *theirs}):
            before, now, wanted = old.get(path), ours.get(path), theirs.get(path)
            if path in left or before == wanted or now == wanted:
                continue
            if now == before:
                files.append(MergedFile(path, now, wanted))
            elif (merged := self._merged(before, now, wanted)) is not None:
                files.append(MergedFile(path, now, merged))
            else:
                conflicts.append(path)
        return MergePlan(tuple(files), tuple(conflicts))

    def _merged(
        self, before: Entry | None, now: Entry | None, wanted: Entry | None
    ) -> Entry | None:
        """Merges a text that both sides changed; returns None if there is a conflict."""
        sides = (now, before, wanted)
        if any(one is None or one.mode in (GITLINK, SYMLINK) for one in sides):
            return None
        assert before is not None and now is not None and wanted is not None  # noqa: PT018
        repository = self.main.repository
        held = repository.read_objects(one.id for one in (now, before, wanted))
        texts = [held[one.id] for one in (now, before, wanted)]
        if any(b"\0" in text for text in texts):
            return None
        with tempfile.TemporaryDirectory(prefix="merge-", dir=repository.private_dir()) as folder:
            names = [os.path.join(folder, name) for name in ("ours", "base", "theirs")]
            for name, text in zip(names, texts, strict=True):
                with open(name, "wb") as file:
                    file.write(text)
            codes = (*range(_CONFLICTS_MAX + 1), 255)
            code, merged = repository.run("merge-file", "-p", "-q", *names, codes=codes)
        if code:
            return None
        id = repository.run("hash-object", "-w", "--no-filters", "--stdin", data=merged)[1]
        mode = wanted.mode if now.mode == before.mode else now.mode
        return Entry(mode, id.decode().strip())

    def apply(self, files: Iterable[MergedFile]) -> dict[str, str]:
        """Writes merged files; returns those that were left unchanged, each with the reason.

        A file that already holds its new content is skipped. So after a crash, the same call
        completes the rest.
        """
        repository, left = self.main.repository, dict[str, str]()
        for one in files:
            if self.main.entry(one.path) == one.after:
                continue
            data = b""
            if one.after is not None and one.after.mode != GITLINK:
                data = repository.read_objects([one.after.id])[one.after.id]
            if reason := self.main.put(one.path, one.after, one.before, data):
                left[one.path] = reason
        self.main.remove_empty_folders(one.path for one in files if one.after is None)
        return left


def _plain(name: str) -> str:
    """Returns a name as a safe name of a folder and a ref; a safe name is returned unchanged."""
    if not _UNSAFE.search(name) and len(name) <= _NAME_CHARACTERS_MAX + _DIGEST + 1:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{_UNSAFE.sub('-', name)[:_NAME_CHARACTERS_MAX].strip('-')}-{digest}"


def _make_folder(folder: str) -> None:
    """Makes the folder of our trees, and lets git ignore everything in it."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise UnavailableError(f'"{folder}" is a link: expected a folder', hint="remove it")
        with open(os.path.join(folder, _IGNORE), "w") as file:
            file.write("*\n")
    except OSError as error:
        raise UnavailableError(f'"{folder}" cannot be made: {error.strerror}') from error


def _groups(repository: Repository, files: Mapping[str, Entry]) -> Iterator[list[str]]:
    """Yields paths in groups small enough to be read into memory at once."""
    plain = [path for path, one in files.items() if one.mode != GITLINK]
    if not plain:
        return
    asked = "".join(f"{files[path].id}\n" for path in plain).encode()
    lines = repository.run("cat-file", "--batch-check", data=asked)[1].decode().splitlines()
    group: list[str] = []
    size = 0
    for path, line in zip(plain, lines, strict=True):
        word = line.rpartition(" ")[2]
        if not word.isdigit():
            raise NotFoundError(f'the repository "{repository.root}" lacks what "{path}" holds')
        if group and size + int(word) > _READ_BYTES_AT_ONCE:
            yield group
            group, size = [], 0
        group.append(path)
        size += int(word)
    yield group

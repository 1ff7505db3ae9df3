"""Work trees of our own beside the user's: an agent works in one, and its files are merged back.

    made      a commit of all files of the user's work tree is checked out in a folder of its own
    gathered  what the folder holds then, as one commit after that one, on a ref of ours
    planned   a three-way merge, file by file, into what the user's work tree holds now
    applied   each file put in its place, if it still is what the plan was made from
    removed   the folder, and what git knows of it

No branch, index or stash of the user's is moved. Git's own `checkout` and `merge` would run filters
and merge drivers that a repository names, so files are written byte by byte, and two changes of one
text are merged with `git merge-file`, which reads no attributes.
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
_CONFLICTS_MAX = 127  # the exit code of merge-file says how many, and no more than that
_IGNORE = ".gitignore"
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARACTERS_MAX = 40
_DIGEST = 8


class MergedFile(Struct, frozen=True):
    """One file that a merge changes: what it is expected to hold, and what it holds afterwards."""

    path: str
    before: Entry | None
    after: Entry | None


class MergePlan(Struct, frozen=True):
    """What a merge would do. If there are conflicts, nothing is to be done."""

    files: tuple[MergedFile, ...]
    conflicts: tuple[str, ...]


class LinkedTrees:
    """Our work trees beside one of the user's, each with a name that is any text."""

    def __init__(self, main: WorkTree, folder: str) -> None:
        """`main` is the user's. Ours are in `folder`, where git ignores all of it."""
        self.main = main
        self.folder = folder

    def path_of(self, name: str) -> str:
        """Returns where the tree of that name is."""
        return os.path.join(self.folder, _plain(name))

    def ref_of(self, name: str) -> str:
        """Returns the ref that leads to what the tree of that name came to."""
        return REFS + _plain(name)

    def left(self, names: Iterable[str]) -> list[str]:
        """Returns what is there, whole or not, and belongs to none of these trees.

        A folder that is gone counts too while git knows of it.
        """
        known = {_plain(name) for name in names}
        there = {os.path.basename(path) for path in self._listed()}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folders = os.scandir(self.folder)
            there.update(one.name for one in folders if one.is_dir(follow_symlinks=False))
        return sorted(there - known)

    # --- making ----------------------------------------------------------------------------------

    def keep_files(self, name: str) -> str:
        """Writes what the user's work tree holds now as a commit, and returns it."""
        repository = self.main.repository
        written = repository.write_tree(self.main.look(keep=True).files)
        head = repository.head
        commit = repository.write_commit(
            written, f"What {name} began with\n", parents=[head] if head else []
        )
        repository.point_ref(self.ref_of(name), commit)
        return commit

    def make(self, name: str, commit: str) -> str:
        """Checks out a commit in a folder of its own, and returns the folder.

        One that is there and is not whole, because whoever made it was killed, is made anew.
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
        # What says that it is whole comes last.
        repository.point_ref(self.whole_ref(name), commit)
        return path

    def is_whole(self, name: str) -> bool:
        """Says whether a tree is there and was made to its end."""
        if not os.path.lexists(os.path.join(self.path_of(name), ".git")):
            return False
        return self.whole_ref(name) in self.main.repository.refs(self.whole_ref(name))

    def whole_ref(self, name: str) -> str:
        """Returns the ref that leads to what a tree began with, while it is there and whole."""
        return f"{NAMESPACE}whole/{_plain(name)}"

    # --- what it came to -------------------------------------------------------------------------

    def gather(self, name: str, base: str, message: str) -> str:
        """Writes what a tree holds as one commit after the one it began with, on its ref.

        Returns that commit; `base` itself if nothing was changed. The same call again, after a
        crash, finds the same files and writes a commit that is as good.
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
        """Removes the folder of a tree, and what git knows of it; its ref stays."""
        path, repository = self.path_of(name), self.main.repository
        repository.point_ref(self.whole_ref(name), None)
        if os.path.lexists(path):
            shutil.rmtree(path)
        if path in self._listed():
            self._run("remove", "--force", "--force", path)

    def _listed(self) -> list[str]:
        """Returns the paths of our trees that git knows of."""
        printed = self._run("list", "--porcelain", "-z")
        lines = [os.fsdecode(line) for line in printed.split(b"\0")]
        paths = [one.removeprefix("worktree ") for one in lines if one.startswith("worktree ")]
        return [path for path in paths if os.path.dirname(path) == self.folder]

    def _run(self, *words: str) -> bytes:
        """Runs `git worktree`, one at a time, and returns what it prints.

        git looks at every linked tree, and fails at one that another call is just making.
        """
        repository = self.main.repository
        with repository.locked("trees"):
            return repository.run("worktree", *words)[1]

    def forget(self, name: str) -> None:
        """Removes the ref of a tree whose files are where they belong, or that changed nothing."""
        self.main.repository.point_ref(self.ref_of(name), None)

    # --- merging ---------------------------------------------------------------------------------

    def plan(self, base: str, commit: str, *, without: Iterable[str] = ()) -> MergePlan:
        """Returns what it takes to bring the changes from `base` to `commit` into the work tree.

        What only one side changed is taken. A text that both changed is merged line by line;
        where that cannot be, the file is a conflict. Files in `without` stay as they are.
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
        """Returns a text that both sides have changed, merged; None if that cannot be done."""
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
        """Puts files in their places; returns those that stay as they are, and why.

        What is there already is left, so the same call again does the rest of one that was killed.
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
    """Returns a name as folders and refs can have it; one that is that already stays as it is."""
    if not _UNSAFE.search(name) and len(name) <= _NAME_CHARACTERS_MAX + _DIGEST + 1:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{_UNSAFE.sub('-', name)[:_NAME_CHARACTERS_MAX].strip('-')}-{digest}"


def _make_folder(folder: str) -> None:
    """Makes the folder of our trees, which git ignores with all that is in it."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise UnavailableError(f'"{folder}" is a link: expected a folder', hint="remove it")
        with open(os.path.join(folder, _IGNORE), "w") as file:
            file.write("*\n")
    except OSError as error:
        raise UnavailableError(f'"{folder}" cannot be made: {error.strerror}') from error


def _groups(repository: Repository, files: Mapping[str, Entry]) -> Iterator[list[str]]:
    """Yields paths in groups that can be read at once."""
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

"""One file of a project: what it held at a commit, what differs, which commits changed it."""

from __future__ import annotations

import difflib
import os
from typing import Literal

from msgspec import Struct

from holdfast.errors import NotFoundError
from holdfast.git.repository import Commit, Repository
from holdfast.git.work_tree import WorkTree

_TEXT_BYTES_MAX = 16 << 20


class FileDifference(Struct, frozen=True):
    """How a file differs from a commit; `change` is None if it does not.

    `text` is a unified diff, which is empty if the file is not text. `lost` is whether the file has
    content that the newest commit does not have, which would be lost with the file.
    """

    path: str
    commit: str | None
    change: Literal["added", "modified", "deleted"] | None
    text: str
    lost: bool


class ProjectFile:
    """One file of a work tree, by its path."""

    def __init__(self, repository: Repository, path: str | os.PathLike[str]) -> None:
        self._repository = repository
        self.path = repository.relative(path)

    def __repr__(self) -> str:
        return f"<ProjectFile {self.path}>"

    def at(self, commit: str = "HEAD") -> bytes:
        """Returns the content of the file at a commit; raises NotFoundError if there is none."""
        found = self._repository.find_commit(commit)
        data = self._find(found.id)
        if data is None:
            raise NotFoundError(f'commit {found.id[:12]} has no file "{self.path}"')
        return data

    def now(self) -> bytes | None:
        """Returns the present content; None if there is no file; for a link, its target."""
        whole = os.path.join(self._repository.root, self.path)
        entry = WorkTree(self._repository).entry(self.path)
        if entry is None:
            return None
        if os.path.islink(whole):
            return os.fsencode(os.readlink(whole))
        with open(whole, "rb") as file:
            return file.read()

    def log(self, count: int = 20) -> list[Commit]:
        """Returns the newest commits that changed the file, newest first."""
        return self._repository.last_commits(count, path=self.path)

    def diff(self, commit: str = "HEAD") -> FileDifference:
        """Returns how the file on the disk differs from that of a commit."""
        repository = self._repository
        id = repository.commit_id(commit)
        if id is None and commit != "HEAD":
            raise NotFoundError(f'"{repository.root}" has no commit "{commit}"')
        old, new = self._find(id) if id else None, self.now()
        newest = repository.head
        committed = old if newest == id else self._find(newest) if newest else None
        change = None
        if old != new:
            change = "added" if old is None else "deleted" if new is None else "modified"
        return FileDifference(
            self.path,
            id,
            change,
            _unified(self.path, old, new),
            new is not None and new != committed,
        )

    def _find(self, commit: str) -> bytes | None:
        entry = self._repository.files_of(commit, under=self.path).get(self.path)
        return None if entry is None else self._repository.read_objects([entry.id])[entry.id]


def _unified(path: str, old: bytes | None, new: bytes | None) -> str:
    """Returns a unified diff, or "" if one of the two is too large or not text."""
    texts: list[list[str]] = []
    for data in (old or b"", new or b""):
        if len(data) > _TEXT_BYTES_MAX or b"\0" in data:
            return ""
        try:
            texts.append(data.decode("utf-8").splitlines(keepends=True))
        except UnicodeDecodeError:
            return ""
    before, after = texts
    lines = difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ no newline at the end\n" for line in lines
    )

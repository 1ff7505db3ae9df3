"""Earlier versions of a store in a git repository: finding them, and extracting one to read.

The search covers what this work tree had: every commit that was checked out in it, from the reflog
of its HEAD, and the stashes. A branch that was never checked out here took nothing away from here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from msgspec import Struct

from holdfast.errors import GitError, NotFoundError
from holdfast.git.repository import Repository

COMMITS_MAX = 500
"""So many entries of a reflog are searched, newest first."""

_FILE = re.compile(
    r"holdfast\.json|log/[0-9a-f]{16}\.jsonl|objects/blob/[0-9a-z]{2}/[0-9a-zA-Z_=-]+"
)
_OF_LOG = re.compile(r"log/[0-9a-f]{16}\.jsonl")


class StoreVersion(Struct, frozen=True):
    """A store in a commit; `log` is the id of the tree of its folder `log`."""

    commit: str
    log: str


def store_versions(
    repository: Repository, inside: str, commits: Iterable[str] | None = None
) -> list[StoreVersion]:
    """Returns the versions of a store that were checked out here, or those in `commits`.

    Each content is returned once, newest first. `inside` is the store's folder, relative to the
    root of the work tree.
    """
    named = list(commits) if commits is not None else _commits_seen(repository)
    data = b"".join(f"{id}:".encode() + os.fsencode(inside) + b"/log\n" for id in named)
    lines = repository.run("cat-file", "--batch-check", data=data)[1].splitlines() if named else []
    found: dict[str, StoreVersion] = {}
    for id, line in zip(named, lines, strict=True):
        words = line.decode("utf-8", "replace").split(" ")
        if len(words) == 3 and words[1] == "tree":
            found.setdefault(words[0], StoreVersion(id, words[0]))
    return list(found.values())


def _commits_seen(repository: Repository) -> list[str]:
    """Returns the commits that this work tree had, and its stashes, newest first."""
    found: list[str] = []
    for name in ("HEAD", "refs/stash"):
        if repository.commit_id(name) is None:
            continue
        words = ("rev-list", "--walk-reflogs", f"--max-count={COMMITS_MAX}", name, "--")
        found += repository.run(*words)[1].decode().split()
        found.append(str(repository.commit_id(name)))
    for name in ("ORIG_HEAD", "MERGE_HEAD"):
        if (id := repository.commit_id(name)) is not None:
            found.append(id)
    return list(dict.fromkeys(found))


def segments_of(repository: Repository, version: StoreVersion) -> dict[str, str]:
    """Returns the segments of a version, by name, each with the id of its content."""
    files = repository.files_of(version.log)
    return {name: one.id for name, one in files.items() if _OF_LOG.match(f"log/{name}")}


def take_out(
    repository: Repository, inside: str, version: StoreVersion, folder: str, *, beside: str
) -> None:
    """Writes a version of a store into an empty folder, where it can be opened.

    `beside` is the folder of the present store: blobs that it has are not written again. The file
    that notes where the log ends is left out, because the segments themselves show that.
    """
    prefix = f"{inside}/"
    files = repository.files_of(version.commit, under=inside)
    wanted = {
        path.removeprefix(prefix): one.id
        for path, one in files.items()
        if _FILE.fullmatch(path.removeprefix(prefix))
        and one.mode == "100644"
        and not os.path.exists(os.path.join(beside, _blob(path.removeprefix(prefix))))
    }
    if "holdfast.json" not in wanted:
        raise NotFoundError(f'commit {version.commit[:12]} has no store in "{inside}"')
    for name, id in wanted.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        data = repository.read_objects([id])[id]
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)


def _blob(name: str) -> str:
    """Returns the name of a blob's file; for any other file, a name that no file has."""
    return name if name.startswith("objects/") else "\x1f"


def is_tracked(repository: Repository, inside: str) -> bool:
    """Returns whether git tracks the log of a store, in its index or in an earlier version."""
    try:
        printed = repository.run("ls-files", "-z", "--", f"{inside}/log")[1]
        return bool(printed) or bool(store_versions(repository, inside))
    except GitError:
        return False

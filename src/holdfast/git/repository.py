"""A git repository and its work tree: facts about it, and our own objects and refs in it.

Only the private namespace `refs/holdfast/` is written. The user's branch, index, stash and reflog
are never moved.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property

from msgspec import Struct

from holdfast.clock import SystemClock
from holdfast.errors import (
    GitError,
    NotFoundError,
    UnavailableError,
    UntrustedError,
    UsageError,
    show_value,
)
from holdfast.git.command import OUTPUT_BYTES_MAX, run_git

NAMESPACE = "refs/holdfast/"
"""The prefix of every ref that Holdfast writes; git never moves or sends these by itself."""
GITLINK = "160000"
SYMLINK = "120000"
TREE = "40000"

_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_PERSON = re.compile(rb"(?P<name>.*?) ?<(?P<mail>[^>]*)> (?P<time>-?\d{1,15}) (?P<zone>[+-]\d{4})")
_POINTER_BYTES_MAX = 1 << 12


class Commit(Struct, frozen=True):
    """A commit of git, with its author, time and message."""

    id: str
    tree: str
    parents: tuple[str, ...]
    author: str
    mail: str
    time: datetime
    message: str

    @property
    def summary(self) -> str:
        """The first line of its message."""
        return self.message.partition("\n")[0]

    @property
    def trailers(self) -> list[tuple[str, str]]:
        """The lines `Name: value` of the last paragraph of its message, in order."""
        last = self.message.strip().rpartition("\n\n")[2]
        found = [_TRAILER.match(line) for line in last.splitlines()]
        return [(one[1], one[2].strip()) for one in found if one is not None]


_TRAILER = re.compile(r"([A-Za-z][A-Za-z0-9-]*): (.*)\Z")


class Entry(Struct, frozen=True):
    """A file of a tree or of the index: its mode, in octal digits, and the id of its content."""

    mode: str
    id: str


class Repository:
    """One repository with a work tree, found by `Repository.find`.

    `root` is the folder of the work tree, `git_dir` that of the repository. A linked work tree has
    its own `git_dir`, and shares `common_dir` with the others.
    """

    def __init__(self, root: str, git_dir: str, common_dir: str) -> None:
        self.root = root
        self.git_dir = git_dir
        self.common_dir = common_dir

    def __repr__(self) -> str:
        return f"<Repository {self.root}>"

    @classmethod
    def find(cls, path: str | os.PathLike[str] = ".") -> Repository:
        """Returns the repository whose work tree contains a folder.

        Raises NotFoundError if there is none, UntrustedError if it belongs to another user, and
        UnavailableError if the repository cannot be read or git cannot be run.
        """
        if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a work tree is found by a path, found {show_value(path)}")
        start = os.path.realpath(path)
        folder = _folder_above(start)
        if folder is None:
            raise NotFoundError(f'"{start}" is in no git repository', hint="git init makes one")
        pointer = os.path.join(folder, ".git")
        git_dir = _git_dir(pointer)
        common_dir = _common_dir(git_dir)
        for each in dict.fromkeys((folder, pointer, git_dir, common_dir)):
            _check_owner(each)
        found = cls(folder, git_dir, common_dir)
        found.object_format  # noqa: B018  # raises if git cannot read it
        return found

    # --- running git -----------------------------------------------------------------------------

    def run(
        self,
        *words: str,
        data: bytes | None = None,
        environment: Mapping[str, str] | None = None,
        most: int = OUTPUT_BYTES_MAX,
        codes: tuple[int, ...] = (0,),
    ) -> tuple[int, bytes]:
        """Runs one git command on this repository; see `run_git`."""
        return run_git(
            list(words),
            git_dir=self.git_dir,
            work_tree=self.root,
            data=data,
            environment=environment,
            most=most,
            codes=codes,
        )

    # --- facts -----------------------------------------------------------------------------------

    @cached_property
    def object_format(self) -> str:
        """The digest that names objects: sha1 or sha256."""
        return self.run("rev-parse", "--show-object-format")[1].decode().strip()

    @property
    def branch(self) -> str | None:
        """The branch that is checked out; None if HEAD is detached."""
        code, printed = self.run("symbolic-ref", "-q", "HEAD", codes=(0, 1))
        name = printed.decode("utf-8", "surrogateescape").strip()
        return name.removeprefix("refs/heads/") if code == 0 else None

    @property
    def head(self) -> str | None:
        """The commit that is checked out; None before the first one."""
        return self.commit_id("HEAD")

    def commit_id(self, name: str) -> str | None:
        """Returns the id of the commit that a branch, tag, ref or id names; None if none."""
        if not name or name.startswith("-") or any(each in name for each in "\0\n"):
            raise UsageError(f"a commit is named by an id, a branch or a tag, found {name!r:.80}")
        code, printed = self.run(
            "rev-parse",
            "-q",
            "--verify",
            "--end-of-options",
            f"{name}^{{commit}}",
            codes=(0, 1, 128),
        )
        return printed.decode().strip() if code == 0 and _ID.match(printed.strip()) else None

    def find_commit(self, name: str) -> Commit:
        """Returns the commit that a branch, tag, ref or id names, or raises NotFoundError."""
        id = self.commit_id(name)
        if id is None:
            raise NotFoundError(f'"{self.root}" has no commit {show_value(name)}')
        [commit] = self.commits([id])
        return commit

    def last_commits(
        self,
        count: int = 10,
        *,
        of: str = "HEAD",
        path: str | None = None,
        mention: str | None = None,
    ) -> list[Commit]:
        """Returns the newest commits of a branch, newest first.

        With `path` only those that changed it, with `mention` only those whose message contains
        that text. The list is empty before the first commit.
        """
        if self.commit_id(of) is None:
            return []
        words = ["rev-list", f"--max-count={count}"]
        words += [] if mention is None else ["--fixed-strings", f"--grep={mention}"]
        words += ["--end-of-options", of]
        ids = self.run(*words, "--", *([path] if path is not None else []))[1].decode().split()
        return self.commits(ids)

    def commits(self, ids: Iterable[str]) -> list[Commit]:
        """Returns commits by their ids."""
        wanted = list(ids)
        found = self.read_objects(wanted)
        return [_parse_commit(id, found[id]) for id in wanted]

    def refs(self, prefix: str = NAMESPACE) -> dict[str, str]:
        """Returns the refs below a prefix, each with the id of its object."""
        form = "--format=%(objectname) %(refname)"
        printed = self.run("for-each-ref", form, prefix.rstrip("/"))[1]
        lines = printed.decode("utf-8", "surrogateescape").splitlines()
        return {name: id for id, _, name in (line.partition(" ") for line in lines)}

    # --- objects ---------------------------------------------------------------------------------

    def read_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Returns the contents of objects, by id; raises GitError if one is missing."""
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return {}
        printed = self.run(
            "cat-file", "--batch", data="".join(f"{id}\n" for id in wanted).encode()
        )[1]
        found: dict[str, bytes] = {}
        at = 0
        for id in wanted:
            end = printed.index(b"\n", at)
            words = printed[at:end].split()
            if len(words) != 3:
                raise GitError(
                    f'object {id} is not in the repository "{self.root}"',
                    hint="git fsck looks whether the repository is whole",
                )
            size = int(words[2])
            found[id] = printed[end + 1 : end + 1 + size]
            at = end + 2 + size
        return found

    def missing(self, ids: Iterable[str]) -> set[str]:
        """Returns those of these objects that the repository does not have."""
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return set()
        data = "".join(f"{id}\n" for id in wanted).encode()
        lines = self.run("cat-file", "--batch-check", data=data)[1].decode().splitlines()
        return {id for id, line in zip(wanted, lines, strict=True) if line.endswith(" missing")}

    def files_of(self, tree: str, *, under: str | None = None) -> dict[str, Entry]:
        """Returns every file of a tree or commit, by path; with `under`, only those below it."""
        words = ["ls-tree", "-r", "-z", "--full-tree", tree]
        printed = self.run(*words, *(["--", under] if under is not None else []))[1]
        found: dict[str, Entry] = {}
        for item in printed.split(b"\0"):
            if item:
                about, _, path = item.partition(b"\t")
                mode, _, id = about.decode().split(" ")
                found[os.fsdecode(path)] = Entry(mode.lstrip("0"), id)
        return found

    def write_tree(self, files: Mapping[str, Entry]) -> str:
        """Writes a tree of files and returns its id; the user's index is not touched."""
        import tempfile

        lines = [
            f"{one.mode} {one.id}\t".encode() + os.fsencode(path) for path, one in files.items()
        ]
        with tempfile.TemporaryDirectory(prefix="index-", dir=self.private_dir()) as folder:
            environment = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
            data = b"".join(line + b"\0" for line in lines)
            self.run("update-index", "-z", "--index-info", data=data, environment=environment)
            return self.run("write-tree", environment=environment)[1].decode().strip()

    def write_commit(
        self,
        tree: str,
        message: str,
        *,
        parents: Iterable[str] = (),
        author: str = "holdfast",
        mail: str = "holdfast@localhost",
        time: datetime | None = None,
    ) -> str:
        """Writes a commit object and returns its id; no branch is moved."""
        now_us = SystemClock().now_us()
        seconds = int((time - _EPOCH) / timedelta(seconds=1)) if time else now_us // 1_000_000
        stamp = f"{seconds} +0000"
        environment = {
            "GIT_AUTHOR_NAME": _plain(author) or "unknown",
            "GIT_AUTHOR_EMAIL": _plain(mail),
            "GIT_AUTHOR_DATE": stamp,
            "GIT_COMMITTER_NAME": "holdfast",
            "GIT_COMMITTER_EMAIL": "holdfast@localhost",
            "GIT_COMMITTER_DATE": stamp,
        }
        words = [word for parent in parents for word in ("-p", parent)]
        data = message.encode("utf-8", "replace").replace(b"\0", b"?")
        printed = self.run("commit-tree", *words, tree, data=data, environment=environment)[1]
        return printed.decode().strip()

    def point_ref(self, ref: str, commit: str | None, *, expected: str | None = None) -> None:
        """Points a ref of ours at a commit, or removes it if `commit` is None.

        With `expected`, git refuses unless the ref names that commit now.
        """
        if not ref.startswith(NAMESPACE):
            raise UsageError(
                f'a ref of holdfast begins with "{NAMESPACE}", found {show_value(ref)}'
            )
        words = ["-d", ref] if commit is None else [ref, commit]
        self.run("update-ref", "--no-deref", *words, *([expected] if expected is not None else []))

    def private_dir(self) -> str:
        """Returns our folder in the `git_dir` of this work tree, which is made if needed."""
        folder = os.path.join(self.git_dir, "holdfast")
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if os.path.islink(folder):
                raise UntrustedError(f'"{folder}" is a link: expected a folder', hint="remove it")
        except OSError as error:
            raise UnavailableError(f'"{folder}" cannot be made: {error.strerror}') from error
        return folder

    @contextmanager
    def locked(self, name: str) -> Generator[None]:
        """Holds a lock of this name among processes until the block ends; waits for it."""
        path = os.path.join(self.private_dir(), f"{name}.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def relative(self, path: str | os.PathLike[str]) -> str:
        """Returns a path as git names it: relative to the root of the work tree.

        Symbolic links among its folders are followed; if the file itself is a link, it is not.
        Raises UsageError if the path is outside of the work tree.
        """
        whole = os.path.abspath(path)
        inside = os.path.relpath(
            os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole)),
            self.root,
        )
        if inside == os.pardir or inside.startswith(os.pardir + os.sep) or inside == os.curdir:
            raise UsageError(f'"{os.fspath(path)}" is no file in the work tree "{self.root}"')
        return inside


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _plain(text: str) -> str:
    """Returns a name that git accepts: one line, without the characters that git strips."""
    cleaned = "".join(each for each in text if each.isprintable() and each not in "<>")
    return cleaned.encode("utf-8", "replace").decode().strip(" .,:;\"'")


def find_git_dir(path: str) -> str | None:
    """Returns the folder of the repository that a path is in; None if it is in none.

    It does not run git, only looks up a few names. Raises UntrustedError if the repository belongs
    to another user.
    """
    folder = _folder_above(os.path.realpath(path))
    if folder is None:
        return None
    git_dir = _git_dir(os.path.join(folder, ".git"))
    _check_owner(git_dir)
    return git_dir


def _folder_above(path: str) -> str | None:
    """Returns the nearest folder, from a path upwards, that has a `.git`."""
    while not os.path.lexists(os.path.join(path, ".git")):
        above = os.path.dirname(path)
        if above == path:
            return None
        path = above
    return path


def _git_dir(pointer: str) -> str:
    """Returns the folder of the repository that `.git` is, or that the file `.git` names."""
    try:
        if stat.S_ISDIR(os.stat(pointer).st_mode):
            return os.path.realpath(pointer)
        named = _read_pointer(pointer)
    except OSError as error:
        raise UnavailableError(f'"{pointer}" cannot be read: {error.strerror}') from error
    if not named.startswith("gitdir: "):
        raise UnavailableError(f'"{pointer}" names no repository', hint="git init repairs it")
    git_dir = os.path.realpath(
        os.path.join(os.path.dirname(pointer), named.removeprefix("gitdir: "))
    )
    if not os.path.isdir(git_dir):
        raise UnavailableError(
            f'"{pointer}" names the repository "{git_dir}", which is not there',
            hint="git worktree repair",
        )
    return git_dir


def _common_dir(git_dir: str) -> str:
    try:
        named = _read_pointer(os.path.join(git_dir, "commondir"))
    except FileNotFoundError:
        return git_dir
    except OSError as error:
        raise UnavailableError(f'"{git_dir}" cannot be read: {error.strerror}') from error
    return os.path.realpath(os.path.join(git_dir, named))


def _read_pointer(path: str) -> str:
    with open(path, "rb") as file:
        return os.fsdecode(file.read(_POINTER_BYTES_MAX)).rstrip("\n")


def _check_owner(path: str) -> None:
    """Raises UntrustedError if a part of the repository belongs to another user than us or root.

    Git does not check this itself once `--git-dir` names the folder.
    """
    try:
        owner = os.stat(path).st_uid
    except OSError as error:
        raise UnavailableError(f'"{path}" cannot be read: {error.strerror}') from error
    if owner not in (os.geteuid(), 0):
        raise UntrustedError(
            f'"{path}" belongs to another user ({owner}): nothing is done in such a repository',
            hint="clone it, or change its owner",
        )


def _parse_commit(id: str, data: bytes) -> Commit:
    header, _, message = data.partition(b"\n\n")
    fields: dict[bytes, list[bytes]] = {}
    for line in header.split(b"\n"):
        name, _, value = line.partition(b" ")
        fields.setdefault(name, []).append(value)
    author = _PERSON.match(fields.get(b"author", [b""])[0])
    if author is None or b"tree" not in fields:
        raise GitError(f"commit {id} cannot be read", hint="git fsck looks at every object")
    try:
        time = _EPOCH + timedelta(seconds=int(author["time"]))
    except OverflowError:
        time = _EPOCH
    return Commit(
        id,
        fields[b"tree"][0].decode(),
        tuple(parent.decode() for parent in fields.get(b"parent", ())),
        author["name"].decode("utf-8", "replace"),
        author["mail"].decode("utf-8", "replace"),
        time,
        message.decode("utf-8", "replace"),
    )

"""The hands of an operator: what is done to which file of a store while processes use it.

A hand gets the file and an older copy of it, and does one thing, as `rm`, `mv`, `cp`, an editor,
`git stash` or a backup program would. What can be taken back returns how.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.torture.operator_workers import FOREIGN, copy_of, in_child

DIRECTORY = "directory"

FILES: dict[str, str] = {
    "segment": "store/log/*.jsonl",
    "first-segment": "store/log/0000000000000000.jsonl",
    "log": "store/log",
    "ring": "store/ring",
    "lock": "store/lock",
    "page": "store/shared",
    "head": "store/head.json",
    "identity": "store/holdfast.json",
    "index": "store/index.sqlite",
    "leases": "store/leases.json",
    "worker": "store/workers/????????????????????????????????",
    "workers": "store/workers",
    "blob": "store/objects/blob/*/*",
    "snapshot": "store/objects/snapshot/*/*",
    "objects": "store/objects",
    DIRECTORY: "store",
}
"""Every kind of file of a store on plain files, as a pattern below the yard; the last match."""

SQLITE: dict[str, str] = {
    "database": "store.db",
    "wal": "store.db-wal",
    "shm": "store.db-shm",
    "witness": "store.db-witness",
    "worker": "store.db.workers/????????????????????????????????",
    "workers": "store.db.workers",
    DIRECTORY: ".",
}


class Scene(NamedTuple):
    """What a hand is given."""

    path: Path
    older: Path
    """A copy from before."""
    aside: Path
    """A place that is free."""
    chance: random.Random
    make_store: Callable[[], None]
    """Makes a new store where this one was."""
    tell_worker: Callable[[str], None]
    """Orders one of the workers to do something."""
    let_work: Callable[[], None]
    """Returns when the workers have said something more, or wait."""


Undo = Callable[[], None] | None


def remove(scene: Scene) -> Undo:
    _remove(scene.path)


def replace(scene: Scene) -> Undo:
    """The same bytes in another file, as an editor or `sed -i` leaves them."""
    copy_of(scene.path, scene.aside)
    _put(scene.aside, scene.path)


def empty(scene: Scene) -> Undo:
    """An empty file, or directory, of the same name."""
    if scene.path.is_dir():
        os.rename(scene.path, scene.aside)
        scene.path.mkdir(0o700)
    else:
        scene.aside.touch(0o600)
        os.rename(scene.aside, scene.path)


def truncate(scene: Scene) -> Undo:
    """Cut in place, at the beginning or somewhere."""
    size = scene.path.stat().st_size
    os.truncate(scene.path, scene.chance.choice((0, size // 2)))


def move(scene: Scene) -> Undo:
    """Moved away, for good or until everything has ended."""
    os.rename(scene.path, scene.aside)
    return lambda: _put(scene.aside, scene.path)


def move_and_back(scene: Scene) -> Undo:
    """Moved away and, when the workers have gone on for a moment, back."""
    os.rename(scene.path, scene.aside)
    scene.let_work()
    _put(scene.aside, scene.path)


def another(scene: Scene) -> Undo:
    """Moved away, and a new store made in its place."""
    os.rename(scene.path, scene.aside)
    in_child(scene.make_store)


def older(scene: Scene) -> Undo:
    """An older copy renamed into its place, as a restore does."""
    _put(scene.older, scene.path)


def older_in_place(scene: Scene) -> Undo:
    """An older copy written over it, as `cp` does: the file stays the same one."""
    with open(scene.older, "rb") as source, open(scene.path, "r+b") as file:
        data = source.read()
        file.truncate(0)
        file.write(data)


def forbid(scene: Scene) -> Undo:
    """Nobody may read or write it any more."""
    return _chmod(scene.path, 0)


def protect(scene: Scene) -> Undo:
    """It can be read only."""
    return _chmod(scene.path, 0o555 if scene.path.is_dir() else 0o444)


def open_up(scene: Scene) -> Undo:
    """Everybody may write to it."""
    return _chmod(scene.path, 0o777 if scene.path.is_dir() else 0o666)


def read_in_worker(scene: Scene) -> Undo:
    """A worker's own program reads the file and closes it."""
    _in_worker(scene, "read")


def sqlite3_in_worker(scene: Scene) -> Undo:
    """A worker's own program looks into the database with another SQLite library."""
    _in_worker(scene, "sqlite3")


def sqlite3_beside(scene: Scene) -> Undo:
    """Somebody looks into the database with another SQLite library, in a process of his own."""
    in_child(lambda: FOREIGN["sqlite3"](str(scene.path)))


def stash(scene: Scene) -> Undo:
    """`git stash`: every file that git knows is as it was when it was added."""
    _git(scene.path, "stash", "--quiet")


def stash_and_pop(scene: Scene) -> Undo:
    _git(scene.path, "stash", "--quiet")
    scene.let_work()
    _git(scene.path, "stash", "pop", "--quiet", may_fail=True)


def reset(scene: Scene) -> Undo:
    _git(scene.path, "reset", "--hard", "--quiet")


Hand = Callable[[Scene], Undo]
ANYTHING: tuple[Hand, ...] = (
    *(remove, replace, empty, move, move_and_back, older),
    *(forbid, protect, open_up),
)
ONLY_FILES: tuple[Hand, ...] = (truncate, older_in_place, read_in_worker)
GIT: tuple[Hand, ...] = (stash, stash_and_pop, reset)
FOREIGN_SQLITE: tuple[Hand, ...] = (sqlite3_in_worker, sqlite3_beside)
IS_DIRECTORY = ("log", "workers", "objects", DIRECTORY)


def hands_on(target: str, backend: str) -> tuple[Hand, ...]:
    """Returns what can be done to this kind of file."""
    if target == DIRECTORY:
        return (*ANYTHING, another, *GIT) if backend == "files" else (*ANYTHING, another)
    if target in IS_DIRECTORY:
        return ANYTHING
    if target in ("database", "index"):
        return (*ANYTHING, *ONLY_FILES, *FOREIGN_SQLITE)
    return (*ANYTHING, *ONLY_FILES)


def begin_git(path: Path) -> None:
    """Puts a store under git, as a project does that keeps its state with its code."""
    _git(path, "init", "--quiet")
    _git(path, "add", "-A")
    _git(path, "commit", "--quiet", "-m", "state")


def _in_worker(scene: Scene, order: str) -> None:
    prefix = scene.chance.choice(("", "thread-"))
    scene.tell_worker(f"{prefix}{order} {scene.path}")
    scene.let_work()


def _chmod(path: Path, mode: int) -> Undo:
    before = path.stat().st_mode & 0o7777
    os.chmod(path, mode)
    return lambda: os.chmod(path, before)


def _put(source: Path, path: Path) -> None:
    """Renames something into a place, over whatever is there."""
    while source.exists():
        with contextlib.suppress(FileExistsError, OSError):  # put there again meanwhile
            if source.is_dir() and path.exists():
                _remove(path)
            os.rename(source, path)


def _remove(path: Path) -> None:
    if not path.is_dir():
        path.unlink()
        return
    while path.exists():  # somebody may put files into it meanwhile
        with contextlib.suppress(OSError):
            shutil.rmtree(path)


def _git(path: Path, *words: str, may_fail: bool = False) -> None:
    settings = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "gc.auto=0")
    done = subprocess.run(
        ["git", *settings, *words], cwd=path, capture_output=True, text=True, check=False
    )
    assert may_fail or done.returncode == 0, f"git {words}: {done.stderr}"

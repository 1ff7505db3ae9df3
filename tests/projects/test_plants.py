"""Faults that are planted into projects, each found by what judges a scene that was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agents import Scripted
from holdfast.git.linked_trees import LinkedTrees
from holdfast.git.repository import Repository
from holdfast.git.work_tree import WorkTree
from holdfast.projects import Project, work
from holdfast.projects.coordinator import Coordinator
from tests.crash.children import Child
from tests.git.conftest import Project as Files


def killed(work: Callable[[], None], *, planted: Callable[[], None] | None) -> None:
    """Runs something in a process of its own, with a fault planted in it, or without."""

    def plays(pipe: int, stop: int) -> None:
        if planted is not None:
            planted()
        work()

    child = Child(plays)
    child.end()
    assert child.trouble is None, child.trouble


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- a message that is taken before its effect ----------------------------------------------------


def take_first() -> None:
    """Plants: a follow-up is taken in a commit of its own, and becomes a task in another."""

    def add(self: Coordinator, message: Any, tx: Any) -> Any:
        with self.store.commit() as first:
            message.done(first)
        return tx.scope(self.scope).tasks.add(message.text, key=f"inbox-{message.revision}")

    Coordinator._add_follow_up = add  # type: ignore[method-assign]


def lose_a_message(root: Path, planted: Callable[[], None] | None) -> list[str]:
    """Kills a coordinator in the commit that makes a task of a follow-up; returns all tasks."""
    place = str(root / ".holdfast")
    with holdfast.open(place) as hf:
        hf.project(root).send("follow-up", "clean the brushes")

    def dies() -> None:
        with holdfast.open(place) as hf, hf.project(root).coordinate() as main:
            add = main._add_follow_up

            def dying(message: Any, tx: Any) -> Any:
                add(message, tx)
                die()  # before the commit is made

            main._add_follow_up = dying  # type: ignore[method-assign]
            main.take_follow_ups()

    killed(dies, planted=planted)
    with holdfast.open(place) as hf, hf.project(root).coordinate() as main:
        main.take_follow_ups()
        return [one.title for one in main.tasks.list()]


def test_a_message_that_is_taken_before_its_effect_is_lost(root: Path, tmp_path: Path):
    """RALPH-39: the judge says so; as it is, nothing is lost."""
    assert lose_a_message(root, None) == ["clean the brushes"]
    other = tmp_path / "planted"
    other.mkdir()
    assert lose_a_message(other, take_first) == []


# --- a step whose commit is made again ------------------------------------------------------------


def commit_again() -> None:
    """Plants: a step makes its commit without looking whether it was made, and without its key."""

    def committed(ctx: Any, main: Coordinator, stream: str, body: Any) -> None:
        main.store.commit(body, lease=main.lease)

    work._committed = committed


def repeat_a_reply(root: Path, planted: Callable[[], None] | None) -> list[str]:
    """Kills a coordinator after the commit of a reply, before its journal knows of it."""
    place = str(root / ".holdfast")

    def talk() -> None:
        with holdfast.open(place) as hf:
            hf.runs.use_executor(Scripted({}))
            with hf.project(root).coordinate() as main:
                main.talk("hello", id="x.inbox.1")

    def dies() -> None:
        committed = work._committed

        def dying(ctx: Any, main: Any, stream: str, body: Any) -> None:
            committed(ctx, main, stream, body)
            if "reply" in ctx.path:
                die()

        work._committed = dying
        talk()

    killed(dies, planted=planted)
    killed(talk, planted=planted)
    with holdfast.open(place) as hf:
        return [one.role for one in hf.project(root).conversation("inbox").messages]


def test_a_commit_that_is_made_again_is_a_reply_twice(root: Path, tmp_path: Path):
    """RALPH-39: the judge says so; as it is, each is there once."""
    assert repeat_a_reply(root, None) == ["user", "assistant"]
    other = tmp_path / "planted"
    other.mkdir()
    assert repeat_a_reply(other, commit_again) == ["user", "assistant", "assistant"]


# --- half a work tree -----------------------------------------------------------------------------


def trust_halves() -> None:
    """Plants: a tree counts as whole as soon as it is there."""
    make = LinkedTrees.make

    def hasty(self: LinkedTrees, name: str, commit: str) -> str:
        there = os.path.lexists(os.path.join(self.path_of(name), ".git"))
        return self.path_of(name) if there else make(self, name, commit)

    LinkedTrees.make = hasty  # type: ignore[method-assign]
    LinkedTrees.is_whole = lambda self, name: os.path.isdir(self.path_of(name))  # type: ignore


def merge_a_half(root: Path, planted: Callable[[], None] | None) -> set[str]:
    """Kills a coordinator while it makes the tree of a child; returns the files at the end."""
    files = Files(root)
    files.git("init", "-q", "-b", "main")
    for number in range(6):
        files.write(f"f{number}.txt", f"{number}\n")
    files.commit()

    def play() -> None:
        with holdfast.open(str(root / ".holdfast")) as hf:
            hf.runs.use_executor(Scripted({}))
            project: Project = hf.project(root)
            with project.coordinate() as main:
                task = main.tasks.add("look at it", key="a")
                main.resume()
                if not main.children() and not main.tasks.get(task.id).is_closed:
                    main.spawn(task.id, worktree=True)
                for child in main.children():
                    child.result()

    def dies() -> None:
        put, made = WorkTree.put, list[int]()

        def counted(self: Any, *args: Any) -> Any:
            made.append(1)
            if len(made) == 3:
                die()
            return put(self, *args)

        WorkTree.put = counted  # type: ignore[method-assign]
        play()

    killed(dies, planted=planted)
    killed(play, planted=planted)
    return {name for name in files.files() if name.startswith("f")}


def test_half_a_work_tree_looks_like_files_that_were_deleted(root: Path, tmp_path: Path):
    """RALPH-39: the judge says so; as it is, no file goes."""
    assert len(merge_a_half(root, None)) == 6
    other = tmp_path / "planted"
    other.mkdir()
    assert len(merge_a_half(other, trust_halves)) < 6


def test_a_merge_that_does_not_look_overwrites_a_save(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """RALPH-39: a file that a person saves between plan and merge stays as it was saved."""

    def trial(place: Path) -> str:
        place.mkdir(exist_ok=True)
        files = Files(place)
        files.git("init", "-q", "-b", "main")
        files.write("poem.txt", "one\n")
        files.commit()
        made = LinkedTrees(WorkTree(Repository.find(place)), str(place / ".trees"))
        base = made.keep_files("x")
        Path(made.make("x", base), "poem.txt").write_text("theirs\n")
        plan = made.plan(base, made.gather("x", base, "it"))
        files.write("poem.txt", "saved just now\n")
        made.apply(plan.files)
        return files.read("poem.txt")

    assert trial(root) == "saved just now\n"

    def blindly(self: WorkTree, path: str, entry: Any, expected: Any, data: bytes) -> None:
        Path(self.repository.root, path).write_bytes(data)

    monkeypatch.setattr(WorkTree, "put", blindly)
    assert trial(tmp_path / "planted") == "theirs\n"

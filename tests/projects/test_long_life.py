"""A real project, as it is used: three agents, a person's edits, kills, a full disk.

Whatever is killed, and whenever the disk is full: the same files, tasks and transcript at the end
as without. What the agents do can be done again (each writes one file), so an act that a crash
repeats changes nothing.
"""

from __future__ import annotations

import os
import random
import re
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import HoldfastError
from holdfast.agents import Scripted
from tests.crash.children import Child, tell
from tests.faults.mounts import may_mount, mounted
from tests.git.conftest import Project as Files
from tests.projects.test_kills import die_at
from tests.selection import RUNS_ALL, this_turn

ANSWERS = ["one\nstatus: continue", "two\nstatus: continue", "it is done"]
AGENTS = ("ann", "bob")
WISHES = ("sweep the floor", "water the plants", "lock the door")
COMMITS_MIN, COMMITS_MAX = 8, 24
"""A process is killed at one of these commits: it has begun by then, and has much left."""


WORKER = re.compile(r"; by [0-9a-z]{8}(?=;)")
"""The coordinator's own tasks are held by its process, which has another name each time."""


class Acting(Scripted):
    """An agent whose act is a file with its task in it, where it is told to work."""

    def __init__(self) -> None:
        super().__init__({"sessions": [{"match": "ask", "answer": ANSWERS}]})

    def answer(self, call: Any, /) -> Any:
        found = re.search(r"task: (.*)", call.prompt, re.I)
        if found is not None and call.directory:
            name = re.sub(r"\W+", "-", found[1].strip())
            Path(call.directory, f"{name}.txt").write_text(f"{found[1]}\nby {call.agent}\n")
        return super().answer(call)


def begin(root: Path) -> None:
    """The first hour, without a kill: the repository and the tasks, so that ids are the same."""
    root.mkdir()
    files = Files(root)
    files.git("init", "-q", "-b", "main")
    files.write("notes.txt", "begun\n")
    files.write("holdfast.toml", "[project]\nid = 'shop'\n[project.limits]\nfree = 1\n")
    files.write(".gitignore", ".holdfast\n")
    files.commit()
    with holdfast.open(str(root / ".holdfast")) as hf, hf.project(root).coordinate() as main:
        main.scope.set("goals", {"g1": {"title": "open the shop", "status": "open"}})
        for number in range(4):
            agent = AGENTS[number % 2]
            main.tasks.add(f"task of {agent} {number}", tags=["child"])
        main.tasks.add("task of the coordinator", priority="high")
    files.commit("the five files")


def play(root: Path) -> None:
    """Everything that is left to do; it can be begun again at any moment."""
    with holdfast.open(str(root / ".holdfast")) as hf:
        hf.runs.use_executor(Acting())
        project = hf.project(root)
        with project.coordinate() as main:
            main.resume()
            known = {child["task"] for child in main.scope.get("children", {}).values()}
            for task in main.tasks.list(status="open", tag="child"):
                if task.id not in known:
                    main.spawn(task.id, task.title.split()[2], worktree=True)
            for child in main.children():
                child.result()
            for result in main.go_on():
                assert result.status == "done", result
            for number in range(2):
                main.talk(f"how is it, {number}?", id=f"shop.inbox.talk{number}")


def edit(root: Path, number: int) -> None:
    """What a person does between two lives of the coordinator."""
    tasks = root / "RALPH_TASKS.md"
    tasks.write_text(tasks.read_text() + f"- [ ] {WISHES[number]}\n")
    notes = root / "notes.txt"
    notes.write_text(notes.read_text() + f"{WISHES[number]}\n")


def left(root: Path) -> dict[str, Any]:
    """The final tree, tasks and transcript; the order of lines in the five files aside."""
    views = {"AGENT.md", *(f"RALPH_{one}.md" for one in ("GOALS", "TASKS", "PROGRESS", "TODO"))}
    tree = {
        name: sorted(WORKER.sub("", text).splitlines()) if name in views else text
        for name, text in Files(root).files().items()
        if ".holdfast" not in name
    }
    with holdfast.open(str(root / ".holdfast")) as hf:
        project = hf.project(root)
        inbox = project.conversation("inbox").messages
        assert hf.check().ok
        status = project.status()
        assert (status.work, status.children, status.waiting) == (None, {}, [])
        assert {one.status for one in project.views().status()} == {"fresh"}
        assert Files(root).git("worktree", "list").count("\n") == 0
        return {
            "tree": tree,
            "tasks": [
                (one.id, one.title, one.status, one.outcome)
                for one in sorted(project.tasks.list(limit=None), key=lambda one: one.id)
            ],
            "said": [(one.role, one.text) for one in inbox],
        }


def in_child(work: Any) -> Child:
    child = Child(work)
    child.end()
    return child


def play_in_child(root: Path) -> None:
    child = in_child(lambda pipe, stop: play(root))
    assert child.trouble is None, child.trouble
    assert not child.was_killed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is left without a kill."""
    root = tmp_path_factory.mktemp("whole") / "shop"
    begin(root)
    play_in_child(root)
    for number in range(len(WISHES)):
        edit(root, number)
        play_in_child(root)
    found = left(root)
    assert len(found["tasks"]) == 8
    assert {one[2] for one in found["tasks"]} == {"completed"}
    assert "by ann" in found["tree"]["task-of-ann-0.txt"]
    assert len(found["said"]) == 4
    return found


@pytest.mark.parametrize("seed", this_turn(range(6), 6))
def test_a_project_that_is_killed_again_and_again_ends_the_same(
    root: Path, whole: dict[str, Any], seed: int
):
    """RALPH-28, RALPH-29, RALPH-36, RALPH-39: files, tasks and transcript as without kills."""
    root.rmdir()
    begin(root)
    chance = random.Random(seed)
    kills, edits = 0, 0
    for trial in range(50 if RUNS_ALL else 10):
        if trial in (2, 4, 6):
            edit(root, edits)
            edits += 1

        def dies(pipe: int, stop: int) -> None:
            die_at(chance.randrange(COMMITS_MIN, COMMITS_MAX), chance.choice(("before", "after")))
            play(root)

        chance.random()  # the child has a copy of it
        child = in_child(dies)
        assert child.trouble is None, child.trouble
        kills += child.was_killed
    assert kills >= 5
    play_in_child(root)
    assert left(root) == whole


# --- a full disk ----------------------------------------------------------------------------------


def fills(root: Path, rest: int) -> None:
    """Takes all space of the disk that the project is on, but a rest."""
    with open(root.parent / "filler", "wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 4096)
            except OSError:
                break
        size = os.fstat(file.fileno()).st_size
        file.truncate(max(size - rest, 0))


def play_on_a_full_disk(root: Path, pipe: int) -> None:
    try:
        play(root)
    except (HoldfastError, OSError, AssertionError) as error:
        tell(pipe, refused=f"{type(error).__name__}: {error}")
    else:
        tell(pipe, refused=None)


@pytest.mark.parametrize("rest_kib", this_turn([0, 8, 24, 64, 96, 128, 192, 256, 384, 512], 5))
def test_a_full_disk_at_any_moment_leaves_what_is_there(
    tmp_path: Path, whole: dict[str, Any], rest_kib: int
):
    """RALPH-56: it is refused, nothing is lost, and with room again it ends the same."""

    def trial(root: Path) -> None:
        begin(root)
        with holdfast.open(str(root / ".holdfast")) as hf:
            before = [one.title for one in hf.project(root).tasks.list(limit=None)]

        def works(pipe: int, stop: int) -> None:
            if may_mount():
                fills(root, rest_kib << 10)
            else:  # a file that may not grow is like a full disk
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (rest_kib << 10, rest_kib << 10))
            play_on_a_full_disk(root, pipe)

        child = in_child(works)
        assert child.trouble is None, child.trouble
        with holdfast.open(str(root / ".holdfast"), read_only=True) as hf:
            there = [one.title for one in hf.project(root).tasks.list(limit=None)]
            assert set(before) <= set(there)
        (root.parent / "filler").unlink(missing_ok=True)
        for number in range(len(WISHES)):
            play_in_child(root)
            edit(root, number)
        play_in_child(root)
        assert left(root) == whole

    if may_mount():
        with mounted(tmp_path / "disk", "size=48m") as disk:
            trial(disk / "shop")
    else:
        (tmp_path / "disk").mkdir()
        trial(tmp_path / "disk" / "shop")

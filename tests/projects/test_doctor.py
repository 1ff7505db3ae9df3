"""What is wrong with a project is said by name, with what can be done; and doing it helps."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

import holdfast
from holdfast import NotFoundError, UsageError
from holdfast.agents import Scripted
from holdfast.cli import main as main_of_cli
from holdfast.git.rewinds import Preview
from holdfast.projects import Project, housekeeping
from tests.crash.children import Child
from tests.faults.mounts import may_mount, mounted
from tests.projects.test_points import git

TASKS = "RALPH_TASKS.md"


@pytest.fixture
def place(root: Path) -> str:
    (root / ".gitignore").write_text(".holdfast*\n")
    return str(root / ".holdfast")


def parts(project: Project) -> dict[str, str]:
    return {one.name: one.found for one in project.doctor()}


def test_files_are_restored_from_the_log_from_git_or_kept(root: Path, place: str):
    """RALPH-52, RALPH-54: each file that differs is named, with three ways out."""
    with holdfast.open(place) as hf:
        hf.runs.use_executor(Scripted({}))
        project = hf.project(root)
        assert project.doctor() == []
        with project.coordinate() as main:
            for title in ("one", "two", "three"):
                main.tasks.add(title)
        git(root, "init", "-q")
        git(root, "add", ".")
        git(root, "commit", "-q", "-m", "first")
        assert project.doctor() == []
        path = root / TASKS
        text = path.read_text()

        path.write_text("# Tasks\n\n")
        [found] = project.doctor()
        assert (found.part, found.name) == ("file", TASKS)
        assert found.found.startswith("pending: 3 of 3 items are gone")
        assert [option.rpartition(" ")[2] for option in found.options] == ["log", "git", "keep"]
        project.restore_file(TASKS, "log")
        assert path.read_text() == text

        path.write_text(text.replace("one", "another"))
        assert parts(project)[TASKS].startswith("edited")
        project.restore_file(TASKS, "keep")
        assert project.tasks.get("t1").title == "another"

        path.write_text(edited := text.replace("one", "an edit that was not imported"))
        project.restore_file(TASKS, "git")
        assert project.tasks.get("t1").title == "one"
        assert path.read_text() == text
        assert edited in [one.read_text() for one in root.glob(f"{TASKS}.replaced-*")]
        path.unlink()
        assert parts(project) == {TASKS: "missing"}
        project.restore_file(TASKS, "keep")
        assert project.doctor() == []
        for file, remedy, error in (
            ("x.md", "log", NotFoundError),
            ("x.md", "git", NotFoundError),
            (TASKS, "magic", UsageError),
        ):
            with pytest.raises(error):
                project.restore_file(file, remedy)  # type: ignore[arg-type]


def test_what_a_dead_process_left_is_named(root: Path, place: str):
    """RALPH-54: work and sessions that were left, and how to go on."""

    class Dying(Scripted):
        def answer(self, call: object, /) -> object:
            os.kill(os.getpid(), signal.SIGKILL)
            return None

    def dies(pipe: int, stop: int) -> None:
        with holdfast.open(place) as hf:
            hf.runs.use_executor(Dying({}))
            project = hf.project(root)
            with project.coordinate() as main, project.enter_session(project.begin_session()):
                main.do("write it")

    Child(dies).end()
    with holdfast.open(place) as hf:
        hf.runs.use_executor(Scripted({}))
        project = hf.project(root)
        found = {one.part: one for one in project.doctor() if one.name == "shop.t1.1"}
        assert found["work"].options == ("holdfast project recover --go-on",)
        session = project.scope.get("session")
        assert parts(project)[session] == "the process of this session died"
        project.recover(go_on=True)
        assert "shop.t1.1" not in parts(project)


def test_a_rewind_that_did_not_end_is_looked_at_first(
    root: Path, place: str, monkeypatch: pytest.MonkeyPatch
):
    git(root, "init", "-q")

    def is_killed(*_: object) -> None:
        raise KeyboardInterrupt

    with holdfast.open(place) as hf:
        project = hf.project(root)
        point = project.checkpoint("start")
        with monkeypatch.context() as patched:
            patched.setattr(Preview, "_say_done", is_killed)
            with pytest.raises(KeyboardInterrupt):
                hf.git(root).rewind(point)
        [found] = [one for one in project.doctor() if one.part == "git"]
        assert found.options == (
            f"holdfast project rewind {point.id} --dry-run",
            "holdfast rewind undo --dry-run",
        )


def test_a_broken_repository_and_a_full_disk_are_named(
    root: Path, place: str, monkeypatch: pytest.MonkeyPatch
):
    """RALPH-56: a disk that is nearly full is told before it is."""
    git(root, "init", "-q")
    (root / ".git/HEAD").write_text("nonsense\n")
    monkeypatch.setattr(housekeeping, "disk_space", lambda _: (1_000, 1 << 40))
    with holdfast.open(place) as hf:
        found = {one.part for one in hf.project(root).doctor()}
    assert found == {"git", "disk"}


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a file system")
def test_a_project_on_a_full_disk_is_examined(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """RALPH-54, RALPH-56: not a byte is free, and the doctor says what is wrong all the same."""
    with mounted(tmp_path / "disk", "size=80m") as disk:
        root = disk / "shop"
        root.mkdir()
        git(root, "init", "-q")
        with holdfast.open(str(root / ".holdfast")) as hf:
            hf.runs.use_executor(Scripted({}))
            with hf.project(root).coordinate() as main:
                main.do("write it")
        (root / TASKS).write_text((root / TASKS).read_text().replace("write it", "edited"))
        with open(disk / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(bytes(1 << 20)):
                pass
        with contextlib.chdir(root):
            assert main_of_cli(["project", "doctor", "--json"]) == 1
        found = json.loads(capsys.readouterr().out)["ailments"]
        assert {(one["part"], one["name"]) for one in found} >= {
            ("disk", str(root)),
            ("file", TASKS),
        }
        assert os.statvfs(root).f_bavail == 0
        (disk / "filler").unlink()
        with holdfast.open(str(root / ".holdfast"), read_only=True) as hf:
            [left] = hf.project(root).doctor()
            assert left.found.startswith("edited")


def test_files_that_cannot_be_looked_at_hide_nothing_else(root: Path, place: str):
    with holdfast.open(place) as hf:
        hf.runs.use_executor(Scripted({}))
        project = hf.project(root)
        with project.coordinate() as main:
            main.do("write it")
        shutil.rmtree(root / ".holdfast-views")
        (root / ".holdfast-views").write_text("no folder")
        git(root, "init", "-q")
        (root / ".git/HEAD").write_text("nonsense\n")
        found = {one.part: one for one in project.doctor()}
        assert found.keys() == {"file", "git"}
        assert "views cannot be kept" in found["file"].found

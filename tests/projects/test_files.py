"""The five files: views of the project that people edit, and a way back if the store is gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agents import Scripted
from holdfast.projects import Project
from tests.crash.children import Child
from tests.projects.test_points import git

FILES = ["AGENT.md", "RALPH_GOALS.md", "RALPH_TASKS.md", "RALPH_PROGRESS.md", "RALPH_TODO.md"]


@pytest.fixture
def place(root: Path) -> str:
    return str(root / ".holdfast")


def lists(project: Project) -> dict[str, Any]:
    """What the files show: all that recovery must give back."""
    state = project.scope.state.to_dict()
    kept = {
        name: {id: {k: v for k, v in one.items() if k in ("title",)} for id, one in found.items()}
        for name in ("goals", "progress", "todo", "learnings")
        if (found := state.get(name))
    }
    tasks = [
        (one.id, one.title, one.status, one.priority, one.owner, one.dependencies, one.outcome,
         one.why, one.tags, one.epic, one.note)
        for one in project.tasks.list(limit=None)
    ]  # fmt: skip
    return {**kept, "tasks": tasks}


def fill(project: Project) -> None:
    with project.coordinate() as main:
        main.scope.set(("goals", "g1"), {"title": "open the shop; soon"})
        main.scope.set(("learnings", "l1"), {"title": "paint dries *slowly*"})
        main.scope.set(("todo", "n1"), {"title": "buy paint"})
        main.do("write; it, (high) now")
        main.do("stuck")
        main.tasks.add("third", priority="high", depends_on=["t1", "t2"], tags=["a"], epic="e")
        main.tasks.claim(main.tasks.add("fourth").id, owner="ann", lasts="1h")


SCRIPT = {"sessions": [{"match": "stuck", "answer": "no\nstatus: blocked: no; key"}]}


def test_the_files_show_the_project_and_take_edits(root: Path, place: str):
    """RALPH-16, RALPH-19, RALPH-20, RALPH-21: lists in the root; an edit becomes an event."""
    with holdfast.open(place) as hf:
        hf.runs.use_executor(Scripted(SCRIPT))
        project = hf.project(root)
        fill(project)
        assert all((root / name).is_file() for name in FILES)
        text = (root / "RALPH_TASKS.md").read_text()
        assert "- [x] write\\; it, (high) now" in text
        assert "- [ ] (high) third; after t1, t2; tags a; epic e <!-- hf:t3 -->" in text
        edited = text.replace("[!] stuck", "[ ] stuck no more").replace("; why no\\; key", "")
        (root / "RALPH_TASKS.md").write_text(f"{edited}- [ ] from an editor\n\nMy own words.\n")
        with project.coordinate() as main:
            assert {one.kind for one in main.findings} <= {"added", "changed"}
            assert main.tasks.get("t2").title == "stuck no more"
            assert [task.title for task in main.tasks.list(status="open")][-1] == "from an editor"
            results = list(main.go_on())
        assert [one.status for one in results] == ["blocked", "done"]
        assert (root / "RALPH_TASKS.md").read_text().endswith("\nMy own words.\n")


def test_a_commit_while_the_files_are_written_is_shown_too(root: Path, place: str):
    """The scope may change between the writing of a file and the end of a sync."""
    with holdfast.open(place) as hf:
        project = hf.project(root)
        with project.coordinate() as main:
            views = main._views
            assert views is not None

            class Racing:
                def sync(self) -> Any:
                    found = views.sync()
                    if not main.tasks.list():
                        main.tasks.add("meanwhile")
                    return found

            main._views = Racing()  # type: ignore[assignment]
            main.sync()
            main._keep_shown()
        assert "meanwhile" in (root / "RALPH_TASKS.md").read_text()


def test_an_edit_while_it_works_takes_effect(root: Path, place: str):
    """RALPH-21, RALPH-36: the files are kept up while a task is at work."""
    seen: list[str] = []

    class Editing(Scripted):
        def answer(self, call: Any, /) -> Any:
            path = root / "RALPH_TASKS.md"
            if not seen:
                seen.append(path.read_text())
                path.write_text(f"{seen[0]}- [ ] (high) meanwhile\n")
            return super().answer(call)

    with holdfast.open(place) as hf:
        hf.runs.use_executor(Editing({}))
        project = hf.project(root)
        with project.coordinate() as main:
            main.tasks.add("first")
            main.sync()
            done = [one.task for one in main.go_on()]
    assert "- [ ] first" in seen[0] or "- [/] first" in seen[0]
    assert done == ["t1", "t2"]


def test_without_the_store_the_files_give_the_same_lists(root: Path, place: str):
    """RALPH-25, RALPH-26, RALPH-39: `rm -rf .holdfast`, then recover from the files: equal."""
    with holdfast.open(place) as hf:
        hf.runs.use_executor(Scripted(SCRIPT))
        fill(hf.project(root))
        before = lists(hf.project(root))
    shutil.rmtree(place)
    with holdfast.open(place) as hf:
        project = hf.project(root)
        found = project.recover()
        assert lists(project) == before
        sources = {(one.name, one.source) for one in found.facts}
        assert {(name, "file") for name in FILES} <= sources
        assert {one.winner for one in found.differences} == {"file"}
    # And without what was kept beside them.
    shutil.rmtree(place)
    shutil.rmtree(root / ".holdfast-views")
    with holdfast.open(place) as hf:
        hf.project(root).recover()
        assert lists(hf.project(root)) == before


def test_files_that_are_gone_with_the_store_come_from_the_last_commit(root: Path, place: str):
    """RALPH-26, RALPH-39: git is the backup, also of files that were deleted."""
    (root / ".gitignore").write_text(".holdfast*\n")
    git(root, "init", "-q", "-b", "main")
    with holdfast.open(place) as hf:
        hf.runs.use_executor(Scripted(SCRIPT))
        fill(hf.project(root))
        before = lists(hf.project(root))
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "the files")
    shutil.rmtree(place)
    shutil.rmtree(root / ".holdfast-views")
    for name in FILES:
        (root / name).unlink()
    (root / "AGENT.md").write_text("# Learnings\n\n- another\n")
    with holdfast.open(place) as hf:
        found = hf.project(root).recover()
        after = lists(hf.project(root))
        assert "another" in str(after.pop("learnings"))
        assert after == {name: one for name, one in before.items() if name != "learnings"}
        sources = {(one.name, one.source) for one in found.facts}
        assert ("RALPH_TASKS.md", "git") in sources
        assert ("AGENT.md", "file") in sources
    # In a store that knows the project, a deleted file is written from the log.
    (root / "RALPH_TASKS.md").unlink()
    with holdfast.open(place) as hf:
        found = hf.project(root).recover()
        assert ("RALPH_TASKS.md", "git") not in {(one.name, one.source) for one in found.facts}
        assert lists(hf.project(root))["tasks"] == after["tasks"]
    assert sorted(path.name for path in root.iterdir() if ".new-" in path.name) == []


def test_a_recovery_says_what_was_worked_on_and_goes_on(root: Path, place: str):
    """RALPH-27, RALPH-28, RALPH-29, RALPH-37, RALPH-38: each fact has its source; edits guide."""
    (root / ".gitignore").write_text(".holdfast*\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "the first one")

    class Dying(Scripted):
        def answer(self, call: Any, /) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    def dies(pipe: int, stop: int) -> None:
        with holdfast.open(place) as hf:
            hf.runs.use_executor(Dying({}))
            with hf.project(root).coordinate() as main:
                main.do("write it")

    child = Child(dies)
    child.end()
    assert child.was_killed
    path = root / "RALPH_TASKS.md"
    path.write_text(f"{path.read_text()}- [ ] and this\n")
    with holdfast.open(place) as hf:
        hf.runs.use_executor(Scripted({}))
        project = hf.project(root)
        found = project.recover(go_on=True)
        facts = {(one.source, one.name): one.value for one in found.facts}
        assert facts["log", "mode"] == "autonomous"
        assert facts["log", "work"].startswith("shop.t1.1: ")
        assert facts["git", "branch"] == "main"
        assert facts["git", "commit"].endswith("the first one")
        assert facts["file", "RALPH_TASKS.md"] == "1 items taken over"
        assert found.work == ("shop.t1.1",)
        assert [(one.file, one.winner) for one in found.differences] == [("RALPH_TASKS.md", "file")]
        assert project.tasks.get("t1").status == "completed"
        assert [(one.task, one.status) for one in found.results] == [("t1", "done")]


def test_a_rewind_brings_the_files_in_line_with_the_log(root: Path, place: str):
    (root / ".gitignore").write_text(".holdfast*\n")
    git(root, "init", "-q", "-b", "main")
    with holdfast.open(place) as hf:
        hf.runs.use_executor(Scripted({}))
        project = hf.project(root)
        with project.coordinate() as main:
            main.tasks.add("one")
            main.sync()
            point = project.checkpoint("early")
            main.tasks.add("two")
            main.sync()
            main.rewind(point, what="files")
            assert [task.title for task in main.tasks.list()] == ["one", "two"]
            assert "two" in (root / "RALPH_TASKS.md").read_text()
            main.rewind(point)
            assert [task.title for task in main.tasks.list()] == ["one"]
            main.sync()
            assert [task.title for task in main.tasks.list()] == ["one"]


def test_files_that_cannot_be_written_stop_no_work(root: Path, place: str):
    """RALPH-53, RALPH-56: the log has it all, and the files are written when they can be."""
    with holdfast.open(place) as hf:
        hf.runs.use_executor(Scripted({}))
        project = hf.project(root)
        (root / "RALPH_TASKS.md").mkdir()
        with project.coordinate() as main:
            assert main.do("write it").status == "done"
        (root / "RALPH_TASKS.md").rmdir()
        with project.coordinate():
            pass
        assert "write it" in (root / "RALPH_TASKS.md").read_text()


def test_files_can_be_switched_off(root: Path, place: str):
    (root / "holdfast.toml").write_text("[project]\nviews = false\n")
    with holdfast.open(place) as hf:
        hf.runs.use_executor(Scripted({}))
        hf.project(root).do("it")
    assert not any((root / name).exists() for name in FILES)


def test_what_is_erased_beside_a_project_goes_from_its_files(root: Path, place: str) -> None:
    """A text is cut out of every file, and a subject in the same store takes nothing else along."""
    text = "CANARY-51fe"
    with holdfast.open(place, keys=root / ".keys") as store:
        project = Project(store, root)
        fill(project)
        with project.coordinate() as main:
            main.scope.set(("goals", "g9"), {"title": f"please {text}"})
            main.tasks.add(f"call {text} back")
        store.team("red").set("mail", f"{text}@x.org", subject="ada")
        views = project.views()
        views.sync()
        before = {name: (root / name).read_text() for name in FILES if (root / name).exists()}
        assert sum(text in said for said in before.values()) == 2
        store.subjects.erase("ada")
        assert {name: (root / name).read_text() for name in before} == before
        store.subjects.erase(match=text)
        after = {name: (root / name).read_text() for name in before}
        assert not any(text in said for said in after.values())
        assert {n: said.replace(text, "[erased]") for n, said in before.items()} == after
        assert store.check().findings == []
    kept = subprocess.run(["grep", "-rl", text, str(root)], capture_output=True, check=False)
    assert kept.stdout == b""

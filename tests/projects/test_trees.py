"""Children with files of their own: a linked work tree of git, merged when the task is done."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, UsageError
from holdfast.agents import AgentError, Command, Scripted
from holdfast.git import linked_trees
from holdfast.git.linked_trees import LinkedTrees
from holdfast.git.repository import Repository
from holdfast.git.work_tree import WorkTree
from holdfast.projects import trees
from tests.crash.children import Child
from tests.git.conftest import Project as Files
from tests.selection import this_turn

POEM = "one\ntwo\nthree\nfour\nfive\n"


class Writing(Scripted):
    """An agent that changes files where it is told to work."""

    def __init__(self, act: Callable[[Path], str | None]) -> None:
        super().__init__({})
        self.act = act
        self.places: list[str] = []

    def answer(self, call: Any, /) -> Any:
        self.places.append(call.directory)
        said = self.act(Path(call.directory))
        return super().answer(call) if said is None else said


@pytest.fixture
def files(root: Path) -> Files:
    made = Files(root)
    made.git("init", "-q", "-b", "main")
    made.write("poem.txt", POEM)
    made.write("src/old.py", "old\n")
    made.write(".gitignore", "*.log\n")
    made.commit()
    return made


@pytest.fixture
def hf(root: Path) -> Iterator[Store]:
    with holdfast.open(str(root / ".holdfast")) as store:
        yield store


def clean(files: Files) -> None:
    """Nothing of a tree is left but the folder, which git ignores."""
    assert files.git("worktree", "list").count("\n") == 0
    left = files.path / ".holdfast-trees"
    assert not left.exists() or os.listdir(left) == [".gitignore"]
    assert ".holdfast-trees" not in files.git("status", "--porcelain")


def test_a_child_works_on_files_of_its_own_which_are_merged(hf: Store, root: Path, files: Files):
    """RALPH-24: what the person has not committed is there; index and branch stay as they were."""
    files.write("draft.txt", "not committed\n")
    files.write("poem.txt", POEM.replace("one", "ONE"))
    before = files.git("rev-parse", "HEAD"), files.git("diff", "--cached")

    def act(place: Path) -> None:
        assert place != root
        assert (place / "draft.txt").read_text() == "not committed\n"
        assert not (place / ".holdfast").exists()
        (place / "poem.txt").write_text((place / "poem.txt").read_text().replace("five", "FIVE"))
        (place / "src" / "old.py").unlink()
        (place / "new").mkdir()
        (place / "new" / "run.sh").write_text("#!/bin/sh\n")
        (place / "new" / "run.sh").chmod(0o755)
        (place / "link").symlink_to("draft.txt")
        (place / "noise.log").write_text("ignored")
        (place / "RALPH_TASKS.md").write_text("not mine to write")
        # The person goes on meanwhile, in another place of the same file.
        files.write("poem.txt", files.read("poem.txt").replace("three", "THREE"))

    hf.runs.use_executor(Writing(act))
    with hf.project(root).coordinate() as main:
        result = main.spawn(main.tasks.add("rework it").id, "ann", worktree=True).result()
        assert (result.status, result.ref) == ("done", "")
        assert result.merged == ("link", "new/run.sh", "poem.txt", "src/old.py")
    assert files.read("poem.txt") == "ONE\ntwo\nTHREE\nfour\nFIVE\n"
    assert not (root / "src").exists()
    assert os.access(root / "new" / "run.sh", os.X_OK)
    assert os.readlink(root / "link") == "draft.txt"
    assert not (root / "noise.log").exists()
    assert "rework it" in files.read("RALPH_TASKS.md")
    assert (files.git("rev-parse", "HEAD"), files.git("diff", "--cached")) == before
    assert "refs/holdfast/trees" not in files.git("for-each-ref")
    clean(files)


def test_on_a_conflict_nothing_is_merged_and_the_files_are_kept(
    hf: Store, root: Path, files: Files
):
    def act(place: Path) -> None:
        (place / "poem.txt").write_text("mine\n")
        (place / "other.txt").write_text("also mine\n")
        files.write("poem.txt", "yours\n")

    hf.runs.use_executor(Writing(act))
    with hf.project(root).coordinate() as main:
        result = main.spawn(main.tasks.add("rework it").id, worktree=True).result()
        assert (result.status, result.merged) == ("blocked", ())
        assert "poem.txt (both sides changed it) not merged" in result.reason
        assert f"git cherry-pick {result.ref}" in main.tasks.get("t1").why
    assert files.read("poem.txt") == "yours\n"
    assert not (root / "other.txt").exists()
    clean(files)
    files.git("checkout", "-q", "poem.txt")
    files.git("cherry-pick", result.ref)
    assert (files.read("poem.txt"), files.read("other.txt")) == ("mine\n", "also mine\n")


def test_files_of_a_task_that_was_not_done_are_kept_apart(hf: Store, root: Path, files: Files):
    def blocked(place: Path) -> str:
        (place / "half.txt").write_text("half\n")
        return "I cannot\nstatus: blocked: no key"

    def fails(place: Path) -> str:
        (place / "half.txt").write_text("half of it\n")
        raise AgentError("no agent")

    for act, status in ((blocked, "blocked"), (fails, "failed")):
        hf.runs.use_executor(Writing(act))
        with hf.project(root).coordinate() as main:
            result = main.spawn(main.tasks.add(status).id, worktree=True).result()
        assert result.status == status
        assert not (root / "half.txt").exists()
        assert files.git("show", f"{result.ref}:half.txt").startswith("half")
        assert f"git cherry-pick {result.ref}" in hf.project(root).tasks.get(result.task).why
        clean(files)


def test_a_command_runs_in_the_tree_and_a_project_below_the_root_in_its_part(
    hf: Store, root: Path, files: Files
):
    """Agents run in the project's directory, wherever the process that asks them is."""
    files.write("shop/menu.txt", "soup\n")
    files.commit()
    program = "import os, pathlib; pathlib.Path('done.txt').write_text(os.getcwd()); print('ok')"
    hf.runs.use_executor(Command([sys.executable, "-c", program]))
    with hf.project(root / "shop").coordinate() as main:
        plain = main.do("cook")
        assert plain.status == "done", plain
        assert files.read("shop/done.txt") == str(root / "shop")
        assert main.spawn(main.tasks.add("cook"), worktree=True).result().status == "done"
    there = files.read("shop/done.txt")
    assert there.startswith(str(root / "shop" / ".holdfast-trees"))
    assert there.endswith("/shop")


def test_without_git_it_is_refused_and_nothing_is_begun(
    hf: Store, root: Path, files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    plain = tmp_path / "plain"
    plain.mkdir()
    hf.runs.use_executor(Scripted({}))
    with hf.project(plain).coordinate() as main:
        task = main.tasks.add("a")
        with pytest.raises(UsageError, match=r"needs git: .* is in no git repository"):
            main.spawn(task, worktree=True)
        assert main.tasks.get(task.id).status == "open"
        assert main.children() == []
    with hf.project(root).coordinate() as main:
        task = main.tasks.add("b")
        monkeypatch.setenv("PATH", str(plain))
        with pytest.raises(UsageError, match="needs git: the git command is not there"):
            main.spawn(task, worktree=True)
        monkeypatch.undo()
        (root / ".git" / "HEAD").write_text("broken")
        with pytest.raises(UsageError, match="needs git: git rev-parse ended with"):
            main.spawn(task, worktree=True)
        assert main.tasks.get(task.id).status == "open"


def test_a_filter_or_a_merge_driver_of_the_repository_is_not_run(
    hf: Store, root: Path, files: Files, tmp_path: Path
):
    """Whoever unpacks a foreign repository gets its configuration."""
    marker = tmp_path / "ran"
    for name in ("filter.evil.smudge", "filter.evil.clean", "merge.evil.driver"):
        files.git("config", name, f"touch {marker}")
    files.write(".git/info/attributes", "* filter=evil merge=evil\n")

    def act(place: Path) -> None:
        (place / "poem.txt").write_text(POEM.replace("five", "FIVE"))
        files.write("poem.txt", POEM.replace("one", "ONE"))

    hf.runs.use_executor(Writing(act))
    with hf.project(root).coordinate() as main:
        assert main.spawn(main.tasks.add("a"), worktree=True).result().merged == ("poem.txt",)
    assert files.read("poem.txt") == "ONE\ntwo\nthree\nfour\nFIVE\n"
    assert not marker.exists()


def test_two_children_at_once_have_trees_of_their_own(hf: Store, root: Path, files: Files):
    both = threading.Barrier(2, timeout=60)

    def act(place: Path) -> None:
        name = "a.txt" if not both.wait() else "b.txt"
        (place / name).write_text(str(place))
        both.wait()

    agent = Writing(act)
    hf.runs.use_executor(agent)
    with hf.project(root).coordinate() as main:
        started = [main.spawn(main.tasks.add(one), worktree=True) for one in "ab"]
        assert [one.result().status for one in started] == ["done", "done"]
    assert len(set(agent.places)) == 2
    assert files.read("a.txt") != files.read("b.txt")
    clean(files)


# --- kills ----------------------------------------------------------------------------------------

STEPS = ("keep_files", "make", "gather", "plan", "apply", "remove", "forget")


def die_at(name: str, when: str) -> None:
    """Has this process kill itself before, within or after a step of a child's tree."""
    if when == "within":
        # In the middle of writing files: half of the tree, or half of the merge, is there.
        put, made = WorkTree.put, []

        def counted(self: Any, *args: Any) -> Any:
            made.append(args)
            if len(made) == {"make": 2, "apply": 6}[name]:
                os.kill(os.getpid(), signal.SIGKILL)
            return put(self, *args)

        WorkTree.put = counted  # type: ignore[method-assign]
        return
    step = getattr(LinkedTrees, name)

    def dying(self: Any, *args: Any, **named: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, *args, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(LinkedTrees, name, dying)


MOMENTS = [(name, when) for name in STEPS for when in ("before", "after")]


@pytest.mark.parametrize(
    ("name", "when"), this_turn([*MOMENTS, ("make", "within"), ("apply", "within")], 4)
)
def test_a_kill_at_any_step_of_a_tree_changes_nothing_of_the_end(
    root: Path, files: Files, name: str, when: str
):
    def act(place: Path) -> None:
        (place / "poem.txt").write_text(POEM.replace("five", "FIVE"))
        (place / "src" / "new.py").write_text("new\n")
        (place / "src" / "old.py").unlink(missing_ok=True)

    def play() -> None:
        with holdfast.open(str(root / ".holdfast")) as hf:
            hf.runs.use_executor(Writing(act))
            with hf.project(root).coordinate() as main:
                task = main.tasks.add("rework it", key="a")
                main.resume()
                if not main.children() and not main.tasks.get(task.id).is_closed:
                    main.spawn(task.id, worktree=True)
                for child in main.children():
                    child.result()

    def dies(pipe: int, stop: int) -> None:
        die_at(name, when)
        play()

    killed = Child(dies)
    killed.end()
    assert killed.was_killed
    play()
    with holdfast.open(str(root / ".holdfast")) as hf:
        project = hf.project(root)
        assert project.tasks.get("t1").status == "completed"
        with project.coordinate() as main:
            assert main.unfinished() == []
    assert files.read("poem.txt") == POEM.replace("five", "FIVE")
    assert files.read("src/new.py") == "new\n"
    assert not (root / "src" / "old.py").exists()
    assert "refs/holdfast/trees" not in files.git("for-each-ref")
    clean(files)


def test_a_tree_that_nobody_knows_is_kept_as_a_commit_and_removed(
    hf: Store, root: Path, files: Files
):
    """Its run was removed, or the store is gone: what the agent wrote is not."""
    project = hf.project(root)
    trees.grow(project, "gone.t1.1")
    path = Path(trees.trees_of(project).path_of("gone.t1.1"))
    (path / "poem.txt").write_text("written\n")
    with project.coordinate():
        pass
    [ref] = [line.split()[2] for line in files.git("for-each-ref").splitlines() if "trees" in line]
    assert files.git("show", f"{ref}:poem.txt") == "written"
    clean(files)


def test_a_tree_that_was_removed_is_made_again(hf: Store, root: Path, files: Files):
    project = hf.project(root)
    base = trees.grow(project, "a run")
    path = Path(trees.directory_of(project, "a run", base))
    (path / "poem.txt").unlink()
    (path / ".git").unlink()
    assert trees.directory_of(project, "a run", base) == str(path)
    assert (path / "poem.txt").read_text() == POEM


# --- the merge itself -----------------------------------------------------------------------------


def test_what_both_sides_did_to_a_file(files: Files, tmp_path: Path):
    """Every case of a three-way merge, with the file system as the judge."""
    for name in ("same", "theirs", "ours", "gone", "gone both", "gone theirs", "mode", "binary"):
        files.write(name, POEM)
    made = LinkedTrees(WorkTree(Repository.find(files.path)), str(tmp_path / "trees"))
    base = made.keep_files("x y")
    there = Path(made.make("x y", base))
    assert there.name.startswith("x-y-")
    for place, word in ((files.path, "OURS"), (there, "THEIRS")):
        (place / "same").write_text("both\n")
        (place / "binary").write_bytes(b"\0" + word.encode())
        (place / "new").write_text(word)
        (place / "gone both").unlink()
    (there / "theirs").write_text("theirs\n")
    (files.path / "ours").write_text("ours\n")
    (there / "gone").unlink()
    (files.path / "gone theirs").write_text("changed\n")
    (there / "gone theirs").unlink()
    (there / "mode").chmod(0o755)
    (files.path / "mode").write_text(POEM.replace("one", "1"))
    plan = made.plan(base, made.gather("x y", base, "it"))
    assert plan.conflicts == ("binary", "gone theirs", "new")
    assert [one.path for one in plan.files] == ["gone", "mode", "theirs"]
    assert made.apply(plan.files) == {}
    assert os.access(files.path / "mode", os.X_OK)
    assert files.read("mode") == POEM.replace("one", "1")
    assert made.apply(plan.files) == {}  # again, as after a kill
    # A file that somebody saves between the plan and its end stays as they saved it.
    (there / "ours").write_text("later\n")
    (files.path / "ours").write_text(POEM)
    plan = made.plan(base, made.gather("x y", base, "it"))
    (files.path / "ours").write_text("saved just now\n")
    assert made.apply([one for one in plan.files if one.path == "ours"]) == {
        "ours": "changed since"
    }


def test_a_folder_of_somebody_elses_repository_is_not_gathered(files: Files, tmp_path: Path):
    made = LinkedTrees(WorkTree(Repository.find(files.path)), str(tmp_path / "trees"))
    base = made.keep_files("x")
    there = Path(made.make("x", base))
    (there / ".git").unlink()
    Files(there).git("init", "-q")
    with pytest.raises(holdfast.UnavailableError, match="is a work tree of"):
        made.gather("x", base, "it")


def test_trees_are_made_and_removed_at_once(files: Files, tmp_path: Path):
    """git fails at a linked tree that another `git worktree` is just making."""
    made = LinkedTrees(WorkTree(Repository.find(files.path)), str(tmp_path / "trees"))
    base = made.keep_files("base")

    def make_some(worker: int) -> None:
        for number in range(6):
            made.make(f"{worker}-{number}", base)
            made.remove(f"{worker}-{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make_some, range(4)))
    assert files.git("worktree", "list").count("\n") == 0


def test_large_trees_are_read_in_groups(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(linked_trees, "_READ_BYTES_AT_ONCE", 10)
    made = LinkedTrees(WorkTree(Repository.find(files.path)), str(tmp_path / "trees"))
    there = Path(made.make("x", made.keep_files("x")))
    assert (there / "poem.txt").read_text() == POEM
    assert (there / "src" / "old.py").read_text() == "old\n"

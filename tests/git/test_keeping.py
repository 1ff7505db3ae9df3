"""`[views]` and `[git]` of a holdfast.toml act in whichever process writes (BOOT-26)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.cli import main
from holdfast.errors import GitError, NotFoundError, UsageError
from holdfast.git import Repository, commit_trailers, events_named, rebuild_from_git
from holdfast.git.auto_commit import BEHIND, CommitKeeper, Configured
from holdfast.git.commit_trailers import told_until
from tests.git.conftest import Project
from tests.selection import RUNS_ALL, turn

PATIENCE_S = 60.0
CONFIG = """
[views]
scope = "team/red"
[views.files]
"TASKS.md" = "tasks"
[git]
commit = "each"
"""


@pytest.fixture
def here(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(project.path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    project.write("holdfast.toml", CONFIG)
    project.write(".gitignore", ".holdfast/\n.holdfast-views/\n*.log\n")
    project.commit("configured")
    return project


def until(happened: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < ends
        time.sleep(0.02)


def told_by(project: Project) -> list[str]:
    """Returns the events that the commits of the branch name, oldest first."""
    commits = reversed(Repository.find(project.path).last_commits(500))
    return [str(place) for commit in commits for place in events_named(commit)]


def test_a_process_that_writes_commits(here: Project) -> None:
    """A Python process: after each commit of the store, the files and their event."""
    with holdfast.open(".holdfast", actor="bob", settings=Settings(config="holdfast.toml")) as hf:
        red = hf.team("red")
        for number in range(3):
            red.tasks.add(f"task {number}")
            until(lambda: told_by(here) == [f"team/red@{n}" for n in range(1, red.revision + 1)])
        assert f"task {number}" in here.git("show", "HEAD:TASKS.md")
        assert here.git("log", "-1", "--format=%an %s") == "bob 1 events of team/red"
        assert hf.status()["reports"] == []
        red.tasks.add("the last")
    assert told_by(here) == [f"team/red@{n}" for n in range(1, 5)]
    assert "the last" in here.git("show", "HEAD:TASKS.md")
    assert here.git("status", "--porcelain") == ""


def test_many_events_are_told_in_few_commits(here: Project) -> None:
    with holdfast.open(".holdfast", settings=Settings(config="holdfast.toml")) as hf:
        with hf.commit() as tx:
            for number in range(BEHIND * 3):
                tx.scope(hf.team("red")).append("items", number)
        for number in range(BEHIND * 3):
            hf.team("red").set("n", number)
    assert told_by(here) == [f"team/red@{n}" for n in range(1, len(told_by(here)) + 1)]
    assert len(told_by(here)) >= BEHIND * 3
    assert int(here.git("rev-list", "--count", "HEAD")) < BEHIND * 3


def test_commands_commit_and_status_tells_what_is_not(
    here: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init"]) == 0
    assert main(["set", "team/red", "stage", "one"]) == 0
    assert told_by(here) == ["team/red@1"]
    capsys.readouterr()
    here.git("checkout", "-q", "--detach")
    assert main(["set", "team/red", "stage", "two"]) == 0, "a write never fails because of git"
    assert "no branch is checked out" in capsys.readouterr().err
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "1 events of team/red are in no commit of git: no branch is checked out" in shown
    here.git("switch", "-q", "main")
    assert main(["set", "team/red", "stage", "three"]) == 0
    assert told_by(here) == ["team/red@1", "team/red@2", "team/red@3"]
    assert main(["status"]) == 0
    assert "in no commit" not in capsys.readouterr().out


def test_turns(here: Project) -> None:
    here.write("holdfast.toml", CONFIG.replace('"each"', '"turn"'))
    with holdfast.open(".holdfast", settings=Settings(config="holdfast.toml")) as hf:
        red = hf.team("red")
        red.set("a", 1)
        with red.messages.turn() as turn:
            turn.add("user", "hi")
        until(lambda: told_by(here))
        count = len(told_by(here))
        assert count == red.revision
        red.set("a", 3)
    assert len(told_by(here)) == count
    with holdfast.open(".holdfast", settings=Settings(config="holdfast.toml")) as hf:
        assert hf.status()["reports"] == []


@pytest.mark.parametrize(
    ("busy", "said"),
    [
        ("MERGE_HEAD", "in the middle of a merge"),
        ("rebase-merge", "in the middle of a merge or a rebase"),
        ("index.lock", "index"),
    ],
)
def test_what_somebody_does_in_the_repository_goes_first(
    here: Project, busy: str, said: str
) -> None:
    with holdfast.open(".holdfast", settings=Settings(config="holdfast.toml")) as hf:
        (here.path / ".git" / busy).write_text(here.git("rev-parse", "HEAD"))
        hf.team("red").tasks.add("one")
        [commits] = [
            end.__self__.commits  # type: ignore[attr-defined]
            for end in hf._kernel._closing
            if isinstance(getattr(end, "__self__", None), Configured)
        ]
        until(lambda: commits.trouble is not None)  # type: ignore[union-attr]
        assert said in str(commits.trouble)  # type: ignore[union-attr]
        (here.path / ".git" / busy).unlink()
        until(lambda: commits.trouble is None and told_by(here))  # type: ignore[union-attr]
    assert told_by(here) == ["team/red@1"]
    assert here.git("status", "--porcelain") == ""


def test_a_file_that_git_ignores_is_not_committed(here: Project) -> None:
    """A configuration from elsewhere would have secrets committed, and pushed some day."""
    here.write("secret.log", "a key")
    here.write(
        "holdfast.toml", '[git]\ncommit = "each"\nscope = "team/red"\nfiles = ["secret.log"]'
    )
    with holdfast.open(".holdfast", settings=Settings(config="holdfast.toml")) as hf:
        hf.team("red").set("a", 1)
    with holdfast.open(".holdfast", settings=Settings(config="holdfast.toml")) as hf:
        assert 'git ignores "secret.log"' in hf.status()["reports"][0]
    assert told_by(here) == []


def test_what_is_missing_is_named(here: Project, tmp_path: Path) -> None:
    for said, error in (
        ('[git]\ncommit = "each"\n', UsageError),
        ('[git]\ncommit = "each"\nscope = "team/red"\n', UsageError),
        ('[git]\ncommit = "often"\n', UsageError),
        ("[git\n", UsageError),
    ):
        here.write("holdfast.toml", said)
        with pytest.raises(error):
            holdfast.open(".holdfast", settings=Settings(config="holdfast.toml"))
    with pytest.raises(NotFoundError):
        holdfast.open(".holdfast", settings=Settings(config="nowhere.toml"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "holdfast.toml").write_text(CONFIG)
    with holdfast.open(
        outside / "store", settings=Settings(config=outside / "holdfast.toml")
    ) as hf:
        hf.team("red").set("a", 1)
        [report] = hf.status()["reports"]
    assert "in no git repository" in report
    (outside / "holdfast.toml").write_text("")
    with holdfast.open(
        outside / "store", read_only=True, settings=Settings(config=outside / "holdfast.toml")
    ) as hf:
        assert hf.status()["reports"] == []


def test_what_was_told_is_found_however_old(here: Project, monkeypatch: Any) -> None:
    """Commits of others since do not make it tell everything again."""
    with holdfast.open(".holdfast", settings=Settings(config="holdfast.toml")) as hf:
        hf.team("red").set("a", 1)
    for number in range(commit_trailers._NEWEST + 10):
        here.git("commit", "-q", "--allow-empty", "-m", f"of somebody {number}")
    assert told_until(Repository.find("."), "team/red") == 1
    with holdfast.open(".holdfast", settings=Settings(config="holdfast.toml")) as hf:
        hf.team("red").set("a", 2)
    assert told_by(here) == ["team/red@1", "team/red@2"]


WRITER = """
from holdfast import Settings
import sys
import holdfast
from holdfast.git.auto_commit import Configured
with holdfast.open(".holdfast", actor=sys.argv[1], settings=Settings(config="holdfast.toml")) as hf:
    for number in range(10):
        hf.team("red").append("items", f"{sys.argv[1]} {number}")
"""


def test_processes_take_turns(here: Project) -> None:
    """Two processes commit as they write: each event is told once, in order, and whole."""
    with holdfast.open(".holdfast"):
        pass
    words = [sys.executable, "-c", WRITER]
    running = [subprocess.Popen([*words, name]) for name in ("ann", "bob")]
    assert [one.wait() for one in running] == [0, 0]
    assert told_by(here) == [f"team/red@{n}" for n in range(1, 21)]
    assert here.git("status", "--porcelain") == ""
    with holdfast.open("memory:") as empty, holdfast.open(".holdfast") as hf:
        rebuilt = rebuild_from_git(empty._log, Repository.find("."))
        assert (rebuilt.added, rebuilt.missing) == (20, [])
        assert empty.team("red").state.to_dict() == hf.team("red").state.to_dict()


# --- killed --------------------------------------------------------------------------------------

KILLED = """
from holdfast import Settings
import os, signal, sys
import holdfast
from holdfast.git.auto_commit import Configured
from holdfast.git import repository

left = int(sys.argv[1])
real = repository.run_git

def run_or_die(words, **options):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(words, **options)

repository.run_git = run_or_die
with holdfast.open(".holdfast", actor="ann", settings=Settings(config="holdfast.toml")) as hf:
    red = hf.team("red")
    if not red.tasks.list():
        red.tasks.add("one")
    if left > 0:
        red.set("n", red.get("n", 0) + 1)
"""


def run_killed(point: int) -> int:
    done = subprocess.run([sys.executable, "-c", KILLED, str(point)], check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode


def test_killed_at_any_step_of_git_the_next_process_commits_it(here: Project) -> None:
    """SIGKILL before every command of git: log, files and commits agree after the next open."""
    with holdfast.open(".holdfast"):
        pass
    killed = 0
    for point in range(1, 40) if RUNS_ALL else (1 + turn() % 20, 21 + turn() % 20):
        killed += run_killed(point) != 0
        lock = here.path / ".git" / "index.lock"
        if lock.exists():  # git was killed with us, as by a crash of the machine
            lock.unlink()
        assert run_killed(0) == 0
        with holdfast.open(".holdfast") as hf:
            end = hf.team("red").revision
        assert told_by(here) == [f"team/red@{n}" for n in range(1, end + 1)], point
        assert here.git("status", "--porcelain") == "", point
        assert here.git("show", "HEAD:TASKS.md") == here.read("TASKS.md").strip()
    assert killed or not RUNS_ALL


# --- planted faults ------------------------------------------------------------------------------


def plant_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks what was told once, and believes it for ever."""
    seen: dict[str, int] = {}
    real = commit_trailers.told_until

    def told_once(repository: Repository, stream: str) -> int:
        return seen.setdefault(stream, real(repository, stream))

    monkeypatch.setattr(commit_trailers, "told_until", told_once)


def plant_stale_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits files that were not rendered since."""
    real = CommitKeeper.__init__

    def without(self: CommitKeeper, *arguments: Any) -> None:
        real(self, *arguments[:4], lambda: None)

    monkeypatch.setattr(CommitKeeper, "__init__", without)
    monkeypatch.setattr(Configured, "start", lambda self, **_: self.commits.start())
    monkeypatch.setattr("holdfast.git.auto_commit.Configured._sync", lambda self: None)


def plant_blind_to_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits whatever somebody is in the middle of."""
    monkeypatch.setattr(CommitKeeper, "_refuse_busy", lambda *_: None)


def plant_fails_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets an error of git reach whoever closes the store."""

    def commit(self: CommitKeeper, **_: object) -> None:
        raise GitError("planted")

    monkeypatch.setattr(CommitKeeper, "commit", commit)


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (plant_no_turns, test_a_process_that_writes_commits),
        (plant_stale_files, test_a_process_that_writes_commits),
        (plant_blind_to_merges, test_commands_commit_and_status_tells_what_is_not),
        (plant_fails_the_write, test_commands_commit_and_status_tells_what_is_not),
    ],
)
def test_planted_faults_are_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    test: Callable[..., None],
    here: Project,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE_S", 2.0)
    plant(monkeypatch)
    given = {"here": here, "capsys": capsys}
    names = test.__code__.co_varnames[: test.__code__.co_argcount]
    with pytest.raises((AssertionError, GitError)):
        test(**{name: given[name] for name in names})

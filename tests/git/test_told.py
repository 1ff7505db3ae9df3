"""Events told in commits: made on the branch, read back when the log is lost (BOOT-19, BOOT-26)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Store
from holdfast.cli import main
from holdfast.errors import ExistsError, UsageError
from holdfast.git import Repository
from holdfast.git.commit_trailers import (
    commit_as_told,
    commit_events,
    read_settings,
    rebuild_from_git,
)
from holdfast.git.installed import install_hook, remove_hook
from tests.git.conftest import Project


@pytest.fixture
def here(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(project.path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    return project


@pytest.fixture
def hf(here: Project) -> Iterator[Store]:
    with holdfast.open(".holdfast", actor="bob") as store:
        yield store


def test_each_change_becomes_a_commit(here: Project, hf: Store) -> None:
    """BOOT-26: hash, time, author and message; only the files that were named."""
    red = hf.team("red")
    red.set("stage", "one")
    here.write("view.md", "one\n")
    here.write("staged.txt", "s\n")
    here.git("add", "staged.txt")
    here.write("other.txt", "o\n")
    made = commit_events(red, Repository.find("."), ["view.md"], summary="a view")
    assert made is not None
    assert (made.author, made.summary) == ("bob", "a view")
    assert here.git("show", "--name-only", "--format=", "HEAD") == "view.md"
    assert here.git("status", "--porcelain").splitlines() == ["A  staged.txt", "?? other.txt"]
    assert commit_events(red, Repository.find("."), ["view.md"]) is None
    (here.path / "view.md").unlink()
    red.set("stage", "two")
    assert commit_events(red, Repository.find("."), ["view.md"]) is not None
    assert here.git("show", "--name-status", "--format=", "HEAD") == "D\tview.md"
    assert here.git("log", "-1", "--format=%s") == "1 events of team/red"


def test_a_lost_log_is_rebuilt(here: Project) -> None:
    """BOOT-19: what commits told is there again; what they did not tell is named."""
    with holdfast.open(".holdfast", actor="bob") as hf:
        red = hf.team("red")
        red.set("stage", "one", checkpoint="first")
        red.append("items", {"a": 1}, key="k1")
        red.say("hello")
        red.tasks.add("a task")
        commit_events(red, Repository.find("."), ["a.txt"])
        red.restore("first")
        commit_events(red, Repository.find("."), ["a.txt"])
        told = [(one.type, one.actor, one.record.payload) for one in red.history()]
        state, tasks = red.state.to_dict(), [task.title for task in red.tasks.list()]
        assert rebuild_from_git(hf._log, Repository.find(".")).agree == len(told)
    shutil.rmtree(".holdfast")
    with holdfast.open(".holdfast") as hf:
        done = rebuild_from_git(hf._log, Repository.find("."))
        assert (done.added, done.differ, done.missing) == (len(told), [], [])
        red = hf.team("red")
        assert [(one.type, one.actor, one.record.payload) for one in red.history()] == told
        assert (red.state.to_dict(), [task.title for task in red.tasks.list()]) == (state, tasks)
        assert red.at("first") == {"stage": "one"}
        again = rebuild_from_git(hf._log, Repository.find("."))
        assert (again.added, again.agree, again.missing) == (0, len(told), [])
        assert hf.check(read_all=True).ok


def test_a_log_that_differs_is_named(here: Project, hf: Store) -> None:
    hf.team("red").set("stage", "one")
    commit_events(hf.team("red"), Repository.find("."), ["a.txt"])
    with holdfast.open("other") as other:
        other.team("red").set("stage", "another")
        done = rebuild_from_git(other._log, Repository.find("."))
        assert (done.added, done.agree, done.differ) == (0, 0, ["team/red@1"])
    here.commit("by hand\n\nHoldfast-Event: team/red@7\nHoldfast-Data: {broken")
    assert rebuild_from_git(hf._log, Repository.find(".")).missing == ["team/red@7"]


def test_when_commits_are_made(here: Project, hf: Store) -> None:
    """`[git] commit`: after each event, or when a turn has ended."""
    red, repository = hf.team("red"), Repository.find(".")
    start = hf.position
    red.set("a", 1)
    with red.messages.turn() as turn:
        turn.add("user", "hi")
    events = list(hf.follow(as_events=True, after=start, timeout_s=0))
    assert len(list(commit_as_told(events[:2], red, repository, ["a.txt"], "off"))) == 0
    assert len(list(commit_as_told(events, red, repository, ["a.txt"], "turn"))) == 1
    red.set("a", 2)
    events = list(hf.follow(as_events=True, after=events[-1].position, timeout_s=0))
    assert len(list(commit_as_told(events, red, repository, ["a.txt"], "each"))) == 1


def test_on_the_command_line(here: Project, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init"])
    main(["set", "team/red", "stage", "one"])
    assert main(["git", "commit"]) == 2
    assert main(["git", "commit", "a.txt", "--scope", "team/red", "--follow"]) == 2
    here.write("holdfast.toml", '[git]\ncommit = "each"\nfiles = ["a.txt"]\nscope = "team/red"\n')
    capsys.readouterr()
    assert main(["git", "commit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["made"]["names"] == ["team/red@1"]
    assert main(["git", "commit", "--follow", "--timeout", "0"]) == 0
    capsys.readouterr()
    assert main(["rebuild", "--from-git", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "added": 0,
        "agree": 1,
        "differ": [],
        "missing": [],
    }
    assert main(["rebuild", "--from-git"]) == 0
    assert main(["rebuild"]) == 2
    here.write("holdfast.toml", '[git]\ncommit = "sometimes"\n')
    with pytest.raises(UsageError, match=r"\[git\] of"):
        read_settings()


def test_the_hook_records_each_commit(here: Project, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init"])
    assert main(["git", "hook", "team/red"]) == 0
    assert main(["git", "hook", "team/red"]) == 0
    here.write("a.txt", "two\n")
    id = here.commit("by a person")
    with holdfast.open(".holdfast") as hf:
        [made] = hf.team("red").history(type="git_commit")
        assert made.data["commit"] == id
    assert main(["git", "hook", "--remove"]) == 0
    assert not (here.path / ".git/hooks/post-commit").exists()
    assert main(["git", "hook"]) == 2
    repository = Repository.find(".")
    assert not remove_hook(repository)
    here.write(".git/hooks/post-commit", "#!/bin/sh\n")
    with pytest.raises(ExistsError, match="already"):
        install_hook(repository, "true")
    here.git("config", "core.hooksPath", "elsewhere")
    with pytest.raises(UsageError, match="elsewhere"):
        install_hook(repository, "true")


def test_what_is_sealed_is_told_in_no_commit(
    here: Project,
    hf: Store,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS", str(tmp_path_factory.mktemp("keys")))
    chat = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    chat.set("name", "Ada Lovelace")
    with pytest.raises(UsageError, match="in clear, for ever"):
        commit_events(chat, Repository.find("."), [])

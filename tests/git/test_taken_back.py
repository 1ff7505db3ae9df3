"""A store that people keep in git: what git took back is named, and brought back (BOOT-19).

Five commits, then every way in which git changes files. What is reported is what changed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.cli import main
from holdfast.core.commit import CommitResult, ProposedCommit
from holdfast.core.log import Log
from holdfast.errors import FilesTakenError, NotFoundError, UsageError
from holdfast.git_recovery import (
    LostRevisions,
    accept_loss,
    bring_back,
    find_lost,
)
from tests.crash.children import Child
from tests.git.conftest import Project

COMMITS = 5


_made: list[Path] = []


@pytest.fixture
def kept(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose store is in git, with five commits; each has one more change."""
    if not _made:
        made = Project(tmp_path_factory.mktemp("kept") / "project")
        shutil.copytree(project.path, made.path)
        made.write(".gitignore", "")
        for number in range(1, COMMITS + 1):
            with opened(made) as hf:
                hf.team("red").set("n", number)
                hf.conversation("c1").say(f"message {number}")
            made.commit(f"commit {number}")
        shutil.rmtree(made.path / ".holdfast" / "workers")  # it has moved, and is no copy
        _made.append(made.path)
    shutil.rmtree(project.path)
    shutil.copytree(_made[0], project.path)
    return project


def opened(project: Project, actor: str = "ann") -> Store:
    return holdfast.open(project.path / ".holdfast", actor=actor)


def lost(project: Project) -> list[tuple[str, int, int]]:
    with opened(project) as hf:
        return [(one.stream, one.first, one.last) for one in find_lost(hf)]


def all_of(first: int, last: int) -> list[tuple[str, int, int]]:
    return [("conversation/c1", first, last), ("team/red", first, last)]


def contents(project: Project) -> tuple[object, list[str]]:
    with opened(project) as hf:
        assert hf.check().ok
        return hf.team("red").get("n"), [one.text for one in hf.conversation("c1").messages]


WHOLE = (COMMITS, [f"message {number}" for number in range(1, COMMITS + 1)])


@pytest.mark.parametrize(
    "words",
    [
        ("checkout", "-q", "HEAD~2", "--", ".holdfast"),
        ("reset", "-q", "--hard", "HEAD~2"),
        ("checkout", "-q", "--detach", "HEAD~2"),
        ("checkout", "-q", "-b", "other", "HEAD~2"),
    ],
    ids=["checkout", "reset", "detach", "branch"],
)
def test_what_git_took_back_is_named_and_brought_back(
    kept: Project, words: tuple[str, ...]
) -> None:
    assert lost(kept) == []
    kept.git(*words)
    assert lost(kept) == all_of(4, 5)
    assert contents(kept) == (3, WHOLE[1][:3])  # nothing is added by itself
    assert lost(kept) == all_of(4, 5)  # and nothing is forgotten by itself
    done = bring_back(kept.path / ".holdfast")
    assert [(one.stream, one.first, one.last) for one in done.regained] == all_of(4, 5)
    assert (done.merged, done.not_applied, done.events) == ([], [], 4)
    assert contents(kept) == WHOLE
    assert lost(kept) == []
    assert bring_back(kept.path / ".holdfast").events == 0


def test_a_hold_that_was_set_meanwhile_stays(kept: Project) -> None:
    """The commit does not know of it, and its marks are those of the stream that comes back."""
    kept.git("reset", "-q", "--hard", "HEAD~2")
    with opened(kept) as hf:
        hf.retention.hold("team/red", "a request")
    bring_back(kept.path / ".holdfast")
    with opened(kept) as hf:
        assert [hold.scope for hold in hf.retention.holds()] == ["team/red"]
    assert contents(kept) == WHOLE


def test_a_switch_back_loses_nothing(kept: Project) -> None:
    kept.git("checkout", "-q", "-b", "other", "HEAD~1")
    assert lost(kept) == all_of(5, 5)
    kept.git("checkout", "-q", "main")
    assert lost(kept) == []


def test_a_stash(kept: Project) -> None:
    with opened(kept) as hf:
        hf.team("red").set("n", 6)
    assert lost(kept) == []
    kept.git("stash", "-q")
    assert lost(kept) == [("team/red", 6, 6)]
    with opened(kept) as hf:
        [one] = find_lost(hf)
        assert one.commit == kept.git("rev-parse", "stash@{0}")
    bring_back(kept.path / ".holdfast")
    assert contents(kept) == (6, WHOLE[1])


def test_what_no_commit_has_is_named_as_lost(kept: Project) -> None:
    with opened(kept) as hf:
        hf.team("red").set("n", 6)
        hf.team("blue").set("a", 1)
    kept.git("checkout", "-q", "--", ".")
    with opened(kept) as hf:
        assert find_lost(hf) == [
            LostRevisions("team/blue", 1, 1, None, is_diverged=False),
            LostRevisions("team/red", 6, 6, None, is_diverged=False),
        ]
        hf.team("red").set("n", "another 6")
    with opened(kept) as hf:  # written since: still named
        assert [(one.stream, one.last) for one in find_lost(hf)] == [
            ("team/blue", 1),
            ("team/red", 6),
        ]
        assert any("team/blue" in report for report in hf.status()["reports"])
        assert len(accept_loss(hf)) == 2
        assert find_lost(hf) == []
    assert lost(kept) == []


def test_a_loss_that_was_accepted_is_not_named_again(kept: Project) -> None:
    kept.git("reset", "-q", "--hard", "HEAD~2")
    with opened(kept) as hf:
        assert len(accept_loss(hf)) == 2
    assert lost(kept) == []
    with opened(kept) as hf:
        hf.team("red").set("n", "new 4")
    kept.commit("goes on")
    assert lost(kept) == []
    kept.git("reset", "-q", "--hard", "HEAD~1")
    assert lost(kept) == [("team/red", 4, 4)]


def test_a_clone_and_a_linked_work_tree_have_lost_nothing(kept: Project, tmp_path: Path) -> None:
    kept.git("clone", "-q", str(kept.path), str(tmp_path / "clone"))
    clone = Project(tmp_path / "clone")
    assert lost(clone) == []
    assert contents(clone) == WHOLE
    kept.git("worktree", "add", "-q", str(tmp_path / "linked"), "HEAD~1")
    linked = Project(tmp_path / "linked")
    assert lost(linked) == []
    assert contents(linked) == (4, WHOLE[1][:4])
    assert lost(kept) == []


def test_a_pull_that_takes_back(kept: Project, tmp_path: Path) -> None:
    """The branch was rewritten elsewhere, and is pulled with --force."""
    kept.git("clone", "-q", str(kept.path), str(tmp_path / "clone"))
    clone = Project(tmp_path / "clone")
    assert lost(clone) == []
    kept.git("reset", "-q", "--hard", "HEAD~1")
    clone.git("fetch", "-q")
    clone.git("reset", "-q", "--hard", "origin/main")
    assert lost(clone) == all_of(5, 5)
    bring_back(clone.path / ".holdfast")
    assert contents(clone) == WHOLE


@pytest.mark.parametrize(
    ("words", "is_changed"),
    [
        (("checkout", "-q", "HEAD~2", "--", ".holdfast"), True),
        (("reset", "-q", "--hard", "HEAD~2"), True),
        (("stash", "-q"), True),
        (("checkout", "-q", "HEAD~2", "--", ".holdfast"), False),
        (("checkout", "-q", "-b", "other", "HEAD~2"), False),
        (("checkout", "-q", "--detach", "HEAD~2"), False),
    ],
    ids=["checkout", "reset", "stash", "checkout-clean", "branch", "detach"],
)
def test_with_the_store_open(kept: Project, words: tuple[str, ...], is_changed: bool) -> None:
    """The open handle ends, and says so; all that was acknowledged can be brought back."""
    hf = opened(kept)
    newest = hf.team("red").set("n", 6) if is_changed else hf.team("red").revision
    kept.git(*words)
    with pytest.raises(FilesTakenError):
        hf.team("red").set("not acknowledged", 7)
    hf.close()
    bring_back(kept.path / ".holdfast")
    with opened(kept) as hf:
        assert hf.check(read_all=True).ok
        assert hf.team("red").at(newest)["n"] == newest
        assert [one.text for one in hf.conversation("c1").messages] == WHOLE[1]
        assert find_lost(hf) == []


def test_tasks_of_two_branches_are_never_taken_for_each_other(kept: Project) -> None:
    """Both sides gave the same id to tasks of their own: what was done to one is not done to both.

    A task that only one side has, or changed, is taken; the rest is listed.
    """
    with opened(kept) as hf:
        hf.team("red").tasks.add("common")
        hf.team("red").tasks.add("also common")
    kept.commit("tasks")
    kept.git("checkout", "-q", "-b", "feature")
    with opened(kept, actor="bob") as hf:
        tasks = hf.team("red").tasks
        tasks.update("t2", note="by bob")
        mine = tasks.add("theirs")
        tasks.claim(mine.id, owner="bob", lasts="1h")
        tasks.close(mine.id, "done", owner="bob")
        tasks.add("named", id="of-bob")
        tasks.update("t1", note="by bob")
    kept.commit("on feature")
    kept.git("checkout", "-q", "main")
    with opened(kept, actor="ann") as hf:
        hf.team("red").tasks.add("ours")
        hf.team("red").tasks.update("t1", note="by ann")
    kept.commit("on main")
    done = bring_back(kept.path / ".holdfast", commit="feature")
    assert [(one.type, one.why) for one in done.not_applied] == [
        ("task.added", 'task "t3" was changed here too'),
        ("task.claimed", 'task "t3" was changed here too'),
        ("task.closed", 'task "t3" was changed here too'),
        ("task.changed", 'task "t1" was changed here too'),
    ]
    with opened(kept) as hf:
        assert hf.check(read_all=True).ok
        tasks = hf.team("red").tasks
        found = {task.id: (task.title, task.status, task.note) for task in tasks.list()}
        assert found == {
            "t1": ("common", "open", "by ann"),
            "t2": ("also common", "open", "by bob"),
            "t3": ("ours", "open", None),
            "of-bob": ("named", "open", None),
        }
        assert {task.id for task in hf.tasks.list()} == set(found)
        tasks.update("of-bob", note="goes on")
        tasks.add("after the merge")
    assert bring_back(kept.path / ".holdfast", commit="feature").events == 0


@pytest.mark.parametrize("how", ["merge", "clone", "worktree"])
def test_what_takes_nothing_back_is_reported_as_nothing(
    kept: Project, tmp_path: Path, how: str
) -> None:
    """With the store open: the handle goes on, and nobody is told of a loss."""
    kept.git("checkout", "-q", "-b", "docs")
    kept.write("other.txt", "of another branch\n")
    kept.git("add", "other.txt")
    kept.git("commit", "-q", "-m", "no change of the store")
    kept.git("checkout", "-q", "main")
    with opened(kept) as hf:
        hf.team("red").set("n", 6)
        if how == "merge":
            kept.git("merge", "-q", "--no-ff", "--no-edit", "docs")
        elif how == "clone":
            kept.git("clone", "-q", str(kept.path), str(tmp_path / "copy"))
        else:
            kept.git("worktree", "add", "-q", str(tmp_path / "copy"), "docs")
        hf.team("red").set("n", 7)
        assert find_lost(hf) == []
        assert [one for one in hf.status()["reports"] if "git took" in one] == []
    assert lost(kept) == []
    assert contents(kept) == (7, WHOLE[1])
    if how != "merge":
        copy = Project(tmp_path / "copy")
        assert contents(copy)[1] == WHOLE[1]
        assert lost(copy) == []


def test_two_branches_become_one(kept: Project) -> None:
    """The other side's events follow ours, with their old links; what does not fit is listed."""
    kept.git("checkout", "-q", "-b", "feature")
    with opened(kept, actor="bob") as hf:
        red = hf.team("red")
        red.set("theirs", 1)
        red.set("both", "theirs")
        red.append("items", "theirs")
        red.increment("count", 10)
        said = hf.conversation("c1").say("from feature")
        hf.conversation("c1").messages.edit(said.id, content="edited on feature")
        hf.team("blue").set("new", True)
        red.decide("feature decision", key="d1").outcome("done")
        red.decide("left open", key="d2")
    theirs = kept.commit("on feature")
    kept.git("checkout", "-q", "main")
    with opened(kept, actor="ann") as hf:
        red = hf.team("red")
        red.set("both", "ours")
        red.append("items", "ours")
        red.increment("count", 1)
        hf.conversation("c1").say("from main")
    kept.commit("on main")
    with opened(kept) as hf:
        assert [(one.stream, one.is_diverged) for one in find_lost(hf)] == [
            ("conversation/c1", True),
            ("team/blue", False),
            ("team/red", True),
        ]
    done = bring_back(kept.path / ".holdfast", commit="feature")
    assert [one.stream for one in done.regained] == ["team/blue"]
    assert [one.stream for one in done.merged] == ["conversation/c1", "team/red"]
    [misfit] = done.not_applied
    assert (misfit.stream, misfit.type) == ("team/red", "changed")
    assert misfit.why == "both was changed here too"
    with opened(kept) as hf:
        assert hf.check(read_all=True).ok
        red = hf.team("red")
        assert red.state.to_dict() == {
            "n": 5,
            "both": "ours",
            "items": ["ours", "theirs"],
            "count": 11,
            "theirs": 1,
        }
        texts = [one.text for one in hf.conversation("c1").messages]
        assert texts == [*WHOLE[1], "from main", "edited on feature"]
        assert hf.team("blue").get("new") is True
        merged = next(one for one in red.history() if one.actor == "bob")
        assert merged.meta is not None
        assert str(merged.meta.source).startswith("merge:")
        assert merged.meta.original_time is not None
        assert {one.key for one in hf.decisions.list(scope="team/red")} == {"d1", "d2"}
        assert [one.key for one in hf.decisions.list(incomplete=True)] == ["d2"]
        assert find_lost(hf) == []
    assert bring_back(kept.path / ".holdfast", commit=theirs).events == 0


def branches(project: Project) -> None:
    """Two branches, each with events of its own in one stream."""
    project.git("checkout", "-q", "-b", "feature")
    with opened(project, actor="bob") as hf:
        hf.conversation("c1").say("from feature")
        hf.team("red").set("both", "theirs")
        hf.team("red").append("items", "theirs")
    project.commit("on feature")
    project.git("checkout", "-q", "main")
    with opened(project) as hf:
        hf.conversation("c1").say("from main")
        hf.team("red").set("both", "ours")
    project.commit("on main")


def test_git_merge_with_the_driver(kept: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """`git merge` itself keeps both sides, in one commit, in a clone that never had the branch."""
    branches(kept)
    kept.git("clone", "-q", str(kept.path), str(kept.path.parent / "clone"))
    clone = Project(kept.path.parent / "clone")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(clone.path)
        patch.setenv("HOLDFAST_STORE", str(clone.path / ".holdfast"))
        assert main(["git", "merge-driver"]) == 0
        assert main(["git", "merge-driver"]) == 0
    assert (clone.path / ".git/info/attributes").read_text().count("merge=holdfast") == 2
    clone.git("merge", "-q", "-m", "merged", "origin/feature")
    assert clone.git("status", "--porcelain") == ""
    with opened(clone) as hf:
        assert hf.check(read_all=True).ok
        texts = [one.text for one in hf.conversation("c1").messages]
        assert texts == [*WHOLE[1], "from main", "from feature"]
        assert hf.team("red").state.to_dict() == {"n": 5, "both": "ours", "items": ["theirs"]}
        [merge] = [one for one in hf.events(limit=None) if one.type == "git.merged"]
        assert [one["why"] for one in merge.data["not_applied"]] == ["both was changed here too"]
        assert find_lost(hf) == []
        hf.team("red").set("after", True)
    assert bring_back(clone.path / ".holdfast", commit="origin/feature").events == 0
    assert lost(kept) != []  # where both branches were checked out, and nothing was merged


@pytest.mark.parametrize("is_changed", [False, True], ids=["clean", "uncommitted"])
def test_git_merge_with_the_driver_while_the_store_is_open(kept: Project, is_changed: bool) -> None:
    """By another process: git refuses, or merges and the handle ends; nothing is lost."""
    branches(kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(kept.path)
        patch.setenv("HOLDFAST_STORE", str(kept.path / ".holdfast"))
        assert main(["git", "merge-driver"]) == 0

    def writer(pipe: int, stop: int) -> None:
        with opened(kept, actor="cy") as hf:
            red = hf.team("red")
            if is_changed:
                red.append("cy", "before")
            os.write(pipe, b'{"is_open": true}\n')
            os.read(stop, 1)
            try:
                red.append("cy", "after")
                said = "written"
            except FilesTakenError:
                said = "taken"
            os.write(pipe, json.dumps({"said": said}).encode() + b"\n")

    child = Child(writer)
    child.hear_until(lambda: bool(child.lines))
    kept.git("merge", "-q", "-m", "merged", "feature", code=2 if is_changed else 0)
    child.tell_to_stop()
    assert os.WIFEXITED(child.end())
    # A store with writes that no commit has is a file with local changes: git merges nothing, and
    # puts the files back as they were. Either way other files are in place, and the handle says so.
    assert child.lines[1]["said"] == "taken"
    if is_changed:
        kept.commit("written meanwhile")
        kept.git("merge", "-q", "-m", "merged", "feature")
    bring_back(kept.path / ".holdfast")
    with opened(kept) as hf:
        assert hf.check(read_all=True).ok
        texts = [one.text for one in hf.conversation("c1").messages]
        assert texts == [*WHOLE[1], "from main", "from feature"]
        state = hf.team("red").state.to_dict()
        # What raised was not acknowledged, and may be there or not.
        assert state.pop("cy", []) in (
            [["before"], ["before", "after"]] if is_changed else [[], ["after"]]
        )
        assert state == {"n": 5, "both": "ours", "items": ["theirs"]}
        assert find_lost(hf) == []


def test_git_merge_without_the_driver(kept: Project) -> None:
    """git leaves a conflict; with our side put back, the other is brought in from its commit."""
    branches(kept)
    kept.git("merge", "-q", "feature", code=1)
    with opened(kept) as hf:
        assert not hf.check().ok  # and never read as less
    kept.git("checkout", "-q", "--ours", "--", ".holdfast")
    done = bring_back(kept.path / ".holdfast", commit="feature")
    assert [one.why for one in done.not_applied] == ["both was changed here too"]
    kept.commit("merged")
    assert contents(kept)[1] == [*WHOLE[1], "from main", "from feature"]
    assert lost(kept) == []


@pytest.mark.parametrize("first", [None, "feature"])
def test_a_merge_that_was_taken_back_is_not_brought_back_twice(
    kept: Project, first: str | None
) -> None:
    """The commit of the merge has the same events as the branch, under other links."""
    branches(kept)
    bring_back(kept.path / ".holdfast", commit="feature")
    kept.commit("merged")
    kept.git("reset", "-q", "--hard", "HEAD~1")
    with opened(kept) as hf:
        hf.team("red").append("since", 1)
        hf.conversation("c1").say("since")
    if first is not None:
        bring_back(kept.path / ".holdfast", commit=first)
    bring_back(kept.path / ".holdfast")
    with opened(kept) as hf:
        texts = [one.text for one in hf.conversation("c1").messages]
        assert texts == [*WHOLE[1], "from main", "since", "from feature"]
        assert hf.team("red").state.to_dict() == {
            "n": 5,
            "both": "ours",
            "since": [1],
            "items": ["theirs"],
        }
        assert hf.check(read_all=True).ok
        assert find_lost(hf) == []
    assert bring_back(kept.path / ".holdfast").events == 0


@pytest.mark.parametrize("commits", range(4))
def test_a_killed_recovery_is_finished_by_the_next(kept: Project, commits: int) -> None:
    """Killed before any of its commits: done again, nothing is missing, and nothing is twice."""
    branches(kept)

    def until_killed(pipe: int, stop: int) -> None:
        commit, left = Log.commit, commits

        def commit_or_die(self: Log, proposed: ProposedCommit) -> CommitResult:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return commit(self, proposed)

        Log.commit = commit_or_die  # type: ignore[method-assign]
        bring_back(kept.path / ".holdfast", commit="feature")

    status = Child(until_killed).end()
    assert os.WIFEXITED(status) == (commits > 2)  # a message, an item, and what was merged
    bring_back(kept.path / ".holdfast", commit="feature")
    with opened(kept) as hf:
        assert hf.check(read_all=True).ok
        texts = [one.text for one in hf.conversation("c1").messages]
        assert texts == [*WHOLE[1], "from main", "from feature"]
        assert hf.team("red").state.to_dict() == {"n": 5, "both": "ours", "items": ["theirs"]}
        assert find_lost(hf) == []


def test_recover_on_the_command_line(
    kept: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(kept.path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    kept.git("reset", "-q", "--hard", "HEAD~2")
    assert main(["status", "--json"]) == 0
    reports = json.loads(capsys.readouterr().out)["reports"]
    assert len(reports) == 2
    assert 'revisions 4 to 5 of "team/red" were here and are not' in reports[1]
    assert main(["git", "lost", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["lost"]
    assert [(one["scope"], one["first"], one["last"]) for one in found] == all_of(4, 5)
    assert main(["git", "lost"]) == 0
    assert "team/red" in capsys.readouterr().out
    assert main(["recover", "--from-git", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 4
    assert main(["recover", "--from-git"]) == 0
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["reports"] == []
    assert contents(kept) == WHOLE
    kept.git("checkout", "-q", "--", ".")
    assert main(["git", "lost", "--accept"]) == 0
    assert lost(kept) == []
    assert main(["recover", "--commit", "HEAD"]) == 2
    assert main(["recover", "team/red", "--from-git"]) == 2


def test_bad_input(kept: Project, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="has no commit"):
        bring_back(kept.path / ".holdfast", commit="none")
    first = kept.git("rev-list", "--max-parents=0", "HEAD")
    with pytest.raises(NotFoundError, match="has no store"):
        bring_back(kept.path / ".holdfast", commit=first)
    with holdfast.open(tmp_path / "outside") as hf:
        hf.team("red").set("a", 1)
        assert find_lost(hf) == []
    with pytest.raises(UsageError, match="in a git repository"):
        bring_back(tmp_path / "outside")


def test_closing_a_store_looks_at_no_file_for_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a store is, and which, is known without a walk over everything that it holds."""

    def walked(_: object) -> None:
        raise AssertionError("all files of the store were looked at")

    with holdfast.open(tmp_path / "store") as hf:
        hf.team("a").set("n", 1)
        monkeypatch.setattr(type(hf._log._backend.inspect), "describe", walked)

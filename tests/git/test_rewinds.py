"""Points to go back to: files, state and conversation, there and back again."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, aio
from holdfast.errors import ConflictError, NotFoundError, UsageError
from holdfast.git import FileStep, Repository, Rewinds, WorkTree
from holdfast.git import work_tree as work_trees
from holdfast.git.rewinds import Preview
from holdfast.record import FileChange
from holdfast.views import task_list
from tests.crash.children import Child
from tests.git.conftest import Project


@pytest.fixture
def hf(project: Project) -> Iterator[Store]:
    with holdfast.open(project.path / ".holdfast") as store:
        yield store


@pytest.fixture
def rewinds(hf: Store, project: Project) -> Rewinds:
    return hf.git(project.path)


def change_all(project: Project, hf: Store) -> None:
    """Changes files, state and conversation in every way."""
    project.write("a.txt", "two\n")
    project.write("new/deep/c.txt", "c\n")
    (project.path / "src" / "b.py").unlink()
    chat = hf.conversation("c1")
    chat.say("second")
    chat.set("stage", "late")
    chat.tasks.add("a task")


def begin(project: Project, hf: Store) -> None:
    chat = hf.conversation("c1")
    chat.say("first")
    chat.set("stage", "early")
    project.write("untracked.txt", "u\n")
    project.write("x.log", "ignored 1\n")


def user_state(project: Project) -> tuple[str, ...]:
    """Returns what is the user's in the repository: branch, index, stash, reflog, refs."""
    return (
        project.git("symbolic-ref", "HEAD"),
        project.git("ls-files", "-s"),
        project.git("for-each-ref", "refs/heads", "refs/tags", "refs/stash"),
        project.git("reflog"),
    )


def test_all_goes_back_and_forth(project: Project, hf: Store, rewinds: Rewinds) -> None:
    begin(project, hf)
    before_files, theirs = project.files(), user_state(project)
    point = rewinds.mark("start", ["conversation/c1"])
    change_all(project, hf)
    project.write("x.log", "ignored 2\n")
    project.write("src/other.txt", "o\n")
    chat = hf.conversation("c1")
    decision = chat.decide("send the mail")
    decision.outcome("sent")
    after_files = project.files()

    preview = rewinds.preview("start")
    assert project.files() == after_files
    assert preview.files == [
        FileStep("a.txt", "write"),
        FileStep("new/deep/c.txt", "remove"),
        FileStep("src/b.py", "make"),
        FileStep("src/other.txt", "remove"),
    ]
    assert [change.path for change in preview.scopes["conversation/c1"]] == [("stage",)]
    assert preview.stays == [f"decision {decision.id}: send the mail"]

    done = preview.apply()
    assert sorted(done.files, key=lambda one: one.path) == preview.files
    assert done.skipped == {}
    assert project.files() == {**before_files, "x.log": "ignored 2\n"}
    assert not (project.path / "new").exists()
    assert [one.text for one in chat.messages] == ["first"]
    assert chat.state == {"stage": "early"}
    assert [task.title for task in chat.tasks.list()] == []
    assert user_state(project) == theirs

    undone = rewinds.undo()
    assert undone.skipped == {}
    assert project.files() == after_files
    assert [one.text for one in chat.messages] == ["first", "second"]
    assert chat.state == {"stage": "late"}
    assert [task.title for task in chat.tasks.list()] == ["a task"]
    assert user_state(project) == theirs
    with pytest.raises(NotFoundError, match="no rewind to undo"):
        rewinds.undo()
    rewinds.rewind(point.id)
    assert project.files() == {**before_files, "x.log": "ignored 2\n"}


def test_each_part_goes_back_alone(project: Project, hf: Store, rewinds: Rewinds) -> None:
    begin(project, hf)
    early = project.files()
    rewinds.mark("start", [hf.conversation("c1")])
    change_all(project, hf)
    late = project.files()
    chat = hf.conversation("c1")

    rewinds.rewind("start", what="conversation")
    assert [one.text for one in chat.messages] == ["first"]
    assert (chat.state, project.files()) == ({"stage": "late"}, late)
    rewinds.undo()
    assert [one.text for one in chat.messages] == ["first", "second"]

    rewinds.rewind("start", what="state")
    assert [one.text for one in chat.messages] == ["first", "second"]
    assert (chat.state, [t.title for t in chat.tasks.list()]) == ({"stage": "early"}, [])
    assert project.files() == late
    rewinds.undo()
    assert (chat.state, [t.title for t in chat.tasks.list()]) == ({"stage": "late"}, ["a task"])

    rewinds.rewind("start", what="files")
    assert (chat.state, project.files()) == ({"stage": "late"}, early)
    rewinds.undo()
    assert project.files() == late


def test_a_point_before_the_first_message(hf: Store, project: Project, rewinds: Rewinds) -> None:
    rewinds.mark("empty", ["conversation/c1"])
    begin(project, hf)
    rewinds.rewind("empty")
    chat = hf.conversation("c1")
    assert (list(chat.messages), chat.state) == ([], {})
    assert "untracked.txt" not in project.files()
    rewinds.undo()
    assert [one.text for one in chat.messages] == ["first"]


def test_the_store_in_the_work_tree_is_none_of_its_files(
    project: Project, hf: Store, rewinds: Rewinds
) -> None:
    project.write(".gitignore", "")
    project.commit("the store is committed too")
    begin(project, hf)
    point = rewinds.mark("start")
    look = rewinds.work_tree().look()
    assert not [path for path in look.files if path.startswith(".holdfast")]
    hf.conversation("c1").say("more")
    rewinds.rewind(point)
    assert [one.text for one in hf.conversation("c1").messages] == ["first", "more"]


def test_a_file_changed_since_the_preview_stays(project: Project, rewinds: Rewinds) -> None:
    rewinds.mark("start")
    project.write("a.txt", "two\n")
    project.write("src/b.py", "b = 2\n")
    preview = rewinds.preview("start")
    project.write("a.txt", "by hand\n")
    done = preview.apply()
    assert done.skipped == {"a.txt": "changed since"}
    assert project.read("a.txt") == "by hand\n"
    assert project.read("src/b.py") == "b = 1\n"
    # Undone, what was changed by hand after the rewind stays too.
    project.write("src/b.py", "b = 3\n")
    undone = rewinds.undo()
    assert undone.skipped == {"src/b.py": "changed since"}
    assert project.read("src/b.py") == "b = 3\n"


def test_a_file_changed_after_the_message_that_changed_it_stays(
    project: Project, hf: Store, rewinds: Rewinds
) -> None:
    chat = hf.conversation("c1")
    rewinds.mark("start", [chat])
    for name in ("a.txt", "src/b.py"):
        change = FileChange.of(name, (project.path / name).read_bytes(), b"by the agent\n")
        project.write(name, "by the agent\n")
        chat.messages.add("assistant", f"changed {name}", files=[change])
    project.write("a.txt", "by hand\n")
    done = rewinds.rewind("start")
    [(path, reason)] = done.skipped.items()
    assert (path, project.read(path)) == ("a.txt", "by hand\n")
    assert reason.startswith("changed since message")
    assert project.read("src/b.py") == "b = 1\n"
    done = rewinds.rewind("start", overwrite=True)
    assert (done.skipped, project.read("a.txt")) == ({}, "one\n")


@pytest.mark.parametrize("can_exchange", [True, False])
def test_an_edit_at_the_last_moment_is_not_lost(
    can_exchange: bool, project: Project, rewinds: Rewinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The editor saves between our look and our write: the exchange finds its text."""
    if not can_exchange:
        monkeypatch.setattr("holdfast.exchange._system_call", lambda: None)
    rewinds.mark("start")
    project.write("a.txt", "two\n")
    write_beside = work_trees._write_beside

    def and_save(*arguments: object) -> None:
        write_beside(*arguments)  # pyright: ignore[reportArgumentType]
        project.write("a.txt", "saved just now\n")

    monkeypatch.setattr(work_trees, "_write_beside", and_save)
    done = rewinds.rewind("start")
    assert done.skipped == {"a.txt": "changed since"}
    assert project.read("a.txt") == "saved just now\n"
    assert [path.name for path in project.path.iterdir() if "rewind" in path.name] == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_two_edits_at_the_last_moment_are_both_kept(
    can_exchange: bool, project: Project, rewinds: Rewinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The editor saves before the exchange, and again before its text is put back."""
    if not can_exchange:
        monkeypatch.setattr("holdfast.exchange._system_call", lambda: None)
    rewinds.mark("start")
    project.write("a.txt", "two\n")
    real, texts = work_trees.exchange, ["first\n", "second\n"]

    def and_save(*arguments: Any, **options: Any) -> Any:
        project.write("a.txt", texts.pop(0))
        return real(*arguments, **options)

    monkeypatch.setattr(work_trees, "exchange", and_save)
    done = rewinds.rewind("start")
    [reason] = done.skipped.values()
    assert reason.startswith("changed since, twice")
    [kept] = [path for path in project.path.iterdir() if "rewind" in path.name]
    assert {kept.read_text(), project.read("a.txt")} == {"first\n", "second\n"}
    assert reason.endswith(kept.name)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_is_made_while_another_is_removed_stays(
    has_links: bool, project: Project, rewinds: Rewinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The editor saves before we take the file away, and again before it is put back."""
    rewinds.mark("start")
    project.write("new.txt", "two\n")
    rename, texts = os.rename, ["first\n", "second\n"]

    def and_save(old: str, new: str, **options: Any) -> None:
        is_taken = old == "new.txt"
        if is_taken:
            project.write("new.txt", texts.pop(0))
        rename(old, new, **options)
        if is_taken:
            project.write("new.txt", texts.pop(0))

    monkeypatch.setattr(os, "rename", and_save)
    if not has_links:
        monkeypatch.setattr(os, "link", raise_no_links)
    done = rewinds.rewind("start")
    [reason] = done.skipped.values()
    assert reason.startswith("changed since, twice")
    [kept] = [path for path in project.path.iterdir() if "rewind" in path.name]
    assert {kept.read_text(), project.read("new.txt")} == {"first\n", "second\n"}


def raise_no_links(*_: object, **__: object) -> None:
    raise PermissionError(errno.EPERM, "there are no links")


def test_an_edit_that_cannot_be_looked_at_is_kept(
    project: Project, rewinds: Rewinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails when what came out of the exchange is read: it is not thrown away."""
    rewinds.mark("start")
    project.write("a.txt", "two\n")
    real, entry_in = work_trees.exchange, WorkTree._entry_in

    def and_save(*arguments: Any, **options: Any) -> Any:
        project.write("a.txt", "saved just now\n")
        done = real(*arguments, **options)
        monkeypatch.setattr(WorkTree, "_entry_in", fail)
        return done

    def fail(*_: object) -> None:
        monkeypatch.setattr(WorkTree, "_entry_in", entry_in)
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(work_trees, "exchange", and_save)
    done = rewinds.rewind("start")
    assert "the disk fails" in done.skipped["a.txt"]
    [kept] = [path for path in project.path.iterdir() if "rewind" in path.name]
    assert kept.read_text() == "saved just now\n"


def test_commits_and_branches_stay(project: Project, rewinds: Rewinds) -> None:
    rewinds.mark("start")
    project.write("a.txt", "two\n")
    project.commit("made since")
    project.git("checkout", "-q", "-b", "other")
    done = rewinds.rewind("start")
    assert len(done.stays) == 1
    assert done.stays[0].startswith("commits: other is at ")
    assert (project.read("a.txt"), project.git("symbolic-ref", "HEAD")) == (
        "one\n",
        "refs/heads/other",
    )


def test_what_is_ignored_now_is_not_overwritten(project: Project, rewinds: Rewinds) -> None:
    project.write("data.txt", "one\n")
    rewinds.mark("start")
    project.write(".gitignore", ".holdfast/\n*.log\ndata.txt\n")
    project.write("data.txt", "two\n")
    done = rewinds.rewind("start")
    assert list(done.skipped) == ["data.txt"]
    assert project.read("data.txt") == "two\n"


def test_a_folder_where_a_file_was(project: Project, rewinds: Rewinds) -> None:
    rewinds.mark("start")
    (project.path / "a.txt").unlink()
    project.write("a.txt/inner", "x")
    assert rewinds.rewind("start").skipped == {}
    assert project.read("a.txt") == "one\n"


def test_a_scope_changed_since_the_preview_is_a_conflict(
    project: Project, hf: Store, rewinds: Rewinds
) -> None:
    begin(project, hf)
    rewinds.mark("start", ["conversation/c1"])
    change_all(project, hf)
    preview = rewinds.preview("start")
    hf.conversation("c1").say("third")
    late = project.files()
    with pytest.raises(ConflictError, match="changed since the preview"):
        preview.apply()
    assert project.files() == late


def test_bad_input(project: Project, hf: Store, rewinds: Rewinds, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no point 'none'"):
        rewinds.rewind("none")
    rewinds.mark("files alone")
    with pytest.raises(UsageError, match="one of conversation, state, files, all"):
        rewinds.rewind("files alone", what="everything")  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotFoundError, match="has no scopes"):
        rewinds.rewind("files alone", what="state")
    outside = hf.git(tmp_path)
    with pytest.raises(UsageError, match="needs scopes"):
        outside.mark("nothing")
    with pytest.raises(NotFoundError, match="in no git repository"):
        outside.mark("files", files=True)
    hf.team("red").set("a", 1)
    assert outside.mark("scopes alone", ["team/red"]).commit is None
    with pytest.raises(NotFoundError, match="has no files"):
        outside.rewind("scopes alone", what="files")


def test_points_are_listed(project: Project, hf: Store, rewinds: Rewinds) -> None:
    first = rewinds.mark("start", ["team/red"])
    second = rewinds.mark("start")
    assert rewinds.list() == [second, first]
    assert rewinds.find("start") == second
    assert first.branch == "main"
    assert first.head == project.git("rev-parse", "HEAD")
    assert project.git("cat-file", "-t", str(first.commit)) == "commit"
    assert rewinds.interrupted() is None
    with pytest.raises(UsageError, match="there is no level 'rewind'"):
        hf.scope("rewind", "points")


def test_points_outlive_git_gc(project: Project, rewinds: Rewinds) -> None:
    project.write("untracked.txt", "u\n")
    rewinds.mark("start")
    (project.path / "untracked.txt").unlink()
    project.git("gc", "-q", "--prune=now")
    rewinds.rewind("start")
    assert project.read("untracked.txt") == "u\n"


def test_with_asyncio(project: Project) -> None:
    async def main() -> None:
        async with await aio.open(project.path / ".holdfast") as hf:
            chat = hf.conversation("c1")
            await chat.set("a", 1)
            rewinds = hf.git(project.path)
            point = await rewinds.mark("start", [chat])
            await chat.set("a", 2)
            project.write("a.txt", "two\n")
            await rewinds.apply(await rewinds.preview(point))
            assert project.read("a.txt") == "one\n"
            assert await chat.get("a") == 1
            await rewinds.undo()
            assert project.read("a.txt") == "two\n"
            assert [one.name for one in await rewinds.list()][-1] == "start"

    asyncio.run(main())


@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_a_killed_rewind_can_be_finished_or_undone(project: Project, seed: int) -> None:
    """The process is killed at some file: each file is whole, and both ways lead to a whole end."""
    place = project.path / ".holdfast"
    early = {f"f{number}": f"early {number}\n" for number in range(8)}
    with holdfast.open(place) as hf:
        chat = hf.conversation("c1")
        chat.set("stage", "early")
        for name, text in early.items():
            project.write(name, text)
        hf.git(project.path).mark("start", [chat])
        chat.set("stage", "late")
    late = {**early, **{f"f{number}": f"late {number}\n" for number in range(0, 8, 2)}}
    late["g"] = "new\n"
    for name in ("f1", "f3"):
        del late[name]
        (project.path / name).unlink()
    for name, text in late.items():
        project.write(name, text)

    def rewind_until_killed(pipe: int, stop: int) -> None:
        put = WorkTree.put
        left = seed

        def put_or_die(self: WorkTree, *arguments: object) -> str | None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return put(self, *arguments)  # pyright: ignore[reportArgumentType]

        WorkTree.put = put_or_die  # type: ignore[method-assign]
        with holdfast.open(place) as hf:
            hf.git(project.path).rewind("start")

    assert os.WTERMSIG(Child(rewind_until_killed).end()) == signal.SIGKILL

    def files() -> dict[str, str]:
        return {name: text for name, text in project.files().items() if name[0] in "fg"}

    for name, text in files().items():
        assert text in (early.get(name), late.get(name))
    with holdfast.open(place) as hf:
        rewinds = hf.git(project.path)
        interrupted = rewinds.interrupted()
        assert interrupted is not None
        assert interrupted.rewinds == rewinds.find("start").id
        if seed % 2:
            rewinds.rewind("start")
            assert files() == early
        else:
            rewinds.undo()
            assert files() == late
        assert hf.conversation("c1").get("stage") == ("early" if seed % 2 else "late")
        assert rewinds.interrupted() is None


def test_a_killed_rewind_is_named_after_later_points_too(
    project: Project, hf: Store, rewinds: Rewinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project makes a point before each turn: it must not hide that a rewind was cut off."""
    rewinds.mark("start")
    project.write("a.txt", "two\n")

    def is_killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Preview, "_put_files", is_killed)
        with pytest.raises(KeyboardInterrupt):
            rewinds.rewind("start")
    rewinds.mark("later")
    before = rewinds.interrupted()
    assert before is not None
    assert before.name == "before rewind to start"
    rewinds.rewind("start")
    assert rewinds.interrupted() is None


def test_what_was_changed_since_a_killed_rewind_stays_when_it_is_undone(
    project: Project, hf: Store, rewinds: Rewinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that it wrote go back; those that somebody changed, made or removed since do not."""
    for name in ("b.txt", "c.txt", "d.txt"):
        project.write(name, "one\n")
    rewinds.mark("start")
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        project.write(name, "two\n")

    def is_killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Preview, "_say_done", is_killed)
        with pytest.raises(KeyboardInterrupt):
            rewinds.rewind("start")
    project.write("b.txt", "by hand\n")
    project.write("new.txt", "by hand\n")
    (project.path / "c.txt").unlink()
    shown = rewinds.preview_undo()
    assert [step.path for step in shown.files] == ["a.txt", "d.txt"]
    assert shown.skipped == dict.fromkeys(("b.txt", "c.txt", "new.txt"), "changed since")
    shown.apply()
    assert (project.read("a.txt"), project.read("b.txt")) == ("two\n", "by hand\n")


def test_a_killed_restoring_of_a_file_is_undone_alone(
    project: Project, rewinds: Rewinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a.txt", "two\n")
    project.write("b.txt", "two\n")

    def is_killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Preview, "_say_done", is_killed)
        with pytest.raises(KeyboardInterrupt):
            rewinds.preview_file(project.path / "a.txt").apply()
    assert project.read("a.txt") == "one\n"
    project.write("b.txt", "by hand\n")
    assert [step.path for step in rewinds.undo().files] == ["a.txt"]
    assert (project.read("a.txt"), project.read("b.txt")) == ("two\n", "by hand\n")


def test_a_rewind_that_was_refused_was_not_killed(
    project: Project, hf: Store, rewinds: Rewinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody changes the scope at the last moment: nothing is done, so nothing is undone."""
    scope = hf.workflow("w1")
    scope.set("a", 1)
    rewinds.mark("start", [scope])
    scope.set("a", 2)
    brings_back = Preview._bring_back

    def after_another(self: Preview, name: str) -> int:
        scope.set("a", 3)
        return brings_back(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(Preview, "_bring_back", after_another)
        with pytest.raises(ConflictError):
            rewinds.rewind("start")
    assert rewinds.interrupted() is None
    with pytest.raises(NotFoundError, match="no rewind to undo"):
        rewinds.undo()
    assert scope.get("a") == 3


def test_restoring_a_file_says_what_only_the_point_has(project: Project, rewinds: Rewinds) -> None:
    assert rewinds.preview_file(project.path / "a.txt").stays == []
    project.write("a.txt", "not committed\n")
    preview = rewinds.preview_file(project.path / "a.txt")
    assert preview.stays == ["changes of a.txt that no commit has: kept with the point before"]
    assert preview.apply().stays == preview.stays
    assert project.read("a.txt") == "one\n"


def test_a_view_stays_when_files_go_back(project: Project, hf: Store, rewinds: Rewinds) -> None:
    """It shows the log: an older text of it would be taken for somebody's edit."""
    scope = hf.workflow("w1")
    scope.tasks.add("one")
    with hf.views(project.path / "docs", [task_list(scope)]) as views:
        views.sync()
        rewinds.mark("start", [scope])
        scope.tasks.add("two")
        views.sync()
        done = rewinds.rewind("start", what="files")
        assert done.skipped == {"docs/TASKS.md": "a view: it is written from the log"}
        assert views.sync() == []
        assert [task.title for task in scope.tasks.list()] == ["one", "two"]
        rewinds.rewind("start")
        assert views.sync() == []
        assert "two" not in project.read("docs/TASKS.md")


def test_what_a_kill_left_beside_a_file_goes(project: Project, rewinds: Rewinds) -> None:
    rewinds.mark("start")
    project.write("a.txt", "two\n")
    known = project.write(f"src/{work_trees.LEFTOVER}abc", "one\n")
    unknown = project.write(f"{work_trees.LEFTOVER}def", "nobody else has this\n")
    done = rewinds.rewind("start")
    assert not known.exists()
    assert unknown.exists()
    assert list(done.skipped) == [unknown.name]
    assert Repository.find(project.path).head


@pytest.mark.parametrize("step", ["rewind.marked", "rewind.done"])
def test_refs_that_a_killed_process_left_are_removed(project: Project, step: str) -> None:
    """Killed after the ref and before the event that names it: nothing else would ever find it."""
    place = project.path / ".holdfast"
    with holdfast.open(place) as hf:
        hf.git(project.path).mark("start")
    project.write("a.txt", "two\n")

    def rewind_until_killed(pipe: int, stop: int) -> None:
        write = Rewinds._write

        def write_or_die(self: Rewinds, type: str, data: dict[str, Any]) -> Any:
            if type == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(self, type, data)

        Rewinds._write = write_or_die  # type: ignore[method-assign]
        with holdfast.open(place) as hf:
            hf.git(project.path).rewind("start")

    assert os.WTERMSIG(Child(rewind_until_killed).end()) == signal.SIGKILL
    repository = Repository.find(project.path)

    def unnamed(rewinds: Rewinds) -> set[str]:
        events = rewinds._events()
        named = {event.data["id"] for event in events if event.type == "rewind.marked"}
        named |= {f"{event.data['before']}-after" for event in events if "before" in event.data}
        return {ref.rpartition("/")[2] for ref in repository.refs()} - named

    with holdfast.open(place) as hf, holdfast.open(project.path / "other") as other:
        rewinds = hf.git(project.path)
        [left] = unnamed(rewinds)
        other.git(project.path).mark("of another store")
        rewinds.mark("too early: it may be in the middle of it")
        assert left in unnamed(rewinds)
        for note in (project.path / ".git/holdfast/marking").iterdir():
            os.utime(note, (1, 1))
        other.git(project.path).mark("of another store")
        assert left in unnamed(rewinds)
        rewinds.mark("later")
        mine = {one.id for one in other.git(project.path).list()}
        assert unnamed(rewinds) == mine
        assert not list((project.path / ".git/holdfast/marking").iterdir())

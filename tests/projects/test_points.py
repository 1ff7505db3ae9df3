"""Points before each turn, files that a turn changed, and the context of a turn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import holdfast
from holdfast import ConflictError, NotFoundError, Store, UsageError
from holdfast.agents import Answer, Command, Scripted
from holdfast.errors import ExpiredError, RunFailedError
from holdfast.git.rewinds import RewindPoint
from holdfast.projects import Project, handoff


def git(root: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=ann", "-c", "user.email=ann@example.org", *words],
        cwd=root,
        check=True,
        capture_output=True,
    )


@pytest.fixture
def repository(root: Path) -> Path:
    (root / ".gitignore").write_text(".holdfast/\n")
    (root / "notes.txt").write_text("one\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


WRITES = (
    "import pathlib, sys\n"
    "with open('notes.txt', 'a') as file: file.write('more\\n')\n"
    "pathlib.Path('new.txt').write_text('new')\n"
    "print('written')\n"
)


def test_a_turn_is_linked_to_its_files_and_can_be_taken_back(repository: Path):
    """RALPH-13: messages name the files they changed; a rewind brings files and state back."""
    with holdfast.open(str(repository / ".holdfast")) as hf:
        hf.runs.use_executor(Command([sys.executable, "-c", WRITES], cwd=repository))
        project = hf.project(repository)
        assert project.survey().git.value["branch"] == "main"
        with project.coordinate() as main:
            main.session = session = project.begin_session()
            assert main.talk("write it") == "written"
        [(message, first), (_, second)] = project.conversation(session).messages.file_changes()
        assert message.text == "written"
        assert (first.path, second.path, first.before is None) == ("new.txt", "notes.txt", True)
        [shown] = project.sessions()
        assert shown.branch == "main"
        outcome = project.do("more")
        assert outcome.files == ("notes.txt",)
        point = next(one for one in hf.git(repository).list() if one.name.endswith("turn 1"))
        assert point.commit
        with project.coordinate() as main:
            main.rewind(point)
        assert (repository / "notes.txt").read_text() == "one\nmore\n"
        assert [task.status for task in project.tasks.list()] == ["open"]
        assert (project.status().work, project.status().mode) == (None, "conversation")
        hf.git(repository).undo()
        assert (repository / "notes.txt").read_text() == "one\nmore\nmore\n"


def test_work_goes_on_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch):
    (repository / ".git/HEAD").write_text("nonsense\n")
    with holdfast.open(str(repository / ".holdfast")) as hf:
        hf.runs.use_executor(Command([sys.executable, "-c", "print('done')"], cwd=repository))
        assert hf.project(repository).do("it").status == "done"


class Listening:
    """An agent that remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def answer(self, call: Any, /) -> Answer:
        self.calls.append(call)
        return Answer("fine")

    def decide(self, question: Any, /) -> str:
        return question.options[0]

    def summarise(self, text: str, limit: int, /) -> str:
        return text[:limit]


def test_a_turn_is_told_goals_tasks_notes_and_what_was_said(hf: Store, project: Project):
    """RALPH-2, RALPH-46, RALPH-48: what the scope has on record, under the project's budget."""
    agent = Listening()
    hf.runs.use_executor(agent)
    project.scope.set(("goals", "g1"), {"title": "open the shop"})
    project.scope.memory.notes.put("key", "below the mat")
    with project.coordinate() as main:
        main.session = project.begin_session()
        main.tasks.add("paint the wall")
        main.talk("which colour?")
        main.talk("are you sure?")
        main.do("buy a brush")
    told = agent.calls[1].text
    assert "open the shop" in told
    assert "# Open tasks\n\n- paint the wall (t1)" in told
    assert "which colour?" in told
    done = agent.calls[2].text
    assert "below the mat" in done
    assert "open the shop" in done


def test_a_turn_is_told_of_the_directory_and_of_earlier_sessions(hf: Store, repository: Path):
    """RALPH-2, RALPH-6..9: git status, type, configuration, structure, and what was said before."""
    agent = Listening()
    hf.runs.use_executor(agent)
    (repository / "pyproject.toml").write_text("")
    (repository / "src").mkdir()
    (repository / "src" / "a.py").write_text("")
    (repository / "notes.txt").write_text("two\n")
    project = hf.project(repository)
    with project.coordinate() as main:
        main.session = project.begin_session()
        main.talk("paint the door")
        main.session = project.begin_session()
        main.talk("and the wall")
    told = agent.calls[1].text
    for line in (
        "written in: Python",
        "configured by: pyproject.toml",
        "git branch: main",
        "notes.txt",
        "src/",
        "not committed: notes.txt, pyproject.toml, src/a.py",
        "earlier session: paint the door; last: fine",
    ):
        assert line in told
    assert "RALPH_TASKS.md" not in told.partition("not committed:")[2].partition("\n")[0]
    assert "earlier session" not in agent.calls[0].text


def test_progress_is_kept_with_the_task(hf: Store, project: Project):
    with project.coordinate() as main:
        main.do("paint it")
    assert project.scope.get("progress").to_dict() == {
        "t1.1": {"title": "t1 paint it: ok: Task: paint it"}
    }


def test_a_handoff_gives_history_and_state_to_another_session(hf: Store, project: Project):
    """RALPH-43, RALPH-44, RALPH-45: the paper first; history and state when it is accepted."""
    project.scope.set(("goals", "g1"), {"title": "open the shop"})
    project.tasks.add("paint")
    project.tasks.block(project.tasks.add("buy").id, why="no money")
    with project.coordinate() as main:
        one = main.session = project.begin_session()
        project.conversation(one).set("colour", "green")
        two = project.begin_session()
        project.conversation(two).set("place", "here")
        main.talk("hello")
        project.conversation(two).say("first here")
        paper = main.handoff(two, reason="lunch", risks=["wet paint"])
        assert paper.goals == ("open the shop",)
        assert paper.tasks == ("t1 paint", "t2 buy")
        assert paper.risks == ("wet paint", "task t2 is blocked: no money")
        assert "Position: nothing is being worked on" in paper.text
        assert project.conversation(two).messages[-1].text == paper.text
        project.conversation(one).update({"colour": "blue", "size": 3})
        project.conversation(two).set("colour", "red")
        accepted = project.accept_handoff(two)
    texts = [message.text for message in project.conversation(two).messages]
    assert texts == ["hello", "ok: hello", "first here", paper.text]
    assert accepted.messages == 2
    assert project.conversation(two).get("size") == 3
    assert project.conversation(two).get("colour") == "red"
    assert [(one.key, one.mine, one.theirs) for one in accepted.conflicts] == [
        ("colour", "red", "blue")
    ]
    assert {shown.id: shown.linked for shown in project.sessions()} == {one: (two,), two: (one,)}
    with pytest.raises(NotFoundError):
        project.accept_handoff(two)


def test_a_handoff_expires_and_names_sessions(hf: Store, project: Project):
    one, two = project.begin_session(), project.begin_session()
    with pytest.raises(UsageError):
        project.hand_over(one, one, reason="x")
    with pytest.raises(NotFoundError):
        project.hand_over(one, "nobody", reason="x")
    project.hand_over(one, two, reason="x", lasts=1e-6)
    with pytest.raises(ExpiredError):
        project.accept_handoff(two)
    with pytest.raises(NotFoundError):
        project.accept_handoff(two)


def test_a_merge_takes_what_only_one_side_changed():
    base = {"a": 1, "b": 1, "c": 1, "title": "x"}
    mine = {"a": 1, "b": 2, "c": 1, "new": 1, "title": "y"}
    theirs = {"a": 2, "b": 3, "title": "z"}
    changes, conflicts = handoff.merge(base, mine, theirs)
    assert changes.keys() == {"a", "c"}
    assert changes["a"] == 2
    assert [(one.key, one.mine, one.theirs) for one in conflicts] == [("b", 2, 3)]


def test_a_commit_that_conflicts_is_not_half_made(hf: Store, project: Project):
    project.send("steer", "a")
    with project.coordinate() as main:
        [message] = list(main.inbox())
        with pytest.raises(ConflictError), hf.commit() as tx:
            tx.scope(main.scope).get("x")
            main.scope.set("x", 1)
            tx.scope(main.scope).set("x", 2)
            message.done(tx)
        assert [one.revision for one in main.inbox()] == [1]


class Writing:
    """An agent that writes the files that a task names, each with what it says: `a.txt=text`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def answer(self, call: Any, /) -> Answer:
        words = [word for word in call.prompt.split() if "=" in word]
        for word in words:
            name, _, text = word.partition("=")
            (self.root / name).write_text(f"{text}\n")
        return Answer("written")

    decide = Listening.decide
    summarise = Listening.summarise


@pytest.mark.parametrize("in_session", [True, False])
def test_a_persons_edit_after_work_stays_when_files_go_back(repository: Path, in_session: bool):
    """RALPH-13: work is linked to its files; what a person changed since is not the work's."""
    (repository / "theirs.txt").write_text("one\n")
    with holdfast.open(str(repository / ".holdfast")) as hf:
        hf.runs.use_executor(Writing(repository))
        project = hf.project(repository)
        with project.coordinate() as main:
            if in_session:
                main.session = project.begin_session()
            main.do("notes.txt=agent new.txt=agent old.txt=agent")
            point = next(one for one in hf.git(repository).list() if one.name.endswith("turn 1"))
            (repository / "new.txt").write_text("by hand\n")
            (repository / "theirs.txt").write_text("by hand\n")
            shown = project.preview_rewind(point, what="files")
            assert [(one.path, one.act) for one in shown.files] == [
                ("notes.txt", "write"),
                ("old.txt", "remove"),
            ]
            done = main.rewind(point, what="files")
            assert done.skipped.keys() >= {"new.txt", "theirs.txt"}
            assert (repository / "notes.txt").read_text() == "one\n"
            assert (repository / "new.txt").read_text() == "by hand\n"
            assert (repository / "theirs.txt").read_text() == "by hand\n"
            main.rewind(point, what="files", overwrite=True)
            assert not (repository / "new.txt").exists()
            assert (repository / "theirs.txt").read_text() == "one\n"


def by_hand(path: Path) -> None:
    with open(path, "a") as file:
        file.write("by hand\n")


def shown(project: Project, point: RewindPoint) -> tuple[list[str], set[str]]:
    """Returns the files that a rewind brings back, and those that it leaves."""
    preview = project.preview_rewind(point)
    return [step.path for step in preview.files], {
        path for path, reason in preview.skipped.items() if not reason.startswith("a view")
    }


def test_an_edit_before_or_between_the_works_own_stays(repository: Path):
    """What the work found must be what the point has, or what the work left."""
    with holdfast.open(str(repository / ".holdfast")) as hf:
        hf.runs.use_executor(Command([sys.executable, "-c", WRITES], cwd=repository))
        project = hf.project(repository)
        early = project.checkpoint("early")
        by_hand(repository / "notes.txt")
        middle = project.checkpoint("middle")
        project.do("write")
        assert shown(project, early) == (["new.txt"], {"notes.txt"})
        assert shown(project, middle) == (["new.txt", "notes.txt"], set())
        late = project.checkpoint("late")
        by_hand(repository / "notes.txt")
        project.do("write")
        assert shown(project, middle) == (["new.txt"], {"notes.txt"})
        with project.coordinate() as main:
            main.rewind(late, what="files", overwrite=True)
            # The file holds again what the work left, and not what a person did.
            assert shown(project, middle) == (["new.txt", "notes.txt"], set())
            main.rewind(middle)
        assert (repository / "notes.txt").read_text() == "one\nby hand\n"


def test_a_file_that_a_person_deleted_stays_away(repository: Path):
    with holdfast.open(str(repository / ".holdfast")) as hf:
        hf.runs.use_executor(Command([sys.executable, "-c", WRITES], cwd=repository))
        project = hf.project(repository)
        point = project.checkpoint("early")
        project.do("write")
        (repository / "notes.txt").unlink()
        assert shown(project, point) == (["new.txt"], {"notes.txt"})


def test_work_of_every_session_goes_back_and_nothing_else(repository: Path):
    """The point may be older than the session, and the conversation gone back or compacted."""
    with holdfast.open(str(repository / ".holdfast")) as hf:
        hf.runs.use_executor(Writing(repository))
        project = hf.project(repository)
        point = project.checkpoint("early")
        project.do("a.txt=1")
        with project.coordinate() as main:
            main.session = one = project.begin_session()
            main.talk("b.txt=1")
            main.session = project.begin_session()
            main.talk("c.txt=1")
        by_hand(repository / "theirs.txt")
        by_hand(repository / "c.txt")
        for act in ("nothing", "compact", "rewind"):
            if act == "compact":
                project.conversation(one).messages.compact("said", keep_last=0)
            elif act == "rewind":
                with project.coordinate() as main:
                    main.rewind(point, what="conversation")
            assert shown(project, point) == (["a.txt", "b.txt"], {"c.txt", "theirs.txt"}), act


@pytest.mark.parametrize("talks", [False, True])
def test_a_turn_that_fails_notes_the_files_that_it_changed(repository: Path, talks: bool):
    with holdfast.open(str(repository / ".holdfast")) as hf:
        project = hf.project(repository)
        point = project.checkpoint("early")
        hf.runs.use_executor(Command([sys.executable, "-c", WRITES], cwd=repository))
        project.do("write")
        code = WRITES.replace("new.txt", "half.txt") + "raise SystemExit(3)\n"
        hf.runs.use_executor(Command([sys.executable, "-c", code], cwd=repository))
        with project.coordinate() as main:
            main.session = session = project.begin_session()
            if talks:
                with pytest.raises(RunFailedError):
                    main.talk("fail")
            else:
                assert main.do("fail").status == "failed"
        said = project.conversation(session).messages[-1]
        assert said.text.startswith("The turn failed: ")
        assert [change.path for change in said.files] == ["half.txt", "notes.txt"]
        assert shown(project, point) == (["half.txt", "new.txt", "notes.txt"], set())


def test_the_five_files_stay_when_files_go_back(repository: Path):
    """They show the log, and an older text of one is nobody's edit: none is set aside."""
    with holdfast.open(str(repository / ".holdfast")) as hf:
        hf.runs.use_executor(Writing(repository))
        project = hf.project(repository)
        with project.coordinate() as main:
            main.tasks.add("one")
            main.sync()
            git(repository, "add", "RALPH_TASKS.md")
            git(repository, "commit", "-q", "-m", "tasks")
            point = project.checkpoint("early")
            main.tasks.add("two")
            main.sync()
            done = main.rewind(point, what="files")
            assert "RALPH_TASKS.md" in done.skipped
            assert "two" in (repository / "RALPH_TASKS.md").read_text()
            main.rewind(point)
            assert "two" not in (repository / "RALPH_TASKS.md").read_text()
            hf.git(repository).undo()
            main.sync()
            assert "two" in (repository / "RALPH_TASKS.md").read_text()
        assert [path.name for path in repository.glob("*.rejected-*")] == []
        assert [task.title for task in project.tasks.list()] == ["one", "two"]


def test_a_preview_that_paused_nothing_is_applied_when_the_work_has_paused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
):
    class Slow(Writing):
        def answer(self, call: Any, /) -> Answer:
            asked.set()
            may_end.wait()
            return super().answer(call)

    asked, may_end = Event(), Event()
    with holdfast.open(str(repository / ".holdfast")) as hf:
        hf.runs.use_executor(Slow(repository))
        project = hf.project(repository)
        with project.coordinate() as main:
            point = project.checkpoint("start")
            (repository / "notes.txt").write_text("by hand\n")
            main.spawn(main.tasks.add("late.txt=agent"))
            asked.wait()
            awaits = main._await_pass

            def ends_when_it_is_awaited(run: str) -> None:
                may_end.set()
                awaits(run)

            monkeypatch.setattr(main, "_await_pass", ends_when_it_is_awaited)
            with pytest.raises(ConflictError, match="look at a new preview"):
                main.rewind(project.preview_rewind(point))
            assert main._at_work() == []
            main.rewind(project.preview_rewind(point, what="files"))
            assert (repository / "notes.txt").read_text() == "one\n"


def test_work_is_told_in_its_session_with_task_run_and_files(hf: Store, repository: Path):
    """RALPH-11, RALPH-13, RALPH-14: what is asked and answered, turn by turn."""
    script = {"sessions": [{"match": "", "answer": ["half\nstatus: continue", "whole"]}]}
    hf.runs.use_executor(Scripted(script))
    project = hf.project(repository)
    with project.coordinate() as main:
        main.session = session = project.begin_session()
        main.tasks.add("paint it")
        assert [one.status for one in main.go_on()] == ["done"]
        main.session = None
        child = main.spawn(main.tasks.add("sweep it"))
        child.result()
    said = project.conversation(session).messages
    assert [(one.role, one.text) for one in said] == [
        ("user", "Task: paint it"),
        ("assistant", "half\nstatus: continue"),
        ("assistant", "whole"),
    ]
    assert {(one.metadata or {})["task"] for one in said} == {"t1"}
    assert "run:shop.t1.1" in said[-1].links
    # Without a session it is told in the messages of the project: none is made for it.
    assert next(iter(project.scope.messages)).text == "Task: sweep it"
    assert [one.id for one in project.sessions()] == [session]
    assert hf.search.dangling_links() == []


def test_work_that_was_left_goes_on_in_the_session_it_began_in(hf: Store, repository: Path):
    project = hf.project(repository)
    with project.coordinate() as main:
        main.session = first = project.begin_session()
        task = main.tasks.add("paint it")
        main._assign(task, {"task": "t1", "run": "shop.t1.1", "session": first}, begins=True)
    hf.runs.use_executor(Listening())
    with project.coordinate() as main:
        main.session = second = project.begin_session()
        assert [one.status for one in main.resume()] == ["done"]
    assert [one.text for one in project.conversation(first).messages] == ["Task: paint it", "fine"]
    assert list(project.conversation(second).messages) == []


def test_a_turn_that_changes_more_files_than_a_message_names_is_taken_back_whole(
    repository: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("holdfast.projects.tree.CHANGES_MAX", 2)
    with holdfast.open(str(repository / ".holdfast")) as hf:
        hf.runs.use_executor(Writing(repository))
        project = hf.project(repository)
        with project.coordinate() as main:
            main.do("a.txt=1 b.txt=2 c.txt=3 d.txt=4")
            assert project.scope.messages[-1].metadata == {"task": "t1", "files_left_out": 2}
            point = next(one for one in hf.git(repository).list() if one.name.endswith("turn 1"))
            main.rewind(point, what="files")
        assert sorted(path.name for path in repository.glob("?.txt")) == []

"""Sessions of a project: conversations of their own, and who is in them."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast
from holdfast import LeaseLostError, NotFoundError, Store
from holdfast.projects import Project
from tests.crash.children import Child


def test_a_session_has_its_conversation_and_goes_on(project: Project):
    """RALPH-2, RALPH-11: what was said is kept, with who said it, and given to the next turn."""
    with project.coordinate() as main:
        main.session = session = project.begin_session(title="colours")
        with project.enter_session(session):
            assert main.talk("hello") == "ok: hello"
            assert [one.status for one in project.sessions()] == ["active"]
        again = project.begin_session(session)
        assert again == project.scope.get("session") == session
        assert main.talk("more") == "ok: more"
    said = [(one.role, one.text) for one in project.conversation(session).messages]
    assert said == [
        ("user", "hello"), ("assistant", "ok: hello"), ("user", "more"), ("assistant", "ok: more"),
    ]  # fmt: skip
    [shown] = project.sessions()
    assert (shown.title, shown.status, shown.first, shown.last) == (
        "colours", "ended", "hello", "ok: more",
    )  # fmt: skip
    with pytest.raises(NotFoundError):
        project.begin_session("nowhere")


def test_sessions_are_apart_and_can_tell_each_other(project: Project):
    """RALPH-14, RALPH-40, RALPH-42: each has its own messages; one to another links both."""
    one, two = project.begin_session(), project.begin_session()
    project.conversation(one).say("mine")
    project.tell(two, "look at this", sender=one)
    project.tell(two, "and this")
    assert [message.text for message in project.conversation(one).messages] == ["mine"]
    told = project.conversation(two).messages
    assert [(message.text, (message.metadata or {})["from"]) for message in told] == [
        ("look at this", one), ("and this", "ada"),
    ]  # fmt: skip
    assert {shown.id: shown.linked for shown in project.sessions()} == {one: (two,), two: (one,)}
    with pytest.raises(NotFoundError):
        project.tell("nobody", "hi")


def test_a_session_whose_process_died_is_listed_first(root: Path, tmp_path: Path):
    place = str(tmp_path / "s")

    def dies(pipe: int, stop: int) -> None:
        with holdfast.open(place) as hf:
            project = hf.project(root)
            session = project.begin_session(title="died")
            with project.enter_session(session):
                os.kill(os.getpid(), signal.SIGKILL)

    child = Child(dies)
    child.end()
    assert child.was_killed
    with holdfast.open(place) as hf:
        project = hf.project(root)
        ended = project.begin_session(title="newer")
        with project.enter_session(ended):
            pass
        assert [(one.title, one.status) for one in project.sessions()] == [
            ("died", "crashed"), ("newer", "ended"),
        ]  # fmt: skip


def test_two_are_not_in_one_session(root: Path, tmp_path: Path):
    place = str(tmp_path / "s")
    with holdfast.open(place) as hf, holdfast.open(place) as other:
        session = hf.project(root).begin_session()
        with (
            hf.project(root).enter_session(session),
            pytest.raises(LeaseLostError),
            other.project(root).enter_session(session),
        ):
            pass


def test_a_summary_says_what_was_done_and_what_is_next(hf: Store, project: Project):
    """RALPH-3: what is done, open and next."""
    since = datetime.now(UTC)
    with project.coordinate() as main:
        main.do("one")
        main.tasks.add("two")
        main.tasks.add("three", depends_on=["t2"])
    found = project.summary("s", since)
    assert [task.id for task in found.done] == ["t1"]
    assert [task.id for task in found.open] == ["t2", "t3"]
    assert [task.id for task in found.next] == ["t2"]

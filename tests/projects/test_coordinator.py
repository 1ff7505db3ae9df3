"""One coordinator works in a project: its lease, its tasks as runs, its children, its inbox."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ConflictError, LeaseLostError, Store, UsageError
from holdfast.agents import Command, Scripted
from holdfast.projects import Project
from tests.processes import await_end
from tests.projects.conftest import SCRIPT

PATIENCE_S = 60.0


def await_that(check: Any) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)


def test_work_on_a_task_is_a_run_and_a_turn_a_block_of_it(hf: Store, project: Project):
    """RALPH-24, RALPH-28: a task is worked on turn by turn, and says what came of it."""
    with project.coordinate() as main:
        done = main.do("write it")
        long = main.do("a long one")
        stuck = main.do("stuck here")
        failed = main.do("it fails")
    assert (done.status, done.answer) == ("done", "ok: Task: write it")
    assert (long.status, long.answer) == ("done", "two")
    assert (stuck.status, stuck.reason) == ("blocked", "no key")
    assert failed.status == "failed"
    assert "no agent" in failed.reason
    assert {path.partition("/")[0] for path in hf.runs.get(long.run).journal.entries} >= {
        "loop.turn[0]",
        "loop.turn[1]",
    }
    tasks = {task.id: task for task in project.tasks.list()}
    assert [tasks[id].status for id in ("t1", "t2", "t3", "t4")] == [
        "completed", "completed", "blocked", "blocked",
    ]  # fmt: skip
    assert tasks["t3"].why == "no key"
    status = project.status()
    assert (status.mode, status.work, status.coordinator) == ("conversation", None, None)


def test_a_task_that_is_never_done_is_blocked_after_its_turns(root: Path):
    (root / "holdfast.toml").write_text("[project.limits]\nturns = 3\n")
    with holdfast.open("memory:") as hf:
        hf.runs.use_executor(Scripted(SCRIPT))
        with hf.project(root).coordinate() as main:
            found = main.do("endless")
    assert (found.status, found.reason) == ("blocked", "not done after 3 turns")


def test_a_blocked_task_is_worked_on_again_as_another_run(hf: Store, project: Project):
    with project.coordinate() as main:
        first = main.do("stuck here")
        hf.runs.use_executor(Scripted({}))
        second = main.work(first.task)
        assert second.status == "done"
        assert first.run != second.run
        with pytest.raises(UsageError, match="reopen"):
            main.work(first.task)


def test_a_second_coordinator_is_told_who_the_first_is(project: Project, tmp_path: Path):
    """RALPH-23: one coordinator; the second is refused by host, process and age."""
    place = str(tmp_path / "own")
    with holdfast.open(place) as one, holdfast.open(place) as two:
        first, second = one.project(project.root), two.project(project.root)
        with first.coordinate() as main:
            with pytest.raises(LeaseLostError) as refused, second.coordinate():
                pass
            assert f"process {os.getpid()} on " in refused.value.message
            assert "for 0 s" in refused.value.message
            assert "--take-over" in (refused.value.hint or "")
            with second.coordinate(take_over=True) as other:
                other.tasks.add("mine")
                with pytest.raises(LeaseLostError), one.commit(lease=main.lease) as tx:
                    tx.scope(main.scope).tasks.add("too late")
        with first.coordinate() as main:
            assert [task.title for task in main.tasks.list()] == ["mine"]


def test_messages_are_taken_in_the_commit_that_uses_them(hf: Store, project: Project):
    """RALPH-32: most urgent first; a commit that is not made takes nothing."""
    for kind in ("note", "follow-up", "steer", "interrupt", "stop"):
        project.send(kind, kind)
    with project.coordinate() as main:
        seen = [message.kind for message in main.inbox()]
        assert seen == ["stop", "interrupt", "steer", "follow-up", "note"]
        message = next(main.inbox())
        with pytest.raises(ZeroDivisionError), hf.commit() as tx:
            tx.scope(main.scope).set("stopped", True)
            message.done(tx)
            raise ZeroDivisionError
        assert next(main.inbox()).kind == "stop"
        with hf.commit() as tx:
            tx.scope(main.scope).set("stopped", True)
            message.done(tx)
        assert next(main.inbox()).kind == "interrupt"
        with pytest.raises(ConflictError), hf.commit() as tx:
            tx.scope(main.scope).set("stopped", "twice")
            message.done(tx)
        assert main.scope.get("stopped") is True
    with pytest.raises(UsageError, match="only the coordinator"), hf.commit() as tx:
        project.waiting()[0].done(tx)


def test_a_message_sent_twice_with_one_id_is_one(project: Project):
    assert project.send("note", "a", id="x") == project.send("note", "a", id="x")
    with pytest.raises(UsageError):
        project.send("shout", "a")
    with pytest.raises(UsageError):
        project.send("steer", "")


def test_what_is_sent_while_it_works_is_heeded(hf: Store, project: Project):
    """RALPH-35: notes are kept, a steer is in the next turn, a follow-up is the next task."""
    project.send("note", "the key is below the mat")
    project.send("steer", "in green")
    project.send("follow-up", "then tea", priority="high")
    with project.coordinate() as main:
        main.tasks.add("paint it")
        results = list(main.go_on())
        notes = [item.value for item in main.memory.notes.list()]
    assert [result.answer for result in results] == [
        "ok: Task: then tea\n\nada says: in green",
        "ok: Task: paint it",
    ]
    assert notes == ["the key is below the mat"]
    assert project.waiting() == []


@pytest.mark.parametrize("children", [False, True])
def test_a_stop_pauses_work_that_goes_on_later(root: Path, tmp_path: Path, children: bool):
    """RALPH-30, RALPH-31, RALPH-33, RALPH-34: a command at work is ended; the same run goes on."""
    marker = tmp_path / "pid"
    program = (
        "import os, sys, time, pathlib\n"
        f"path = pathlib.Path({str(marker)!r})\n"
        "if not path.exists():\n"
        "    path.write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "print('done at last')\n"
    )
    with holdfast.open(str(tmp_path / "s")) as hf, holdfast.open(str(tmp_path / "s")) as other:
        hf.runs.use_executor(Command([sys.executable, "-c", program]))
        project, seen = hf.project(root), other.project(root)
        with project.coordinate() as main:
            task = main.tasks.add("sleep")
            sent: list[int] = []

            def person() -> None:
                await_that(lambda: marker.exists() and marker.read_text())
                sent.append(seen.send("stop", "hold on"))

            thread = threading.Thread(target=person)
            thread.start()
            found = main.spawn(task, "ann").result() if children else main.work(task)
            thread.join()
            assert found.status == "stopped"
            assert project.status().mode == "conversation"
            assert seen.await_taken(sent[0], timeout_s=0)
            await_end([int(marker.read_text())])
            assert main.unfinished() == [found.run]
            again = main.resume()
            if children:
                again = [child.result() for child in main.children()]
            assert [(one.run, one.status) for one in again] in ([(found.run, "done")], [])
            await_that(lambda: main.tasks.get(task.id).status == "completed")
            assert hf.runs.get(found.run).result()["answer"] == "done at last"


def test_an_interrupt_is_answered_and_the_work_goes_on(root: Path, tmp_path: Path):
    """RALPH-32: it goes before the work, which is the same run afterwards."""
    marker = tmp_path / "begun"
    program = (
        "import sys, time, pathlib\n"
        f"path = pathlib.Path({str(marker)!r})\n"
        "asked = sys.stdin.read()\n"
        "if 'Task:' not in asked: print('yes, in a minute')\n"
        "elif path.exists(): print('finished')\n"
        "else:\n"
        "    path.write_text('x')\n"
        "    time.sleep(600)\n"
    )
    with holdfast.open(str(tmp_path / "s")) as hf, holdfast.open(str(tmp_path / "s")) as other:
        hf.runs.use_executor(Command([sys.executable, "-c", program]))
        answers: list[str] = []

        def person() -> None:
            await_that(marker.exists)
            answers.append(other.project(root).ask("are you there?", timeout_s=PATIENCE_S))

        thread = threading.Thread(target=person)
        thread.start()
        with hf.project(root).coordinate() as main:
            found = main.do("sleep")
        thread.join()
    assert answers == ["yes, in a minute"]
    assert (found.status, found.answer) == ("done", "finished")


def test_children_are_limited_and_end_with_their_tasks(root: Path):
    """RALPH-24: limits of agents, depth and children are named."""
    (root / "holdfast.toml").write_text("[project.limits]\nagents=4\ndepth=2\nchildren=2\n")
    gate = threading.Event()

    class Waiting(Scripted):
        def answer(self, call: Any, /) -> Any:
            assert gate.wait(PATIENCE_S)
            return super().answer(call)

    with holdfast.open("memory:") as hf:
        hf.runs.use_executor(Waiting({}))
        with hf.project(root).coordinate() as main:
            ids = [main.tasks.add(f"part {number}").id for number in range(5)]
            first = main.spawn(ids[0], "ann")
            second = main.spawn(ids[1], "bob", parent=first)
            with pytest.raises(UsageError, match=r"project\.limits\.depth"):
                main.spawn(ids[2], parent=second)
            third = main.spawn(ids[2])
            with pytest.raises(UsageError, match=r"project\.limits\.agents"):
                main.spawn(ids[3])
            assert {child.task for child in main.children()} == {"t1", "t2", "t3"}
            assert main.tasks.get("t1").owner == "ann"
            gate.set()
            assert [one.result().status for one in (first, second, third)] == ["done"] * 3
            assert main.children() == []
            assert main.project.status().children == {}


def test_a_task_asked_for_beside_a_coordinator_is_done_by_it(root: Path, tmp_path: Path):
    """RALPH-4, RALPH-5: a single task leaves no session; beside a coordinator it is a follow-up."""
    with holdfast.open(str(tmp_path / "s")) as hf, holdfast.open(str(tmp_path / "s")) as other:
        hf.runs.use_executor(Scripted({}))
        alone = hf.project(root).do("first")
        assert (alone.status, alone.answer, alone.tasks) == ("done", "ok: Task: first", ("t1",))
        assert alone.usage == {"input": 11, "output": 15}
        found: list[Any] = []
        with hf.project(root).coordinate() as main:
            asking = threading.Thread(
                target=lambda: found.append(other.project(root).do("second", timeout_s=PATIENCE_S))
            )
            asking.start()
            await_that(lambda: main.waiting())
            assert [one.status for one in main.attend()] == ["done"]
            asking.join()
        assert (found[0].status, found[0].answer) == ("done", "ok: Task: second")
        assert hf.project(root).sessions() == []


def test_a_task_asked_for_is_done_here_if_the_coordinator_leaves(root: Path, tmp_path: Path):
    with holdfast.open(str(tmp_path / "s")) as hf, holdfast.open(str(tmp_path / "s")) as other:
        other.runs.use_executor(Scripted({}))
        found: list[Any] = []
        with hf.project(root).coordinate() as main:
            asking = threading.Thread(target=lambda: found.append(other.project(root).do("it")))
            asking.start()
            await_that(lambda: main.waiting())
        asking.join()
        assert found[0].status == "done"


def test_a_run_of_a_project_is_left_alone_without_a_coordinator(hf: Store, project: Project):
    with project.coordinate() as main:
        task = main.tasks.add("a")
        main._assign(task, {"task": "t1", "run": "shop.t1.1"})
        asked = {"project": "shop", "task": "t1", "text": "a", "turns": 3}
        hf.runs.start(holdfast.projects.work.work, asked, id="shop.t1.1", queue="later")
    run = hf.runs.resume("shop.t1.1")
    with pytest.raises(UsageError, match="nobody coordinates"):
        run.result()
    with project.coordinate() as main:
        assert [one.status for one in main.resume()] == ["done"]


def test_an_agent_that_cannot_be_used_blocks_its_task(root: Path):
    """A command that is not there, hangs or prints too much is told, and nothing else is lost."""
    prints = "import sys\nfor _ in range(40): sys.stdout.write('x' * (1 << 16))\nprint('end')\n"
    with holdfast.open("memory:") as hf:
        project = hf.project(root)
        with project.coordinate() as main:
            for argv, says in (
                (["/no/such/agent"], "No such file"),
                ([sys.executable, "-c", "import time; time.sleep(600)"], "longer than 0.2 s"),
                ([sys.executable, "-c", "import sys; sys.exit(3)"], "ended with 3"),
            ):
                hf.runs.use_executor(Command(argv, timeout=0.2 if "600" in argv[-1] else None))
                found = main.do(f"ask {says}")
                assert (found.status, says in found.reason) == ("failed", True), found
                assert main.tasks.get(found.task).status == "blocked"
            hf.runs.use_executor(Command([sys.executable, "-c", prints]))
            found = main.do("print much")
            assert found.status == "done"
            assert len(found.answer) <= 1 << 20


def test_a_turn_costs_at_most_five_commits(root: Path, tmp_path: Path):
    """Of the log: one more turn of a task is at most five commits more."""
    counts: list[int] = []
    for turns in (1, 2, 3):
        answers = ["more\nstatus: continue"] * (turns - 1) + ["done"]
        with holdfast.open(str(tmp_path / f"s{turns}")) as hf:
            hf.runs.use_executor(Scripted({"sessions": [{"match": "", "answer": answers}]}))
            with hf.project(root).coordinate() as main:
                task = main.tasks.add("count it")
                seen: list[Any] = []
                over = hf.observe(seen.append)
                assert main.work(task).status == "done"
                over()
                counts.append(sum(one.kind == "commit" for one in seen))
        (root / "RALPH_TASKS.md").unlink()
        (root / "RALPH_PROGRESS.md").unlink()
    assert counts[1] - counts[0] <= 5
    assert counts[2] - counts[1] <= 5


def test_a_task_is_assigned_though_others_commit_at_the_same_moment(root: Path, tmp_path: Path):
    """A child or another process changes the tasks while the coordinator claims one."""
    place = str(tmp_path / "s")
    with holdfast.open(place) as hf, holdfast.open(place) as other:
        hf.runs.use_executor(Scripted({}))
        there = other.project(root)
        with hf.project(root).coordinate() as main:
            task = main.tasks.add("mine")
            is_mine, late = main._is_mine, ["theirs"]

            def racing(known: Any) -> bool:
                if late:
                    there.tasks.add(late.pop())
                return is_mine(known)

            main._is_mine = racing  # type: ignore[method-assign]
            assert main.work(task).status == "done"
            assert [one.title for one in main.tasks.list(status="open")] == ["theirs"]

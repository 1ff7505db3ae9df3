"""The outcome of a requested task, and of a session: for scripts and for people.

If the project has a coordinator, a requested task is sent there as a follow-up, and its answer is
awaited. If that coordinator leaves before the task is done, it is done here.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.backends.deadline import monotonic
from holdfast.core.event import to_datetime
from holdfast.core.kernel import kernel_of
from holdfast.errors import (
    LeaseLostError,
    RunCancelledError,
    RunFailedError,
    StillRunningError,
    UnavailableError,
)
from holdfast.projects.coordinator import LOOK_S, Result
from holdfast.projects.inbox import is_taken
from holdfast.projects.tree import Files, changed_files, look
from holdfast.record.task_events import Task
from holdfast.runs.engine import Engine

if TYPE_CHECKING:
    from holdfast.projects.coordinator import Coordinator
    from holdfast.projects.project import Project

NEXT_MAX = 5
ANSWERS_LOOKED_AT = 20


class Outcome(Struct, frozen=True):
    """The outcome of a task, as `holdfast project do` prints it."""

    task: str
    status: str
    answer: str
    files: tuple[str, ...]
    decisions: tuple[str, ...]
    tasks: tuple[str, ...]
    usage: dict[str, int]


class Summary(Struct, frozen=True):
    """What a session leaves: the tasks closed in it, the open ones, and the next ones."""

    session: str
    done: tuple[Task, ...]
    open: tuple[Task, ...]
    files: tuple[str, ...]
    next: tuple[Task, ...]


def do(
    project: Project, text: str, *, priority: int | str, take_over: bool, timeout_s: float | None
) -> Outcome:
    """Does a task, here or through the project's coordinator, and returns its outcome."""
    began, before = to_datetime(kernel_of(project.store).clock.now_us()), look(project)
    if not take_over and project.coordinator() is not None:
        result = _asked(project, text, priority, timeout_s)
        return _outcome(project, result, began, before)
    try:
        with project.coordinate(take_over=take_over) as main:
            result = main.do(text, priority=priority)
            if result.status != "stopped":
                _do_follow_ups(main)
    except LeaseLostError:
        # Another coordinator began meanwhile: the task goes there.
        if project.coordinator() is None:
            raise
        result = _asked(project, text, priority, timeout_s)
    return _outcome(project, result, began, before)


def _do_follow_ups(main: Coordinator) -> None:
    """Does the follow-ups that arrived meanwhile: their senders wait for them."""
    while added := main.take_follow_ups():
        for task in added:
            if main.work(task).status == "stopped":
                return


def _asked(project: Project, text: str, priority: int | str, timeout_s: float | None) -> Result:
    """Sends a task to the coordinator, and waits for its result."""
    revision = project.send("follow-up", text, priority=priority)
    ends = None if timeout_s is None else monotonic() + timeout_s
    while True:
        position = project.store.position
        task = _task_of(project, revision)
        result = None if task is None else _result_of(project, task)
        if result is not None:
            return result
        if project.coordinator() is None:
            return _done_here(project, revision)
        if ends is not None and monotonic() >= ends:
            raise StillRunningError(f"{project.id}.{task.id}" if task else project.id, "waiting")
        kernel_of(project.store).log.wait_after(position, LOOK_S * 5)


def _done_here(project: Project, revision: int) -> Result:
    """Coordinates in place of a coordinator that left before the task was done."""
    with project.coordinate(wait_s=LOOK_S * 10) as main:
        main.resume()
        main.take_follow_ups()
        task = _task_of(project, revision)
        if task is None:
            raise UnavailableError(
                f'message {revision} to project "{project.id}" was taken, and became no task',
                hint="look: holdfast project tasks",
            )
        if not task.is_closed:
            result = main.work(task)
            _do_follow_ups(main)
            return result
        result = _result_of(project, task)
    return result or Result(task.id, "done", task.outcome or "")


def ask(project: Project, text: str, *, timeout_s: float | None) -> str:
    """Interrupts the coordinator with a message, and returns the agent's answer."""
    revision = project.send("interrupt", text)
    ends = None if timeout_s is None else monotonic() + timeout_s
    while True:
        position = project.store.position
        for session in {project.inbox_session, project.scope.get("session", project.inbox_session)}:
            for said in project.conversation(session).messages.last(ANSWERS_LOOKED_AT):
                if (said.metadata or {}).get("answers") == revision:
                    return said.text
        if project.coordinator() is None:
            raise UnavailableError(
                f'nobody coordinates project "{project.id}" any more: message {revision} waits',
                hint="holdfast project chat",
            )
        if ends is not None and monotonic() >= ends:
            raise StillRunningError(project.id, "waiting")
        kernel_of(project.store).log.wait_after(position, LOOK_S * 5)


def _task_of(project: Project, revision: int) -> Task | None:
    """Returns the task that a follow-up became; None if it was not taken yet."""
    if not is_taken(project._box, revision):
        return None
    found = project.tasks.list(limit=None)
    return next((task for task in found if task.key == f"inbox-{revision}"), None)


def _result_of(project: Project, task: Task) -> Result | None:
    """Returns the result of a task, from its newest run; None while it is worked on."""
    engine, number = kernel_of(project.store).part(Engine), 1
    if not task.is_closed and task.status != "blocked":
        return None
    while engine.free_after(f"{project.id}.{task.id}.{number + 1}") is None:
        number += 1
    run = f"{project.id}.{task.id}.{number}"
    if engine.free_after(run) is not None:  # it was closed or blocked before any run
        return Result(task.id, "done" if task.is_closed else "blocked", task.outcome or "")
    if engine.ended(run) is None:
        return None
    try:
        found = project.store.runs.get(run).result()
    except (RunFailedError, RunCancelledError) as error:
        return Result(task.id, "failed", reason=str(error), run=run)
    return Result(task.id, found["status"], found["answer"], found["reason"], run, found["usage"])


def _outcome(project: Project, result: Result, began: datetime, before: Files) -> Outcome:
    tasks = [one.id for one in project.tasks.list(limit=None) if one.updated_at >= began]
    decided = project.store.decisions.list(scope=project.scope)
    return Outcome(
        result.task,
        result.status,
        result.answer or result.reason,
        changed_files(project, before),
        tuple(one.id for one in decided if one.updated_at >= began),
        tuple(tasks),
        result.usage,
    )


def summary(project: Project, session: str, since: datetime) -> Summary:
    """Returns what a session leaves since a time; the files are those that its messages link."""
    said = project.conversation(session).messages.file_changes()
    tasks = list(project.tasks.list(limit=None))
    return Summary(
        session,
        tuple(one for one in tasks if one.is_closed and one.updated_at >= since),
        tuple(one for one in tasks if not one.is_closed),
        tuple(sorted({change.path for message, change in said if message.time >= since})),
        tuple(project.ready(NEXT_MAX)),
    )

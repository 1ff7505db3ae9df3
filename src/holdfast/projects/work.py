"""Work on a task as a run with a block for each turn: after a crash the run resumes where it was.

    work   turns until the agent says that the task is done, or that it cannot go on
    talk   one exchange of a conversation

Every step that writes to the project makes one joint commit with the step's own idempotency key,
fenced by the coordinator's lease. So a commit is not made twice if a crash came before the journal
recorded it, and a coordinator that was replaced writes nothing. A run that finds no coordinator in
its process is left; the next coordinator resumes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert

from holdfast.agents.protocol import Answer
from holdfast.backends.deadline import monotonic
from holdfast.context.gather import GOALS, listed
from holdfast.context.parts import Strategy
from holdfast.core.inbox import stream_of
from holdfast.core.kernel import kernel_of
from holdfast.core.limits import disk_space
from holdfast.errors import LeaseLostError, StepError, UnavailableError, UsageError
from holdfast.git.rewinds import FILES_LEFT_OUT
from holdfast.joint_commit import JointCommit
from holdfast.projects import trees
from holdfast.projects.survey import survey_lines
from holdfast.projects.tree import changed_paths, changes_since, mark
from holdfast.record.messages import BYTES_PER_TOKEN, shown_lines
from holdfast.record.task_events import Task
from holdfast.runs import values
from holdfast.runs.context import execution_of
from holdfast.runs.define import run, step
from holdfast.runs.operation import Control
from holdfast.scope import Scope

if TYPE_CHECKING:
    from holdfast.projects.coordinator import Coordinator
    from holdfast.projects.project import Project

SYSTEM = (
    "You work on one task of a project. Do it, then answer what you did. If more turns are needed, "
    "end your answer with the line `status: continue`. If you cannot go on without a person, end "
    "it with `status: blocked`, a colon and the reason."
)
OUTCOME_CHARACTERS_MAX = 200
LAST_CHARACTERS_MAX = 200
CHANGED_TOLD = 20
SESSIONS_TOLD = 3
KEPT_MESSAGES = 20
KEPT_MESSAGES_MIN = 2
"""When a conversation is compacted, between so many and `KEPT_MESSAGES` of the newest stay."""
SUMMARY_CHARACTERS_MAX = 8_000
ROOM_BYTES_MIN = 1 << 20
"""With less free space than this, an error with a file is attributed to the full disk."""
SEARCHED: tuple[Strategy, ...] = ("window", "summary", "retrieval")
UNSEARCHED: tuple[Strategy, ...] = ("window", "summary")
_STATUS = re.compile(r"^\s*status:\s*(done|continue|blocked)\b[:\s]*(.*)$", re.I)


class Assignment(Struct, frozen=True, omit_defaults=True):
    """The task that a run of the project is started for."""

    project: str
    task: str
    text: str
    turns: int
    session: str | None = None
    agent: str | None = None
    epoch: int = 0
    """The epoch of the coordinator that gave it."""
    depth: int = 0
    """0 for the coordinator's own work, 1 for its children, 2 for theirs."""
    worktree: bool = False
    """Whether it works in a linked work tree, which is merged when its task is done."""


class TurnReport(Struct, frozen=True):
    """The status that an answer reports: done, continue or blocked, and why."""

    status: str
    reason: str = ""


# --- who coordinates here -------------------------------------------------------------------------

_coordinators: dict[tuple[int, str], Coordinator] = {}


def enter(main: Coordinator) -> None:
    """Makes a coordinator known to the runs of its store in this process."""
    _coordinators[id(kernel_of(main.store).log), main.project.id] = main


def leave(main: Coordinator) -> None:
    """Undoes `enter`, unless another coordinator has entered since."""
    key = id(kernel_of(main.store).log), main.project.id
    if _coordinators.get(key) is main:
        del _coordinators[key]


def _coordinator(ctx: Any, project: str) -> Coordinator:
    """Returns the coordinator in this process; leaves the run if there is none."""
    main = _coordinators.get((id(execution_of(ctx).log), project))
    if main is None or main.is_replaced:
        raise _left(ctx, project)
    return main


def project_of(run: str, inputs: Any) -> str | None:
    """Returns the project of a run, from the name and the inputs of the run; None if none."""
    if run == work.name:
        return inputs["assignment"]["project"]
    return inputs["project"] if run == talk.name else None


def _left(ctx: Any, project: str) -> Control:
    return execution_of(ctx).lost(
        UsageError(
            f'run "{execution_of(ctx).id}" is work of the project "{project}", which nobody '
            "coordinates in this process",
            hint="coordinate it: holdfast project chat",
        )
    )


@contextmanager
def _with_room(ctx: Any, main: Coordinator) -> Generator[None]:
    """Leaves the run if its work on files fails on a full disk; any other error passes."""
    try:
        yield
    except (UnavailableError, OSError) as error:
        free, _ = disk_space(str(main.project.root))
        if free >= ROOM_BYTES_MIN:
            raise
        raise execution_of(ctx).lost(error) from error


def _committed(
    ctx: Any, main: Coordinator, stream: str, body: Callable[[JointCommit], None]
) -> None:
    """Makes the commit of a step once: after a crash, its key is found in one of its streams."""
    key = values.commit_key(ctx.key)
    try:
        if not kernel_of(main.store).log.find(stream, key=key):
            main.store.commit(body, key=key, lease=main.lease)
    except LeaseLostError as error:
        main.is_replaced = True
        raise _left(ctx, main.project.id) from error
    except UnavailableError as error:
        # A full disk must not fail the task: the run is left, and resumed when there is room.
        raise execution_of(ctx).lost(error) from error


# --- what is said of work -------------------------------------------------------------------------


def scope_of(project: Project, session: str | None) -> Scope:
    """Returns the scope with the messages of work: the session's, or without one the project's."""
    return project.scope if session is None else project.conversation(session)


def say_task(tx: JointCommit, project: Project, task: Task, session: str | None) -> None:
    """Adds a task to the messages of its session when the work on it begins."""
    messages = tx.scope(scope_of(project, session)).messages
    links = [f"task:{task.id}@{project.scope.name}"]
    messages.add("user", f"Task: {task.title}", metadata={"task": task.id}, links=links)


# --- work on a task -------------------------------------------------------------------------------


@run(name="holdfast.projects:work")
def work(ctx: Any, assignment: dict[str, Any]) -> dict[str, Any]:
    """Works on a task, turn by turn, and closes or blocks it."""
    asked = convert(assignment, Assignment)
    _coordinator(ctx, asked.project)
    answer, report = Answer(""), TurnReport("blocked", f"not done after {asked.turns} turns")
    used = [0, 0]
    said = point = None
    base = ctx.step(_grow, assignment) if asked.worktree else None
    for turn in ctx.loop(asked.turns, name="turn"):
        told = ctx.step(_prepare, assignment, turn, said, base)
        if turn == 0:
            point = told["point"]
        if told["heard"]:
            ctx.step(_heed, assignment, told["heard"])
        try:
            answer = ctx.session(
                told["prompt"],
                system=SYSTEM,
                context=told["context"],
                agent=asked.agent,
                directory=told["directory"],
            )
        except StepError as error:
            if base is None:  # else it worked in a tree of its own
                ctx.step(_failed, assignment, error.text, told["point"])
            raise
        if answer.usage is not None:
            used = [used[0] + (answer.usage.input or 0), used[1] + (answer.usage.output or 0)]
        said, found = answer.text, report_of(answer.text)
        if told.get("is_said"):
            # Each turn has a point of its own. A run that an earlier version began has not: its
            # last message has the files of all its turns.
            point = told["point"]
        if found.status != "continue":
            report = found
            break
        if told.get("is_said") and turn + 1 < asked.turns:
            ctx.step(_say, assignment, answer.text, point)
    merged = None
    if base is not None:
        gathered = ctx.step(_gather, assignment, base, report.status)
        point = gathered.get("point", point)
        merged = ctx.step(_merge, assignment, gathered)
        report = _with_merge(report, merged)
    ctx.step(_finish, assignment, answer.text, report.status, report.reason, point)
    if merged is not None:
        ctx.step(_clear, assignment, keeps_ref=bool(merged["ref"]))
    usage = {"input": used[0], "output": used[1]}
    found = {"status": report.status, "answer": answer.text, "reason": report.reason}
    return {**found, "usage": usage, **({"merge": merged} if merged else {})}


def report_of(answer: str) -> TurnReport:
    """Returns the status in the last line of an answer; without one the task is done."""
    lines = answer.strip().splitlines()
    found = _STATUS.match(lines[-1]) if lines else None
    if found is None:
        return TurnReport("done")
    return TurnReport(found.group(1).lower(), found.group(2).strip())


@step(effect="read", name="prepare")
def _prepare(
    ctx: Any, assignment: dict[str, Any], turn: int, said: str | None, base: str | None
) -> dict[str, Any]:
    """Returns the prompt and context of a turn, and the steering messages that it includes."""
    asked = convert(assignment, Assignment)
    main = _coordinator(ctx, asked.project)
    with _with_room(ctx, main):
        waiting = [] if asked.depth else [one for one in main.waiting() if one.kind == "steer"]
        says = "".join(f"\n\n{one.sender} says: {one.text}" for one in waiting)
        prompt = f"Task: {asked.text}" if turn == 0 else f"Go on with the task: {asked.text}"
        context = context_of(main, asked.session, asked.text)
        if said:
            context.append(["your last answer", cut_to(said, main.project.settings.budget // 2)])
        return {
            "point": _point(main, f"{ctx.run} turn {turn + 1}", asked.session),
            "heard": [[one.revision, one.text, one.sender] for one in waiting],
            "prompt": prompt + says,
            "context": context,
            "directory": trees.directory_of(main.project, ctx.run, base),
            "is_said": True,
        }


@step(effect="idempotent", name="heed")
def _heed(ctx: Any, assignment: dict[str, Any], heard: list[Any]) -> None:
    """Takes the messages of the turn's prompt, in the commit that adds them to the session."""
    asked = convert(assignment, Assignment)
    main = _coordinator(ctx, asked.project)

    def take(tx: JointCommit) -> None:
        for revision, text, sender in heard:
            main.take(tx, revision)
            messages = tx.scope(scope_of(main.project, asked.session)).messages
            messages.add("user", text, metadata={"from": sender, "inbox": revision})

    _committed(ctx, main, stream_of(main.scope.name), take)


@step(effect="idempotent", name="say")
def _say(ctx: Any, assignment: dict[str, Any], answer: str, point: str | None) -> None:
    """Adds the answer of a turn to its messages, when another turn follows."""
    asked = convert(assignment, Assignment)
    main = _coordinator(ctx, asked.project)
    scope, fields = scope_of(main.project, asked.session), _said(ctx, main, asked, point)

    def say(tx: JointCommit) -> None:
        tx.scope(scope).messages.add("assistant", answer, **fields)

    _committed(ctx, main, scope.name, say)


@step(effect="idempotent", name="failed")
def _failed(ctx: Any, assignment: dict[str, Any], reason: str, point: str | None) -> None:
    """Tells which files a turn without an answer changed, if any, so that a rewind knows them."""
    asked = convert(assignment, Assignment)
    main = _coordinator(ctx, asked.project)
    scope, fields = scope_of(main.project, asked.session), _said(ctx, main, asked, point)
    _tell_failed(ctx, main, scope, reason, fields)


def _tell_failed(
    ctx: Any, main: Coordinator, scope: Scope, reason: str, fields: dict[str, Any]
) -> None:
    if not fields["files"]:
        return
    text = f"The turn failed: {reason}"[:OUTCOME_CHARACTERS_MAX]

    def say(tx: JointCommit) -> None:
        tx.scope(scope).messages.add("assistant", text, **fields)

    _committed(ctx, main, scope.name, say)


def _said(ctx: Any, main: Coordinator, asked: Assignment, point: str | None) -> dict[str, Any]:
    """Returns what the message of an answer is linked to: its task, run, and changed files."""
    files, left_out = changes_since(main.project, point)
    metadata: dict[str, Any] = {"task": asked.task}
    if left_out:
        metadata[FILES_LEFT_OUT] = left_out
    links = [f"task:{asked.task}@{main.scope.name}", f"run:{ctx.run}"]
    return {"metadata": metadata, "links": links, "files": files}


@step(effect="idempotent", name="finish")
def _finish(
    ctx: Any,
    assignment: dict[str, Any],
    answer: str,
    status: str,
    reason: str,
    point: str | None,
) -> None:
    """Closes or blocks the task, in one commit with its consequences in state and session."""
    asked = convert(assignment, Assignment)
    main = _coordinator(ctx, asked.project)
    outcome = (answer.strip().splitlines() or ["done"])[0][:OUTCOME_CHARACTERS_MAX] or "done"
    progress = ctx.run.removeprefix(f"{asked.project}.")
    fields = _said(ctx, main, asked, point)

    def close(tx: JointCommit) -> None:
        scope = tx.scope(main.scope)
        task = scope.tasks.get(asked.task)
        if not task.is_closed and status == "done":
            scope.tasks.close(asked.task, outcome, owner=task.owner)
            scope.set(("progress", progress), {"title": f"{task.id} {task.title}: {outcome}"})
        elif task.status in ("open", "in_progress") and status != "done":
            scope.tasks.block(asked.task, why=reason or "it cannot go on", owner=task.owner)
        if asked.depth:
            scope.delete(("children", ctx.run), missing_ok=True)
        else:
            scope.set("mode", "conversation")
            scope.delete("work", missing_ok=True)
        said = tx.scope(scope_of(main.project, asked.session))
        said.messages.add("assistant", answer, **fields)

    _committed(ctx, main, main.scope.name, close)


# --- files of its own ----------------------------------------------------------------------------


@step(effect="idempotent", name="grow")
def _grow(ctx: Any, assignment: dict[str, Any]) -> str:
    """Makes the work tree of a child, and returns the commit that it begins with."""
    main = _coordinator(ctx, convert(assignment, Assignment).project)
    with _with_room(ctx, main):
        return trees.grow(main.project, ctx.run)


@step(effect="idempotent", name="gather")
def _gather(ctx: Any, assignment: dict[str, Any], base: str, status: str) -> dict[str, Any]:
    """Commits the files of the child's tree, and returns what a merge would change."""
    asked = convert(assignment, Assignment)
    main = _coordinator(ctx, asked.project)
    title = f"{asked.task} {asked.text}"
    with _with_room(ctx, main):
        point = _point(main, f"before {ctx.run} is merged", asked.session)
        merges = status == "done"
        gathered = trees.gather(main.project, ctx.run, base, title, merges=merges)
        return {**gathered, "point": point}


@step(effect="idempotent", name="merge")
def _merge(ctx: Any, assignment: dict[str, Any], gathered: dict[str, Any]) -> dict[str, Any]:
    """Merges a child's changes into the project's directory; returns what was left, and where."""
    main = _coordinator(ctx, convert(assignment, Assignment).project)
    files, left = gathered["files"], dict.fromkeys(gathered["conflicts"], "both sides changed it")
    if gathered["merges"]:
        with _with_room(ctx, main):
            left = trees.merge(main.project, files)
            if left and disk_space(str(main.project.root))[0] < ROOM_BYTES_MIN:
                raise UnavailableError(f"files cannot be merged: {left}", hint="make room")
    is_left = bool(left) or (bool(files) and not gathered["merges"])
    merged = [path for path, *_ in files if path not in left] if gathered["merges"] else []
    return {"files": merged, "left": left, "ref": gathered["ref"] if is_left else ""}


@step(effect="idempotent", name="clear")
def _clear(ctx: Any, assignment: dict[str, Any], *, keeps_ref: bool) -> None:
    main = _coordinator(ctx, convert(assignment, Assignment).project)
    with _with_room(ctx, main):
        trees.clear(main.project, ctx.run, keeps_ref=keeps_ref)


def _with_merge(report: TurnReport, merged: dict[str, Any]) -> TurnReport:
    """Returns the report, which becomes "blocked" if files of the task were not merged."""
    if not merged["ref"]:
        return report
    names = ", ".join(f"{path} ({why})" for path, why in merged["left"].items())
    reason = f"{names} not merged" if names else report.reason or "it cannot go on"
    return TurnReport("blocked", f"{reason}; its files: git cherry-pick {merged['ref']}")


# --- a turn of a conversation ---------------------------------------------------------------------


@run(name="holdfast.projects:talk")
def talk(ctx: Any, project: str, session: str, text: str, revision: int = 0) -> dict[str, Any]:
    """One exchange: a person's text and the agent's answer; `revision` is that of the inbox."""
    _coordinator(ctx, project)
    ctx.step(_hear, project, session, text, revision)
    told = ctx.step(_recall, project, session, text)
    try:
        answer = ctx.session(text, context=told["context"], directory=told["directory"])
    except StepError as error:
        ctx.step(_unanswered, project, session, error.text, told["point"])
        raise
    usage = {} if answer.usage is None else {
        "input": answer.usage.input or 0, "output": answer.usage.output or 0
    }  # fmt: skip
    ctx.step(_reply, project, session, answer.text, usage, revision, told["point"])
    if told["tokens"] > told["compact_at"]:
        older = ctx.step(_older, project, session)
        if older["text"]:
            summary = ctx.summarise(older["text"], limit=SUMMARY_CHARACTERS_MAX)
            ctx.step(_compact, project, session, summary, older["keeps"])
    return {"answer": answer.text, "usage": usage}


@step(effect="idempotent", name="hear")
def _hear(ctx: Any, project: str, session: str, text: str, revision: int) -> None:
    main = _coordinator(ctx, project)
    conversation = main.project.conversation(session)

    def hear(tx: JointCommit) -> None:
        metadata = {"inbox": revision} if revision else None
        tx.scope(conversation).messages.add("user", text, metadata=metadata)
        if revision:
            main.take(tx, revision)

    _committed(ctx, main, conversation.name, hear)


@step(effect="read", name="recall")
def _recall(ctx: Any, project: str, session: str, text: str) -> dict[str, Any]:
    main = _coordinator(ctx, project)
    point = _point(main, ctx.run, session)
    context = context_of(main, session, text)
    return {
        "point": point,
        "context": context,
        "directory": str(main.project.root),
        "tokens": main.project.session_size(session).tokens,
        "compact_at": main.project.settings.compact_at,
    }


@step(effect="idempotent", name="unanswered")
def _unanswered(ctx: Any, project: str, session: str, reason: str, point: str | None) -> None:
    """Tells which files an exchange without an answer changed, as `_failed` does."""
    main = _coordinator(ctx, project)
    files, left_out = changes_since(main.project, point)
    metadata = {FILES_LEFT_OUT: left_out} if left_out else None
    fields: dict[str, Any] = {"files": files, "metadata": metadata}
    _tell_failed(ctx, main, main.project.conversation(session), reason, fields)


@step(effect="idempotent", name="reply")
def _reply(
    ctx: Any,
    project: str,
    session: str,
    answer: str,
    usage: dict[str, int],
    revision: int,
    point: str | None,
) -> None:
    main = _coordinator(ctx, project)
    conversation = main.project.conversation(session)
    files, left_out = changes_since(main.project, point)
    fields: dict[str, Any] = {"usage": usage or None, "files": files}
    if revision or left_out:
        fields["metadata"] = {
            **({"answers": revision} if revision else {}),
            **({FILES_LEFT_OUT: left_out} if left_out else {}),
        }

    def reply(tx: JointCommit) -> None:
        tx.scope(conversation).messages.add("assistant", answer, **fields)

    _committed(ctx, main, conversation.name, reply)


# --- a conversation that has become long -------------------------------------------------------


@step(effect="read", name="older")
def _older(ctx: Any, project: str, session: str) -> dict[str, Any]:
    """Returns the text to summarise, with the previous summary, and how many messages stay.

    The newest exchange stays, and the messages before it that fit into half of `compact_at`.
    """
    main = _coordinator(ctx, project)
    messages = list(main.project.conversation(session).messages)
    room = main.project.settings.compact_at * BYTES_PER_TOKEN // 2
    keeps = 0
    for one in reversed(messages[-KEPT_MESSAGES:]):
        room -= len(one.text)
        if room < 0 and keeps >= KEPT_MESSAGES_MIN:
            break
        keeps += 1
    older = messages[: len(messages) - keeps]
    text = "\n".join(line for one in older for line in shown_lines(one))
    return {"text": cut_to(text, 2 * main.project.settings.compact_at), "keeps": keeps}


@step(effect="idempotent", name="compact")
def _compact(ctx: Any, project: str, session: str, summary: str, keeps: int) -> None:
    """Replaces older messages by a summary, followed by the goals.

    The summary names the run. So after a crash, a repeated step finds it and does nothing.
    """
    main = _coordinator(ctx, project)
    conversation = main.project.conversation(session)
    if any(ctx.run in one.text for one in conversation.messages.summaries()[-1:]):
        return
    goals = [f"- {goal}" for _, goal in listed(main.scope, GOALS)]
    again = "\n\nThe goals are:\n" + "\n".join(goals) if goals else ""
    text = f"Summary of what was said until {ctx.run}:\n{summary}{again}"
    conversation.messages.compact(text, keep_last=keeps)


# --- what a turn is told --------------------------------------------------------------------------


def context_of(main: Coordinator, session: str | None, text: str) -> list[list[str]]:
    """Returns the titles and texts of a turn's context, within the project's budget."""
    scope = scope_of(main.project, session)
    began = monotonic()
    told = main.store.context(scope, main.project.settings.budget, text, strategies=main.strategies)
    if main.care.took("the context of a turn", monotonic() - began):
        main.strategies = UNSEARCHED  # in a large store the search takes most of it
    return [["directory", directory_told(main, session)], ["project", told.text]]


def directory_told(main: Coordinator, session: str | None) -> str:
    """Returns what a turn is told of the directory and of earlier sessions.

    It is looked at once for each coordinator and session: as it was when they began.
    """
    if main.about is None or main.about[0] != session:
        project = main.project
        lines = survey_lines(project.survey())
        paths = changed_paths(project)
        if paths:
            more = [f"and {len(paths) - CHANGED_TOLD} more"] if len(paths) > CHANGED_TOLD else []
            lines.append(f"not committed: {', '.join([*paths[:CHANGED_TOLD], *more])}")
        for one in project.sessions(limit=SESSIONS_TOLD + 1):
            if one.id != session and one.first:
                lines.append(
                    f"earlier session: {one.title}; last: {one.last[:LAST_CHARACTERS_MAX]}"
                )
        text = "\n".join(lines)
        main.about = session, text[: project.settings.budget * BYTES_PER_TOKEN // 4]
    return main.about[1]


def cut_to(text: str, tokens: int) -> str:
    """Returns the end of a text, about so many tokens of it, with a note of what is left out."""
    most = tokens * BYTES_PER_TOKEN
    if len(text) <= most:
        return text
    return f"(the first {len(text) - most} characters are left out)\n{text[-most:]}"


def _point(main: Coordinator, name: str, session: str | None) -> str | None:
    """Makes a rewind point before a turn; returns the commit with its files, if there is one."""
    if not main.project.settings.checkpoints:
        return None
    return mark(main.project, name, session).commit

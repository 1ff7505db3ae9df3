"""Verbs for projects: the current directory is the project, and contains its store.

`--script FILE` chooses the agent that answers, or else `[agents]` of the project's holdfast.toml.
"""

from __future__ import annotations

import os
import select
import shlex
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import holdfast
from holdfast.agents.command import Command
from holdfast.agents.config import FILE, load_executor
from holdfast.agents.protocol import Executor
from holdfast.agents.scripted import Scripted
from holdfast.backends.deadline import monotonic
from holdfast.cli import INTERRUPTED
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Seconds,
    check_terminal,
    open_reading,
    open_writing,
    refuse_memory,
)
from holdfast.cli.parsing import parse_priority
from holdfast.cli.printing import (
    console,
    is_terminal,
    print_aside,
    print_facts,
    print_json,
    print_json_line,
    print_line,
    print_note,
    print_table,
)
from holdfast.cli.retain import print_retention
from holdfast.cli.rewinds import preview_and_apply
from holdfast.clock import SystemClock
from holdfast.core.event import to_datetime
from holdfast.core.kernel import kernel_of
from holdfast.core.retention import GRACE_S
from holdfast.errors import (
    ExistsError,
    HoldfastError,
    LeaseLostError,
    UnavailableError,
    UsageError,
    show_us,
)
from holdfast.git.rewinds import What
from holdfast.names import check_name
from holdfast.projects.coordinator import Coordinator, Result
from holdfast.projects.doctor import Remedy
from holdfast.projects.outcome import Summary
from holdfast.projects.project import Project, ProjectStatus
from holdfast.projects.sessions import ProjectSession
from holdfast.projects.survey import Finding
from holdfast.render.git import point_document
from holdfast.render.projects import (
    ailments_document,
    alias_document,
    outcome_document,
    project_sessions_document,
    recovery_report_document,
    restored_document,
    sent_document,
    status_document,
    summary_document,
    survey_document,
)
from holdfast.render.record import tasks_document
from holdfast.render.retain import retention_document
from holdfast.render.text import clean
from holdfast.store import Store

Text = Annotated[str, Parameter(allow_leading_hyphen=True)]
POLL_S = 0.2
SHOWN_MAX = 5
EXIT_CODES = {"done": 0, "failed": 12, "blocked": 13, "stopped": 15}
"""The exit codes of `project do`: those of a run that ended, failed, is parked, or goes on."""
SESSION_COLUMNS = ("id", "status", "title", "first", "last", "age", "branch")
WATCH_COLUMNS = ("mode", "task", "messages", "tasks")
TASK_COLUMNS = ("id", "status", "priority", "owner", "title")
HELP_AT_WORK = "/stop: pause the work; /steer, /note, /task TEXT; else: it is answered now"
HELP = "/go: work on the tasks; /task TEXT: add one; /tasks; /status; /quit; else: talk"


def survey(*, options: Options = DEFAULTS) -> None:
    """Look at the project in this directory: git, type, configuration, tree, earlier state."""
    with open_reading(options) as store:
        found = store.project(".").survey()
    if options.json:
        print_json(survey_document(found))
        return
    print_facts([("root", found.root), *[(one.name, shown(one)) for one in found.findings]])


def shown(finding: Finding) -> str:
    """Returns what was found, in a line."""
    if not finding.is_found:
        return f"absent: {finding.absent}"
    value = finding.value
    if finding.name == "tree":
        more = ", and more" if value.left_out else ""
        return f"{len(value.entries)} entries{more}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {one}" for name, one in value.items())  # pyright: ignore[reportUnknownVariableType]
    return ", ".join(value)


def status(*, options: Options = DEFAULTS) -> None:
    """Show where the project stands: who coordinates it, its work, children, messages, tasks."""
    with open_reading(options) as store:
        found = store.project(".").status()
    if options.json:
        print_json(status_document(found))
    else:
        print_facts(status_facts(found))


def status_facts(found: ProjectStatus) -> list[tuple[str, str]]:
    """Returns where a project stands, as names and values."""
    work = found.work
    return [
        ("project", f"{found.id} in {found.root}"),
        ("coordinator", str(found.coordinator or "nobody")),
        ("mode", found.mode),
        ("work", f"{work['task']}, run {work['run']}" if work else "nothing"),
        ("children", ", ".join(found.children) or "none"),
        ("inbox", f"{len(found.waiting)} messages wait"),
        ("tasks", ", ".join(f"{n} {name}" for name, n in found.tasks.items()) or "none"),
    ]


def watch(*, timeout: Seconds = None, options: Options = DEFAULTS) -> None:
    """Show where the project stands, and again whenever that changes; ends with Ctrl-C.

    Parameters
    ----------
    timeout
        End after this time, in seconds or such as 1h30m.
    """
    with open_reading(options) as store:
        project = store.project(".")
        found = changes_of(store, project, timeout)
        if options.json:
            for status in found:
                print_json_line(status_document(status))
        elif is_terminal():
            show_live(project, found)
        else:
            for status in found:
                work = status.work["task"] if status.work else "nothing"
                tasks = " ".join(f"{name}={n}" for name, n in status.tasks.items())
                row = (status.mode, work, str(len(status.waiting)), tasks)
                print_table(WATCH_COLUMNS, [row])


def changes_of(store: Store, project: Project, timeout: float | None) -> Iterator[ProjectStatus]:
    """Yields the status of a project, now and after each change of it."""
    ends, last = None if timeout is None else monotonic() + timeout, None
    while True:
        position, found = store.position, project.status()
        seen = status_document(found)
        # Without the age of its lease, which changes all the time.
        seen["coordinator"] = found.coordinator and found.coordinator.worker
        if seen != last:
            yield found
        last = seen
        left_s = POLL_S * 5 if ends is None else min(POLL_S * 5, ends - monotonic())
        if left_s <= 0:
            return
        kernel_of(store).log.wait_after(position, left_s)


def show_live(project: Project, found: Iterator[ProjectStatus]) -> None:
    """Redraws the status of a project on the terminal, with the tasks that can begin next."""
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    with Live(console=console(), auto_refresh=False) as live:
        for status in found:
            table = Table(box=None, show_header=False, pad_edge=False)
            waiting = [(one.kind, one.text) for one in status.waiting[:SHOWN_MAX]]
            ready = [("ready", f"{one.id} {one.title}") for one in project.ready(SHOWN_MAX)]
            for name, value in [*status_facts(status), *waiting, *ready]:
                table.add_row(Text(name, style="bold"), Text(clean(value)))
            live.update(table, refresh=True)


def tasks(*, all: Flag = False, limit: int = 100, options: Options = DEFAULTS) -> None:
    """List the tasks of the project that are not closed, highest priority first.

    Parameters
    ----------
    all
        Also those that are closed.
    limit
        How many at most.
    """
    statuses = None if all else ("open", "in_progress", "blocked")
    with open_reading(options) as store:
        project = store.project(".")
        found = project.tasks.list(status=statuses, limit=limit)
    if options.json:
        print_json(tasks_document(project.scope.name, found))
        return
    rows = [
        (task.id, task.status, str(task.priority), task.owner or "", task.title) for task in found
    ]
    if rows:
        print_table(TASK_COLUMNS, rows)
    else:
        print_note("no tasks")


def sessions(*, limit: int = 20, options: Options = DEFAULTS) -> None:
    """List the sessions of the project: crashed ones first, then active ones, then the newest.

    Parameters
    ----------
    limit
        How many at most.
    """
    with open_reading(options) as store:
        project = store.project(".")
        found = project.sessions(limit=limit)
    if options.json:
        print_json(project_sessions_document(project.id, found))
    elif found:
        print_table(SESSION_COLUMNS, [session_row(one) for one in found])
    else:
        print_note("no sessions")


def session_row(session: ProjectSession) -> tuple[str, ...]:
    """Returns a session as a row of the list."""
    now_us = SystemClock().now_us()
    at = session.updated_at
    age = "" if at is None else show_us(now_us - round(at.timestamp() * 1e6))
    return (
        session.id,
        session.status,
        session.title,
        session.first,
        session.last,
        age,
        session.branch or "",
    )


# --- messages -------------------------------------------------------------------------------------


def stop(
    text: Text = "",
    /,
    *,
    let_children: Flag = False,
    wait: Seconds = None,
    options: Options = DEFAULTS,
) -> int:
    """Pause the work: the coordinator talks instead, and can continue the same task later.

    Parameters
    ----------
    text
        What the coordinator is told, if anything.
    let_children
        Let the children go on.
    wait
        Wait this long for the coordinator to take the message; exit code 15 if it does not.
    """
    return send("stop", text, wait, options, let_children=let_children)


def interrupt(text: Text, /, *, wait: Seconds = None, options: Options = DEFAULTS) -> int:
    """Ask something that is answered now: the work pauses for it, then goes on.

    Parameters
    ----------
    text
        What is asked.
    wait
        Wait this long for the coordinator to take the message; exit code 15 if it does not.
    """
    return send("interrupt", text, wait, options)


def steer(text: Text, /, *, wait: Seconds = None, options: Options = DEFAULTS) -> int:
    """Give guidance, which the next turn of the work takes into account.

    Parameters
    ----------
    text
        What the work should take into account.
    wait
        Wait this long for the coordinator to take the message; exit code 15 if it does not.
    """
    return send("steer", text, wait, options)


def follow_up(
    text: Text,
    /,
    *,
    priority: str = "normal",
    wait: Seconds = None,
    options: Options = DEFAULTS,
) -> int:
    """Add a task to do after the one in progress.

    Parameters
    ----------
    text
        The task, in a sentence.
    priority
        A whole number, higher first, or low, normal or high.
    wait
        Wait this long for the coordinator to take the message; exit code 15 if it does not.
    """
    return send("follow-up", text, wait, options, priority=priority)


def note(text: Text, /, *, wait: Seconds = None, options: Options = DEFAULTS) -> int:
    """Leave a note in the project's working memory; the work is not interrupted.

    Parameters
    ----------
    text
        What is good to know.
    wait
        Wait this long for the coordinator to take the message; exit code 15 if it does not.
    """
    return send("note", text, wait, options)


def send(
    kind: str,
    text: str,
    wait: float | None,
    options: Options,
    *,
    priority: str = "normal",
    let_children: bool = False,
) -> int:
    """Sends a message to the coordinator; with `wait`, waits until it is taken or time is up."""
    with open_writing(options) as store:
        project = store.project(".")
        revision = project.send(
            kind, text, priority=parse_priority(priority), let_children=let_children
        )
        taken = None if wait is None else project.await_taken(revision, timeout_s=wait)
        holder = project.coordinator()
    if options.json:
        print_json(sent_document(kind, revision, taken))
    else:
        to = "nobody coordinates: it waits" if holder is None else f"to {holder}"
        print_line(clean(f"sent as message {revision}, {'taken' if taken else to}"))
    return 15 if taken is False else 0


# --- working --------------------------------------------------------------------------------------


def do(
    text: Text,
    /,
    *,
    priority: str = "normal",
    attach: Flag = False,
    take_over: Flag = False,
    script: Path | None = None,
    timeout: Seconds = None,
    options: Options = DEFAULTS,
) -> int:
    """Do one task, and print what came of it; no session is made.

    If the project has a coordinator, the task is sent there as a follow-up, and waited for.

    Parameters
    ----------
    text
        The task, in a sentence or more.
    priority
        A whole number, higher first, or low, normal or high.
    attach
        Only send it to the present coordinator: never coordinate here.
    take_over
        Take over from the present coordinator.
    script
        A JSON file that answers for all agents, instead of [agents] of holdfast.toml.
    timeout
        Wait no longer than this for another coordinator's answer: exit code 15.
    """
    with open_writing(options) as store:
        project = store.project(".")
        if attach and project.coordinator() is None:
            raise UnavailableError(
                f'nobody coordinates project "{project.id}"', hint="leave out --attach"
            )
        if take_over or project.coordinator() is None:
            store.runs.use_executor(executor(script))
        outcome = project.do(
            text, priority=parse_priority(priority), take_over=take_over, timeout_s=timeout
        )
    if options.json:
        print_json(outcome_document(outcome))
    else:
        print_line(clean(outcome.answer, keep="\n"))
        print_note(f"task {outcome.task} is {outcome.status}")
    return EXIT_CODES[outcome.status]


def executor(script: Path | None) -> Executor | Command:
    """Returns the executor that answers for agents in this project."""
    if script is not None:
        return Scripted(script)
    if not Path(FILE).exists():
        raise UsageError(
            "nobody answers for agents: there is no holdfast.toml here",
            hint='put [agents] command = ["claude", "-p"] into it, or give --script FILE',
        )
    return load_executor(FILE)


def chat(
    *,
    resume: str | None = None,
    last: Flag = False,
    title: str = "",
    attach: Flag = False,
    take_over: Flag = False,
    script: Path | None = None,
    options: Options = DEFAULTS,
) -> int:
    """Talk with the coordinator of the project, line by line; /go lets it work by itself.

    Ctrl-C pauses the work and ends the chat.

    Parameters
    ----------
    resume
        Continue the session with this id.
    last
        Continue the newest session.
    title
        The title of a new session.
    attach
        Talk to the present coordinator.
    take_over
        Take over from the present coordinator.
    script
        A JSON file that answers for all agents, instead of [agents] of holdfast.toml.
    """
    with open_writing(options) as store:
        project = store.project(".")
        if attach:
            for line in lines():
                print_line(clean(project.ask(line), keep="\n"))
            return 0
        session = chosen_session(project, resume, last=last)
        store.runs.use_executor(executor(script))
        with project.coordinate(take_over=take_over) as main:
            session = project.begin_session(session, title=title)
            with project.enter_session(session):
                summary, is_over = converse(store, main, session, quiet=options.json)
    if options.json:
        print_json(summary_document(summary))
    else:
        print_summary(summary)
    return 0 if is_over else INTERRUPTED


def chosen_session(project: Project, resume: str | None, *, last: bool) -> str | None:
    """Returns the session to continue; None for a new one."""
    if resume is not None and last:
        raise UsageError("--resume and --last both say which session is meant", hint="give one")
    if last:
        found = project.scope.get("session")
        if found is None:
            raise UsageError(f'project "{project.id}" has no session yet', hint="leave out --last")
        return found
    return resume


def converse(store: Store, main: Coordinator, session: str, *, quiet: bool) -> tuple[Summary, bool]:
    """Talks until the input ends or /quit; takes messages of others while nobody types.

    Returns the summary, and whether it ended by itself: Ctrl-C pauses the work, which the next
    coordinator goes on with, and ends the chat.
    """
    since = to_datetime(SystemClock().now_us())
    main.session = session
    left = main.unfinished()
    if left and not quiet:
        print_aside(f"work was left: {', '.join(left)}; /go goes on with it")
    if not quiet:
        print_note(HELP)
    is_over, keyboard = True, Keyboard(main)
    if sys.stdin.isatty():  # a file is read line by line: the next one waits for the work
        main.listen = keyboard.heed
        main.tell = None if quiet else print_answer
    try:
        for line in without_empty(keyboard):
            word, _, rest = line.partition(" ")
            if word in ("/quit", "/exit"):
                break
            # A file that is read line by line ends with its first error: nobody is there to see it.
            with refusals_said() if sys.stdin.isatty() else nullcontext():
                said = answer(store, main, word, rest, line)
                if said and not quiet:
                    print_line(clean(said, keep="\n"))
    except KeyboardInterrupt:
        is_over = False
        main.stop()
    return main.project.summary(session, since), is_over


def print_answer(text: str) -> None:
    """Prints the answer to a text that was typed while work was done."""
    print_line(clean(text, keep="\n"))


def answer(store: Store, main: Coordinator, word: str, rest: str, line: str) -> str:
    """Returns the answer to one line of a conversation."""
    if word == "/go":
        return "\n".join(told(result) for result in main.go_on()) or "there is nothing to do"
    if word == "/task":
        return f"task {main.tasks.add(rest).id} was added"
    if word == "/tasks":
        begun = [f"{one.id} {one.title} (begun)" for one in main.tasks.list(status="in_progress")]
        ready = [f"{one.id} {one.title}" for one in main.project.ready()]
        return "\n".join([*begun, *ready]) or "no tasks"
    if word == "/status":
        found = main.project.status()
        return f"{found.mode}; {len(found.waiting)} messages wait; tasks: {found.tasks}"
    if word.startswith("/"):
        return HELP
    return main.talk(line) or "stopped"


@contextmanager
def refusals_said() -> Generator[None]:
    """Prints why a line is refused, and the chat goes on; unless somebody else coordinates now."""
    try:
        yield
    except LeaseLostError:
        raise
    except HoldfastError as error:
        print_aside(str(error))


def told(result: Result) -> str:
    """Returns what came of a task, in a line or more."""
    return f"{result.task} {result.status}: {result.answer or result.reason}"


class Keyboard:
    """The lines that somebody types into a chat, also while work is done."""

    def __init__(self, main: Coordinator) -> None:
        self._main = main
        self._typed: deque[str] = deque()
        self._unfinished = b""
        self._is_over = False

    def __iter__(self) -> Iterator[str]:
        """Yields the lines; messages of others are answered while it waits."""
        while self._typed or not self._is_over:
            if self._typed:
                yield self._typed.popleft()
            elif not self._read(POLL_S):
                for result in self._main.attend():
                    print_aside(told(result))

    def _read(self, wait_s: float) -> bool:
        """Reads what was typed; returns False if nothing was within a time."""
        # Not by `readline`: `select` knows nothing of lines that a buffer has read ahead.
        if not select.select([sys.stdin], [], [], wait_s)[0]:
            return False
        block = os.read(sys.stdin.fileno(), 1 << 16)
        self._is_over = not block
        *whole, self._unfinished = (self._unfinished + (block or b"\n")).split(b"\n")
        self._typed.extend(line.decode(errors="replace") for line in whole)
        return True

    def heed(self) -> None:
        """Takes what is typed while work is done, as messages to the coordinator.

        A text interrupts: it is answered, and the work goes on.
        """
        if not self._is_over:
            self._read(0.0)
        project = self._main.project
        while self._typed:
            line = self._typed.popleft().strip()
            word, _, rest = line.partition(" ")
            if word in ("/quit", "/exit"):
                self._typed.appendleft(line)
                project.send("stop")
                return
            if word == "/stop":
                project.send("stop")
                return  # what was typed after it is for when the work has stopped
            with refusals_said():
                self._pass_on(line, word, rest)

    def _pass_on(self, line: str, word: str, rest: str) -> None:
        if word in ("/steer", "/note") and rest:
            self._main.project.send(word[1:], rest)
        elif word == "/task" and rest:
            print_aside(f"task {self._main.tasks.add(rest).id} was added")
        elif word.startswith("/"):
            print_aside(HELP_AT_WORK)
        elif line:
            self._main.project.send("interrupt", line)


def lines(main: Coordinator | None = None) -> Iterator[str]:
    """Yields the lines that are typed, without empty ones; answers messages while it waits."""
    typed: Iterable[str] = sys.stdin if main is None else Keyboard(main)
    return without_empty(typed)


def without_empty(typed: Iterable[str]) -> Iterator[str]:
    """Yields the lines that have a word."""
    return (line.strip() for line in typed if line.strip())


def print_summary(summary: Summary) -> None:
    """Prints what a session did, and what it leaves open."""

    def short(found: Sequence[object]) -> str:
        return ", ".join(f"{one.id} {one.title}" for one in found) or "nothing"  # pyright: ignore

    print_facts(
        [
            ("session", summary.session),
            ("done", short(summary.done)),
            ("open", short(summary.open)),
            ("changed files", ", ".join(summary.files) or "none"),
            ("next", short(summary.next)),
        ]
    )


def recover(
    *,
    from_files: Flag = False,
    go_on: Flag = False,
    script: Path | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Show what is known of the project after a crash, and from where; import edited files.

    Parameters
    ----------
    from_files
        The store is gone: make a new one from the five files. One that is gone comes from git.
    go_on
        Continue the work that was left unfinished.
    script
        A JSON file that answers for all agents, instead of [agents] of holdfast.toml.
    """
    if from_files:
        refuse_memory(options.place)
    store = (
        holdfast.open(
            options.place,
            actor=options.writer,
            store_key=options.store_key,
            tenant=options.tenant,
        )
        if from_files
        else open_writing(options)
    )
    with store:
        project = store.project(".")
        if from_files and project.scope.revision:
            raise UsageError(
                f'the store knows project "{project.id}": {project.scope.revision} events',
                hint="leave out --from-files",
            )
        if go_on:
            store.runs.use_executor(executor(script))
        found = project.recover(go_on=go_on)
    if options.json:
        print_json(recovery_report_document(found))
        return
    print_table(
        ("source", "what", "found"), [(one.source, one.name, one.value) for one in found.facts]
    )
    for one in found.differences:
        print_line(clean(f"{one.file} {one.item or ''}: {one.found} ({one.winner} counts)"))
    for result in found.results:
        print_line(clean(f"went on with {told(result)}", keep="\n"))
    if go_on and not found.results:
        print_note("no work was left")


def doctor(*, options: Options = DEFAULTS) -> int:
    """Say what is wrong with the project: files, store, git, work, disk; exit code 1 if anything.

    Nothing is changed; each line says what can be done.
    """
    with open_reading(options) as store:
        project = store.project(".")
        found = project.doctor()
    if options.json:
        print_json(ailments_document(project.id, found))
    elif found:
        rows = [(one.part, one.name, one.found, "; ".join(one.options)) for one in found]
        print_table(("part", "name", "found", "what can be done"), rows)
    else:
        print_note("nothing is wrong")
    return int(bool(found))


def prune(
    *,
    dry_run: Flag = False,
    now: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Let go of the sessions that [project.retention] of holdfast.toml does not keep.

    They stay in the bin for 7 days: holdfast unretain brings one back. A session that somebody is
    in is kept.

    Parameters
    ----------
    dry_run
        Show what would go and why; change nothing.
    now
        Do not wait for the grace to end.
    """
    with open_reading(options) if dry_run else open_writing(options) as store:
        project = store.project(".")
        done = project.prune(dry_run=dry_run, grace_s=0.0 if now else GRACE_S)
    if options.json:
        print_json(retention_document(done))
    else:
        print_retention(done, options)


def restore(
    file: str,
    /,
    *,
    remedy: Remedy = "log",
    options: Options = DEFAULTS,
) -> None:
    """Restore one of the five files, or take the edit that waits in it.

    Parameters
    ----------
    file
        The file, from the root of the project.
    remedy
        Where from: log, git (the last commit), or keep, which takes the edit.
    """
    with open_writing(options) as store:
        done = store.project(".").restore_file(file, remedy)
    if options.json:
        print_json(restored_document(file, remedy, done))
        return
    for line in done or ["nothing had to be done"]:
        print_line(clean(line))


def checkpoint(name: str, /, *, options: Options = DEFAULTS) -> None:
    """Make a point to go back to: state, conversation and files of the project.

    Parameters
    ----------
    name
        The name. A name that is used again means the newest one.
    """
    with open_writing(options) as store:
        point = store.project(".").checkpoint(name)
    if options.json:
        print_json(point_document(point))
        return
    files = f"files as commit {point.commit[:12]}" if point.commit else "no files"
    print_line(f"point {point.id}: {clean(', '.join([files, *point.scopes]))}")


def rewind(
    point: str,
    /,
    *,
    what: What = "all",
    dry_run: Flag = False,
    yes: Flag = False,
    overwrite: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Go back to a point of the project; one is made before each turn. rewind undo undoes it.

    Shows what it would do, and asks. Work is paused first.

    Parameters
    ----------
    point
        The id or the name of the point; holdfast rewind list shows them.
    what
        What goes back: conversation, state, files or all.
    dry_run
        Show what would go back; pause nothing and change nothing.
    yes
        Do not ask; for scripts.
    overwrite
        Also take back files that somebody else changed since.
    """
    if dry_run:
        with open_writing(options) as store:
            preview = store.project(".").preview_rewind(point, what=what, overwrite=overwrite)
            return preview_and_apply(preview, options, dry_run=True, yes=yes)
    if not yes:
        check_terminal("a rewind", is_json=options.json)
    with open_writing(options) as store, store.project(".").coordinate() as main:
        preview = main.preview_rewind(point, what=what, overwrite=overwrite)
        return preview_and_apply(preview, options, yes=yes, apply=main.rewind)


def alias(name: str, /, *, to: Path | None = None, json: Flag = False) -> None:
    """Write a short command for the verbs of projects: NAME chat, NAME "task".

    Parameters
    ----------
    name
        The name of the command, such as ralph.
    to
        The directory that it is written to; without it ~/.local/bin.
    json
        Print a JSON document.
    """
    if os.sep in check_name(name, "the name of a command") or name.startswith((".", "-")):
        raise UsageError(f"the name of a command is a word, found {name!r}")
    folder = to or Path.home() / ".local" / "bin"
    path = folder / name
    text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m holdfast project - "$@"\n'
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and (path.is_symlink() or path.read_text("utf-8") != text):
            raise ExistsError(f'"{path}" is there already, and is another command')
        path.write_text(text, "utf-8")
        path.chmod(0o755)
    except (OSError, UnicodeDecodeError) as error:
        raise UnavailableError(f'"{path}" cannot be written: {error}') from error
    if json:
        print_json(alias_document(name, str(path)))
    else:
        print_line(f"{clean(str(path))} is written: {name} chat, {name} 'a task'")

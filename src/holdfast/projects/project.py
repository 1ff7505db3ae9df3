"""A project: a directory with a store, in which one coordinator works beside people."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert
from msgspec.structs import replace

from holdfast.backends.deadline import monotonic
from holdfast.core.arguments import Duration, check_flag, check_seconds, check_text
from holdfast.core.inbox import Inbox
from holdfast.core.kernel import kernel_of
from holdfast.core.listing import register_level
from holdfast.core.retention import GRACE_S, Retention
from holdfast.errors import UsageError
from holdfast.git.rewinds import Preview, RewindPoint, What
from holdfast.names import GLOBAL, PROJECT
from holdfast.projects import (
    doctor,
    handoff,
    housekeeping,
    inbox,
    outcome,
    recovery,
    sessions,
    tree,
)
from holdfast.projects.coordinator import Coordinator, Holder, Mode, holder_of
from holdfast.projects.doctor import Ailment, Remedy
from holdfast.projects.handoff import Accepted, Handoff
from holdfast.projects.housekeeping import SlowOperation
from holdfast.projects.inbox import WaitingMessage
from holdfast.projects.outcome import Outcome, Summary
from holdfast.projects.recovery import RecoveryReport
from holdfast.projects.sessions import ProjectSession, SessionSize
from holdfast.projects.settings import Files, Settings, load_settings, project_id, project_root
from holdfast.projects.survey import Survey, survey
from holdfast.record.task_events import Task
from holdfast.record.tasks import Tasks
from holdfast.scope import Scope
from holdfast.views import (
    Views,
    goal_list,
    learning_list,
    progress_list,
    task_list,
    todo_list,
)

if TYPE_CHECKING:
    from holdfast.store import Store

INBOX_SESSION = "inbox"
"""The session in which messages are answered when no other is chosen."""


class ProjectStatus(Struct, frozen=True):
    """Where a project stands."""

    id: str
    root: str
    mode: Mode
    coordinator: Holder | None
    work: dict[str, Any] | None
    children: dict[str, Any]
    waiting: list[WaitingMessage]
    tasks: dict[str, int]
    session: str | None


class Project:
    """A project in a store: its files, tasks, sessions and coordinator.

    Making this object writes nothing. `directory` is the root of the project.
    """

    def __init__(self, store: Store, directory: str | os.PathLike[str] = ".") -> None:
        self.store = store
        self.root = project_root(directory)
        self.settings: Settings = load_settings(self.root)
        self.id = project_id(self.root, self.settings)
        kernel = kernel_of(store)
        if not any(level.name == PROJECT for level in kernel.levels.registered()):
            register_level(kernel, PROJECT, below=GLOBAL)
        self.scope: Scope = store.scope(PROJECT, self.id)
        self._box = Inbox(kernel.log, self.scope.name)

    def __repr__(self) -> str:
        return f"<Project {self.id} in {self.root}>"

    def _check_place(self) -> None:
        """Raises UsageError if another directory of this host uses the same project id."""
        place = self.scope.get("root")
        if place is None or place["host"] != socket.gethostname():
            return
        if place["path"] != str(self.root) and os.path.isdir(place["path"]):
            raise UsageError(
                f'the id "{self.id}" is used twice: by "{place["path"]}" and by "{self.root}"',
                hint='give one of them another id: [project] id = "…" in its holdfast.toml',
            )

    # --- the five files --------------------------------------------------------------------------

    @property
    def files(self) -> list[str]:
        """The five files, relative to the root: learnings, goals, tasks, progress and to-do."""
        return [getattr(self.settings.files, name) for name in Files.__struct_fields__]

    def views(self) -> Views:
        """Returns the five files as views: `sync()` imports what was edited and writes the rest."""
        names = self.settings.files
        made = [
            learning_list(self.scope, names.learnings),
            goal_list(self.scope, names.goals),
            task_list(self.scope, names.tasks),
            progress_list(self.scope, names.progress),
            todo_list(self.scope, names.todo),
        ]
        return self.store.views(self.root, made)

    def recover(self, *, go_on: bool = False) -> RecoveryReport:
        """Returns what is known of the project, each fact with its source, and unfinished work.

        Edited files are imported first. In a store that knows nothing of the project, everything
        comes from the files; one that is gone is taken from the last commit of git. With `go_on`
        the unfinished work is resumed before it returns, and `results` says what became of it.
        """
        check_flag(go_on, "go_on")
        fetched = recovery.fetch_files(self)
        with self.coordinate() as main:
            found = recovery.report(main, fetched)
            return replace(found, results=tuple(main.resume())) if go_on else found

    def doctor(self) -> list[Ailment]:
        """Returns the problems of files, store, git, work, disk and speed, each with its remedies.

        It changes nothing.
        """
        return doctor.examine(self)

    def restore_file(self, file: str, remedy: Remedy) -> list[str]:
        """Restores one of the five files from the "log" or from "git", or imports the edit: "keep".

        Returns what was done. With "log" and "git" the text that was there is kept beside the file.
        """
        return doctor.restore(self, file, remedy)

    def prune(self, *, dry_run: bool = False, grace_s: Duration = GRACE_S) -> Retention:
        """Removes the sessions that `[project.retention]` does not keep; see `hf.retention.run`.

        They are in the bin until the grace is over; `hf.retention.bring_back(scope)` restores one.
        Active sessions stay. Raises UsageError if `[project.retention]` is not set.
        """
        grace = check_seconds(grace_s, "grace_s", above=-1e-9)
        return housekeeping.prune(self, dry_run=check_flag(dry_run, "dry_run"), grace_s=grace)

    def slow(self) -> list[SlowOperation]:
        """Returns what took longer than `[project] slow` under the newest coordinator."""
        found: Any = self.scope.get(housekeeping.KEY, ())
        return [convert(dict(one), SlowOperation) for one in found]

    # --- looking ---------------------------------------------------------------------------------

    def survey(self) -> Survey:
        """Looks at the directory: git, type, configuration, tree, and earlier state."""
        return survey(self.root, self.settings, self.scope.revision)

    def survey_git(self) -> str | None:
        """Returns the branch that is checked out, or None."""
        found = self.survey().git
        return found.value["branch"] if found.is_found else None

    @property
    def tasks(self) -> Tasks:
        """The tasks of the project; no lease is needed to add one."""
        return self.scope.tasks

    def coordinator(self) -> Holder | None:
        """Returns the current coordinator; None if there is none."""
        return holder_of(self)

    def status(self) -> ProjectStatus:
        """Returns the mode, coordinator, work, messages, task counts and session of the project."""
        counts: dict[str, int] = {}
        for task in self.tasks.list(limit=None):
            counts[task.status] = counts.get(task.status, 0) + 1
        state = self.scope.state.to_dict()
        return ProjectStatus(
            self.id,
            str(self.root),
            state.get("mode", "conversation"),
            self.coordinator(),
            state.get("work"),
            state.get("children", {}),
            self.waiting(),
            counts,
            state.get("session"),
        )

    def ready(self, limit: int | None = None) -> list[Task]:
        """Returns the tasks that can be started now, highest priority first."""
        return self.tasks.ready(limit=limit)

    # --- working ---------------------------------------------------------------------------------

    def coordinate(self, *, take_over: bool = False, wait_s: Duration = 0.0) -> Coordinator:
        """Returns a coordinator, for use in a `with` block.

        Entering the block raises LeaseLostError, with the name of the holder, if the project has a
        coordinator that does not leave within `wait_s`. With `take_over` that one is replaced: its
        later commits are refused.
        """
        wait = check_seconds(wait_s, "wait_s", above=-1e-9)
        return Coordinator(self, take_over=check_flag(take_over, "take_over"), wait_s=wait)

    def do(
        self,
        text: str,
        *,
        priority: int | str = 0,
        take_over: bool = False,
        timeout_s: Duration | None = None,
    ) -> Outcome:
        """Does one task and returns its outcome; it leaves no session.

        If the project has a coordinator, the task is sent there as a follow-up, and this call waits
        for it. After `timeout_s` it raises StillRunningError; the task is still done.
        """
        check_text(text, "a task")
        wait = None if timeout_s is None else check_seconds(timeout_s, "timeout_s", above=-1e-9)
        is_ours = check_flag(take_over, "take_over")
        return outcome.do(self, text, priority=priority, take_over=is_ours, timeout_s=wait)

    def ask(self, text: str, *, timeout_s: Duration | None = None) -> str:
        """Interrupts the coordinator with a message, and returns the agent's answer.

        Raises UnavailableError if there is no coordinator, and StillRunningError after `timeout_s`.
        """
        check_text(text, "a message")
        wait = None if timeout_s is None else check_seconds(timeout_s, "timeout_s", above=-1e-9)
        return outcome.ask(self, text, timeout_s=wait)

    def summary(self, session: str, since: datetime) -> Summary:
        """Returns what was done and what is open in a session, from the time `since`."""
        return outcome.summary(self, session, since)

    # --- points and handoffs ---------------------------------------------------------------------

    def checkpoint(self, name: str) -> RewindPoint:
        """Makes a rewind point of the state, the newest session's conversation, and the files.

        Without a git repository it has no files. `[project] checkpoints` makes one before each
        turn, too.
        """
        return tree.mark(self, name, self.scope.get("session"))

    def preview_rewind(
        self, point: RewindPoint | str, *, what: What = "all", overwrite: bool = False
    ) -> Preview:
        """Returns what a rewind of the project would do; `main.rewind(…)` does it.

        `what` is "conversation", "state", "files" or "all". The messages of work name the files
        that it changed, in every session. What anybody else changed stays, unless `overwrite` is
        true: a file that differs from what the work left, one that was changed before the work
        changed it, and one that no message since the point names. The five files stay: they are
        written from the log.
        """
        rewinds = self.store.git(self.root)
        also = [self.scope.name, *sessions.conversations(self)]
        return rewinds.preview(point, what=what, overwrite=overwrite, named_only=True, also=also)

    def accept_handoff(self, session: str) -> Accepted:
        """Accepts the handoff to a session: merges the sender's messages and state, in one commit.

        Raises NotFoundError if there is no handoff, and ExpiredError if it has expired.
        """
        return handoff.accept(self, session)

    def hand_over(
        self,
        sender: str,
        to: str,
        *,
        reason: str,
        risks: Sequence[str] = (),
        lasts: Duration = handoff.LASTS_S,
    ) -> Handoff:
        """Offers what a session knows to another: goals, position, open tasks, decisions, risks.

        The conversation and state move only when the other session accepts, within `lasts`.
        """
        return handoff.offer(self, sender, to, reason, tuple(risks), lasts)

    # --- messages to the coordinator -------------------------------------------------------------

    def send(
        self,
        kind: str,
        text: str = "",
        *,
        id: str | None = None,
        priority: int | str = 0,
        let_children: bool = False,
    ) -> int:
        """Sends a message to the current or next coordinator; returns its revision in the inbox.

        It is durable when this returns. The kinds are stop, interrupt, steer, follow-up and note.
        `priority` is for the task that a follow-up becomes. `let_children` lets the children go on
        after a stop. A message with the same `id` is sent only once.
        """
        more = {"priority": priority, "let_children": check_flag(let_children, "let_children")}
        return inbox.send(self.store, self.scope.name, kind, text, id=id, **more)

    def waiting(self) -> list[WaitingMessage]:
        """Returns the messages that have not been taken yet, most urgent first."""
        return inbox.waiting(self._box, self.scope.name, None)

    def await_taken(self, revision: int, *, timeout_s: Duration = 60.0) -> bool:
        """Waits until a message is taken; returns False if that takes longer than `timeout_s`."""
        ends = monotonic() + check_seconds(timeout_s, "timeout_s", above=-1e-9)
        while True:
            position = self.store.position
            if inbox.is_taken(self._box, revision):
                return True
            left_s = ends - monotonic()
            if left_s <= 0:
                return False
            kernel_of(self.store).log.wait_after(position, min(left_s, 1.0))

    # --- sessions --------------------------------------------------------------------------------

    inbox_session = INBOX_SESSION

    def conversation(self, session: str) -> Scope:
        """Returns the conversation of a session."""
        return sessions.conversation(self, session)

    def begin_session(self, session: str | None = None, *, title: str = "") -> str:
        """Begins a session, or continues the given one, as the newest; returns its id."""
        return sessions.begin(self, session, title=title)

    @contextmanager
    def enter_session(self, session: str) -> Generator[Scope]:
        """Holds the lease of a session during the block, and yields its conversation.

        Others see the session as active, and as crashed if this process dies. Raises
        LeaseLostError if another worker is in the session.
        """
        with sessions.entered(self, session) as scope:
            yield scope

    def sessions(self, *, limit: int | None = 100) -> list[ProjectSession]:
        """Returns the sessions: crashed ones first, then active ones, then the newest."""
        return sessions.listed(self, limit=limit)

    def session_size(self, session: str) -> SessionSize:
        """Returns the size of a session's conversation, in messages and tokens."""
        return sessions.size_of(self, session)

    def tell(self, session: str, text: str, *, sender: str | None = None) -> None:
        """Adds a message to a session's conversation, and links it with the session `sender`."""
        sessions.tell(self, session, text, sender=sender)

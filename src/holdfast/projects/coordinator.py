"""The coordinator: the one that works in a project, under the lease `project/<id>`.

    with project.coordinate() as main:
        main.do("write the changelog")

Its commits are fenced by that lease. A second coordinator is refused, with an error that names the
first, or takes its place. The next coordinator resumes the runs that were left: the coordinator's
own work and its children. While a run is at work, the coordinator checks its inbox ten times a
second. A person's stop is taken, and durable, before anything else begins.

The state of the scope has what cannot be seen elsewhere:

    root      {"host", "path"}                             where the project is
    mode      "conversation" or "autonomous"
    work      {"task", "run", "session"}                   what is being worked on
    children  run -> {"task", "agent", "epoch", "depth", "parent", "worktree", "session"}
    session   the id of the newest session
    slow      what has taken too long since the newest coordinator began
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from holdfast.backends.deadline import monotonic
from holdfast.backends.protocol import Lease
from holdfast.core.arguments import Duration, check_flag
from holdfast.core.event import to_datetime
from holdfast.core.inbox import Inbox, take_in
from holdfast.core.kernel import kernel_of
from holdfast.core.leases import HeldLease, Worker
from holdfast.core.page import NO_LIMIT
from holdfast.core.transaction import PendingCommit
from holdfast.errors import (
    HoldfastError,
    LeaseLostError,
    NeedsAttentionError,
    NotFoundError,
    RunCancelledError,
    RunFailedError,
    StillRunningError,
    UnavailableError,
    UsageError,
    show_us,
)
from holdfast.git.rewinds import Preview, RewindPoint, Rewound, What
from holdfast.joint_commit import JointCommit
from holdfast.names import new_id
from holdfast.projects import trees, work
from holdfast.projects.handoff import LASTS_S, Handoff
from holdfast.projects.housekeeping import KEY as SLOW
from holdfast.projects.housekeeping import Housekeeping
from holdfast.projects.inbox import WaitingMessage, waiting
from holdfast.projects.work import Assignment
from holdfast.record.memory import KEY as MEMORY
from holdfast.record.task_events import Task
from holdfast.record.tasks import Tasks
from holdfast.runs.engine import Engine, Run
from holdfast.runs.execution import INDEX
from holdfast.views.item import Finding

if TYPE_CHECKING:
    from holdfast.projects.project import Project
    from holdfast.record.memory import Memory

SYNC_S = 1.0
"""How often the files are checked for edits while a run is at work."""
SYNC_SHARE = 10
"""The pause between two checks of the files is at least so many times as long as a check."""
LOOK_S = 0.1
"""How often the inbox is checked while a run is at work."""
_logger = logging.getLogger("holdfast.projects")

Mode = Literal["conversation", "autonomous"]
WorkStatus = Literal["done", "blocked", "failed", "stopped"]
_OPEN = ("open", "in_progress")


class Holder(Struct, frozen=True):
    """Who coordinates a project."""

    worker: str
    epoch: int
    host: str | None
    pid: int | None
    age_s: float
    """For how long it has had the lease."""

    def __str__(self) -> str:
        where = f"process {self.pid} on {self.host}" if self.pid else f'worker "{self.worker}"'
        return f"{where}, for {show_us(round(self.age_s * 1e6))}"


class Result(Struct, frozen=True):
    """The result of work on a task; "stopped" means that a person paused it, to be resumed."""

    task: str
    status: WorkStatus
    answer: str = ""
    reason: str = ""
    run: str = ""
    usage: dict[str, int] = {}
    merged: tuple[str, ...] = ()
    """The files of a child's own work tree that were merged into the project's directory."""
    ref: str = ""
    """A ref with the files of a child that were not merged, for `git cherry-pick`."""


class Child:
    """A child agent at work on a task."""

    def __init__(self, main: Coordinator, run: Run[Any], task: str, depth: int) -> None:
        self.run = run
        self.task = task
        self.depth = depth
        self._main = main

    def result(self) -> Result:
        """Waits for the result of its work; handles messages to the coordinator meanwhile."""
        return self._main._result(self.task, self.run)

    def __repr__(self) -> str:
        return f"<Child {self.run.id} on {self.task}>"


class Coordinator:
    """Coordinates a project: `with project.coordinate() as main:`.

    Only the thread that entered the block may use it.
    """

    def __init__(self, project: Project, *, take_over: bool, wait_s: float) -> None:
        self.project = project
        self.store = project.store
        self.scope = project.scope
        self.is_replaced = False
        """Whether another coordinator has taken the lease; then this one writes nothing more."""
        self._kernel = kernel_of(self.store)
        self._engine = self._kernel.part(Engine)
        self._box = Inbox(self._kernel.log, self.scope.name)
        self._looking = Lock()
        self._take_over = take_over
        self._wait_s = wait_s
        self._lease: HeldLease | None = None
        self.findings: list[Finding] = []
        """The findings in the files of the project when it began."""
        self._views = project.views() if project.settings.views else None
        self._shown = (0, 0.0)
        self._sync_s = SYNC_S
        self.care = Housekeeping(self)
        """Watches slow operations, memory and the disk while it works."""
        self._unobserve: Callable[[], None] | None = None
        self.session: str | None = None
        """The session that messages and work belong to.

        With None, messages are answered in the project's inbox session, and work is told in the
        messages of the project's scope.
        """
        self.listen: Callable[[], None] | None = None
        """Called about ten times a second while it waits for its work, such as to read a line."""
        self.tell: Callable[[str], None] | None = None
        """Is given the answer to an interrupt, before the work goes on."""
        self.about: tuple[str | None, str] | None = None
        """A session, and what its turns are told of the directory."""
        self.strategies = work.SEARCHED
        """The strategies of a turn's context; without search once that has taken too long."""

    # --- the lease -------------------------------------------------------------------------------

    @property
    def lease(self) -> Lease:
        """The lease that fences all its commits."""
        if self._lease is None:
            raise UsageError("the project is not coordinated here", hint="use it in a with block")
        return self._lease

    def __enter__(self) -> Coordinator:
        self.project._check_place()
        self._lease = self._acquire()
        try:
            self._lease.keep()
            self._lease.fence()
            work.enter(self)
            self._unobserve = self.store.observe(self.care.observe)
            self._begin()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._leave()

    def _acquire(self) -> HeldLease:
        name = self.scope.name
        # First: the holder of a lease can be named only if it is registered as a worker.
        self._kernel.leases.register()
        if self._take_over and (held := self.project.coordinator()) is not None:
            _logger.warning('project "%s" is taken over from %s', self.project.id, held)
            self._break(name)
        try:
            return self.store.workers.lease(name, wait_s=self._wait_s)
        except LeaseLostError as error:
            held = self.project.coordinator()
            if held is None:
                raise
            raise LeaseLostError(
                f'project "{self.project.id}" has a coordinator: {held}',
                lease=name,
                epoch=held.epoch,
                hint="send it a message (--attach), or take its place (--take-over)",
            ) from error

    def _break(self, name: str) -> None:
        """Ends another worker's lease; later commits under it are refused."""
        held = self._kernel.log.leases.holder(name)
        if held is not None and held.owner != self.store.workers.own:
            self._kernel.log.leases.release(held)

    def _begin(self) -> None:
        """Notes where the project is, and adopts the children of an earlier coordinator."""
        here = {"host": socket.gethostname(), "path": str(self.project.root)}
        if self.scope.get("root") != here:
            self.scope.set("root", here)
        if self.scope.get(SLOW):
            self.scope.delete(SLOW)  # from an earlier coordinator
        for run, child in dict(self.scope.get("children", {})).items():
            if self._holder_of(run) is not None and not self._has_ended(run):
                # Its process is alive: the child continues there, under this coordinator's epoch.
                self.scope.set(("children", run), {**child, "epoch": self.lease.epoch})
        current = self._current()
        if current is not None and self._take_over:
            self._break(f"run/{current['run']}")
        trees.sweep(self.project, [*self.scope.get("children", {}), *self.unfinished()])
        self.findings = self.sync()

    def sync(self) -> list[Finding]:
        """Imports what people have edited in the five files, and writes what has changed.

        Files that cannot be written now (a full disk, no permission) are left for a later call,
        with a warning: the log has everything that they would show.
        """
        found: list[Finding] = []
        # Read before the sync: a run may commit meanwhile, and then the next call must sync again.
        revision = self.scope.revision
        if self._views is not None:
            began = monotonic()
            try:
                found = self._views.sync()
            except (UnavailableError, OSError) as error:
                _logger.warning('the files of project "%s" are behind: %s', self.project.id, error)
            took_s = monotonic() - began
            # On a slow disk the files are checked less often, so that they do not slow the work.
            self._sync_s = max(SYNC_S, SYNC_SHARE * took_s)
            self.care.took("the five files", took_s)
        self._shown = revision, monotonic()
        return found

    def _keep_shown(self) -> None:
        """Syncs the files after a change of the state, and at regular intervals for edits."""
        revision, at = self._shown
        passed_s = monotonic() - at
        has_changed = self.scope.revision != revision and passed_s >= self._sync_s - SYNC_S
        if has_changed or passed_s > self._sync_s:
            self.sync()
        self.care.look()

    def _leave(self) -> None:
        """Pauses the runs at work here, so that they can be resumed, and releases the lease."""
        for run in self._at_work():
            self._engine.suspend(run, "the coordinator has left")
        for run in self._at_work():
            self._await_pass(run)
        if self._lease is not None and self._lease.entered and not self.is_replaced:
            with contextlib.suppress(LeaseLostError):
                self._sync_s = SYNC_S
                self._keep_shown()
                self._say_slow()
        if self._unobserve is not None:
            self._unobserve()
            self._unobserve = None
        work.leave(self)
        if self._lease is not None:
            if self._lease.entered:
                self._lease.unfence()
            self._lease.give_back()
            self._lease = None

    def _say_slow(self) -> None:
        """Writes what was slow, at the end; does not fail if the store cannot be written."""
        try:
            self.care.look(now=True)
        except UnavailableError as error:
            _logger.warning('what was slow in project "%s" is not kept: %s', self.project.id, error)

    # --- what it has -----------------------------------------------------------------------------

    @property
    def tasks(self) -> Tasks:
        """The tasks of the project."""
        return self.scope.tasks

    @property
    def memory(self) -> Memory:
        """The working memory of the project."""
        return self.scope.memory

    @property
    def mode(self) -> Mode:
        """Whether it works by itself ("autonomous") or with a person ("conversation")."""
        return self.scope.get("mode", "conversation")

    def waiting(self) -> list[WaitingMessage]:
        """Returns the messages that have not been taken yet, most urgent first."""
        with self._looking:  # the thread of a run reads the same inbox
            return waiting(self._box, self.scope.name, self.lease)

    def inbox(self) -> Iterator[WaitingMessage]:
        """Yields each waiting message, most urgent first; `message.done(tx)` takes it.

        Messages that arrive meanwhile are yielded too. A message that no commit has taken is
        yielded again by the next call.
        """
        seen: set[int] = set()
        while left := [one for one in self.waiting() if one.revision not in seen]:
            seen.add(left[0].revision)
            yield left[0]

    def take(self, tx: PendingCommit, revision: int) -> None:
        """Takes the message at a revision in a commit; see `WaitingMessage.done`."""
        take_in(tx, self.scope.name, revision, self.lease)

    # --- working ---------------------------------------------------------------------------------

    def do(self, text: str, *, priority: int | str = 0, key: str | None = None) -> Result:
        """Adds a task and works on it; see `work`. With `key` it is added only once."""
        return self.work(self.tasks.add(text, priority=priority, key=key))

    def work(self, task: Task | str) -> Result:
        """Works on a task as a run until it is done, blocked, failed or stopped.

        Messages to the coordinator are handled meanwhile. Raises UsageError if the task is closed.
        """
        known = self.tasks.get(task.id if isinstance(task, Task) else task)
        if known.is_closed:
            raise UsageError(f'task "{known.id}" is {known.status}', hint="reopen it first")
        self.care.check_disk()
        id = self._free_run(known.id)
        current = {"task": known.id, "run": id}
        if self.session is not None:
            current["session"] = self.session
        self._assign(known, current, begins=True)
        return self._result(known.id, self._start(known, current))

    def resume(self) -> list[Result]:
        """Resumes the work that a stop or a crash interrupted, in the same runs.

        Paused children are resumed too. Returns the results of the coordinator's own work.
        """
        for id in self.unfinished():
            self._await_pass(id)
        children = dict(self.scope.get("children", {}))
        for id, child in children.items():
            if self._has_ended(id):
                self._settle(child["task"], id)
            elif self._holder_of(id) is None:
                self._reclaim(child["task"], child.get("agent"))
                self._start_child(id, child)  # also one whose run was never started
        found: list[Result] = []
        current = self._current()
        own = [id for id in self.unfinished() if id not in children]
        if current is not None and current["run"] not in own:
            own.insert(0, current["run"])
        for id in own:
            task = self._task_of(id, current)
            if task is None:
                continue
            # If the task is blocked or closed, the last commit of its run did that; the run only
            # has to record its end.
            known = {"task": task.id, "run": id}
            if current is not None and current["run"] == id:
                known = current  # with its session, if it was begun in one
            if task.status in _OPEN:
                self._assign(task, known)
            found.append(self._result(task.id, self._start(task, known)))
        return found

    def go_on(self) -> Iterator[Result]:
        """Works by itself, and yields each result: first what was left, then follow-ups and tasks.

        Tasks are taken by priority. It ends when nothing is ready, or after a stop.
        """
        results = self.resume()
        yield from results
        while not results or results[-1].status != "stopped":
            self.take_follow_ups()
            task = self._next()
            if task is None:
                return
            results = [self.work(task)]
            yield results[0]

    def take_follow_ups(self) -> list[Task]:
        """Turns each follow-up message into a task, in the commit that takes the message."""
        added: list[Task] = []
        for one in self.inbox():
            if one.kind == "follow-up":
                task = self.store.commit(partial(self._add_follow_up, one))
                added.append(task)
        return added

    def _add_follow_up(self, message: WaitingMessage, tx: JointCommit) -> Task:
        message.done(tx)
        key, priority = f"inbox-{message.revision}", message.value.get("priority", 0)
        return tx.scope(self.scope).tasks.add(message.text, key=key, priority=priority)

    def _next(self) -> Task | None:
        """Returns the ready task of highest priority; None if there is none."""
        return next(iter(self.tasks.ready(limit=1)), None)

    def _assign(self, task: Task, current: dict[str, str], *, begins: bool = False) -> None:
        """Claims a task for this worker and notes it as the current work, in one commit.

        When the work begins, the same commit adds the task to the messages of its session.
        """

        def assign(tx: JointCommit) -> None:  # runs again after a conflict with a child
            scope = tx.scope(self.scope)
            known = scope.tasks.get(task.id)
            if known.status == "blocked":
                scope.tasks.unblock(task.id)
            if not self._is_mine(known):
                scope.tasks.claim(task.id)
            scope.set("mode", "autonomous")
            scope.set("work", current)
            if begins:
                work.say_task(tx, self.project, known, current.get("session"))

        self.store.commit(assign)

    def _reclaim(self, id: str, owner: str | None) -> None:
        task = self.tasks.get(id)
        if task.status in _OPEN and not self._is_mine(task):
            self.tasks.claim(id, owner=owner)

    def _is_mine(self, task: Task) -> bool:
        is_held = task.status == "in_progress" and not task.suspect
        return is_held and task.worker == self.store.workers.own

    def _start(self, task: Task, current: dict[str, str]) -> Run[Any]:
        asked = Assignment(
            self.project.id,
            task.id,
            task.title,
            self.project.settings.limits.turns,
            session=current.get("session"),
            epoch=self.lease.epoch,
        )
        id = current["run"]
        return self.store.runs.start(work.work, asdict(asked), id=id, if_exists="attach")

    def _result(self, task: str, run: Run[Any]) -> Result:
        """Waits for a run, handling messages meanwhile; returns its result."""
        while True:
            if self.listen is not None:
                self.listen()
            if self._heed(run.id) == "stopped":
                return Result(task, "stopped", run=run.id, reason="a person stopped it")
            self._keep_shown()
            try:
                found = run.result(timeout=LOOK_S)
            except StillRunningError:
                continue
            except (RunFailedError, RunCancelledError, NeedsAttentionError) as error:
                return self._settle(task, run.id, error)
            self._keep_shown()
            merge = found.get("merge", {"files": (), "ref": ""})
            return Result(
                task,
                found["status"],
                found["answer"],
                found["reason"],
                run.id,
                found["usage"],
                tuple(merge["files"]),
                merge["ref"],
            )

    def _settle(self, task: str, run: str, error: Exception | None = None) -> Result:
        """Blocks a task whose run ended without an answer, for a person to look at."""
        reason = "its run ended without an answer" if error is None else str(error)
        ref = self._retired(run)
        if ref is not None:
            reason = f"{reason}; its files: git cherry-pick {ref}"

        def block(tx: JointCommit) -> None:
            scope = tx.scope(self.scope)
            known = scope.tasks.get(task)
            if known.status == "open" or self._is_mine(known) or known.suspect:
                scope.tasks.block(task, why=reason[:1000], owner=known.owner)
            scope.delete(("children", run), missing_ok=True)
            if (self._current() or {"run": ""})["run"] == run:
                scope.set("mode", "conversation")
                scope.delete("work", missing_ok=True)

        self.store.commit(block)
        return Result(task, "failed", reason=reason, run=run, ref=ref or "")

    def _retired(self, run: str) -> str | None:
        """Removes the work tree of a failed child; returns the ref of its files, if it has any."""
        child = self.scope.get("children", {}).get(run)
        if child is None or not child.get("worktree"):
            return None
        try:
            return trees.retire(self.project, run)
        except (HoldfastError, OSError) as error:
            _logger.warning('the work tree of "%s" stays: %s', run, error)
            return None

    # --- talking ---------------------------------------------------------------------------------

    def talk(self, text: str, *, revision: int = 0, id: str | None = None) -> str | None:
        """Has one exchange in the session's conversation; returns the agent's answer.

        With `revision` the text is a message of the inbox, which is taken in the commit that adds
        it to the conversation. A stop ends the wait, and then it returns None; the answer follows
        when the run of that id is resumed.
        """
        session = self.session or self.project.inbox_session
        id = id or f"{self.project.id}.{session}.{revision or new_id(self._kernel.clock)}"
        run = self.store.runs.start(
            work.talk, self.project.id, session, text, revision, id=id, if_exists="attach"
        )
        while True:
            stop = next((one for one in self.waiting() if one.kind == "stop"), None)
            if stop is not None:
                self.stop(stop)
                return None
            with contextlib.suppress(StillRunningError):
                return run.result(timeout=LOOK_S)["answer"]

    def attend(self) -> list[Result]:
        """Handles messages while there is no work; returns the results of follow-ups.

        A program that waits for a person calls it a few times a second.
        """
        for one in self.inbox():
            if one.kind == "stop":
                self.stop(one)
            elif one.kind == "interrupt":
                self.talk(one.text, revision=one.revision)
            elif one.kind == "note":
                self._note(one)
        return [self.work(task) for task in self.take_follow_ups()]

    # --- messages while it works -----------------------------------------------------------------

    def _heed(self, run: str) -> str | None:
        """Handles stop, interrupt and note messages; returns "stopped" if the work must stop."""
        for one in self.inbox():
            if one.kind == "stop":
                self.stop(one)
                return "stopped"
            if one.kind == "interrupt":
                if not self._interrupt(one, run):
                    return "stopped"
            elif one.kind == "note":
                self._note(one)
        return None

    def stop(self, message: WaitingMessage | None = None, *, let_children: bool = False) -> None:
        """Pauses the work and switches to conversation; `resume` continues the same task.

        What the runs recorded is durable before the mode is switched. The `message` is taken in
        the commit that switches it. `let_children` lets the children go on. Processes of agents
        get TERM, then KILL.
        """
        leave = let_children or bool(message and message.value.get("let_children"))
        children = self.scope.get("children", {})
        for id in self._at_work():
            if not (leave and id in children):
                self._engine.suspend(id, "a person stopped it")
        self.sync()
        with self.store.commit() as tx:
            tx.scope(self.scope).set("mode", "conversation")
            if message is not None:
                message.done(tx)

    def _interrupt(self, message: WaitingMessage, run: str) -> bool:
        """Pauses the work, answers a message and resumes; False if it was stopped meanwhile."""
        self._engine.suspend(run, "a person interrupted it")
        before = self.mode
        self.scope.set("mode", "conversation")
        answer = self.talk(message.text, revision=message.revision)
        if answer is None:
            return False
        if self.tell is not None:
            self.tell(answer)
        self._await_pass(run)
        self.scope.set("mode", before)
        if not self._has_ended(run):
            self.store.runs.resume(run)
        return True

    def _note(self, message: WaitingMessage) -> None:
        name = f"inbox-{message.revision}"
        at = to_datetime(self._kernel.clock.now_us())
        entry = {"value": message.text, "lifetime": "project", "at": at}
        with self.store.commit() as tx:
            tx.scope(self.scope).set((MEMORY, "notes", name), entry)
            message.done(tx)

    # --- going back ------------------------------------------------------------------------------

    def preview_rewind(
        self, point: RewindPoint | str, *, what: What = "all", overwrite: bool = False
    ) -> Preview:
        """Pauses the work, and returns what a rewind would do; `rewind` does it.

        The arguments are those of `Project.preview_rewind`, which pauses nothing.
        """
        self.stop()
        for id in self._at_work():
            self._await_pass(id)
        return self.project.preview_rewind(point, what=what, overwrite=overwrite)

    def rewind(
        self, point: RewindPoint | str | Preview, *, what: What = "all", overwrite: bool = False
    ) -> Rewound:
        """Goes back to a point: conversation, state, files or all; `hf.git().undo()` undoes it.

        Running work is paused first. If the state goes back, the work of that time is not resumed:
        its task can be worked on again. A file that somebody else changed after the work did stays,
        unless `overwrite` is true. With a preview of `preview_rewind` exactly that is done.
        """
        if not isinstance(point, Preview):
            point = self.preview_rewind(point, what=what, overwrite=overwrite)
        done = point.apply()
        if point.what in ("state", "all"):
            with self.store.commit() as tx:
                scope = tx.scope(self.scope)
                scope.set("mode", "conversation")
                scope.delete("work", missing_ok=True)
                scope.delete("children", missing_ok=True)
        self.sync()
        return done

    def handoff(
        self, to: str, *, reason: str, risks: Sequence[str] = (), lasts: Duration = LASTS_S
    ) -> Handoff:
        """Offers what this session knows to another; see `Project.hand_over`."""
        session = self.session or self.project.inbox_session
        return self.project.hand_over(session, to, reason=reason, risks=risks, lasts=lasts)

    # --- children --------------------------------------------------------------------------------

    def spawn(
        self,
        task: Task | str,
        agent: str | None = None,
        *,
        worktree: bool = False,
        parent: Child | None = None,
    ) -> Child:
        """Starts a child agent on a task, as a separate run that ends with the task.

        With `worktree` it works in a linked work tree, which begins with a copy of the files in the
        project's directory. When the task is done, its changes are merged back. On a conflict
        nothing is merged: the task is blocked, and `Result.ref` names a ref with the files. Raises
        UsageError if `[project.limits]` allows no more children.
        """
        if check_flag(worktree, "worktree"):
            trees.trees_of(self.project)  # raises if there is no git
        self.care.check_disk()
        known = self.tasks.get(task.id if isinstance(task, Task) else task)
        children = dict(self.scope.get("children", {}))
        depth = 1 if parent is None else parent.depth + 1
        self._check_limits(children, depth, None if parent is None else parent.run.id)
        id = self._free_run(known.id)
        entry = {"task": known.id, "agent": agent, "epoch": self.lease.epoch, "depth": depth}
        if worktree:
            entry["worktree"] = True
        if self.session is not None:
            entry["session"] = self.session

        def write(tx: JointCommit) -> None:
            scope = tx.scope(self.scope)
            scope.tasks.claim(known.id, owner=agent)
            scope.set(("children", id), {**entry, "parent": parent and parent.run.id})
            work.say_task(tx, self.project, known, self.session)

        self.store.commit(write)
        return Child(self, self._start_child(id, entry), known.id, depth)

    def _start_child(self, id: str, child: dict[str, Any]) -> Run[Any]:
        """Starts or resumes the run of a child, from its entry in the state."""
        asked = Assignment(
            self.project.id,
            child["task"],
            self.tasks.get(child["task"]).title,
            self.project.settings.limits.turns,
            session=child.get("session"),
            agent=child["agent"],
            epoch=child["epoch"],
            depth=child["depth"],
            worktree=child.get("worktree", False),
        )
        return self.store.runs.start(work.work, asdict(asked), id=id, if_exists="attach")

    def children(self) -> list[Child]:
        """Returns the children whose runs have started and not ended."""
        return [
            Child(self, self.store.runs.get(id), child["task"], child["depth"])
            for id, child in self.scope.get("children", {}).items()
            if self._exists(id) and not self._has_ended(id)
        ]

    def _check_limits(self, children: dict[str, Any], depth: int, parent: str | None) -> None:
        limits = self.project.settings.limits
        siblings = sum(child.get("parent") == parent for child in children.values())
        for what, count, most in (
            ("agents", len(children) + 2, limits.agents),  # with the new one and the coordinator
            ("depth", depth, limits.depth),
            ("children", siblings + 1, limits.children),
        ):
            if count > most:
                raise UsageError(
                    f"a child more would make {count} of project.limits.{what}: at most {most}",
                    hint=f"wait for one to end, or set {what} in [project.limits]",
                )

    # --- runs of the project ---------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """Returns the runs of work that have not ended, the coordinator's and its children's."""
        marks = self._kernel.log.marks.list(INDEX, limit=NO_LIMIT)
        return [mark.key for mark in marks if self._is_ours(mark.key, work.work.name)]

    def _is_ours(self, run: str, *names: str) -> bool:
        """Returns whether a run belongs to this project and to one of these functions."""
        if not run.startswith(f"{self.project.id}.") or not self._exists(run):
            return False
        created = self._engine.created_of(run)
        if created.name not in names:
            return False
        return work.project_of(created.name, self._engine.load(created.inputs)) == self.project.id

    def _current(self) -> dict[str, str] | None:
        """Returns the task and run of the current work, from the state; None if there is none."""
        found: Any = self.scope.get("work")
        return None if found is None else dict(found)

    def _task_of(self, run: str, current: dict[str, str] | None) -> Task | None:
        id = current["task"] if current and current["run"] == run else None
        if id is None:
            created = self._engine.created_of(run)
            id = self._engine.load(created.inputs)["assignment"]["task"]
        try:
            return self.tasks.get(id)
        except NotFoundError:
            return None

    def _free_run(self, task: str) -> str:
        number = 1
        while self._exists(id := f"{self.project.id}.{task}.{number}"):
            number += 1
        return id

    def _exists(self, run: str) -> bool:
        return self._engine.free_after(run) is None

    def _has_ended(self, run: str) -> bool:
        return self._exists(run) and self._engine.ended(run) is not None

    def _holder_of(self, run: str) -> Lease | None:
        held = self._kernel.log.leases.holder(f"run/{run}")
        return None if held is None or held.owner == self.store.workers.own else held

    def _at_work(self) -> list[str]:
        names = (work.work.name, work.talk.name)
        return [id for id in list(self._engine.active) if self._is_ours(id, *names)]

    def _await_pass(self, run: str) -> None:
        """Waits until a run that is being paused here has left its pass."""
        while (active := self._engine.active.get(run)) is not None and active.leaving is not None:
            active.over.wait(LOOK_S)


def holder_of(project: Project) -> Holder | None:
    """Returns the current coordinator of a project; None if there is none."""
    store, name = project.store, project.scope.name
    kernel = kernel_of(store)
    held = kernel.log.leases.holder(name)
    if held is None:
        return None
    since_us = kernel.clock.now_us()
    head = kernel.log.head(f"lease/{name}")
    age_s = 0.0 if head is None else max(0, since_us - head.time) / 1e6
    workers: list[Worker] = kernel.leases.workers()
    worker = next((one for one in workers if one.id == held.owner), None)
    host, pid = (None, None) if worker is None else (worker.host, worker.pid)
    if held.owner == store.workers.own:
        host, pid = socket.gethostname(), os.getpid()
    return Holder(held.owner, held.epoch, host, pid, age_s)

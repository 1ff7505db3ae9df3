"""Tasks: what must be done, by whom, in which order, and whether the owner is still alive.

A claim is an event. It is valid while the worker's lease is, and the lease keeper renews that one
lease, so a claim needs none of its own. When the lease has lapsed, the task is suspect and another
worker may claim it. The old owner cannot write to it any more, however late it wakes up: every
event of a scope's tasks is numbered, and an event that the old owner meant to write after its claim
is refused, because the new claim has that number (`task_events.py`). No clock is involved in that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.deadline import monotonic
from holdfast.backends.protocol import Cleared, Lease, Mark
from holdfast.core import codec
from holdfast.core.arguments import (
    Duration,
    check_duration,
    check_seconds,
    check_text,
    check_whole,
    older_bound,
)
from holdfast.core.commit import NewEvent
from holdfast.core.event import from_datetime, to_datetime
from holdfast.core.page import NO_LIMIT, PAGE_SIZE, Key, Page, check_limit, cut
from holdfast.core.sealing import noted_reads
from holdfast.errors import (
    ConflictError,
    ExistsError,
    ExpiredError,
    LeaseLostError,
    NotFoundError,
    UnavailableError,
    UsageError,
    show_value,
)
from holdfast.record import keyed_item, task_events
from holdfast.record.context import RecordContext, Stale
from holdfast.record.in_run import next_place, refuse_in_body
from holdfast.record.keyed_item import KeyedItem
from holdfast.record.ready_tasks import rank
from holdfast.record.task_events import (
    INDEX_CLAIM,
    INDEX_TASK,
    Task,
    TaskEvent,
    TaskFilter,
    TaskTable,
    check_fields,
    check_filter,
    check_status,
    indexes,
)

if TYPE_CHECKING:
    from holdfast.scope import Scope

_logger = logging.getLogger("holdfast.record")

AMENDED_US = 30 * 86_400_000_000
"""How long a claim lasts that `amend` makes in somebody's name."""
LOOK_S = 1.0
"""How often a waiting claim looks without an event: no event says that an owner has died."""

# --- owners ---------------------------------------------------------------------------------------
#
# Whether the owners of tasks are alive. It is not stored, but judged when a task is read.


class OwnerStatus:
    """Tells which owners of tasks are alive at one moment; looks up each worker once."""

    def __init__(self, context: RecordContext) -> None:
        self._context = context
        self._leases: dict[str, Lease | None] = {}
        self._heartbeats: dict[str, datetime] | None = None

    def is_held(self, task: Task) -> bool:
        """Returns whether the claim of a task in progress is still valid."""
        if task.until is not None:
            return to_datetime(self._context.log.clock.now_us()) < task.until
        assert task.worker is not None, "BUG: in progress without an owner"
        if task.worker not in self._leases:
            name = f"worker/{task.worker}"
            self._leases[task.worker] = self._context.log.leases.holder(name)
        lease = self._leases[task.worker]
        # A worker that was silent too long goes on in a new epoch. Meanwhile others may have taken
        # its tasks, so claims of the old epoch are not valid and must be made again.
        return lease is not None and lease.epoch == task.epoch

    def annotate(self, scope: str, tasks: dict[str, Task], task: Task) -> Task:
        """Returns one of a scope's tasks with the fields that are known only when it is read."""
        is_claimed = task.status == "in_progress"
        return replace(
            task,
            scope=scope,
            suspect=is_claimed and not self.is_held(task),
            heartbeat=self._heartbeat(task) if is_claimed else None,
            waits_for=waits_for(tasks, task),
        )

    def _heartbeat(self, task: Task) -> datetime | None:
        if task.worker is None:
            return task.held_at
        if self._heartbeats is None:
            workers = self._context.lease_keeper.workers()
            self._heartbeats = {worker.id: worker.last_heartbeat for worker in workers}
        return self._heartbeats.get(task.worker)


def waits_for(tasks: dict[str, Task], task: Task) -> tuple[str, ...]:
    """Returns the dependencies of a task that are not closed; none if it is closed itself."""
    if task.is_closed:
        return ()
    return tuple(id for id in task.dependencies if not tasks[id].is_closed)


# --- tasks across scopes --------------------------------------------------------------------------
#
# The tasks of all scopes of a store, and what closing or restoring a scope does to its tasks. They
# are found by their marks, so a stream without tasks is not read.


def marked_tasks(
    context: RecordContext, index: str = INDEX_TASK
) -> Iterator[tuple[TaskTable, Task]]:
    """Yields the tasks that have a mark in an index, of all scopes, highest priority first."""
    expired: set[str] = set()
    tables: dict[str, TaskTable] = {}
    for mark in context.log.marks.list(index, limit=NO_LIMIT):
        item = KeyedItem.from_mark(INDEX_TASK, mark, context.log)
        if item.stream not in tables and item.stream not in expired:
            table = context.tables.of(item.stream)
            try:
                with noted_reads():  # the answer may be from other scopes
                    table.refresh()
            except ExpiredError:
                _logger.debug('scope "%s" has expired: its tasks are passed over', item.stream)
                expired.add(item.stream)
                continue
            tables[item.stream] = table
        table = tables.get(item.stream)
        task = None if table is None else table.tasks.get(item.name)
        # The marks were listed earlier: the task may have been closed since.
        if table is not None and task is not None and index in indexes(task):
            yield table, task


def open_tasks(
    context: RecordContext,
    *,
    status: str | Sequence[str] | None,
    owner: str | None,
    epic: str | None,
    tag: str | None,
    suspect: bool | None,
    after: str | None,
    limit: int | None,
) -> Page[Task]:
    """Returns a page of the open tasks of all scopes, highest priority first, then oldest."""
    task_filter = check_filter(status, owner, epic, tag, suspect)
    check_limit(limit)
    owners = OwnerStatus(context)
    found = [
        seen
        for table, task in marked_tasks(context)
        if task_filter.matches(task)
        and suspect in (None, (seen := owners.annotate(table.stream, table.tasks, task)).suspect)
    ]
    page = cut("tasks", sorted(found, key=_page_key), _page_key, after=after, limit=limit)
    for stream in {task.scope for task in page}:
        context.log.tell_reader_of(stream)
    return page


def _page_key(task: Task) -> Key:
    return -task.priority, from_datetime(task.created_at), task.scope, task.order


def stale_tasks(context: RecordContext) -> Iterator[Stale]:
    """Yields the tasks whose owner is silent."""
    owners = OwnerStatus(context)
    for table, task in marked_tasks(context, INDEX_CLAIM):
        if not owners.is_held(task):
            context.log.tell_reader_of(table.stream)
            text = f'"{task.owner}" is silent: {task.title}'
            yield Stale("task", task.id, table.stream, "owner silent", text, task.updated_at)


def cancel_tasks(context: RecordContext, scope: Scope, outcome: str) -> None:
    """Cancels all open tasks of a scope that is being closed, in one commit."""
    table = context.tables.of(scope.name)
    with table.lock:
        while True:
            table.refresh()
            if all(task.is_closed for task in table.tasks.values()):
                return
            try:
                table.commit(scope, task_events.ENDED, {"outcome": outcome, "by": context.worker})
            except ConflictError:
                _logger.debug('the tasks of "%s" changed: cancelling again', scope.name)
                continue
            return


def has_open_tasks(context: RecordContext, stream: str) -> bool:
    """Returns whether a scope has a task that is not closed."""
    table = context.tables.of(stream)
    with table.lock:
        table.refresh()
        return not all(task.is_closed for task in table.tasks.values())


def tasks_in_progress(context: RecordContext, stream: str) -> Iterator[str]:
    """Yields a text for each task that a live worker holds: the reasons not to remove the scope."""
    table = context.tables.of(stream)
    with table.lock:
        table.refresh()
        owners = OwnerStatus(context)
        for task in table.tasks.values():
            if task.status == "in_progress" and owners.is_held(task):
                yield f'task "{task.id}" is in progress, by worker "{task.worker}"'


class TaskRestore(Struct, frozen=True):
    """What the restore of a scope adds to its commit to restore the tasks too."""

    events: KeyedItem
    number: int
    new_event: NewEvent
    marks: tuple[Mark | Cleared, ...]

    @property
    def key(self) -> str:
        return self.events.key(self.number)


def restore_tasks(context: RecordContext, stream: str, to: int) -> TaskRestore | None:
    """Returns the event that restores a scope's tasks to a revision; None if nothing changed."""
    table = context.tables.of(stream)
    with table.lock:
        table.refresh()
        back = task_events.restore_changes(table.tasks, table.at(to)) if table.number else None
        return _restoring(context, table, to, back)


def undo_restore_of_tasks(context: RecordContext, stream: str, undoes: int) -> TaskRestore | None:
    """Returns the event that undoes a restore of a scope's tasks; None if there is nothing to undo.

    A task that was changed after the restore stays as it is. A restore's effect on tasks is the
    event right after it, in the same commit.
    """
    records = context.log.records(stream, after=undoes, until=undoes + 1) if undoes else []
    if not records or records[0].type != task_events.RESTORED:
        return None
    table = context.tables.of(stream)
    with table.lock:
        table.refresh()
        before, after = table.at(undoes), table.at(undoes + 1)
        back = {
            id: task
            for id, task in task_events.restore_changes(after, before).items()
            if table.tasks.get(id) == after.get(id)
        }
        return _restoring(context, table, undoes - 1, back)


def _restoring(
    context: RecordContext, table: TaskTable, to: int, back: dict[str, Any] | None
) -> TaskRestore | None:
    """Returns the event that sets tasks to the values in `back`; None if there are none."""
    if not back:
        return None
    number = table.number + 1
    data = {"to": to, "tasks": back, "by": context.worker}
    event = TaskEvent(task_events.RESTORED, data, 0, number)
    marks = table.marks(task_events.advance(table.tasks, event))
    new_event = NewEvent(task_events.RESTORED, codec.encode_plain(data))
    return TaskRestore(table.events, number, new_event, marks)


TaskStep = tuple[str, dict[str, Any]]


# --- the tasks of one scope -----------------------------------------------------------------------


class Tasks:
    """The tasks of one scope, including those that a fork inherited."""

    def __init__(self, context: RecordContext, scope: Scope) -> None:
        self._context = context
        self._log = context.log
        self._scope = scope
        self._stream = scope.name

    # --- reading ---------------------------------------------------------------------------------

    def get(self, id: str) -> Task:
        """Returns the task with that id, or raises NotFoundError."""
        table = self._fresh()
        with table.lock:
            return self._annotated(table.tasks, self._find(table, id), OwnerStatus(self._context))

    def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        owner: str | None = None,
        epic: str | None = None,
        tag: str | None = None,
        suspect: bool | None = None,
        older_than: object = None,
        at: int | None = None,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[Task]:
        """Returns a page of the tasks that match, highest priority first, then oldest.

        `status` is one status or several. `older_than` is a length of time since the last change.
        `at` is a revision of the scope, to see the tasks as they were then. The page's cursor,
        given as `after`, leads to the next page.
        """
        task_filter = check_filter(status, owner, epic, tag, suspect)
        latest = None if older_than is None else older_bound(self._log.clock.now_us(), older_than)
        check_limit(limit)
        table = self._fresh()
        with table.lock:
            known = table.tasks if at is None else self._at(table, at)
            owners = OwnerStatus(self._context) if at is None else None
            found = [
                self._annotated(known, task, owners)
                for task in sorted(known.values(), key=rank)
                if task_filter.matches(task) and (latest is None or task.updated_at <= latest)
            ]
        fits = [task for task in found if suspect in (None, task.suspect)]
        return cut("tasks of one scope", fits, rank, after=after, limit=limit)

    def ready(self, *, limit: int | None = PAGE_SIZE) -> list[Task]:
        """Returns the tasks that can be begun, highest priority first, then oldest.

        They are open and wait for no other task, or are in progress and their owner is silent. The
        cost depends on `limit` and the tasks in progress, not on the number of all tasks.
        """
        check_limit(limit)
        table = self._fresh()
        with table.lock:
            owners = OwnerStatus(self._context)
            found = merge(table.ready, sorted(_silent(table, owners), key=rank), key=rank)
            return [self._annotated(table.tasks, task, owners) for task in islice(found, limit)]

    def _at(self, table: TaskTable, revision: int) -> dict[str, Task]:
        head = self._log.head(self._stream)
        newest = 0 if head is None else head.revision
        if check_whole(revision, "at") > newest:
            raise NotFoundError(
                f'scope "{self._stream}" has no revision {revision}: its newest is {newest}'
            )
        return table.at(revision)

    # --- writing ---------------------------------------------------------------------------------

    def add(
        self,
        title: str,
        *,
        priority: int | str = 0,
        epic: str | None = None,
        tags: Sequence[str] = (),
        depends_on: Sequence[str] = (),
        id: str | None = None,
        key: str | None = None,
    ) -> Task:
        """Adds a task and returns it; durable when it returns.

        Without an `id` the task gets the next of t1, t2, … A task is added once per `key`: the same
        key with the same title again returns the task that is there.
        """
        fields = {"title": title, "priority": priority, "epic": epic, "tags": tags}
        data = check_fields({**fields, "dependencies": depends_on})
        data = {name: value for name, value in data.items() if value not in (None, [], 0)}
        if id is not None:
            id = keyed_item.check_item_name(id, "a task's id")
        key = next_place() if key is None else keyed_item.check_item_name(key, "a task's key")
        if key is not None:
            data["key"] = key

        def make(table: TaskTable) -> Task | TaskStep:
            for task in table.tasks.values():
                if key is not None and task.key == key:
                    _check_same(task, data, id)
                    return task
            name = _free_id(table) if id is None else id
            if name in table.tasks:
                raise ExistsError(
                    f'"{self._stream}" already has a task "{name}"', hint="use another id"
                )
            self._check_dependencies(table, name, data.get("dependencies", []))
            return task_events.ADDED, {"id": name, **data}

        return self._write(make)

    def update(self, task: Task | str, **fields: Any) -> Task:
        """Changes title, priority, epic, tags or depends_on, or adds a note; anybody may do so.

        `owner` assigns an open or blocked task to somebody: for others it is never the next task.
        """
        if "depends_on" in fields:
            fields["dependencies"] = fields.pop("depends_on")
        data = check_fields(fields)
        if not data:
            raise UsageError("update needs a field to change: there is nothing to change")

        def make(table: TaskTable) -> TaskStep:
            known = self._find(table, task)
            if known.is_closed and data.keys() != {"note"}:
                raise self._wrong_status(table, known, "be changed")
            if "owner" in data and known.status == "in_progress":
                raise self._lost(known)
            self._check_dependencies(table, known.id, data.get("dependencies", []))
            return task_events.CHANGED, {"id": known.id, **data}

        return self._write(make)

    def claim(
        self,
        id: Task | str | None = None,
        *,
        owner: str | None = None,
        epic: str | None = None,
        tag: str | None = None,
        lasts: object = None,
        wait_s: Duration | None = None,
    ) -> Task | None:
        """Claims a task for this worker: the given one, or the next; None if there is no next one.

        The next task is the one of highest priority whose dependencies are closed and which nobody
        holds, or whose owner is silent. With `wait_s` the call waits up to so many seconds for a
        next task: until somebody adds or releases one, closes a dependency, or dies.

        The claim lasts while this worker lives. A claim for somebody who is not a worker has a name
        and a duration: `claim("t1", owner="ana", lasts="8h")`. After an error that leaves the
        outcome unknown, call it again: it returns the task that was claimed.
        """
        refuse_in_body("a claim")
        check_filter(None, None, epic, tag, None)
        named = None if owner is None else keyed_item.check_item_name(owner, "an owner")
        lasts_s = None if lasts is None else check_duration(lasts, "lasts")
        if lasts_s is not None and named is None:
            raise UsageError("a claim with a duration needs a name: owner=")
        own = None if lasts_s is not None else self._own_lease()

        def make(table: TaskTable) -> Task | TaskStep | None:
            owners = OwnerStatus(self._context)
            claim = self._claim(named, lasts_s, own)
            known = None if id is None else self._find(table, id)
            asked = TaskFilter(None, claim["owner"], epic, tag)

            def fits(task: Task) -> bool:
                is_asked = task is known if known is not None else asked.matches(task)
                return is_asked and task.worker == claim.get("worker")

            if (found := self._unanswered(table, owners, fits)) is not None:
                return found
            if known is None:
                known = self._next(table, owners, claim["owner"], epic, tag)
                if known is None:
                    return None
            else:
                self._check_claimable(table, owners, known)
            return task_events.CLAIMED, {"id": known.id, **claim}

        if wait_s is None:
            return self._write_or_not(make)
        ends = monotonic() + self._check_wait(id, wait_s)
        while True:
            seen = self._log.position()
            found = self._write_or_not(make)
            left_s = ends - monotonic()
            if found is not None or left_s <= 0:
                return found
            self._log.wait_after(seen, min(left_s, LOOK_S))

    def _check_wait(self, id: object, wait_s: object) -> float:
        """Returns how long a claim waits, or raises UsageError if it cannot wait."""
        if id is not None or self._log.is_gathering:
            where = "inside a joint commit" if id is None else "for a task that is named"
            raise UsageError(f"wait_s waits for the next task, not {where}")
        return check_seconds(wait_s, "wait_s")

    def heartbeat(
        self, task: Task | str, *, owner: str | None = None, lasts: object = None
    ) -> Task:
        """Confirms that the owner still works on the task; LeaseLostError if it lost the claim.

        A worker's own claim does not need this. A claim by name is extended by `lasts` from now.
        """
        lasts_s = None if lasts is None else check_duration(lasts, "lasts")

        def make(table: TaskTable) -> Task | TaskStep:
            known = self._find(table, task)
            if known.status != "in_progress":
                raise self._lost(known)
            self._check_holds(table, known, task, owner, or_suspect=False)
            if known.until is None:
                return known
            if lasts_s is None:
                raise UsageError(f'the claim of task "{known.id}" has a duration: give lasts=')
            until = self._log.clock.now_us() + round(lasts_s * 1_000_000)
            return task_events.HELD, {"id": known.id, "until": until}

        return self._write(make)

    def release(
        self, task: Task | str, *, owner: str | None = None, why: str | None = None
    ) -> Task:
        """Gives back an unfinished task, so that it is open; for a silent owner anybody may."""
        return self._move(task, owner, task_events.RELEASED, {"why": _check_why(why)})

    def block(self, task: Task | str, *, owner: str | None = None, why: str | None = None) -> Task:
        """Blocks a task: nobody can claim it until it is unblocked."""
        return self._move(task, owner, task_events.BLOCKED, {"why": _check_why(why)})

    def unblock(self, task: Task | str) -> Task:
        """Opens a blocked task again."""
        return self._move(task, None, task_events.UNBLOCKED, {})

    def close(
        self,
        task: Task | str,
        outcome: str,
        *,
        status: Literal["completed", "cancelled"] = "completed",
        owner: str | None = None,
    ) -> Task:
        """Closes a task with its outcome; tasks that waited only for it can then be claimed."""
        if status not in task_events.CLOSED_STATUSES:
            statuses = " or ".join(task_events.CLOSED_STATUSES)
            raise UsageError(f"a task ends {statuses}, found {show_value(status)}")
        data = {"status": status, "outcome": check_text(outcome, "an outcome")}
        return self._move(task, owner, task_events.CLOSED, data)

    def reopen(self, task: Task | str, *, why: str | None = None) -> Task:
        """Opens a closed task again."""
        return self._move(task, None, task_events.REOPENED, {"why": _check_why(why)})

    def amend(
        self,
        task: Task | str,
        *,
        status: str | None = None,
        outcome: str | None = None,
        why: str | None = None,
        **fields: Any,
    ) -> Task:
        """Corrects a task by hand: sets any status, and any field of `update`.

        Neither the present status nor a claim prevents it: a worker that holds the task loses it.
        If the task becomes one in progress, its `owner` has it by name, for 30 days. Each change is
        an event and a commit of its own.
        """
        if "depends_on" in fields:
            fields["dependencies"] = fields.pop("depends_on")
        data = check_fields(fields)
        known = self.get(task.id if isinstance(task, Task) else task)
        [target] = check_status(status) or (known.status,)
        owner = data.get("owner", known.owner) if target == "in_progress" else None
        is_claim = target == "in_progress" and (known.status, known.owner) != (target, owner)
        if target == "in_progress":
            data.pop("owner", None)
        steps = _steps_to(known, target, _check_why(outcome), _check_why(why))
        if is_claim:
            until = self._log.clock.now_us() + AMENDED_US
            steps.append((task_events.CLAIMED, {"owner": owner or self._log.actor, "until": until}))
        if data:
            steps.append((task_events.CHANGED, data))
        for type, said in steps:
            known = self._write(partial(self._amended, known.id, type, said))
        return known

    def _amended(self, id: str, type: str, data: dict[str, Any], table: TaskTable) -> TaskStep:
        self._check_dependencies(table, id, data.get("dependencies", []))
        return type, {"id": self._find(table, id).id, **data}

    # --- helpers ---------------------------------------------------------------------------------

    def _annotated(self, tasks: dict[str, Task], task: Task, owners: OwnerStatus | None) -> Task:
        if owners is not None:
            return owners.annotate(self._stream, tasks, task)
        return replace(task, scope=self._stream, waits_for=waits_for(tasks, task))

    def _fresh(self) -> TaskTable:
        table = self._context.tables.of(self._stream)
        table.refresh()
        return table

    def _find(self, table: TaskTable, task: object) -> Task:
        id = task.id if isinstance(task, Task) else task
        if not isinstance(id, str):
            raise UsageError(f"a task is a Task or its id, found {show_value(id)}")
        if id not in table.tasks:
            raise NotFoundError(
                f'"{self._stream}" has no task {show_value(id)}',
                hint="list the tasks of the scope: each has its id",
            )
        return table.tasks[id]

    def _move(self, task: Task | str, owner: str | None, type: str, data: dict[str, Any]) -> Task:
        data = {name: value for name, value in data.items() if value is not None}
        sources, target = task_events.TRANSITIONS[type]

        def make(table: TaskTable) -> TaskStep:
            known = self._find(table, task)
            if _was_held(task) or known.status == "in_progress":
                self._check_holds(table, known, task, owner, or_suspect=True)
            if known.status not in sources:
                raise self._wrong_status(table, known, f"become {target}")
            return type, {"id": known.id, **data}

        return self._write(make)

    def _write(self, make: Callable[[TaskTable], Task | TaskStep]) -> Task:
        found = self._write_or_not(make)
        assert found is not None, "BUG: a change that made nothing"
        return found

    def _write_or_not(self, make: Callable[[TaskTable], Task | TaskStep | None]) -> Task | None:
        """Commits the event that `make` returns for the newest table, and retries on a conflict.

        The retries have no limit: each one means that another writer's event was written, so some
        writer always makes progress.
        """
        table = self._context.tables.of(self._stream)
        with table.lock:
            while True:
                table.refresh()
                step = make(table)
                if isinstance(step, tuple) and step[0] != task_events.ADDED:
                    refuse_in_body("a change of a task")
                if step is None:
                    return None
                if isinstance(step, Task):
                    return self._annotated(table.tasks, step, OwnerStatus(self._context))
                type, data = step
                try:
                    table.commit(self._scope, type, {**data, "by": self._context.worker})
                except UnavailableError as error:
                    if type == task_events.CLAIMED and not error.outcome_known:
                        table.unanswered.append((table.number + 1, data))
                    raise
                except ConflictError:
                    _logger.debug('the tasks of "%s" changed: writing again', self._stream)
                    continue
                task = table.tasks[data["id"]]
                return self._annotated(table.tasks, task, OwnerStatus(self._context))

    def _own_lease(self) -> Lease:
        lease_keeper = self._context.lease_keeper
        while True:
            lease_keeper.register()
            lease = self._log.leases.holder(f"worker/{lease_keeper.worker}")
            if lease is not None:
                return lease
            # The lease lapsed while this process was stopped, and the lease keeper is about to take
            # it again. A claim without it would be suspect from the start.
            _logger.debug('the lease of worker "%s" has lapsed: waiting', lease_keeper.worker)
            self._log.clock.sleep(0.01)

    def _next(
        self, table: TaskTable, owners: OwnerStatus, owner: str, epic: str | None, tag: str | None
    ) -> Task | None:
        task_filter = TaskFilter(task_events.TRANSITIONS[task_events.CLAIMED][0], None, epic, tag)
        free = (task for task in table.ready if task.owner in (None, owner))
        first = next((task for task in free if task_filter.matches(task)), None)
        silent = [task for task in _silent(table, owners) if task_filter.matches(task)]
        return min([*silent, *([first] if first else [])], key=rank, default=None)

    def _claim(self, named: str | None, lasts_s: float | None, own: Lease | None) -> dict[str, Any]:
        """Returns the fields of a claim that say who holds the task, and for how long."""
        claim: dict[str, Any] = {"owner": named or self._context.worker}
        if lasts_s is not None:
            claim["until"] = self._log.clock.now_us() + round(lasts_s * 1_000_000)
        elif own is not None:
            claim |= {"worker": own.owner, "epoch": own.epoch}
        return claim

    def _unanswered(
        self, table: TaskTable, owners: OwnerStatus, fits: Callable[[Task], bool]
    ) -> Task | None:
        """Returns a task that an earlier call claimed with an unknown outcome, if one fits.

        Its worker is alive, so the claim is valid, but nobody works on the task. Without this call
        nobody would ever get it. Each such task is returned once.
        """
        for number, data in list(table.unanswered):
            if number > table.number:
                continue  # the claim was not written, or is still on its way
            task = table.tasks.get(data["id"])
            is_there = task is not None and _is_claim(task, number, data) and owners.is_held(task)
            if task is not None and is_there and not fits(task):
                continue
            if is_there:
                table.answered(number)
                return task
            table.unanswered.remove((number, data))
        return None

    def _check_claimable(self, table: TaskTable, owners: OwnerStatus, task: Task) -> None:
        if task.status not in task_events.TRANSITIONS[task_events.CLAIMED][0]:
            raise self._wrong_status(table, task, "be claimed")
        if task.status == "in_progress" and owners.is_held(task):
            raise self._lost(task)
        if waits := waits_for(table.tasks, task):
            names = ", ".join(f'"{id}"' for id in waits)
            raise _conflict(
                table, f'task "{task.id}" waits for {names}', "close what it depends on first"
            )

    def _check_holds(
        self,
        table: TaskTable,
        known: Task,
        given: Task | str,
        owner: str | None,
        *,
        or_suspect: bool,
    ) -> None:
        """Raises LeaseLostError unless the caller holds the task, or its owner is silent."""
        if isinstance(given, Task) and given.claim != known.claim and _was_held(given):
            raise self._lost(known)
        if known.status != "in_progress":
            raise self._lost(known)
        name = owner or (given.owner if isinstance(given, Task) else None)
        if known.until is not None:
            is_mine = name == known.owner
        else:
            is_mine = known.worker == self._context.worker and name in (None, known.owner)
        if not is_mine and not (or_suspect and not OwnerStatus(self._context).is_held(known)):
            raise self._lost(known)

    def _lost(self, task: Task) -> LeaseLostError:
        if task.status == "in_progress":
            found = f'is held by "{task.owner}"'
        else:
            found = f"is {task.status}, and nobody holds it"
        return LeaseLostError(
            f'task "{task.id}" of "{self._stream}" {found}',
            lease=f"task/{task.id}",
            epoch=task.claim,
            hint="stop the work on it, or claim it when its owner is silent",
        )

    def _wrong_status(self, table: TaskTable, task: Task, change: str) -> ConflictError:
        return _conflict(
            table,
            f'task "{task.id}" is {task.status}: it cannot {change}',
            "reopen it first" if task.is_closed else "unblock or claim it first",
        )

    def _check_dependencies(self, table: TaskTable, id: str, dependencies: Sequence[str]) -> None:
        for one in dependencies:
            if one not in table.tasks and one != id:
                raise NotFoundError(
                    f'task "{id}" cannot depend on "{one}": "{self._stream}" has no such task',
                    hint="add that one first",
                )
        if cycle := task_events.find_cycle(table.tasks, id, dependencies):
            raise UsageError(
                f'task "{id}" would wait for itself: {" -> ".join(cycle)}',
                hint="remove one of these dependencies",
            )


def _steps_to(task: Task, target: str, outcome: str | None, why: str | None) -> list[TaskStep]:
    """Returns the events, without a claim, that lead a task from any status to another."""
    steps: list[TaskStep] = []
    status = task.status
    is_said = (task.is_closed and outcome not in (None, task.outcome)) or (
        not task.is_closed and why not in (None, task.why)
    )
    if status == target and not is_said:
        return steps
    reason = {} if why is None else {"why": why}
    if task.is_closed:
        steps.append((task_events.REOPENED, reason))
    elif status == "in_progress" and target == "open":
        steps.append((task_events.RELEASED, reason))
    elif status == "blocked" and target in ("open", "in_progress"):
        steps.append((task_events.UNBLOCKED, reason))
    elif status == "open" and target == "open":
        steps.append((task_events.RELEASED, reason))
    if target == "blocked":
        steps.append((task_events.BLOCKED, reason))
    elif target in task_events.CLOSED_STATUSES:
        kept = task.outcome if status == target else None
        said = outcome or kept or f"{target} by hand"
        steps.append((task_events.CLOSED, {"status": target, "outcome": said}))
    return steps


def _silent(table: TaskTable, owners: OwnerStatus) -> Iterator[Task]:
    """Yields the tasks in progress whose owner is silent and that wait for no other task."""
    for id in table.ready.in_progress:
        task = table.tasks[id]
        if not waits_for(table.tasks, task) and not owners.is_held(task):
            yield task


def _is_claim(task: Task, number: int, data: dict[str, Any]) -> bool:
    """Returns whether a task is held by the claim with that number and content."""
    until = None if task.until is None else from_datetime(task.until)
    held = (task.claim, task.owner, task.worker, task.epoch, until)
    made = (number, data["owner"], data.get("worker"), data.get("epoch", 0), data.get("until"))
    return task.status == "in_progress" and held == made


def _was_held(given: Task | str) -> bool:
    return isinstance(given, Task) and given.status == "in_progress"


def _check_why(why: object) -> Any:
    return check_text(why, "why", optional=True)


def _check_same(task: Task, data: dict[str, Any], id: str | None) -> None:
    """Raises UsageError if a key was used for another task."""
    if id not in (None, task.id) or task.title != data["title"]:
        raise UsageError(
            f'key "{task.key}" was used for another task: "{task.id}", {show_value(task.title)}',
            hint="use a new key",
        )


def _free_id(table: TaskTable) -> str:
    number = len(table.tasks) + len(table.gone) + 1
    while f"t{number}" in table.tasks or f"t{number}" in table.gone:
        number += 1
    return f"t{number}"


def _conflict(table: TaskTable, message: str, hint: str) -> ConflictError:
    revision = table.revision
    return ConflictError(
        message, stream=table.stream, expected=revision, actual=revision, hint=hint
    )

"""Tasks as they are read: the events of a scope's tasks folded into a table.

    task.added      {"id", "title", "priority"?, "epic"?, "tags"?, "dependencies"?, "key"?}
    task.changed    {"id", …}                 title, priority, epic, tags, dependencies, note, owner
    task.claimed    {"id", "owner", "worker", "epoch"}, or with "until" in place of these two
    task.held       {"id", "until"}           a claim by name goes on until then
    task.released   {"id", "why"?}
    task.blocked    {"id", "why"?}
    task.unblocked  {"id"}
    task.closed     {"id", "status", "outcome"}
    task.reopened   {"id", "why"?}
    task.restored   {"to", "tasks"}           the scope was restored: each changed task, or null
    task.ended      {"outcome"}               the scope was closed: open tasks are cancelled

Each also has "by", the worker that wrote it; the event's actor says in whose name. A table is a
left fold of these events and of nothing else. So every process, fork and copy folds the same table
at the same revision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.backends.protocol import Cleared, Lease, Mark, Record
from holdfast.core import codec
from holdfast.core.arguments import check_flag, check_text
from holdfast.core.commit import NewEvent
from holdfast.core.event import FORKED, Event, to_datetime
from holdfast.core.log import Log, scope_stream
from holdfast.core.meta import source_and_trust
from holdfast.errors import CorruptError, HoldfastError, UsageError, show_value
from holdfast.names import is_of_actor
from holdfast.record import keyed_item
from holdfast.record.keyed_item import KeyedItem, check_item_name, parse_priority
from holdfast.record.ready_tasks import ReadyTasks

if TYPE_CHECKING:
    from holdfast.scope import Scope

_logger = logging.getLogger("holdfast.record")

PREFIX = "task."
ADDED = "task.added"
CHANGED = "task.changed"
CLAIMED = "task.claimed"
HELD = "task.held"
RELEASED = "task.released"
BLOCKED = "task.blocked"
UNBLOCKED = "task.unblocked"
CLOSED = "task.closed"
REOPENED = "task.reopened"
RESTORED = "task.restored"
ENDED = "task.ended"

TaskStatus = Literal["open", "in_progress", "blocked", "completed", "cancelled"]
STATUSES: tuple[str, ...] = get_args(TaskStatus)
CLOSED_STATUSES = ("completed", "cancelled")

TRANSITIONS: dict[str, tuple[tuple[str, ...], str]] = {
    CLAIMED: (("open", "in_progress"), "in_progress"),
    HELD: (("in_progress",), "in_progress"),
    RELEASED: (("in_progress",), "open"),
    BLOCKED: (("open", "in_progress"), "blocked"),
    UNBLOCKED: (("blocked",), "open"),
    CLOSED: (("open", "in_progress", "blocked"), "completed or cancelled"),
    REOPENED: (CLOSED_STATUSES, "open"),
}
"""For each event, the statuses in which it is allowed, and the status that it leads to."""


class StatusChange(Struct, frozen=True):
    """One line of a task's history: a status, since when, and who set it."""

    status: TaskStatus
    at: datetime
    by: str
    owner: str | None = None
    why: str | None = None


class Task(Struct, frozen=True, kw_only=True):
    """A task at the time it was read."""

    id: str
    title: str
    priority: int = 0
    status: TaskStatus = "open"
    owner: str | None = None
    epic: str | None = None
    tags: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    outcome: str | None = None
    note: str | None = None
    why: str | None = None
    """Why it is blocked, or was released or reopened."""
    created_at: datetime
    created_by: str
    started_at: datetime | None = None
    completed_at: datetime | None = None
    updated_at: datetime
    history: tuple[StatusChange, ...] = ()
    key: str | None = None
    worker: str | None = None
    """The worker that holds it; None for a claim by name."""
    epoch: int = 0
    until: datetime | None = None
    claim: int = 0
    """The number of the event that claimed it. It only grows, so it fences off late owners."""
    order: int = 0
    held_at: datetime | None = None
    source: str | None = None
    """Where it came from, as the writer said."""
    trust: str | None = None
    # Known only when the task is read:
    scope: str = ""
    suspect: bool = False
    """Whether it is in progress and its owner is silent: another worker may claim it."""
    heartbeat: datetime | None = None
    waits_for: tuple[str, ...] = ()

    @property
    def is_closed(self) -> bool:
        """Whether it is over: completed or cancelled."""
        return self.status in CLOSED_STATUSES

    @property
    def lease(self) -> Lease | None:
        """The lease that the claim depends on, for `hf.commit(lease=task.lease)`."""
        if self.worker is None:
            return None
        return Lease(f"worker/{self.worker}", self.worker, self.epoch, 0)


class TaskEvent(Struct, frozen=True):
    """An event of a scope's tasks; `number` counts these events from 1."""

    type: str
    data: dict[str, Any]
    time: int
    number: int
    actor: str = ""
    meta: str | None = None


# --- checking arguments --------------------------------------------------------------------------


def check_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a task as they are stored, or raises UsageError."""
    unknown = [name for name in fields if name not in _CHECKS]
    if unknown:
        known = ", ".join(sorted(_CHECKS))
        more = "; claim, release, block, close and reopen change it" * ("status" in unknown)
        raise UsageError(
            f"a task has no field {show_value(unknown[0])} to set: expected one of {known}{more}"
        )
    return {name: _CHECKS[name](value) for name, value in fields.items()}


def _check_names(what: str) -> Callable[[Any], list[str]]:
    def check(names: Any) -> list[str]:
        if not isinstance(names, list | tuple):
            raise UsageError(f"{what} is a list of names, found {show_value(names)}")
        given = cast("Iterable[object]", names)
        return list(dict.fromkeys(check_item_name(name, f"one of {what}") for name in given))

    return check


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "title": lambda value: check_text(value, "a task's title"),
    "priority": parse_priority,
    "epic": lambda value: None if value is None else check_item_name(value, "an epic"),
    "tags": _check_names("tags"),
    "dependencies": _check_names("dependencies"),
    "note": lambda value: check_text(value, "a note", optional=True),
    "owner": lambda value: None if value is None else check_item_name(value, "an owner"),
}


def check_status(status: object) -> tuple[str, ...] | None:
    """Returns the statuses to filter by, None for any; raises UsageError if one is unknown."""
    if status is None:
        return None
    if isinstance(status, Sequence) and not isinstance(status, str):
        given = tuple(cast("Iterable[object]", status))
    else:
        given = (status,)
    for one in given:
        if one not in STATUSES:
            raise UsageError(
                f"a task's status is one of {', '.join(STATUSES)}, found {show_value(one)}"
            )
    return cast("tuple[str, ...]", given)


class TaskFilter(Struct, frozen=True):
    """Which tasks to return; None means any."""

    statuses: tuple[str, ...] | None = None
    owner: str | None = None
    epic: str | None = None
    tag: str | None = None

    def matches(self, task: Task) -> bool:
        """Returns whether a task passes the filter."""
        return (
            (self.statuses is None or task.status in self.statuses)
            and (self.owner in (None, task.owner) or self._is_worker_of_owner(task))
            and self.epic in (None, task.epic)
            and (self.tag is None or self.tag in task.tags)
        )

    def _is_worker_of_owner(self, task: Task) -> bool:
        return task.worker is not None and is_of_actor(task.worker, cast("str", self.owner))


def check_filter(
    status: object, owner: object, epic: object, tag: object, suspect: object
) -> TaskFilter:
    """Returns the filter, or raises UsageError for the first wrong value."""
    for value, what in ((owner, "owner"), (epic, "epic"), (tag, "tag")):
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{what} is a name, found {show_value(value)}")
    if suspect is not None:
        check_flag(suspect, "suspect")
    return TaskFilter(check_status(status), *cast("list[Any]", [owner, epic, tag]))


def find_cycle(tasks: dict[str, Task], id: str, dependencies: Sequence[str]) -> list[str]:
    """Returns the ids of a cycle that these dependencies would make; empty if there is none."""
    came: dict[str, str] = dict.fromkeys(dependencies, id)
    waiting = list(dependencies)
    while waiting:
        one = waiting.pop()
        if one == id:
            way = [id]
            while (before := came[way[-1]]) != id:
                way.append(before)
            return [id, *reversed(way)]
        for other in tasks[one].dependencies if one in tasks else ():
            if other not in came:
                came[other] = one
                waiting.append(other)
    return []


# --- the fold ------------------------------------------------------------------------------------


def advance(tasks: dict[str, Task], event: TaskEvent) -> dict[str, Task | None]:
    """Returns the tasks that an event changes, in their new form; None for a removed one."""
    at, data, by = to_datetime(event.time), event.data, event.actor
    if event.type == ADDED:
        return {data["id"]: _added(event, at, by)}
    if event.type == RESTORED:
        return {id: _restored(task) for id, task in data["tasks"].items()}
    if event.type == ENDED:
        outcome = data["outcome"]
        return {
            id: _with_status(task, "cancelled", at, by, outcome=outcome, completed_at=at)
            for id, task in tasks.items()
            if not task.is_closed
        }
    if not event.type.startswith(PREFIX) or event.type not in (CHANGED, *TRANSITIONS):
        return {}
    task = tasks.get(data["id"])
    if task is None:
        raise CorruptError(f"event {event.number} is about task {data['id']!r}, which is not there")
    return {task.id: _after_event(task, event, at, by)}


def _added(event: TaskEvent, at: datetime, by: str) -> Task:
    data, said = event.data, source_and_trust(event.meta)
    return Task(
        id=data["id"],
        title=data["title"],
        priority=data.get("priority", 0),
        epic=data.get("epic"),
        tags=tuple(data.get("tags", ())),
        dependencies=tuple(data.get("dependencies", ())),
        created_at=at,
        created_by=by,
        updated_at=at,
        history=(StatusChange("open", at, by),),
        key=data.get("key"),
        order=event.number,
        source=said[0],
        trust=said[1],
    )


def _after_event(task: Task, event: TaskEvent, at: datetime, by: str) -> Task:
    type, data = event.type, event.data
    why = data.get("why")
    if type == CHANGED:
        named = {name: value for name, value in data.items() if name in _CHECKS}
        for name in ("tags", "dependencies"):
            if name in named:
                named[name] = tuple(named[name])
        return replace(task, updated_at=at, **named)
    if type == HELD:
        return replace(task, updated_at=at, held_at=at, until=to_datetime(data["until"]))
    if type == CLAIMED:
        until = to_datetime(data["until"]) if "until" in data else None
        return _with_status(
            replace(task, owner=data["owner"], worker=data.get("worker"), started_at=at),
            "in_progress",
            at,
            by,
            epoch=data.get("epoch", 0),
            until=until,
            claim=event.number,
            held_at=at,
            why=None,
        )
    if type == CLOSED:
        return _with_status(
            task, data["status"], at, by, outcome=data["outcome"], completed_at=at, why=None
        )
    if type == BLOCKED:
        return _with_status(task, "blocked", at, by, why=why)
    return _with_status(task, "open", at, by, why=why, owner=None, outcome=None, completed_at=None)


def _with_status(task: Task, status: TaskStatus, at: datetime, by: str, **fields: Any) -> Task:
    """Returns the task with another status; only a task in progress has a worker."""
    if status != "in_progress":
        fields |= {"worker": None, "epoch": 0, "until": None}
    if status in ("open", "blocked"):
        fields |= {"owner": None}
    why = fields.get("outcome") or fields.get("why")
    line = StatusChange(status, at, by, fields.get("owner", task.owner), why)
    return replace(task, status=status, updated_at=at, history=(*task.history, line), **fields)


def _restored(stored: Any) -> Task | None:
    if stored is None:
        return None
    try:
        return msgspec.convert(stored, Task)
    except msgspec.ValidationError as error:
        raise CorruptError(f"a stored task cannot be read: {error}") from error


def to_plain(task: Task) -> Any:
    """Returns a task as plain JSON data, without the fields known only when it is read."""
    bare = replace(task, scope="", suspect=False, heartbeat=None, waits_for=())
    return msgspec.to_builtins(bare)


def project(events: Iterable[Event]) -> dict[str, Task]:
    """Returns the tasks that the events of one life of a scope make, by id."""
    tasks: dict[str, Task] = {}
    number = 0
    for event in events:
        if event.type == FORKED:
            tasks = {id: without_claim(task) for id, task in tasks.items()}
        elif event.type.startswith(PREFIX):
            number += 1
            apply_changes(tasks, advance(tasks, _task_event(event, number)))
    return tasks


def _task_event(event: Event, number: int) -> TaskEvent:
    record = event.record
    return TaskEvent(event.type, event.data, record.time, number, record.actor, record.meta)


def apply_changes(tasks: dict[str, Task], changed: dict[str, Task | None]) -> None:
    """Applies the changes that `advance` returned to a table."""
    for id, task in changed.items():
        if task is None:
            tasks.pop(id, None)
        else:
            tasks[id] = task


def without_claim(task: Task) -> Task:
    """Returns the task for a scope in which the claim does not count, such as a fork."""
    if task.status != "in_progress":
        return task
    return replace(task, status="open", owner=None, worker=None, epoch=0, until=None)


def restore_changes(now: dict[str, Task], then: dict[str, Task]) -> dict[str, Any]:
    """Returns the data of `task.restored`: each task that differs, as it was then.

    A claim is not restored, because it is a right in the present. A task that was in progress then
    stays so only if the same claim is still valid; otherwise it becomes open.
    """
    changed: dict[str, Any] = {id: None for id in now if id not in then}
    for id, was in then.items():
        task = now.get(id)
        if was.status == "in_progress":
            if task is not None and task.status == was.status and task.claim == was.claim:
                # The claim is valid, and may have been extended since.
                was = replace(was, until=task.until, held_at=task.held_at)
            else:
                was = without_claim(was)
        if was != task:
            changed[id] = to_plain(was)
    return changed


# --- the table -----------------------------------------------------------------------------------
#
# The process keeps the table of a scope's tasks and folds only new events into it.
#
# All task events of a stream are numbered, from 1: the nth has the key of that number
# (`keyed_item.py`). So a writer that saw n of them is refused if anybody wrote another task event
# meanwhile; other events of the stream do not matter. Claims, dependency cycles and ids in use are
# therefore judged against exactly the table that the event is added to. And one lookup, of the next
# number, tells whether a table is up to date. If it is not, the stream is read from there, in pages
# that grow where task events lie close together.
#
# A snapshot of the table bounds what a new process must fold. It can be deleted at any time. It is
# used only if its digest is right and the log still has the event that it ends at.


SNAPSHOT_EVENTS = 512
TABLES_MAX = 1024
_PAGE_MIN = 16
_PAGE_MAX = 1000
_FIRST_MAX = 2
"""How many events may precede a task event in its commit: the scope's parent, and a restore."""
INDEX_TASK = "task"
"""Has a mark for each task that is not closed."""
INDEX_CLAIM = "claim"
"""Has a mark for each task that is in progress."""


class _TableSnapshot(Struct):
    stream: str
    number: int
    revision: int
    link: str
    tasks: list[Task]
    inherited: list[str]
    gone: list[str] = field(default_factory=list[str])


class TaskTable:
    """The tasks of one stream. Hold `lock` while reading it, and until a write based on it ends."""

    def __init__(self, log: Log, stream: str, lock: RLock | None = None) -> None:
        self.lock = lock or RLock()
        self.stream = stream
        self.tasks: dict[str, Task] = {}
        self.inherited: set[str] = set()
        """The tasks that a fork inherited and has not changed: they have no marks."""
        self.gone: set[str] = set()
        """The ids that a restore removed. They are not reused, because an undo may restore them."""
        self.unanswered: list[tuple[int, dict[str, Any]]] = []
        """Claims with an unknown outcome: the number that each was sent with, and its content."""
        self.number = 0
        self.revision = 0
        self._log = log
        self._begun = False
        self._kept = 0
        self._life = 0
        self._ready: ReadyTasks | None = None

    @property
    def ready(self) -> ReadyTasks:
        """The tasks that can be begun, in order; computed on first use."""
        if self._ready is None:
            self._ready = ReadyTasks(self.tasks)
        return self._ready

    @property
    def events(self) -> KeyedItem:
        """The item that the stream's task events belong to."""
        return KeyedItem("tasks", self.stream, "all")

    def refresh(self, until: int | None = None) -> None:
        """Folds new events, up to a revision if one is given.

        Raises ExpiredError if the scope has expired.
        """
        with self.lock:
            if self._log.head(self.stream, to_read=True) is None:
                return
            life = self._log.life(self.stream, until)
            if life != self._life:
                self._forget(life)
            if not self._begun:
                self._begin(until)
            page = _PAGE_MIN
            while found := keyed_item.find_event(
                self._log, self.events, self.number + 1, life_at=until
            ):
                if until is not None and found > until:
                    return
                last = found + page - 1
                last = last if until is None else min(last, until)
                records = self._log.read(self.stream, after=found - 1, until=last)
                before = self.number
                for record in records:
                    if record.type.startswith(PREFIX):
                        self._fold(record)
                if self.number == before:
                    if until is not None and until < found + _FIRST_MAX:
                        return  # the revision lies within the commit, before its task event
                    raise CorruptError(
                        f'the key of task event {before + 1} is on another event of "'
                        f'{self.stream}"',
                        stream=self.stream,
                        revision=found,
                    )
                is_dense = (self.number - before) * 4 > page
                page = min(page * 4, _PAGE_MAX) if is_dense else _PAGE_MIN
            if until is None and self.number - self._kept >= SNAPSHOT_EVENTS:
                self._keep()

    def _forget(self, life: int) -> None:
        """Empties the table: the scope was removed, or a removal was undone."""
        self.tasks, self.inherited, self.gone = {}, set(), set()
        self.unanswered = []
        self._ready = None
        self.number = self.revision = self._kept = 0
        self._life, self._begun = life, False

    def apply(self, event: TaskEvent, revision: int) -> dict[str, Task | None]:
        """Folds one event, and returns the tasks that it changed."""
        changed = advance(self.tasks, event)
        apply_changes(self.tasks, changed)
        if self._ready is not None:
            self._ready.update(changed)
        self.inherited.difference_update(changed)
        for id, task in changed.items():
            (self.gone.add if task is None else self.gone.discard)(id)
        self.number, self.revision = event.number, revision
        return changed

    def take(self, other: TaskTable) -> None:
        """Copies the content of another table of the same stream."""
        self.tasks, self.inherited, self.gone = {**other.tasks}, {*other.inherited}, {*other.gone}
        self._ready = None
        self.number, self.revision = other.number, other.revision
        self._begun, self._kept, self._life = True, other.number, other._life

    def at(self, revision: int) -> dict[str, Task]:
        """Returns the tasks as they were at a revision of the stream."""
        table = TaskTable(self._log, self.stream)
        table.refresh(revision)
        return table.tasks

    def commit(self, scope: Scope, type: str, data: dict[str, Any]) -> None:
        """Commits the next event, with its marks; raises ConflictError if its number is in use."""
        number = self.number + 1
        marks = self.marks(advance(self.tasks, TaskEvent(type, data, 0, number)))
        new_event = NewEvent(type, codec.encode(data))
        write = scope_stream(scope).write((new_event,), key=self.events.key(number))
        result = keyed_item.append(
            self._log, self.events, number, write, marks=marks, follows=self._life + 1
        )
        after = result.after[0]
        self.answered(number)
        if result.redacted:
            data = codec.decode(result.written(write).new_events[-1].payload)
        self.apply(TaskEvent(type, data, after.time, number, *self._log.provenance), after.revision)

    def answered(self, number: int) -> None:
        """Drops the claim of that number from `unanswered`, because a caller has its answer now.

        Another call that was sent with this number wrote nothing, or is a retry of the same one.
        """
        self.unanswered = [lost for lost in self.unanswered if lost[0] != number]

    def marks(self, changed: dict[str, Task | None]) -> tuple[Mark | Cleared, ...]:
        """Returns the marks to set and to clear for changed tasks."""
        marks: list[Mark | Cleared] = []
        for id, task in changed.items():
            before = None if id in self.inherited else self.tasks.get(id)
            item = KeyedItem(INDEX_TASK, self.stream, id)
            had, has = indexes(before), indexes(task)
            is_same = before is not None and task is not None and before.priority == task.priority
            for index in (INDEX_TASK, INDEX_CLAIM):
                if task is not None and index in has and not (is_same and index in had):
                    marks.append(item.mark(index, priority=task.priority))
                elif index in had and index not in has:
                    marks.append(item.cleared(index))
        return tuple(marks)

    def _fold(self, record: Record) -> None:
        data = codec.decode(record.payload)
        number = self.number + 1
        event = TaskEvent(record.type, data, record.time, number, record.actor, record.meta)
        self.apply(event, record.revision)

    def _begin(self, until: int | None) -> None:
        """Loads the table of the stream that this one was forked from, then the own snapshot."""
        origin = self._log.origin(self.stream)
        if origin is not None and origin[1] > self._life:
            stream, at = origin
            above = TaskTable(self._log, stream)
            above.refresh(at if until is None else min(at, until))
            self.tasks = {id: without_claim(task) for id, task in above.tasks.items()}
            self.inherited = set(self.tasks)
            self.gone = set(above.gone)
            self.number = above.number
            self.revision = above.revision
        self._kept = self.number
        self._load(until)
        self._ready = None
        self._begun = True

    # --- the snapshot ----------------------------------------------------------------------------

    def _name(self) -> str:
        return f"tasks/{sha256(self.stream.encode()).hexdigest()}"

    def _load(self, until: int | None) -> None:
        objects = self._log.routes.objects_of(self.stream)
        data = objects.get("snapshot", self._name())
        if data is None:
            return
        if sha256(data[32:]).digest() != data[:32]:
            _logger.warning('the snapshot of the tasks of "%s" is damaged: ignored', self.stream)
            return
        kept = codec.decode_as(data[32:], _TableSnapshot)
        if kept.stream != self.stream or (until is not None and kept.revision > until):
            return
        if self._log.life(self.stream, kept.revision) != self._life:
            return
        records = self._log.read(self.stream, after=kept.revision - 1, until=kept.revision)
        if [record.link.hex() for record in records] == [kept.link]:
            self.tasks = {task.id: task for task in kept.tasks}
            self.inherited = set(kept.inherited)
            self.gone = set(kept.gone)
            self.number = self._kept = kept.number
            self.revision = kept.revision

    def _keep(self) -> None:
        try:
            [record] = self._log.read(self.stream, after=self.revision - 1, until=self.revision)
            data = msgspec.json.encode(
                _TableSnapshot(
                    self.stream,
                    self.number,
                    self.revision,
                    record.link.hex(),
                    list(self.tasks.values()),
                    sorted(self.inherited),
                    sorted(self.gone),
                )
            )
            self._log.routes.objects_of(self.stream).put(
                "snapshot",
                self._name(),
                sha256(data).digest() + data,
                expires_us=self._log.expiry.keep_until(self.stream),
            )
        except HoldfastError as error:
            # A snapshot only saves time. Without it, on a full disk or in a read-only store, the
            # next process folds more events.
            _logger.warning('the tasks of "%s" have no new snapshot: %s', self.stream, error)
            self._log.report(f'tasks of "{self.stream}" were not kept: {error}')
        self._kept = self.number


def indexes(task: Task | None) -> tuple[str, ...]:
    """Returns the indexes that have a mark for a task."""
    if task is None or task.is_closed:
        return ()
    return (INDEX_TASK, INDEX_CLAIM) if task.status == "in_progress" else (INDEX_TASK,)


class TaskTables:
    """The most recently used tables of one store."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._tables: dict[str, TaskTable] = {}
        self._locks: dict[str, RLock] = {}
        self._mutex = Lock()
        self._others: TaskTables | None = None

    def begin_with(self, others: TaskTables) -> None:
        """Makes new tables start as copies of another set's tables of the same streams."""
        self._others = others

    def forget(self) -> None:
        """Drops every table, after events that they were made of were let go."""
        with self._mutex:
            self._tables.clear()

    def _begun(self, stream: str) -> TaskTable:
        """Returns a new table, a copy of the other set's unless that is ahead of the log."""
        table = TaskTable(self._log, stream, self._locks.setdefault(stream, RLock()))
        other = None if self._others is None else self._others.of(stream)
        if other is not None:
            with other.lock:
                head = self._log.head(stream)
                if head is not None and 0 < other.revision <= head.revision:
                    table.take(other)
        return table

    def of(self, stream: str) -> TaskTable:
        """Returns the table of a stream, which may not be up to date.

        The lock outlives the table. Otherwise, after a table was dropped, two threads of one worker
        could have two locks and write the same number.
        """
        with self._mutex:
            table = self._tables.pop(stream, None)
            if table is None:
                table = self._begun(stream)
            if len(self._tables) >= TABLES_MAX:
                self._tables.pop(next(iter(self._tables)))
            self._tables[stream] = table
            return table

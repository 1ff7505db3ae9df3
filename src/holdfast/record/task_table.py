"""The table of a scope's tasks, kept by the process and brought up to date by what is new.

All task events of a stream are numbered, from 1: the nth has the key of that number (`thing.py`).
So a writer that saw n of them is refused if anybody wrote another one meanwhile, whatever else was
written to the stream: a claim, a cycle of dependencies and a taken id are judged against the very
table that the event lands on. And a table is brought up to date by one look for the next number; if
it is there, what follows it is read, in pages that grow where tasks lie close together.

A snapshot of the table bounds what a new process must fold. It is disposable, and
believed only if its digest fits and the log still has the event that it ends at.
"""

from __future__ import annotations

from hashlib import sha256
from threading import Lock, RLock
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.core import codec
from holdfast.core.commit import Cleared, Mark, NewEvent, Record
from holdfast.core.log import Log
from holdfast.errors import CorruptError, HoldfastError
from holdfast.record import keyed_item as things
from holdfast.record.keyed_item import KeyedItem, Recorder
from holdfast.record.task_events import PREFIX, Said, Task, advance, put, unclaimed

SNAPSHOT_EVENTS = 512
TABLES_MAX = 1024
_PAGE_MIN, _PAGE_MAX = 16, 1000
_FIRST_MAX = 2
"""How many events may stand before a task's in its commit: a scope's parent, and a restore."""


INDEX = "task"
"""Has a mark for each task that is not closed."""
INDEX_CLAIMED = "claim"
"""Has a mark for each task that is in progress."""


class _Snapshot(Struct):
    stream: str
    number: int
    revision: int
    link: str
    tasks: list[Task]
    inherited: list[str]


class Table:
    """The tasks of one stream. Hold `lock` while you look at it and write by it."""

    def __init__(self, log: Log, stream: str, lock: RLock | None = None) -> None:
        self.lock = lock or RLock()
        self.stream = stream
        self.tasks: dict[str, Task] = {}
        self.inherited: set[str] = set()
        """The tasks that a fork has from its origin and nobody touched here: they have no marks."""
        self.number = 0
        self.revision = 0
        self._log = log
        self._begun = False
        self._kept = 0

    @property
    def events(self) -> KeyedItem:
        """What the numbers of the stream's task events belong to."""
        return KeyedItem("tasks", self.stream, "all")

    def refresh(self, until: int | None = None) -> None:
        """Folds what is new, up to a revision if one is given.

        Raises ExpiredError if the scope has ended by itself.
        """
        with self.lock:
            if self._log.head(self.stream) is None:
                return
            if not self._begun:
                self._begin(until)
            page = _PAGE_MIN
            while found := things.find(self._log, self.events, self.number + 1):
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
                        return  # that revision lies within the commit, before its task event
                    raise CorruptError(
                        f'the key of task event {before + 1} stands on another event of "'
                        f'{self.stream}"',
                        stream=self.stream,
                        revision=found,
                    )
                is_dense = (self.number - before) * 4 > page
                page = min(page * 4, _PAGE_MAX) if is_dense else _PAGE_MIN
            if until is None and self.number - self._kept >= SNAPSHOT_EVENTS:
                self._keep()

    def apply(self, said: Said, revision: int) -> dict[str, Task | None]:
        """Folds one event; returns what it changed."""
        changed = advance(self.tasks, said)
        put(self.tasks, changed)
        self.inherited.difference_update(changed)
        self.number, self.revision = said.number, revision
        return changed

    def at(self, revision: int) -> dict[str, Task]:
        """Returns the tasks as they were at a revision of the stream."""
        table = Table(self._log, self.stream)
        table.refresh(revision)
        return table.tasks

    def commit(self, scope: Recorder, type: str, data: dict[str, Any]) -> None:
        """Commits the next event, with its marks; ConflictError if another writer was faster."""
        number = self.number + 1
        marks = self.marks(advance(self.tasks, Said(type, data, 0, number)))
        new_event = NewEvent(type, codec.encode(data))
        part = scope._event_write(new_event, key=self.events.key(number))
        written = things.append(self._log, self.events, number, part, marks=marks)
        after = written.after[0]
        self.apply(Said(type, data, after.time, number, self._log.actor), after.revision)

    def marks(self, changed: dict[str, Task | None]) -> tuple[Mark | Cleared, ...]:
        """Returns the marks to set and to clear so that they tell of tasks as they become."""
        marks: list[Mark | Cleared] = []
        for id, task in changed.items():
            before = None if id in self.inherited else self.tasks.get(id)
            thing = KeyedItem(INDEX, self.stream, id)
            had, has = indexes(before), indexes(task)
            is_same = before is not None and task is not None and before.priority == task.priority
            for index in (INDEX, INDEX_CLAIMED):
                if task is not None and index in has and not (is_same and index in had):
                    marks.append(thing.mark(index, priority=task.priority))
                elif index in had and index not in has:
                    marks.append(thing.cleared(index))
        return tuple(marks)

    def _fold(self, record: Record) -> None:
        data = codec.decode(record.payload)
        said = Said(record.type, data, record.time, self.number + 1, record.actor)
        self.apply(said, record.revision)

    def _begin(self, until: int | None) -> None:
        """Starts from the stream that this one is a fork of, or from a snapshot."""
        origin = self._log.origin(self.stream)
        if origin is not None:
            stream, at = origin
            above = Table(self._log, stream)
            above.refresh(at if until is None else min(at, until))
            self.tasks = {id: unclaimed(task) for id, task in above.tasks.items()}
            self.inherited = set(self.tasks)
            self.number = above.number
            self.revision = above.revision
        self._kept = self.number
        self._load(until)
        self._begun = True

    # --- the snapshot ----------------------------------------------------------------------------

    def _name(self) -> str:
        return f"tasks/{sha256(self.stream.encode()).hexdigest()}"

    def _load(self, until: int | None) -> None:
        objects = self._log.routes.objects_of(self.stream)
        data = objects.get("snapshot", self._name())
        if data is None or sha256(data[32:]).digest() != data[:32]:
            return
        kept = codec.decode_as(data[32:], _Snapshot)
        if kept.stream != self.stream or (until is not None and kept.revision > until):
            return
        records = self._log.read(self.stream, after=kept.revision - 1, until=kept.revision)
        if [record.link.hex() for record in records] == [kept.link]:
            self.tasks = {task.id: task for task in kept.tasks}
            self.inherited = set(kept.inherited)
            self.number = self._kept = kept.number
            self.revision = kept.revision

    def _keep(self) -> None:
        try:
            [record] = self._log.read(self.stream, after=self.revision - 1, until=self.revision)
            data = msgspec.json.encode(
                _Snapshot(
                    self.stream,
                    self.number,
                    self.revision,
                    record.link.hex(),
                    list(self.tasks.values()),
                    sorted(self.inherited),
                )
            )
            self._log.routes.objects_of(self.stream).put(
                "snapshot",
                self._name(),
                sha256(data).digest() + data,
                expires_us=self._log.expiry.keep_until(self.stream),
            )
        except HoldfastError as error:
            # Nothing depends on it: a full disk, or a store that is open to read only, costs time.
            self._log.reports.append(f'tasks of "{self.stream}" were not kept: {error}')
        self._kept = self.number


def indexes(task: Task | None) -> tuple[str, ...]:
    """Returns the indexes that have a mark for a task."""
    if task is None or task.is_closed:
        return ()
    return (INDEX, INDEX_CLAIMED) if task.status == "in_progress" else (INDEX,)


class Tables:
    """The tables of one store, the last few that were used."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._tables: dict[str, Table] = {}
        self._locks: dict[str, RLock] = {}
        self._mutex = Lock()

    def of(self, stream: str) -> Table:
        """Returns the table of a stream, which need not be up to date.

        The lock outlives the table: two threads of one worker never write by the same number.
        """
        with self._mutex:
            table = self._tables.pop(stream, None)
            if table is None:
                table = Table(self._log, stream, self._locks.setdefault(stream, RLock()))
            if len(self._tables) >= TABLES_MAX:
                self._tables.pop(next(iter(self._tables)))
            self._tables[stream] = table
            return table

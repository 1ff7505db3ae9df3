"""Items of the record: an item has a name, and its events are numbered.

The nth event of an item carries the idempotency key `<kind>#<n>:<name>`, numbered from 1. On
every backend, and without any further index, this has three effects:

- All events of an item are found by key, however long the stream around them is.
- Two writers that saw n events cannot both append event n + 1: the second is refused. This guards
  the item alone. A guard on the stream's revision would conflict with every other write there.
- A commit with an unknown outcome can be sent again unchanged.

A mark names an item by the digest of its stream and its name, and has the stream as its group. So
equal names in two scopes are two marks, and a mark alone is enough to find the item. In a subject's
scope the log seals the name when it writes the mark, and opens it when it reads the mark
(`core/sealed_marks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.protocol import Cleared, Mark, Record
from holdfast.core import event
from holdfast.core.commit import CommitResult, NewEvent, ProposedCommit, StreamWrite
from holdfast.core.event import state_of
from holdfast.core.log import NO_LIMIT as NO_LIMIT
from holdfast.core.log import Log
from holdfast.core.sealed_marks import prefix_of
from holdfast.errors import ConflictError, UsageError, show_value
from holdfast.names import NAME_BYTES_MAX, check_name
from holdfast.record.in_run import unjournalled

_PREFIX_BYTES = 24
"""Room for what precedes the name in the key of an event or of a mark."""


class KeyedItem(Struct, frozen=True):
    """A decision, a fact, a session or the tasks of a scope: its stream, and its name there."""

    kind: str
    stream: str
    name: str

    @classmethod
    def from_mark(cls, kind: str, mark: Mark, log: Log) -> KeyedItem:
        """Returns the item that a mark names."""
        return cls(kind, mark.group, log.opened_mark(mark).key.partition(":")[2])

    def key(self, number: int) -> str:
        """Returns the idempotency key of the item's event with that number."""
        return f"{self.kind}#{number}:{self.name}"

    @property
    def mark_key(self) -> str:
        return prefix_of(self.stream) + self.name

    def mark(self, index: str, *, due: int = 0, priority: int = 0) -> Mark:
        """Returns the mark by which the item is found."""
        return Mark(index, self.mark_key, due, priority, self.stream)

    def cleared(self, index: str) -> Cleared:
        return Cleared(index, self.mark_key)


def check_item_name(name: object, what: str) -> str:
    """Returns the name if it fits into a key with its prefix, or raises UsageError."""
    name = check_name(name, what)
    if len(name.encode()) > NAME_BYTES_MAX - _PREFIX_BYTES:
        raise UsageError(
            f"{what} {name[:40]!r}… takes {len(name.encode())} bytes: "
            f"at most {NAME_BYTES_MAX - _PREFIX_BYTES} fit"
        )
    return name


def find_event(
    log: Log, item: KeyedItem, number: int, until: int | None = None, life_at: int | None = None
) -> int:
    """Returns the revision of an item's event; 0 if it has none with that number up to `until`.

    It searches the present life of the scope, or the one at `until`, or else at `life_at`.
    """
    found = log.find(item.stream, key=item.key(number), until=until or life_at)
    if not found:
        return 0
    revision = found[0].revision
    if until is not None and revision >= until:
        # At that revision the key may be on the event before the item's own (`record_at`).
        is_later = revision > until or record_at(log, item, revision).revision > until
        return 0 if is_later else revision
    return revision


def record_at(log: Log, item: KeyedItem, revision: int) -> Record:
    """Returns the item's event whose key was found at a revision of its stream.

    A key is on the first event of its commit. That may be the event that gives the scope its
    parent; then the item's event is the next one.
    """
    records = log.read(item.stream, after=revision - 1, until=revision + 1)
    return records[records[0].type == event.OPENED]


def records_of(log: Log, item: KeyedItem, until: int | None = None) -> list[Record]:
    """Returns all events of an item, oldest first, optionally up to a revision.

    Raises ExpiredError if its scope has expired.
    """
    records: list[Record] = []
    if log.head(item.stream) is None:
        return records
    while revision := find_event(log, item, len(records) + 1, until):
        records.append(record_at(log, item, revision))
    return records


def newest_record(
    log: Log, item: KeyedItem, *, known: int = 0, until: int | None = None
) -> tuple[int, Record] | None:
    """Returns number and record of an item's newest event up to a revision; None if it has none.

    Numbers have no gaps, so the newest event is found by doubling the step and then by bisection. A
    fact that was stated a million times costs 40 lookups; one whose number is `known`, two. Raises
    ExpiredError if its scope has expired.
    """
    if log.head(item.stream) is None:
        return None
    low, revision, step = 0, 0, 1
    if known and (revision := find_event(log, item, known, until)):
        low = known
    while at := find_event(log, item, low + step, until):
        low, revision, step = low + step, at, step * 2
    high = low + step  # has no event
    while high - low > 1:
        middle = (low + high) // 2
        at = find_event(log, item, middle, until)
        low, revision, high = (middle, at, high) if at else (low, revision, middle)
    return (low, record_at(log, item, revision)) if low else None


def append(
    log: Log,
    item: KeyedItem,
    number: int,
    write: StreamWrite,
    *,
    marks: tuple[Mark | Cleared, ...] = (),
    follows: int = 0,
) -> CommitResult:
    """Commits an item's event with that number, with marks.

    Raises ConflictError, and writes nothing, if another writer wrote the event with that number, or
    if the scope was removed since the revision `follows`, at which the item was read. The key alone
    does not detect a removal: in the scope's next life it is free again, and the event would be
    there without those before it.
    """
    if follows:
        write = replace(write, follows=follows)
    try:
        with unjournalled():
            return log.commit(ProposedCommit((write,), marks=marks))
    except UsageError as refused:
        if not find_event(log, item, number):
            raise
        raise ConflictError(
            f'{item.kind} "{item.name}" of "{item.stream}" changed: another worker wrote its '
            f"event {number}",
            stream=item.stream,
            expected=number - 1,
            actual=number,
        ) from refused


def lineage(log: Log, stream: str) -> Iterator[tuple[str, int | None]]:
    """Yields a stream and those it was forked from, each with the last revision that counts.

    For the stream itself that is None: all of it counts.
    """
    until = None
    while True:
        yield stream, until
        origin = log.origin(stream)
        if origin is None:
            return
        stream, until = origin[0], origin[1] if until is None else min(until, origin[1])


def is_removed_since(log: Log, stream: str, until: int | None) -> bool:
    """Returns whether a fork's origin was removed since: then no marks lead to its old items."""
    return until is not None and log.life(stream) > until


def is_closed(log: Log, stream: str) -> bool:
    """Returns whether a scope is closed, which its newest event tells."""
    head = log.head(stream)
    if head is None:
        return False
    [newest] = log.records(stream, after=head.revision - 1, until=head.revision)
    return event.end_of(newest).closed_at > 0


def check_not_dropped(log: Log, stream: str) -> None:
    """Raises ClosedError if the scope was closed and its content dropped."""
    if is_closed(log, stream):
        state_of(log.newest(stream), stream)


def next_write(item: KeyedItem, number: int, new_event: NewEvent, *more: NewEvent) -> StreamWrite:
    """Returns the write that adds the item's event with that number to an existing stream."""
    return StreamWrite(item.stream, (new_event, *more), key=item.key(number))


# Decisions and tasks have a priority.


PRIORITIES = {"low": -1, "normal": 0, "high": 1}


def parse_priority(priority: object) -> int:
    """Returns a priority given as a whole number or as low, normal or high."""
    if isinstance(priority, str) and priority in PRIORITIES:
        return PRIORITIES[priority]
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) >= 1 << 31:
        raise UsageError(
            f"a priority is a whole number, or {', '.join(PRIORITIES)}, "
            f"found {show_value(priority)}"
        )
    return priority

"""Joint commits: what recorders record inside a block is gathered, and written when it ends.

A recorder (messages, tasks, decisions, facts) reads a log, decides, and commits to it. In a joint
commit it gets another log for that: one over an `Overlay`, which shows each stream as it was when
the block first looked at it, followed by what the block has added. So all rules of a recorder hold
inside the block as they do outside, and nothing is written before the block ends. Then all of it
becomes one commit, in which each event has the key that guards its item (clause 26).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

from msgspec.structs import replace

from holdfast.backends.judge import head_after, judge
from holdfast.backends.protocol import (
    START,
    Backend,
    Claim,
    Cleared,
    Commit,
    Found,
    Head,
    Mark,
    MarkQuery,
    Marks,
    Moment,
    Position,
    Receipt,
    Record,
    Refusal,
    find_marks,
    keeps_meta,
    takes_record_keys,
)
from holdfast.core.commit import CommitResult, NewEvent, ProposedCommit, StreamWrite
from holdfast.core.commit_queue import Request, Waker
from holdfast.core.event import JOINED
from holdfast.core.log import Log
from holdfast.errors import UsageError

_END = 1 << 62
"""A revision after the end of any stream."""

Placed = Callable[[Record], None]
"""Called with the stored record of an event that was handed out before it was stored."""


class Overlay:
    """A backend in memory over another one: it shows that one with what the block has added."""

    def __init__(self, backend: Backend, key: str | None, find: Callable[..., list[Found]]) -> None:
        self._backend = backend
        self._find_in_life = find
        self._key = key
        self.durability = backend.durability
        self.record_keys = takes_record_keys(backend)
        self.keeps_meta = keeps_meta(backend)
        self.routing = getattr(backend, "routing", None)
        self.objects = backend.objects
        self.leases = backend.leases
        self.inspect = backend.inspect
        self._marks = _OverlayMarks(backend.marks)
        self.marks: Marks = self._marks
        self._bases: dict[str, Head | None] = {}
        self._added: dict[str, list[Record]] = {}
        self._heads: dict[str, Head] = {}

    def pin(self, stream: str) -> Head | None:
        """Returns the head that a stream is shown at: the newest one at the first look.

        If a commit with this key was made before, the stream is shown as it was before that commit.
        So a block that is repeated finds what it found the first time, and does the same again. The
        commit is then known by its key, and writes nothing.
        """
        if stream not in self._bases:
            [head] = self._backend.heads([stream])
            found = self._key and head and self._find_in_life(stream, key=self._key)
            if found and head is not None:
                before = found[0].revision - 1
                records = self._backend.read(stream, after=before - 1, until=before)
                head = _head_of(records[0], head.first) if records else None
            self._bases[stream] = head
        return self._bases[stream]

    def base(self, stream: str) -> int:
        """Returns the revision that a stream is shown at, without what the block added."""
        head = self.pin(stream)
        return 0 if head is None else head.revision

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        return [self._commit(commit) for commit in commits]

    def _commit(self, commit: Commit) -> Receipt | Refusal:
        # Leases and ends of streams are not judged here, but when the whole commit is written.
        refusal = judge(commit, self._head_of, self._key_of, lambda _: True, lambda: 0)
        if refusal is not None:
            return refusal
        for append in commit.appends:
            before = self._head_of(append.stream)
            self._added.setdefault(append.stream, []).extend(append.records)
            self._heads[append.stream] = head_after(append, before, START)
        self._marks.apply(commit.marks)
        return Receipt(START, {})

    def _head_of(self, stream: str) -> Head | None:
        return self._heads.get(stream) or self.pin(stream)

    def _key_of(self, stream: str, key: str) -> int | None:
        found = self.find(stream, key=key)
        return found[0].revision if found else None

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        base, last = self.base(stream), _END if until is None else until
        records: list[Record] = []
        if after < base:
            records = self._backend.read(stream, after=after, until=min(base, last), limit=limit)
        for record in self._added.get(stream, ()):
            if after < record.revision <= last:
                records.append(record)
        return records[:limit]

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        return [self._head_of(stream) for stream in streams]

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        for record in self._added.get(stream, ()):
            if key is not None and record.key == key:
                return [Found(record.revision, key, record.time)]
        base = self.base(stream)
        found = self._backend.find(stream, key=key, checkpoint=checkpoint, limit=limit)
        return [one for one in found if one.revision <= base]

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        return self._backend.streams(prefix=prefix, after=after, limit=limit)

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        return self._backend.read_all(after=after, limit=limit)

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        return self._backend.wait(after, timeout_s=timeout_s)

    def moment(self) -> Moment:
        return self._backend.moment()

    def now_us(self, stream: str) -> int:
        return self._backend.now_us(stream)

    def close(self) -> None:
        """Nothing is open here."""


def _head_of(record: Record, first: int) -> Head:
    return Head(record.revision, record.link, record.time, record.position, first)


class _OverlayMarks:
    """The marks of a backend, changed by those that the block has set and cleared."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._changed: dict[tuple[str, str], Mark | Cleared] = {}

    def apply(self, marks: Sequence[Mark | Cleared]) -> None:
        self._changed.update({(mark.index, mark.key): mark for mark in marks})

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        return self.find(MarkQuery(index, due_before=due_before, limit=limit))

    def find(self, query: MarkQuery) -> builtins.list[Mark]:
        more = replace(query, limit=query.limit + len(self._changed))
        found = find_marks(self._marks, more)
        kept = [mark for mark in found if (mark.index, mark.key) not in self._changed]
        set_here = [mark for mark in self._changed.values() if isinstance(mark, Mark)]
        return query.pick([*kept, *set_here])

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> NoReturn:
        raise UsageError(
            "marks are claimed one by one, not inside a joint commit",
            hint="claim before the block, and clear the mark in it",
        )

    def release(self, index: str, key: str, owner: str) -> None:
        self._marks.release(index, key, owner)

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        return self._marks.claims(limit=limit)


class GatheringLog(Log):
    """The log that recorders get inside the block of a joint commit."""

    is_gathering = True

    def __init__(self, log: Log, key: str | None) -> None:
        self._overlay = overlay = Overlay(log.backend, key, log.find)
        self._key = key
        super().__init__(
            cast("Backend", overlay), clock=log.clock, actor=log.actor, sealing=log.sealing
        )
        self.blobs, self.expiry, self.show = log.blobs, log.expiry, log.show
        self.typed, self.said = log.typed, log.said
        self._gathered: dict[str, list[StreamWrite]] = {}
        self._at_base: set[str] = set()
        self.gathered_marks: dict[tuple[str, str], Mark | Cleared] = {}
        self._to_place: dict[str, list[tuple[int, Placed]]] = {}
        self._places: dict[tuple[str, int], int] = {}
        self._is_over = False

    # --- what recorders ask ----------------------------------------------------------------------

    def commit(self, proposed: ProposedCommit) -> CommitResult:
        """Gathers a commit: it is judged now, on what the block sees, and written at its end."""
        if self._is_over:
            raise UsageError(
                "the block of this commit has ended: nothing more can be recorded in it",
                hint="keep what you record with outside the block: chat.messages, chat.tasks",
            )
        if any(not write.keeps_state for write in proposed.writes):
            raise UsageError(
                "inside a joint commit the state is not set by a recorder",
                hint="tx.scope(…).update(…) sets it in the same commit",
            )
        if self._key is not None:
            proposed = replace(proposed, writes=tuple(map(self._begun, proposed.writes)))
        result = self._queue.commit(Request(proposed))
        if not result.repeated:
            for write, after in zip(proposed.writes, result.after, strict=True):
                self._gather(write, after.revision)
            self.gathered_marks.update({(one.index, one.key): one for one in proposed.marks})
        return result

    def submit(
        self, proposed: ProposedCommit, *, waker: Waker | None = None, context: Any = None
    ) -> NoReturn:
        raise _not_here()

    def submit_all(self, proposed: list[ProposedCommit]) -> NoReturn:
        raise _not_here()

    def _begun(self, write: StreamWrite) -> StreamWrite:
        """Returns a write with room for the commit's key, if it is the first to its stream.

        The write's own key is on its first event, and an event takes one key. So an event `joined`
        comes before it, for the commit's key. It is added at once, so that the revisions that the
        block sees stay right.
        """
        if write.key is None or write.stream in self._gathered:
            return write
        return replace(write, new_events=(_JOINED, *_keyed_events(write)), key=None)

    def _gather(self, write: StreamWrite, last: int) -> None:
        writes = self._gathered.setdefault(write.stream, [])
        before = sum(len(one.new_events) for one in writes)
        for number in range(len(write.new_events)):
            revision = last - len(write.new_events) + 1 + number
            self._places[write.stream, revision] = before + number
        if write.expected is not None:
            self._at_base.add(write.stream)
        writes.append(write)

    def pinned(self, stream: str) -> int | None:
        """Returns the revision that the block sees: a write that names revisions must expect it."""
        head = self.head(stream)
        return 0 if head is None else head.revision

    def when_placed(self, stream: str, revision: int, placed: Placed) -> None:
        """Calls `placed` with the final place of an event, which other writers may move on."""
        self._to_place.setdefault(stream, []).append((self._places[stream, revision], placed))

    # --- what the joint commit asks --------------------------------------------------------------

    def streams_gathered(self) -> list[str]:
        """Returns the streams in which something was recorded."""
        return list(self._gathered)

    def guard(self, stream: str) -> int | None:
        """Returns the revision that what was recorded in a stream expects; None if any will do."""
        return self._overlay.base(stream) if stream in self._at_base else None

    def joined(
        self, stream: str, write: StreamWrite | None, guard: int | None
    ) -> StreamWrite | None:
        """Returns what the commit adds to a stream: what was recorded, then the change of state.

        Each recorded event has its own key; the commit's key is on the first event of all. `guard`
        is the revision that the block has read.
        """
        parts = self._gathered.get(stream, [])
        if not parts:
            return write
        new_events = [one for part in parts for one in _keyed_events(part)]
        if write is not None:
            new_events += write.new_events
        if not self.record_keys and any(one.key is not None for one in new_events[1:]):
            raise UsageError(
                f'this backend takes one key in a commit to "{stream}", found several items',
                hint="record them one after the other; clause 26 says what a backend needs for it",
            )
        base = self._overlay.base(stream)
        return replace(
            write or parts[0],
            new_events=tuple(new_events),
            expected=guard,
            key=self._key,
            # A write that follows an event of the block itself is not bound to a life: it goes with
            # the block into the life that the scope is in then.
            follows=min((one.follows for one in parts if 0 < one.follows <= base), default=0),
            is_joint=True,
        )

    def end(self) -> None:
        """Ends the block: its recorders refuse to record anything from here on."""
        self._is_over = True

    def place(self, stream: str, records: Sequence[Record]) -> None:
        """Calls all who wait for it with the records that a stream's gathered events became."""
        for at, placed in self._to_place.get(stream, ()):
            placed(records[at])

    def gathered_events(self, stream: str) -> list[NewEvent]:
        """Returns what was recorded in a stream, in order."""
        return [one for part in self._gathered.get(stream, ()) for one in part.new_events]


_JOINED = NewEvent(JOINED, b"null")


def _keyed_events(write: StreamWrite) -> tuple[NewEvent, ...]:
    """Returns the events of a write, with its key on the first."""
    first, *rest = write.new_events
    return (first if write.key is None else replace(first, key=write.key), *rest)


def _not_here() -> UsageError:
    return UsageError(
        "this cannot be part of a joint commit: it is several commits by itself",
        hint="do it before the block, or after it",
    )

"""Yields every state of a stream, oldest first or newest first.

Oldest first, each state is the one before it with one event more. Newest first, the events are
folded in blocks. A block begins at a snapshot, or at a state that was folded on the way from one.
So each event is read and folded at most twice. The states of one block are in memory, and share all
that did not change between them.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.backends.protocol import Head, Record
from holdfast.core.event import EMPTY, UNKNOWN, Event, StreamState, each_state, fold
from holdfast.core.log import Log
from holdfast.core.tree import Map

BLOCK_EVENTS = 1000


class StateAt:
    """A scope's state at one revision, and the event that made it."""

    __slots__ = ("_folded", "_log", "_stream", "event", "revision")

    def __init__(self, log: Log, stream: str, event: Event, folded: StreamState) -> None:
        self.revision = event.revision
        self.event = event
        self._log = log
        self._stream = stream
        self._folded = folded

    @property
    def stored(self) -> StreamState:
        """The fold at this revision, without transforms and schemas."""
        return self._folded

    @property
    def state(self) -> Map:
        """The state, as `at` returns it; raises ClosedError if it was dropped at this revision."""
        folded = self._folded
        if folded.root is UNKNOWN:
            folded = self._log.at(self._stream, self.revision)  # from a base, or LetGoError
        return self._log.show(folded, self._stream)

    def __repr__(self) -> str:
        return f"<StateAt {self._stream}@{self.revision}>"


def states(
    log: Log, stream: str, *, after: int, until: int | None, newest_first: bool
) -> Iterator[StateAt]:
    """Yields the states after revision `after` up to `until`, a fork's inherited ones included."""
    head = log.head(stream)
    if head is None:
        return
    end = head.revision if until is None else min(until, head.revision)
    if after >= end:
        return
    past = _Past(log, stream, head)
    folded = past.backward(after, end) if newest_first else past.forward(log.at(stream, after), end)
    for record, state in folded:
        yield StateAt(log, stream, log.event(record), state)


class _Past:
    """The events of one stream up to a head, those of a fork's ancestors included."""

    def __init__(self, log: Log, stream: str, head: Head) -> None:
        self._log = log
        self._stream = stream
        self._head = head

    def forward(self, state: StreamState, end: int) -> Iterator[tuple[Record, StreamState]]:
        """Yields each event after a state up to `end`, with the state that it makes."""
        while state.revision < end:
            records = self._records(state.revision, end)
            folded = each_state(state, records, self._log.blobs.read)
            for record, state in zip(records, folded, strict=True):
                yield record, state

    def backward(self, after: int, end: int) -> Iterator[tuple[Record, StreamState]]:
        """Yields each event up to `end` and above `after`, the newest first, with its state."""
        bases: list[StreamState] = []
        while after < end:
            if not bases:
                bases = self._bases(after, end)
            base = bases.pop()
            yield from reversed(list(self.forward(base, end)))
            end = base.revision

    def _bases(self, after: int, end: int) -> list[StreamState]:
        """Returns the states at which blocks up to `end` begin, none of them below `after`.

        The first one is the nearest snapshot that is at least a block away, or folded from it, or
        folded from the beginning. The others are folded on from there, one for each block. So no
        event is folded a third time, however far away the snapshot is.
        """
        last = max(after, end - BLOCK_EVENTS)
        state = self._nearest(last)
        bases = [state] if state.revision >= after else []
        while state.revision < last:
            until = last if bases else after
            records = self._records(state.revision, until)
            state = fold(state, records, self._log.blobs.read, self._log.sealing.opener())
            if state.revision >= after:
                bases.append(state)
        return bases

    def _nearest(self, revision: int) -> StreamState:
        """Returns the newest snapshot at or below a revision, an ancestor's for a fork's past."""
        for name, until in self._log.ancestry(self._stream, revision):
            state = self._log.snapshots.nearest(name, until)
            if state is not None:
                return state
        return EMPTY

    def _records(self, after: int, until: int) -> list[Record]:
        """Returns the next block of events; raises if it is empty, as the head promises more."""
        stream, limit = self._stream, BLOCK_EVENTS
        records = self._log.records(stream, after=after, until=until, limit=limit)
        if not records:
            found = f"ends at revision {after}: its head says {self._head.revision}"
            raise self._log.contradicted(stream, self._head, found, after + 1)
        return records

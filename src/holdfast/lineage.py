"""Records by revision: a fork's go on where its ancestors' end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.backends.protocol import Backend, Head, Moment, Record
from holdfast.errors import CorruptError, LostCommitsError, NotFoundError
from holdfast.event import RESTORED
from holdfast.fold import Folded, is_undo, ops_of, origin_of, state_of
from holdfast.lifetimes import Lifetimes
from holdfast.tree import Map

KNOWN_MAX = 65536
BACK_CHUNK = 64


class Lineage:
    """The streams of a backend, each with what it was forked from."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.lifetimes = Lifetimes(backend)
        self.show: Callable[[Folded, str], Map] = state_of
        """How a fold becomes the state that a reader is handed; an audit has it noted."""
        self._origins: dict[str, tuple[str, int] | None] = {}

    def head(self, stream: str) -> Head | None:
        """Returns where a stream is, None if there is none; raises ExpiredError if it ended."""
        head = self.backend.heads([stream])[0]
        if head is not None:
            self.lifetimes.check(stream, self.lifetimes.end(stream, head))
        return head

    def contradicted(self, stream: str, head: Head, found: str, revision: int) -> CorruptError:
        """Returns the error for events that are not what a head has told.

        Nothing is taken back in a sound store. So if the head is another one now, a server that
        came back without its newest commits, or its replica, has answered in between.
        """
        if self.backend.heads([stream])[0] == head:
            return CorruptError(f'stream "{stream}" {found}', stream=stream, revision=revision)
        return LostCommitsError(
            f'revision {head.revision} of "{stream}" was there and is gone: '
            "another server process answers",
            stream=stream,
            revision=head.revision,
            hint="a failover or restart lost it; open the store again to go on from what is there",
        )

    def origin(self, stream: str) -> tuple[str, int] | None:
        """Returns the stream and revision that a fork began at, None if it is not a fork."""
        if stream not in self._origins:
            if self.backend.heads([stream])[0] is None:
                return None
            origin = above = self._read_origin(stream)
            # Nobody here writes a fork of itself, but somebody else may lay one, to read for ever.
            seen = {stream}
            while above is not None and above[0] not in self._origins:
                if above[0] in seen:
                    raise CorruptError(f'"{stream}" is forked from itself', stream=stream)
                seen.add(above[0])
                above = self._read_origin(above[0])
            # Only now: a read that fails must not make a fork look like none ever after.
            if len(self._origins) >= KNOWN_MAX:
                self._origins.pop(next(iter(self._origins)), None)
            self._origins[stream] = origin
            return origin
        return self._origins[stream]

    def _read_origin(self, stream: str) -> tuple[str, int] | None:
        [head] = self.backend.heads([stream])
        if head is None or head.first == 1:
            return None
        first = self.backend.read(stream, after=head.first - 1, until=head.first)[0]
        return origin_of(first)

    def ancestry(self, stream: str, until: int) -> Iterator[tuple[str, int]]:
        """Yields a stream and those it was forked from, each with its last revision there."""
        while True:
            yield stream, until
            origin = self.origin(stream)
            if origin is None:
                return
            stream, until = origin[0], min(until, origin[1])

    def records(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        """Returns records by revision, those of a fork's ancestors included."""
        head = self.head(stream)
        if head is None:
            return []
        last = head.revision if until is None else min(until, head.revision)
        if limit is not None:
            last = min(last, after + limit)
        records: list[Record] = []
        if after + 1 < head.first:
            origin = self.origin(stream)
            assert origin is not None, "BUG: no origin below the first revision"
            records = self.records(origin[0], after=after, until=min(last, origin[1]))
        if last >= head.first:
            records += self.backend.read(stream, after=max(after, head.first - 1), until=last)
        return records

    def record(self, stream: str, revision: int) -> Record:
        """Returns one record that must be there."""
        records = self.records(stream, after=revision - 1, until=revision)
        if not records:
            raise CorruptError(
                f'event {revision} of "{stream}" is missing', stream=stream, revision=revision
            )
        return records[0]

    def before_newest_change(self, stream: str, newest: int) -> tuple[int, bool]:
        """Returns the revision before a stream's newest change of state, for an undo of that.

        And whether it is the state alone that the undo concerns: all but a restore that nothing
        was written behind. Raises NotFoundError if there is no change.
        """
        written_last = None
        for until in range(newest, 0, -BACK_CHUNK):
            after = max(until - BACK_CHUNK, 0)
            for record in reversed(self.records(stream, after=after, until=until)):
                written_last = written_last or record.position
                if ops_of(record):
                    is_restore = record.type == RESTORED and not is_undo(record)
                    is_last = record.position == written_last
                    return record.revision - 1, not (is_restore and is_last)
        raise NotFoundError(f'scope "{stream}" has no change to undo')

    def revision_at_moment(self, stream: str, moment: Moment) -> int:
        """Returns the newest revision that was visible at a moment."""
        return self._search(stream, lambda record: moment.has(record.position))

    def revision_at_time(self, stream: str, time: int) -> int:
        """Returns the newest revision at or before a time; 0 if the stream began later."""
        return self._search(stream, lambda record: record.time <= time)

    def _search(self, stream: str, holds: Callable[[Record], bool]) -> int:
        """Returns the last revision for which `holds`, by bisection: it holds up to some point.

        A fork's inherited events have their ancestor's positions and times, which are older.
        """
        head = self.head(stream)
        low, high = 0, head.revision if head else 0
        while low < high:
            middle = (low + high + 1) // 2
            if holds(self.records(stream, after=middle - 1, until=middle)[0]):
                low = middle
            else:
                high = middle - 1
        return low

"""Works out which messages of a conversation are there, by reading back from its newest event.

An event that changes a message comes after it in the stream. So a scan that goes backwards meets
every edit, deletion and rewind of a message before the message itself, and can stop as soon as it
has found enough: the newest 20 of a million cost what the newest 20 of a hundred do. Nothing is
folded, and only the few events that change others are decoded.

A scan remembers how far it went. Its path only goes down: a rewind is a jump to a lower revision,
and the ranges between jumps are the segments of the path. Records are kept in memory up to a limit.
Older ones are read again along the known segments when they are needed.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator

from msgspec import Struct

from holdfast.backends.protocol import GONE, Record
from holdfast.core import codec, event
from holdfast.core.log import Log
from holdfast.errors import ClosedError, CorruptError
from holdfast.record.message_events import (
    ADDED,
    CLEARED,
    COMPACTED,
    DELETED,
    EDITED,
    MERGED,
    POPPED,
    REWOUND,
)

CHUNK_MIN = 32
CHUNK_MAX = 4096
KEPT_BYTES_MAX = 32 << 20
SCANS_MAX = 256
_RECORD_BYTES = 300
_REWINDS = frozenset((CLEARED, REWOUND, MERGED, event.RESTORED))
_CHANGES = _REWINDS | {EDITED, DELETED, POPPED, COMPACTED, event.CLOSED, event.REMOVED}


class _AtData(Struct):
    at: int


class _ToData(Struct):
    to: int
    undo: bool = False
    undoes: int = 0


class _ThroughData(Struct):
    through: int


class _ClosedData(Struct):
    keep: bool = True


class _Segment(Struct):
    """A range of the path: the revisions low < r <= high."""

    low: int
    high: int


class Scan:
    """The messages of one stream at one revision, found from the newest back as far as needed."""

    def __init__(
        self, log: Log, stream: str, until: int, link: bytes, first: int, *, original: bool
    ) -> None:
        self.stream = stream
        self.until = until
        self.link = link
        self.mutex = threading.RLock()
        self.removed: set[int] = set()
        self.undone: set[int] = set()  # restores that were undone: they hide nothing
        self.edits: dict[int, list[bytes]] = {}  # newest first
        self.summary: Record | None = None
        self.floor = 0  # the summary replaces all messages up to this revision
        self.count = 0
        self.done = until == 0
        self.dropped_at = 0
        self.kept_bytes = 0
        self.foreign: dict[str, int] = {}  # revisions by foreign id, as far as one was looked up
        self.foreign_from = until
        self.foreign_until = until
        self._log = log
        self._first = first  # revisions below are those of an ancestor
        self._original = original
        self._segments = [_Segment(until, until)]
        self._tail: list[Record] = []  # oldest first
        self._tail_low = until  # the tail has every message above
        self._is_full = False

    # --- reading ---------------------------------------------------------------------------------

    def last(self, n: int) -> list[Record]:
        """Returns the newest n messages, oldest first."""
        chunk = max(n - self.count, CHUNK_MIN)
        while self.count < n and not self.done:
            self._scan_more(chunk)
            chunk = min(chunk * 2, CHUNK_MAX)
        if len(self._tail) >= n:
            return self._tail[-n:] if n else []
        return self.before(self.until + 1, n)

    def before(self, place: int, n: int) -> list[Record]:
        """Returns the newest n messages before a place, oldest first."""
        high = place - 1
        width = max(CHUNK_MIN, 2 * n)
        while True:
            low = max(high - width, -1)
            self._scan_down_to(low)
            found = self._between(low, high)
            if len(found) >= n or low < max(self.floor, 0) or low < 0:
                return found[-n:] if n else []
            width *= 4

    def after(self, place: int, n: int) -> list[Record]:
        """Returns the oldest n messages after a place; -1 is before the first."""
        self._scan_down_to(place)
        low, width = place, max(CHUNK_MIN, 2 * n)
        found: list[Record] = []
        while len(found) < n and low < self.until:
            high = min(low + width, self.until)
            found += self._between(low, high)
            low, width = high, min(width * 2, CHUNK_MAX)
        return found[:n]

    def all(self) -> list[Record]:
        """Returns every message, oldest first."""
        self.finish()
        return self._between(-1, self.until)

    def finish(self) -> None:
        """Scans to the start of the stream."""
        self._scan_down_to(-1)

    def seek(self, place: int) -> None:
        """Scans until it is known whether a compaction covers a place."""
        self._scan_down_to(place)

    def start(self) -> None:
        """Scans the newest events once; they tell whether the messages were dropped at close."""
        if self._frontier == self.until and not self.done:
            self._scan_more(CHUNK_MIN)

    def place(self, record: Record) -> int:
        """Returns the place of a message: its revision, or the last that a summary covers."""
        if record.type != COMPACTED:
            return record.revision
        self.finish()  # what it covers is known only when the scan has met the compaction
        return self.floor

    def edits_of(self, record: Record) -> list[bytes]:
        """Returns the edits of a message, oldest first."""
        return self.edits.get(record.revision, [])[::-1]

    @property
    def last_rewind(self) -> int:
        """The newest event that rewound the stream, as far as it is scanned; 0 if there is none."""
        return self._segments[0].low if len(self._segments) > 1 else 0

    def events(self) -> Iterator[Record]:
        """Yields every event on the path, of any type, newest first."""
        number, at = 0, self.until
        while True:
            segment = self._segments[number]
            if at > segment.low:
                low = max(segment.low, at - CHUNK_MAX)
                yield from reversed(self._read(low, at))
                at = low
            elif number + 1 < len(self._segments):
                number += 1
                at = self._segments[number].high
            elif self.done:
                return
            else:
                with self.mutex:
                    self._scan_more(CHUNK_MIN)

    # --- scanning --------------------------------------------------------------------------------

    @property
    def _frontier(self) -> int:
        return self._segments[-1].low

    def _scan_down_to(self, low: int) -> None:
        """Scans until everything above a revision is known."""
        while not self.done and self._frontier > low:
            self._scan_more(self._frontier - max(low, 0))

    def _scan_more(self, count: int) -> None:
        """Scans the next events, and keeps the messages among them."""
        segment = self._segments[-1]
        low = max(segment.low - min(count, CHUNK_MAX), self.floor)
        found: list[Record] = []
        jump: int | None = None
        for record in reversed(self._read(low, segment.low)):
            if record.revision <= self.floor:
                break
            if record.type == ADDED:
                # A message that a policy let go of counts as deleted.
                if record.revision not in self.removed and record.payload != GONE:
                    found.append(record)
            elif record.type in _CHANGES:
                jump = self._apply(record)
                if jump is not None:
                    low = record.revision
                    break
        segment.low = max(low, self.floor)
        if jump is not None:
            self._segments.append(_Segment(jump, jump))
        self._keep(found)
        if self._frontier <= self.floor:
            self.done = True
            if self.summary is not None and self.summary.revision in self.removed:
                self.summary = None
            self.count += self.summary is not None

    def _read(self, after: int, until: int) -> list[Record]:
        """Reads records of the path; in the stream itself without asking for its head again."""
        if after + 1 >= self._first:
            return self._log.read(self.stream, after=after, until=until)
        return self._log.records(self.stream, after=after, until=until)

    def _keep(self, found: list[Record]) -> None:
        """Keeps messages, given newest first, in memory as long as there is room."""
        self.count += len(found)
        size = sum([len(record.payload) for record in found]) + _RECORD_BYTES * len(found)
        self._is_full = self._is_full or self.kept_bytes + size > KEPT_BYTES_MAX
        if not self._is_full:
            self._tail[:0] = found[::-1]
            self._tail_low = self._frontier
            self.kept_bytes += size

    def _apply(self, record: Record) -> int | None:
        """Applies an event that changes earlier ones.

        Returns the revision that it rewinds to, or None if it is not a rewind.
        """
        kind = record.type
        if record.payload == GONE:
            return None  # it was let go together with the messages that it was about
        if kind in _REWINDS:
            jump = codec.decode_as(record.payload, _ToData)
            if record.revision in self.undone:
                return None
            if jump.undoes:
                self.undone.add(self._lower(jump.undoes, record))
            # The undo of one change of the state does not concern messages.
            return None if jump.undo else self._lower(jump.to, record)
        if kind == event.REMOVED:
            return None if record.revision in self.undone else 0
        if kind == event.CLOSED:
            if codec.decode_as(record.payload, _ClosedData).keep:
                return None
            if record.revision == self.until:
                self.dropped_at = record.revision
            return 0
        if kind == COMPACTED:
            if not self._original and self.summary is None:
                self.floor = self._lower(
                    codec.decode_as(record.payload, _ThroughData).through, record
                )
                self.summary = record
            return None
        at = self._lower(codec.decode_as(record.payload, _AtData).at, record)
        if kind == EDITED:
            self.edits.setdefault(at, []).append(record.payload)
        else:
            self.removed.add(at)
        return None

    def _lower(self, revision: int, record: Record) -> int:
        if not 0 <= revision < record.revision:
            raise CorruptError(
                f'event {record.revision} of "{record.stream}" points to {revision}: expected an '
                "earlier one",
                stream=record.stream,
                revision=record.revision,
            )
        return revision

    def _between(self, low: int, high: int) -> list[Record]:
        """Returns the messages with low < place <= high, oldest first.

        The events above `low` must have been scanned. With -1 the summary is included.
        """
        found: list[Record] = []
        if self.done and self.summary is not None and low < self.floor <= high:
            found.append(self.summary)
        if low >= self._tail_low or (self.done and not self._is_full):
            tail = self._tail
            start = bisect_right(tail, low, key=_revision)
            end = len(tail) if high >= self.until else bisect_right(tail, high, key=_revision)
            return found + tail[start:end]
        for segment in reversed(self._segments):
            at, end = max(low, segment.low), min(high, segment.high)
            while at < end:
                upto = min(at + CHUNK_MAX, end)
                found += [
                    record
                    for record in self._read(at, upto)
                    if record.type == ADDED
                    and record.revision not in self.removed
                    and record.payload != GONE
                ]
                at = upto
        return found

    # --- extending -------------------------------------------------------------------------------

    def extended(self, until: int, link: bytes) -> Scan:
        """Returns a scan for a later end of the stream: this one, extended if that is possible."""
        newer = Scan(self._log, self.stream, until, link, self._first, original=self._original)
        newer._scan_down_to(self.until)
        # If the new events undo an older restore, messages that it hid are there again, and this
        # scan passed them over.
        is_jump = len(newer._segments) > 1 or newer.summary is not None or newer.undone
        kept_bytes = self.kept_bytes + newer.kept_bytes
        if is_jump or self.dropped_at or newer._is_full or kept_bytes > KEPT_BYTES_MAX:
            return newer
        gone = {at for at in newer.removed if at <= self.until}
        if any(at <= self._tail_low or at == self._summary_at for at in gone):
            # Whether a record that is not in memory was removed before is not known, so the count
            # of messages cannot be corrected.
            return newer
        if gone:
            kept = [record for record in self._tail if record.revision not in gone]
            self.count -= len(self._tail) - len(kept)
            self._tail = kept
        self.removed |= newer.removed
        for at, edits in newer.edits.items():
            self.edits[at] = edits + self.edits.get(at, [])
        self._tail += newer._tail
        self.count += newer.count
        self.kept_bytes = kept_bytes
        self._segments[0].high = until
        self.until, self.link = until, link
        return self

    @property
    def _summary_at(self) -> int:
        return -1 if self.summary is None else self.summary.revision


def _revision(record: Record) -> int:
    return record.revision


def differing(old: Scan, new: Scan) -> list[tuple[Record | None, Record | None]]:
    """Returns the messages that differ between two scans of a stream.

    They are in the order of the stream, each in the form of the old scan and of the new one, None
    where a scan does not have it. It reads down to where the paths of both meet, not the whole
    conversation.
    """
    low = _meeting(old, new)
    edited = {at for at in {*old.edits, *new.edits} if old.edits.get(at) != new.edits.get(at)}
    # Below this both scans have the same messages, except for those that only one of them has
    # removed or edited.
    low = min([low, *(at - 1 for at in edited | (old.removed ^ new.removed))])
    old._scan_down_to(low)
    new._scan_down_to(low)
    if old.floor or new.floor:  # the place of a summary is below everything that it covers
        old.finish()
        new.finish()
        low = -1
    before = {record.revision: record for record in old._between(low, old.until)}
    after = {record.revision: record for record in new._between(low, new.until)}
    return [
        (before.get(at), after.get(at))
        for at in sorted({*before, *after})
        if at in edited or (at in before) != (at in after)
    ]


def _meeting(old: Scan, new: Scan) -> int:
    """Returns a revision below which both paths are the same; -1 if there is none."""
    low = min(old.until, new.until)
    while True:
        old._scan_down_to(low)
        new._scan_down_to(low)
        if any(at <= low for at in old.undone ^ new.undone):
            old.finish()
            new.finish()
            return -1
        reached = min(old._frontier, new._frontier)
        if reached >= low:
            return low
        low = reached


class Scans:
    """A cache of the scans of one store, in the order of their last use."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._mutex = threading.Lock()
        self._scans: OrderedDict[tuple[str, bool], Scan] = OrderedDict()

    def forget(self) -> None:
        """Drops every scan: events of it were let go of, or memory is short.

        They are made again when they are needed.
        """
        with self._mutex:
            self._scans.clear()

    def newest(self, stream: str, *, original: bool = False) -> Scan:
        """Returns a scan at a stream's newest revision; one lookup tells if it is current."""
        head = self._log.head(stream, to_read=True)
        until, link, first = (0, b"", 1) if head is None else (head.revision, head.link, head.first)
        name = (stream, original)
        scan = self._scans.get(name)
        if scan is not None and scan.link == link:
            return scan
        if scan is not None:
            with scan.mutex:
                if scan.until < until:
                    scan = scan.extended(until, link)
                elif scan.link != link:
                    scan = None  # another thread replaced it with an older or newer one
        if scan is None:
            scan = Scan(self._log, stream, until, link, first, original=original)
        with self._mutex:
            self._scans[name] = scan
            self._scans.move_to_end(name)
            kept = sum(one.kept_bytes for one in self._scans.values())
            while len(self._scans) > 1 and (
                len(self._scans) > SCANS_MAX or kept > 2 * KEPT_BYTES_MAX
            ):
                _, oldest = self._scans.popitem(last=False)
                kept -= oldest.kept_bytes
        return scan

    def at(self, stream: str, revision: int, *, original: bool = False) -> Scan:
        """Returns a scan of a stream at a revision; it is not kept in this cache."""
        head = self._log.head(stream, to_read=True)
        first = 1 if head is None else head.first
        return Scan(self._log, stream, revision, b"", first, original=original)


def check_messages_kept(scan: Scan) -> None:
    """Raises ClosedError if the messages were dropped at close; an empty list would be wrong."""
    scan.start()
    if scan.dropped_at:
        raise ClosedError(
            f'the messages of scope "{scan.stream}" were dropped when it was closed at revision '
            f"{scan.dropped_at}",
            stream=scan.stream,
            hint=f"messages.at({scan.dropped_at - 1}) still reads them",
        )

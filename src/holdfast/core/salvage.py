"""Takes over from a damaged store what verifies, into a new one, and says what it could not.

An event verifies if `check` would find nothing wrong with it: its revision follows the one before
it in its stream, its link is the digest of that one and of itself, it can be read, and so can every
blob that it names. A stream is taken over from its beginning up to the first event that is missing
or does not verify. There it is cut: what comes after cannot be appended, because the link of the
event before it is not there, and an event with another link would be another event. Those later
events are handed to the caller, one by one, to be kept as text.

A stream that is cut is named. So is one that may have lost its newest events: nothing of it is
found after a place where commits of unknown streams are lost (decision 0021).

The source is only read. The target must be empty, or hold a beginning of the very same: a salvage
that was killed goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterator
from itertools import groupby

from msgspec import Struct

from holdfast.backends.protocol import (
    GONE,
    Backend,
    Finding,
    Gap,
    Head,
    Mark,
    Position,
    Record,
    Salvageable,
)
from holdfast.core import codec
from holdfast.core.copy import (
    BYTES_PER_BATCH,
    COMMITS_PER_BATCH,
    MARKS_MAX,
    Copied,
    Copier,
    Progress,
    parts_of,
)
from holdfast.core.erased_ledger import Ledger
from holdfast.core.event import (
    FORKED,
    LASTS,
    ORIGIN,
    SEALED,
    Lifetime,
    follows,
    lifetime_of,
    ops_of,
    origin_of,
)
from holdfast.core.log import Log
from holdfast.errors import ConflictError, CorruptError, ExpiredError, HoldfastError

_PAGE = 64

Remnant = list[Record] | Mark | Finding | Gap
"""What is left of a store, in order: a commit, a mark, or damage."""


class CutStream(Struct):
    """A stream of which not all was taken over: up to `revision`, and why not more.

    `found` later events can be read, from revision `first` to `last`, but nothing leads to them.
    """

    stream: str
    revision: int
    problem: str
    found: int = 0
    first: int = 0
    last: int = 0


class Salvaged(Struct, frozen=True):
    """What a salvage took over, and what it could not."""

    copied: Copied
    streams: int
    cut: list[CutStream]
    doubtful: list[str]  # taken over as far as they are found: newer events may be lost
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """True if nothing is known to be lost, and nothing is in doubt."""
        return not self.cut and not self.doubtful and all(one.harmless for one in self.findings)


class Remains:
    """Follows the streams of what is left of a store, and says which events verify."""

    def __init__(
        self, link_of: Callable[[str, int], bytes | None], blob: Callable[[str, int], bytes]
    ) -> None:
        """`link_of` is asked for the event that a fork follows; None: it cannot be told."""
        self._link_of = link_of
        self._blob = blob
        self._gaps = 0
        self._seen: dict[str, int] = {}
        self.ends: dict[str, tuple[int, bytes]] = {}
        self.lifetimes: dict[str, Lifetime] = {}
        self.times: dict[str, int] = {}
        self.cut: dict[str, CutStream] = {}
        self.findings: list[Finding] = []
        self.events = 0

    def end(self, stream: str) -> int:
        """Returns when a stream ends by itself, 0 if it lasts: its events say it."""
        return self.lifetimes.get(stream, LASTS).end(self.times.get(stream, 0))

    def note(self, damage: Finding | Gap) -> None:
        """Takes in damage; after a Gap every stream is in doubt that does not go on."""
        if isinstance(damage, Gap):
            self._gaps += 1
            damage = damage.finding
        self.findings.append(damage)
        if not damage.harmless:
            for stream in damage.streams:
                self._seen[stream] = -1

    def take(self, record: Record) -> bool:
        """Returns whether an event verifies and continues its stream."""
        stream = record.stream
        cut = self.cut.get(stream)
        if cut is None:
            known = self.ends.get(stream)
            if known is not None and record.revision <= known[0]:
                return False  # it is there a second time
            problem = self._problem(record, known)
            if problem is None:
                self.ends[stream] = (record.revision, record.link)
                self._seen[stream] = self._gaps
                self.events += 1
                if record.revision == 1:
                    self.lifetimes[stream] = lifetime_of(record)
                self.times[stream] = record.time
                return True
            cut = CutStream(stream, known[0] if known else 0, problem)
            self.cut[stream] = cut
        cut.found += 1
        cut.first = cut.first or record.revision
        cut.last = max(cut.last, record.revision)
        return False

    def _problem(self, record: Record, known: tuple[int, bytes] | None) -> str | None:
        """Returns why an event does not continue its stream, None if it does."""
        try:
            if known is None:
                revision, link = self._beginning(record)
            else:
                revision, link = known
            if record.revision != revision + 1:
                return f"revisions {revision + 1} to {record.revision - 1} are lost"
            if record.payload == GONE:
                return None  # let go of on purpose: there is nothing more to read
            if link is not None and not follows(link, record):
                return f"event {record.revision} does not match its link"
            codec.check(record.payload)
            if not record.payload.startswith(SEALED):
                ops_of(record)  # which cannot be read if they are not what they should be
            for name, size in codec.blobs_in(record.payload):
                self._blob(name, size)
        except HoldfastError as error:
            return f"event {record.revision}: {error.message}"
        return None

    def _beginning(self, record: Record) -> tuple[int, bytes | None]:
        """Returns the revision and the link that the first event of a stream follows."""
        if record.revision == 1 or record.type != FORKED:
            return 0, ORIGIN
        stream, revision = origin_of(record)
        return revision, self._link_of(stream, revision)

    def doubtful(self) -> list[str]:
        """Returns the streams that may have lost their newest events."""
        seen, gaps = self._seen, self._gaps
        return sorted(name for name in seen if seen[name] < gaps and name not in self.cut)


# --- taking it over ------------------------------------------------------------------------------


def salvage_log(
    source: Log,
    target: Log,
    *,
    progress: Progress | None = None,
    rest: Callable[[Record], None] | None = None,
) -> Salvaged:
    """Takes over what verifies; `rest` is called with each event that is found and cannot be."""
    _check_target(source, target)
    return _Salvage(source, target, progress, rest).run()


class _Salvage:
    """One run: what verifies goes through a copier, in the order of the source."""

    def __init__(
        self,
        source: Log,
        target: Log,
        progress: Progress | None,
        rest: Callable[[Record], None] | None,
    ) -> None:
        self._source = source
        self._target = target
        self._rest = rest
        self._remains = Remains(self._link_of, source.blobs.stored)
        self._copier = Copier(source, target, progress, self._ends, Ledger(source, target))
        self._batch: list[list[Record]] = []
        self._bytes = 0
        self._total = 0
        with contextlib.suppress(CorruptError):  # then nobody knows how much there is
            self._total = int(source.position())

    def run(self) -> Salvaged:
        remains = self._remains
        marks: list[Mark] = []
        for remnant in remnants(self._source):
            if isinstance(remnant, Mark):
                marks.append(remnant)
            elif isinstance(remnant, list):
                self._take(remnant)
            else:
                remains.note(remnant)
        self._flush()
        copied = self._copier.copied(self._copier.copy_marks(marks), is_behind=False)
        self._compare()
        self._copier.tell_erased()
        return Salvaged(
            copied,
            len(remains.ends),
            sorted(remains.cut.values(), key=lambda cut: cut.stream),
            remains.doubtful(),
            remains.findings,
        )

    def _take(self, commit: list[Record]) -> None:
        taken: list[Record] = []
        for record in commit:
            if self._remains.take(record):
                taken.append(record)
                self._bytes += len(record.payload)
            elif record.stream in self._remains.cut and self._rest is not None:
                self._rest(record)
        if taken:
            self._batch.append(taken)
        if len(self._batch) >= COMMITS_PER_BATCH or self._bytes >= BYTES_PER_BATCH:
            self._flush()

    def _flush(self) -> None:
        batch, self._batch, self._bytes = self._batch, [], 0
        if batch:
            self._copier.copy(batch, self._total)

    def _link_of(self, stream: str, revision: int) -> bytes:
        """Returns the link of an event that was taken over before."""
        known, _ = self._remains.ends.get(stream, (0, b""))
        if known < revision:
            raise CorruptError(
                f'it was forked from "{stream}" at revision {revision}, which is lost'
            )
        self._flush()
        link = self._target.link_at(stream, revision)
        assert link is not None, "BUG: an event that was taken over is not there"
        return link

    def _ends(self, streams: list[str]) -> dict[str, int]:
        """Returns when each stream ends by itself, -1 where it has: its events say it."""
        ends: dict[str, int] = {}
        for stream in streams:
            end = self._remains.end(stream)
            is_over = end and self._source._backend.now_us(stream) >= end
            ends[stream] = -1 if is_over else end
        return ends

    def _compare(self) -> None:
        """Raises ConflictError unless the target ends where what was taken over does."""
        names = sorted(self._remains.ends)
        for start in range(0, len(names), _PAGE):
            page = names[start : start + _PAGE]
            ends = self._ends(page)
            for name, head in zip(page, self._target.heads(page), strict=True):
                revision, link = self._remains.ends[name]
                if ends[name] >= 0 and (
                    head is None or (head.revision, head.link) != (revision, link)
                ):
                    raise _not_ours(name, revision, head)


def _check_target(source: Log, target: Log) -> None:
    """Raises ConflictError unless every stream of the target is a beginning of the source's.

    A link stands for all that is before it: so where it is found in the source, all of it is.
    """
    there = dict(_heads(target._backend))
    if not there:
        return
    missing = dict(there)
    for remnant in remnants(source):
        if isinstance(remnant, list):
            for record in remnant:
                head = missing.get(record.stream)
                if head is not None and (head.revision, head.link) == (
                    record.revision,
                    record.link,
                ):
                    del missing[record.stream]
    for name, head in missing.items():
        raise _not_ours(name, 0, head)


def _heads(backend: Backend) -> Iterator[tuple[str, Head]]:
    after = ""
    while names := backend.streams(after=after):
        for name, head in zip(names, backend.heads(names), strict=True):
            if head is not None:
                yield name, head
        after = names[-1]


def _not_ours(stream: str, expected: int, head: Head | None) -> ConflictError:
    return ConflictError(
        f'the target has other events in "{stream}" than the source',
        stream=stream,
        expected=expected,
        actual=head.revision if head else 0,
        hint="salvage into an empty store",
    )


# --- what is left --------------------------------------------------------------------------------


def remnants(source: Log, *parts: Backend) -> Iterator[Remnant]:
    """Yields what is left of a store, part by part if it has several backends; or of some parts."""
    for part in parts or parts_of(source):
        inspect = part.inspect
        yield from inspect.remains() if isinstance(inspect, Salvageable) else _by_stream(part)


def _by_stream(backend: Backend) -> Iterator[Remnant]:
    """Reads every stream as far as it can be read, and puts their events in order again."""
    damage: list[Finding | Gap] = []
    names: list[str] = []
    try:
        while page := backend.streams(after=names[-1] if names else ""):
            names += page
    except CorruptError as error:
        damage.append(Gap(Finding(error.where or "streams", error.message)))
    streams = [_stream(backend, name, damage) for name in names]
    merged = heapq.merge(*streams, key=_position)
    for _, commit in groupby(merged, _position):
        yield list(commit)
    yield from damage
    try:
        yield from backend.marks.list(limit=MARKS_MAX)
    except CorruptError as error:
        yield Finding(error.where or "marks", error.message)


def _position(record: Record) -> Position:
    return record.position


def _stream(backend: Backend, name: str, damage: list[Finding | Gap]) -> Iterator[Record]:
    """Yields the events of a stream that can be read; what cannot is noted, one by one."""
    try:
        [head] = backend.heads([name])
    except CorruptError as error:
        damage.append(Finding(name, error.message, streams=(name,)))
        head = None
    after, limit = head.first - 1 if head else 0, _PAGE
    while head is None or after < head.revision:
        try:
            records = backend.read(name, after=after, limit=limit)
        except ExpiredError:
            return
        except CorruptError as error:
            if limit > 1:
                limit = 1
                continue
            damage.append(Finding(f"{name}@{after + 1}", error.message, streams=(name,)))
            if head is None:
                return  # nobody knows how far it went
            after += 1
            continue
        if not records:
            return
        yield from records
        after = records[-1].revision
        limit = min(2 * limit, _PAGE)

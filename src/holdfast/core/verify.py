"""Verifies the events of a store one by one, in order, even if some of them are damaged.

An event verifies if its revision follows that of the event before it in its stream, if its link
fits that event and itself, and if it and every blob that it names can be read. A stream is whole
from its beginning up to the first event that is missing or does not verify. There it is cut: what
comes after cannot be verified, because the link before it is missing.

A stream that is cut is named. So is a stream that may have lost its newest events: if nothing of it
is found after a place where commits of unknown streams are lost (decision 0021).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import groupby

from msgspec import Struct

from holdfast.backends.protocol import (
    GONE,
    Backend,
    Finding,
    Gap,
    Mark,
    Position,
    Record,
    Salvageable,
)
from holdfast.core import codec
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
from holdfast.core.log import NO_LIMIT, READ_CHUNK, Log
from holdfast.errors import CorruptError, ExpiredError, HoldfastError

_PAGE = 64

Remnant = list[Record] | Mark | Finding | Gap
"""What is left of a store, in order: a commit, a mark, or damage."""


class CutStream(Struct):
    """A stream that was taken over only up to `revision`, and why not further.

    `found` later events can be read, from revision `first` to `last`, but cannot be verified.
    """

    stream: str
    revision: int
    problem: str
    found: int = 0
    first: int = 0
    last: int = 0


class Verification:
    """Follows the streams of a source, and finds which events verify."""

    def __init__(
        self, link_of: Callable[[str, int], bytes | None], blob: Callable[[str, int], bytes]
    ) -> None:
        """`link_of` returns the link of an event that was taken and that a fork follows.

        It returns None if it does not know the link.
        """
        self._link_of = link_of
        self._blob = blob
        self._gaps = 0
        self._seen: dict[str, int] = {}
        self.ends: dict[str, tuple[int, bytes]] = {}
        self._lifetimes: dict[str, Lifetime] = {}
        self._times: dict[str, int] = {}
        self.cut: dict[str, CutStream] = {}
        self.findings: list[Finding] = []
        self.events = 0

    def end(self, stream: str) -> int:
        """Returns when a stream ends by itself, as its events say; 0 if it does not."""
        return self._lifetimes.get(stream, LASTS).end(self._times.get(stream, 0))

    def slides(self, stream: str) -> bool:
        """Returns whether the end of a stream slides."""
        return self._lifetimes.get(stream, LASTS).slides_us > 0

    def note(self, damage: Finding | Gap) -> None:
        """Notes damage; after a Gap every stream that does not go on is in doubt."""
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
                return False  # it came before
            problem = self._problem(record, known)
            if problem is None:
                self.ends[stream] = (record.revision, record.link)
                self._seen[stream] = self._gaps
                self.events += 1
                if record.revision == 1:
                    self._lifetimes[stream] = lifetime_of(record)
                self._times[stream] = record.time
                return True
            cut = CutStream(stream, known[0] if known else 0, problem)
            self.cut[stream] = cut
        cut.found += 1
        cut.first = cut.first or record.revision
        cut.last = max(cut.last, record.revision)
        return False

    def why_not(self, stream: str) -> str:
        """Returns why the last event of a stream was not taken."""
        cut = self.cut.get(stream)
        return cut.problem if cut is not None else "it comes twice"

    def _problem(self, record: Record, known: tuple[int, bytes | None] | None) -> str | None:
        """Returns why an event does not continue its stream, None if it does."""
        try:
            origin = _origin_of(record) if known is None else None
        except HoldfastError as error:
            return f"event {record.revision}: {error.message}"
        if origin is not None:
            stream, revision = origin
            # Not caught: an error here, such as a full disk, is no damage. The target may have what
            # is lost here: an earlier run took it.
            link = self._link_of(stream, revision)
            if link is None and self.ends.get(stream, (0, b""))[0] < revision:
                return f'it was forked from "{stream}" at revision {revision}, which is lost'
            known = revision, link
        revision, link = known or (0, ORIGIN)
        if record.revision != revision + 1:
            return f"revisions {revision + 1} to {record.revision - 1} are lost"
        if record.payload == GONE:
            return None  # let go of on purpose: there is nothing more to read
        if link is not None and not follows(link, record):
            return f"event {record.revision} does not match its link"
        try:
            codec.check(record.payload)
            if not record.payload.startswith(SEALED):
                ops_of(record)  # raises if they are malformed
            for name, size in codec.blobs_in(record.payload):
                self._blob(name, size)
        except HoldfastError as error:
            return f"event {record.revision}: {error.message}"
        return None

    def doubtful(self) -> list[str]:
        """Returns the streams that may have lost their newest events."""
        seen, gaps = self._seen, self._gaps
        return sorted(name for name in seen if seen[name] < gaps and name not in self.cut)


def verified_end(
    log: Log, stream: str, known: tuple[int, bytes] = (0, ORIGIN), *, until: int | None = None
) -> tuple[int, bytes]:
    """Reads a stream of a sound store back, from after `known` on: every link and every blob.

    Returns the revision and link of the last event that verifies. The writer compares them with
    what it wrote.
    """
    verification = Verification(log.link_at, log.blobs.stored)
    after = known[0]
    if after:
        verification.ends[stream] = known
    while page := log.backend.read(stream, after=after, until=until, limit=READ_CHUNK):
        if not after and (origin := _origin_of(page[0])) is not None:
            verification.ends[stream] = origin[1], log.link_at(*origin) or ORIGIN
        if not all(map(verification.take, page)):
            break
        after = page[-1].revision
    return verification.ends.get(stream, known)


def _origin_of(first: Record) -> tuple[str, int] | None:
    """Returns the event that a stream's first one follows; None if it is not a fork's."""
    return None if first.revision == 1 or first.type != FORKED else origin_of(first)


# --- what is left --------------------------------------------------------------------------------


def remnants(source: Log, *parts: Backend) -> Iterator[Remnant]:
    """Yields what is left of a store, or of some of its parts, one part after the other."""
    for part in parts or source.parts():
        inspect = part.inspect
        yield from inspect.remains() if isinstance(inspect, Salvageable) else _by_stream(part)


def _by_stream(backend: Backend) -> Iterator[Remnant]:
    """Reads every stream as far as it can be read, and merges the events by position."""
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
        yield from backend.marks.list(limit=NO_LIMIT)
    except CorruptError as error:
        yield Finding(error.where or "marks", error.message)


def _position(record: Record) -> Position:
    return record.position


def _stream(backend: Backend, name: str, damage: list[Finding | Gap]) -> Iterator[Record]:
    """Yields the events of a stream that can be read; notes those that cannot, one by one."""
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
                return  # it is not known how far the stream goes
            after += 1
            continue
        if not records:
            return
        yield from records
        after = records[-1].revision
        limit = min(2 * limit, _PAGE)

"""Events page by page, in either direction: of a stream, of a store, of a mixed store.

A cursor is a place between two commits of the store, or between two revisions of a stream. Every
event lies before it or after it, so one cursor leads both ways. A page of a store holds whole
commits, because there is no place between the events of a commit. So it may hold a few events more
than its limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from holdfast.backends.protocol import START, Position, Record
from holdfast.core.arguments import check_flag, check_since, check_whole, check_word, name_of
from holdfast.core.event import Event
from holdfast.core.log import Log
from holdfast.core.meta import source_and_trust
from holdfast.core.own_event import is_of_type, stored_type
from holdfast.core.page import Page, check_limit, read_cursor, write_cursor
from holdfast.core.provenance import check_source
from holdfast.core.sealing import noted_reads, tell_reader
from holdfast.errors import UsageError, show_value

_KIND = "events"
_CHUNK = 1000
"""How many events are read at once where not all of them are wanted."""
LOOKED_MAX = 2_000
"""After how many events an index, if there is one, is asked for the rest of a page."""
_NEAR = 64
"""Commits whose positions are nearer than this are read at once, with those between them."""


class EventFilter(NamedTuple):
    """Which events are wanted."""

    type: str | None = None
    actor: str | None = None
    since: int | None = None
    until: int | None = None
    source: str | None = None
    trust: str | None = None

    def matches(self, record: Record) -> bool:
        if self.since is not None and record.time < self.since:
            return False
        if self.until is not None and record.time >= self.until:
            return False
        if self.source is not None or self.trust is not None:
            source, trust = source_and_trust(record.meta)
            if self.source not in (None, source) or self.trust not in (None, trust):
                return False
        return (self.type is None or is_of_type(record.type, self.type)) and (
            self.actor in (None, record.actor)
        )

    def chunk(self, limit: int | None) -> int:
        """Returns how many events to read at once to find `limit` of them."""
        return _CHUNK if limit is None or self != EventFilter() else min(limit + 1, _CHUNK)


class FindPositions(Protocol):
    """Returns the next positions that have a wanted event, above `low` and up to `high`.

    `events` is how many events would have to be read without the index. It returns None if reading
    them is the better way (`query/logged.py`).
    """

    def __call__(
        self,
        wanted: EventFilter,
        low: int,
        high: int | None,
        limit: int,
        events: int,
        *,
        newest_first: bool,
    ) -> Sequence[int] | None: ...


def event_filter(
    type: object,
    actor: str | None,
    source: str | None,
    trust: str | None,
    *,
    since: int | None = None,
    until: int | None = None,
) -> EventFilter:
    """Returns the filter for what a caller asks for, or raises UsageError."""
    name = None if type is None else stored_type(type)
    return EventFilter(
        name,
        check_word(actor, "actor"),
        since,
        until,
        check_source(source),
        check_word(trust, "trust"),
    )


def event_page(
    log: Log,
    *,
    before: Position | str | None,
    after: Position | str | None,
    limit: int | None,
    scope: object,
    type: object,
    actor: str | None,
    newest_first: bool,
    since: object = None,
    until: object = None,
    source: str | None = None,
    trust: str | None = None,
    find: FindPositions | None = None,
) -> Page[Event]:
    """Returns one page of the events between two places, from the oldest on or from the newest on.

    If a page of the whole store takes long to fill, the index (`find`) is asked.
    """
    limit = check_limit(limit)
    now_us = log.clock.now_us()
    wanted = event_filter(
        type,
        actor,
        source,
        trust,
        since=None if since is None else check_since(since, "since", now_us),
        until=None if until is None else check_since(until, "until", now_us),
    )
    place: _Whole | _Stream = _Whole(log) if scope is None else _Stream(log, name_of(scope))
    low = place.start() if after is None else place.after(after)
    high = None if before is None else place.before(before)
    walk = place.backward if check_flag(newest_first, "newest_first") else place.forward
    commits = walk(low, high, wanted.chunk(limit))
    if find is not None and isinstance(place, _Whole) and wanted != EventFilter():
        ask = _Asking(find, wanted, limit or _CHUNK, newest_first)
        commits = place.found(commits, low, high, ask)
    found: list[Record] = []
    size, more = 0, False
    for commit in commits:
        matching = [record for record in commit if wanted.matches(record)]
        if matching and limit is not None and size >= limit:
            more = True  # searched for until one is found: so the next page is never empty
            break
        size += len(matching)
        found += reversed(matching) if newest_first else matching
    for subject in {record.subject for record in found if record.subject is not None}:
        tell_reader(log.sealing, subject)
    if not found:
        # Not the newest place: events that come while this page is read must not be skipped.
        above = high if newest_first and high is not None else low
        return Page(cursor=place.cursor(low), start=place.cursor(above))
    upper, lower = (found[0], found[-1]) if newest_first else (found[-1], found[0])
    ends = place.cursor(place.upper(upper)), place.cursor(place.lower(lower))
    start, cursor = ends if newest_first else ends[::-1]
    return Page(map(log.event, found), more=more, cursor=cursor, start=start)


class _Asking(NamedTuple):
    """A question to an index."""

    find: FindPositions
    wanted: EventFilter
    limit: int
    newest_first: bool


def _beyond(position: int, low: int, high: int | None, ask: _Asking) -> tuple[int, int | None]:
    """Returns the places between which the rest lies, after the commit at a position."""
    return (low, position - 1) if ask.newest_first else (position, high)


def _near(positions: Sequence[int]) -> Iterator[list[int]]:
    """Yields positions, in their order, in groups that are worth reading at once."""
    group: list[int] = []
    for one in positions:
        if group and abs(one - group[0]) >= _NEAR:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


class _Whole:
    """Places in a whole store: positions."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def start(self) -> int:
        return START

    def cursor(self, place: int) -> str:
        return write_cursor(_KIND, int(place))

    def after(self, given: int | str) -> int:
        """Returns the place of a cursor, or of the position of an event."""
        number: object = given
        if isinstance(given, str):
            [number] = _parts(given, 1)
        return self._log.routes.position(number)

    def before(self, given: int | str) -> int:
        if isinstance(given, str):
            return self.after(given)
        if self._log.routes.is_split:
            raise UsageError(
                "a mixed store has no events before a position: its backends have no common order",
                hint="give the cursor of a page",
            )
        return check_whole(given, "before", least=1) - 1

    def upper(self, record: Record) -> int:
        return record.position

    def lower(self, record: Record) -> int:
        return self._log.routes.before(record)

    def forward(self, low: int, high: int | None, chunk: int) -> Iterator[list[Record]]:
        is_after = self._log.routes.is_after
        while records := self._log.read_all(after=Position(low), limit=chunk):
            low = records[-1].position
            for commit in self._commits(records):
                if high is not None and is_after(commit[0], Position(high)):
                    if not self._log.routes.is_split:
                        return
                    continue  # other backends may still have events before that place
                yield commit

    def backward(self, low: int, high: int | None, chunk: int) -> Iterator[list[Record]]:
        is_after = self._log.routes.is_after
        until = None if high is None else Position(high)
        while records := self._log.read_back(until=until, limit=chunk):
            until = self._log.routes.before(records[0])
            for commit in reversed(self._commits(records)):
                if is_after(commit[0], Position(low)):
                    yield commit
                elif not self._log.routes.is_split:
                    return

    def found(
        self, walked: Iterator[list[Record]], low: int, high: int | None, ask: _Asking
    ) -> Iterator[list[Record]]:
        """Yields commits as they are walked; after `LOOKED_MAX` events, those that an index finds.

        If the index cannot answer, the walk goes on. A mixed store has no common order, so it is
        always walked.
        """
        looked = 0
        for commit in walked:
            yield commit
            looked += len(commit)
            if looked >= LOOKED_MAX and not self._log.routes.is_split:
                yield from self._rest(*_beyond(commit[0].position, low, high, ask), ask)
                return

    def _rest(self, low: int, high: int | None, ask: _Asking) -> Iterator[list[Record]]:
        """Yields the commits that an index finds; where it cannot answer, those of a walk."""
        while True:
            end = int(self._log.position())
            events = (end if high is None else min(high, end)) - low
            positions = ask.find(
                ask.wanted, low, high, ask.limit + 1, events, newest_first=ask.newest_first
            )
            if positions is None:
                walk = self.backward if ask.newest_first else self.forward
                yield from walk(low, high, _CHUNK)
                return
            for near in _near(positions):
                found = self._read_at(near)
                yield from (found[one] for one in near if one in found)
            if len(positions) <= ask.limit:
                return
            low, high = _beyond(positions[-1], low, high, ask)

    def _read_at(self, near: Sequence[int]) -> dict[int, list[Record]]:
        """Reads the commits at positions that are near each other; returns them by position."""
        after, last = Position(min(near) - 1), max(near)
        found: dict[int, list[Record]] = {}
        limit = 1 if len(near) == 1 else _NEAR
        while after < last and (records := self._log.read_all(after=after, limit=limit)):
            found |= {int(one[0].position): one for one in self._commits(records)}
            after = records[-1].position
        return found

    def _commits(self, records: list[Record]) -> list[list[Record]]:
        """Groups records by commit, without the events of streams that have ended."""
        with noted_reads():  # a page has those that match
            kept = self._log.opened(self._log.expiry.kept(records))
        return [list(commit) for _, commit in groupby(kept, lambda record: int(record.position))]


class _Stream:
    """Places in one stream: revisions, including those that a fork inherits."""

    def __init__(self, log: Log, name: str) -> None:
        self._log = log
        self._name = name

    def start(self) -> int:
        return 0

    def end(self) -> int:
        head = self._log.head(self._name)
        return 0 if head is None else head.revision

    def cursor(self, place: int) -> str:
        return write_cursor(_KIND, self._name, place)

    def after(self, given: int | str) -> int:
        """Returns the place of a cursor of this scope, or of a revision."""
        if not isinstance(given, str):
            return check_whole(given, "after")
        name, revision = _parts(given, 2)
        if name != self._name:
            raise UsageError(
                f'the cursor is one of the events of {show_value(name)}, not of "{self._name}"',
                hint="give the cursor of the page before, as it is",
            )
        return check_whole(revision, "after")

    def before(self, given: int | str) -> int:
        if isinstance(given, str):
            return self.after(given)
        return check_whole(given, "before", least=1) - 1

    def upper(self, record: Record) -> int:
        return record.revision

    def lower(self, record: Record) -> int:
        return record.revision - 1

    def forward(self, low: int, high: int | None, chunk: int) -> Iterator[list[Record]]:
        while records := self._log.records(self._name, after=low, until=high, limit=chunk):
            low = records[-1].revision
            for record in records:
                yield [record]

    def backward(self, low: int, high: int | None, chunk: int) -> Iterator[list[Record]]:
        newest = self.end()
        last = newest if high is None else min(newest, high)
        while last > low:
            start = max(low, last - chunk)
            for record in reversed(self._log.records(self._name, after=start, until=last)):
                yield [record]
            last = start


def _parts(cursor: str, count: int) -> tuple[object, ...]:
    parts = read_cursor(_KIND, cursor)
    if len(parts) != count:
        raise UsageError(
            "the cursor is one of the events of a scope"
            if count == 1
            else "the cursor is one of the events of the whole store, not of a scope",
            hint="give the cursor of the page before, with the same scope or none",
        )
    return parts

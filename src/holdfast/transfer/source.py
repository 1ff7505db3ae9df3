"""The source of a transfer: a log up to a moment, some scopes of it, or what verifies of it.

A source yields complete commits in the order in which they were made. Its log has the blobs that
events name and knows when streams expire. The log may be written to meanwhile: the end of the
source is fixed before its first event is read. Memory is bounded by a page, not by the store.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby, islice

from holdfast.backends.protocol import (
    START,
    Backend,
    Head,
    Mark,
    MarksAtMoment,
    Position,
    Record,
    marks_at_moment,
)
from holdfast.core.event import FORKED, origin_of
from holdfast.core.layers import kept_with
from holdfast.core.log import Log
from holdfast.core.verify import Verification, remnants
from holdfast.errors import NotFoundError, UnavailableError
from holdfast.names import check_scope_name

RECORDS_PER_READ = 500
_PAGE = 200
HELD_BACK_S = 30.0
"""How long to wait for another client's open transaction that holds back what must be read."""

OVER = -1
"""Stands for the end of a stream that has expired: no backend takes its events any more."""


class Source:
    """A log, read up to the final position of each backend, or up to a given position."""

    def __init__(
        self,
        log: Log,
        *,
        until: Position | None = None,
        verification: Verification | None = None,
        clock: Log | None = None,
        held: Collection[str] | None = None,
    ) -> None:
        """With `verification`, the events that it followed say when streams end, not the heads.

        Expiry is judged by the clock of the log `clock` if it is given, as by the target's if the
        source is a file. `held` names the scopes that holds keep, where the log has no marks.
        """
        self.log = log
        self._until = until
        self._followed = verification
        self._clock = clock or log
        self._held = held

    def commits(self) -> Iterator[list[Record]]:
        """Yields the commits of the source, each with all its events."""
        for part in self.log.parts():
            until = part.wait(START, timeout_s=0) if self._until is None else self._until
            yield from commits_until(part, START, until)

    def ends(self, streams: list[str]) -> dict[str, int]:
        """Returns when streams expire: 0 if never, OVER if they have expired.

        A stream that only a hold keeps is taken without an end, because the target would refuse
        events after the end.
        """
        expiry, followed = self.log.expiry, self._followed
        if followed is not None:
            ends = {stream: followed.end(stream) for stream in streams}
        else:
            ends = {
                stream: OVER if head is None else expiry.end(stream, head)
                for stream, head in zip(streams, self.log.heads(streams), strict=True)
            }
        for stream, end in ends.items():
            if end and self._clock.now_us(stream) >= end:
                ends[stream] = 0 if end != OVER and self._is_held(stream) else OVER
        return ends

    def held(self, streams: Iterable[str]) -> set[str]:
        """Returns which of some streams are held."""
        return {stream for stream in streams if self._is_held(stream)}

    def _is_held(self, stream: str) -> bool:
        return self.log.expiry.is_held(stream) if self._held is None else stream in self._held

    def slides(self, stream: str) -> bool:
        """Returns whether the end of a stream slides, so that the end of its blobs is unknown."""
        if self._followed is not None:
            return self._followed.slides(stream)
        [head] = self.log.heads([stream])
        return head is not None and self.log.expiry.lifetime(stream, head).slides_us > 0


class DamagedSource(Source):
    """The events of a damaged log, or of some of its backends, that verify; damage is skipped.

    After all commits were read, `marks` has the marks that were found, and `verification` says what
    is missing.
    """

    def __init__(
        self,
        log: Log,
        *parts: Backend,
        link_at: Callable[[str, int], bytes | None],
        within: Callable[[Position], bool] | None = None,
        rest: Callable[[Record], None] | None = None,
    ) -> None:
        """`link_at` returns the link of an event that was yielded before, from the target.

        `within` returns whether a position belongs to the moment that is read. `rest` is called
        with each event that can be read but comes after a lost one in its stream.
        """
        self.verification = Verification(link_at, log.blobs.stored)
        super().__init__(log, verification=self.verification)
        self._parts = parts
        self._within = within
        self._rest = rest
        self.marks: list[Mark] = []

    def ends(self, streams: list[str]) -> dict[str, int]:
        """Returns when streams expire, as their events so far say.

        A later event may move an end that slides. So such a stream is taken although it seems to be
        over: else its beginning would be left out, and what follows would have nothing to follow.
        """
        slides = self.verification.slides
        return {
            stream: 0 if end == OVER and slides(stream) else end
            for stream, end in super().ends(streams).items()
        }

    def commits(self) -> Iterator[list[Record]]:
        """Yields the part of each remaining commit that verifies."""
        for remnant in remnants(self.log, *self._parts):
            if isinstance(remnant, Mark):
                self.marks.append(remnant)
            elif not isinstance(remnant, list):
                self.verification.note(remnant)
            elif self._within is not None and not self._within(remnant[0].position):
                continue
            elif taken := list(filter(self._verifies, remnant)):
                yield taken

    def _verifies(self, record: Record) -> bool:
        if self.verification.take(record):
            return True
        if self._rest is not None and record.stream in self.verification.cut:
            self._rest(record)
        return False


class ScopeSource(Source):
    """Some scopes of a log with what they need, or the whole log, at the moment of the call."""

    def __init__(self, log: Log, scopes: Iterable[str] = ()) -> None:
        super().__init__(log)
        names = list(scopes)
        self._moments = [marks_at_moment(part) for part in log.parts()]
        self._needed = Needed(log, names) if names else None
        self.streams = self._needed.streams(log) if self._needed else list(log.streams())
        marks = [mark for seen in self._moments for mark in seen.marks]
        self.marks = marks if self._needed is None else self._needed.marks(marks)

    def commits(self) -> Iterator[list[Record]]:
        """Yields the commits of the moment, or what they wrote to the scopes, in order."""
        for place, (part, seen) in enumerate(zip(self.log.parts(), self._moments, strict=True)):
            if self._needed is None:
                yield from commits_of(part, START, seen)
                continue
            mine = [name for name in self.streams if self.log.routes.place_of(name) == place]
            merged = heapq.merge(*(_records(part, seen, name) for name in mine), key=_position)
            for _, commit in groupby(merged, _position):
                yield list(commit)


class Needed:
    """Which streams and marks belong to some scopes: their own, of those that they were forked
    from, and what layers keep with them."""

    def __init__(self, log: Log, scopes: Iterable[str]) -> None:
        self.names: set[str] = set()
        waiting = [check_scope_name(name) for name in scopes]
        while waiting:
            name = waiting.pop()
            if name in self.names:
                continue
            [head] = log.heads([name])
            if head is None:
                raise NotFoundError(f'there is no scope "{name}"')
            self.names.add(name)
            [first] = log.stored(name, after=head.first - 1, until=head.first)
            if first.type == FORKED:
                waiting.append(origin_of(first)[0])
        self._beside = {word for word, level in kept_with().items() if level is None}

    def has(self, stream: str) -> bool:
        """Returns whether a stream belongs to these scopes."""
        word, _, rest = stream.partition("/")
        return stream in self.names or (word in self._beside and rest in self.names)

    def marks(self, marks: Iterable[Mark]) -> list[Mark]:
        """Returns the marks that belong to these scopes."""
        return [mark for mark in marks if self.has_mark(mark)]

    def has_mark(self, mark: Mark) -> bool:
        """Returns whether a mark belongs to these scopes."""
        return self.has(mark.group) or self.has(mark.key)

    def streams(self, log: Log) -> list[str]:
        """Returns the names of all these streams that exist."""
        asked = sorted({*self.names, *(f"{w}/{n}" for w in self._beside for n in self.names)})
        return [name for name, head in zip(asked, log.heads(asked), strict=True) if head]


# --- reading -------------------------------------------------------------------------------------


def commits_until(part: Backend, after: Position, until: Position) -> Iterator[list[Record]]:
    """Yields the commits of a backend after one position and up to another, in order."""
    while records := part.read_all(after=after, limit=RECORDS_PER_READ):
        after = records[-1].position
        for at, group in groupby(records, _position):
            if at > until:
                return
            yield list(group)
        if after >= until:
            return


def commits_of(part: Backend, after: Position, seen: MarksAtMoment) -> Iterator[list[Record]]:
    """Yields the commits of a moment after a position.

    Where transactions end in another order than they began, a commit of the moment may come after
    one that is still open. It is not final until the open one has ended, so this waits for that.
    """
    while True:
        for commit in commits_until(part, after, seen.newest):
            after = commit[0].position
            if seen.moment.has(after):
                yield commit
        final = part.wait(START, timeout_s=0)
        if after >= seen.newest or final >= seen.newest:
            return
        if part.wait(final, timeout_s=HELD_BACK_S) <= final:
            raise UnavailableError(
                f"a transaction that is open on the server holds back what was committed since "
                f"{HELD_BACK_S:.0f} s",
                hint="end it (pg_stat_activity shows it), then try again",
            )


def only(
    commits: Iterable[list[Record]], is_wanted: Callable[[str], bool]
) -> Iterator[list[Record]]:
    """Yields the part of each commit that belongs to the wanted streams."""
    for commit in commits:
        if chosen := [record for record in commit if is_wanted(record.stream)]:
            yield chosen


def heads_of(log: Log, streams: Iterable[str]) -> Iterator[tuple[str, Head | None]]:
    """Yields streams with their heads, which are read a page at a time."""
    names = iter(streams)
    while page := list(islice(names, _PAGE)):
        yield from zip(page, log.heads(page), strict=True)


def count_events(heads: Iterable[tuple[str, Head | None]]) -> int:
    """Counts the events of streams by their heads alone."""
    return sum(head.revision - head.first + 1 for _, head in heads if head is not None)


def _records(part: Backend, seen: MarksAtMoment, stream: str) -> Iterator[Record]:
    after = 0
    while records := part.read(stream, after=after, limit=_PAGE):
        for record in records:
            if not seen.moment.has(record.position):
                return
            yield record
        after = records[-1].revision


def _position(record: Record) -> Position:
    return record.position

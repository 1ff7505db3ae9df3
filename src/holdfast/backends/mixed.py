"""Several backends as one store: each level of scopes is kept in the backend that it is routed to.

A stream is kept where its level is, and so is all that belongs to it: its lease, its marks, its
blobs and snapshots. Some streams of the layers above are not named after a level. `KeptWith`, which
is given when the store is opened, says with which level each of these is kept. Every other name is
kept in the backend of "*".

A commit goes to one backend, which makes it atomic and durable as it would in an unmixed store. A
commit that needs two backends is refused before anything is written (guarantee 2): there is no
two-phase commit here, because a worker that died between its phases would leave a scope blocked.
"""

from __future__ import annotations

import logging
import os
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby, islice
from threading import Condition, Thread
from time import monotonic
from types import MappingProxyType
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from holdfast.backends.connection_pool import write_parts
from holdfast.backends.gates import start_thread
from holdfast.backends.protocol import (
    START,
    Backend,
    Claim,
    Commit,
    Durability,
    Finding,
    Found,
    Head,
    Held,
    Inspection,
    Lease,
    Leases,
    Leftover,
    LinkedRow,
    Mark,
    MarkQuery,
    Marks,
    Moment,
    Objects,
    PayloadRow,
    Position,
    Receipt,
    Record,
    Refusal,
    Rewrites,
    Routing,
    Shortens,
    find_marks,
    keeps_meta,
    mark_order,
    read_back,
    read_linked,
    read_many,
    read_payloads,
    renew_many,
    takes_record_keys,
)
from holdfast.errors import HoldfastError, NotFoundError, UnavailableError, UsageError, show_value

_log = logging.getLogger("holdfast.backends")

# --- positions ------------------------------------------------------------------------------------
#
# Each backend counts for itself, so a position in the whole store is one number per backend. The
# numbers are packed into a single int, 64 bits each, which can be stored, printed and given back
# like any position. Two positions are compared number by number: `a <= b` says that whatever was
# visible at `a` is visible at `b`. This is a partial order: it may be that neither `a <= b` nor
# `b <= a`.


_BITS = 64
_MASK = (1 << _BITS) - 1
_NUMBER_MAX = (1 << 63) - 1
_TAG_BITS = 16
_GLANCE_S = 1.0


class PositionVector(int):
    """A position split into its numbers, one per backend."""

    numbers: tuple[int, ...]

    def __le__(self, other: int) -> bool:
        return all(a <= b for a, b in zip(self.numbers, self._of(other), strict=True))

    def __ge__(self, other: int) -> bool:
        return all(a >= b for a, b in zip(self.numbers, self._of(other), strict=True))

    def __lt__(self, other: int) -> bool:
        return self <= other and self.numbers != self._of(other)

    def __gt__(self, other: int) -> bool:
        return self >= other and self.numbers != self._of(other)

    def _of(self, other: int) -> tuple[int, ...]:
        if isinstance(other, PositionVector):
            return other.numbers
        return split(other, len(self.numbers))


def split(number: int, width: int) -> tuple[int, ...]:
    """Returns the numbers that an int holds, the first in its lowest bits."""
    return tuple(number >> _BITS * at & _MASK for at in range(width))


class MixedMoment(Moment, frozen=True):
    """What was visible in each of several backends."""

    parts: tuple[Moment, ...]

    def has(self, position: Position) -> bool:
        numbers = split(position, len(self.parts))
        return all(
            not number or part.has(Position(number))
            for number, part in zip(numbers, self.parts, strict=True)
        )

    def is_settled(self, later: Moment) -> bool:
        assert isinstance(later, MixedMoment), "BUG: a moment of another store"
        return all(a.is_settled(b) for a, b in zip(self.parts, later.parts, strict=True))


class PositionVectors:
    """Makes and reads the positions of one mix of backends.

    `shape` says which levels are kept together. A digest of it is stored in the bits above the
    numbers, so that a position of another mix is refused. Its numbers would belong to other
    backends, and a follower would silently miss events.
    """

    def __init__(self, width: int, shape: str) -> None:
        self._width = width
        self._tag = (zlib.crc32(shape.encode()) & (1 << _TAG_BITS) - 1 | 1) << _BITS * width

    def join(self, numbers: Sequence[int]) -> Position:
        """Returns the position with these numbers."""
        number = 0
        for at, one in enumerate(numbers):
            number |= one << _BITS * at
        vector = PositionVector(number | self._tag if number else START)
        vector.numbers = tuple(numbers)
        return Position(vector)

    def only(self, at: int, number: int) -> Position:
        """Returns the position of a record: its number in its own backend, 0 in all others."""
        return self.join([number if each == at else 0 for each in range(self._width)])

    def moment(self, parts: Sequence[Moment]) -> Moment:
        """Returns what is visible at moments of all the backends together."""
        return MixedMoment(self.join([part.position for part in parts]), tuple(parts))

    def split(self, position: object) -> tuple[int, ...]:
        """Returns the numbers of a position that this mix made; raises UsageError for any other."""
        if isinstance(position, PositionVector) and len(position.numbers) == self._width:
            return position.numbers
        if isinstance(position, bool) or not isinstance(position, int) or position < 0:
            raise UsageError(f"a position is a whole number, found {show_value(position)}")
        numbers = split(position, self._width)
        tag = position >> _BITS * self._width << _BITS * self._width
        if (position and tag != self._tag) or max(numbers) > _NUMBER_MAX:
            raise UsageError(
                f"{show_value(position)} is not a position of this store: it was given by another "
                "one, or before its levels were routed as they are now",
                hint="follow from position 0, and skip what is known already",
            )
        return numbers


class Watch:
    """Waits for several backends at once, with one thread per backend while anybody waits.

    A backend's `wait` blocks and cannot be interrupted, so one thread cannot wait for two backends.
    The threads call it and wake the callers. Each checks once a second whether anybody still waits,
    and ends if not.
    """

    def __init__(self, parts: Sequence[Backend]) -> None:
        self._parts = parts
        self._changed = Condition()
        self._seen = [0] * len(parts)
        self._watched = [False] * len(parts)
        self._waiting = 0
        self._error: Exception | None = None

    def now(self) -> list[int]:
        """Returns the newest position of each backend."""
        return [part.wait(START, timeout_s=0) for part in self._parts]

    def wait(self, after: Sequence[int], timeout_s: float) -> list[int]:
        """Returns the newest positions when one is greater than `after`, or the time is up."""
        deadline = monotonic() + timeout_s
        newest = self.now()
        while not _is_newer(newest, after) and (left_s := deadline - monotonic()) > 0:
            with self._changed:
                self._note(newest)
                self._waiting += 1
                try:
                    self._error = None
                    self._start()
                    self._changed.wait_for(
                        lambda: self._error is not None or _is_newer(self._seen, after), left_s
                    )
                finally:
                    # Also behind Ctrl-C: the threads that watch end when nobody waits.
                    self._waiting -= 1
                if self._error is not None:
                    raise self._error
            newest = self.now()
        # A backend may have begun again at 0, in memory or after a loss, and be behind the caller.
        # With its actual number, the position would be neither after the caller's nor equal to it:
        # a caller that compares the two would ask again, at once and for ever.
        return [max(pair) for pair in zip(newest, after, strict=True)]

    def _start(self) -> None:
        for at in range(len(self._parts)):
            if not self._watched[at]:
                name = f"holdfast-watch-{at}"
                thread = Thread(target=self._watch, args=(at,), name=name, daemon=True)
                start_thread(thread)
                self._watched[at] = True  # only once there is a thread that watches

    def _watch(self, at: int) -> None:
        while True:
            with self._changed:
                if not self._waiting or self._error is not None:
                    self._watched[at] = False
                    return
                seen = self._seen[at]
            try:
                newest = self._parts[at].wait(Position(seen), timeout_s=_GLANCE_S)
            except Exception as error:  # any error is raised again in the threads that wait
                _log.debug("a part of the store cannot be waited for: %s", error)
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                continue
            with self._changed:
                if newest > seen:
                    self._seen[at] = max(self._seen[at], newest)
                    self._changed.notify_all()

    def _note(self, newest: Sequence[int]) -> None:
        self._seen = [max(pair) for pair in zip(self._seen, newest, strict=True)]


def _is_newer(newest: Sequence[int], after: Sequence[int]) -> bool:
    return any(a > b for a, b in zip(newest, after, strict=True))


REST = "*"
"""Stands for every level that is not named."""
_MARKS_MAX = 1 << 62
T = TypeVar("T")
_WEAKEST: tuple[Durability, ...] = ("none", "process", "full")

KeptWith = Mapping[str, str | None]
"""The first words of names that are no level, each with the level that its streams are kept with.
None means that the rest of the name is itself a name, and the stream is kept where that one is."""


class MixedBackend:
    """A backend made of others. Levels that are routed to the same object are kept together."""

    def __init__(
        self,
        routes: Mapping[str, Backend],
        shown: Mapping[str, str],
        kept_with: KeptWith = MappingProxyType({}),
    ) -> None:
        """`shown` has the URL of each level, without secrets."""
        self._kept_with = kept_with
        parts: list[Backend] = []
        self._at: dict[str, int] = {}
        self._shown: list[str] = []
        # Sorted: positions must mean the same whatever the order of the mapping.
        for level in sorted(routes):
            if routes[level] not in parts:
                parts.append(routes[level])
                self._shown.append(shown[level])
            self._at[level] = parts.index(routes[level])
        self.parts: Sequence[Backend] = parts
        self._vectors = PositionVectors(len(self.parts), repr(self.levels()))
        self._watch = Watch(self.parts)
        weakest = min(_WEAKEST.index(part.durability) for part in parts)
        self.durability: Durability = _WEAKEST[weakest]
        self.record_keys = all(map(takes_record_keys, parts))
        self.keeps_meta = all(map(keeps_meta, parts))  # the log asks the part of each stream
        self.routing: Routing = self
        self._marks = _MixedMarks(self)
        self.objects: Objects = _MixedObjects(self)
        waits = [getattr(part, "timeout_s", None) for part in self.parts]
        self.timeout_s: float | None = max((s for s in waits if s is not None), default=None)
        self.leases: Leases = _MixedLeases(self)
        self.marks: Marks = self._marks
        self.inspect: Inspection = _MixedInspection(self)

    # --- where a name is kept --------------------------------------------------------------------

    def levels(self) -> list[list[str]]:
        """Returns the levels of each part."""
        at = self._at
        return [[level for level in at if at[level] == part] for part in range(len(self.parts))]

    def shown(self, part: int) -> str:
        """Returns the URL of a part, without secrets."""
        return self._shown[part]

    def level_of(self, name: str) -> str:
        """Returns the level that a stream or lease belongs to, by the first word of its name."""
        head, slash, rest = name.partition("/")
        level = self._kept_with.get(head, head)
        if level is None:
            return self.level_of(rest) if slash else head
        return level

    def place_of(self, name: str) -> int:
        """Returns which part keeps a stream or lease."""
        at = self._at.get(self.level_of(name))
        return self._at[REST] if at is None else at

    def part_of(self, name: str) -> Backend:
        return self.parts[self.place_of(name)]

    def objects_of(self, stream: str) -> Objects:
        """Returns where the blobs and snapshots of a stream are kept."""
        return self.part_of(stream).objects

    def place_of_all(self, streams: Sequence[str], lease: str | None) -> int | None:
        """Returns the one part that keeps all these streams and the lease, None if none is named.

        Raises UsageError if they are kept in different parts.
        """
        names = [*streams, *([] if lease is None else [lease])]
        if not names:
            return None
        first, *others = names
        place = self.place_of(first)
        for other in others:
            if self.place_of(other) != place:
                raise self._apart(first, other, is_lease=other is names[-1] and lease is not None)
        return place

    def _apart(self, one: str, other: str, *, is_lease: bool) -> UsageError:
        here, there = self._shown[self.place_of(one)], self._shown[self.place_of(other)]
        if is_lease:
            level = self.level_of(one)
            return UsageError(
                f'lease "{other}" is kept in {there} and cannot fence a commit to "{one}" in '
                f"{here}: nothing was written",
                hint=f'name the lease after what it fences, such as "{level}/…"',
            )
        return UsageError(
            f'a commit cannot span two backends: "{one}" is kept in {here}, "{other}" in {there}; '
            "nothing was written",
            hint="make two commits, or route both levels to one backend",
        )

    def position(self, number: object) -> Position:
        """Returns a position that was stored as a number, or raises UsageError."""
        return self._vectors.join(self._vectors.split(number))

    # --- the backend -----------------------------------------------------------------------------

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        placed = [(self._place(commit), commit) for commit in commits]
        # In the order of the list, cut where the part changes, and one run after another: so a
        # later commit is never written while an earlier one of the list is not. A queue per part
        # would be faster for mixed lists, and lose that order.
        runs = groupby(placed, lambda pair: pair[0])
        return write_parts(runs, lambda run: self._commit(run[0], [commit for _, commit in run[1]]))

    def _place(self, commit: Commit) -> int:
        streams = [append.stream for append in commit.appends]
        streams += [stream for stream, _ in commit.reads]
        place = self.place_of_all(streams, commit.fence and commit.fence.name)
        if place is None:
            place = self._marks.place_of_all(commit)
        return self._at[REST] if place is None else place

    def _commit(self, place: int, commits: list[Commit]) -> list[Receipt | Refusal]:
        near = [self._watching(place, commit) for commit in commits]
        outcomes: list[Receipt | Refusal] = []
        for commit, outcome in zip(commits, self.parts[place].commit(near), strict=True):
            if isinstance(outcome, Refusal):
                head = outcome.head and self._head(place, outcome.head)
                outcomes.append(replace(outcome, head=head))
                continue
            news = dict(outcome.news)
            far = [stream for stream in commit.watch if stream not in news]
            for stream, head in zip(far, self._heads_elsewhere(far), strict=True):
                news[stream] = 0 if head is None else head.revision
            position = self._vectors.only(place, outcome.position)
            outcomes.append(Receipt(position, news))
        return outcomes

    def _heads_elsewhere(self, streams: list[str]) -> list[Head | None]:
        """Returns the heads of streams in other parts that a commit watches.

        They are asked for after the commit, which is durable by now. If such a part is down, the
        error says that the outcome is unknown: it must not look as if nothing was written.
        """
        try:
            return self.heads(streams)
        except HoldfastError as error:
            raise UnavailableError(
                f"{error.message}; the commit that watches a scope there was written",
                outcome_known=False,
                hint="look at the scope that was written to, or repeat the commit with its key",
            ) from error

    def _watching(self, place: int, commit: Commit) -> Commit:
        watch = tuple(stream for stream in commit.watch if self.place_of(stream) == place)
        return commit if watch == commit.watch else replace(commit, watch=watch)

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        place = self.place_of(stream)
        records = self.parts[place].read(stream, after=after, until=until, limit=limit)
        only = self._vectors.only
        return [replace(record, position=only(place, record.position)) for record in records]

    def read_linked(
        self, stream: str, *, after: int, until: int | None, limit: int | None
    ) -> Sequence[LinkedRow]:
        part = self.part_of(stream)
        return read_linked(part, stream, after=after, until=until, limit=limit)

    def read_payloads(self, stream: str, *, after: int, until: int) -> Sequence[PayloadRow]:
        return read_payloads(self.part_of(stream), stream, after=after, until=until)

    def read_many(self, streams: Sequence[str], *, limit: int) -> list[list[Record]]:
        found: dict[str, list[Record]] = {}
        only = self._vectors.only
        for place, part in enumerate(self.parts):
            mine = [stream for stream in streams if self.place_of(stream) == place]
            read = read_many(part, mine, limit=limit) if mine else []
            for stream, records in zip(mine, read, strict=True):
                found[stream] = [
                    replace(record, position=only(place, record.position)) for record in records
                ]
        return [found[stream] for stream in streams]

    def rewrite(self, revisions: Mapping[str, Sequence[int]]) -> None:
        by_place = self._by_place(revisions)
        for place in by_place:  # before any is rewritten: all of it is let go of, or nothing
            if not isinstance(self.parts[place], Rewrites):
                raise UsageError(
                    f'"{self.shown(place)}" cannot let go of what it stores: it has no rewrite',
                    hint="hold its scopes, or keep their levels in another backend",
                )
        for place, mine in by_place.items():
            cast("Rewrites", self.parts[place]).rewrite(mine)

    def shorten(self, payloads: Mapping[str, Mapping[int, bytes]]) -> None:
        by_place = self._by_place(payloads)
        for place in by_place:
            if not isinstance(self.parts[place], Shortens):
                raise UsageError(
                    f'"{self.shown(place)}" cannot take out a part of what it stores',
                    hint="erase its scopes as a whole, or keep their levels in another backend",
                )
        for place, mine in by_place.items():
            cast("Shortens", self.parts[place]).shorten(mine)

    def _by_place(self, of_streams: Mapping[str, T]) -> dict[int, dict[str, T]]:
        found: dict[int, dict[str, T]] = {}
        for stream, one in of_streams.items():
            found.setdefault(self.place_of(stream), {})[stream] = one
        return found

    def purge(self, *, whole: bool = False) -> list[Leftover]:
        return [
            left
            for part in self.parts
            if isinstance(part, Rewrites)
            for left in part.purge(whole=whole)
        ]

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        """Returns whole commits, merged by their times; those of one part keep its order.

        The position of a record here is the reader's place after it: it says for every part how far
        the reader has come. So the last record alone says where to go on.
        """
        numbers = list(self._vectors.split(after))
        records: list[Record] = []
        for place, commit in merge(
            *(self._commits(place, number, limit) for place, number in enumerate(numbers)),
            key=lambda one: one[1][0].time,
        ):
            if len(records) >= limit:
                break
            numbers[place] = commit[0].position
            position = self._vectors.join(numbers)
            records += [replace(record, position=position) for record in commit]
        return records

    def _commits(
        self, place: int, after: int, limit: int
    ) -> Iterator[tuple[int, tuple[Record, ...]]]:
        # Read before anything is merged: `merge` asks every part for its first commit, so each part
        # is read once, and all at about the same moment.
        records = self.parts[place].read_all(after=Position(after), limit=limit)
        for _, commit in groupby(records, lambda record: record.position):
            yield place, tuple(commit)

    def read_back(self, *, until: Position | None = None, limit: int = 1000) -> list[Record]:
        """Returns the newest commits of all parts, merged by their times.

        Commits of one part keep its order. The position of a record here has, for its own part, the
        record's own number, and for each other part the newest number not yet returned.
        """
        numbers = self._watch.now() if until is None else list(self._vectors.split(until))
        waiting = [
            [
                tuple(commit)
                for _, commit in groupby(
                    read_back(part, until=Position(number), limit=limit), lambda one: one.position
                )
            ]
            for part, number in zip(self.parts, numbers, strict=True)
        ]
        newest_first: list[Record] = []
        while len(newest_first) < limit and any(waiting):
            place = max(
                (place for place, commits in enumerate(waiting) if commits),
                key=lambda place: waiting[place][-1][0].time,
            )
            commit = waiting[place].pop()
            numbers[place] = commit[0].position
            position = self._vectors.join(numbers)
            newest_first += [replace(record, position=position) for record in reversed(commit)]
            numbers[place] -= 1
        return newest_first[::-1]

    def before(self, record: Record) -> Position:
        numbers = list(self._vectors.split(record.position))
        numbers[self.place_of(record.stream)] -= 1
        return self._vectors.join(numbers)

    def is_after(self, record: Record, position: Position) -> bool:
        place = self.place_of(record.stream)
        split = self._vectors.split
        return split(record.position)[place] > split(position)[place]

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        found: dict[str, Head | None] = {}
        for place, part in enumerate(self.parts):
            mine = [stream for stream in streams if self.place_of(stream) == place]
            for stream, head in zip(mine, part.heads(mine) if mine else (), strict=True):
                found[stream] = head and self._head(place, head)
        return [found[stream] for stream in streams] if streams else self.parts[0].heads(())

    def _head(self, place: int, head: Head) -> Head:
        return replace(head, position=self._vectors.only(place, head.position))

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        parts = [part.streams(prefix=prefix, after=after, limit=limit) for part in self.parts]
        return list(islice(merge(*parts), limit))

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        return self.part_of(stream).find(stream, key=key, checkpoint=checkpoint, limit=limit)

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        return self._vectors.join(self._watch.wait(self._vectors.split(after), timeout_s))

    def moment(self) -> Moment:
        return self._vectors.moment([part.moment() for part in self.parts])

    def now_us(self, stream: str) -> int:
        return self.part_of(stream).now_us(stream)

    def close(self) -> None:
        errors: list[HoldfastError] = []
        for part in self.parts:
            try:
                part.close()
            except HoldfastError as error:
                _log.warning("a part of the store cannot be closed: %s", error)
                errors.append(error)
        if errors:
            raise errors[0]

    def check_places(self) -> None:
        """Raises UsageError if a part has a stream that is routed to another part.

        Such a stream would exist and never be seen, but what looks empty must be empty (guarantee
        7). This costs one small question per level, however many streams a part has.
        """
        for place, levels in enumerate(self.levels()):
            if REST in levels:
                foreign = [level for level, at in self._at.items() if at != place]
                if found := self._first(place, self._roots(foreign)):
                    raise self._misplaced(place, found)
            else:
                after = ""
                while names := self.parts[place].streams(after=after, limit=1):
                    [name] = names
                    if self.place_of(name) != place:
                        raise self._misplaced(place, name)
                    after = self._after_level(name)

    def _roots(self, levels: Sequence[str]) -> list[str]:
        """Returns the beginnings of all names that belong to the levels."""
        kept = self._kept_with
        roots = [*levels, *(head for head, level in kept.items() if level in levels)]
        about = [head for head, level in kept.items() if level is None]
        return [*roots, *(f"{head}/{root}" for head in about for root in roots)]

    def _first(self, place: int, roots: Sequence[str]) -> str | None:
        """Returns a stream of a part that is one of the roots or lies below one, or None."""
        part = self.parts[place]
        for root, head in zip(roots, part.heads(roots), strict=True):
            if head is not None:
                return root
            if found := part.streams(prefix=f"{root}/", limit=1):
                return found[0]
        return None

    def _after_level(self, name: str) -> str:
        """Returns where listing goes on: behind the names that begin with the same level."""
        head, slash, rest = name.partition("/")
        if not slash:
            return name
        if self._kept_with.get(head, head) is None:
            return f"{head}/{self._after_level(rest)}" if "/" in rest else name
        return f"{head}0"  # "0" follows "/"

    def _misplaced(self, place: int, stream: str) -> UsageError:
        there = self._shown[self.place_of(stream)]
        return UsageError(
            f'"{stream}" is in {self._shown[place]}, but its level is routed to {there}: it would '
            "not be seen",
            hint="route the level to where it is, or copy the store with holdfast copy",
        )


class _MixedObjects:
    """The objects of all parts. Objects of a stream are written through `objects_of`, not here."""

    def __init__(self, mixed: MixedBackend) -> None:
        self._mixed = mixed

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        self._mixed.objects_of(REST).put(kind, name, data, expires_us=expires_us)

    def get(self, kind: str, name: str) -> bytes | None:
        # A blob is named by its digest: if several parts have it, they have the same bytes.
        for part in self._mixed.parts:
            data = part.objects.get(kind, name)
            if data is not None:
                return data
        return None

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        parts = self._mixed.parts
        return sorted({name for part in parts for name in part.objects.names(kind, prefix=prefix)})

    def delete(self, kind: str, name: str) -> None:
        for part in self._mixed.parts:
            part.objects.delete(kind, name)


class _MixedLeases:
    def __init__(self, mixed: MixedBackend) -> None:
        self._mixed = mixed

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        return self._mixed.part_of(name).leases.acquire(name, owner, ttl_s=ttl_s)

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        return self._mixed.part_of(lease.name).leases.renew(lease, ttl_s=ttl_s)

    def renew_many(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease | None]:
        """Asks each part once.

        If one part fails, the answers of the others are lost with the error. A caller that must not
        lose a lease to that renews the leases of each part in a call of their own.
        """
        places: dict[int, list[int]] = {}
        for n, lease in enumerate(leases):
            places.setdefault(self._mixed.place_of(lease.name), []).append(n)
        renewed: list[Lease | None] = [None] * len(leases)
        for place, numbers in places.items():
            asked = [leases[n] for n in numbers]
            answers = renew_many(self._mixed.parts[place].leases, asked, ttl_s=ttl_s)
            for n, answer in zip(numbers, answers, strict=True):
                renewed[n] = answer
        return renewed

    def release(self, lease: Lease) -> None:
        self._mixed.part_of(lease.name).leases.release(lease)

    def holder(self, name: str) -> Lease | None:
        return self._mixed.part_of(name).leases.holder(name)

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
        parts = self._mixed.parts
        found = [part.leases.list(prefix=prefix, after=after, limit=limit) for part in parts]
        return list(islice(merge(*found), limit))


class _MixedMarks:
    """The marks of all parts: a mark is kept where the commit that set it was written."""

    def __init__(self, mixed: MixedBackend) -> None:
        self._mixed = mixed

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        """Claims n marks in each part, keeps the first n of all, and releases the rest at once.

        No part knows the others' marks, so each is asked for n. For that moment another worker may
        find nothing to claim, and asks again.
        """
        taken: list[tuple[Mark, Backend]] = []
        try:
            for part in self._mixed.parts:
                marks = part.marks.claim(index, owner, n=n, ttl_s=ttl_s)
                taken += [(mark, part) for mark in marks]
        except HoldfastError:
            # One part is down. What the others gave is released now: nobody works on it, and
            # otherwise it could not be claimed again until these claims expire.
            for mark, part in taken:
                part.marks.release(index, mark.key, owner)
            raise
        taken.sort(key=lambda one: mark_order(one[0]))
        for mark, part in taken[n:]:
            part.marks.release(index, mark.key, owner)
        return [mark for mark, _ in taken[:n]]

    def release(self, index: str, key: str, owner: str) -> None:
        for part in self._mixed.parts:
            part.marks.release(index, key, owner)

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        parts = self._mixed.parts
        found = [part.marks.list(index, due_before=due_before, limit=limit) for part in parts]
        return list(islice(merge(*found, key=mark_order), limit))

    def find(self, query: MarkQuery) -> list[Mark]:
        found = [find_marks(part.marks, query) for part in self._mixed.parts]
        return list(islice(merge(*found, key=mark_order), query.limit))

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        found = [part.marks.claims(limit=limit) for part in self._mixed.parts]
        return [*islice(merge(*found), limit)]

    def place_of_all(self, commit: Commit) -> int | None:
        """Returns the part that has the marks of a commit that names no stream, None if none has.

        Marks must be cleared, or set again, where they are. Raises UsageError if they are in
        several parts.
        """
        wanted = {(mark.index, mark.key) for mark in commit.marks}
        found: dict[int, tuple[str, str]] = {}
        for place, part in enumerate(self._mixed.parts):
            for index in sorted({index for index, _ in wanted}):
                keys = [key for about, key in wanted if about == index]
                for mark in find_marks(part.marks, MarkQuery(index, keys, limit=len(keys))):
                    found[place] = mark.index, mark.key
        if len(found) > 1:
            (one, (_, key)), (other, (_, second)) = list(found.items())[:2]
            raise UsageError(
                f'a commit cannot span two backends: mark "{key}" is kept in '
                f'{self._mixed.shown(one)}, mark "{second}" in {self._mixed.shown(other)}; '
                "nothing was written",
                hint="make two commits",
            )
        return next(iter(found), None)


class _MixedInspection:
    def __init__(self, mixed: MixedBackend) -> None:
        self._mixed = mixed

    def describe(self) -> dict[str, Any]:
        mixed = self._mixed
        facts = [part.inspect.describe() for part in mixed.parts]
        levels = mixed.levels()
        reports = [
            f"{mixed.shown(place)}: {report}"
            for place, one in enumerate(facts)
            for report in one["reports"]
        ]
        return {
            "kind": "mixed",
            "place": ", ".join(
                f"{level}={mixed.shown(place)}"
                for place, mine in enumerate(levels)
                for level in mine
            ),
            "format": max(one["format"] for one in facts),
            "store": " ".join(str(one["store"]) for one in facts),
            "durability": mixed.durability,
            "size_bytes": sum(one["size_bytes"] for one in facts),
            "reports": reports,
            "levels": {
                level: one for mine, one in zip(levels, facts, strict=True) for level in mine
            },
        }

    def verify(self, *, read_all: bool) -> Iterator[Finding]:
        for place, part in enumerate(self._mixed.parts):
            for finding in part.inspect.verify(read_all=read_all):
                where = f"{self._mixed.shown(place)}: {finding.where}"
                yield replace(finding, where=where)


# --- opening --------------------------------------------------------------------------------------
#
# The URLs of a mixed store: a mapping from level to URL, or a TOML file that holds one.
#
#     [store]
#     conversation = "redis://cache.example/0"
#     "*" = "postgresql://db.example/agents"
#
#     [levels]                        # levels that the application adds, each with the one above it
#     session = "conversation"
#
# Relative paths in the file begin at the folder that the file is in.


_FILE_BYTES_MAX = 1 << 20
_LOCAL = ("sqlite:", "files:", "file:")

Opener = Callable[[object], tuple[Backend, str]]


def read_mix(path: str) -> tuple[dict[str, str], dict[str, str], dict[str, Any]]:
    """Returns the URLs and the levels that a TOML file names, and its other tables unchanged."""
    try:
        with open(path, "rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1)
        if len(text) > _FILE_BYTES_MAX:
            raise UsageError(
                f'"{path}" has more than {_FILE_BYTES_MAX} bytes: expected a few lines'
            )
        document = tomllib.loads(text.decode())
    except FileNotFoundError as error:
        raise NotFoundError(
            f'there is no file "{path}": a name that ends in .toml is a file that names stores',
            hint=_EXAMPLE,
        ) from error
    except OSError as error:
        raise UsageError(f'"{path}" cannot be read: {error.strerror}') from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        # The text of the file is not quoted: it may hold a password.
        raise UsageError(f'"{path}" is not TOML', hint=_EXAMPLE) from error
    care = {name: document.pop(name) for name in _CARE if name in document}
    if unknown := document.keys() - {"store", "levels"}:
        name = sorted(unknown)[0]
        raise UsageError(f'"{path}" has a table {name!r}', hint=_RENAMED.get(name, _EXAMPLE))
    if isinstance(document.get("levels"), dict):
        document["levels"], care["levels"] = _rules_apart(document["levels"])
    urls, levels = (_table(path, document, name) for name in ("store", "levels"))
    folder = os.path.dirname(os.path.abspath(path))
    return {level: _beside(folder, url) for level, url in urls.items()}, levels, care


_RENAMED = {"quota": "it is [[quotas]] now", "disk": "it is [disk_watch] now"}
_CARE = (
    *("retention", "quotas", "disk_watch", "encryption", "tenant"),
    *("secrets", "indexes", "unchecked", "clear_ids", "heartbeat_s"),
)
"""Tables and keys about the store as a whole: backends never see them."""
_EXAMPLE = (
    """write [store], then lines such as conversation = "redis://…" and "*" = "postgresql://…\""""
)


def _rules_apart(levels: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the levels that a file registers, by name, and the rules that it gives for levels.

    `saved = "conversation"` and `[levels.saved] below = "conversation"` both register a level.
    """
    registered = {name: value for name, value in levels.items() if not isinstance(value, dict)}
    rules = {
        name: dict(cast("dict[str, Any]", value))
        for name, value in levels.items()
        if isinstance(value, dict)
    }
    registered |= {name: rule.pop("below") for name, rule in rules.items() if "below" in rule}
    return registered, rules


def _table(path: str, document: dict[str, Any], name: str) -> dict[str, str]:
    table = document.get(name, {})
    if not isinstance(table, dict) or not all(
        isinstance(value, str) for value in cast("dict[str, object]", table).values()
    ):
        raise UsageError(f'"{path}" must have text for every key of [{name}]', hint=_EXAMPLE)
    return cast("dict[str, str]", table)


def _beside(folder: str, url: str) -> str:
    """Returns the URL, with a relative path in it joined to the file's folder."""
    scheme = next((one for one in _LOCAL if url.startswith(one)), "")
    path = url[len(scheme) :].removeprefix("//")
    if not path or (not scheme and ":" in path.partition("/")[0]):
        return url
    return scheme + os.path.join(folder, path)


def open_mix(
    urls: Mapping[Any, Any], levels: Sequence[str], kept_with: KeptWith, open_one: Opener
) -> tuple[Backend, str]:
    """Opens every backend that is named; returns them as one, and its name without secrets."""
    _check(urls, levels)
    opened: dict[object, tuple[Backend, str]] = {}
    try:
        for url in urls.values():
            # The same URL twice is one backend, so one commit can write to both levels.
            if _same(url) not in opened:
                opened[_same(url)] = open_one(url)
        shown = {level: opened[_same(url)][1] for level, url in urls.items()}
        if len(opened) == 1:
            return next(iter(opened.values()))
        routes = {level: opened[_same(url)][0] for level, url in urls.items()}
        mixed = MixedBackend(routes, shown, kept_with)
        _check_apart(mixed)
        mixed.check_places()
    except BaseException:
        for backend, _ in opened.values():
            try:
                backend.close()
            except HoldfastError as exc:  # the first error is the one to raise
                _log.debug("a part of a store that was not opened cannot be closed: %s", exc)
        raise
    return mixed, ", ".join(f"{level}={shown[level]}" for level in sorted(shown))


def _same(url: object) -> object:
    return os.fspath(cast("os.PathLike[str]", url)) if isinstance(url, os.PathLike) else url


def _check(urls: Mapping[Any, Any], levels: Sequence[str]) -> None:
    for level, url in urls.items():
        if level != REST and level not in levels:
            raise UsageError(
                f"there is no level {show_value(level)} to route: expected one of "
                f'{", ".join(levels)}, or "*" for all others',
                hint="a level of your own is named when the store is opened: "
                'Settings(levels={"mine": "conversation"}) registers it below "conversation"',
            )
        if str(_same(url)).endswith(".toml") and not os.path.isdir(str(_same(url))):
            raise UsageError(
                f'level "{level}" is routed to {show_value(url)}: expected a store, not a file '
                "that names some",
                hint="name the stores themselves",
            )
        if not isinstance(url, str | os.PathLike):
            raise UsageError(f'level "{level}" is routed to {show_value(url)}: expected a URL')
    if REST not in urls:
        left = [level for level in levels if level not in urls]
        raise UsageError(
            f'"*" is missing: {", ".join([*left, "leases and workers"])} would be kept nowhere',
            hint='name a backend for the rest, such as {"*": "sqlite:state.db"}',
        )


def _check_apart(mixed: MixedBackend) -> None:
    """Raises UsageError if two different URLs lead to one store.

    Commits over both levels would be refused for no reason, and lists would have each stream twice.
    """
    seen: dict[str, int] = {}
    for place, part in enumerate(mixed.parts):
        store = str(part.inspect.describe()["store"])
        if (other := seen.setdefault(store, place)) != place:
            raise UsageError(
                f"{mixed.shown(other)} and {mixed.shown(place)} are the same store",
                hint="write both as the same URL: then they are one backend",
            )

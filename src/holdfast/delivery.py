"""What a group's active member does: which delivery comes next, and when its place moves.

Everything up to the position `done` of a place was done. `open` bounds how many deliveries were
made behind it, by anybody: a member makes no more before it has moved the place. So the log grows
by one event for many deliveries, and who takes over knows which may have been made before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from itertools import groupby
from time import monotonic

from msgspec import Struct

from holdfast.backends.protocol import Lease, Position, Record
from holdfast.errors import LeaseLostError, UsageError
from holdfast.event import Event
from holdfast.ids import NAME_BYTES_MAX
from holdfast.log import READ_CHUNK, Log
from holdfast.workers import Heart

# Streams of bookkeeping, the groups' own among them: a group that got those would never come to
# rest, because its own moves would be deliveries too.
_OWN = ("group/", "lease/", "store/")
_SKIPPED_MAX = 10_000
_REST_S = 5.0


class Where(Struct, frozen=True):
    """Which events a group gets."""

    prefix: str = ""
    types: tuple[str, ...] | None = None

    def takes(self, record: Record) -> bool:
        if not record.stream.startswith(self.prefix) or record.stream.startswith(_OWN):
            return False
        return self.types is None or record.type in self.types


class Place(Struct, frozen=True):
    """Where a group is, as the newest event of its stream says."""

    done: Position
    open: int
    where: Where


class _Spot(Struct, frozen=True):
    """A place between two commits, and how many deliveries its member made before it."""

    position: Position
    made: int


class _Commit(Struct, frozen=True):
    """A commit at hand: what of it the group gets, of how many records."""

    position: Position
    wanted: list[Record]
    size: int


class Delivery:
    """An event that a member of a group is to deal with; it calls `done` when it has."""

    __slots__ = ("_member", "again", "before", "event", "is_done", "key", "lease")

    def __init__(self, member: Member, record: Record, before: _Spot, again: bool) -> None:
        self.event = Event(record)
        self.key = _delivery_key(member.name, record)
        """The same whenever this event is delivered to this group: an idempotency key."""
        self.again = again
        """It may have been delivered before, to a member that did not come to say `done`."""
        self.lease = member.lease
        """What a commit is fenced with that this delivery is the reason for."""
        self.before = before
        self.is_done = False
        self._member = member

    def done(self) -> None:
        """Counts it as done, which is durable from the group's next move on.

        Raises LeaseLostError if another member took over meanwhile, and may deal with it again.
        """
        self._member.check()
        self.is_done = True

    def put_back(self) -> None:
        """Makes it the next one to be taken: whoever took it went before it was handed over."""
        self._member.returned.appendleft(self)

    def __repr__(self) -> str:
        again = " again" if self.again else ""
        return f"<Delivery {self.event.stream}@{self.event.revision}{again}>"


class Member:
    """The active member of a group: it has the lease until it leaves or loses it."""

    def __init__(
        self,
        log: Log,
        heart: Heart,
        lease: Lease,
        place: Place,
        *,
        name: str,
        batch: int,
        record: Callable[[Place], None],
    ) -> None:
        self.name = name
        self.lease = lease
        self.where = place.where
        self.batch = batch
        self._log = log
        self._heart = heart
        self._record = record
        self._left = False
        # What members before us may have been given: `_seen` deliveries, none behind `_newest`.
        self._seen = place.open
        self._newest = self._log.position()
        self._made = 0
        self._reached = _Spot(place.done, 0)
        self._recorded = self._reached
        self._open = place.open
        self._skipped = 0
        self._commits: deque[_Commit] = deque()
        self._at: Position | None = None  # the commit that `_ready` is the rest of
        self._ready: deque[Record] = deque()
        self._undone: deque[Delivery] = deque()
        self.returned: deque[Delivery] = deque()
        self._busy_at = monotonic()

    @property
    def after(self) -> Position:
        """The position to wait behind for more."""
        return self._reached.position

    def is_lost(self) -> bool:
        if self._left or not self._heart.keeps(self.lease):
            return True
        try:
            return self._heart.lost(self.lease)
        except UsageError:
            if self._left:
                return True  # by another thread, just now
            raise

    def check(self) -> None:
        """Raises LeaseLostError unless what is done here still counts."""
        if self.is_lost():
            raise LeaseLostError(
                f'group "{self.name}" was left or taken over since this was delivered',
                lease=self.lease.name,
                epoch=self.lease.epoch,
                hint="expect it to be delivered again; its key tells what was done already",
            )

    def next(self) -> Delivery | None:
        """Returns the next delivery, or None if there is nothing more to read."""
        if self.returned:
            return self.returned.popleft()
        while not self._ready:
            if self._pass_over():
                self._make_room()
                commit = self._commits.popleft()
                self._at = commit.position
                self._ready.extend(commit.wanted)
            elif not self._load():
                self.rest()
                return None
        record = self._ready.popleft()
        # A commit is covered whole if it was begun within the bound. Whether it is older than our
        # joining is asked of the place before it: in a mixed store the position behind it may have
        # passed an event of another part that is younger.
        again = self._reached.made < self._seen and not self._reached.position >= self._newest
        delivery = Delivery(self, record, self._reached, again)
        self._made += 1
        self._undone.append(delivery)
        self._busy_at = monotonic()
        return delivery

    def rest(self, *, now: bool = False) -> None:
        """Moves the place for what was done or passed over, if that is worth an event by now.

        While deliveries come, `batch` of them are one move. When they end, the last ones wait a
        while for more: what is lost meanwhile is delivered again, which it may be anyway.
        """
        self._reach()
        now = now or monotonic() - self._busy_at >= _REST_S
        if (now and self._safe().made > self._recorded.made) or self._skipped >= _SKIPPED_MAX:
            self._move(self.batch)

    def leave(self) -> None:
        """Says exactly what is not done, and gives the lease back, also if that cannot be said."""
        try:
            if not self.is_lost():
                self._pass_over()
                if self._safe().made > self._recorded.made or self._open != self._bound(0):
                    self._move(0)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Ends the membership without a word: what is not recorded is delivered again."""
        self._left = True
        self._heart.drop(self.lease)
        self._log.backend.leases.release(self.lease)

    def _reach(self) -> None:
        """Counts the commit at hand as reached, if all of it was delivered."""
        if self._at is not None and not self._ready:
            self._reached = _Spot(self._at, self._made)
            self._at = None

    def _pass_over(self) -> bool:
        """Passes the commits at hand that have nothing for us; returns whether one has."""
        self._reach()
        while self._commits and not self._ready:
            commit = self._commits[0]
            if commit.wanted:
                return True
            self._skipped += self._commits.popleft().size
            self._reached = _Spot(commit.position, self._made)
        return False

    def _load(self) -> bool:
        newest = self._log.position()
        records = self._log.backend.read_all(after=self._reached.position, limit=READ_CHUNK)
        # What has ended by itself is gone, also where the backend still has it.
        there = {record.stream for record in self._log.lifetimes.kept(records)}
        for position, commit in groupby(records, key=lambda record: record.position):
            of_it = list(commit)
            wanted = [one for one in of_it if one.stream in there and self.where.takes(one)]
            self._commits.append(_Commit(position, wanted, len(of_it)))
        if not records and newest > self._reached.position:
            # A commit that only sets marks has a position and no record.
            self._reached = _Spot(newest, self._made)
        return bool(records)

    def _make_room(self) -> None:
        """Moves the place before more is delivered behind it than it says."""
        if self._open >= self.batch and self._made - self._recorded.made < self.batch:
            return
        undone = self._made - self._safe().made
        if undone >= self.batch:
            raise UsageError(
                f'group "{self.name}" has {undone} deliveries that are not done: expected fewer '
                f"than {self.batch} before the next one",
                hint="call done() on each delivery, or give the group a greater batch",
            )
        self._move(self.batch)

    def _move(self, open: int) -> None:
        safe, open = self._safe(), self._bound(open)
        self._record(Place(safe.position, open, self.where))
        self._recorded, self._open = safe, open
        self._skipped = 0

    def _bound(self, least: int) -> int:
        """Returns how many deliveries behind the safe place anybody may have been given."""
        seen = self._made
        if not self._reached.position >= self._newest:
            seen = max(seen, self._seen)
        return max(least, seen - self._safe().made)

    def _safe(self) -> _Spot:
        """Returns the place up to which every delivery is done."""
        while self._undone and self._undone[0].is_done:
            self._undone.popleft()
        return self._undone[0].before if self._undone else self._reached


def _delivery_key(group: str, record: Record) -> str:
    key = f"{group}/{record.stream}@{record.revision}"
    return key if len(key.encode()) <= NAME_BYTES_MAX else sha256(key.encode()).hexdigest()

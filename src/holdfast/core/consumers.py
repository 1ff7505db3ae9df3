"""Consumer groups: each event is delivered at least once, to one process at a time.

The members of a group share one durable place in the store. The store handle that holds the lease
`group/<name>` gets the deliveries. The others stand by; when it dies, hangs or leaves, one of them
takes over. The place is the newest event of the stream `group/<name>`, committed under that lease
(guarantee 4), so a member that was taken for dead cannot move it:

    group.moved   {"done": "17", "open": 100, "store": …, "prefix": …, "types": …, "member": …}

See `delivery.py` for what `done` and `open` mean.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from hashlib import sha256
from itertools import groupby, islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from holdfast.backends.protocol import START, Fence, Lease, Position, Record
from holdfast.core import codec, tree
from holdfast.core.arguments import Duration, check_seconds, check_timeout, check_whole
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.event import (
    CLOSED,
    REMOVED,
    Change,
    StreamState,
    fold,
    ops_of,
    to_datetime,
)
from holdfast.core.layers import Layer, register_layer
from holdfast.core.leases import LeaseKeeper
from holdfast.core.log import READ_CHUNK, Log
from holdfast.core.own_event import OWN, stored_type
from holdfast.core.page import Page, check_limit, read_cursor, write_cursor
from holdfast.errors import (
    CorruptError,
    HoldfastError,
    LeaseLostError,
    OtherStoreError,
    UsageError,
    show_value,
)
from holdfast.names import NAME_BYTES_MAX, check_name

if TYPE_CHECKING:
    from holdfast.core.kernel import Kernel

# --- follow ---------------------------------------------------------------------------------------
#
# Following one scope or the whole store: the changes of each event, in order.


_STATES_MAX = 1024
LOOK_S = 30.0
"""How long a follower of one scope waits for a new store position before it reads the scope anyway.

A scope may have events that the position of the store does not show yet: on PostgreSQL the position
stands still while any transaction is open, but readers of one stream need not wait for that.
"""


def _change_of(record: Record, change: tree.Difference) -> Change:
    """Returns the change of one place, with the time and position of its event."""
    time = to_datetime(record.time)
    return Change(
        record.stream,
        record.revision,
        change.path,
        change.old,
        change.new,
        time,
        record.position,
    )


class StoreFollower:
    """Finds the changes of a store's events, in the order of positions.

    It keeps the states of some streams, so that most events are applied to a state at hand instead
    of one that is read again.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._states: dict[str, StreamState] = {}

    def changes(self, record: Record) -> list[Change]:
        """Returns what an event changed.

        Events must be given in order. After a gap in a stream its state is read again.
        """
        ops = ops_of(record)
        stream = record.stream
        before = self._states.pop(stream, None)
        if before is None or before.revision != record.revision - 1:
            if not ops and record.type not in (CLOSED, REMOVED):
                return []
            before = self._log.at(stream, record.revision - 1)
        after = fold(before, [record], self._log.blobs.read, self._log.sealing.opener())
        if len(self._states) >= _STATES_MAX:
            self._states.pop(next(iter(self._states)))
        self._states[stream] = after
        return [_change_of(record, one) for one in tree.touched(ops, before.root, after.root)]


class Follower:
    """A place in a scope's stream that moves forward. It never waits: its caller does."""

    def __init__(self, log: Log, name: str, after: int | None) -> None:
        self._log = log
        self._name = name
        self._before = log.folded(name) if after is None else log.at(name, after)
        self.position: Position = START  # where the store was when there was nothing more to read

    def news(self) -> list[Change] | None:
        """Returns the changes of the next events; None if there are none to read.

        An event may have no change, so an empty list does not mean that the end was reached.
        """
        # The position is read before the records. An event that is committed between the two is
        # after this position, so a wait for the next position cannot miss it.
        position = self._log.position()
        records = self._log.records(self._name, after=self._before.revision, limit=READ_CHUNK)
        if not records:
            self._log.expiry.check(self._name, self._before)
            self.position = position
            return None
        changes: list[Change] = []
        for record in records:
            log = self._log
            after = fold(self._before, [record], log.blobs.read, log.sealing.opener())
            for change in tree.touched(ops_of(record), self._before.root, after.root):
                changes.append(_change_of(record, change))
            self._before = after
        return changes


def follow_scope(
    log: Log, name: str, after: int | None, timeout_s: float | None
) -> Iterator[Change]:
    """Yields each change of a scope after a revision, until none came for `timeout_s`."""
    follower = Follower(log, name, after)
    began = monotonic()
    while True:
        changes = follower.news()
        if changes is not None:
            yield from changes
            began = monotonic()
            continue
        left_s = LOOK_S if timeout_s is None else timeout_s - (monotonic() - began)
        if left_s <= 0:
            return
        log.wait_after(follower.position, min(left_s, LOOK_S))


def follow_store(log: Log, after: Position, timeout_s: float | None) -> Iterator[Change]:
    """Yields each change of the whole store after a position, until none came for `timeout_s`."""
    follower = StoreFollower(log)
    for record in log.follow(after=after, timeout_s=timeout_s):
        yield from follower.changes(record)


# --- delivery -------------------------------------------------------------------------------------
#
# What a group's active member does: which delivery comes next, and when its place moves.
#
# Everything up to the position `done` of a place was done. `open` is an upper bound of how many
# deliveries were made after it, by any member: a member moves the place before it makes more. So
# the log grows by one event for many deliveries, and a member that takes over knows which of them
# may have been made before.


_logger = logging.getLogger("holdfast.groups")

register_layer(Layer(name="groups", prefixes=("group",)))

# Streams of bookkeeping, among them those of groups: a group that got these would never come to
# rest, because its own moves would be delivered to it.
_OWN = ("group/", "lease/", "store/")
_SKIPPED_MAX = 10_000
_REST_S = 5.0


class GroupFilter(Struct, frozen=True):
    """Which events a group gets."""

    prefix: str = ""
    types: tuple[str, ...] | None = None

    def takes(self, record: Record) -> bool:
        if not record.stream.startswith(self.prefix) or record.stream.startswith(_OWN):
            return False
        return (
            self.types is None
            or record.type in self.types
            or (OWN in self.types and record.type.startswith(OWN))
        )


class GroupPlace(Struct, frozen=True):
    """Where a group is, as the newest event of its stream says."""

    done: Position
    open: int
    where: GroupFilter


class _SavedSpot(Struct, frozen=True):
    """A place between two commits, and how many deliveries the member made before it."""

    position: Position
    made: int


class _DeliveredCommit(Struct, frozen=True):
    """A commit that was read: the records that the group gets, and how many records it has."""

    position: Position
    proposed: list[Record]
    size: int


class Delivery:
    """An event for a member of a group, which calls `done` when it has dealt with it."""

    __slots__ = ("_member", "again", "before", "event", "is_done", "key", "lease")

    def __init__(
        self, log: Log, member: Member, record: Record, before: _SavedSpot, again: bool
    ) -> None:
        self.event = log.event(record)
        self.key = _delivery_key(member.name, record)
        """An idempotency key: the same whenever this event is delivered to this group."""
        self.again = again
        """Whether it may have been delivered before, without a recorded `done`."""
        self.lease = member.lease
        """The lease to fence commits with that this delivery causes: `commit(lease=…)`."""
        self.before = before
        self.is_done = False
        self._member = member

    def done(self) -> None:
        """Marks it as done. That is durable once the group's place has moved past it.

        Raises LeaseLostError if the group was left, or another member took over and may get the
        event again.
        """
        self._member.check()
        self.is_done = True

    def put_back(self) -> None:
        """Makes it the next delivery: its taker was gone before it was handed over."""
        self._member.returned.appendleft(self)

    def __repr__(self) -> str:
        again = " again" if self.again else ""
        return f"<Delivery {self.event.stream}@{self.event.revision}{again}>"


class Member:
    """The active member of a group: it has the lease until it leaves or loses it."""

    def __init__(
        self,
        log: Log,
        lease_keeper: LeaseKeeper,
        lease: Lease,
        place: GroupPlace,
        *,
        name: str,
        batch: int,
        record: Callable[[GroupPlace], None],
    ) -> None:
        self.name = name
        self.lease = lease
        self.where = place.where
        self.batch = batch
        self._log = log
        self._lease_keeper = lease_keeper
        self._record = record
        self._left = False
        # Earlier members may have been given up to `_seen` deliveries, none of them after
        # `_newest`: what was committed since we joined was not there to be delivered.
        self._seen = place.open
        self._newest = self._log.position()
        self._made = 0
        self._reached = _SavedSpot(place.done, 0)
        self._recorded = self._reached
        self._open = place.open
        self._skipped = 0
        self._commits: deque[_DeliveredCommit] = deque()
        self._at: Position | None = None  # the commit that `_ready` is the rest of
        self._ready: deque[Record] = deque()
        self._undone: deque[Delivery] = deque()
        self.returned: deque[Delivery] = deque()
        self._busy_at = monotonic()

    @property
    def after(self) -> Position:
        """The position after which more may come."""
        return self._reached.position

    def is_lost(self) -> bool:
        if self._left or not self._lease_keeper.keeps(self.lease):
            return True
        try:
            return self._lease_keeper.lost(self.lease)
        except UsageError:
            if self._left:
                return True  # by another thread, just now
            raise

    def check(self) -> None:
        """Raises LeaseLostError if this member was left or replaced: its work counts no more."""
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
                self._ready.extend(commit.proposed)
            elif not self._load():
                self.rest()
                return None
        record = self._ready.popleft()
        # A commit counts as seen as a whole if it was begun within the bound. The place before it
        # says whether it is older than our joining: in a mixed store the position after it may
        # already have passed a younger event of another part.
        again = self._reached.made < self._seen and not self._reached.position >= self._newest
        delivery = Delivery(self._log, self, record, self._reached, again)
        self._made += 1
        self._undone.append(delivery)
        self._busy_at = monotonic()
        return delivery

    def rest(self, *, now: bool = False) -> None:
        """Moves the place for what was done or passed over, if that is worth an event by now.

        While deliveries come, one move covers up to `batch` of them. When they pause, the last ones
        wait _REST_S for more. If the member dies meanwhile, they are delivered again, which every
        member must expect anyway. `now` skips that wait.
        """
        self._reach()
        now = now or monotonic() - self._busy_at >= _REST_S
        if (now and self._safe().made > self._recorded.made) or self._skipped >= _SKIPPED_MAX:
            self._move(self.batch)

    def leave(self) -> None:
        """Records exactly what is done, and gives the lease back even if that fails."""
        try:
            if not self.is_lost():
                self._pass_over()
                if self._safe().made > self._recorded.made or self._open != self._bound(0):
                    self._move(0)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Ends the membership without a record: what was not recorded is delivered again."""
        self._left = True
        self._lease_keeper.drop(self.lease)
        self._log.leases.release(self.lease)

    def _reach(self) -> None:
        """Counts the commit at hand as reached, if all of it was delivered."""
        if self._at is not None and not self._ready:
            self._reached = _SavedSpot(self._at, self._made)
            self._at = None

    def _pass_over(self) -> bool:
        """Skips the commits at hand that have nothing for this group; returns whether one has."""
        self._reach()
        while self._commits and not self._ready:
            commit = self._commits[0]
            if commit.proposed:
                return True
            self._skipped += self._commits.popleft().size
            self._reached = _SavedSpot(commit.position, self._made)
        return False

    def _load(self) -> bool:
        newest = self._log.position()
        records = self._log.read_all(after=self._reached.position, limit=READ_CHUNK)
        records = self._log.opened(records)
        # A scope that has expired is gone, even if the backend still has its records.
        there = {record.stream for record in self._log.expiry.kept(records)}
        for position, commit in groupby(records, key=lambda record: record.position):
            of_it = list(commit)
            proposed = [one for one in of_it if one.stream in there and self.where.takes(one)]
            self._commits.append(_DeliveredCommit(position, proposed, len(of_it)))
        if not records and newest > self._reached.position:
            # A commit that only sets marks has a position and no record.
            self._reached = _SavedSpot(newest, self._made)
        return bool(records)

    def _make_room(self) -> None:
        """Moves the place if the next delivery would exceed the recorded bound.

        Raises UsageError if `batch` deliveries are not done: the place cannot move past them.
        """
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
        self._record(GroupPlace(safe.position, open, self.where))
        self._recorded, self._open = safe, open
        self._skipped = 0

    def _bound(self, least: int) -> int:
        """Returns how many deliveries after the safe place may have been handed out."""
        seen = self._made
        if not self._reached.position >= self._newest:
            seen = max(seen, self._seen)
        return max(least, seen - self._safe().made)

    def _safe(self) -> _SavedSpot:
        """Returns the place up to which every delivery is done."""
        while self._undone and self._undone[0].is_done:
            self._undone.popleft()
        return self._undone[0].before if self._undone else self._reached


def _delivery_key(group: str, record: Record) -> str:
    key = f"{group}/{record.stream}@{record.revision}"
    return key if len(key.encode()) <= NAME_BYTES_MAX else sha256(key.encode()).hexdigest()


MOVED = "group.moved"
LAG_EVENTS_MAX = 10_000
STANDBY_S = 0.25
"""How often a member that stands by checks whether it can take over."""

Start = Literal["first", "now"] | Position

GLANCE_S = 5.0
"""How often a member that has nothing to do checks its lease and its place."""


class GroupStatus(Struct, frozen=True):
    """The status of a group, as `hf.workers.groups()` returns it."""

    name: str
    position: Position | None
    """Up to here everything is done. None if the place belongs to another store, as after a copy,
    or to other routes: then `restart` the group."""
    member: str | None
    """The worker that gets the deliveries now; None if nobody does."""
    lag_events: int | None
    """How many events are not known to be done, counted up to 10,000."""
    waiting_since: datetime | None
    """The time of the oldest event that is not known to be done; None if there is none."""


class Group:
    """A named, durable place in the store that moves forward as its deliveries are done.

    Iterate over it, or call `take` if your program does the waiting. Threads of one store share a
    membership, and with it the work. The membership ends with `close`, or with the store.
    """

    def __init__(
        self,
        groups: Groups,
        name: str,
        *,
        where: GroupFilter,
        start: Start,
        batch: int,
        ttl_s: float,
    ) -> None:
        self.name = name
        self.where = where
        self.start: Start = start
        self.batch = batch
        self.ttl_s = ttl_s
        self._groups = groups

    @property
    def after(self) -> Position | None:
        """The position that everything was delivered up to; None while this stands by."""
        member = self._groups.member(self.name)
        return None if member is None else member.after

    def take(self, n: int = 1) -> list[Delivery]:
        """Returns up to n deliveries without waiting; none while another member is active.

        Raises UsageError if `batch` deliveries are not done.
        """
        return self._groups.take(self, check_whole(n, "n", least=1))

    def deliveries(self, *, timeout_s: Duration | None = None) -> Iterator[Delivery]:
        """Yields deliveries as they come; ends when none came for `timeout_s`, None: never."""
        left = check_timeout(timeout_s)
        began = monotonic()
        while True:
            for delivery in self.take():
                yield delivery
                began = monotonic()
                break
            else:
                left_s = GLANCE_S if left is None else left - (monotonic() - began)
                if left_s <= 0:
                    self.save()
                    return
                self._groups.wait(self.name, min(left_s, GLANCE_S))

    def __iter__(self) -> Iterator[Delivery]:
        return self.deliveries()

    def save(self) -> None:
        """Makes what is done durable now, not only some seconds after the last delivery."""
        self._groups.save(self.name)

    def restart(self, start: Start) -> None:
        """Moves the place before the first event, after the newest, or to a position.

        `start` is "first", "now" or a position of this store. It does not take over from another
        member: it raises LeaseLostError if one is active.
        """
        self._groups.restart(self, start)

    def close(self) -> None:
        """Leaves the group. What is not done is delivered again, to the next active member."""
        self._groups.leave(self.name)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Group {self.name}>"


class Groups:
    """The groups of one store handle: its memberships, and the list of all groups."""

    def __init__(self, kernel: Kernel) -> None:
        self.log = kernel.log
        self.lease_keeper = kernel.leases
        kernel.on_close(self.close)
        self._mutex = threading.RLock()
        self._members: dict[str, Member] = {}
        self._store: str | None = None

    def group(
        self,
        name: str,
        *,
        prefix: str = "",
        types: tuple[str, ...] | None = None,
        start: Start = "first",
        batch: int = 100,
        ttl_s: Duration = 30.0,
    ) -> Group:
        """Returns a group by name; nothing is read or written before its first `take`."""
        name = check_name(name, "group")
        where = GroupFilter(check_prefix(prefix), check_types(types))
        check_whole(batch, "batch", least=1)
        ttl_s = check_seconds(ttl_s, "ttl_s")
        start = self._check_start(start)
        return Group(self, name, where=where, start=start, batch=batch, ttl_s=ttl_s)

    def member(self, name: str) -> Member | None:
        """Returns this store's membership of a group, if it has not lost it."""
        self.lease_keeper.check_open()
        with self._mutex:
            member = self._members.get(name)
            if member is not None and member.is_lost():
                del self._members[name]
                member.leave()
                return None
            return member

    def take(self, group: Group, n: int) -> list[Delivery]:
        """Returns up to n deliveries; joins the group first if no other member is active."""
        self.lease_keeper.check_open()
        with self._mutex:
            deliveries: list[Delivery] = []
            member = self.member(group.name) or self._join(group)
            if member is None:
                return deliveries
            if (member.where, member.batch) != (group.where, group.batch):
                raise UsageError(
                    f'group "{group.name}" is in use here with another prefix, types or batch',
                    hint="give it the same ones everywhere",
                )
            try:
                while len(deliveries) < n and (delivery := member.next()) is not None:
                    deliveries.append(delivery)
            except LeaseLostError:
                # Our move was fenced: another member took over and delivers these events, so
                # `done` raises here. The lease keeper may not know of the loss yet, and then
                # another try would only be refused again: the membership ends now.
                _logger.info('group "%s" passed to another member', group.name)
                del self._members[group.name]
                try:
                    member.give_up()
                except HoldfastError as error:
                    _logger.debug('group "%s" could not be given up: %s', group.name, error)
            except HoldfastError as error:
                # Deliveries that were taken are handed out before the error is raised: nobody but
                # their taker can mark them as done, and the place cannot move past them.
                if not deliveries:
                    raise
                _logger.debug('group "%s" hands out what it has: %s', group.name, error)
            return deliveries

    def wait(self, name: str, timeout_s: float) -> None:
        """Waits until there may be something to take, at most for `timeout_s`."""
        member = self.member(name)
        if member is None:
            self.log.clock.sleep(min(timeout_s, STANDBY_S))
        else:
            self.log.wait_after(member.after, timeout_s=timeout_s)

    def save(self, name: str) -> None:
        """Makes what was done in a group durable."""
        self.lease_keeper.check_open()
        with self._mutex:
            member = self.member(name)
            if member is not None:
                member.rest(now=True)

    def restart(self, group: Group, start: Start) -> None:
        """Moves a group's place, and forgets what was done."""
        start = self._check_start(start)
        self.lease_keeper.check_open()
        with self._mutex:
            self.leave(group.name)
            name = _lease_name(group.name)
            lease = self.lease_keeper.take(name, ttl_s=group.ttl_s)
            try:
                self.record(group.name, lease, GroupPlace(self._begin(start), 0, group.where))
            finally:
                self._give_back(lease)

    def leave(self, name: str) -> None:
        """Ends this store's membership of a group; does nothing if the store is closed."""
        if not self.lease_keeper.is_open:
            return
        with self._mutex:
            member = self.member(name)
            if member is not None:
                del self._members[name]
                member.leave()

    def close(self) -> None:
        """Leaves every group, so that others need not wait for the leases to expire."""
        if self.lease_keeper.is_open:
            with self._mutex:
                try:
                    for name in list(self._members):
                        self.leave(name)
                except HoldfastError as error:
                    # If the backend fails, nothing can be recorded. The events are delivered again.
                    _logger.warning("groups were left without a record of it: %s", error)

    def list(self, *, after: str | None, limit: int | None) -> Page[GroupStatus]:
        """Returns a page of the groups of the store, by name. It reads the place of each."""
        limit = check_limit(limit)
        passed = "" if after is None else f"group/{read_cursor('groups', after)[0]}"
        most = None if limit is None else limit + 1
        streams = islice(self.log.streams(prefix="group/", after=passed), most)
        names = [stream.removeprefix("group/") for stream in streams]
        page = [self._status(name) for name in names[:limit]]
        cursor = write_cursor("groups", names[: len(page)][-1]) if page else after
        return Page(page, more=len(page) < len(names), cursor=cursor)

    def record(self, name: str, lease: Lease, place: GroupPlace) -> None:
        """Commits a group's place under its lease."""
        payload = codec.encode_plain(
            {
                "done": str(int(place.done)),
                "open": place.open,
                "store": self._store_id(),
                "prefix": place.where.prefix,
                "types": place.where.types,
                "member": lease.owner,
            }
        )
        write = StreamWrite(f"group/{name}", (NewEvent(MOVED, payload),))
        self.log.commit(ProposedCommit((write,), fence=Fence(lease.name, lease.owner, lease.epoch)))

    def _join(self, group: Group) -> Member | None:
        name = _lease_name(group.name)
        holder = self.log.leases.holder(name)
        if holder is not None and holder.owner != self.lease_keeper.worker:
            return None
        try:
            lease = self.lease_keeper.take(name, ttl_s=group.ttl_s)
        except LeaseLostError:
            return None
        try:
            place = self._place(group.name)
            if place is None:
                place = GroupPlace(self._begin(group.start), 0, group.where)
                self.record(group.name, lease, place)
            place = GroupPlace(place.done, place.open, group.where)
            member = Member(
                self.log,
                self.lease_keeper,
                lease,
                place,
                name=group.name,
                batch=group.batch,
                record=partial(self.record, group.name, lease),
            )
        except LeaseLostError:
            self._give_back(lease)  # it was lost before the first place was recorded
            return None
        except BaseException:
            self._give_back(lease)
            raise
        self._members[group.name] = member
        return member

    def _give_back(self, lease: Lease) -> None:
        self.lease_keeper.drop(lease)
        self.log.leases.release(lease)

    def _begin(self, start: Start) -> Position:
        if start == "first":
            return START
        return self.log.position() if start == "now" else start

    def _place(self, name: str) -> GroupPlace | None:
        stream = f"group/{name}"
        head = self.log.head(stream)
        if head is None:
            return None
        [record] = self.log.records(stream, after=head.revision - 1, until=head.revision)
        data: dict[str, Any] = codec.decode(record.payload)
        if record.type != MOVED:
            raise CorruptError(
                f'"{stream}" ends in an event of type "{record.type}": expected "{MOVED}"',
                stream=stream,
                revision=record.revision,
            )
        types = data["types"]
        where = GroupFilter(data["prefix"], None if types is None else tuple(types))
        hint = 'choose where it goes on: group.restart("first"), or "now"'
        if data["store"] != self._store_id():
            raise OtherStoreError(
                f'group "{name}" has a position of store "{data["store"]}": found it in store '
                f'"{self._store_id()}", where it means nothing',
                hint=hint,
            )
        try:
            done = self.log.routes.position(int(data["done"]))
        except UsageError as error:
            raise OtherStoreError(
                f'group "{name}" has a position from before the levels of this store were routed '
                "as they are now",
                hint=hint,
            ) from error
        return GroupPlace(done, data["open"], where)

    def _status(self, name: str) -> GroupStatus:
        holder = self.log.leases.holder(_lease_name(name))
        member = holder and holder.owner
        try:
            place = self._place(name) or GroupPlace(START, 0, GroupFilter())
        except OtherStoreError:
            return GroupStatus(name, None, member, None, None)
        lag_events, since = self._lag(place)
        return GroupStatus(name, place.done, member, lag_events, since)

    def _lag(self, place: GroupPlace) -> tuple[int, datetime | None]:
        lag_events, since, after = 0, None, place.done
        while records := self.log.read_all(after=after, limit=READ_CHUNK):
            for record in self.log.expiry.kept(records):
                if place.where.takes(record):
                    since = since or to_datetime(record.time)
                    lag_events += 1
                    if lag_events == LAG_EVENTS_MAX:
                        return lag_events, since
            after = records[-1].position
        return lag_events, since

    def _check_start(self, start: object) -> Start:
        """Returns the checked start of a group, or raises UsageError."""
        if isinstance(start, str) and start in ("first", "now"):
            return start
        try:
            return self.log.routes.position(start)
        except UsageError as error:
            raise UsageError(
                f'start is "first", "now" or a position of this store, found {show_value(start)}'
            ) from error

    def _store_id(self) -> str:
        if self._store is None:
            self._store = str(self.log.describe()["store"])
        return self._store


def check_prefix(prefix: object) -> str:
    """Returns a valid prefix of stream names, or raises UsageError."""
    return "" if prefix == "" else check_name(prefix, "prefix")


def check_types(types: object) -> tuple[str, ...] | None:
    """Returns the stored names of event types, sorted, or raises UsageError."""
    if types is None:
        return None
    if not isinstance(types, tuple) or not types:
        raise UsageError(
            f"types are a tuple of event types or None, found {show_value(cast('object', types))}"
        )
    given = cast("tuple[object, ...]", types)
    names = [stored_type(each) if isinstance(each, str | type) else each for each in given]
    return tuple(sorted(check_name(each, "type") for each in names))


def _lease_name(group: str) -> str:
    return f"group/{group}"

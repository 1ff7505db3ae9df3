"""Consumer groups: every event at least once, to one process at a time, from a durable place.

The members of a group share one place in the store. The store handle that holds the lease
`group/<name>` gets the deliveries, the others stand by: when it dies, hangs or leaves, one of them
takes over. The place is the newest event of the stream `group/<name>`, committed under that lease
(guarantee 4), so a member that was taken for dead cannot move it:

    group.moved   {"done": "17", "open": 100, "store": …, "prefix": …, "types": …, "member": …}

See `delivery.py` for what `done` and `open` mean.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, Literal, cast

from msgspec import Struct

from holdfast import codec
from holdfast.arguments import check_seconds, check_timeout, check_whole
from holdfast.backends.protocol import START, Fence, Lease, Position
from holdfast.delivery import Delivery, Member, Place, Where
from holdfast.errors import (
    CorruptError,
    HoldfastError,
    LeaseLostError,
    OtherStoreError,
    UsageError,
    show_value,
)
from holdfast.event import to_datetime
from holdfast.ids import check_name
from holdfast.log import READ_CHUNK, Log
from holdfast.wanted import Part, Proposal, Wanted
from holdfast.workers import Heart

MOVED = "group.moved"
LAG_EVENTS_MAX = 10_000
STANDBY_S = 0.25
"""How often a member that stands by looks whether it can take over."""

Start = Literal["first", "now"] | Position

_GLANCE_S = 1.0


class GroupStatus(Struct, frozen=True):
    """A group as `store.groups()` shows it; its lag is counted up to LAG_EVENTS_MAX events."""

    name: str
    position: Position | None
    """None: its place is of another store, as behind a copy, or of other routes. `restart` it."""
    member: str | None
    """The worker that gets the deliveries now."""
    lag_events: int | None
    waiting_since: datetime | None
    """The time of the oldest event that is not known to be done."""


class Group:
    """A named place in the store that moves forward as its deliveries are done.

    Iterate it; or `take` deliveries where something else waits. Threads of one store share a
    membership, and with it the work. It ends with `close`, or with the store.
    """

    def __init__(
        self, groups: Groups, name: str, *, where: Where, start: Start, batch: int, ttl_s: float
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
        """Returns up to n deliveries that are there now; none while another member is active."""
        return self._groups.take(self, check_whole(n, "n", least=1))

    def deliveries(self, *, timeout_s: float | None = None) -> Iterator[Delivery]:
        """Yields deliveries as they come, and ends when none came for `timeout_s`."""
        check_timeout(timeout_s)
        began = monotonic()
        while True:
            for delivery in self.take():
                yield delivery
                began = monotonic()
                break
            else:
                left_s = _GLANCE_S if timeout_s is None else timeout_s - (monotonic() - began)
                if left_s <= 0:
                    self.save()
                    return
                self._groups.wait(self.name, min(left_s, _GLANCE_S))

    def __iter__(self) -> Iterator[Delivery]:
        return self.deliveries()

    def save(self) -> None:
        """Makes what is done durable now, in place of a while after the last delivery."""
        self._groups.save(self.name)

    def restart(self, start: Start) -> None:
        """Moves the place to the first event, behind the newest, or to a position of this store.

        It takes over from nobody: LeaseLostError if another member is active.
        """
        self._groups.restart(self, start)

    def close(self) -> None:
        """Leaves the group: what is not done is delivered again, to whoever takes over."""
        self._groups.leave(self.name)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Group {self.name}>"


class Groups:
    """The groups of one store handle: what it is a member of, and what there is."""

    def __init__(self, log: Log, heart: Heart) -> None:
        self.log = log
        self.heart = heart
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
        ttl_s: float = 30.0,
    ) -> Group:
        """Returns a group by name; nothing is read or written before its first `take`."""
        name = check_name(name, "group")
        where = Where(check_prefix(prefix), check_types(types))
        check_whole(batch, "batch", least=1)
        check_seconds(ttl_s, "ttl_s")
        start = self._check_start(start)
        return Group(self, name, where=where, start=start, batch=batch, ttl_s=ttl_s)

    def member(self, name: str) -> Member | None:
        """Returns this store's membership of a group, if it has not lost it."""
        self.heart.check_open()
        with self._mutex:
            member = self._members.get(name)
            if member is not None and member.is_lost():
                del self._members[name]
                member.leave()
                return None
            return member

    def take(self, group: Group, n: int) -> list[Delivery]:
        """Returns what is there for a group, having joined it if nobody else has it."""
        self.heart.check_open()
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
                # Fenced: whoever took over delivers them, and `done` here says so. The heart may
                # not know yet; to ask again before it does would only be refused again.
                del self._members[group.name]
                with contextlib.suppress(HoldfastError):
                    member.give_up()
            except HoldfastError:
                # What was taken is handed out: nobody else here could say that it is done.
                if not deliveries:
                    raise
            return deliveries

    def wait(self, name: str, timeout_s: float) -> None:
        """Waits until there may be something to take, at most for that long."""
        member = self.member(name)
        if member is None:
            self.log.clock.sleep(min(timeout_s, STANDBY_S))
        else:
            self.log.backend.wait(member.after, timeout_s=timeout_s)

    def save(self, name: str) -> None:
        """Makes what was done in a group durable."""
        self.heart.check_open()
        with self._mutex:
            member = self.member(name)
            if member is not None:
                member.rest(now=True)

    def restart(self, group: Group, start: Start) -> None:
        """Moves a group's place, forgetting what was done."""
        start = self._check_start(start)
        self.heart.check_open()
        with self._mutex:
            self.leave(group.name)
            name = _lease_name(group.name)
            lease = self.heart.take(name, ttl_s=group.ttl_s)
            try:
                self.record(group.name, lease, Place(self._begin(start), 0, group.where))
            finally:
                self._give_back(lease)

    def leave(self, name: str) -> None:
        """Ends this store's membership of a group; it has ended with the store."""
        if not self.heart.is_open:
            return
        with self._mutex:
            member = self.member(name)
            if member is not None:
                del self._members[name]
                member.leave()

    def close(self) -> None:
        """Leaves every group, so that others need not wait for the leases to expire."""
        if self.heart.is_open:
            # Without the backend nothing can be said: what is not recorded is delivered again.
            with self._mutex, contextlib.suppress(HoldfastError):
                for name in list(self._members):
                    self.leave(name)

    def list(self) -> list[GroupStatus]:
        """Returns every group of the store, by name."""
        found: list[GroupStatus] = []
        after = ""
        while names := self.log.backend.streams(prefix="group/", after=after):
            found += [self._status(name.removeprefix("group/")) for name in names]
            after = names[-1]
        return found

    def record(self, name: str, lease: Lease, place: Place) -> None:
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
        part = Part(f"group/{name}", (Proposal(MOVED, payload),))
        self.log.commit(Wanted((part,), fence=Fence(lease.name, lease.owner, lease.epoch)))

    def _join(self, group: Group) -> Member | None:
        name = _lease_name(group.name)
        holder = self.log.backend.leases.holder(name)
        if holder is not None and holder.owner != self.heart.worker:
            return None
        try:
            lease = self.heart.take(name, ttl_s=group.ttl_s)
        except LeaseLostError:
            return None
        try:
            place = self._place(group.name)
            if place is None:
                place = Place(self._begin(group.start), 0, group.where)
                self.record(group.name, lease, place)
            place = Place(place.done, place.open, group.where)
            member = Member(
                self.log,
                self.heart,
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
        self.heart.drop(lease)
        self.log.backend.leases.release(lease)

    def _begin(self, start: Start) -> Position:
        if start == "first":
            return START
        return self.log.position() if start == "now" else start

    def _place(self, name: str) -> Place | None:
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
        where = Where(data["prefix"], None if types is None else tuple(types))
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
        return Place(done, data["open"], where)

    def _status(self, name: str) -> GroupStatus:
        holder = self.log.backend.leases.holder(_lease_name(name))
        member = holder and holder.owner
        try:
            place = self._place(name) or Place(START, 0, Where())
        except OtherStoreError:
            return GroupStatus(name, None, member, None, None)
        lag_events, since = self._lag(place)
        return GroupStatus(name, place.done, member, lag_events, since)

    def _lag(self, place: Place) -> tuple[int, datetime | None]:
        lag_events, since, after = 0, None, place.done
        while records := self.log.backend.read_all(after=after, limit=READ_CHUNK):
            for record in self.log.lifetimes.kept(records):
                if place.where.takes(record):
                    since = since or to_datetime(record.time)
                    lag_events += 1
                    if lag_events == LAG_EVENTS_MAX:
                        return lag_events, since
            after = records[-1].position
        return lag_events, since

    def _check_start(self, start: object) -> Start:
        """Returns where a group begins, or raises UsageError."""
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
            self._store = str(self.log.backend.inspect.describe()["store"])
        return self._store


def check_prefix(prefix: object) -> str:
    """Returns what stream names are to begin with, or raises UsageError."""
    return "" if prefix == "" else check_name(prefix, "prefix")


def check_types(types: object) -> tuple[str, ...] | None:
    """Returns types of events, or raises UsageError."""
    if types is None:
        return None
    if not isinstance(types, tuple) or not types:
        raise UsageError(
            f"types are a tuple of event types or None, found {show_value(cast('object', types))}"
        )
    return tuple(sorted(check_name(each, "type") for each in cast("tuple[object, ...]", types)))


def _lease_name(group: str) -> str:
    return f"group/{group}"

"""Following a store for asyncio, without a thread for each caller that waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from holdfast.aio.loop import Loop
from holdfast.aio.mirror import Mirror, mirror_read
from holdfast.backends.protocol import Position, Record
from holdfast.core.consumers import LOOK_S, Follower, StoreFollower
from holdfast.core.dispatcher import OnError, Subscribed, Subscriber
from holdfast.core.event import Change
from holdfast.core.log import READ_CHUNK


class AsyncSubscribed(Mirror[Subscribed]):
    """What `subscribe` returns: a call ends it; `drain` waits until all changes were delivered."""

    def __repr__(self) -> str:
        return "<AsyncSubscribed>"

    def __call__(self) -> None:
        self.sync()

    drain = mirror_read(Subscribed.drain)


def subscribe_in(
    loop: Loop,
    subscribe: Callable[..., Subscribed],
    subscriber: Subscriber,
    on_error: OnError | None,
) -> AsyncSubscribed:
    """Subscribes a function that is called in the loop."""
    told, failed = loop.in_loop(subscriber), on_error and loop.in_loop(on_error)
    return AsyncSubscribed(loop, subscribe(told, on_error=failed))


async def follow_scope(
    loop: Loop, name: str, after: int | None, timeout_s: float | None
) -> AsyncIterator[Change]:
    """Yields each change of a scope after a revision; see `core.consumers.follow_scope`."""
    follower = await loop.hop(Follower, loop.log, name, after)
    time = loop.loop.time
    began = time()
    while True:
        changes = await loop.hop(follower.news)
        if changes is not None:
            for change in changes:
                yield change
            began = time()
            continue
        left_s = LOOK_S if timeout_s is None else timeout_s - (time() - began)
        if left_s <= 0:
            return
        await loop.wait_after(follower.position, min(left_s, LOOK_S))


async def follow_store(
    loop: Loop, after: Position | None, timeout_s: float | None
) -> AsyncIterator[Change]:
    """Yields each change of the whole store; see `core.consumers.follow_store`."""
    follower = StoreFollower(loop.log)
    async for record in follow_records(loop, after, timeout_s):
        for change in await loop.hop(follower.changes, record):
            yield change


async def follow_records(
    loop: Loop, after: Position | None, timeout_s: float | None
) -> AsyncIterator[Record]:
    """Yields each event of the whole store as a record, until nothing came for `timeout_s`."""
    log = loop.log
    newest = place = await loop.hop(log.position) if after is None else after

    def read() -> tuple[list[Record], list[Record]]:
        records = log.read_all(after=place, limit=READ_CHUNK)
        return records, log.opened(log.expiry.kept(records))

    while True:
        records, kept = await loop.hop(read)
        for record in kept:
            yield record
        if records:
            place = records[-1].position
        elif newest > place:
            place = newest  # a commit that only sets marks has a position, but no record
        else:
            newest = await loop.wait_after(place, timeout_s)
            if newest <= place:
                return

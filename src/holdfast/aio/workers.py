"""The workers of a store for asyncio: leases, marks, and groups that share work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from typing import Any

from holdfast.aio.loop import Loop
from holdfast.aio.mirror import Mirror, mirror, mirror_read
from holdfast.backends.protocol import Lease, Position
from holdfast.core.arguments import Duration, check_seconds, check_timeout
from holdfast.core.consumers import GLANCE_S, STANDBY_S, Delivery, Group, Start
from holdfast.core.leases import PAUSE_S, PAUSE_S_MAX, HeldLease
from holdfast.errors import LeaseLostError
from holdfast.workers import WorkersRoom


class AsyncWorkersRoom(Mirror[WorkersRoom]):
    """Workers, the leases and marks that they hold, and groups; see `WorkersRoom`."""

    @property
    def own(self) -> str:
        return self.sync.own

    def lost(self, lease: Lease) -> bool:
        return self.sync.lost(lease)

    def lease(
        self, name: str, *, ttl_s: Duration = 30.0, keep: bool = False, wait_s: Duration = 0.0
    ) -> AsyncLease:
        wait_s = check_seconds(wait_s, "wait_s", above=-1e-9)
        take = partial(self.sync.lease, name, ttl_s=ttl_s, keep=keep)
        return AsyncLease(self._loop, take, wait_s)

    def group(
        self,
        name: str,
        *,
        prefix: str = "",
        types: tuple[str, ...] | None = None,
        start: Start = "first",
        batch: int = 100,
        ttl_s: Duration = 30.0,
    ) -> AsyncGroup:
        group = self.sync.group(
            name, prefix=prefix, types=types, start=start, batch=batch, ttl_s=ttl_s
        )
        return AsyncGroup(self._loop, group)

    list = mirror_read(WorkersRoom.list)
    suspects = mirror_read(WorkersRoom.suspects)
    leases = mirror_read(WorkersRoom.leases)
    renew = mirror(WorkersRoom.renew)
    release = mirror(WorkersRoom.release)
    claim = mirror(WorkersRoom.claim)
    marks = mirror_read(WorkersRoom.marks)
    groups = mirror_read(WorkersRoom.groups)


class AsyncLease:
    """What `hf.workers.lease(…)` returns: await it, or enter it as a block; see `HeldLease`."""

    def __init__(self, loop: Loop, take: Callable[[], HeldLease], wait_s: float) -> None:
        self._loop = loop
        self._take = take
        self._wait_s = wait_s
        self._held: HeldLease | None = None

    def __await__(self) -> Generator[Any, None, HeldLease]:
        return self._taken(self._take).__await__()

    async def _taken(self, take: Callable[[], HeldLease]) -> HeldLease:
        """Takes the lease; waits in the loop, so that nobody else's calls are kept waiting."""
        until = self._loop.loop.time() + self._wait_s
        pause_s = PAUSE_S
        while True:
            try:
                return await self._loop.hop_given(take, HeldLease.give_back)
            except LeaseLostError:
                left_s = until - self._loop.loop.time()
                if left_s <= 0:
                    raise
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, PAUSE_S_MAX)

    async def __aenter__(self) -> HeldLease:
        self._held = await self._taken(self._take_and_keep)
        self._held.fence()
        return self._held

    def _take_and_keep(self) -> HeldLease:
        held = self._take()
        held.keep()
        return held

    async def __aexit__(self, *_: object) -> None:
        assert self._held is not None, "BUG: a block that was not entered ends"
        self._held.unfence()
        await self._loop.hop_shielded(self._held.give_back)


class AsyncGroup(Mirror[Group]):
    """A group; see `Group`. `done` of a delivery waits for nothing, so it is not awaited."""

    def __init__(self, loop: Loop, group: Group) -> None:
        super().__init__(loop, group)
        self.name = group.name

    @property
    def after(self) -> Position | None:
        return self.sync.after

    async def take(self, n: int = 1) -> list[Delivery]:
        return await self._loop.hop_given(partial(self.sync.take, n), _put_back)

    async def deliveries(self, *, timeout_s: Duration | None = None) -> AsyncIterator[Delivery]:
        left = check_timeout(timeout_s)
        began = self._loop.loop.time()
        while True:
            for delivery in await self.take():
                yield delivery
                began = self._loop.loop.time()
                break
            else:
                waited_s = self._loop.loop.time() - began
                left_s = GLANCE_S if left is None else left - waited_s
                if left_s <= 0:
                    await self.save()
                    return
                after = await self._loop.hop(lambda: self.sync.after)
                if after is None:
                    await asyncio.sleep(min(left_s, STANDBY_S))
                else:
                    await self._loop.wait_after(after, min(left_s, GLANCE_S))

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self.deliveries()

    restart = mirror(Group.restart)
    save = mirror(Group.save)
    close = mirror(Group.close)

    async def __aenter__(self) -> AsyncGroup:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _put_back(deliveries: list[Delivery]) -> None:
    # Nobody was given these, so nobody would ever say that they are done.
    for delivery in reversed(deliveries):
        delivery.put_back()

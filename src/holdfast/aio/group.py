"""Consumer groups for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from holdfast.aio.loop import Loop, shielded
from holdfast.arguments import check_timeout
from holdfast.backends.protocol import Position
from holdfast.delivery import Delivery
from holdfast.groups import STANDBY_S, Group, Start


class AsyncGroup:
    """A consumer group; see `Group`. A delivery's `done` waits for nothing and is not awaited."""

    def __init__(self, loop: Loop, group: Group) -> None:
        self._loop = loop
        self._group = group
        self.name = group.name

    @property
    def after(self) -> Position | None:
        return self._group.after

    async def take(self, n: int = 1) -> list[Delivery]:
        taking = asyncio.ensure_future(self._loop.hop(self._group.take, n))
        try:
            return await shielded(taking)
        except asyncio.CancelledError:
            if not taking.cancelled() and taking.exception() is None:
                # Nobody was given these, so nobody would ever say that they are done.
                for delivery in reversed(taking.result()):
                    delivery.put_back()
            raise

    async def deliveries(self, *, timeout_s: float | None = None) -> AsyncIterator[Delivery]:
        check_timeout(timeout_s)
        began = self._loop.loop.time()
        while True:
            for delivery in await self.take():
                yield delivery
                began = self._loop.loop.time()
                break
            else:
                left_s = 1.0 if timeout_s is None else timeout_s - self._loop.loop.time() + began
                if left_s <= 0:
                    await self.save()
                    return
                after = await self._loop.hop(lambda: self._group.after)
                if after is None:
                    await asyncio.sleep(min(left_s, STANDBY_S))
                else:
                    await self._loop.wait_behind(after, min(left_s, 1.0))

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self.deliveries()

    async def restart(self, start: Start) -> None:
        await self._loop.hop_shielded(self._group.restart, start)

    async def save(self) -> None:
        await self._loop.hop_shielded(self._group.save)

    async def close(self) -> None:
        await self._loop.hop_shielded(self._group.close)

    async def __aenter__(self) -> AsyncGroup:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncGroup {self.name}>"

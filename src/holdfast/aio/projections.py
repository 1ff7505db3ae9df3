"""Projections for asyncio: folded in a thread; subscribers are called on the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from holdfast.aio.loop import Loop, Reading
from holdfast.aio.mirror import Mirror, mirror, plain
from holdfast.aio.scope import AsyncScope
from holdfast.backends.protocol import Position
from holdfast.core.arguments import Duration, check_timeout
from holdfast.core.dispatcher import OnError, Subscriber
from holdfast.core.event import Change
from holdfast.projections.define import Projection
from holdfast.projections.fold import Fold
from holdfast.projections.projected import LOOK_S, Projected, up_to_date
from holdfast.projections.room import ProjectionsRoom


class AsyncProjectionsRoom(Mirror[ProjectionsRoom]):
    """States that your handlers fold from your own events; see `ProjectionsRoom`."""

    def of(self, projection: Projection, over: AsyncScope | str | None = None) -> AsyncProjected:
        return AsyncProjected(self._loop, self.sync.of(projection, plain(over)))


class AsyncProjected(Mirror[Projected]):
    """A projection of an AsyncStore; see `Projected`."""

    def __init__(self, loop: Loop, projected: Projected) -> None:
        super().__init__(loop, projected)
        self.projection: Projection = projected.projection
        self.over = projected.over

    @property
    def state(self) -> Reading[Any]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.state))

    @property
    def events(self) -> Reading[int]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.events))

    verify = mirror(Projected.verify)

    async def follow(self, *, timeout_s: Duration | None = None) -> AsyncIterator[Change]:
        left = check_timeout(timeout_s)
        log, loop = self._loop.log, self._loop.loop
        fold = await self._loop.hop(self.sync._newest)
        ends = None if left is None else loop.time() + left

        def advance(fold: Fold) -> tuple[Position, Fold, list[Change]]:
            seen = log.position()
            changes: list[Change] = []
            return seen, up_to_date(fold, changes.append), changes

        while True:
            seen, fold, changes = await self._loop.hop(advance, fold)
            for change in changes:
                yield change
            if changes:
                ends = None if left is None else loop.time() + left
                continue
            left_s = LOOK_S if ends is None else ends - loop.time()
            if left_s <= 0:
                return
            await self._loop.wait_after(seen, min(left_s, LOOK_S))

    async def subscribe(
        self, subscriber: Subscriber, *, on_error: OnError | None = None
    ) -> Callable[[], None]:
        told = self._loop.in_loop(subscriber)
        failed = on_error and self._loop.in_loop(on_error)
        return await self._loop.hop_shielded(self.sync.subscribe, told, on_error=failed)

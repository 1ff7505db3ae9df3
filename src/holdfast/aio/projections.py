"""Projections for asyncio: folded in a thread, told on the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from holdfast.aio.loop import Loop, Reading
from holdfast.aio.record import mirror
from holdfast.backends.protocol import Position
from holdfast.core.arguments import Duration, check_timeout
from holdfast.core.dispatcher import OnError, Subscriber
from holdfast.core.event import Change
from holdfast.projections import Projected, Projection
from holdfast.projections.fold import Fold
from holdfast.projections.projected import LOOK_S, up_to_date


class AsyncProjected:
    """A projection of an AsyncStore; see `Projected`."""

    def __init__(self, loop: Loop, projected: Projected) -> None:
        self._loop = loop
        self.sync = projected
        self.projection: Projection = projected.projection
        self.over = projected.over

    def __repr__(self) -> str:
        return f"<Async{repr(self.sync)[1:]}"

    @property
    def state(self) -> Reading[Any]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.state))

    @property
    def events(self) -> Reading[int]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.events))

    verify = mirror(Projected.verify)

    async def follow(self, *, timeout_s: Duration | None = None) -> AsyncIterator[Change]:
        left = check_timeout(timeout_s)
        log, loop = self._loop.store._log, self._loop.loop
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

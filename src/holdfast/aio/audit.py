"""The audit of a scope's state for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from holdfast.aio.loop import Loop
from holdfast.aio.record import mirror
from holdfast.aio.scope import AsyncScope
from holdfast.arguments import Path, check_call
from holdfast.record.audit import Attempt, Audit, Place, Trial, Tried

Job = Callable[[AsyncScope], Awaitable[Any]]


class AsyncAudit:
    """What `store.audit(scope)` returns; see `Audit` for what each method does."""

    def __init__(self, loop: Loop, audit: Audit) -> None:
        self._loop = loop
        self.sync = audit
        self.name = audit.name

    def __repr__(self) -> str:
        return f"<AsyncAudit of {self.name}>"

    async def __aenter__(self) -> AsyncAudit:
        self.sync.__enter__()
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        return self.sync.__exit__()

    @property
    def reads(self) -> list[Place]:
        return self.sync.reads

    items = mirror(Audit.items)
    unread = mirror(Audit.unread)

    async def without(self, path: Path, job: Job) -> Trial:
        check_call(job, "a job")
        place = await self._loop.hop(self.sync.check_item, path)
        whole = await self._attempt(job, place, with_it=True)
        return Trial(place, whole, await self._attempt(job, place, with_it=False))

    async def _attempt(self, job: Job, item: Place, *, with_it: bool) -> Tried:
        attempt = await self._loop.hop_shielded(Attempt, self.sync.scope, item, with_it=with_it)
        returned: Any = None
        failure: Exception | None = None
        try:
            returned = await job(AsyncScope(self._loop, attempt.scope))
        except Exception as raised:
            failure = raised
        except BaseException:
            await self._loop.hop_shielded(attempt.drop)
            raise
        return await self._loop.hop_shielded(attempt.end, returned, failure)

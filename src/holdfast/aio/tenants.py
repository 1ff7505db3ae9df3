"""Tenants of one place, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from holdfast.aio.loop import shielded
from holdfast.aio.mirror import mirror
from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.opening import DEFAULT_PLACE
from holdfast.tenants import Tenants

T = TypeVar("T")


class _OneThread:
    """Runs calls one after the other, because they share one connection and its transactions."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="holdfast-aio-tenants")

    async def hop_shielded(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs a synchronous call in the thread; waits for its outcome even if cancelled."""
        call = partial(function, *args, **kwargs)
        try:
            future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        except RuntimeError as error:  # the executor was shut down
            raise UsageError("these tenants are closed", hint="make new AsyncTenants") from error
        return await shielded(future)

    def end(self) -> None:
        self._executor.shutdown(wait=False)


class AsyncTenants:
    """The tenants of one place; see `Tenants`. Calls are made one after the other."""

    def __init__(self, url: object = DEFAULT_PLACE, *, clock: Clock | None = None) -> None:
        self.sync = Tenants(url, clock=clock)
        self._loop = _OneThread()

    create = mirror(Tenants.create)
    list = mirror(Tenants.list)
    get = mirror(Tenants.get)
    set_quotas = mirror(Tenants.set_quotas)
    renew = mirror(Tenants.renew)
    problems = mirror(Tenants.problems)
    receipts = mirror(Tenants.receipts)
    remove = mirror(Tenants.remove)

    async def close(self) -> None:
        """Closes the connection to the server and ends the thread; a second call does nothing."""
        try:
            await self._loop.hop_shielded(self.sync.close)
        except UsageError:
            return  # it was closed before
        self._loop.end()

    async def __aenter__(self) -> AsyncTenants:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

"""The same store for asyncio: equal names, awaited.

Writes go from the loop into the group-commit queue and await a future; the committing thread
answers a whole batch with one call into the loop, so the thread hop is paid per batch. Reads that
memory can answer do not leave the loop. Everything else is one hop into an executor of our own.

A write is shielded: a cancelled caller waits until the outcome is known, then is cancelled. What
the caller is told and what the store holds never differ.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.aio.nodes import process_node
from holdfast.aio.runs import AsyncContext, AsyncRun
from holdfast.aio.scope import AsyncScope
from holdfast.aio.store import THREADS, AsyncStore
from holdfast.aio.tenants import AsyncTenants
from holdfast.errors import UsageError, show_value
from holdfast.store import DEFAULT_PLACE, Store, open_store

__all__ = [
    "AsyncContext",
    "AsyncRun",
    "AsyncScope",
    "AsyncStore",
    "AsyncTenants",
    "open",
    "over",
    "process_node",
]


async def open(
    url: object = DEFAULT_PLACE, *, threads: int = THREADS, **options: Any
) -> AsyncStore:
    """Opens a store for the running loop; the options are those of `holdfast.open`."""
    executor = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-aio")
    loop = asyncio.get_running_loop()
    store = await loop.run_in_executor(executor, lambda: open_store(url, **options))
    return AsyncStore(store, executor)


def over(store: Store, *, threads: int = THREADS) -> AsyncStore:
    """Returns an open store for the running loop: one for each loop, as many as are needed.

    Whoever opened the store goes on to use it, and closes it last. Closing what this returns lets
    go of its threads, and stops the async runs that this loop executes.
    """
    if not isinstance(store, Store):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"aio.over takes what holdfast.open returned, found {show_value(store)}",
            hint="of an async store give its `sync`",
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        raise UsageError(
            "aio.over was called outside an event loop", hint="call it in a coroutine"
        ) from error
    executor = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-aio")
    return AsyncStore(store, executor, owns=False)

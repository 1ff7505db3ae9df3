"""The same store for asyncio: the same names, awaited.

Writes go from the event loop into the group-commit queue and await a future. The committing thread
answers a whole batch with one call into the loop, so the cost of changing threads is paid once per
batch. Reads that memory can answer do not leave the loop. Everything else is one call in a thread
of the store's executor.

A write is shielded from cancellation: a cancelled caller waits until the outcome is known, and is
cancelled then. So what the caller learns and what the store holds never differ.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from holdfast.aio.nodes import process_node
from holdfast.aio.runs import AsyncContext, AsyncRun
from holdfast.aio.scope import AsyncScope
from holdfast.aio.store import THREADS, AsyncStore
from holdfast.aio.tenants import AsyncTenants
from holdfast.backends.protocol import Durability
from holdfast.core.keystore import KeyStore
from holdfast.core.provenance import Source
from holdfast.core.store_key import StoreKey
from holdfast.errors import UsageError, show_value
from holdfast.opening import DEFAULT_PLACE, open_store
from holdfast.settings import DEFAULTS, Settings
from holdfast.store import Store

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
    url: object = DEFAULT_PLACE,
    *,
    threads: int = THREADS,
    durability: Durability = "full",
    actor: str | None = None,
    source: Source | None = None,
    trust: str | None = None,
    create: bool = True,
    read_only: bool = False,
    schemas: Sequence[type[Any]] = (),
    keys: str | os.PathLike[str] | KeyStore | None = None,
    store_key: str | bytes | StoreKey | None = None,
    tenant: str | None = None,
    settings: Settings = DEFAULTS,
) -> AsyncStore:
    """Opens a store for the running event loop; see `holdfast.open` for the other arguments.

    `threads` is the size of the executor for calls that may block.
    """
    opening = partial(
        open_store,
        url,
        durability=durability,
        actor=actor,
        source=source,
        trust=trust,
        create=create,
        read_only=read_only,
        schemas=schemas,
        keys=keys,
        store_key=store_key,
        tenant=tenant,
        settings=settings,
    )
    executor = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-aio")
    store = await asyncio.get_running_loop().run_in_executor(executor, opening)
    return AsyncStore(store, executor)


def over(store: Store, *, threads: int = THREADS) -> AsyncStore:
    """Returns an async store over an open store, for the running event loop.

    Each loop needs a separate one. The original store can be used meanwhile, and is closed last by
    whoever opened it. Closing the returned store ends its threads, and stops the async runs that
    this loop executes.
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

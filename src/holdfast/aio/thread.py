"""An event loop in a thread, for a program without one that executes `async def` runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from holdfast.aio.store import AsyncStore
from holdfast.store import Store

THREADS = 4


@contextmanager
def looping(store: Store) -> Generator[Store]:
    """Lets a store execute `async def` runs, on a loop of their own; closes the store at the end.

    The caller's thread stays free to look on, and an interrupt reaches it at once.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="holdfast-loop", daemon=True)
    thread.start()

    async def attach() -> AsyncStore:
        return AsyncStore(store, ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-aio"))

    attached = asyncio.run_coroutine_threadsafe(attach(), loop).result()
    try:
        yield store
    finally:
        asyncio.run_coroutine_threadsafe(attached.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

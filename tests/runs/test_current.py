"""`holdfast.current()`: which run, and which step, this code is in."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from pathlib import Path
from typing import Any

import holdfast
from holdfast import aio, current
from holdfast.runs import Current

SEEN: list[Any] = []


@holdfast.step(effect="pure")
def look() -> None:
    SEEN.append(current())
    thread = threading.Thread(target=contextvars.copy_context().run, args=(see,))
    thread.start()
    thread.join()


def see() -> None:
    SEEN.append(current())


@holdfast.step(effect="pure")
async def look_async() -> None:
    await asyncio.sleep(0)
    SEEN.append(current())
    await asyncio.to_thread(see)


@holdfast.run
def plain(ctx: Any) -> None:
    see()
    look()
    see()


@holdfast.run
async def awaited(ctx: Any) -> None:
    see()
    await look_async()
    await asyncio.create_task(_later())
    see()


async def _later() -> None:
    see()


def test_code_knows_its_run_and_its_step(tmp_path: Path) -> None:
    SEEN.clear()
    assert current() is None
    with holdfast.open(str(tmp_path / "store")) as store:
        store.runs.start(plain, id="p").result()
    body = Current("p")
    assert [body, SEEN[1], SEEN[1], body] == SEEN
    assert SEEN[1].run == "p"
    assert "look" in SEEN[1].step
    assert current() is None


def test_async_code_knows_it_too(tmp_path: Path) -> None:
    SEEN.clear()

    async def main() -> None:
        async with await aio.open(str(tmp_path / "store")) as store:
            run = await store.runs.start(awaited, id="a")
            await run.result()
            assert current() is None

    asyncio.run(main())
    body = Current("a")
    assert [body, SEEN[1], SEEN[1], body, body] == SEEN
    assert SEEN[1].run == "a"
    assert "look_async" in SEEN[1].step

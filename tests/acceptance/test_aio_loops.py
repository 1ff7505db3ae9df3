"""One store in several event loops: `aio.over`, and an async store that is used in another loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import UsageError, aio
from holdfast.aio.store import AsyncStores
from holdfast.core.kernel import kernel_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[holdfast.Store]:
    with holdfast.open(str(tmp_path / "store")) as opened:
        yield opened


@holdfast.run
async def where(ctx: Any, key: str) -> int:
    return id(asyncio.get_running_loop())


def _in_a_loop_of_its_own(work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, main()).result()


def _writes(hf: aio.AsyncStore) -> dict[str, Callable[[], Awaitable[Any]]]:
    team = hf.team("red")

    async def commit() -> None:
        async with hf.commit() as tx:
            tx.scope(team).set("n", 2)

    async def submit() -> None:
        async with hf.commit(waits=False) as tx:
            tx.scope(team).set("n", 3)
        await tx.wait()

    async def edit() -> None:
        async with team.edit() as draft:
            draft["n"] = 4

    return {
        "set": lambda: team.set("n", 1),
        "large": lambda: team.set("n", "x" * 100_000),
        "commit": commit,
        "submit": submit,
        "edit": edit,
        "message": lambda: hf.conversation("c").messages.add("user", "hello"),
        "lease": lambda: hf.workers.lease("l").__aenter__(),
        "process": lambda: hf._loop.walk(lambda: hf.sync.team("red").set("n", 5)),
        "close": hf.close,
    }


WRITES = "set", "large", "commit", "submit", "edit", "message", "lease", "process", "close"


@pytest.mark.parametrize("name", WRITES)
def test_another_loop_is_refused_before_anything_is_written(
    name: str, store: holdfast.Store
) -> None:
    """Once the write was stored, and the caller told of a RuntimeError."""

    async def main() -> None:
        async with aio.over(store) as hf:
            with pytest.raises(UsageError, match="belongs to another event loop: nothing was done"):
                await asyncio.to_thread(_in_a_loop_of_its_own, _writes(hf)[name])
            assert await hf.team("red").state == {}
            assert await hf.workers.list() is not None  # it still works where it belongs
        assert store.position == 0

    asyncio.run(main())


def test_every_name_above_is_a_write() -> None:
    with holdfast.open("memory:") as store:

        async def main() -> list[str]:
            hf = aio.over(store)
            writes = _writes(hf)
            for name, write in writes.items():
                await write()
                assert name == "close" or store.position or store.workers.leases()
            return list(writes)

        assert tuple(asyncio.run(main())) == WRITES


def test_several_loops_and_threads_write_to_one_store(store: holdfast.Store) -> None:
    """CONC: each loop has its own async store over the one that is open."""

    async def agent(hf: aio.AsyncStore, name: str) -> None:
        for n in range(10):
            await hf.team("red").append("log", f"{name} {n}")

    async def main(name: str) -> None:
        async with aio.over(store) as hf:
            await asyncio.gather(*[agent(hf, f"{name} {i}") for i in range(3)])

    threads = [threading.Thread(target=asyncio.run, args=(main(f"loop {i}"),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for n in range(10):
        store.team("red").append("log", f"thread {n}")
    for thread in threads:
        thread.join()
    log = store.team("red").state.to_dict()["log"]
    assert len(log) == len(set(log)) == 100
    assert kernel_of(store).part(AsyncStores).open == []
    store.team("red").set("open", True)


def test_an_async_run_is_executed_by_the_loop_that_started_it(store: holdfast.Store) -> None:
    async def start(hf: aio.AsyncStore, id: str) -> tuple[int, int]:
        run = await hf.runs.start(where, id, id=id)
        return await run.result(), id_of_loop()

    def id_of_loop() -> int:
        return id(asyncio.get_running_loop())

    async def main() -> None:
        first = aio.over(store)
        assert await start(first, "a") == (id_of_loop(), id_of_loop())

        async def inner() -> tuple[tuple[int, int], int]:
            async with aio.over(store) as second:
                return await start(second, "b"), id_of_loop()

        ran, other = await asyncio.to_thread(_in_a_loop_of_its_own, inner)
        assert ran == (other, other)
        # The newest is gone: what nobody's loop started is executed by the one that is left.
        run = await asyncio.to_thread(store.runs.start, where, "c", id="c")
        assert await asyncio.to_thread(run.result) == id_of_loop()
        await first.close()
        await first.close()

    asyncio.run(main())
    with pytest.raises(UsageError):
        store.runs.start(where, "d", id="d")


def test_leaving_a_loop_stops_its_runs_and_no_others(store: holdfast.Store) -> None:
    started: list[str] = []
    gone_on = threading.Event()

    @holdfast.run(name="waits")
    async def waits(ctx: Any, key: str) -> str:
        started.append(key)
        while not gone_on.is_set():
            await asyncio.sleep(0.01)
        return key

    async def main() -> None:
        stays = aio.over(store)
        kept = await stays.runs.start(waits, "kept", id="kept")

        async def inner() -> None:
            async with aio.over(store) as leaves:
                await leaves.runs.start(waits, "left", id="left")
                while len(started) < 2:
                    await asyncio.sleep(0.01)

        await asyncio.to_thread(_in_a_loop_of_its_own, inner)
        gone_on.set()
        assert await kept.result() == "kept"
        resumed = await stays.runs.resume("left")
        assert await resumed.result() == "left"
        await stays.close()

    asyncio.run(main())
    assert sorted(started) == ["kept", "left", "left"]


def test_an_async_node_runs_on_the_loop_that_walks(store: holdfast.Store) -> None:
    @holdfast.node
    async def loop_id(ctx: Any) -> int:
        return id(asyncio.get_running_loop())

    graph = holdfast.Graph("loops", [loop_id])

    async def main() -> None:
        aio.over(store)

        async def inner() -> tuple[int, int]:
            async with aio.over(store) as hf:
                walk = await hf.nodes.process(graph, hf.team("nodes"))
                return walk.value("loop_id"), id(asyncio.get_running_loop())

        ran, other = await asyncio.to_thread(_in_a_loop_of_its_own, inner)
        assert ran == other

    asyncio.run(main())


def test_what_is_no_store_or_no_loop_is_refused(store: holdfast.Store) -> None:
    with pytest.raises(UsageError, match="outside an event loop"):
        aio.over(store)

    async def main() -> None:
        hf = aio.over(store)
        with pytest.raises(UsageError, match="takes what"):
            aio.over(hf)  # type: ignore[arg-type]
        assert hf.sync is store
        await hf.close()

    asyncio.run(main())

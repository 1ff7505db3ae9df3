"""Contenders that run in a process of their own and do blocks of operations when told to.

A worker has named operations; each does one of what is measured and returns something that the
worker itself checked. Peers run in the peers' environment, so that nothing of theirs is ever
installed beside holdfast; bare loops and holdfast run as workers too where a whole process is
measured, as by callgrind.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

Operation = Callable[[], Any]
"""Does one; plain, or a coroutine function."""

WORKERS = {
    "SqliteSaver": "bench.workers.langgraph_savers:Sync",
    "AsyncSqliteSaver": "bench.workers.langgraph_savers:Async",
    "PostgresSaver": "bench.workers.langgraph_postgres:Sync",
    "graph": "bench.workers.langgraph_graph:Graph",
    "graph with DeltaChannel": "bench.workers.langgraph_graph:DeltaGraph",
    "graph in memory": "bench.workers.langgraph_graph:MemoryGraph",
    "ADK SqliteSessionService": "bench.workers.adk_sessions:Sqlite",
    "ADK DatabaseSessionService": "bench.workers.adk_sessions:Database",
    "OpenAI SQLiteSession": "bench.workers.openai_sessions:Sessions",
    "eventsourcing": "bench.workers.event_sourcing:Chats",
    "AgentFS": "bench.workers.agentfs_keys:Keys",
    "DBOS": "bench.workers.dbos_workflows:Workflows",
    "holdfast": "bench.ours:Worker",
    "holdfast messages": "bench.talking:Talker",
    "holdfast runs": "bench.workers.holdfast_runs:Runs",
    "bare": "bench.bare:Worker",
}


class Worker(Protocol):
    """One contender. Several functions under one name are done side by side."""

    release: str
    operations: dict[str, Operation | Sequence[Operation]]
    runner: asyncio.Runner | None

    def close(self) -> None: ...


def make(name: str, path: str, **options: Any) -> Worker:
    """Returns the worker of that name; only its own module is imported."""
    module, _, attribute = WORKERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(path, **options)


def block(worker: Worker, name: str, operations: int) -> tuple[float, list[float]]:
    """Does one operation so many times; returns the whole time and the time of each."""
    operation = worker.operations[name]
    if isinstance(operation, Sequence):
        assert worker.runner
        return worker.runner.run(_side_by_side(operation, operations))
    if inspect.iscoroutinefunction(operation):
        assert worker.runner
        return worker.runner.run(_side_by_side([operation], operations))
    latencies: list[float] = []
    start = begin = time.perf_counter()
    for _ in range(operations):
        operation()
        end = time.perf_counter()
        latencies.append(end - begin)
        begin = end
    return begin - start, latencies


async def _side_by_side(
    writers: Sequence[Callable[[], Coroutine[Any, Any, Any]]], operations: int
) -> tuple[float, list[float]]:
    latencies: list[float] = []

    async def write(operation: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        for _ in range(operations):
            begin = time.perf_counter()
            await operation()
            latencies.append(time.perf_counter() - begin)

    start = time.perf_counter()
    if len(writers) == 1:
        await write(writers[0])
    else:
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(write(writer))
    return time.perf_counter() - start, latencies

"""Runs in the peers' environment: does blocks of a peer's operations when told to.

One JSON request a line on stdin, one JSON answer a line on stdout:

    {"do": "open", "peer": "SqliteSaver", "path": "...", "size": 1000}    -> {"peer": "..."}
    {"do": "block", "operations": 20}                    -> {"seconds": s, "latencies": [s, ...]}
    {"do": "close"}                                      -> {}

An operation is one turn: a message is added to the list, and the list is saved as a checkpoint,
which is what the peer's own engine does at each step.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiosqlite
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.messages import messages


class Conversation:
    """What is saved at each turn: every message so far, under growing versions."""

    def __init__(self, size: int, *, thread: str = "c1") -> None:
        self._messages = messages(size)
        self._said: list[dict[str, str]] = []
        self.config: dict[str, Any] = {
            "configurable": {"thread_id": thread, "checkpoint_ns": ""},
        }

    def turn(self) -> tuple[Any, Any, Any, Any]:
        """Returns the arguments of the put that saves the next turn."""
        self._said = [*self._said, next(self._messages)]
        number = len(self._said)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": self._said}
        checkpoint["channel_versions"] = {"messages": number}
        metadata = {"source": "loop", "step": number, "parents": {}}
        return self.config, checkpoint, metadata, {"messages": number}


class Sync:
    """SqliteSaver.put; its WAL with synchronous FULL, which is the default of the library."""

    def __init__(self, path: str, size: int) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False)
        self._saver = SqliteSaver(self._connection)
        self._saver.setup()
        self._connection.execute("PRAGMA synchronous=FULL")
        self._conversation = Conversation(size)

    def block(self, operations: int) -> tuple[float, list[float]]:
        latencies: list[float] = []
        for _ in range(operations):
            arguments = self._conversation.turn()
            begin = time.perf_counter()
            self._conversation.config = self._saver.put(*arguments)
            latencies.append(time.perf_counter() - begin)
        return sum(latencies), latencies

    def close(self) -> None:
        self._connection.close()


class Async:
    """AsyncSqliteSaver.aput, by one task or by 64 with a conversation each."""

    def __init__(self, path: str, size: int, writers: int = 1) -> None:
        self._runner = asyncio.Runner()
        self._connection, self._saver = self._runner.run(self._open(path))
        self._conversations = [Conversation(size, thread=f"c{n}") for n in range(writers)]

    async def _open(self, path: str) -> tuple[aiosqlite.Connection, AsyncSqliteSaver]:
        connection = await aiosqlite.connect(path)
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        await connection.execute("PRAGMA synchronous=FULL")
        return connection, saver

    def block(self, operations: int) -> tuple[float, list[float]]:
        return self._runner.run(self._block(operations))

    async def _block(self, operations: int) -> tuple[float, list[float]]:
        latencies: list[float] = []

        async def writer(conversation: Conversation) -> None:
            for _ in range(operations):
                arguments = conversation.turn()
                begin = time.perf_counter()
                conversation.config = await self._saver.aput(*arguments)
                latencies.append(time.perf_counter() - begin)

        start = time.perf_counter()
        await asyncio.gather(*(writer(conversation) for conversation in self._conversations))
        return time.perf_counter() - start, latencies

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


def main() -> None:
    worker: Sync | Async | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        if request["do"] == "open":
            path, size = request["path"], request["size"]
            if request["peer"] == "SqliteSaver":
                worker = Sync(path, size)
            else:
                worker = Async(path, size, request.get("writers", 1))
            answer = {
                "peer": f"langgraph-checkpoint-sqlite {version('langgraph-checkpoint-sqlite')}"
            }
        elif worker and request["do"] == "block":
            seconds, latencies = worker.block(request["operations"])
            answer = {"seconds": seconds, "latencies": latencies}
        elif worker:
            worker.close()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

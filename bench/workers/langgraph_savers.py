"""LangGraph's SQLite savers: a message is added to the list, and the whole list is saved.

That is what LangGraph's own engine asks of them at each step. WAL with synchronous FULL.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import count
from typing import Any

import aiosqlite
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from bench.messages import SAID, messages

RELEASE = f"langgraph-checkpoint-sqlite {version('langgraph-checkpoint-sqlite')}"


class Conversation:
    """What is saved at each turn: every message so far, under growing versions."""

    def __init__(self, size: int, *, thread: str = "c1") -> None:
        self._messages = messages(size)
        self._said: list[dict[str, str]] = []
        self.config: dict[str, Any] = {
            "configurable": {"thread_id": thread, "checkpoint_ns": ""},
        }
        self.saved: list[dict[str, Any]] = []

    def turn(self) -> tuple[Any, Any, Any, Any]:
        """Returns the arguments of the put that saves the next turn."""
        self._said = [*self._said, next(self._messages)]
        number = len(self._said)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": self._said}
        checkpoint["channel_versions"] = {"messages": number}
        metadata = {"source": "loop", "step": number, "parents": {}}
        return self.config, checkpoint, metadata, {"messages": number}

    def keep(self, config: dict[str, Any]) -> None:
        """Notes under which configuration the turn was saved."""
        self.config = config
        self.saved.append(config)

    def config_of(self, what: str) -> tuple[dict[str, Any], int]:
        """Returns where the newest turn or the middle one was saved, and how long it is."""
        turns = len(self.saved) // 2 if what == "middle" else len(self.saved)
        return self.saved[turns - 1], turns


def check(found: Any, turns: int) -> None:
    """Sees that a whole state was read."""
    assert len(found.checkpoint["channel_values"]["messages"]) == turns


class Sync:
    """SqliteSaver.put and get_tuple."""

    release = RELEASE
    runner = None

    def __init__(self, path: str, *, size: int = SAID) -> None:
        self._path, self._size, self._threads = path, size, count(1)
        self._connection, self._saver = self._open()
        self.begin()
        self.operations: dict[str, Callable[[], Any]] = {
            "begin": self.begin,
            "turn": self.turn,
            "newest": lambda: self._read(self._saver, "newest"),
            "newest, opened afresh": lambda: self._afresh("newest"),
            "middle, opened afresh": lambda: self._afresh("middle"),
        }

    def _open(self) -> tuple[sqlite3.Connection, SqliteSaver]:
        connection = sqlite3.connect(self._path, check_same_thread=False)
        saver = SqliteSaver(connection)
        saver.setup()
        connection.execute("PRAGMA synchronous=FULL")
        return connection, saver

    def begin(self) -> None:
        self._conversation = Conversation(self._size, thread=f"c{next(self._threads)}")

    def turn(self) -> None:
        self._conversation.keep(self._saver.put(*self._conversation.turn()))

    def _read(self, saver: SqliteSaver, what: str) -> None:
        config, turns = self._conversation.config_of(what)
        check(saver.get_tuple(config), turns)

    def _afresh(self, what: str) -> None:
        connection, saver = self._open()
        self._read(saver, what)
        connection.close()

    def close(self) -> None:
        self._connection.close()


class Async:
    """AsyncSqliteSaver.aput and aget_tuple, by one task or by many with a conversation each."""

    release = RELEASE

    def __init__(self, path: str, *, size: int = SAID, writers: int = 1) -> None:
        self.runner = asyncio.Runner()
        self._path, self._size, self._threads = path, size, count(1)
        self._connection, self._saver = self.runner.run(self._open())
        self._conversations = [self._conversation() for _ in range(writers)]
        self.operations: dict[str, Callable[[], Any] | Sequence[Callable[[], Any]]] = {
            "begin": self._begin,
            "turn": [self._turns(number) for number in range(writers)],
            "newest": self._newest,
            "newest, opened afresh": self._newest_afresh,
            "middle, opened afresh": self._middle_afresh,
        }

    def _conversation(self) -> Conversation:
        return Conversation(self._size, thread=f"c{next(self._threads)}")

    async def _open(self) -> tuple[aiosqlite.Connection, AsyncSqliteSaver]:
        connection = await aiosqlite.connect(self._path)
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        await connection.execute("PRAGMA synchronous=FULL")
        return connection, saver

    def _begin(self) -> None:
        self._conversations = [self._conversation() for _ in self._conversations]

    def _turns(self, number: int) -> Callable[[], Any]:
        async def turn() -> None:
            conversation = self._conversations[number]
            conversation.keep(await self._saver.aput(*conversation.turn()))

        return turn

    async def _newest(self) -> None:
        await self._read(self._saver, "newest")

    async def _newest_afresh(self) -> None:
        await self._afresh("newest")

    async def _middle_afresh(self) -> None:
        await self._afresh("middle")

    async def _read(self, saver: AsyncSqliteSaver, what: str) -> None:
        config, turns = self._conversations[0].config_of(what)
        check(await saver.aget_tuple(config), turns)

    async def _afresh(self, what: str) -> None:
        connection, saver = await self._open()
        await self._read(saver, what)
        await connection.close()

    def close(self) -> None:
        self.runner.run(self._connection.close())
        self.runner.close()

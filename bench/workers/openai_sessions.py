"""OpenAI Agents SDK's SQLiteSession: two items a turn. WAL with synchronous FULL, its default."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from agents import SQLiteSession

from bench.messages import SAID, messages


class Sessions:
    """add_items and get_items, by one task or by many with a session each."""

    release = f"openai-agents {version('openai-agents')}"

    def __init__(self, path: str, *, size: int = SAID, items: int = 2, writers: int = 1) -> None:
        self._path = path
        self._messages = messages(size)
        self._items = items
        self._said = 0
        self.runner = asyncio.Runner()
        self._sessions = [SQLiteSession(f"c{number}", path) for number in range(writers)]
        self.operations: dict[str, Callable[[], Any] | Sequence[Callable[[], Any]]] = {
            "append": [self._appends(session) for session in self._sessions],
            "last 20": self.last,
            "all": self.all,
            "all, opened afresh": self.afresh,
        }

    def _appends(self, session: SQLiteSession) -> Callable[[], Any]:
        async def append() -> None:
            items: list[Any] = [next(self._messages) for _ in range(self._items)]
            await session.add_items(items)
            self._said += self._items

        return append

    async def last(self) -> None:
        assert len(await self._sessions[0].get_items(20)) == 20

    async def all(self) -> None:
        assert len(await self._sessions[0].get_items()) == self._said

    async def afresh(self) -> None:
        session = SQLiteSession("c0", self._path)
        assert len(await session.get_items()) == self._said
        session.close()

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self.runner.close()

"""Google ADK's session services on SQLite: one event a message.

As they come, both keep SQLite's rollback journal with synchronous FULL: durable, at four syncs a
commit. With `wal` the database file was put into WAL beforehand, a mode that SQLite keeps.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai.types import Content, Part

from bench.messages import SAID, messages

NAMES: dict[str, str] = {"app_name": "bench", "user_id": "u1", "session_id": "c1"}
LAST = GetSessionConfig(num_recent_events=20)


class Sqlite:
    """SqliteSessionService: aiosqlite, a connection an operation."""

    release = f"google-adk {version('google-adk')}"

    def __init__(self, path: str, *, size: int = SAID, wal: bool = False) -> None:
        if wal:
            connection = sqlite3.connect(path)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.close()
        self._path = path
        self._messages = messages(size)
        self._events = 0
        self.runner = asyncio.Runner()
        self._service = self._open()
        self._session = self.runner.run(self._service.create_session(**NAMES))
        self.operations: dict[str, Callable[[], Any]] = {
            "append": self.append,
            "last 20": self.last,
            "all": self.all,
            "all, opened afresh": self.afresh,
        }

    def _open(self) -> Any:
        return SqliteSessionService(self._path)

    async def append(self) -> None:
        content = Content(role="user", parts=[Part(text=next(self._messages)["content"])])
        event = Event(author="user", invocation_id="i1", content=content)
        await self._service.append_event(self._session, event)
        self._events += 1

    async def last(self) -> None:
        session = await self._service.get_session(**NAMES, config=LAST)
        assert len(session.events) == min(20, self._events)

    async def all(self) -> None:
        session = await self._service.get_session(**NAMES)
        assert len(session.events) == self._events

    async def afresh(self) -> None:
        service = self._open()
        session = await service.get_session(**NAMES)
        assert len(session.events) == self._events
        await self._shut(service)

    async def _shut(self, service: Any) -> None:
        """Nothing: a connection of this service lives for one operation."""

    def close(self) -> None:
        self.runner.run(self._shut(self._service))
        self.runner.close()


class Database(Sqlite):
    """DatabaseSessionService: SQLAlchemy on aiosqlite."""

    def _open(self) -> Any:
        return DatabaseSessionService(f"sqlite+aiosqlite:///{self._path}")

    async def _shut(self, service: Any) -> None:
        await service.close()

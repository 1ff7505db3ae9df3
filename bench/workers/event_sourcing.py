"""The eventsourcing library on SQLite: one event a save. WAL with synchronous FULL, its default."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

from bench.messages import SAID, messages

FILLED = 1_000


class Chat(Aggregate):
    """A conversation as an aggregate: its state is the list of what was said."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    @event("Said")
    def say(self, message: Any) -> None:
        self.messages.append(message)


class Chats:
    """An application of chats: save one event, replay them all, as the library does by default."""

    release = f"eventsourcing {version('eventsourcing')}"
    runner = None

    def __init__(self, path: str, *, size: int = SAID) -> None:
        self._messages = messages(size)
        self._application = Application[Any](
            env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": path}
        )
        self._chat = Chat()
        self._application.save(self._chat)
        self.operations: dict[str, Callable[[], Any]] = {
            "append": self.append,
            "fill": self.fill,
            "replay": self.replay,
        }

    def append(self) -> None:
        self._chat.say(next(self._messages))
        self._application.save(self._chat)

    def fill(self) -> None:
        """Adds many events with one save, to make a long history quickly."""
        for _ in range(FILLED):
            self._chat.say(next(self._messages))
        self._application.save(self._chat)

    def replay(self) -> None:
        chat = self._application.repository.get(self._chat.id)
        assert len(chat.messages) == len(self._chat.messages)

    def close(self) -> None:
        self._application.close()

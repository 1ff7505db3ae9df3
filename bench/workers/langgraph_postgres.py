"""LangGraph's PostgreSQL saver: a message is added to the list, and the whole list is saved.

The connection is made as its `from_conn_string` makes one. The path is the database's URL.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row

from bench.messages import SAID
from bench.workers.langgraph_savers import Conversation, check


class Sync:
    """PostgresSaver.put and get_tuple."""

    release = f"langgraph-checkpoint-postgres {version('langgraph-checkpoint-postgres')}"
    runner = None

    def __init__(self, path: str, *, size: int = SAID) -> None:
        self._connection: Any = psycopg.connect(
            path, autocommit=True, prepare_threshold=0, row_factory=dict_row
        )
        self._saver = PostgresSaver(self._connection)
        self._saver.setup()
        self._conversation = Conversation(size)
        self.operations: dict[str, Callable[[], Any]] = {"turn": self._turn, "newest": self._newest}

    def _turn(self) -> None:
        self._conversation.keep(self._saver.put(*self._conversation.turn()))

    def _newest(self) -> None:
        config, turns = self._conversation.config_of("newest")
        check(self._saver.get_tuple(config), turns)

    def close(self) -> None:
        self._connection.close()

"""LangGraph as most use it: a graph of one node, invoked once a turn with one more message.

`durability="sync"` saves each step before the next begins. WAL with synchronous FULL.
"""

from __future__ import annotations

import operator
import sqlite3
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Any, TypedDict

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.messages import SAID, messages

RELEASE = f"langgraph {version('langgraph')}"


def joined(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """Returns the list with what several writes add to it."""
    return [*state, *(item for write in writes for item in write)]


class Whole(TypedDict):
    """The default: the whole list is saved at each step."""

    messages: Annotated[list[Any], operator.add]


class Delta(TypedDict):
    """The beta channel: only what was added is saved, and a whole list now and then."""

    messages: Annotated[list[Any], DeltaChannel(joined)]


class Graph:
    """One conversation, driven through `invoke` and `get_state`."""

    release = RELEASE
    runner = None
    state: type[Any] = Whole

    def __init__(self, path: str, *, size: int = SAID) -> None:
        self._path = path
        self._messages = messages(size)
        self._turns = 0
        self._config: Any = {"configurable": {"thread_id": "c1"}}
        self._close, self._graph = self._open()
        self.operations: dict[str, Callable[[], Any]] = {
            "turn": self.turn,
            "newest": lambda: self._read(self._graph),
            "newest, opened afresh": self._afresh,
        }

    def _saver(self) -> tuple[Callable[[], None], Any]:
        connection = sqlite3.connect(self._path, check_same_thread=False)
        saver = SqliteSaver(connection)
        saver.setup()
        connection.execute("PRAGMA synchronous=FULL")
        return connection.close, saver

    def _open(self) -> tuple[Callable[[], None], Any]:
        close, saver = self._saver()
        graph: Any = StateGraph(self.state)
        graph.add_node("note", lambda _state: {})
        graph.add_edge(START, "note")
        graph.add_edge("note", END)
        return close, graph.compile(checkpointer=saver)

    def turn(self) -> None:
        said = {"messages": [next(self._messages)]}
        self._graph.invoke(said, self._config, durability="sync")
        self._turns += 1

    def _read(self, graph: Any) -> None:
        assert len(graph.get_state(self._config).values["messages"]) == self._turns

    def _afresh(self) -> None:
        close, graph = self._open()
        self._read(graph)
        close()

    def close(self) -> None:
        self._close()


class DeltaGraph(Graph):
    """With DeltaChannel, a beta."""

    state = Delta


class MemoryGraph(Graph):
    """The engine alone: nothing is stored. It shows how much of a turn is not storage."""

    def _saver(self) -> tuple[Callable[[], None], Any]:
        return (lambda: None), InMemorySaver()

"""Typed protocols for the four built-in scopes: runtime-checkable, easy to fake in a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from holdfast.arguments import Path
from holdfast.tree import Map


@runtime_checkable
class State(Protocol):
    """What every scope offers, for code that should not care which level it is given."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> Map: ...
    def get(self, path: Path, default: Any = None) -> Any: ...
    def set(self, path: Path, value: Any) -> int: ...
    def update(self, values: Mapping[str, Any]) -> int: ...
    def to_dict(self) -> dict[str, Any]: ...


@runtime_checkable
class ConversationState(State, Protocol):
    """A conversation's state: history, messages, tool results; one agent session (VIC-18)."""


@runtime_checkable
class WorkflowState(State, Protocol):
    """A workflow's state: what its nodes share; one execution (VIC-19)."""


@runtime_checkable
class TeamState(State, Protocol):
    """A team's state: what its agents share; one team session (VIC-20)."""


@runtime_checkable
class GlobalState(State, Protocol):
    """The application's state: settings, shared resources, caches (VIC-21)."""

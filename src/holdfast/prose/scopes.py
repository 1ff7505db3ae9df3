"""The names of a program while it runs, and their values inside parallel arms.

An arm sees outer variables as they were when its block began, plus its own assignments. Those are
kept separately as changes, and are applied at the join, in the order of the arms. A replay does not
run a finished arm again, so everything that an arm leaves is in the one value that it returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

Kind = Literal["let", "const", "input", "parameter", "loop", "catch"]


class Cell:
    """One name and its current value."""

    __slots__ = ("kind", "place", "updated", "value", "variable")

    def __init__(self, kind: Kind, value: Any, variable: Any = None) -> None:
        self.kind = kind
        self.value = value
        self.variable = variable
        """The variable in the run's journal; None if the name has none there."""
        self.place: str | None = None
        """The scope under which a view shows it; None if it is not shown."""
        self.updated: str | None = None
        """When it was set last, for a let that a view shows."""


class Change(Struct, frozen=True, array_like=True):
    """An arm's assignment to an outer name: the values to add, or else the new value."""

    name: str
    added: list[Any] | None
    value: Any


class Memories:
    """The newest output of each agent, and the memory of each in this run."""

    def __init__(self, outer: Memories | None = None) -> None:
        self._outer = outer
        self.newest: dict[str, str] = {}
        self.memory: dict[str, str] = {}

    def output_of(self, agent: str) -> str | None:
        """Returns the newest answer of an agent."""
        found = self.newest.get(agent)
        return self._outer.output_of(agent) if found is None and self._outer else found

    def memory_of(self, agent: str) -> str | None:
        """Returns the memory of an agent."""
        found = self.memory.get(agent)
        return self._outer.memory_of(agent) if found is None and self._outer else found


class Arm:
    """The assignments of a parallel arm to outer names."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.changes: list[Change] = []


class Scope:
    """The names of one scope, and the scope around it."""

    __slots__ = ("arm", "cells", "outer")

    def __init__(self, outer: Scope | None = None, arm: Arm | None = None) -> None:
        self.outer = outer
        self.arm = arm
        self.cells: dict[str, Cell] = {}

    def cell(self, name: str) -> tuple[Cell | None, Arm | None]:
        """Returns the cell of a name, and the innermost arm between here and it, if any."""
        scope: Scope | None = self
        arm: Arm | None = None
        while scope is not None:
            found = scope.cells.get(name)
            if found is not None:
                return found, arm
            arm = arm or scope.arm
            scope = scope.outer
        return None, None

    def get(self, name: str) -> tuple[bool, Any]:
        """Returns whether a name is bound, and its value as seen from here."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.cells.get(name)
            if found is not None:
                return True, found.value
            if scope.arm is not None and name in scope.arm.values:
                return True, scope.arm.values[name]
            scope = scope.outer
        return False, None

    def cells_here(self) -> Iterator[tuple[str, Cell]]:
        """Yields the names of this scope and of the outer ones, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield from scope.cells.items()
            scope = scope.outer

    @property
    def is_in_arm(self) -> bool:
        """Whether this is inside a parallel arm, where other arms may use the outer names too."""
        scope: Scope | None = self
        while scope is not None:
            if scope.arm is not None:
                return True
            scope = scope.outer
        return False

    def visible(self) -> Iterator[tuple[str, Any]]:
        """Yields the visible names with their values, the newest last."""
        scopes: list[Scope] = []
        scope: Scope | None = self
        while scope is not None:
            scopes.append(scope)
            scope = scope.outer
        names: dict[str, None] = {}
        for one in reversed(scopes):
            for name in one.cells:
                names.pop(name, None)  # an inner one of that name is newer
                names[name] = None
        for name in names:
            yield name, self.get(name)[1]

"""Names of a program while it runs: what each is bound to, and what parallel arms do to them.

An arm sees the variables around it as they were when its block began, plus its own assignments. It
keeps those apart, as changes; they are applied at the join, in the order of the arms. An arm that
has ended is not entered again when the run is replayed, so all that it leaves is one value:
`Arm.left`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

Kind = Literal["let", "const", "input", "parameter", "loop", "catch"]


class Cell:
    """One name, and its value now."""

    __slots__ = ("kind", "place", "updated", "value", "variable")

    def __init__(self, kind: Kind, value: Any, variable: Any = None) -> None:
        self.kind = kind
        self.value = value
        self.variable = variable
        """What the run's journal knows of it; None if it only follows from something else."""
        self.place: str | None = None
        """The scope that a view shows it in; None if it is not shown."""
        self.updated: str | None = None
        """When it got its value, if a view shows it and it may change."""


class Change(Struct, frozen=True, array_like=True):
    """An assignment of an arm to a name around it: what is added, or what replaces it."""

    name: str
    added: list[Any] | None
    value: Any


class Memories:
    """The newest output of each agent, and what each remembers in this run."""

    def __init__(self, outer: Memories | None = None) -> None:
        self._outer = outer
        self.newest: dict[str, str] = {}
        self.memory: dict[str, str] = {}

    def output_of(self, agent: str) -> str | None:
        """Returns what an agent answered last."""
        found = self.newest.get(agent)
        return self._outer.output_of(agent) if found is None and self._outer else found

    def memory_of(self, agent: str) -> str | None:
        """Returns what an agent remembers."""
        found = self.memory.get(agent)
        return self._outer.memory_of(agent) if found is None and self._outer else found


class Arm:
    """What a parallel arm does to the names around it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.changes: list[Change] = []


class Scope:
    """Names that are visible together, and those around them."""

    __slots__ = ("arm", "cells", "outer")

    def __init__(self, outer: Scope | None = None, arm: Arm | None = None) -> None:
        self.outer = outer
        self.arm = arm
        self.cells: dict[str, Cell] = {}

    def cell(self, name: str) -> tuple[Cell | None, Arm | None]:
        """Returns a name's cell, and the innermost arm that it is outside of, if any."""
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
        """Returns whether a name is bound, and its value as it is seen from here."""
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
        """Yields the names of this scope and of those around it, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield from scope.cells.items()
            scope = scope.outer

    @property
    def is_in_arm(self) -> bool:
        """Whether names around it belong to others, who may be at work on them."""
        scope: Scope | None = self
        while scope is not None:
            if scope.arm is not None:
                return True
            scope = scope.outer
        return False

    def visible(self) -> Iterator[tuple[str, Any]]:
        """Yields the names that are bound, with their values, newest last."""
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

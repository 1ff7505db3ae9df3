"""Who was called: an object, and not a list, so that what it holds is no part of the code."""

from __future__ import annotations


class Calls:
    """The names of the nodes that were computed, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> None:
        self.names.append(name)

    def take(self) -> list[str]:
        """Returns who was called since the last time."""
        names, self.names = self.names, []
        return names

"""Changes of scopes, and the functions of this process that want to hear of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from holdfast import tree
from holdfast.fold import Folded
from holdfast.wanted import Part


class Change(Struct, frozen=True):
    """One place in a scope's state that changed; an absent side is `holdfast.MISSING`."""

    scope: str
    revision: int
    path: tuple[str | int, ...]
    old: Any
    new: Any


Subscriber = Callable[[Change], None]


class Subscribers:
    """Who wants to hear of which scope."""

    def __init__(self) -> None:
        self._listening: dict[str, list[Subscriber]] = {}

    def add(self, scope: str, subscriber: Subscriber) -> Callable[[], None]:
        """Adds one; returns the function that takes it away."""
        listening = self._listening.setdefault(scope, [])
        listening.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in listening:
                listening.remove(subscriber)

        return unsubscribe

    def tell(self, part: Part, before: Folded, after: Folded) -> None:
        """Tells them what a part of a commit, durable by now, changed in its scope."""
        listening = self._listening.get(part.stream)
        if not listening:
            return
        ops = [op for proposal in part.proposals for op in proposal.ops]
        for change in tree.touched(ops, before.root, after.root):
            told = Change(part.stream, after.revision, change.path, change.old, change.new)
            for subscriber in tuple(listening):
                subscriber(told)

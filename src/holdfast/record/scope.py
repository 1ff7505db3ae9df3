"""A scope with its record: what `Store.scope` returns.

It is thin: each part of the record is a module of its own, which is handed the scope.
"""

from __future__ import annotations

from typing import Self

from holdfast.changes import Subscribers
from holdfast.levels import Levels
from holdfast.record.book import Book
from holdfast.scope import Scope


class RecordedScope(Scope):
    """A scope, and what was recorded in its stream besides its state."""

    def __init__(
        self,
        book: Book,
        level: str,
        id: str | None,
        *,
        levels: Levels,
        parent: Scope | None,
        subscribers: Subscribers,
    ) -> None:
        super().__init__(book.log, level, id, levels=levels, parent=parent, subscribers=subscribers)
        self.book = book

    def _like(self, level: str, id: str | None, parent: Scope | None) -> Self:
        return type(self)(
            self.book,
            level,
            id,
            levels=self._levels,
            parent=parent,
            subscribers=self.subscribers,
        )

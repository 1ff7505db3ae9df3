"""Questions to one store: the index is opened when the first is asked."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.errors import UsageError, show_value
from holdfast.query.form import TIMEOUT_S, Hit, Hits, check_query
from holdfast.query.links import DanglingLink
from holdfast.record.context import RecordContext

if TYPE_CHECKING:
    from holdfast.query.index import QueryIndex


class IndexStatus(Struct, frozen=True):
    """Where the index of a store is, the position that it has reached, and how far that lags."""

    place: str
    position: int
    behind: int


class Questions:
    """The index of one store, opened once it is needed: who asks nothing pays nothing."""

    def __init__(self, context: RecordContext, *, read_only: bool) -> None:
        self._context = context
        self._read_only = read_only
        self._mutex = Lock()
        self._opened: QueryIndex | None = None

    def ask(self, **arguments: Any) -> Hits:
        """Returns the answer to a question."""
        query = check_query(self._context.log.clock.now_us(), **arguments)
        return self._index().ask(query)

    def resolve(self, link: object, scope: str) -> Hit | None:
        """Returns what a link leads to; None if it leads nowhere, or out of the store."""
        if not isinstance(link, str) or not link:
            raise UsageError(
                f"a link is text such as decision:d7@team/red, found {show_value(link)}"
            )
        return self._index().resolve(link, scope, TIMEOUT_S)

    def dangling(self) -> list[DanglingLink]:
        """Returns the links that lead nowhere."""
        return self._index().dangling(TIMEOUT_S)

    def status(self) -> IndexStatus:
        index = self._index()
        position, behind = index.behind()
        return IndexStatus(index.place, int(position), behind)

    def rebuild(self) -> None:
        self._index().rebuild()

    def _index(self) -> QueryIndex:
        with self._mutex:
            if self._opened is None:
                # Loaded here: who asks nothing does not load SQLite either.
                from holdfast.query.index import QueryIndex
                from holdfast.query.place import tables_for

                tables = tables_for(self._context.log, read_only=self._read_only)
                self._opened = QueryIndex(self._context, tables)
            return self._opened

    def close(self) -> None:
        with self._mutex:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

"""Search by meaning, links and SQL: `hf.search`. Most questions are asked by `hf.query`."""

from __future__ import annotations

from typing import Any

from holdfast.core.arguments import name_of
from holdfast.core.kernel import Kernel
from holdfast.names import GLOBAL
from holdfast.query.form import SQL_BYTES_MAX, SQL_ROWS_MAX, SQL_TIMEOUT_S, Hit, Hits, Rows, Where
from holdfast.query.links import DanglingLink
from holdfast.query.paths import StateIndex
from holdfast.query.questions import IndexStatus, Questions
from holdfast.query.vectors import Embedder, Similar, check_embedder
from holdfast.scope import Scope

__all__ = [
    "DanglingLink",
    "Embedder",
    "Hit",
    "Hits",
    "IndexStatus",
    "Rows",
    "SearchRoom",
    "Similar",
    "StateIndex",
    "Where",
]


class SearchRoom:
    """Search over everything recorded by meaning, links and SQL, and the index behind it."""

    def __init__(self, kernel: Kernel) -> None:
        self._questions = kernel.part(Questions)

    def __repr__(self) -> str:
        return "<SearchRoom>"

    def sql(
        self,
        statement: str,
        *,
        timeout: float = SQL_TIMEOUT_S,
        max_rows: int = SQL_ROWS_MAX,
        max_bytes: int = SQL_BYTES_MAX,
    ) -> Rows:
        """Runs a SELECT on read-only tables of everything recorded; returns columns and rows.

        The tables are scopes, events, state, messages, decisions, tasks, facts and runs. They are
        brought up to date first. They are kept apart from the store, so other clients may read them
        too. A statement that exceeds `timeout` seconds, `max_rows` or `max_bytes` is stopped and
        raises LimitError.
        """
        return self._questions.select(statement, timeout, max_rows, max_bytes)

    def similar(
        self, to: str, *, limit: int = 10, embedder: Embedder | None = None, **question: Any
    ) -> list[Similar]:
        """Returns what is nearest to a text in meaning, nearest first, each with its score.

        Messages, decisions, tasks, facts and your own events are compared. The vectors are made by
        `embedder`, or by the one that the store was opened with; texts that it has not embedded yet
        are embedded first, which may take long. The other arguments filter as in `query`.
        """
        return self._questions.similar(to, limit, check_embedder(embedder), **question)

    def resolve(self, link: str, *, scope: Scope | str = GLOBAL) -> Hit | None:
        """Returns the target of a link such as "decision:d7@team/red", or None if there is none.

        An id without a scope is looked up in `scope`. Links to things outside the store (`file:…`,
        `commit:…`, `https:…`) are not followed.
        """
        return self._questions.resolve(link, name_of(scope))

    def dangling_links(self) -> list[DanglingLink]:
        """Returns every link whose target should be in the store and is not."""
        return self._questions.dangling()

    def status(self) -> IndexStatus:
        """Returns where the index is, and how far it has followed the log."""
        return self._questions.status()

    def rebuild(self) -> None:
        """Rebuilds the index from the log. It is derived data: nothing is lost by it."""
        self._questions.rebuild()

    def tables(self) -> str:
        """Brings the tables for outside tools up to date and returns where they are."""
        return self._questions.refresh_tables()

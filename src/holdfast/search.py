"""The index of everything recorded: `hf.search`. `hf.query` asks it most questions."""

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
    """Meaning, links and SQL over everything recorded, and the index that answers."""

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
        """Runs a SELECT on read-only tables of everything recorded, and returns columns and rows.

        The tables are scopes, events, state, messages, decisions, tasks, facts and runs. They are
        brought up to date first, and lie apart from the store: any client may read them too. A
        statement that takes more seconds, rows or bytes than it may is ended with a LimitError.
        """
        return self._questions.select(statement, timeout, max_rows, max_bytes)

    def similar(
        self, to: str, *, limit: int = 10, embedder: Embedder | None = None, **question: Any
    ) -> list[Similar]:
        """Returns what is nearest to a text in meaning, the nearest first, each with its score.

        By the `embedder`, or the one that the store was opened with. What it has not seen yet it is
        given first. Messages, decisions, tasks, facts and events of your own are compared. The
        other arguments are those of `query`, and leave out what does not fit.
        """
        return self._questions.similar(to, limit, check_embedder(embedder), **question)

    def resolve(self, link: str, *, scope: Scope | str = GLOBAL) -> Hit | None:
        """Returns what a link such as "decision:d7@team/red" leads to; None if it leads nowhere.

        An id without a scope is looked for in `scope`. What lies outside the store (`file:…`,
        `commit:…`, `https:…`) is not followed.
        """
        return self._questions.resolve(link, name_of(scope))

    def dangling_links(self) -> list[DanglingLink]:
        """Returns every link that should lead to something in the store and does not."""
        return self._questions.dangling()

    def status(self) -> IndexStatus:
        """Returns where the index for questions is, and how far it has followed the log."""
        return self._questions.status()

    def rebuild(self) -> None:
        """Makes the index for questions again from the log; nothing else depends on it."""
        self._questions.rebuild()

    def tables(self) -> str:
        """Brings the tables for outside tools up to date; returns where they are."""
        return self._questions.refresh_tables()

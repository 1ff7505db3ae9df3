"""Questions to one store. The index is opened when the first question is asked."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct

from holdfast.backends.derived_tables import DamagedTablesError
from holdfast.core.arguments import check_seconds, check_whole
from holdfast.core.kernel import Kernel
from holdfast.core.paging import EventFilter
from holdfast.errors import UnavailableError, UsageError, show_value
from holdfast.query.form import TIMEOUT_S, Condition, Hit, Hits, Rows, check_query
from holdfast.query.links import DanglingLink
from holdfast.query.vectors import Embedder, Similar
from holdfast.query.words import plain
from holdfast.record.context import FoundDecision, RecordContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.query.index import QueryIndex
    from holdfast.query.paths import StateIndex
    from holdfast.query.tables import OutsideTables


T = TypeVar("T")


class IndexStatus(Struct, frozen=True):
    """The place of an index, the position it has reached, and how far that is behind the store."""

    place: str
    position: int
    behind: int


class Questions:
    """The index and the tables of one store, each opened at its first use."""

    def __init__(self, kernel: Kernel) -> None:
        self._embedder = cast("Embedder | None", kernel.settings.embedder)
        self._context = kernel.part(RecordContext)
        self._declared = cast("Sequence[StateIndex]", kernel.settings.indexes)
        self._read_only = kernel.read_only
        kernel.on_close(self.close)
        kernel.when_let_go(self.let_go)
        self._mutex = Lock()
        self._opened: QueryIndex | None = None
        self._tables: OutsideTables | None = None

    def ask(self, **arguments: Any) -> Hits:
        """Checks the arguments, and answers the question."""
        query = check_query(self._context.log.clock.now_us(), **arguments)
        return self._whole(lambda: self._index().ask(query))

    def _whole(self, question: Callable[[], T]) -> T:
        """Answers a question, and asks all of it again if it finds that the index is damaged.

        The index that is made again is empty. So no part of a question may go on in it: the whole
        question begins anew, and follows the log first.
        """
        try:
            return question()
        except DamagedTablesError as error:
            self._index().make_again(str(error))
        try:
            return question()
        except DamagedTablesError as error:
            raise UnavailableError(
                f'the index in "{self._index().place}" is damaged again: {error}',
                hint="look at the disk; what was recorded is not in the index alone",
            ) from error

    def resolve(self, link: object, scope: str) -> Hit | None:
        """Returns the target of a link in a scope; None if it has none in the store."""
        if not isinstance(link, str) or not link:
            raise UsageError(
                f"a link is text such as decision:d7@team/red, found {show_value(link)}"
            )
        return self._whole(lambda: self._index().resolve(plain(link), plain(scope), TIMEOUT_S))

    def dangling(self) -> list[DanglingLink]:
        """Returns the links whose target is not in the store."""
        return self._whole(lambda: self._index().dangling(TIMEOUT_S))

    def select(
        self, statement: object, timeout: object, max_rows: object, max_bytes: object
    ) -> Rows:
        """Runs a statement that only reads on the tables for outside tools."""
        if not isinstance(statement, str) or not statement.strip():
            raise UsageError(f"a statement is text of SQL, found {show_value(statement)}")
        if plain(statement) != statement:
            raise UsageError(
                "a statement is text that a database can read, found a lone surrogate or a zero "
                f"character in {show_value(statement)}",
                hint="such characters are stored as ? and \ufffd: ask for these",
            )
        from holdfast.backends.derived_tables import SelectLimits

        limits = SelectLimits(
            check_seconds(timeout, "timeout", above=0.0),
            check_whole(max_rows, "max_rows", least=1),
            check_whole(max_bytes, "max_bytes", least=1),
        )
        return self._outside().select(statement, limits)

    def refresh_tables(self) -> str:
        """Brings the tables for outside tools up to date; returns where they are."""
        outside = self._outside()
        outside.refresh()
        return outside.place

    def _outside(self) -> OutsideTables:
        from holdfast.query.place import outside_tables_for
        from holdfast.query.tables import OutsideTables

        with self._mutex:
            if self._tables is None:
                tables = outside_tables_for(self._context.log, read_only=self._read_only)
                self._tables = OutsideTables(self._context, tables)
            return self._tables

    def fitting(
        self, where: tuple[Condition, ...], *, prefix: str, after: str, limit: int
    ) -> list[str]:
        """Returns the names of scopes whose states meet the conditions, sorted, after a name."""
        return self._whole(lambda: self._index().fitting(where, prefix, after, limit))

    def similar(
        self, to: object, limit: object, embedder: Embedder | None, **question: Any
    ) -> list[Similar]:
        """Returns what is nearest to a text in meaning, among what the other arguments select."""
        from holdfast.query.vectors import KINDS

        embedder = embedder or self._embedder
        if embedder is None:
            raise UsageError(
                "this store was opened without an embedder: nothing can be compared by its meaning",
                hint="holdfast.open(…, settings=Settings(embedder=…)): it has a name, a dimension "
                "and embed(texts)",
            )
        if not isinstance(to, str) or not to.strip():
            raise UsageError(f"similar takes a text, found {show_value(to)}")
        question["kind"] = question.get("kind") or KINDS
        query = check_query(self._context.log.clock.now_us(), **question)
        for kind in ("state",) if query.where else query.kinds:
            if kind not in KINDS:
                raise UsageError(
                    f"a {kind} is not compared by its meaning: expected {', '.join(KINDS)}"
                )
        most = check_whole(limit, "limit", least=1)
        made = embedder
        return self._whole(lambda: self._index().similar(query, made, to, most))

    def find_decisions(
        self, stream: str | None, passed: tuple[Any, ...] | None, events: int
    ) -> list[FoundDecision] | None:
        """Returns where the next decisions are; None if the caller should read events instead."""
        from holdfast.query.decided import find_decisions

        return self._whole(lambda: find_decisions(self._index, stream, passed, events))

    def find_positions(
        self,
        wanted: EventFilter,
        low: int,
        high: int | None,
        limit: int,
        events: int,
        *,
        newest_first: bool,
    ) -> list[int] | None:
        """Returns where the next such events are; None if the caller should read the log."""
        from holdfast.query.logged import find_positions

        return self._whole(
            lambda: find_positions(
                self._index, wanted, low, high, limit, events, newest_first=newest_first
            )
        )

    def status(self) -> IndexStatus:
        index = self._index()
        position, behind = index.behind()
        return IndexStatus(index.place, int(position), behind)

    def rebuild(self) -> None:
        self._index().rebuild()

    def let_go(self) -> None:
        """Makes the index again and deletes the tables for outside tools, where they exist.

        Both may have copies of data that was let go of.
        """
        from holdfast.query.place import is_there

        is_kept = is_there(self._context.log)
        if self._opened is not None or is_kept:
            self.rebuild()
        if self._tables is not None or is_kept:
            self._outside().forget()

    def _index(self) -> QueryIndex:
        with self._mutex:
            if self._opened is None:
                # Imported here, so that a program without questions does not load SQLite.
                from holdfast.query.index import QueryIndex
                from holdfast.query.place import tables_for

                tables = tables_for(self._context.log, read_only=self._read_only)
                self._opened = QueryIndex(self._context, tables, self._declared)
            return self._opened

    def close(self) -> None:
        with self._mutex:
            opened, self._opened = self._opened, None
            tables, self._tables = self._tables, None
        if opened is not None:
            opened.close()
        if tables is not None:
            tables.close()

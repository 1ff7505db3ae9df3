"""Tables beside the log that are derived from it: what the one who keeps them can do.

They are disposable: whoever uses them makes them again if they are damaged, foreign or gone. Values
go in as parameters, never into the text of a statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from holdfast.errors import LimitError

T = TypeVar("T")
Values = Sequence[Any]
Condition = tuple[str, list[Any]]
"""A part of a statement, and the values of its question marks."""


class SideSession(Protocol):
    """One transaction on such tables. Parameters are question marks."""

    def ask(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Runs a statement and returns its rows."""
        ...

    def many(self, statement: str, rows: Iterable[Values]) -> None:
        """Runs a statement for each row of values."""
        ...


class SelectLimits(Struct, frozen=True):
    """What a statement of a user's may take: time, and the rows and bytes of its answer."""

    timeout_s: float
    rows: int
    bytes: int

    def over_time(self) -> LimitError:
        """Returns the error for a statement that ran for too long."""
        return LimitError(
            f"the statement has run for {self.timeout_s:g} s and was ended",
            hint="ask for less, or give it a longer timeout",
        )

    def over_rows(self) -> LimitError:
        """Returns the error for an answer of too many rows."""
        return LimitError(
            f"the statement returns more than {self.rows} rows",
            hint="ask for fewer with LIMIT, or give it more max_rows",
        )

    def over_bytes(self) -> LimitError:
        """Returns the error for an answer, or for what leads to it, of too many bytes."""
        return LimitError(
            f"the statement needs more than {self.bytes} bytes",
            hint="ask for less, or give it more max_bytes",
        )


class DamagedTablesError(Exception):
    """The tables cannot be read, or are not ours: they must be made again."""


class SideTables(Protocol):
    """Where derived tables are kept, and what differs from one place to another."""

    key: str
    """The type of a column that numbers rows."""
    text: str
    """The type of text, sorted by its code points."""
    whole: str
    real: str
    json: str
    place: str
    """Where they are, for people."""

    def hint(self, index: str) -> str:
        """Returns what has a table read by that index, where the database must be told."""
        ...

    def write(self, work: Callable[[SideSession], T]) -> T:
        """Runs one transaction, all or nothing. Raises DamagedTablesError."""
        ...

    def read(self, work: Callable[[SideSession], T]) -> T:
        """Runs questions, all at one moment. Raises DamagedTablesError."""
        ...

    def is_empty(self, session: SideSession) -> bool:
        """Says whether nothing was made there yet."""
        ...

    def reset(self) -> None:
        """Removes everything, whatever state it is in."""
        ...

    def claim(self) -> AbstractContextManager[bool]:
        """The block of the one who fills the tables; False where another process does it now."""
        ...

    def make_place(self, session: SideSession) -> None:
        """Makes what the tables lie in, if that is anything."""
        ...

    def make_words(self, session: SideSession) -> None:
        """Makes the table of words."""
        ...

    def add_words(self, session: SideSession, rows: Iterable[tuple[int, int, list[str]]]) -> None:
        """Adds chunks of words: the number of the document, of the chunk, and the words."""
        ...

    def drop_words(self, session: SideSession, rows: Iterable[tuple[int, int]]) -> None:
        """Takes the words of documents away: the number of each, and how many chunks it has."""
        ...

    def with_words(
        self, session: SideSession, terms: Sequence[tuple[Sequence[str], bool]], others: Condition
    ) -> Condition:
        """Returns what says that the document `docs.n` has every term, as a condition.

        A term is words next to each other, and whether the last is only the beginning of one.
        `others` is what else is asked for: by how many documents that leaves, a way is chosen.
        """
        ...

    def make_vectors(self, session: SideSession) -> None:
        """Makes the table of vectors."""
        ...

    def add_vectors(
        self, session: SideSession, model: int, rows: Iterable[tuple[int, bytes]]
    ) -> None:
        """Adds vectors of a model: the number of the document, and 32 bits for each dimension."""
        ...

    def nearest(
        self, session: SideSession, model: int, target: bytes, others: Condition, limit: int
    ) -> list[tuple[int, bytes, float]] | None:
        """Returns the documents nearest to a vector, of those that `others` leaves, nearest first.

        Each with its vector and its distance, which may be less exact than the vector is. None if
        the database cannot tell.
        """
        ...

    def select(
        self, statement: str, limits: SelectLimits
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Runs one SELECT of a user's; returns the names of columns, and rows.

        Raises UsageError if it is wrong, or does more than to read these tables, and LimitError if
        it takes too much. Nothing that it does lasts, and nobody else has its connection after it.
        """
        ...

    def note(self) -> None:
        """Notes the tables as they are now, to know them again."""
        ...

    def is_changed(self) -> bool:
        """Says whether somebody else may have written to them since they were noted."""
        ...

    def like(self, column: str, pattern: str) -> Condition:
        """Returns what says that a column fits a pattern, in which * is any characters."""
        ...

    def close(self) -> None: ...

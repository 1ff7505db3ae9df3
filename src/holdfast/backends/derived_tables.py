"""Tables beside the log that are derived from it: the interface of the place that keeps them.

They are disposable: their user makes them again if they are damaged, foreign or gone. Values are
passed as parameters, never in the text of a statement.
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
    """One transaction on derived tables. Parameters are question marks."""

    def ask(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Runs a statement and returns its rows."""
        ...

    def many(self, statement: str, rows: Iterable[Values]) -> None:
        """Runs a statement for each row of values."""
        ...


class SelectLimits(Struct, frozen=True):
    """The limits of a user's statement: its time, and the rows and bytes of its answer."""

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
        """Returns the error for an answer, or temporary data for it, of too many bytes."""
        return LimitError(
            f"the statement needs more than {self.bytes} bytes",
            hint="ask for less, or give it more max_bytes",
        )


class DamagedTablesError(Exception):
    """The tables cannot be read or are not ours, so they must be made again."""


class SideTables(Protocol):
    """Where derived tables are kept, and what differs from one place to another."""

    key: str
    """The type of a column with the numbers of rows."""
    text: str
    """The type of a column of text, sorted by code points."""
    whole: str
    real: str
    json: str
    place: str
    """Where the tables are, in words for people."""

    def hint(self, index: str) -> str:
        """Returns the words of a statement that make it use an index; "" if none are needed."""
        ...

    def write(self, work: Callable[[SideSession], T]) -> T:
        """Runs one transaction, all or nothing; raises DamagedTablesError."""
        ...

    def read(self, work: Callable[[SideSession], T]) -> T:
        """Runs questions in one transaction; raises DamagedTablesError."""
        ...

    def is_empty(self, session: SideSession) -> bool:
        """Returns whether nothing was made there yet."""
        ...

    def reset(self) -> None:
        """Removes everything, also if it is damaged."""
        ...

    def claim(self) -> AbstractContextManager[bool]:
        """Claims the right to fill the tables for a block; False if another process has it."""
        ...

    def make_place(self, session: SideSession) -> None:
        """Makes the file or schema for the tables, if there is none yet."""
        ...

    def make_words(self, session: SideSession) -> None:
        """Makes the table of words."""
        ...

    def add_words(self, session: SideSession, rows: Iterable[tuple[int, int, list[str]]]) -> None:
        """Adds chunks: the number of the document, the number of the chunk, and its words."""
        ...

    def drop_words(self, session: SideSession, rows: Iterable[tuple[int, int]]) -> None:
        """Deletes the words of documents, each given by its number and how many chunks it has."""
        ...

    def with_words(
        self, session: SideSession, terms: Sequence[tuple[Sequence[str], bool]], others: Condition
    ) -> Condition:
        """Returns the condition that the document `docs.n` has every term.

        A term is a phrase, and whether its last word is only the beginning of one. `others` is the
        condition on everything else: how many documents that leaves decides how words are searched.
        """
        ...

    def make_vectors(self, session: SideSession) -> None:
        """Makes the table of vectors."""
        ...

    def add_vectors(
        self, session: SideSession, model: int, rows: Iterable[tuple[int, bytes]]
    ) -> None:
        """Adds vectors of a model: the number of the document, and its 32-bit floats as bytes."""
        ...

    def nearest(
        self, session: SideSession, model: int, target: bytes, others: Condition, limit: int
    ) -> list[tuple[int, bytes, float]] | None:
        """Returns the documents nearest to a vector, of those that `others` leaves, nearest first.

        Each has its vector and its distance, which may be less exact than the vector. Returns None
        if the database cannot compare vectors.
        """
        ...

    def select(
        self, statement: str, limits: SelectLimits
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Runs one SELECT of a user; returns the names of the columns, and the rows.

        Raises UsageError if it is wrong or does more than read these tables, and LimitError if it
        takes too much. Nothing that it does lasts, and what it did to its connection reaches no
        other statement.
        """
        ...

    def note(self) -> None:
        """Notes the present tables, so that `is_changed` can compare."""
        ...

    def is_changed(self) -> bool:
        """Returns whether another program may have written to the tables since they were noted."""
        ...

    def like(self, column: str, pattern: str) -> Condition:
        """Returns the condition that a column matches a pattern, in which * is any characters."""
        ...

    def close(self) -> None: ...

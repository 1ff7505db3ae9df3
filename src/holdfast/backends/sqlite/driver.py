"""The part of apsw that is used here, typed anew: apsw's own types need a newer Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import apsw

Row = tuple[Any, ...]


class Cursor(Protocol):
    """What a statement answers; it is read to its end before the next one runs."""

    @property
    def get(self) -> Any:
        """The value or row that there is, None if there is none."""
        ...

    def fetchall(self) -> list[Row]: ...
    def __iter__(self) -> Iterator[Row]: ...


Execute = Callable[..., Cursor]


class Connection(Protocol):
    """One connection; apsw keeps its prepared statements by their text."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statements: str, bindings: tuple[Any, ...] = ...) -> Cursor: ...
    def cursor(self) -> apsw.Cursor: ...
    def pragma(self, name: str, value: int | str | None = ...) -> Any: ...
    def config(self, op: int, *args: int) -> int: ...
    def limit(self, id: int, newval: int = ...) -> int: ...
    def enable_load_extension(self, enable: bool) -> None: ...
    def set_busy_handler(self, callable: Callable[[int], bool]) -> None: ...
    def data_version(self) -> int: ...
    def last_insert_rowid(self) -> int: ...
    def close(self) -> None: ...


def connect(name: str, flags: int) -> Connection:
    return cast(Connection, apsw.Connection(name, flags=flags | apsw.SQLITE_OPEN_NOFOLLOW))


def execute_of(connection: Connection) -> Execute:
    """Returns `execute` of a cursor that is kept: half the cost of a new cursor each time."""
    return cast(Execute, cast(Any, connection.cursor()).execute)

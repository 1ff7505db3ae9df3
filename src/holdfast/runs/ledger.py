"""Writes to another SQL database, once: a ledger row in the user's own transaction (rule 11).

The body writes through a connection that is the user's, any DB-API connection. In the same
transaction a row with the step's key and its result goes into the table `holdfast_ledger` there. If
the process dies between that commit and the record in the journal, the row says that it was done;
and a late owner that commits as well is refused by the row's primary key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from holdfast import codec
from holdfast.errors import UsageError, show_value
from holdfast.runs import values

_MAKE = (
    "CREATE TABLE IF NOT EXISTS holdfast_ledger "
    "(key VARCHAR(512) PRIMARY KEY, result TEXT NOT NULL)"
)
# The two ways in which drivers mark a place for a value.
_FIND = {
    "qmark": "SELECT result FROM holdfast_ledger WHERE key = ?",
    "format": "SELECT result FROM holdfast_ledger WHERE key = %s",
}
_ADD = {
    "qmark": "INSERT INTO holdfast_ledger (key, result) VALUES (?, ?)",
    "format": "INSERT INTO holdfast_ledger (key, result) VALUES (%s, %s)",
}


class Connection(Protocol):
    """A DB-API connection that is not in autocommit mode."""

    def cursor(self) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


def once(
    connection: Connection,
    key: str,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls `body(connection, …)` and commits with a ledger row, unless the row is there."""
    for name in ("cursor", "commit", "rollback"):
        if not callable(getattr(connection, name, None)):
            raise UsageError(f"txn_in takes a DB-API connection, found {show_value(connection)}")
    style = "qmark" if type(connection).__module__.startswith("sqlite3") else "format"
    cursor = connection.cursor()
    cursor.execute(_MAKE)
    connection.commit()
    cursor.execute(_FIND[style], (key,))
    row = cursor.fetchone()
    if row is not None:
        connection.rollback()
        return codec.decode(row[0].encode())
    try:
        result = values.encode(body(connection, *args, **kwargs))
        cursor.execute(_ADD[style], (key, result.decode()))
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    return codec.decode(result)

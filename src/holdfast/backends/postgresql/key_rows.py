"""The tables of a key store in a PostgreSQL database, which must not be the store's own.

`VACUUM FULL` removes deleted rows from the files of a table by writing them anew. The write-ahead
log still has them until its segments are used again, and so have archives of it, replicas and
backups of the server: the administrator of the server must let those expire.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.backends.key_rows import TABLES, Rows, Values
from holdfast.backends.postgresql.connection import (
    PostgresqlConnection,
    PostgresqlPool,
    in_schema,
    parse_url,
)
from holdfast.backends.postgresql.inspection import DATABASE
from holdfast.backends.postgresql.rows import lock_of
from holdfast.errors import UsageError

SCHEMA = "holdfast_keys"
_HAS_TABLES = """SELECT count(*) FROM pg_catalog.pg_class c
 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname IN ('keys', 'erased', 'notes', 'ledger') AND c.relkind = 'r'"""
_HAS_SCHEMA = "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = %s"


class PostgresqlKeyRows:
    """Tables in a schema of their own, `holdfast_keys` unless the URL names another."""

    path: str | None = None

    def __init__(self, url: str) -> None:
        server_url = parse_url(url)
        if server_url.schema == "holdfast":  # what a URL of a store means if it says nothing
            server_url = replace(server_url, schema=SCHEMA)
        self.shown = server_url.shown
        self._schema = server_url.schema
        self._pool = PostgresqlPool(server_url, writes=True)
        self._is_made = False

    def ask(self, statement: str, values: Values = ()) -> Rows | None:
        return self._pool.call(lambda connection: self._ask(connection, statement, values))

    def _ask(self, connection: PostgresqlConnection, statement: str, values: Values) -> Rows | None:
        if not self._is_made:
            self._is_made = connection.ask(_HAS_TABLES, (self._schema,)) == [(len(TABLES),)]
        return connection.ask(self._spelt(statement), values) if self._is_made else None

    def write(self, *statements: tuple[str, Values]) -> None:
        def work(connection: PostgresqlConnection) -> None:
            self._make(connection)
            with connection.transaction():
                # Also where the role's setting is off: a key that is lost after data was sealed
                # with it makes that data unreadable.
                connection.ask("SET LOCAL synchronous_commit = on")
                for statement, values in statements:
                    connection.ask(self._spelt(statement), values)

        self._pool.call(work, writes=True)

    def _make(self, connection: PostgresqlConnection) -> None:
        if self._is_made:
            return
        with connection.transaction():
            connection.ask("SELECT pg_advisory_xact_lock(%s)", (lock_of("keys", self._schema),))
            # An administrator may have made it: then the right to make one is not needed.
            if connection.ask(_HAS_SCHEMA, (self._schema,)) == [(0,)]:
                connection.ask(f'CREATE SCHEMA "{self._schema}"')
            for statement in TABLES:
                connection.ask(self._spelt(statement))
        self._is_made = True

    def scrub(self) -> None:
        self._pool.call(
            lambda connection: connection.ask(self._spelt("VACUUM (FULL) holdfast.keys"))
        )

    def check_apart(self, facts: dict[str, Any]) -> None:
        if "database" not in facts:
            return
        [(here,)] = self._pool.call(lambda connection: connection.ask(DATABASE))
        if facts["database"] == here:
            raise UsageError(
                f'the keys in "{self.shown}" are in the database of the store itself: a backup of '
                "it would have them too, and nothing could be erased from it",
                hint="CREATE DATABASE keys, on another server if there is one, and name that",
            )

    def close(self) -> None:
        self._pool.close()

    def _spelt(self, statement: str) -> str:
        return in_schema(statement.replace("?", "%s"), self._schema)

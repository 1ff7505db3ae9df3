"""Statements of a user, each on a connection of its own that is closed afterwards.

A READ ONLY transaction forbids little: a SELECT may call functions, and those can set parameters,
take locks of the session, end other sessions, or run programs for a superuser. So the server first
parses the statement as a view, which is rolled back, and what its tree calls and reads is checked:
only our tables, and only built-in functions that do nothing but return a value. Then it is run as
the query of a cursor, which only a query can be, and nothing is ever committed.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import psycopg

from holdfast.backends.derived_tables import SelectLimits
from holdfast.backends.postgresql.connection import PostgresqlConnection, is_lost
from holdfast.errors import UsageError

Answer = tuple[list[str], list[tuple[Any, ...]]]
_BATCH = 2_000
_GRACE_S = 5.0
"""How long after its limit the server has to end a statement itself before it counts as gone."""
_TIMEOUT_MS_MAX = (1 << 31) - 1
_OVER_BYTES = "holdfast: over the limit of bytes"

# Finds what the parse tree of a statement names by oid: functions, operators, aggregates, tables.
_USED = r"""
WITH made AS (SELECT 'pg_temp.holdfast_asked'::regclass::oid AS id),
tree AS (SELECT ev_action::text AS said FROM pg_catalog.pg_rewrite, made WHERE ev_class = made.id),
used AS (SELECT DISTINCT one[1] AS what, one[2]::oid AS id
 FROM tree, regexp_matches(said, ':(funcid|opfuncid|opno|aggfnoid|winfnoid|relid) (\d+)', 'g') one),
called AS (SELECT id FROM used WHERE what IN ('funcid', 'opfuncid', 'aggfnoid', 'winfnoid')
 UNION SELECT oprcode::oid FROM pg_catalog.pg_operator WHERE oid IN
  (SELECT id FROM used WHERE what = 'opno'))
SELECT 'calls ' || p.proname || '()' FROM called JOIN pg_catalog.pg_proc p ON p.oid = called.id
 WHERE p.pronamespace <> 'pg_catalog'::regnamespace
 OR (p.provolatile = 'v' AND NOT p.proname = ANY (%(answers)s))
 OR p.proname ~ '_to_xml|^txid_current|^pg_current_xact_id'
UNION ALL SELECT 'reads ' || c.oid::regclass::text FROM used, made, pg_catalog.pg_class c
 WHERE what = 'relid' AND c.oid = used.id AND c.oid <> made.id
 AND c.relnamespace <> (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
LIMIT 1"""
# These functions are volatile, but have no effect on anything.
_ANSWERS = [
    "random", "random_normal", "clock_timestamp", "timeofday", "gen_random_uuid", "uuidv4",
    "uuidv7", "pg_column_size", "pg_typeof",
]  # fmt: skip


def ask_apart(
    connection: PostgresqlConnection,
    statement: str,
    limits: SelectLimits,
    schema: str,
    role: str,
) -> Answer:
    """Runs a statement and returns its answer; the caller closes the connection afterwards."""
    until = monotonic() + limits.timeout_s
    connection.deadline = until + _GRACE_S
    connection.cancels = True
    asked = _Asked(connection, limits, schema, until)
    try:
        asked.check(statement)
        return asked.answer(statement, role)
    except psycopg.Error as error:
        if is_lost(error):
            raise
        said = error.diag.message_primary or type(error).__name__
        if error.sqlstate == "57014":
            raise limits.over_time() from None
        if _OVER_BYTES in said:
            raise limits.over_bytes() from None
        # The server's own answer to the statement, so another connection would not help.
        needs = f'role "{role}" needs USAGE on schema "{schema}", and SELECT on its tables'
        raise UsageError(
            f"the statement cannot be run: {said}", hint=needs if role else None
        ) from None


class _Asked:
    """One statement, under its limits."""

    def __init__(
        self, connection: PostgresqlConnection, limits: SelectLimits, schema: str, until: float
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._schema = schema
        self._until = until

    def check(self, statement: str) -> None:
        """Raises UsageError if a statement does more than read the tables."""
        self._begin("BEGIN")
        self._run(f"CREATE TEMP VIEW holdfast_asked AS SELECT 1 AS one FROM ({_bare(statement)}) x")
        found = self._connection.ask(_USED, {"answers": _ANSWERS, "schema": self._schema})
        for (what,) in found:
            raise UsageError(
                f"the statement cannot be run: it {what}",
                hint="sql reads the tables of the store, and calls functions that only answer",
            )
        self._run("ROLLBACK")

    def answer(self, statement: str, role: str) -> Answer:
        """Runs the statement in a read-only transaction, and returns its answer."""
        self._begin("BEGIN READ ONLY")
        if role:
            quoted = role.replace('"', '""')
            self._run(f'SET LOCAL ROLE "{quoted}"')
        # Declared alone first: with an unbalanced parenthesis it could otherwise end our query and
        # begin another one.
        self._run(f"DECLARE holdfast_whole NO SCROLL CURSOR FOR {_bare(statement)}")
        self._run("CLOSE holdfast_whole")
        self._run(
            f"DECLARE holdfast_asked NO SCROLL CURSOR FOR {_counted(statement, self._limits)}"
        )
        rows: list[tuple[Any, ...]] = []
        most = self._limits.rows + 1
        while True:
            self._limit_time()
            wanted = min(_BATCH, most - len(rows))
            names, found = self._run(f"FETCH FORWARD {wanted} FROM holdfast_asked")
            rows += [row[:-1] for row in found]
            if len(rows) == most:
                raise self._limits.over_rows()
            if len(found) < wanted:
                return names[:-1], rows

    def _begin(self, begin: str) -> None:
        self._run(begin)
        self._run(f'SET LOCAL search_path TO "{self._schema}"')
        self._limit_time()

    def _limit_time(self) -> None:
        """Makes the server end the next statement when the time is over."""
        left_ms = int((self._until - monotonic()) * 1000)
        if left_ms <= 0:
            raise self._limits.over_time()
        self._run(f"SET LOCAL statement_timeout TO {min(left_ms, _TIMEOUT_MS_MAX)}")

    def _run(self, statement: str) -> Answer:
        """Runs one statement; the binary protocol refuses two, and no text in it is a parameter."""
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute(statement.encode())
            if cursor.description is None:
                return [], []
            return [one.name for one in cursor.description], cursor.fetchall()


def _bare(statement: str) -> str:
    """Returns a statement without semicolons at its end, with a line break that ends a comment."""
    return statement.rstrip("; \t\r\n") + "\n"


def _counted(statement: str, limits: SelectLimits) -> str:
    """Returns a query that stops on the server when its rows have too many bytes.

    If it were counted here, a value that is too large would be received as a whole first.
    """
    row = '"holdfast row"'
    size = '"holdfast bytes"'
    return (
        f"SELECT * FROM (SELECT {row}.*, sum(octet_length({row}::text)) "
        f"OVER (ROWS UNBOUNDED PRECEDING) AS {size} FROM ({_bare(statement)}) AS {row}) AS counted "
        f"WHERE CASE WHEN {size} > {limits.bytes} "
        f"THEN ('{_OVER_BYTES}' || left({size}::text, 0))::integer ELSE 1 END = 1"
    )

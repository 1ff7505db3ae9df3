"""Derived tables on the server, in a schema of their own: `holdfast_query_` and eight digits.

Each application has its own schema, so that dropping it drops nothing else. Words are kept as
`tsvector`, which is made here and not by the server's own dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from hashlib import sha256
from struct import unpack
from typing import Any, TypeVar

import psycopg

from holdfast.backends.derived_tables import (
    Condition,
    DamagedTablesError,
    SelectLimits,
    SideSession,
    Values,
)
from holdfast.backends.postgresql.connection import (
    PostgresqlCheckout,
    PostgresqlConnection,
)
from holdfast.backends.postgresql.rows import lock_of
from holdfast.backends.postgresql.statements import ask_apart

T = TypeVar("T")
_DAMAGE = frozenset(("42P01", "42703", "3F000", "XX001", "XX002", "42P07", "42804"))
_SCHEMAS = "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = ?"


class _Session:
    def __init__(self, connection: PostgresqlConnection) -> None:
        self._connection = connection

    def ask(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self._connection.ask(_marked(statement), list(values))

    def many(self, statement: str, rows: Iterable[Values]) -> None:
        listed = [list(row) for row in rows]
        if listed:
            with self._connection.cursor() as cursor:
                cursor.executemany(_marked(statement), listed)  # pyright: ignore[reportArgumentType]


def _marked(statement: str) -> str:
    """Returns a statement with psycopg's parameters; in ours "?" stands for nothing else."""
    return statement.replace("%", "%%").replace("?", "%s")


class PostgresqlSide:
    """Tables in the server's own database, filled by one process at a time."""

    key = "BIGINT PRIMARY KEY"
    text = 'TEXT COLLATE "C"'
    whole = "BIGINT"
    real = "DOUBLE PRECISION"
    json = "JSONB"

    def __init__(self, checkout: PostgresqlCheckout, what: str) -> None:
        self._checkout = checkout
        digits = sha256(checkout.application.encode()).hexdigest()[:8]
        self.schema = f"{checkout.server_url.schema[:40]}_{what}_{digits}"
        self.place = f"schema {self.schema}"
        self._lock = lock_of(what, checkout.application)

    def hint(self, index: str) -> str:
        return ""  # the server has statistics

    def write(self, work: Callable[[SideSession], T]) -> T:
        def run(connection: PostgresqlConnection) -> T:
            with self._errors(), connection.transaction():
                connection.ask("SELECT pg_advisory_xact_lock(%s)", (self._lock,))
                connection.ask(f'SET LOCAL search_path TO "{self.schema}"')
                return work(_Session(connection))

        return self._checkout.call(run)

    def read(self, work: Callable[[SideSession], T]) -> T:
        def run(connection: PostgresqlConnection) -> T:
            with self._errors(), connection.transaction():
                connection.ask(f'SET LOCAL search_path TO "{self.schema}"')
                return work(_Session(connection))

        return self._checkout.pool.call(run)

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except psycopg.Error as error:
            if error.sqlstate in _DAMAGE:
                raise DamagedTablesError(error.diag.message_primary or error.sqlstate) from error
            raise

    def is_empty(self, session: SideSession) -> bool:
        return session.ask(_SCHEMAS, [self.schema]) == [(0,)]

    def reset(self) -> None:
        self.write(lambda session: session.ask(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE'))

    @contextmanager
    def claim(self) -> Generator[bool]:
        """Always yields True: the lock of the transaction is the right to fill the tables.

        A process that comes second waits for that lock, and then finds the position moved on.
        """
        yield True

    def close(self) -> None:
        """Does nothing: the connections belong to the store."""

    # --- for outside tools -----------------------------------------------------------------------

    def select(
        self, statement: str, limits: SelectLimits
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        with self._checkout.pool.apart() as connection:
            return ask_apart(
                connection, statement, limits, self.schema, self._checkout.server_url.sql_role
            )

    def note(self) -> None:
        """Does nothing: other programs may only SELECT from these tables."""

    def is_changed(self) -> bool:
        return False

    # --- words -----------------------------------------------------------------------------------

    def make_place(self, session: SideSession) -> None:
        session.ask(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"')

    def make_words(self, session: SideSession) -> None:
        session.ask("CREATE TABLE words (n BIGINT, chunk BIGINT, said TSVECTOR)")
        session.ask("CREATE INDEX words_said ON words USING gin (said)")
        session.ask("CREATE INDEX words_n ON words (n)")

    def add_words(self, session: SideSession, rows: Iterable[tuple[int, int, list[str]]]) -> None:
        session.many(
            "INSERT INTO words (n, chunk, said) VALUES (?, ?, (?::text)::tsvector)",
            [(n, chunk, _vector(words)) for n, chunk, words in rows],
        )

    def drop_words(self, session: SideSession, rows: Iterable[tuple[int, int]]) -> None:
        session.many("DELETE FROM words WHERE n = ?", [(n,) for n, chunks in rows if chunks])

    def with_words(
        self, session: SideSession, terms: Sequence[tuple[Sequence[str], bool]], others: Condition
    ) -> Condition:
        """Returns the condition; each term may be in another chunk. The server plans the search."""
        each = "docs.n IN (SELECT n FROM words WHERE said @@ (?::text)::tsquery)"
        return " AND ".join([each] * len(terms)), [_tsquery(*term) for term in terms]

    # --- vectors ---------------------------------------------------------------------------------
    #
    # Plain rows. If the extension `vector` (pgvector) is installed when the table is made, a second
    # column has each vector in its type, and the server compares them. The extension is never
    # installed from here, because that would change the whole database.

    def make_vectors(self, session: SideSession) -> None:
        home = _home_of_vectors(session)
        near = "" if home is None else f', near "{home}".vector'
        session.ask(f"CREATE TABLE vectors (model BIGINT, n BIGINT, vector BYTEA{near})")
        session.ask("CREATE INDEX vectors_n ON vectors (n)")

    def add_vectors(
        self, session: SideSession, model: int, rows: Iterable[tuple[int, bytes]]
    ) -> None:
        home = self._home(session)
        if home is None:
            session.many(
                "INSERT INTO vectors (model, n, vector) VALUES (?, ?, ?)",
                [(model, n, vector) for n, vector in rows],
            )
            return
        session.many(
            "INSERT INTO vectors (model, n, vector, near) "
            f'VALUES (?, ?, ?, (?::text)::"{home}".vector)',
            [(model, n, vector, _shown_vector(vector)) for n, vector in rows],
        )

    def nearest(
        self, session: SideSession, model: int, target: bytes, others: Condition, limit: int
    ) -> list[tuple[int, bytes, float]] | None:
        home = self._home(session)
        if home is None:
            return None
        found = session.ask(
            f'SELECT docs.n, vectors.vector, vectors.near OPERATOR("{home}".<->) '
            f'(?::text)::"{home}".vector AS apart FROM docs JOIN vectors ON vectors.n = docs.n '
            f"WHERE vectors.model = {int(model)} AND {others[0]} ORDER BY apart LIMIT {int(limit)}",
            [_shown_vector(target), *others[1]],
        )
        return [(n, bytes(vector), apart) for n, vector, apart in found]

    def _home(self, session: SideSession) -> str | None:
        """Returns the schema of the extension, if the table was made with it and it exists."""
        made = session.ask(
            "SELECT 1 FROM pg_catalog.pg_attribute WHERE attrelid = 'vectors'::regclass "
            "AND attname = 'near' AND NOT attisdropped"
        )
        return _home_of_vectors(session) if made else None

    def like(self, column: str, pattern: str) -> Condition:
        escaped = "".join(f"\\{one}" if one in "%_\\" else one for one in pattern)
        return f"{column} LIKE ?", [escaped.replace("*", "%")]


def _home_of_vectors(session: SideSession) -> str | None:
    """Returns the schema that the extension for vectors is in; None if it is not installed."""
    found = session.ask(
        "SELECT space.nspname FROM pg_catalog.pg_extension AS one JOIN pg_catalog.pg_namespace "
        "AS space ON space.oid = one.extnamespace WHERE one.extname = 'vector'"
    )
    return str(found[0][0]) if found else None


def _shown_vector(kept: bytes) -> str:
    """Returns a vector as text in the syntax of the extension."""
    return str(list(unpack(f"<{len(kept) // 4}f", kept)))


def _vector(words: Sequence[str]) -> str:
    """Returns words with their places in the syntax of `tsvector`; no word has quotes."""
    places: dict[str, list[str]] = {}
    for at, word in enumerate(words, 1):
        places.setdefault(word, []).append(str(at))
    return " ".join(f"'{word}':{','.join(at)}" for word, at in places.items())


def _tsquery(words: Sequence[str], is_prefix: bool) -> str:
    return " <-> ".join(f"'{word}'" for word in words) + ":*" * is_prefix

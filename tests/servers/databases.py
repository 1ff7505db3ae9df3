"""The two databases of a shared PostgreSQL server that the contract is tested in.

In both, the function `now_us` of the backend's schema, which is the server's clock, is replaced. In
"fake" it answers with a time that stands still until a FakeClock is moved; in "real" it is the
server's clock, moved on by what `pass_time` was told. A process that a test starts finds the server
through the environment: it must not start one of its own.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from holdfast.testing import FakeClock
from tests.servers.postgresql import server

_VARIABLE = "HOLDFAST_TEST_POSTGRESQL_{}"
_CLOCK = """CREATE TABLE holdfast.test_clock (us bigint NOT NULL);
INSERT INTO holdfast.test_clock VALUES (0);
CREATE OR REPLACE FUNCTION holdfast.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT {start} + us FROM holdfast.test_clock $$"""
_START = {
    "fake": "0",
    "real": "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
}


class Database:
    """One database, and a connection behind the backend's back."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._url = url
        self._line = psycopg.connect(url, autocommit=True)

    def url(self, **options: str | int | float) -> str:
        return self._url + "".join(f"&{name}={value}" for name, value in options.items())

    def rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        cursor = self._line.execute(statement, values)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []

    def follow(self, clock: FakeClock) -> None:
        """Sets the server's clock to the fake one, and moves it with every `advance` from now on.

        `clock.set`, a jump of this host's wall clock, does not reach the server.
        """
        elapsed_us = clock.now_us()
        self._set(elapsed_us)
        advance = FakeClock.advance

        def moved(seconds: float) -> None:
            nonlocal elapsed_us
            advance(clock, seconds)
            elapsed_us += round(seconds * 1_000_000)
            self._set(elapsed_us)

        clock.advance = moved  # type: ignore[method-assign]

    def pass_time(self, seconds: float) -> None:
        moved = "UPDATE holdfast.test_clock SET us = us + %s"
        self.rows(moved, (round(seconds * 1_000_000),))

    def _set(self, us: int) -> None:
        self.rows("UPDATE holdfast.test_clock SET us = %s", (us,))


@cache
def database(version: int, kind: str) -> Database:
    """Returns the database, made with its schema and its clock when it is first asked for."""
    variable = _VARIABLE.format(f"{version}_{kind}".upper())
    url = os.environ.get(variable)
    if url is None:
        from holdfast.backends.postgresql import PostgresqlBackend

        running = server(version)
        running.create_database(kind)
        url = running.url(kind)
        PostgresqlBackend(url, clock=FakeClock()).close()
        running.psql(kind, _CLOCK.format(start=_START[kind]))
        os.environ[variable] = url
    return Database(url)

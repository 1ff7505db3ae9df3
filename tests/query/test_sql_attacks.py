"""What a statement of `hf.search.sql` may not do to the server, the store, or who waits for it."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import Store
from holdfast.backends import derived_file
from holdfast.backends.postgresql.connection import PostgresqlConnection
from holdfast.errors import LimitError, UnavailableError, UsageError
from holdfast.testing.trial import PATIENCE_S
from tests.record.stores import new_url
from tests.servers import postgresql

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT count(*) FROM n"
ATTACKS = (
    "SET client_encoding = 'LATIN1'",
    "SELECT set_config('client_encoding', 'LATIN1', false)",
    "SELECT ('client_encoding').set_config('LATIN1', false)",
    "SET ROLE postgres",
    "SELECT set_config('role', 'tester', false)",
    "SET synchronous_commit = off",
    "SELECT set_config('synchronous_commit', 'off', false)",
    "SELECT * FROM (SELECT set_config('statement_timeout', '1', false)) AS hidden",
    "LOCK TABLE holdfast.events",
    "NOTIFY shop, 'x'",
    "SELECT pg_notify('shop', 'x')",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_advisory_lock(n) FROM generate_series(1, 3) AS n",
    "SELECT id FROM tasks ORDER BY pg_advisory_lock(2)",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity",
    "SELECT pg_sleep(1000)",
    "SELECT lo_import('/etc/passwd')",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT query_to_xml('SELECT 1', true, true, '')",
    "SELECT table_to_xml('pg_authid'::regclass, true, true, '')",
    "SELECT nextval('s')",
    "SELECT * FROM pg_authid",
    "SELECT payload FROM holdfast.events",
    "SELECT * INTO taken FROM tasks",
    "SELECT id FROM tasks FOR UPDATE",
    "WITH gone AS (DELETE FROM tasks RETURNING id) SELECT * FROM gone",
    "EXPLAIN ANALYZE SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1) AS one, (SELECT 2",
    "COMMIT",
    "DO $$ BEGIN END $$",
    "CALL nothing()",
    "COPY (SELECT 1) TO STDOUT",
)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(new_url("postgresql", tmp_path)) as hf:
        hf.conversation("c").tasks.add("write", id="t1")
        yield hf


def _sessions(hf: Store) -> set[tuple[Any, ...]]:
    """The server processes of the store's own connections, and what each has set."""
    pool: Any = hf._log._backend._checkout.pool  # pyright: ignore
    ask = (
        "SELECT pg_backend_pid(), current_setting('client_encoding'), current_user::text, "
        "current_setting('synchronous_commit'), current_setting('statement_timeout'), "
        "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"
    )
    return {tuple(one.ask(ask)[0]) for one in pool._idle}


def test_no_statement_reaches_the_sessions_of_the_store(shop: Store, tmp_path: Path) -> None:
    """The superuser is who asks: nothing but the one who checks the statement is in the way."""
    shop.search.sql("SELECT 1")
    before = _sessions(shop)
    assert len(before) == 1
    for statement in (*ATTACKS, f"COPY tasks TO PROGRAM 'touch {tmp_path}/ran'"):
        with pytest.raises(UsageError):
            shop.search.sql(statement)
        assert _sessions(shop) == before, statement
    assert not (tmp_path / "ran").exists()
    shop.team("red").set("name", "Zoë")
    with holdfast.open(shop.url) as other:
        assert other.team("red").get("name") == "Zoë"
        assert other.check().ok
    assert shop.search.sql("SELECT id FROM tasks").rows == [("t1",)]


def test_ordinary_questions_are_answered(shop: Store) -> None:
    answered: dict[str, list[tuple[Any, ...]]] = {
        "SELECT id, id FROM tasks": [("t1", "t1")],
        "SELECT count(*), count(*) FROM tasks": [(1, 1)],
        "SELECT upper(title) FROM tasks WHERE id LIKE 't%' -- a note": [("WRITE",)],
        "VALUES (1, 'a');": [(1, "a")],
        "WITH one AS (SELECT id FROM tasks) SELECT id FROM one ORDER BY 1": [("t1",)],
        "SELECT random() < 2, clock_timestamp() > now()": [(True, True)],
        "SELECT tags ->> 0, '{1,2}'::int[], sum(priority) OVER () FROM tasks": [(None, [1, 2], 0)],
        "SELECT 'é'::text": [("é",)],
        "SELECT id FROM tasks WHERE id = 'none'": [],
    }
    for statement, rows in answered.items():
        assert shop.search.sql(statement).rows == rows, statement
    assert shop.search.sql("SELECT id AS a, 1 AS b FROM tasks LIMIT 0").columns == ("a", "b")


def test_a_connection_that_somebody_changed_is_not_used_again(shop: Store) -> None:
    """A pooler may hand out a session that another program has set to its taste."""
    pool: Any = shop._log._backend._checkout.pool  # pyright: ignore
    changes = (
        "SET client_encoding = 'LATIN1'",
        "SET synchronous_commit = off",
        "SET default_transaction_isolation = 'serializable'",
        "SET SESSION AUTHORIZATION hf_nobody",
        "CREATE SCHEMA IF NOT EXISTS odd",
        "SET search_path = odd, pg_catalog",
    )
    with psycopg.connect(shop.url.partition("&application")[0], autocommit=True) as client:
        client.execute("DROP ROLE IF EXISTS hf_nobody")
        client.execute("CREATE ROLE hf_nobody")
        for number, change in enumerate(changes):
            pool.call(lambda one, change=change: one.execute(change))
            shop.team("red").set("name", f"Zoë {number}")
            with holdfast.open(shop.url) as other:
                assert other.team("red").get("name") == f"Zoë {number}"
        client.execute("DROP ROLE hf_nobody")
        client.execute("DROP SCHEMA odd")


def test_a_search_path_that_hides_the_catalog_is_set_right(tmp_path: Path) -> None:
    url = new_url("postgresql", tmp_path)
    holdfast.open(url).close()
    with psycopg.connect(url.partition("&application")[0], autocommit=True) as client:
        client.execute("CREATE SCHEMA IF NOT EXISTS hides")
        client.execute(
            "CREATE OR REPLACE FUNCTION hides.unnest(text[]) RETURNS SETOF text LANGUAGE sql "
            "AS 'SELECT ''team/other'''"
        )
        try:
            with holdfast.open(f"{url}&options=-csearch_path%3Dhides,pg_catalog") as hf:
                hf.team("red").set("a", 1)
                assert hf.team("red").get("a") == 1
                hf.search.sql("SELECT 1")
        finally:
            client.execute("DROP SCHEMA hides CASCADE")


# --- limits ---------------------------------------------------------------------------------------


def test_time_rows_and_bytes_have_limits(hf: Store) -> None:
    """An endless statement ended never, and a large one took all memory that there was."""
    hf.conversation("c").tasks.add("write", id="t1")
    numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    with pytest.raises(LimitError, match=r"0\.2 s"):
        hf.search.sql(ENDLESS, timeout=0.2)
    with pytest.raises(LimitError, match="100000 rows"):
        hf.search.sql(numbers)
    with pytest.raises(LimitError, match="3 rows"):
        hf.search.sql(f"{numbers} LIMIT 4", max_rows=3)
    assert hf.search.sql(f"{numbers} LIMIT 3", max_rows=3).rows == [(1,), (2,), (3,)]
    large = "replace('abcdefghij', 'a', title) FROM tasks"
    hf.conversation("c").tasks.add("x" * 50_000, id="t2")
    with pytest.raises(LimitError, match="60000 bytes"):
        hf.search.sql(f"SELECT a, b FROM (SELECT title a, {large}), (SELECT title b FROM tasks)"
               .replace("tasks)", "tasks) AS one", 1) + " AS two", max_bytes=60_000)  # fmt: skip
    assert len(hf.search.sql("SELECT title FROM tasks", max_bytes=60_000).rows) == 2
    for name in ("timeout", "max_rows", "max_bytes"):
        wrong: Any = {name: "many"}
        with pytest.raises(UsageError, match=name):
            hf.search.sql("SELECT 1", **wrong)
    assert hf.search.sql("SELECT count(*) FROM tasks").rows == [(2,)]


HUGE = {
    "sqlite": "SELECT length(hex(zeroblob(400000000)))",
    "postgresql": "SELECT repeat('x', 400000000)",
}
_ASK = """
import resource, sys, holdfast
with holdfast.open(sys.argv[1]) as hf:
    hf.search.sql("SELECT 1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for statement in sys.argv[2:]:
        try:
            hf.search.sql(statement, timeout=1)
        except holdfast.LimitError:
            continue
        print("answered", statement)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_large_answer_does_not_fill_the_memory(backend: str, tmp_path: Path) -> None:
    url = new_url(backend, tmp_path)
    sorted_ = (
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n), "
        "m AS MATERIALIZED (SELECT x, x || '{}' FROM n) SELECT * FROM m a, m b ORDER BY 2, 1"
    ).format("y" * 2000)
    command = [sys.executable, "-c", _ASK, url, HUGE[backend], sorted_]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    [grown_mb] = done.stdout.split()
    assert int(grown_mb) < 300


_INTERRUPTED = """
import signal, sys, holdfast
# A background job of a shell ignores SIGINT, and so would a Python that inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
with holdfast.open(sys.argv[1]) as hf:
    hf.search.sql("SELECT 1")
    try:
        print("asking", flush=True)
        hf.search.sql(sys.argv[2], timeout=3000)
    except KeyboardInterrupt:
        print("interrupted", hf.search.sql("SELECT 1").rows, flush=True)
        sys.stdin.read()
"""


def test_sqlite_looks_at_the_clock_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """One instruction may take a millisecond: 30,000 of them are not run without many looks."""
    times = itertools.count(0.0, 0.1)
    monkeypatch.setattr(derived_file, "monotonic", lambda: next(times))
    numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 3000) "
    with holdfast.open("memory:") as hf, pytest.raises(LimitError, match="1 s and was ended"):
        hf.search.sql(numbers + "SELECT max(length(randomblob(10))) FROM n", timeout=1)


@contextmanager
def _asking(url: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _INTERRUPTED, url, ENDLESS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "asking\n"
        yield child
        assert child.stdin is not None
        child.stdin.close()
    assert child.returncode == 0


@pytest.mark.parametrize("backend", ["memory", "files", "postgresql"])
def test_ctrl_c_ends_a_question(backend: str, tmp_path: Path) -> None:
    """Also on the server: its process does not go on for somebody who is not there any more."""
    with _asking(new_url(backend, tmp_path)) as child:
        running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'FETCH%' " \
            "AND state = 'active' AND pid <> pg_backend_pid()"  # fmt: skip
        server = postgresql.server(postgresql.NEWEST) if backend == "postgresql" else None
        until = monotonic() + PATIENCE_S
        while server is not None and server.psql("record", running).strip() != "1":
            assert monotonic() < until, "nothing is asked"
        child.send_signal(signal.SIGINT)
        assert child.stdout is not None
        assert child.stdout.readline() == "interrupted [(1,)]\n"
        assert server is None or server.psql("record", running).strip() == "0"


def test_a_question_has_a_role_of_its_own_where_one_is_named(tmp_path: Path) -> None:
    url = new_url("postgresql", tmp_path)
    with holdfast.open(url) as hf:
        hf.conversation("c").tasks.add("write", id="t1")
        schema = hf.search.tables().removeprefix("schema ")
    with psycopg.connect(url.partition("&application")[0], autocommit=True) as client:
        names: Any = schema
        client.execute("DROP ROLE IF EXISTS hf_asks")
        client.execute("CREATE ROLE hf_asks")
        try:
            with holdfast.open(f"{url}&sql_role=hf_asks") as hf:
                with pytest.raises(UsageError, match="hf_asks"):
                    hf.search.sql("SELECT id FROM tasks")
                client.execute(f"GRANT USAGE ON SCHEMA {names} TO hf_asks")
                client.execute(f"GRANT SELECT ON {names}.tasks TO hf_asks")
                assert hf.search.sql("SELECT id, current_user::text FROM tasks").rows == [
                    ("t1", "hf_asks")
                ]
            nobody = pytest.raises(UsageError, match="hf_nobody_at_all")
            with holdfast.open(f"{url}&sql_role=hf_nobody_at_all") as hf, nobody:
                hf.search.sql("SELECT 1")
            with pytest.raises(UsageError, match="sql_role"):
                holdfast.open(f"{url}&sql_role=")
        finally:
            client.execute("DROP OWNED BY hf_asks")
            client.execute("DROP ROLE hf_asks")


def test_a_server_that_goes_away_during_a_question_is_named(
    shop: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = PostgresqlConnection.ask

    def cut(self: PostgresqlConnection, statement: str, values: Any = ()) -> Any:
        if "pg_rewrite" in statement:
            pid = self.info.backend_pid
            postgresql.server(postgresql.NEWEST).psql(
                "record", f"SELECT pg_terminate_backend({pid})"
            )
        return ask(self, statement, values)

    shop.search.sql("SELECT 1")
    monkeypatch.setattr(PostgresqlConnection, "ask", cut)
    with pytest.raises(UnavailableError):
        shop.search.sql("SELECT 1")

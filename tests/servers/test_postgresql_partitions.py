"""The schema can be partitioned: its keys begin with application and stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast.backends.protocol import START
from tests.servers import postgresql

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "one-server-and-beyond.md"
KEYS = """SELECT c.relname, array_agg(a.attname::text ORDER BY k.n)
 FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
 JOIN pg_namespace s ON s.oid = c.relnamespace AND s.nspname = 'holdfast'
 CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (column_, n)
 JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.column_
 WHERE i.indisprimary GROUP BY c.relname"""
STREAMED = """SELECT table_name::text FROM information_schema.columns
 WHERE table_schema = 'holdfast' AND column_name = 'stream' AND table_name <> 'history'"""
TABLES = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'holdfast'"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    running = postgresql.server(postgresql.NEWEST)
    name = request.node.name[:60]
    running.create_database(name)
    return running.url(name)


@pytest.fixture
def line(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as line:
        yield line


def test_every_primary_key_begins_with_application_and_stream(
    url: str, line: psycopg.Connection
) -> None:
    holdfast.open(url).close()
    keys = dict(line.execute(KEYS).fetchall())
    tables = {name for (name,) in line.execute(TABLES).fetchall()}
    streamed = {name for (name,) in line.execute(STREAMED).fetchall()}
    assert tables == keys.keys()
    assert streamed == {"events", "streams"}
    for table in tables - {"migrations"}:  # the schema's own, not a store's
        assert keys[table][0] == "application", table
        assert table not in streamed or keys[table][1] == "stream", table


def test_a_store_in_use_is_partitioned_by_application(url: str, line: psycopg.Connection) -> None:
    """With the statements that the guide has, word for word."""
    with holdfast.open(url) as store:
        store.conversation("c1").set("n", 1, key="k", checkpoint="before")
        [statements] = re.findall(r"```sql\n(BEGIN;.*?)```", GUIDE.read_text(), re.DOTALL)
        line.execute(statements)
        store.conversation("c1").set("n", 2)
        assert store.conversation("c1").set("n", 1, key="k") == 1
        assert store.conversation("c1").at("before") == {"n": 1}
        assert store.check().findings == []
        assert len(list(store.follow(as_events=True, after=START, timeout_s=0))) == 2
    with holdfast.open(f"{url}&application=shop") as shop:
        for n in range(5):
            shop.conversation(f"c{n}").append("said", n)
        assert [change.new for change in shop.follow("conversation/c3", after=0, timeout_s=0)] == [
            [3]
        ]
        assert shop.check().findings == []
    where = "SELECT tableoid::regclass::text, count(*)::int FROM holdfast.events GROUP BY 1"
    rows = dict(line.execute(where).fetchall())
    assert rows == {"holdfast.events_rest": 2, "holdfast.events_shop": 5}
    assert line.execute("SELECT count(*) FROM holdfast.history").fetchone() == (7,)

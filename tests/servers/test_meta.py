"""Stores of format 1 on servers, which knew no meta.

PostgreSQL raises one when it is opened for writing, Redis when its first event with meta comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import UnavailableError
from holdfast.backends.postgresql import PostgresqlBackend, opening
from holdfast.backends.postgresql.connection import in_schema
from holdfast.backends.redis import backend as redis_backend
from holdfast.clock import SystemClock
from holdfast.errors import FormatError
from holdfast.store import Meta
from tests.servers import postgresql, redis

META = Meta(source="import", trust="low")


def _commit(store: holdfast.Store, value: int) -> None:
    with store.commit(meta=META) as tx:
        tx.scope(store.team("red")).set("n", value)


# --- PostgreSQL ---------------------------------------------------------------------------------


@pytest.fixture(params=postgresql.installations())
def old_schema(request: pytest.FixtureRequest) -> str:
    """The URL of a database whose schema has format 1, as an earlier holdfast made it."""
    running = postgresql.server(request.param)
    name = request.node.name.replace("[", "_").rstrip("]")[-60:]
    running.create_database(name)
    url = running.url(name)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA holdfast")
        connection.execute(in_schema(opening.file_text(1), "holdfast").encode())
        done = "INSERT INTO holdfast.migrations (number, digest) VALUES (1, %s)"
        connection.execute(done, (opening.digest_of(1),))
    return url


def test_a_schema_of_format_1_is_raised_when_it_is_opened_for_writing(old_schema: str) -> None:
    _add_store(old_schema, "default")
    with holdfast.open(old_schema, read_only=True) as reader:
        assert reader._log.describe()["format"] == 1
        with holdfast.open(old_schema) as writer:
            assert writer._log.describe()["format"] == 2
            writer.team("red").set("n", 1)
            _commit(writer, 2)
            for store in (reader, writer):
                assert [event.meta for event in store.team("red").history()] == [None, META]
                assert store.check(read_all=True).ok
        assert reader._log.describe()["format"] == 2
    with psycopg.connect(old_schema) as connection:
        found = connection.execute("SELECT number FROM holdfast.migrations ORDER BY 1").fetchall()
        assert found == [(1,), (2,)]
        metas = connection.execute("SELECT meta FROM holdfast.history ORDER BY revision").fetchall()
        assert [meta is None for (meta,) in metas] == [True, False]


def _add_store(url: str, application: str) -> None:
    """Begins a store in a schema of format 1, as an earlier holdfast did."""
    with psycopg.connect(url) as connection:
        connection.execute(
            """INSERT INTO holdfast.stores SELECT %s, %s, 1, holdfast.now_us(), system_identifier,
             holdfast.timeline(), 0 FROM pg_control_system()""",
            (application, f"store-{application}"),
        )


def test_a_handle_that_reads_format_1_reads_everything_after_it_was_raised(
    old_schema: str,
) -> None:
    """Each of the ways to read meets the first row that fails its checksum without meta."""
    looks: list[Any] = [
        lambda store: [event.meta for event in store.events()],
        lambda store: [event.meta for event in store.events(newest_first=True)],
        lambda store: [event.meta for event in store.team("red").history()],
        lambda store: [
            one.meta and META for [one] in store._log._backend.read_many(["team/red"], limit=1)
        ],
    ]
    readers: list[tuple[PostgresqlBackend, holdfast.Store]] = []
    for number in range(len(looks)):
        _add_store(old_schema, f"a{number}")
        url = f"{old_schema}&application=a{number}"
        backend = PostgresqlBackend(url, clock=SystemClock(), read_only=True)
        assert backend._schema_format.number == 1
        readers.append((backend, holdfast.open(backend)))
    for number, (look, (backend, reader)) in enumerate(zip(looks, readers, strict=True)):
        with holdfast.open(f"{old_schema}&application=a{number}") as writer:
            _commit(writer, 1)
        assert look(reader) == [META]
        assert backend._schema_format.number == 2
        reader.close()


def test_damage_in_format_1_is_damage(old_schema: str) -> None:
    """A failed checksum asks for the format, and is told as what it is if that did not change."""
    _add_store(old_schema, "default")
    with psycopg.connect(old_schema) as connection:
        connection.execute("INSERT INTO holdfast.streams VALUES ('default', 'team/red', 1)")
        connection.execute(
            """INSERT INTO holdfast.events VALUES ('default', 'team/red', 1, 4097, 0, 1, 'changed',
             'x', NULL, NULL, NULL, 0, '', '[]')"""
        )
    with (
        holdfast.open(old_schema, read_only=True) as store,
        pytest.raises(holdfast.CorruptError, match="fails its checksum"),
    ):
        list(store.events())


def test_a_role_that_may_not_raise_the_format_is_told_who_must(old_schema: str) -> None:
    _add_store(old_schema, "default")
    with psycopg.connect(old_schema) as connection:
        role = f"r{abs(hash(old_schema))}"
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{postgresql.PASSWORD}'")
        connection.execute(f"GRANT USAGE ON SCHEMA holdfast TO {role}")
        rights = "SELECT, INSERT, UPDATE, DELETE"
        connection.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA holdfast TO {role}")
        connection.execute(f"GRANT EXECUTE ON FUNCTION pg_control_system TO {role}")
    url = f"{old_schema}&user={role}&password={postgresql.PASSWORD}"
    with pytest.raises(UnavailableError, match=f'which role "{role}" may not do') as raised:
        holdfast.open(url)
    assert "as the role that owns its tables" in str(raised.value)
    with holdfast.open(url, read_only=True) as store:
        assert store.team("red").state == {}
    holdfast.open(old_schema).close()
    with holdfast.open(url) as store:
        _commit(store, 4)
        assert store.team("red").get("n") == 4


def test_a_new_schema_has_the_format_of_today(old_schema: str) -> None:
    with holdfast.open(f"{old_schema}&schema=fresh") as store:
        assert store._log.describe()["format"] == 2
        _commit(store, 1)
    with psycopg.connect(old_schema) as connection:
        connection.execute("INSERT INTO fresh.migrations (number, digest) VALUES (3, 'x')")
    with pytest.raises(FormatError, match="has format 3"):
        holdfast.open(f"{old_schema}&schema=fresh")


# --- Redis --------------------------------------------------------------------------------------


@pytest.fixture(params=list(redis.installations()))
def old_store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Any, str]]:
    """The URL of a store of format 1, a client of its server, and the store's own key."""
    running = redis.server(request.param)
    name = request.node.name.replace("[", "_").rstrip("]")[-60:]
    url = running.url(application=name)
    monkeypatch.setattr(redis_backend, "FORMAT", 1)
    holdfast.open(url).close()
    monkeypatch.undo()
    with running.client() as client:
        yield url, client, f"holdfast:{{{name}}}"


def _check_both(one: holdfast.Store, other: holdfast.Store) -> None:
    """Two handles of a store of format 1: one raises it, the other reads and writes on."""
    one.team("red").set("n", 1)
    assert other.team("red").get("n") == 1
    assert one._log.describe()["format"] == 1
    _commit(one, 2)
    assert other.team("red").get("n") == 2
    assert other._log.describe()["format"] == 2
    other.team("red").set("n", 3)
    _commit(other, 4)
    for store in (one, other):
        expected = [None, META, None, META]
        assert [event.meta for event in store.team("red").history()] == expected
        assert [event.meta for event in store.events()] == expected
        assert store.check(read_all=True).ok


def test_a_redis_store_of_format_1_is_raised_by_the_first_meta(
    old_store: tuple[str, Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, client, key = old_store
    assert client.hget(key, "format") == b"1"
    with holdfast.open(url) as one, holdfast.open(url) as other:
        _check_both(one, other)
    assert client.hget(key, "format") == b"2"
    # What a holdfast does that knows format 1 alone.
    monkeypatch.setattr(redis_backend, "FORMAT", 1)
    with pytest.raises(FormatError, match="has format 2"):
        holdfast.open(url)

"""Stores of format 1 on servers: they open as ever, and their first event with meta raises them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import FormatError, Meta, UnavailableError
from holdfast.backends.postgresql import PostgresqlBackend, opening
from holdfast.backends.postgresql.connection import in_schema
from holdfast.backends.redis import backend as redis_backend
from holdfast.clock import SystemClock
from tests.servers import postgresql, redis

META = Meta(source="import", trust="low")


def _commit(store: holdfast.Store, value: int) -> None:
    with store.commit(meta=META) as tx:
        tx.scope(store.team("red")).set("n", value)


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


def test_a_schema_of_format_1_is_raised_by_the_first_meta(old_schema: str) -> None:
    with holdfast.open(old_schema) as one, holdfast.open(old_schema) as other:
        _check_both(one, other)
    with psycopg.connect(old_schema) as connection:
        found = connection.execute("SELECT number FROM holdfast.migrations ORDER BY 1").fetchall()
        assert found == [(1,), (2,)]
        metas = connection.execute("SELECT meta FROM holdfast.history ORDER BY revision").fetchall()
        assert [meta is None for (meta,) in metas] == [True, False, True, False]


def test_a_handle_that_reads_format_1_reads_everything_after_it_was_raised(
    old_schema: str,
) -> None:
    """Each of the ways to read meets the first row that fails its checksum without meta."""
    for look in (
        lambda store: [event.meta for event in store.events()],
        lambda store: [event.meta for event in store.events(newest_first=True)],
        lambda store: [event.meta for event in store.team("red").history()],
        lambda store: [
            one.meta and META for [one] in store._log._backend.read_many(["team/red"], limit=1)
        ],
    ):
        url = f"{old_schema}&application=a{id(look)}"
        with psycopg.connect(old_schema) as connection:
            connection.execute("DELETE FROM holdfast.migrations WHERE number = 2")
        backend = PostgresqlBackend(url, clock=SystemClock())
        with holdfast.open(backend=backend) as reader:
            assert backend._schema_format.number == 1
            with psycopg.connect(old_schema) as connection:
                _raise_format(connection)
            with holdfast.open(url) as writer:
                _commit(writer, 1)
            assert look(reader) == [META]
            assert backend._schema_format.number == 2


def _raise_format(connection: Any) -> None:
    columns = "SELECT 1 FROM information_schema.columns WHERE column_name = 'meta'"
    if connection.execute(columns).fetchone() is None:
        connection.execute(in_schema(opening.file_text(2), "holdfast").encode())
    done = "INSERT INTO holdfast.migrations (number, digest) VALUES (2, %s)"
    connection.execute(done, (opening.digest_of(2),))


def test_damage_in_format_1_is_damage(old_schema: str) -> None:
    """A failed checksum asks for the format, and is told as what it is if that did not change."""
    with holdfast.open(old_schema) as store:
        store.team("red").set("n", 1)
    with psycopg.connect(old_schema) as connection:
        connection.execute("UPDATE holdfast.events SET actor = 'x'")
    with (
        holdfast.open(old_schema) as store,
        pytest.raises(holdfast.CorruptError, match="fails its checksum"),
    ):
        list(store.events())


def test_a_role_that_may_not_raise_the_format_is_told_who_must(old_schema: str) -> None:
    with psycopg.connect(old_schema) as connection:
        role = f"r{abs(hash(old_schema))}"
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{postgresql.PASSWORD}'")
        connection.execute(f"GRANT USAGE ON SCHEMA holdfast TO {role}")
        rights = "SELECT, INSERT, UPDATE, DELETE"
        connection.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA holdfast TO {role}")
        connection.execute(f"GRANT EXECUTE ON FUNCTION pg_control_system TO {role}")
    with holdfast.open(old_schema) as owner:
        owner.team("red").set("n", 1)
        with holdfast.open(_as(old_schema, role)) as store:
            with pytest.raises(UnavailableError, match="has format 1, which has no meta") as raised:
                _commit(store, 2)
            assert raised.value.outcome_known
            assert store.team("red").get("n") == 1
            store.team("red").set("n", 2)
            _commit(owner, 3)
            _commit(store, 4)
            assert store.team("red").get("n") == 4


def _as(url: str, role: str) -> str:
    """Returns the URL for another role of the same server."""
    return f"{url}&user={role}&password={postgresql.PASSWORD}"


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

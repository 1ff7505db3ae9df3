"""What is visible on PostgreSQL while somebody's transaction is open."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import holdfast
import holdfast.aio
from holdfast.backends.postgresql import PostgresqlBackend
from holdfast.clock import SystemClock
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import write
from tests.servers.postgresql import NEWEST, installations, new_server, server


@pytest.mark.parametrize("version", installations())
def test_a_view_and_a_check_see_what_was_acknowledged_beside_an_open_transaction(
    version: int,
) -> None:
    """Guarantee 2, and clause 20: positions of PostgreSQL are not the order of its commits."""
    running = server(version)
    running.create_database("viewed")
    with holdfast.open(running.url("viewed")) as hf:
        red, blue = hf.team("red"), hf.team("blue")
        red.set("n", 1)
        with psycopg.connect(running.url("viewed")) as stranger:
            stranger.execute("CREATE TABLE unrelated (n int)")
            with hf.commit() as tx:
                tx.scope(red).set("n", 2)
                tx.scope(blue).set("n", 2)
            view = hf.view()
            red.set("n", 3)
            assert (view.get(red, "n"), view.get(blue, "n")) == (2, 2)
            assert hf.view().get(red, "n") == 3
            # Whoever follows from the view's position misses nothing that is not in it.
            assert view.position == hf.position < hf._log._backend.heads([blue.name])[0].position
            assert hf.check().findings == []
            stranger.rollback()
        assert (view.get(red, "n"), view.get(blue, "n")) == (2, 2)
        assert [
            event.stream for event in hf.follow(as_events=True, after=view.position, timeout_s=0)
        ] == [
            red.name,
            blue.name,
            red.name,
        ]


_HOLDS = """CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
 'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END';
CREATE TRIGGER hold BEFORE INSERT ON holdfast.events FOR EACH ROW
 WHEN (NEW.stream = 'slow') EXECUTE FUNCTION hold();
SELECT pg_advisory_lock(7)"""
_WAITS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.mark.parametrize("version", installations())
def test_clause_20_a_moment_of_a_standby_has_nothing_that_comes_later(version: int) -> None:
    """A standby does not list the transactions that are under way."""
    primary = new_server(version)
    build = RecordBuilder()
    backend = PostgresqlBackend(primary.url(), clock=SystemClock())
    first = write(backend, build, "fast").position
    standby = primary.standby(streams=True)
    reader = PostgresqlBackend(standby.url(), clock=SystemClock(), read_only=True)
    with psycopg.connect(primary.url(), autocommit=True) as stranger, ThreadPoolExecutor(1) as pool:
        stranger.execute(_HOLDS)
        slow = pool.submit(write, backend, build, "slow")
        while stranger.execute(_WAITS).fetchone() != (1,):
            pass
        write(backend, RecordBuilder(), "other")
        standby.catch_up(primary)
        moment = reader.moment()
        stranger.execute("SELECT pg_advisory_unlock(7)")
        later = slow.result().position
    standby.catch_up(primary)
    assert [record.position for record in reader.read("slow")] == [later]
    assert moment.has(first)
    assert not moment.has(later)
    assert later in [record.position for record in reader.read_all(after=moment.position)]
    assert reader.moment().has(later)
    for opened in (backend, reader):
        opened.close()
    standby.remove()
    primary.remove()


@pytest.mark.parametrize("in_asyncio", [False, True])
def test_a_follower_of_a_scope_hears_of_what_was_acknowledged_beside_an_open_transaction(
    in_asyncio: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 5: it reads the stream by revisions, so nothing under way elsewhere holds it up."""
    running = server(NEWEST)
    name = "followed_in_asyncio" if in_asyncio else "followed"
    running.create_database(name)
    url = running.url(name)
    with holdfast.open(url) as hf, psycopg.connect(url) as stranger:
        red = hf.team("red")
        red.set("n", 1)
        stranger.execute("CREATE TABLE unrelated (n int)")

        async def listen() -> list[Any]:
            async with await holdfast.aio.open(url) as other:
                monkeypatch.setattr(
                    other._log._backend, "wait", meanwhile(other._log._backend.wait)
                )
                return [change.new async for change in other.follow("team/red", timeout_s=1)]

        def meanwhile(wait: Any) -> Any:
            def waited(after: Any, *, timeout_s: float) -> Any:
                if timeout_s:
                    monkeypatch.undo()
                    red.set("n", 2)  # while a follower waits
                return wait(after, timeout_s=timeout_s)

            return waited

        if in_asyncio:
            told = asyncio.run(listen())
        else:
            monkeypatch.setattr(hf._log._backend, "wait", meanwhile(hf._log._backend.wait))
            told = [change.new for change in hf.follow(red, timeout_s=1)]
        assert told == [2]
        stranger.rollback()

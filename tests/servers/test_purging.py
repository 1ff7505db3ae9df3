"""What servers leave on their disks is found, ended and told truly (clause 29)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

import holdfast
from holdfast.backends.postgresql import backend as postgresql_backend
from holdfast.backends.redis import purging
from tests.canaries import Canaries
from tests.servers import postgresql, redis
from tests.servers.pooler import Pooler

NAMES = list(redis.installations())


@pytest.fixture(params=NAMES)
def own_server(request: pytest.FixtureRequest) -> Iterator[redis.Server]:
    running = redis.new_server(request.param)
    yield running
    running.remove()


def test_a_file_of_a_rewrite_that_died_with_the_server_is_named_until_it_is_gone(
    own_server: redis.Server,
) -> None:
    """Killed while it writes its file anew; the receipt is pending until the file is deleted."""
    canaries = Canaries()
    with holdfast.open(own_server.url(application="a")) as hf:
        for number in range(40):
            hf.team("red").set(f"n{number}", f"{canaries.new(f'n{number}')} {'x' * 100_000}")
        with own_server.client() as client:  # the rewrite takes long, to be killed in the middle
            client.config_set("rdb-key-save-delay", 100_000)
            client.bgrewriteaof()
            _until(lambda: [*own_server.directory.glob("temp-rewriteaof-*")])
        own_server.kill()
    left_over = [*own_server.directory.glob("temp-rewriteaof-*")]
    assert left_over
    for one in left_over:  # its child goes on alone for a while, or would: the host has died
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(one.stem.rpartition("-")[2]), signal.SIGKILL)
    own_server.start()
    for one in left_over:
        one.write_text(" ".join(canaries.fields))
    with holdfast.open(own_server.url(application="a")) as hf:
        receipt = hf.subjects.erase(scope="team/red")
        assert [one.where for one in receipt.left] == [str(one) for one in left_over]
        assert [one.outcome for one in receipt.scopes] == ["pending"]
        assert canaries.found_below(own_server.directory, besides=left_over) == {}
        assert [one.where for one in hf.retention.run().left] == [str(one) for one in left_over]
        for one in left_over:
            one.unlink()
        assert hf.retention.run().left == []
        assert [row[1] for row in hf.subjects.receipts()[0]["scopes"]] == ["deleted"]
    assert canaries.found_below(own_server.directory) == {}


def _until(holds: Any) -> None:
    for _ in range(1_000_000):
        if holds():
            return
        os.sched_yield()
    raise AssertionError("it does not come")


def test_a_folder_that_cannot_be_seen_is_named_and_nothing_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on another host; and a server that refuses CONFIG, as hosted ones do."""
    server = redis.server(redis.OLDEST)
    with holdfast.open(server.url(application="unseen")) as hf:
        hf.team("red").set("n", 1)

        def hidden(path: str) -> str:
            raise PermissionError(path)

        monkeypatch.setattr(purging.os, "readlink", hidden)
        receipt = hf.subjects.erase(scope="team/red")
        [left] = receipt.left
        assert "cannot be seen" in left.where
        assert "rm temp-rewriteaof" in left.remedy
        assert [one.outcome for one in receipt.scopes] == ["deleted"]
        before = hf._log.heads(["retention/log"])
        assert hf.retention.run().left == [left]
        assert hf._log.heads(["retention/log"]) == before  # told once, and not done again


def test_a_rewrite_that_is_only_scheduled_at_the_end_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BGREWRITEAOF waits for a BGSAVE of somebody else, longer than a purge waits."""
    server = redis.server(redis.OLDEST)
    with holdfast.open(server.url(application="scheduled")) as hf:
        sound = purging._info

        def scheduled(checkout: Any, section: str = "persistence") -> dict[bytes, bytes]:
            return {**sound(checkout, section), b"aof_rewrite_scheduled": b"1"}

        monkeypatch.setattr(purging, "_info", scheduled)
        monkeypatch.setattr(purging, "_WAIT_S", 0.0)
        backend: Any = hf._log._backend
        left = backend.purge(whole=False)
        assert "run BGREWRITEAOF" in next(
            one.remedy for one in left if one.where == "the server's append-only file"
        )


def test_a_table_may_take_longer_than_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """VACUUM FULL of a large table takes minutes; here it waits for whoever reads the table."""
    import psycopg

    monkeypatch.setattr(postgresql_backend, "_WAIT_LOCK_S", 3600)
    server = postgresql.server(postgresql.NEWEST)
    with holdfast.open(server.url(application="long", timeout=0.5)) as hf:
        hf.team("red").set("n", 1)
        hf.team("red").remove()
        hf.retention.run(grace_s=0)
        reader = psycopg.connect(_dsn(server))
        reader.execute("SELECT count(*) FROM holdfast.events")
        waited: list[bool] = []

        def release() -> None:
            with psycopg.connect(_dsn(server), autocommit=True) as looker:
                _until(lambda: looker.execute(_WAITS).fetchall())
                waited.append(True)
                reader.close()

        thread = Thread(target=release)
        thread.start()
        backend: Any = hf._log._backend
        left = backend.purge(whole=True)
        thread.join()
        assert waited == [True]
        assert [one.where for one in left] == ["the server's write-ahead log"]
        assert hf.team("red").set("n", 2) > 1


def test_a_table_that_somebody_reads_is_left_and_holds_up_nobody() -> None:
    """Behind a VACUUM FULL that waits for a reader, every use of the table would wait, too."""
    import psycopg

    server = postgresql.server(postgresql.NEWEST)
    with holdfast.open(server.url(application="read")) as hf, psycopg.connect(_dsn(server)) as line:
        hf.team("red").set("n", 1)
        line.execute("SELECT count(*) FROM holdfast.events")
        left = {one.where: one.remedy for one in hf.retention.run(grace_s=0, whole=True).left}
        assert sorted(left) == ["old versions of rows in events", "the server's write-ahead log"]
        assert "try again when no other session reads it" in left["old versions of rows in events"]
        assert hf.team("red").set("n", 2) > 1
        line.rollback()
        left = {one.where: one.remedy for one in hf.retention.run(grace_s=0, whole=True).left}
        assert sorted(left) == ["the server's write-ahead log"]


def test_a_pooler_gets_no_setting_that_it_would_hand_on() -> None:
    server = postgresql.server(postgresql.NEWEST)
    with Pooler(f"{server.directory}/.s.PGSQL.{server.port}") as pooler:
        url = f"postgresql://tester@127.0.0.1:{pooler.port}/postgres?sslmode=disable"
        with holdfast.open(f"{url}&application=pooled") as hf:
            hf.team("red").set("n", 1)
            backend: Any = hf._log._backend
            left = backend.purge(whole=True)
            assert [one.where for one in left[:2]] == [
                "old versions of rows in events",
                "old versions of rows in objects",
            ]
            assert all("without a pooler" in one.remedy for one in left[:2])
            for _ in range(5):
                [(limit,)] = backend._checkout.ask("SHOW lock_timeout", ())
                assert limit == "0"


_WAITS = (
    "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'VACUUM FULL%' AND wait_event_type = 'Lock' "
    "AND now() - query_start > interval '1 s'"
)


def _dsn(server: Any) -> str:
    return server.url()


def test_a_receipt_names_no_vacuum_that_was_done() -> None:
    """And is not pending for the server's own log, which goes when the server has used it up."""
    server = postgresql.server(postgresql.NEWEST)
    with holdfast.open(server.url(application="receipts")) as hf:
        hf.team("red").set("n", "pineapple")
        receipt = hf.subjects.erase(scope="team/red")
        assert [one.outcome for one in receipt.scopes] == ["pending"]
        assert sum("VACUUM FULL" in one.remedy for one in receipt.left) == 2
        hf.retention.run(grace_s=0, whole=True)
        [said] = hf.subjects.receipts()
        assert [row[1] for row in said["scopes"]] == ["deleted"]
        assert [where for where, _ in said["left"]] == ["the server's write-ahead log"]

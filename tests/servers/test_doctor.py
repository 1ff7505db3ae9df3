"""What `holdfast doctor` says of a store on a server: settings, clocks, and what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.doctor import Examined, examine
from holdfast.cli.options import Options
from holdfast.clock import SystemClock
from tests.servers import redis
from tests.servers.kinds import SERVERS, url_of


@pytest.fixture
def own_server() -> Iterator[redis.Server]:
    running = redis.new_server(redis.OLDEST)
    yield running
    running.remove()


def _examined(url: str) -> dict[str, list[Examined]]:
    found: dict[str, list[Examined]] = {}
    for one in examine(Options(store=url)):
        found.setdefault(one.check, []).append(one)
    return found


@pytest.mark.parametrize("kind", SERVERS)
def test_a_sound_server(kind: str, tmp_path: Path) -> None:
    url = url_of(kind, tmp_path, "s")
    with holdfast.open(url) as store:
        store.team("red").set("n", 1)
    found = _examined(url)
    assert [one.ok for name in ("clock", "times", "structure") for one in found[name]] == [True] * 3
    assert ("eviction" in found) == (kind == "redis")


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("hours", [3, -3])
def test_a_clock_that_differs(
    kind: str, hours: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(kind, tmp_path, "s")
    holdfast.open(url).close()
    now_us = SystemClock.now_us
    monkeypatch.setattr(SystemClock, "now_us", lambda self: now_us(self) + hours * 3_600_000_000)
    [clock] = _examined(url)["clock"]
    word = "ahead of" if hours > 0 else "behind"
    assert (clock.ok, f"{word} the server's" in clock.found) == (False, True)
    assert "timedatectl" in str(clock.fix)


def test_a_policy_that_evicts_is_named_with_all_the_rest(own_server: redis.Server) -> None:
    url = own_server.url()
    with holdfast.open(url) as store:
        store.team("red").set("n", 1)
    with own_server.client() as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        found = _examined(url)
        assert [one.ok for one in found["store"]] == [False, True]
        [eviction] = found["eviction"]
        assert (eviction.ok, "volatile-lru" in eviction.found) == (False, True)
        assert str(eviction.fix).startswith("CONFIG SET maxmemory-policy noeviction")
        assert found["structure"][0].ok
        # What was evicted before the policy was mended may be missing still.
        client.set("theirs", "x", px=60_000)
        client.config_set("maxmemory", "1")
        while client.exists("theirs"):
            pass
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")
        [eviction] = _examined(url)["eviction"]
        assert (eviction.ok, "1 keys evicted" in eviction.found) == (False, True)
        assert "check --read-all" in str(eviction.fix)


def test_a_key_that_is_gone_is_named(own_server: redis.Server) -> None:
    url = own_server.url()
    with holdfast.open(url) as store:
        store.team("red").set("n", 1)
    with own_server.client() as client:
        client.delete("holdfast:{default}:heads")
    [structure] = _examined(url)["structure"]
    assert structure.ok is False
    assert "heads" in structure.found


def test_a_server_that_is_not_there_is_all_that_is_said(own_server: redis.Server) -> None:
    url = own_server.url(timeout=0.2)
    with own_server.client() as client:
        client.config_set("appendonly", "no")
    # There is no store: opened as one that promises nothing, it is still not there.
    found = _examined(url)
    assert [one.ok for one in found["store"]] == [False]
    assert "structure" not in found


def test_each_server_of_a_mixed_store_is_examined(tmp_path: Path) -> None:
    urls = {kind: url_of(kind, tmp_path, "s") for kind in ("redis", "postgresql")}
    for url in urls.values():
        holdfast.open(url).close()
    mix = tmp_path / "mix.toml"
    lines = [f'conversation = "{urls["redis"]}"', f'"*" = "{urls["postgresql"]}"']
    mix.write_text("[store]\n" + "\n".join(lines) + "\n")
    found = _examined(str(mix))
    assert [one.ok for one in found["clock"]] == [True, True]
    assert [one.ok for one in found["eviction"]] == [True]

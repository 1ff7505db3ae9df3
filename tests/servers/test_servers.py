"""The servers that the other tests stand on: they are there, and they go when their owner goes."""

from __future__ import annotations

import psycopg
import pytest

from tests.servers import ground
from tests.servers.postgresql import (
    NEWEST,
    OLDEST,
    PASSWORD,
    installations,
    server,
)


def test_two_versions_are_tested_here() -> None:
    """Tests of servers are never left out where the tools for development are installed."""
    assert NEWEST >= 18
    assert OLDEST < NEWEST
    assert len(installations()) == 2


@pytest.mark.parametrize("version", installations())
def test_a_server_is_an_ordinary_users_and_answers_on_both_sockets(version: int) -> None:
    running = server(version)
    assert running.data.stat().st_uid != 0
    for url in (running.url(), running.tcp_url()):
        with psycopg.connect(url) as line:
            assert line.info.server_version // 10_000 == version
    wrong = running.tcp_url().replace(PASSWORD, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_no_parents_permissions_are_changed() -> None:
    before = {path: path.stat().st_mode for path in installations()[NEWEST].parents}
    server(NEWEST)
    assert {path: path.stat().st_mode for path in before} == before
    assert ground.ground().stat().st_mode & 0o777 == 0o711

"""The servers that the other tests stand on: they are there, and they go when their owner goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.servers import ground
from tests.servers.postgresql import (
    NEWEST,
    OLDEST,
    PASSWORD,
    await_end,
    installations,
    server,
)

ROOT = Path(__file__).resolve().parents[2]
_OWNER = """
import sys
from tests.servers import ground
from tests.servers.postgresql import NEWEST, new_server
running = new_server(NEWEST)
print(ground.ground(), (running.directory / ground.PID_FILE).read_text(), flush=True)
sys.stdin.read()
"""


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


def test_a_server_ends_when_its_owner_is_killed() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    place, pid = owner.stdout.readline().split()
    assert Path(f"/proc/{pid}").exists() or sys.platform == "darwin"
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    deadline = time.monotonic() + 60
    while Path(place).exists():
        assert time.monotonic() < deadline, f"{place} is still there"
        time.sleep(0.01)
    # Within a minute a server without its directory ends by itself: that is not what is tested.
    await_end([int(pid)], patience_s=20)

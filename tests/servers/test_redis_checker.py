"""T9 and T2 on Redis: eight processes write, two die, the server is killed; the checker judges.

The run is that of `tests.torture.t9_lost_updates`, with the store in a Redis server: answers get
lost, two processes are killed, another retries by key what they had begun, and a history of every
operation goes to the independent checker.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.servers.redis import OLDEST, Server, new_server

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 150
_RUN = """
import sys
from pathlib import Path
from tests.torture import t9_lost_updates as t9
from tests.torture.programme import Point
t9.CRASH_POINTS["redis"] = ("redis.commit", "redis.committed")
seed, place, url = sys.argv[1:]
run = t9.Processes(Point(int(seed), 0, Path(place)), "redis")
run.url = url
print(run.check())
"""


@pytest.fixture
def own_server() -> Iterator[Server]:
    running = new_server(OLDEST)
    yield running
    running.remove()


@pytest.mark.parametrize("kills", [0, 5])
def test_no_update_is_lost_whoever_dies(own_server: Server, tmp_path: Path, kills: int) -> None:
    seed = 1000 + kills
    url = own_server.url(timeout=60)
    run = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(seed), str(tmp_path), url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = 0
    for kill in range(kills):
        done = _await_commits(own_server, run, 20 + kill * 30)
        own_server.kill()
        own_server.start()
    said, errors = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, f"seed {seed}: {errors[-4000:]}"
    assert int(said) > 300
    assert not kills or done, "the server was killed when all was over"


def _await_commits(running: Server, run: subprocess.Popen[str], count: int) -> int:
    """Returns how many commits there are, when there are so many or the run has ended."""
    deadline = monotonic() + PATIENCE_S
    with running.client() as client:
        while run.poll() is None:
            if client.xlen("holdfast:{default}:log") >= count:
                return count
            assert monotonic() < deadline, "the clients do not get on"
    return 0

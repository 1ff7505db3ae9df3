"""No server outlives the test process that started it, however that ends and whatever is deleted.

Nobody has to tidy up after a run that was killed: not its servers, not their processes, not their
files. That holds for root and for an ordinary user.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import await_end
from tests.servers import ground

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60
_OWNER = """
import os, sys
from tests.servers import ground, postgresql, redis
if sys.argv[1] == "postgresql":
    running = postgresql.new_server(postgresql.NEWEST)
else:
    running = redis.new_server(redis.OLDEST)
pid = running._process.pid
print(ground.ground(), pid, *ground.children([pid]), flush=True)
if sys.stdin.readline() == "leave\\n":
    os._exit(0)
"""


def _interpreter() -> str | None:
    """Returns a Python of our version that an ordinary user can reach, None if there is none."""
    for path in (Path(sys.executable), Path("/usr/bin") / f"python3.{sys.version_info.minor}"):
        if path.exists() and ground.reachable(path):
            return str(path)
    return None


def _environment() -> dict[str, str]:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *packages])
    return {"PATH": os.environ["PATH"], "PYTHONPATH": path}


def _owners() -> list[tuple[str, str | None]]:
    """Returns each server, with whoever runs the tests, and with an ordinary user beside root.

    The latter needs an interpreter that it can reach, and that can import the driver.
    """
    owners: list[tuple[str, str | None]] = [("postgresql", None), ("redis", None)]
    other = _interpreter() if ground.user() is not None else None
    if other is not None and ground.reachable(ROOT / "pyproject.toml"):
        for kind, driver in (("postgresql", "psycopg"), ("redis", "redis")):
            asked = [other, "-B", "-c", f"import {driver}"]
            if subprocess.run(asked, env=_environment(), capture_output=True).returncode == 0:
                owners.append((kind, ground.user()))
    return owners


@pytest.mark.parametrize(("kind", "user"), _owners())
@pytest.mark.parametrize("how", ["killed", "left", "ended", "files deleted"])
def test_a_server_ends_with_its_owner(how: str, kind: str, user: str | None) -> None:
    owner = subprocess.Popen(
        [str(_interpreter() if user else sys.executable), "-BWdefault", "-c", _OWNER, kind],
        cwd=ROOT,
        user=user,
        group=user,
        extra_groups=[] if user else None,
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    told = owner.stdout.readline()
    assert told, owner.communicate()[1]
    place, *pids = told.split()
    if how == "files deleted":
        shutil.rmtree(place)
    if how == "left":
        owner.communicate("leave\n")
    elif how == "ended":
        assert "still running" not in owner.communicate("")[1], "a server was not waited for"
    else:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    # Without its directory a PostgreSQL server ends by itself within a minute: sooner than that.
    await_end([int(pid) for pid in pids], patience_s=50)
    deadline = time.monotonic() + PATIENCE_S
    while Path(place).exists():
        assert time.monotonic() < deadline, f"{place} is still there"
        time.sleep(0.01)

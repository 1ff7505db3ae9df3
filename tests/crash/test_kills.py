"""Item 12, T1: processes killed with SIGKILL at random and at named points, then reopened.

HOLDFAST_KILLS raises the number of random kills per backend (10,000 before a release), and
HOLDFAST_SEED repeats a run. A failure prints the one command that replays it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.crash.kill import SCENES

ROOT = Path(__file__).resolve().parent.parent.parent
KILLS = int(os.environ.get("HOLDFAST_KILLS", "120"))
"""Random kills per backend; those of `--every` come on top."""
SEED = int(os.environ.get("HOLDFAST_SEED", str(time.time_ns() % 1_000_000)))


def kill(capfd: pytest.CaptureFixture[str], place: Path, *arguments: str) -> None:
    """Runs the harness in a process of its own: it forks, and pytest's worker has threads.

    What was done is shown also if it went well: a run says how many kills it did, not "passed".
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.kill", *arguments, "--seed", str(SEED)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path]),
            "TMPDIR": str(place),
        },
        capture_output=True,
        text=True,
    )
    with capfd.disabled():
        print(f"\n{' '.join(arguments)}: {done.stdout.strip()}", file=sys.stderr, flush=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


@pytest.mark.timeout(120 + 2 * KILLS)
@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_guarantee_1_and_2_nothing_acknowledged_is_lost_by_kills(
    backend: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kill(capfd, tmp_path, backend, "--kills", str(KILLS))


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_a_kill_at_every_call_that_changes_the_disk(
    backend: str, scene: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file that a killed checkpoint left could not be opened: `closing` on SQLite found that."""
    kill(capfd, tmp_path, backend, "--every", scene)

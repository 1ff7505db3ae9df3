"""Kills by another hand: strace ends the process at the nth system call, whoever made it.

The harness kills at calls that it knows of (tests/crash/killers.py). strace kills at what the
kernel is really asked for, and so notices a call that the harness does not reach. It is a Debian
package of its own; where it is not there, the same store is killed by the harness at as many calls,
and the summary of the run has a line that says so.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.scenes import sites, try_site
from tests.crash.trial import Trial
from tests.torture.programme import Point

ROOT = Path(__file__).resolve().parent.parent.parent
STRACE = shutil.which("strace")
KILLS = {
    "files": {
        "pwrite64": (1, 2, 5, 9),
        "fdatasync": (1, 2, 6),
        "fsync": (1, 2),
        "rename": (1,),
        "ftruncate": (1,),
        "fallocate": (1,),
    },
    "sqlite": {
        "pwrite64": (1, 2, 5, 9, 17),
        "fdatasync": (1, 2, 4, 8),
        "fsync": (1,),
        "link": (1,),
        "unlink": (1,),
        "ftruncate": (1,),
    },
}
SAME = {"rename": "rename,renameat,renameat2", "link": "link,linkat", "unlink": "unlink,unlinkat"}
"""One and the same to us; which of them the C library asks for depends on its version."""
WORK = """
import sys
import holdfast
from tests.crash import scale, workload
scale.make_small()
plan = workload.Plan(sys.argv[1], 1, "1", operations=12)
with holdfast.open(plan.url) as store:
    workload.run(store, plan, 1)
"""
"""It says what it did on its standard output."""


@pytest.mark.parametrize("backend", KILLS)
def test_a_store_that_strace_killed_is_sound(
    backend: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if STRACE is None:
        known = len(sites(backend))
        for number in range(0, known, known // 12):
            place = tmp_path / str(number)
            place.mkdir()
            assert try_site(sites, backend, Point(1, number, place))
        row = {"programme": f"t1-{backend} (no strace)", "points": 12, "cases": 12}
        record_property("torture", {**row, "seconds": 0.0, "seed": 1})
        return
    killed = 0
    for call, nths in KILLS[backend].items():
        for nth in nths:
            place = tmp_path / f"{call}-{nth}"
            place.mkdir()
            with Trial(backend, Point(1, 0, place), in_memory=False) as trial:
                trial.note(f"killed by strace at {call} {nth}")
                killed += kill(STRACE, trial, call, nth)
                trial.verify()
    assert killed >= 9, "most of these calls are made"


def kill(strace: str, trial: Trial, call: str, nth: int) -> bool:
    """Kills a writer at the nth such call to the kernel; returns whether it came to that."""
    names = SAME.get(call, call)
    inject = f"inject={names}:signal=KILL:when={nth}"
    what = [strace, "-f", "-qq", "-e", f"trace={names}", "-e", inject, "-o", os.devnull]
    done = subprocess.run(
        [*what, sys.executable, "-c", WORK, trial.url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])},
        capture_output=True,
        text=True,
    )
    was_killed = done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert was_killed or done.returncode == 0, done.stderr
    trial.said.take(json.loads(line) for line in done.stdout.splitlines())
    return was_killed

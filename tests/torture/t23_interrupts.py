"""T23: a real signal at every place where the interpreter delivers one, in calls of every kind.

One interrupt for each call: a commit, a joint commit, a submit and its wait, a read, a follow, a
lease, a blob, a commit among those of other threads, and a close. Afterwards nobody hangs, neither
this handle nor another one on the same store; what was told is there, what was not is there or not,
and repeated with its key it is there once.

Planted, and found: whoever leaves the queue by an exception leaves it as it is (`no-recovery`),
which is how the queue once was between its lead and its `try`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.servers.kinds import KINDS, url_of
from tests.torture.programme import Broken, Point, Programme

ROOT = Path(__file__).resolve().parent.parent.parent
STEP = 120
"""A point is every 120th place of every call, so that 120 points are all of them."""
HANG_S = 600


def interrupts(kind: str) -> Callable[[Point], int]:
    """Returns the trial of a kind of store."""

    def trial(point: Point) -> int:
        url = url_of(kind, point.place, "store")
        words = [url, str(point.number % STEP), str(STEP), point.plant]
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.torture.interrupts_child"]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])
        done = subprocess.run(
            [*command, *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        if done.returncode:
            raise Broken(f"after an interrupt: {done.stderr[-3000:]}")
        return int(done.stdout)

    return trial


PROGRAMMES = [
    Programme(
        name=f"t23-{kind}",
        promise="an interrupt at any place of a call: nobody hangs, nothing is lost or doubled",
        trial=interrupts(kind),
        share=8,
        points=STEP,
        plants={"no-recovery": 3},
    )
    for kind in KINDS
]

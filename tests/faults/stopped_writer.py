"""A writer that stops itself, as SIGSTOP does, while it has the lock of a store."""

from __future__ import annotations

import os
import signal
import sys

import holdfast
from holdfast.backends.files import FilesBackend
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import SystemClock

POINTS = {"files": "files.ring.written", "sqlite": "sqlite.inserted"}


def main(kind: str, path: str) -> None:
    """Commits twice: the second time it stops in the middle."""
    armed: list[str] = []

    def reach(point: str) -> None:
        if armed and point == POINTS[kind]:
            os.kill(os.getpid(), signal.SIGSTOP)

    made = FilesBackend if kind == "files" else SqliteBackend
    store = holdfast.open(made(path, clock=SystemClock(), reach=reach))
    store.team("red").set("told", 1)
    armed.append("now")
    store.team("red").set("under way", 1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

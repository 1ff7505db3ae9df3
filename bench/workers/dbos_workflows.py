"""DBOS: workflows of 1 KB steps, through its public interface and with its own defaults.

The path is the URL of its system database, or a directory for one on SQLite.

    python -m bench.workers.dbos_workflows make URL STEPS      is killed behind so many steps
    python -m bench.workers.dbos_workflows recover URL         prints when the next step began
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench.messages import messages

LEFT = "left"
_said = messages()
_begun = threading.Event()
_at = 0
_dies = False


@DBOS.step()
def act(number: int) -> dict[str, str]:
    return next(_said)


@DBOS.step()
def last() -> int:
    """The step in which the process is killed; after a recovery, the first that is new."""
    global _at
    if _dies:
        os.kill(os.getpid(), signal.SIGKILL)
    _at = time.monotonic_ns()
    _begun.set()
    return 0


@DBOS.workflow()
def chain(steps: int) -> int:
    for number in range(steps):
        act(number)
    return steps


@DBOS.workflow()
def left(steps: int) -> int:
    for number in range(steps):
        act(number)
    return last()


def sqlite_url(place: Path, *, wal: bool) -> str:
    """Returns the URL of a database in that directory; in WAL if its file was made so before."""
    place.mkdir(parents=True, exist_ok=True)
    if wal:
        with sqlite3.connect(place / "dbos.sqlite") as made:
            made.execute("PRAGMA journal_mode=WAL")
    return f"sqlite:///{place}/dbos.sqlite"


def launch(url: str) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "log_level": "ERROR",
        "application_version": "1",
        "run_admin_server": False,
    }  # type: ignore[typeddict-unknown-key]
    DBOS(config=config)
    DBOS.launch()


class Workflows:
    """Whole workflows, one an operation."""

    release = f"dbos {version('dbos')}"
    runner = None

    def __init__(self, path: str, *, steps: int, wal: bool = False) -> None:
        launch(path if "://" in path else sqlite_url(Path(path), wal=wal))
        self._steps = steps
        self._numbers = count()
        self.operations: dict[str, Callable[[], Any]] = {"run": self._run}

    def _run(self) -> None:
        with SetWorkflowID(f"run {next(self._numbers)}"):
            assert chain(self._steps) == self._steps

    def close(self) -> None:
        DBOS.destroy()


def main(what: str, url: str, *rest: str) -> None:
    global _dies
    if what == "make":
        _dies = True
        launch(url)
        with SetWorkflowID(LEFT):
            left(int(rest[0]))
    start = time.monotonic_ns()
    launch(url)
    assert _begun.wait(120), "the workflow was not recovered"
    print(json.dumps({"to_next_step_ms": (_at - start) / 1e6, "at": _at}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The dependent tasks of `examples/tasks.py` at 5, 500 and 50,000, and bare programs.

Each is killed with SIGKILL when its last task begins, and a new process goes on: what is timed is
the whole way to the kill, and the way from the call to the first task that is left.

    python -m bench.tasks CONTENDER PLACE COUNT [killed]
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.harness import ROOT, Report, Size, scratch

sys.path.insert(0, str(ROOT / "examples"))
example: Any = importlib.import_module("tasks")

COUNTS = (5, 500, 50_000)
SHORT = 500
"""Up to here each size is measured several times, the contenders in turn."""


def bare_files(tasks: list[Any], place: str) -> Any:
    """One file a task, made whole by a rename; a file that is there is a task that is done."""
    Path(place).mkdir(parents=True, exist_ok=True)
    last = None
    for task in tasks:
        path = example.result_path(place, task["id"])
        if path.exists():
            last = json.loads(path.read_text())
        else:
            last = example.process(task, last)
            example.write_atomically(path, last)
    return last


def bare_sqlite(tasks: list[Any], place: str) -> Any:
    """One row a task, one transaction a row, WAL and full syncs."""
    database = sqlite3.connect(place, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE IF NOT EXISTS results (id INTEGER PRIMARY KEY, result TEXT)")
    found = database.execute("SELECT id, result FROM results ORDER BY id DESC LIMIT 1").fetchone()
    done, last = (found[0], json.loads(found[1])) if found else (0, None)
    for task in tasks[done:]:
        last = example.process(task, last)
        database.execute("INSERT INTO results VALUES (?, ?)", (task["id"], json.dumps(last)))
    database.close()
    return last


CONTENDERS: dict[str, Callable[[list[Any], str], Any]] = {
    "holdfast files": example.process_tasks_file,
    "holdfast sqlite": example.process_tasks_sqlite,
    "bare files": bare_files,
    "bare sqlite3": bare_sqlite,
}


def tasks(size: Size) -> Report:
    """Time, bytes and recovery of each, by the number of tasks."""
    report = Report(
        f"{', '.join(f'{count:,}' for count in COUNTS)} tasks that each need the result before",
        "full on all sides: a task's result is synced before the next begins",
    )
    for tasks_count in COUNTS[:2] if size.quick else COUNTS:
        times = 1 if tasks_count > SHORT else 2 if size.quick else 5
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
        for number in range(times):
            for name in CONTENDERS if number % 2 else reversed(CONTENDERS):
                found[name].append(_killed_and_resumed(name, tasks_count))
        results = {json.dumps(one["result"]) for each in found.values() for one in each}
        assert len(results) == 1, "they do not agree"
        for name, each in found.items():
            row: dict[str, Any] = {"n": tasks_count, "what": name}
            for column in ("total_s", "task_ms", "kib", "recovery_ms"):
                row[column] = round(median(one[column] for one in each), 3)
            report.rows.append(row)
    return report


def _killed_and_resumed(name: str, count: int) -> dict[str, Any]:
    with scratch() as place:
        words = [sys.executable, "-m", "bench.tasks", name, str(place / "state"), str(count)]
        killed = subprocess.run(
            [*words, "killed"], cwd=ROOT, check=False, capture_output=True, text=True
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        seconds = json.loads(killed.stdout)["seconds"]
        done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
        stored = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return {
        **json.loads(done.stdout),
        "total_s": seconds,
        "task_ms": seconds / count * 1e3,
        "kib": stored / 1024,
    }


def main(name: str, place: str, count: str, killed: str = "") -> None:
    wanted, real = example.make_tasks(int(count)), example.process
    said: dict[str, Any] = {}
    start = time.perf_counter()

    def process(task: dict[str, Any], previous: Any) -> Any:
        if not said:
            said["recovery_ms"] = (time.perf_counter() - start) * 1e3
        if killed and task["id"] == len(wanted):
            print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(task, previous)

    example.process = process
    said["result"] = CONTENDERS[name](wanted, place)
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])

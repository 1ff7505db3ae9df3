"""Retention and backups: half of a large store let go of, commits beside it, and increments.

A retain of half of a store's scopes, beside a bare rewrite of what stays: the same stored text or
rows, read, parsed and written anew without what goes, with one sync. Commits of another process are
timed with and without a retain at work. An increment of a backup is measured after a short history
and after a long one: it reads only what is new.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import holdfast
from bench.harness import ROOT, Report, Size, scratch
from holdfast.backup import backup

SCOPES = 1_000
AT_ONCE = 500
INCREMENT = 100
_RETAINER = """import sys, holdfast
with holdfast.open(sys.argv[1]) as hf: hf.retention.run(grace_s=0)"""


def retaining(size: Size) -> Report:
    """Half of a store let go of, commits beside that, and increments of a backup."""
    report = Report(
        f"retention of half of a store with {size.store:,} events, and backups",
        "full where a commit is timed; the store is filled without syncs",
    )
    for kind in ("files", "sqlite"):
        _retain_half(report, size, kind)
        _commits_beside(report, size, kind)
        _increments(report, size, kind)
    return report


def _url(kind: str, place: Path) -> str:
    return str(place / "store") if kind == "files" else f"sqlite:{place / 'store.db'}"


def _fill(url: str, events: int) -> None:
    """Writes that many events to scopes, half of which are removed at the end."""
    with holdfast.open(url, durability="none") as hf:
        scopes = [hf.conversation(f"c{number}") for number in range(SCOPES)]
        pending: list[Any] = []
        for number in range(events):
            with hf.commit(waits=False) as tx:
                tx.scope(scopes[number % SCOPES]).set(f"key {number % 50}", f"{number} {'x' * 60}")
            pending.append(tx)
            if len(pending) == AT_ONCE:
                for tx in pending:
                    tx.wait()
                pending.clear()
        for tx in pending:
            tx.wait()
        for scope in scopes[::2]:
            scope.remove()


# --- a retain -----------------------------------------------------------------------------------


def _retain_half(report: Report, size: Size, kind: str) -> None:
    with scratch() as place:
        url = _url(kind, place)
        _fill(url, size.store)
        bare = min(_spent(lambda: _bare(kind, place)) for _ in range(2))
        with holdfast.open(url) as hf:
            ours = _spent(lambda: hf.retention.run(grace_s=0))
            assert hf.retention.run(grace_s=0).events == 0, "the retain before it did not end"
        doing = f"{kind}: retain of half of {size.store:,} events"
        for what, (cpu_s, wall_s) in (("bare rewrite", bare), ("holdfast", ours)):
            row = {"doing": doing, "what": what, "cpu_us": round(cpu_s * 1e6)}
            report.rows.append({**row, "total_s": round(wall_s, 2)})
        report.at_most(f"{doing} / bare rewrite, processor time", ours[0] / bare[0], 3)
        report.notes.append(f"{doing}: {ours[1] / bare[1]:.2f} times the time of a bare rewrite")


def _spent(work: Callable[[], object]) -> tuple[float, float]:
    """Returns the processor time and the time of some work."""
    began, began_at = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - began, time.perf_counter() - began_at


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _bare(kind: str, place: Path) -> None:
    """Writes anew what stays: every line or row is read and parsed, to know whose it is."""
    target = place / "bare"
    if kind == "files":
        with open(target, "wb") as file:
            for path in sorted((place / "store" / "log").glob("*.jsonl")):
                with open(path, "rb") as lines:
                    for line in lines:
                        if line[0] == 0:
                            break  # space that was reserved
                        sections: list[Any] = json.loads(line)["in"]
                        if not all(_goes(section[0]) for section in sections):
                            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    else:
        shutil.copyfile(place / "store.db", target)
        with sqlite3.connect(place / "store.db") as source, sqlite3.connect(target) as written:
            written.execute("CREATE TABLE bare (stream, revision, time, type, payload, link)")
            rows = source.execute(
                "SELECT s.name, revision, time, type, payload, link FROM events e "
                "JOIN streams s ON s.id = e.stream"
            )
            written.executemany(
                "INSERT INTO bare VALUES (?,?,?,?,?,?)", (row for row in rows if not _goes(row[0]))
            )
        written.close()
        source.close()
    target.unlink()


def _goes(stream: str) -> bool:
    level, _, id = stream.partition("/")
    return level == "conversation" and int(id[1:]) % 2 == 0


# --- commits beside it ---------------------------------------------------------------------------


def _commits_beside(report: Report, size: Size, kind: str) -> None:
    """Adds how much slower commits are while a retain of another process is at work."""
    events = 10_000 if size.quick else 300_000
    with scratch() as place:
        url = _url(kind, place)
        _fill(url, events)
        with holdfast.open(url) as hf:
            team = hf.team("desk")

            def block() -> float:
                return _timed(lambda: [team.set("n", number) for number in range(20)])

            before = [block() for _ in range(30)]
            command = [sys.executable, "-c", _RETAINER, url]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            beside: list[float] = []
            with subprocess.Popen(command, cwd=ROOT, env=environment) as child:
                while child.poll() is None:
                    beside.append(block())
            after = [block() for _ in range(30)]
            assert hf.retention.run(grace_s=0).events == 0, "the retain beside it did not end"
    alone_s, beside_s = median(before + after), median(beside)
    doing = f"{kind}: 20 commits beside a retain of {events // 2:,} events"
    report.rows.append({"doing": doing, "what": "alone", "p50_ms": round(alone_s * 1e3, 2)})
    report.rows.append({"doing": doing, "what": "beside", "p50_ms": round(beside_s * 1e3, 2)})
    report.notes.append(f"{doing}: {len(beside)} blocks, the slowest {max(beside) * 1e3:.0f} ms")
    report.at_most(f"{kind}: commits beside a retain / alone, time", beside_s / alone_s, 1.3)


# --- backups -------------------------------------------------------------------------------------


def _increments(report: Report, size: Size, kind: str) -> None:
    """Adds what an increment costs after a short history and after one ten times as long."""
    found: list[float] = []
    most = 5_000 if size.quick else 200_000
    for events in (most // 10, most):
        with scratch() as place:
            url = _url(kind, place)
            _fill(url, events)
            with holdfast.open(url, durability="none") as hf:
                first_s = _timed(lambda hf=hf, place=place: backup(hf, place / "backup"))
                taken: list[float] = []
                for _ in range(5):
                    for number in range(INCREMENT):
                        hf.conversation("c1").set("n", number)
                    began = time.process_time()
                    point = backup(hf, place / "backup")
                    taken.append(time.process_time() - began)
                    assert point.new_events == INCREMENT
        doing = f"{kind}: a backup of {events:,} events"
        report.rows.append({"doing": doing, "what": "the first", "total_s": round(first_s, 2)})
        cpu_us = round(min(taken) * 1e6)
        what = f"an increment of {INCREMENT} events"
        report.rows.append({"doing": doing, "what": what, "cpu_us": cpu_us})
        found.append(min(taken))
    short, long = found
    report.at_most(
        f"{kind}: an increment after {most:,} events / after {most // 10:,}", long / short, 1.5
    )

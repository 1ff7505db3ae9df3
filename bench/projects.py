"""Projects: the list of what can be begun, the start of a chat, a stop, and what a turn costs.

A list of few tasks is measured against the same of many, and a chat that goes on with the newest
session against one in a project that has no other. A stop is timed from the call that sends it to
the moment when the coordinator, in another process, has taken it, while a command runs.

    python -m bench.projects ROOT    the coordinator whose work is stopped
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from threading import Timer
from typing import Any

import holdfast
from bench.harness import (
    Loop,
    Report,
    Size,
    closing,
    interleave,
    latency_row,
    made,
    percentile,
    ratio,
    scratch,
)
from holdfast.agents import Command, Scripted

SHOWN = 20
FEW, MANY = 100, 10_000
SESSIONS = 1_000
STOPS = 20
SLEEPS = [sys.executable, "-c", "import sys, time; sys.stdin.read(); time.sleep(600)"]


def projects(size: Size) -> Report:
    """The four bars of projects."""
    sessions = 50 if size.quick else SESSIONS
    report = Report(
        f"A project of {MANY:,} tasks; one of {sessions:,} sessions and {size.store:,} events",
        "full where something is written",
    )
    _ready(size, report)
    _chat(size, sessions, report)
    _stop(size, report)
    _turn(report)
    return report


def _ready(size: Size, report: Report) -> None:
    with scratch() as folder, holdfast.open(folder / "store", durability="none") as hf:
        loops: list[Loop] = []
        for count in (FEW, MANY):
            root = folder / f"p{count}"
            root.mkdir()
            project = hf.project(root)
            for number in range(count):
                needs = [f"t{number}"] if number % 4 == 3 else []
                project.tasks.add(f"task {number}", priority=number % 3, depends_on=needs)
            assert len(project.ready(SHOWN)) == SHOWN, "nothing can be begun"
            loops.append(
                Loop(f"{SHOWN} of {count:,}", lambda p=project: p.ready(SHOWN), lambda: None)
            )
        with closing(loops):
            taken = interleave(loops, blocks=size.blocks, operations=size.operations)
        for one in loops:
            report.rows.append({"what": f"ready tasks, {one.name}", **latency_row(taken[one.name])})
        few, many = (taken[one.name] for one in loops)
        report.at_most(f"ready tasks at {MANY:,} / at {FEW}, time", ratio(many, few).value, 1.2)


def _chat(size: Size, sessions: int, report: Report) -> None:
    places = {
        "no other": made("project-empty", lambda path: _fill(path, 1, 2)),
        f"{sessions:,} sessions": made(
            f"project-{sessions}", lambda path: _fill(path, sessions, size.store // sessions)
        ),
    }
    command = [sys.executable, "-m", "holdfast", "project", "chat", "--last", "--script"]

    def run(place: Path) -> None:
        subprocess.run(
            [*command, str(place / "script.json")],
            cwd=place / "shop",
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )

    loops = [Loop(name, lambda p=place: run(p), lambda: None) for name, place in places.items()]
    with closing(loops):
        taken = interleave(loops, blocks=min(size.blocks, 20), operations=2)
    for one in loops:
        report.rows.append({"what": f"chat --last, {one.name}", **latency_row(taken[one.name])})
    empty, full = (taken[one.name] for one in loops)
    what = f"chat --last on {sessions:,} sessions and {size.store:,} events / on an empty project"
    report.at_most(what, ratio(full, empty).value, 1.5)


def _fill(path: Path, sessions: int, messages: int) -> None:
    root = path / "shop"
    root.mkdir(parents=True)
    (path / "script.json").write_text("{}")
    with holdfast.open(root / ".holdfast", durability="none") as hf:
        project = hf.project(root)
        said = [{"role": "user", "content": "a message"} for _ in range(messages)]
        for number in range(sessions):
            session = project.begin_session(title=f"session {number}")
            project.conversation(session).messages.add_many(said)


def _stop(size: Size, report: Report) -> None:
    waits: list[float] = []
    with scratch() as folder:
        root = folder / "shop"
        root.mkdir()
        command = [sys.executable, "-m", "bench.projects", str(root)]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child,
            holdfast.open(root / ".holdfast") as hf,
        ):
            assert child.stdout is not None
            project = hf.project(root)
            for _ in range(5 if size.quick else STOPS):
                assert child.stdout.readline() == "at work\n"
                began = time.perf_counter()
                revision = project.send("stop")
                assert project.await_taken(revision)
                waits.append(time.perf_counter() - began)
                assert child.stdout.readline() == "stopped\n"
            child.kill()
    times = {"p50_ms": 1e3 * percentile(waits, 0.5), "p99_ms": 1e3 * percentile(waits, 0.99)}
    report.rows.append({"what": "a stop, until it is taken", **times})
    report.at_most("a stop while a command runs, taken after, slowest", max(waits), 0.5, "s")


def _at_work(root: Path) -> None:
    """Works on a task whose agent takes long, and goes on after each stop."""
    with holdfast.open(root / ".holdfast") as hf:
        hf.runs.use_executor(Command(SLEEPS))
        with hf.project(root).coordinate() as main:
            task = main.tasks.add("it takes long")
            while True:
                Timer(1.0, lambda: print("at work", flush=True)).start()
                result = main.resume() or [main.work(task)]
                assert result[0].status == "stopped", result
                print("stopped", flush=True)


def _turn(report: Report) -> None:
    counts: list[int] = []
    for turns in (1, 11):
        answers = ["more\nstatus: continue"] * (turns - 1) + ["done"]
        with scratch() as folder, holdfast.open(folder / "s") as hf:
            hf.runs.use_executor(Scripted({"sessions": [{"match": "", "answer": answers}]}))
            (folder / "shop").mkdir()
            with hf.project(folder / "shop").coordinate() as main:
                task = main.tasks.add("count it")
                seen: list[Any] = []
                over = hf.observe(seen.append)
                main.work(task)
                over()
                counts.append(sum(one.kind == "commit" for one in seen))
    report.at_most("commits of one turn of a scripted agent", (counts[1] - counts[0]) / 10, 5)


if __name__ == "__main__":
    _at_work(Path(sys.argv[1]))

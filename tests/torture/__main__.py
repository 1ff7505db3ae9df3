"""The torture programme: everything there is, in slices that can be stopped and gone on with.

    python -m tests.torture                          go on where the last run stopped
    python -m tests.torture --list                   what there is, and how far it is
    python -m tests.torture --minutes 150            stop after so long
    python -m tests.torture t4-files t4-sqlite       only these
    python -m tests.torture t4-files --points 0:100  these points only, without keeping progress
    python -m tests.torture t4-files --seed 7 --point 123 [--plant no-sync]    one again

Progress, seeds and counts are in .torture/progress.json. Ctrl-C keeps what was done.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.torture.programme import COMMAND, Programme, is_row, programmes, row_of
from tests.torture.slices import Result, Slice, run

PROGRESS = Path(".torture/progress.json")
SLICE_S = 10.0
"""How long a slice should take: what a stop loses at most."""
FAILURES_KEPT = 20


class Progress:
    """How far each programme is; kept in a file after each slice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._rows = json.loads(path.read_text())

    def row(self, name: str, seed: int | None = None) -> dict[str, Any]:
        empty = {"seed": seed or time.time_ns() % 1_000_000, "next": 0, "points": 0, "cases": 0}
        return self._rows.setdefault(name, {**empty, "seconds": 0.0, "done": False, "failures": []})

    def add(self, name: str, points: range, result: Result) -> None:
        row = self.row(name)
        row["next"] = points.stop
        row["points"] += result.points
        row["cases"] += result.cases
        row["seconds"] = round(row["seconds"] + result.seconds, 1)
        row["done"] = row["done"] or result.is_end
        if result.failure:
            kept = {"command": result.command, "text": result.failure}
            row["failures"] = [*row["failures"], kept][-FAILURES_KEPT:]
        self.save()

    def finish(self, name: str) -> None:
        self.row(name)["done"] = True
        self.save()

    def save(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(self._rows, indent=1))
        draft.rename(self._path)


def advance(
    programme: Programme, progress: Progress, *, until: float, jobs: int, place: Path
) -> bool:
    """Tries points of a programme until its end or the time is up; False if it has a failure."""
    row = progress.row(programme.name)
    width = 1
    was_broken = False

    def ranges() -> Iterator[range]:
        at: int = row["next"]
        while (programme.points is None or at < programme.points) and time.monotonic() < until:
            stop = at + width if programme.points is None else min(at + width, programme.points)
            yield range(at, stop)
            at = stop

    waiting = ranges()
    working: list[Slice] = []
    while not row["done"] and not was_broken:
        while len(working) < jobs and (points := next(waiting, None)) is not None:
            working.append(Slice(programme, row["seed"], points, "", place))
        if not working:
            break
        first = working.pop(0)
        result = first.wait()
        progress.add(programme.name, first.points, result)
        was_broken = bool(result.failure)
        if result.points:
            width = max(1, min(5000, int(SLICE_S * result.points / max(result.seconds, 0.001))))
        _tell(programme, row)
    for left in working:
        left.wait()
    if programme.points is not None and row["next"] >= programme.points:
        progress.finish(programme.name)
    if row["failures"]:
        for failure in row["failures"]:
            print(f"\nFAILED {programme.name}\n{failure['text']}\nReplay it: {failure['command']}")
    return not row["failures"]


def _tell(programme: Programme, row: dict[str, Any]) -> None:
    end = f" of {programme.points:,}" if programme.points else ""
    rate = row["points"] / max(row["seconds"], 0.001)
    text = f"{programme.name:<14} {row['points']:>8,}{end} points, {row['cases']:,} cases, "
    text += f"{row['seconds']:,.0f} s, {rate:,.1f} a second, seed {row['seed']}"
    print(f"\r{text}" if sys.stdout.isatty() else text, flush=True)


def replay(programme: Programme, given: argparse.Namespace, numbers: range, place: Path) -> int:
    """Tries these points here and now, and says what came of it as one line of JSON at the end."""
    seed: int = given.seed or 1
    result = run(programme, seed, numbers, given.plant, place, given.seconds)
    if result.failure:
        print(f"FAILED {programme.name}: {programme.promise}\n{result.failure}")
        print(f"Replay it: {result.command}", flush=True)
    print(json.dumps({"programme": programme.name, "seed": seed, **dataclasses.asdict(result)}))
    return int(bool(result.failure))


def show(chosen: list[Programme], progress: Progress) -> None:
    for one in chosen:
        row = progress.row(one.name)
        state = "done" if row["done"] else f"at {row['next']}"
        state = "FAILED" if row["failures"] else state
        goal = f"{one.points:,}" if one.points else "all"
        counts = f"{row['cases']:>9,} cases {row['seconds']:>7,.0f} s  {state:<10}"
        print(f"{one.name:<16} {goal:>8} points  {counts} {one.promise}")


def main(arguments: list[str]) -> int:
    # Only what was asked for: half a second of imports for each of the tests' 300 processes.
    known = programmes({row_of(word) for word in arguments if is_row(word)})
    parser = argparse.ArgumentParser(prog=COMMAND, description="The torture programme.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--list", action="store_true", help="what there is, and how far it is")
    parser.add_argument("--minutes", type=float, default=150.0, help="stop after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="instead of a new one, or the one in progress")
    parser.add_argument("--point", type=int, help="try only this one")
    parser.add_argument("--points", help="try only these, A:B or A:B:STEP")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of --points, at most")
    parser.add_argument("--plant", default="", help="plant this fault first")
    parser.add_argument("--fresh", action="store_true", help="forget the progress kept")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(programmes())}")
    chosen = [known[name] for name in given.names or known]
    if given.fresh:
        PROGRESS.unlink(missing_ok=True)
    progress = Progress(PROGRESS)
    if given.list:
        show(chosen, progress)
        return 0
    place = Path(tempfile.mkdtemp(prefix="holdfast-torture-"))
    if given.point is not None or given.points:
        if len(chosen) != 1:
            parser.error("--point and --points need one name")
        text = given.points or f"{given.point}:{given.point + 1}"
        numbers = range(*(int(part) for part in text.split(":")))
        code = replay(chosen[0], given, numbers, place)
    else:
        until = time.monotonic() + given.minutes * 60
        kept = [_advance_all(one, progress, given, until, place) for one in chosen]
        show(chosen, progress)
        code = int(not all(kept))
    if code == 0:
        shutil.rmtree(place, ignore_errors=True)
    else:
        print(f"What is left of the failed points is in {place}")
    return code


def _advance_all(
    one: Programme, progress: Progress, given: argparse.Namespace, until: float, place: Path
) -> bool:
    if one.needs_root and os.geteuid() != 0:
        print(f"{one.name}: left out, it needs root")
        return True
    progress.row(one.name, given.seed)
    return advance(one, progress, until=until, jobs=given.jobs, place=place)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

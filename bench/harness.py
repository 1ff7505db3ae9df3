"""Interleaved measurement: contenders take turns in one run, and are compared block by block.

The speed of a disk drifts by a factor of four within an hour, so two figures taken minutes apart
cannot be compared. Blocks of operations alternate between the contenders; a ratio is the median of
the quotients of neighbouring blocks, with a bootstrap interval.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from bench import machine

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench" / "out"
RESAMPLES = 10_000
SEED = 20_261


@dataclass(frozen=True)
class Size:
    """How much is measured. The small size shows that everything works, not what it costs."""

    quick: bool

    @property
    def blocks(self) -> int:
        return 12 if self.quick else 100

    @property
    def operations(self) -> int:
        return 20

    @property
    def turns(self) -> int:
        return 200 if self.quick else 1_000

    @property
    def conversations(self) -> int:
        return 1 if self.quick else 3

    @property
    def short(self) -> int:
        """Returns the number of short conversations in which early turns are timed."""
        return 3 if self.quick else 30

    @property
    def long(self) -> int:
        """Returns the length of a long history."""
        return 5_000 if self.quick else 100_000

    @property
    def store(self) -> int:
        """Returns the number of events of a large store."""
        return 20_000 if self.quick else 1_000_000


@dataclass(frozen=True)
class Block:
    """One turn of a contender: wall time of the whole, and of each operation."""

    seconds: float
    latencies: list[float]


class Contender(Protocol):
    """Something that can do the same operation again and again."""

    name: str

    def block(self, operations: int) -> Block: ...
    def close(self) -> None: ...


class Loop:
    """A contender made of one function that does one operation."""

    def __init__(
        self, name: str, operation: Callable[[], object], close: Callable[[], object]
    ) -> None:
        self.name = name
        self._operation = operation
        self._close = close

    def block(self, operations: int) -> Block:
        return timed(self._operation, operations)

    def close(self) -> None:
        self._close()


def timed(operation: Callable[[], object], operations: int) -> Block:
    """Does the operation so many times and times each."""
    now = time.perf_counter
    latencies: list[float] = []
    start = begin = now()
    for _ in range(operations):
        operation()
        end = now()
        latencies.append(end - begin)
        begin = end
    return Block(begin - start, latencies)


def interleave(
    contenders: Sequence[Contender], *, blocks: int, operations: int, warm_up: int = 2
) -> dict[str, list[Block]]:
    """Lets the contenders take turns, in alternating order, and returns the blocks of each."""
    taken: dict[str, list[Block]] = {contender.name: [] for contender in contenders}
    for number in range(-warm_up, blocks):
        for contender in contenders if number % 2 else reversed(contenders):
            block = contender.block(operations)
            if number >= 0:
                taken[contender.name].append(block)
    return taken


@contextmanager
def closing(contenders: Sequence[Contender]) -> Iterator[None]:
    """Closes every contender, whatever happens."""
    with ExitStack() as stack:
        for contender in contenders:
            stack.callback(contender.close)
        yield


@dataclass(frozen=True)
class Ratio:
    """How many times as long as the other: median over blocks, with a 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}..{self.high:.2f}]"


def ratio(mine: Sequence[Block], other: Sequence[Block]) -> Ratio:
    """Returns the median quotient of neighbouring blocks, with its bootstrap interval."""
    quotients = [a.seconds / b.seconds for a, b in zip(mine, other, strict=True)]
    chance = random.Random(SEED)
    medians = sorted(median(chance.choices(quotients, k=len(quotients))) for _ in range(RESAMPLES))
    return Ratio(median(quotients), *_interval(medians))


def ratio_of_totals(mine: Sequence[Block], other: Sequence[Block]) -> Ratio:
    """Returns the quotient of the whole times; for work whose cost changes along the way."""
    pairs = [(a.seconds, b.seconds) for a, b in zip(mine, other, strict=True)]
    chance = random.Random(SEED)

    def quotient(sample: Sequence[tuple[float, float]]) -> float:
        return sum(a for a, _ in sample) / sum(b for _, b in sample)

    drawn = sorted(quotient(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return Ratio(quotient(pairs), *_interval(drawn))


def _interval(ordered: Sequence[float]) -> tuple[float, float]:
    return ordered[int(len(ordered) * 0.025)], ordered[int(len(ordered) * 0.975)]


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def latency_row(blocks: Sequence[Block]) -> dict[str, Any]:
    """Returns p50, p99 and rate of a contender's blocks, ready for a table."""
    latencies = [seconds for block in blocks for seconds in block.latencies]
    rate = median(len(block.latencies) / block.seconds for block in blocks)
    return {
        "p50_ms": round(percentile(latencies, 0.50) * 1e3, 4),
        "p99_ms": round(percentile(latencies, 0.99) * 1e3, 4),
        "per_s": round(rate),
    }


@dataclass(frozen=True)
class Bar:
    """What was asked for, and what was found."""

    what: str
    asked: str
    found: str
    kept: bool


@dataclass(frozen=True)
class Speed:
    """How many times as fast as a contender holdfast of one kind does the same."""

    doing: str
    what: str
    kind: str
    times: float
    low: float
    high: float


@dataclass
class Report:
    """The outcome of one benchmark."""

    title: str
    durability: str
    speeds: list[Speed] = field(default_factory=list)
    releases: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Milliseconds of an operation by its number, for a plot."""
    seconds: float = 0.0

    def speed(self, doing: str, what: str, kind: str, found: Ratio) -> None:
        """Adds how many times as fast as a contender holdfast of one kind is."""
        self.speeds.append(Speed(doing, what, kind, found.value, found.low, found.high))

    def at_most(self, what: str, found: float, limit: float, unit: str = "") -> None:
        self.bars.append(Bar(what, f"<= {limit:g}{unit}", f"{found:.3g}{unit}", found <= limit))

    def at_least(self, what: str, found: float, limit: float, unit: str = "") -> None:
        self.bars.append(Bar(what, f">= {limit:g}{unit}", f"{found:.3g}{unit}", found >= limit))


@contextmanager
def scratch() -> Iterator[Path]:
    """Gives a directory on the disk that the checkout is on: elsewhere might be memory."""
    place = OUT / f"scratch-{os.getpid()}-{time.monotonic_ns()}"
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


_made = OUT / f"made-{os.getpid()}"


def made(name: str, build: Callable[[Path], object]) -> Path:
    """Returns a place that is built once in a run: large stores serve several benchmarks."""
    place = _made / name
    if not place.exists():
        place.mkdir(parents=True)
        build(place)
    return place


def forget_made() -> None:
    """Removes what was built for the run."""
    shutil.rmtree(_made, ignore_errors=True)


def show(report: Report) -> None:
    """Prints a report as a table."""
    print(f"\n## {report.title}\ndurability: {report.durability}")
    columns = list(dict.fromkeys(column for row in report.rows for column in row))
    table(columns, [[cell(row.get(column)) for column in columns] for row in report.rows])
    for note in report.notes:
        print(f"  note: {note}")
    sys.stdout.flush()


def show_bars(reports: dict[str, Report], *, judged: bool) -> None:
    """Prints what was asked for beside what was found."""
    print("\n## Bars" + ("" if judged else " (too small a run to judge by)"))
    rows = [
        [name, bar.what, bar.asked, bar.found, ("kept" if bar.kept else "MISSED") if judged else ""]
        for name, report in reports.items()
        for bar in report.bars
    ]
    table(["", "what", "asked", "found", ""], rows)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints columns as wide as they need to be, numbers to the right."""
    number = re.compile(r"-?[\d.,]+(e[+-]\d+)?( \D{0,12})?$")
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, *rows]:
        cells = [
            cell.rjust(width) if number.match(cell) else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        print("  " + "  ".join(cells).rstrip())


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def save(reports: dict[str, Report], *, size: Size, seconds: float, load: float) -> Path:
    """Writes the run to one JSON file and returns its path."""
    OUT.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = OUT / f"{stamp}{'-quick' if size.quick else ''}.json"
    run = {
        "started": stamp,
        "seconds": round(seconds, 1),
        "quick": size.quick,
        "machine": {**machine.describe(), "load": {"before": load, "after": os.getloadavg()[0]}},
        "reports": {name: asdict(report) for name, report in reports.items()},
    }
    path.write_text(json.dumps(run, indent=1, default=str) + "\n")
    return path

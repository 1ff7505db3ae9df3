"""Sealing and encryption at rest: what they add to a commit and to a cold fold, and what an
erasure touches.

python -m bench.sealing [EVENTS], in processor time, which a busy machine changes least. Commits are
without their sync (durability `none`), of values of 1 KB, in a subject's scope and in one of
nobody's, turn by turn. A fold is that of a new handle, without snapshots. The erasure is of one
subject with ten events, in a store with few others and in one with many. Encryption at rest is
compared with a plain store beside it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import holdfast
from holdfast import Settings
from holdfast.scope import Scope

VALUE = "x" * 1000
BLOCK = 500
BLOCKS = 9
FOLD_EVENTS = 5_000


def spent(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def write(scope: Scope, count: int) -> None:
    for number in range(count):
        scope.set(f"k{number % 50}", VALUE)


def opened(place: Path) -> holdfast.Store:
    return holdfast.open(
        place / "store", keys=place / "keys", durability="none", settings=Settings(clear_ids=True)
    )


def commits(place: Path) -> None:
    with opened(place) as hf:
        sealed, plain = hf.team("sealed", subject="ada"), hf.team("plain")
        write(sealed, BLOCK)
        write(plain, BLOCK)
        ratios: list[float] = []
        costs: list[float] = []
        for _ in range(BLOCKS):
            one = spent(lambda: write(plain, BLOCK))
            other = spent(lambda: write(sealed, BLOCK))
            ratios.append(other / one)
            costs.append((other - one) / BLOCK * 1e6)
    print(f"commit of 1 KB: {median(ratios):.2f} times a plain one, {median(costs):.1f} us more")


def folds(place: Path) -> None:
    with opened(place) as hf:
        hf._log.snapshots.grown = lambda *_: None  # type: ignore[method-assign]
        for name, subject in (("plain", None), ("sealed", "ada")):
            write(hf.team(name, subject=subject), FOLD_EVENTS)
        hf._log.snapshots.growth.clear()
    took: dict[str, list[float]] = {"plain": [], "sealed": []}
    for _ in range(BLOCKS):
        for name, times in took.items():
            with opened(place) as hf:
                times.append(spent(lambda hf=hf, name=name: len(hf.team(name).state)))
                hf._log.snapshots.growth.clear()
    quotient = median(took["sealed"]) / median(took["plain"])
    print(f"cold fold of {FOLD_EVENTS:,} events: {quotient:.2f} times a plain one")


def encrypted(place: Path) -> None:
    places = {name: place / name for name in ("plain", "encrypted")}
    keys = {"plain": None, "encrypted": b"k" * 32}
    stores = {
        name: holdfast.open(at, durability="none", store_key=keys[name])
        for name, at in places.items()
    }
    ratios: list[float] = []
    for block in range(BLOCKS + 1):
        one, other = (spent(lambda hf=hf: write(hf.team("red"), BLOCK)) for hf in stores.values())
        if block:
            ratios.append(other / one)
    for hf in stores.values():
        hf._log.snapshots.growth.clear()
        hf.close()
    took: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(BLOCKS):
        for name, at in places.items():
            with holdfast.open(at, store_key=keys[name]) as hf:
                took[name].append(spent(lambda hf=hf: list(hf.team("red").history())))
    quotient = median(took["encrypted"]) / median(took["plain"])
    print(
        f"encrypted at rest: a commit of 1 KB {median(ratios):.2f} times a plain one, "
        f"{BLOCK * (BLOCKS + 1):,} events read {quotient:.2f} times"
    )


def erasures(place: Path, others: int) -> None:
    with opened(place) as hf:
        for number in range(others):
            hf.team(f"t{number % 100}").set("n", number)
        write(hf.team("ada", subject="ada"), 10)
        took = spent(lambda: hf.subjects.erase("ada"))
    print(f"erasing 10 events among {others:,}: {took * 1e3:.1f} ms")


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    for work in (commits, folds, encrypted):
        work(Path(tempfile.mkdtemp(prefix="bench-sealing-")))
    for others in (most // 100, most):
        erasures(Path(tempfile.mkdtemp(prefix="bench-sealing-")), others)


if __name__ == "__main__":
    main()

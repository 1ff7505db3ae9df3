"""(f) and (g): one change in a wide state; what an import costs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

from bench.harness import ROOT, Block, Report, Size, percentile, ratio, timed
from holdfast.core import tree

KEYS = 100_000
SIDE = 316
CHANGE_US = 5
KEPT_BYTES = 15_000
IMPORT_TIMES = 1.5
HELD = 1_000

Shape = tuple[dict[str, Any], Callable[[int], tuple[str | int, ...]]]


def shapes() -> dict[str, Shape]:
    """Returns states of 100,000 leaves, and the path of the n-th change to each."""
    level = {f"key {n}": n for n in range(SIDE)}
    return {
        "one level": ({f"key {n}": n for n in range(KEYS)}, lambda n: (f"key {n * 7 % KEYS}",)),
        "316 by 316": (
            {f"key {n}": dict(level) for n in range(SIDE)},
            lambda n: (f"key {n % SIDE}", f"key {n * 7 % SIDE}"),
        ),
        "a list": ({"items": list(range(KEYS))}, lambda n: ("items", n * 7 % KEYS)),
    }


def wide_state(size: Size) -> Report:
    """(f) One leaf changed in a state of 100,000, every old state kept."""
    report = Report(f"(f) one key changed in a state of {KEYS:,} keys", "in memory")
    for shape, (value, path) in shapes().items():
        held: list[Any] = [tree.freeze(value)]
        ops = [tree.set_op(path(n), -n) for n in range(2 * HELD + 100)]
        pending = iter(ops)

        def change(held: list[Any] = held, pending: Any = pending) -> None:
            held.append(tree.apply(held[-1], [next(pending)], revision=len(held)))

        timed(change, 100)
        block = timed(change, HELD)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        timed(change, HELD)
        gc.collect()
        kept = (tracemalloc.get_traced_memory()[0] - before) / HELD
        tracemalloc.stop()
        middle = percentile(block.latencies, 0.5) * 1e6
        worst = percentile(block.latencies, 0.99) * 1e6
        report.rows.append(
            {
                "what": shape,
                "p50_us": round(middle, 2),
                "p99_us": round(worst, 2),
                "kept_bytes": round(kept),
            }
        )
        report.at_most(f"one key of {KEYS:,}, {shape}", middle, CHANGE_US, " us")
        report.at_most(f"kept for it, {shape}", kept, KEPT_BYTES, " bytes")
    return report


def import_time(size: Size) -> Report:
    """(g) `import holdfast`, against importing everything else that it loads."""
    report = Report("(g) import", "irrelevant")
    loaded = _modules_of("import holdfast") - _modules_of("")
    foreign = sorted(name for name in loaded if name.partition(".")[0] != "holdfast")
    programs = {
        "its dependencies": "".join(f"import {name}\n" for name in foreign),
        "holdfast": "import holdfast",
        "msgspec alone": "import msgspec",
    }
    taken: dict[str, list[Block]] = {name: [] for name in programs}
    for _ in range(8 if size.quick else 40):
        for name, program in programs.items():
            seconds = float(_python(_TIMED.format(program=program)))
            taken[name].append(Block(seconds, [seconds]))
    for name, blocks in taken.items():
        latencies = [block.seconds * 1e3 for block in blocks]
        middle, worst = percentile(latencies, 0.5), percentile(latencies, 0.99)
        report.rows.append({"what": name, "p50_ms": round(middle, 2), "p99_ms": round(worst, 2)})
    found = ratio(taken["holdfast"], taken["its dependencies"])
    report.notes.append(f"{found} times importing the {len(foreign)} modules that it loads")
    report.at_most("import / import of its dependencies", found.value, IMPORT_TIMES)
    unwanted = {name for name in loaded if name == "asyncio" or name == "apsw"}
    report.at_most("asyncio and drivers loaded by it", len(unwanted), 0)
    return report


_TIMED = """
import time
begin = time.perf_counter()
{program}
print(time.perf_counter() - begin)
"""


def _python(program: str) -> str:
    # Bytecode is kept, as on any machine where it was installed: compiling is not importing.
    kept = {name: os.environ[name] for name in os.environ.keys() - {"PYTHONDONTWRITEBYTECODE"}}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=kept,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def _modules_of(program: str) -> set[str]:
    return set(_python(f"{program}\nimport sys\nprint(*sys.modules)").split())

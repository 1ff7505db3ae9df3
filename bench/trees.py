"""This tree beside an older one, in one interleaved run: python -m bench.trees OTHER_CHECKOUT.

    git worktree add /tmp/before SOME_COMMIT
    .venv/bin/python -m bench.trees /tmp/before [--blocks 20]

Each tree has a process of its own with the same interpreter and dependencies, and only the public
API is called. The two take turns, block by block, so that a slow disk or a busy neighbour slows
both. The table has the median of a block for each, and the ratio: below 1, this tree is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent.parent

WORKER = r"""
import json, sys, threading, time
import holdfast

KIND, PLACE = sys.argv[1:]
url = PLACE if KIND == "files" else f"sqlite:{PLACE}.db"
hf = holdfast.open(url)
chat, talk = hf.conversation("c"), hf.conversation("t")
value = {"text": "x" * 900, "n": 0}


@holdfast.step(effect="pure")
def pure(ctx, n):
    return n


@holdfast.step(effect="effect")
def effect(ctx, n):
    return n


@holdfast.run
def steps(ctx, kind, count):
    one = pure if kind == "pure" else effect
    for n in range(count):
        one(n)


def one_writer():
    for n in range(100):
        chat.set("value", value)
    return 100


def reading():
    for n in range(2000):
        chat.get("value")
    return 2000


def conversation():
    for n in range(100):
        talk.say("x" * 200)
    return 100


def many_writers():
    def write(scope):
        for n in range(10):
            scope.set("value", value)
    threads = [threading.Thread(target=write, args=(hf.team(f"t{n}"),)) for n in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 640


def pure_steps():
    hf.runs.start(steps, "pure", 200).result()
    return 200


def effect_steps():
    hf.runs.start(steps, "effect", 50).result()
    return 50


for line in sys.stdin:
    name = json.loads(line)
    start = time.perf_counter()
    count = globals()[name]()
    print(json.dumps((time.perf_counter() - start) / count), flush=True)
"""
ROWS = {
    "a: one writer, 1 KB": "one_writer",
    "read of the newest": "reading",
    "b: a message": "conversation",
    "c: 64 writers": "many_writers",
    "runs: a pure step": "pure_steps",
    "runs: an effect step": "effect_steps",
}


class Tree:
    """A checkout, with one process per backend that does what it is told."""

    def __init__(self, checkout: Path, kind: str, place: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, kind, place],
            env={**os.environ, "PYTHONPATH": str(checkout / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def perform(self, name: str) -> float:
        """Returns the seconds that one operation of a block took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(name) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(other: Path, blocks: int) -> list[dict[str, Any]]:
    """Returns a row for each operation and embedded backend."""
    rows: list[dict[str, Any]] = []
    for kind in ("files", "sqlite"):
        with tempfile.TemporaryDirectory(prefix="holdfast-trees-") as scratch:
            trees = [
                Tree(checkout, kind, str(Path(scratch) / name))
                for checkout, name in ((HERE, "new"), (other, "old"))
            ]
            for row, name in ROWS.items():
                taken: list[list[float]] = [[], []]
                for block in range(blocks + 1):
                    order = (0, 1) if block % 2 else (1, 0)
                    for which in order:
                        seconds = trees[which].perform(name)
                        if block:  # the first one warms up
                            taken[which].append(seconds)
                new, old = (median(one) * 1e6 for one in taken)
                pairs = [mine / theirs for mine, theirs in zip(*taken, strict=True)]
                found = {"row": row, "backend": kind, "new_us": new, "old_us": old}
                rows.append({**found, "ratio": median(pairs)})
            for tree in trees:
                tree.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.trees")
    parser.add_argument("other", type=Path, help="another checkout of this project")
    parser.add_argument("--blocks", type=int, default=20)
    arguments = parser.parse_args()
    print(f"{'operation':<22} {'backend':<8} {'this µs':>9} {'other µs':>9} {'ratio':>6}")
    for row in compare(arguments.other.resolve(), arguments.blocks):
        numbers = f"{row['new_us']:>9.1f} {row['old_us']:>9.1f} {row['ratio']:>6.2f}"
        print(f"{row['row']:<22} {row['backend']:<8} {numbers}")


if __name__ == "__main__":
    main()

"""Backups: what an increment costs, by how much there is: python -m bench.backups [EVENTS].

An increment of 100 events after a short history and after a long one, in processor time, which a
busy machine changes least. It reads only what is new, so the two differ by the digest of the whole
alone, which is a look at each stream of the backup. Beside it the first backup, and a copy of the
same store, which does the same work without reading it back.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import holdfast
from holdfast.backup import backup
from holdfast.copy import copy

STREAMS = 200
NEW = 100


def fill(hf: holdfast.Store, count: int) -> None:
    for n in range(count):
        hf.conversation(f"c{n % STREAMS}").set("n", n)


def spent(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    for kind in ("files", "sqlite"):
        for count in (most // 10, most):
            place = Path(tempfile.mkdtemp(prefix="bench-backups-"))
            url = str(place / "store") if kind == "files" else f"sqlite:{place / 'store.db'}"
            with holdfast.open(url, durability="none") as hf:
                fill(hf, count)
                first = spent(lambda hf=hf, place=place: backup(hf, place / "backup"))
                with holdfast.open(place / "copy") as target:
                    whole = spent(lambda hf=hf, target=target: copy(hf, target))
                increments: list[float] = []
                for _ in range(5):
                    fill(hf, NEW)
                    increments.append(
                        spent(lambda hf=hf, place=place: backup(hf, place / "backup"))
                    )
            print(
                f"{kind:<7} {count:>8,} events: first {first:6.2f} s, copy {whole:6.2f} s "
                f"({first / whole:.2f}), increment of {NEW} {1000 * min(increments):6.1f} ms"
            )
            shutil.rmtree(place)


if __name__ == "__main__":
    main()

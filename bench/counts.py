"""What does not drift: system calls, syncs and bytes of each commit, and processor time.

System calls are counted by strace in a process of its own. The program under measurement looks for
a file that is not there before each operation, and that call is the mark between two operations.
Writes through a mapped page are no system calls and are not counted. Where there is no strace, the
kernel's own count of written bytes and write calls is taken instead, and the report says so.

    python -m bench.counts CONTENDER DIRECTORY OPERATIONS      the program under measurement
    python -m bench.counts --cpu CONTENDER DIRECTORY BLOCKS    processor time, the sync stubbed out
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.harness import ROOT, Loop
from bench.peers import Peer
from bench.workers.__main__ import MARK

SYNCS = {"fsync", "fdatasync", "sync_file_range", "msync"}
WRITES = {"write", "pwrite64", "writev", "pwritev", "pwritev2"}
CONTENDERS = (
    "bare prewritten file",
    "bare append",
    "bare apsw",
    "holdfast files",
    "holdfast sqlite",
)
_CALL = re.compile(r"^\d+\s+(?:<\.\.\. )?(?P<name>\w+)(?P<rest>.*)$")
_RESULT = re.compile(r"= (-?\d+)")


@dataclass(frozen=True)
class Counts:
    """Per operation: the median of each, and the mean of the bytes, where rare work shows."""

    calls: float
    syncs: float
    bytes: float
    bytes_mean: float
    source: str

    def row(self) -> dict[str, object]:
        return {
            "syncs": self.syncs,
            "calls": self.calls,
            "bytes": self.bytes,
            "bytes_mean": round(self.bytes_mean),
        }


def count(contender: str, place: Path, *, operations: int) -> Counts:
    """Returns what one operation of the contender costs, in a process of its own."""
    command = [sys.executable, "-m", "bench.counts", contender, str(place), str(operations)]
    strace = shutil.which("strace")
    if not strace:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        return Counts(**json.loads(done.stdout), source="/proc/self/io")
    trace = place.parent / f"{place.name}.trace"
    subprocess.run([strace, "-f", "-o", str(trace), *command], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    return parse(trace.read_text(errors="replace").splitlines())


def count_worker(
    worker: str, place: Path, operation: str, *, operations: int, **options: Any
) -> Counts | None:
    """Returns syncs and bytes of a worker's operation, or None where there is no strace.

    Only the calls that matter are traced, so that a peer's long import is over soon; the number of
    calls is not to be had this way.
    """
    strace = shutil.which("strace")
    if not strace:
        return None
    place.mkdir(parents=True)
    trace = place / "trace"
    wanted = ",".join(sorted(SYNCS | WRITES | {"?access", "faccessat", "faccessat2"}))
    under = [strace, "-f", "--seccomp-bpf", "-e", f"trace={wanted}", "-o", str(trace)]
    peer = Peer(worker, worker, place / "db", under=under, **options)
    peer.block(operation, 3)
    peer.ask(do="marked", operation=operation, operations=operations)
    peer.close()
    return parse(trace.read_text(errors="replace").splitlines())


def parse(lines: list[str]) -> Counts:
    """Returns the counts of a trace: everything between two marks belongs to one operation."""
    calls: list[int] = []
    syncs: list[int] = []
    written: list[int] = []
    for line in lines:
        if MARK in line:
            calls.append(0)
            syncs.append(0)
            written.append(0)
            continue
        match = _CALL.match(line)
        if not calls or not match:
            continue
        name, rest = match["name"], match["rest"]
        if "resumed>" not in rest:
            calls[-1] += 1
            syncs[-1] += name in SYNCS
        result = _RESULT.search(rest.rpartition(")")[2])
        if name in WRITES and result:
            written[-1] += max(0, int(result[1]))
    # What follows the last mark is the end of the program, not an operation.
    return Counts(
        calls=median(calls[:-1]),
        syncs=median(syncs[:-1]),
        bytes=median(written[:-1]),
        bytes_mean=mean(written[:-1]),
        source="strace",
    )


def cpu_us(contender: str, place: Path, *, blocks: int) -> float:
    """Returns microseconds of processor time per operation, the sync stubbed out."""
    command = [sys.executable, "-m", "bench.counts", "--cpu", contender, str(place), str(blocks)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return float(done.stdout)


def _contender(name: str, place: Path, *, synced: bool) -> Loop:
    from bench import bare

    place.mkdir(parents=True, exist_ok=True)
    if name == "bare prewritten file":
        return bare.prewritten_loop(place / "file")
    if name == "bare append":
        return bare.append_loop(place / "file")
    if name == "bare apsw":
        return bare.sqlite_loop(place / "db", synchronous="FULL" if synced else "OFF")
    from bench import ours

    kind = name.removeprefix("holdfast ")
    hf = ours.open_store(kind, place, durability="full" if synced else "process")
    chat = hf.conversation("c1")
    return Loop(name, ours.turns(chat, first=chat.revision + 1), hf.close)


def _measure(name: str, place: Path, operations: int) -> dict[str, float]:
    """Does the operations with marks between them; counts what the kernel counts for us."""
    syncs = 0
    real_sync = os.fdatasync

    def counted_sync(file: int) -> None:
        nonlocal syncs
        syncs += 1
        real_sync(file)

    os.fdatasync = counted_sync
    loop = _contender(name, place, synced=True)
    loop.block(3)
    before, syncs = _written(), 0
    for _ in range(operations):
        os.access(MARK, os.F_OK)
        loop.block(1)
    os.access(MARK, os.F_OK)
    after = _written()
    loop.close()
    size = (after[0] - before[0]) / operations
    calls = (after[1] - before[1]) / operations
    return {"calls": calls, "syncs": syncs / operations, "bytes": size, "bytes_mean": size}


def _written() -> tuple[int, int]:
    io = Path("/proc/self/io")
    if not io.exists():
        return 0, 0
    fields = dict(line.split(": ") for line in io.read_text().splitlines())
    return int(fields["wchar"]), int(fields["syscw"])


def _measure_cpu(name: str, place: Path, blocks: int) -> float:
    # Before anything of ours is imported, so that no module has a name for the real one.
    os.fdatasync = os.fsync = lambda _file: None
    loop = _contender(name, place, synced=False)
    loop.block(200)
    spent: list[float] = []
    for _ in range(blocks):
        begin = time.process_time()
        loop.block(200)
        spent.append((time.process_time() - begin) / 200)
    loop.close()
    return median(spent) * 1e6


if __name__ == "__main__":
    if sys.argv[1] == "--cpu":
        print(_measure_cpu(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
    else:
        print(json.dumps(_measure(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))

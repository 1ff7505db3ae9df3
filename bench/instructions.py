"""Instructions of one commit: what neither a slow disk nor a busy neighbour can change.

Counted by callgrind in the worker's own process, all threads, from the moment when it is ready:
`valgrind --tool=callgrind --instr-atstart=no`, switched on by callgrind_control for one block.
Only what runs outside the kernel is counted, so a sync is next to nothing here; the number of syncs
stands beside it. Without valgrind the table is left out, and the report says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import counts
from bench.harness import Report, Size, scratch
from bench.peers import Peer

_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)
WARM = 20


@dataclass(frozen=True)
class Counted:
    """A worker, and which of its operations is one commit of one message."""

    name: str
    worker: str
    operation: str = "append"
    options: dict[str, Any] = field(default_factory=dict)
    slow: bool = False
    """Left out of a quick run: its import alone takes half a minute under valgrind."""


COUNTED = (
    Counted("bare prewritten file", "bare", options={"kind": "file"}),
    Counted("bare apsw", "bare", options={"kind": "apsw"}),
    Counted("holdfast files", "holdfast", options={"kind": "files"}),
    Counted("holdfast sqlite", "holdfast", options={"kind": "sqlite"}),
    Counted("eventsourcing", "eventsourcing"),
    Counted("OpenAI SQLiteSession", "OpenAI SQLiteSession", options={"items": 1}, slow=True),
    Counted("SqliteSaver.put, first turns", "SqliteSaver", "turn", slow=True),
    Counted("ADK SqliteSessionService", "ADK SqliteSessionService", slow=True),
    Counted("AgentFS set", "AgentFS", "set"),
)


def instructions(size: Size) -> Report:
    """Counts the instructions of a commit of one 1 KB message, in and beside holdfast."""
    report = Report("instructions of one commit of one 1 KB message", "full on all sides")
    valgrind = shutil.which("valgrind")
    if not valgrind or not shutil.which("callgrind_control"):
        report.notes.append("valgrind is not installed here: nothing was counted")
        return report
    found: dict[str, float] = {}
    for one in COUNTED:
        if size.quick and one.slow:
            continue
        with scratch() as place:
            operations = 40 if size.quick else 100
            found[one.name] = count(valgrind, one, place / "counted", operations=operations)
            syncs = counts.count_worker(
                one.worker, place / "traced", one.operation, operations=20, **one.options
            )
        row: dict[str, Any] = {
            "what": one.name,
            "instructions": round(found[one.name]),
            "syncs": syncs.syncs if syncs else None,
        }
        report.rows.append(row)
    for row in report.rows:
        for kind in ("files", "sqlite"):
            row[f"times_{kind}"] = round(found[row["what"]] / found[f"holdfast {kind}"], 2)
    report.notes.append("times_files: how many times the instructions of holdfast files")
    return report


def count(valgrind: str, one: Counted, place: Path, *, operations: int) -> float:
    """Returns the instructions of one operation, all threads of the process together."""
    place.mkdir(parents=True)
    under = [valgrind, "--tool=callgrind", "--instr-atstart=no", "--quiet",
             f"--callgrind-out-file={place}/out"]  # fmt: skip
    peer = Peer(one.name, one.worker, place / "db", under=under, **one.options)
    peer.block(one.operation, WARM)
    _control("on", peer.pid)
    peer.block(one.operation, operations)
    _control("off", peer.pid)
    peer.close()
    return total((place / "out").read_text(errors="replace")) / operations


def _control(state: str, pid: int) -> None:
    subprocess.run(["callgrind_control", "-i", state, str(pid)], check=True, capture_output=True)


def total(output: str) -> int:
    """Returns the total of what callgrind wrote."""
    found = _TOTALS.search(output)
    if not found:
        raise ValueError("callgrind wrote no line of totals: is this valgrind older than 3.13?")
    return int(found[1])

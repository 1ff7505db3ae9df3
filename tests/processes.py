"""Whether a process is still there, asked in one look: it may end between two."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

PATIENCE_S = 120.0


def is_running(pid: int) -> bool:
    """Says whether a process runs; one that ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
    try:  # a system without /proc
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def await_end(pids: Iterable[int], patience_s: float = PATIENCE_S) -> None:
    """Returns when none of these processes runs any more."""
    ends = time.monotonic() + patience_s
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < ends, f"processes {left} did not end"
        time.sleep(0.01)

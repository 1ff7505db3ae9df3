"""Which files this process has open, of those that are the test's own."""

from __future__ import annotations

import os
from pathlib import Path


def descriptors(folder: Path) -> list[str]:
    """Returns what is open in a folder, once for each descriptor, removed files included.

    Descriptors elsewhere do not count: a thread that looks at idle stores opens some at any time,
    and so does what an earlier test left to the garbage collector.
    """
    found: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        try:
            leads_to = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # closed since
        if f"{leads_to}/".startswith(f"{folder}/"):
            found.append(leads_to)
    return sorted(found)

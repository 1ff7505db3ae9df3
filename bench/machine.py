"""The machine that a run was made on, as far as it can be known without asking anyone."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_DURABLE = ("data=", "barrier", "nobarrier", "sync", "journal")
_HERE = Path(__file__).resolve().parent


def describe() -> dict[str, Any]:
    """Returns processor, memory, kernel, file system, and the versions of what is measured."""
    import apsw

    return {
        "processor": _first_field("/proc/cpuinfo", "model name") or platform.processor(),
        "processors": os.cpu_count(),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "virtual": "hypervisor" in (_first_field("/proc/cpuinfo", "flags") or "").split(),
        "kernel": _kernel(),
        "file_system": _file_system(),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "versions": {name: _version(name) for name in ("holdfast", "msgspec", "apsw")},
    }


def _kernel() -> str:
    release = ".".join(platform.release().split(".")[:2])
    return f"{platform.system()} {release} {platform.machine()}"


def _first_field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        field, _, value = line.partition(":")
        if field.strip() == name:
            return value.strip()
    return None


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _file_system() -> str:
    """Returns type and options of the mount that the stores are made on, never its place."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    # Of mounts one in another, the longest is the one; of equal ones, the last.
    around = [mount for mount in mounts if _HERE.is_relative_to(mount[1])]
    if not around:
        return "unknown"
    longest = max(len(mount[1]) for mount in around)
    found = [mount for mount in around if len(mount[1]) == longest][-1]
    # The options that bear on durability; a plain ext4 has none of them.
    told = [option for option in found[3].split(",") if option.startswith(_DURABLE)]
    return " ".join([found[2], *told])


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

"""The verb that examines a store and the machine it is on: doctor."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

import holdfast
from holdfast.cli.options import DEFAULTS, Options, command, open_reading
from holdfast.cli.printing import print_facts, print_json, print_table
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.render.store import doctor_document
from holdfast.store import Store

PYTHON_MIN = (3, 11)
SQLITE_MIN = (3, 51, 3)
FREE_BYTES_MIN = 256 << 20
SYNCS = 20
VOLATILE = ("tmpfs", "ramfs")
_MOUNTINFO = Path("/proc/self/mountinfo")


class Examined(Struct, frozen=True):
    """One check: `ok` is None if it is information only; `fix` is what to type or change."""

    check: str
    ok: bool | None
    found: str
    fix: str | None = None


def doctor(*, options: Options = DEFAULTS) -> int:
    """Examine Python, SQLite, disk and store; say how to fix each."""
    results = list(examine(options))
    is_healthy = all(each.ok is not False for each in results)
    if options.json:
        print_json(doctor_document(results, ok=is_healthy))
    else:
        rows = [(mark(each), each.check, each.found) for each in results]
        print_table(("", "check", "found"), rows)
        print_facts(
            [(f"fix {each.check}", each.fix) for each in results if each.fix]
            or [("fix", "nothing")]
        )
    return 0 if is_healthy else 1


def mark(examined: Examined) -> str:
    return {True: "ok", False: "PROBLEM", None: "info"}[examined.ok]


def examine(options: Options) -> Iterator[Examined]:
    """Yields every check in turn; the store's own come only if it can be opened."""
    yield examine_python()
    yield examine_sqlite()
    try:
        store = open_reading(options)
    except HoldfastError as error:
        yield Examined("store", False, error.message, error.hint or command("init", options.place))
        return
    with store:
        facts = store.status()
        yield Examined(
            "store", True, f"{facts['kind']}, format {facts['format']}: {facts['place']}"
        )
        # A store on a server has no path: its disk cannot be examined from here.
        path = Path(facts["path"]) if facts.get("path") else None
        if path is not None:
            yield from examine_place(path)
        yield examine_durability(facts)
        yield examine_reports(facts)
        yield examine_structure(store, options)
    if path is not None:
        yield examine_space(path)
        yield examine_sync(path)


def examine_python() -> Examined:
    found = f"{platform.python_version()}, holdfast {holdfast.__version__}"
    is_new = sys.version_info >= PYTHON_MIN
    return Examined("python", is_new, found, None if is_new else "install Python 3.11 or newer")


def examine_sqlite() -> Examined:
    import apsw

    version = apsw.sqlite_lib_version()
    is_new = tuple(int(part) for part in version.split(".")) >= SQLITE_MIN
    found = f"{version} in apsw"
    if is_new:
        return Examined("sqlite", True, found)
    found += ": it can corrupt a database that several connections use"
    return Examined("sqlite", False, found, "pip install --upgrade apsw")


def examine_place(path: Path) -> Iterator[Examined]:
    """Judges the file system by its kind, and who may read and write what is stored."""
    kind = file_system(path)
    if kind in VOLATILE:
        yield Examined(
            "file system",
            False,
            f"{kind}: it is in memory, and empty after a restart",
            "move the store to a disk",
        )
    else:
        yield Examined("file system", None if kind is None else True, kind or "unknown")
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    who = f"mode {mode:04o}, owner {found.st_uid}"
    if found.st_uid != os.geteuid():
        yield Examined("permissions", False, who, f"run as user {found.st_uid}, or chown it")
    elif mode & 0o077:
        # Who may read is the owner's choice; whoever may write can change what the store holds.
        is_safe, others = (False, "write") if mode & 0o022 else (None, "read")
        fix = f"chmod go-rwx {shlex.quote(str(path))}"
        yield Examined("permissions", is_safe, f"{who}: others can {others} it", fix)
    else:
        yield Examined("permissions", True, who)


def file_system(path: Path) -> str | None:
    """Returns the kind of the file system that holds a path, None where that cannot be known."""
    try:
        device = path.stat().st_dev
        lines = _MOUNTINFO.read_text(errors="replace").splitlines()
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kinds = [
        line.partition(" - ")[2].split(" ", 1)[0] for line in lines if line.split(" ")[2] == wanted
    ]
    return kinds[-1] if kinds else None


def examine_durability(facts: dict[str, Any]) -> Examined:
    promises = {
        "full": "full: what was acknowledged survives a power failure",
        "process": "process: what was acknowledged survives a killed process, not a power failure",
        "none": "none: what was acknowledged may be lost",
    }
    durability = facts["durability"]
    return Examined("durability", durability == "full", promises.get(durability, str(durability)))


def examine_reports(facts: dict[str, Any]) -> Examined:
    reports = [str(report) for report in facts["reports"]]
    if not reports:
        return Examined("recovery", True, "no reports")
    return Examined("recovery", None, "; ".join(reports))


def examine_structure(store: Store, options: Options) -> Examined:
    """Runs the quick check; what it finds harmless can be rebuilt."""
    report = store.check(read_all=False)
    if not report.findings:
        return Examined("structure", True, f"{report.streams} streams, index and heads agree")
    found = "; ".join(f"{finding.where}: {finding.problem}" for finding in report.findings)
    if report.ok:
        return Examined("structure", None, f"{found} (rebuilt when needed)")
    return Examined(
        "structure",
        False,
        found,
        f"copy the store away, then: {command('check --read-all', options.place)}",
    )


def examine_space(path: Path) -> Examined:
    free = shutil.disk_usage(path).free
    found = f"{free / (1 << 30):.1f} GiB free"
    if free >= FREE_BYTES_MIN:
        return Examined("disk space", True, found)
    return Examined("disk space", False, found, "free some: a full disk refuses every write")


def examine_sync(path: Path) -> Examined:
    """Measures how long a sync takes beside the store; it writes to a file without a name."""
    directory = path.parent
    try:
        latencies = measure_syncs(directory)
    except (OSError, UnavailableError) as error:
        return Examined("sync", None, f"not measured: {error}")
    median = latencies[len(latencies) // 2]
    found = f"{median:,} µs for 4 KiB, median of {len(latencies)}, worst {latencies[-1]:,} µs"
    if median < 15:
        found += ": too quick for a disk, so syncs may stop in a cache"
    return Examined("sync", None, found)


def measure_syncs(directory: Path) -> list[int]:
    """Returns sorted microseconds of a few syncs of 4 KiB each in a directory."""
    clock = SystemClock()
    sync = getattr(os, "fdatasync", os.fsync)
    latencies: list[int] = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        file.write(bytes(4096))
        os.fsync(file.fileno())
        for number in range(SYNCS):
            start = clock.boot_us()
            os.pwrite(file.fileno(), bytes([number]) * 4096, 0)
            sync(file.fileno())
            latencies.append(clock.boot_us() - start)
    return sorted(latencies)

"""The verb that examines a store and the machine it is on: doctor."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

import holdfast
from holdfast.cli.options import DEFAULTS, Options, command, open_reading
from holdfast.cli.printing import print_facts, print_json, print_table
from holdfast.clock import SystemClock
from holdfast.core.clocks import AHEAD_US, skew_us, streams_ahead
from holdfast.core.kernel import kernel_of
from holdfast.errors import HoldfastError, UnavailableError, UsageError, show_us
from holdfast.render.store import doctor_document
from holdfast.store import Store

PYTHON_MIN = (3, 11)
SQLITE_MIN = (3, 51, 3)
FREE_BYTES_MIN = 256 << 20
SYNCS = 20
VOLATILE = ("tmpfs", "ramfs")
STREAMS_SHOWN = 5
_MOUNTINFO = Path("/proc/self/mountinfo")


class Examined(Struct, frozen=True):
    """One check: `ok` is None if it is information only; `fix` is what to type or change."""

    check: str
    ok: bool | None
    found: str
    fix: str | None = None


class Patient(Struct, frozen=True):
    """The store that is examined, its status, and where it is on this host."""

    store: Store
    options: Options
    facts: dict[str, Any]
    path: Path | None  # None for a store on a server: its disk cannot be examined from here

    @property
    def servers(self) -> dict[str, dict[str, Any]]:
        """The status of each server, by one level that it keeps; by "store" if it keeps all."""
        levels: dict[str, dict[str, Any]] = self.facts.get("levels") or {"store": self.facts}
        places = {one["place"]: (level, one) for level, one in levels.items() if "server" in one}
        return dict(places.values())


def doctor(*, options: Options = DEFAULTS) -> int:
    """Examine Python, SQLite, disk and store; say how to fix what is wrong."""
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
        # A server whose settings break a promise is refused: examine it without that promise.
        store = open_promising_nothing(options) if isinstance(error, UsageError) else None
    if store is None:
        return
    with store:
        facts = store.status()
        place = Path(facts["path"]) if facts.get("path") else None
        patient = Patient(store, options, facts, place)
        for check, examination in EXAMINATIONS.items():
            try:
                yield from examination(patient)
            except HoldfastError as error:
                yield Examined(check, False, error.message, error.hint)
    if place is not None:
        yield examine_space(place)
        yield examine_sync(place)


def open_promising_nothing(options: Options) -> Store | None:
    """Opens a store read-only with durability "none"; returns None if that fails too."""
    try:
        return holdfast.open(
            options.place,
            create=False,
            read_only=True,
            durability="none",
            store_key=options.store_key,
            tenant=options.tenant,
        )
    except HoldfastError:
        return None


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


def examine_store(patient: Patient) -> Iterator[Examined]:
    facts = patient.facts
    yield Examined("store", True, f"{facts['kind']}, format {facts['format']}: {facts['place']}")


def examine_place(patient: Patient) -> Iterator[Examined]:
    """Judges the file system by its kind, and who may read and write what is stored."""
    path = patient.path
    if path is None:
        return
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
        # Who may read is the owner's choice. Anyone who may write can change what the store holds.
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


def examine_durability(patient: Patient) -> Iterator[Examined]:
    promises = {
        "full": "full: what was acknowledged survives a power failure",
        "process": "process: what was acknowledged survives a killed process, not a power failure",
        "none": "none: what was acknowledged may be lost",
    }
    durability = patient.facts["durability"]
    yield Examined("durability", durability == "full", promises.get(durability, str(durability)))


def examine_reports(patient: Patient) -> Iterator[Examined]:
    reports = [str(report) for report in patient.facts["reports"]]
    if reports:
        yield Examined("recovery", None, "; ".join(reports))
    else:
        yield Examined("recovery", True, "no reports")


def examine_eviction(patient: Patient) -> Iterator[Examined]:
    """Judges whether a Redis may delete keys when its memory is short: then it keeps no promise."""
    for facts in patient.servers.values():
        policy, evicted = facts.get("maxmemory_policy"), facts.get("evicted_keys", 0)
        if policy is None:
            continue
        if policy == "noeviction" and not evicted:
            yield Examined("eviction", True, policy)
            continue
        found = f"maxmemory-policy {policy}, {evicted} keys evicted since the server started"
        fix = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        if policy == "noeviction":
            fix = command("check --read-all", patient.options.place)
        yield Examined("eviction", False, found, fix)


def examine_clock(patient: Patient) -> Iterator[Examined]:
    """Compares this host's clock with that of each server that the store is on."""
    for level in patient.servers:
        us = skew_us(kernel_of(patient.store).log, f"{level}/")
        found = f"{show_us(abs(us))} {'ahead of' if us > 0 else 'behind'} the server's"
        if abs(us) <= AHEAD_US:
            yield Examined("clock", True, found)
        else:
            yield Examined("clock", False, found, "set this host's clock: timedatectl set-ntp true")


def examine_times(patient: Patient) -> Iterator[Examined]:
    """Names streams whose newest time is ahead of the clock, as a wrong clock leaves them."""
    ahead = list(streams_ahead(kernel_of(patient.store).log))
    if not ahead:
        yield Examined("times", True, "no stream is ahead of the clock")
        return
    shown = [f"{one.stream} is {show_us(one.ahead_us)} ahead" for one in ahead[:STREAMS_SHOWN]]
    if len(ahead) > STREAMS_SHOWN:
        shown.append(f"{len(ahead) - STREAMS_SHOWN} more")
    sound = next((one for one in ahead if one.sound), None)
    fix = "if this host's clock is right: go on in new scopes with a copy of their state"
    if sound is not None:
        verb = f"fork {shlex.quote(sound.stream)} NEW-ID --at {sound.sound}"
        fix = f"if this host's clock is right: {command(verb, patient.options.place)}"
    yield Examined("times", False, "; ".join(shown), fix)


def examine_structure(patient: Patient) -> Iterator[Examined]:
    """Runs the quick check; what it finds harmless can be rebuilt."""
    report = patient.store.check(read_all=False)
    if not report.findings:
        yield Examined("structure", True, f"{report.streams} streams, index and heads agree")
        return
    found = "; ".join(f"{finding.where}: {finding.problem}" for finding in report.findings)
    if report.ok:
        yield Examined("structure", None, f"{found} (rebuilt when needed)")
        return
    fix = f"copy the store away, then: {command('check --read-all', patient.options.place)}"
    yield Examined("structure", False, found, fix)


EXAMINATIONS: dict[str, Callable[[Patient], Iterator[Examined]]] = {
    "store": examine_store,
    "place": examine_place,
    "durability": examine_durability,
    "recovery": examine_reports,
    "eviction": examine_eviction,
    "clock": examine_clock,
    "times": examine_times,
    "structure": examine_structure,
}
"""The examinations of a store that can be opened, in their order; each yields what it found.

One that raises an error is reported as a problem under its name here.
"""


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

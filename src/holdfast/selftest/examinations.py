"""What a disk is: what the kernel says of it, what a sync costs, what processes can rely on."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from holdfast.backends.files.disk import Disk, replace_file, write_all
from holdfast.backends.local_path import refuse_network
from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.selftest.processes import Children, ForkedChild, Silent

Verdict = Literal["ok", "info", "warning", "failed"]


class CheckResult(Struct, frozen=True):
    """What was checked, the verdict, what was found, and what helps.

    `warning` is a reason for doubt; `failed` is a fault that was seen.
    """

    check: str
    verdict: Verdict
    found: str
    fix: str | None = None
    numbers: dict[str, int] = field(default_factory=dict[str, int])


MOUNTINFO = Path("/proc/self/mountinfo")
MAPS = Path("/proc/self/maps")
FREE_BYTES_MIN = 256 << 20
DESCRIPTORS_MIN = 64
SYNC_US_MIN = 15
"""A flush that reaches any medium takes longer; NVMe with a protected cache takes about 20."""
BLOCK = 4096
FILE_BLOCKS = 256
SAMPLES_MIN, SAMPLES_MAX = 40, 2000

_OCTAL = re.compile(r"\\([0-7]{3})")
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_NO_BARRIER = ("nobarrier", "barrier=0")
_LIARS = ("eatmydata", "nosync", "libfiu")


class Mount(Struct, frozen=True):
    """A line of mountinfo: what is mounted where, and how."""

    point: str
    kind: str
    source: str
    options: tuple[str, ...]


def find_mount(path: str, mountinfo: str) -> Mount | None:
    """Returns the mount that holds a path: the one with the longest path, of several the last.

    A later mount at the same path hides the earlier ones.
    """
    real, found = os.path.realpath(path), None
    for line in mountinfo.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, rest = head.split(" "), tail.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
        is_above = real == point or real.startswith(point.rstrip("/") + "/")
        if is_above and (found is None or len(point) >= len(found.point)):
            options = dict.fromkeys([*fields[5].split(","), *rest[2].split(",")])
            found = Mount(point, rest[0], rest[1], tuple(options))
    return found


def examine(
    place: str, *, mountinfo: str | None = None, maps: str | None = None
) -> Iterator[CheckResult]:
    """Yields what the kernel says, without writing anything."""
    mount = find_mount(place, _text(MOUNTINFO) if mountinfo is None else mountinfo)
    yield examine_kind(mount)
    if network := examine_network(place, mountinfo):
        yield network
    if mount is not None:
        yield examine_options(mount)
    yield examine_preload(_text(MAPS) if maps is None else maps)
    yield examine_space(shutil.disk_usage(place).free)
    yield examine_limits()


def examine_kind(mount: Mount | None) -> CheckResult:
    """Judges a file system by its name."""
    if mount is None:
        return CheckResult("file system", "info", "unknown: this system does not say")
    found = f"{mount.kind} at {mount.point}"
    if mount.kind in _IN_MEMORY:
        found += ": it is in memory, and empty after a restart"
        return CheckResult("file system", "failed", found, "choose a directory on a disk")
    if mount.kind == "overlay":
        found += ": the top layer of a container, which goes when the container goes"
        return CheckResult("file system", "warning", found, "mount a volume, and keep stores there")
    if mount.kind.startswith("fuse"):
        found += ": a program of its own decides what a sync, a lock and a mapped page mean there"
        return CheckResult("file system", "warning", found, "prefer a file system of the kernel")
    return CheckResult("file system", "ok", found)


def examine_network(place: str, mountinfo: str | None = None) -> CheckResult | None:
    """Returns what is wrong with a file system that several hosts may share."""
    try:
        refuse_network(place, mountinfo=mountinfo)
    except UsageError as exc:
        found = "on a network: flock may hold on one host only, a mapped page is not the same on "
        found += f"two hosts, and a sync may end in a server's memory; {exc.message}"
        return CheckResult("network", "failed", found, exc.hint)
    return None


def examine_options(mount: Mount) -> CheckResult:
    """Judges how it was mounted."""
    options = [each for each in mount.options if each not in ("rw", "relatime")]
    found = ", ".join(options) or "the usual ones"
    if off := [each for each in options if each in _NO_BARRIER]:
        found = f"{', '.join(off)}: a sync does not empty the drive's own cache"
        return CheckResult("mount options", "failed", found, "mount it without that option")
    if "data=writeback" in options:
        found = "data=writeback: after a power failure a file that grew may show old bytes"
        return CheckResult("mount options", "warning", found, "mount it with data=ordered")
    return CheckResult("mount options", "ok", found)


def examine_preload(maps: str) -> CheckResult:
    """Looks for a loaded library that turns every sync of its program into nothing."""
    loaded = {line.rpartition("/")[2] for line in maps.splitlines() if ".so" in line}
    named = {*re.split(r"[ :]", os.environ.get("LD_PRELOAD", "")), *loaded}
    if liars := sorted(each for each in named if any(liar in each for liar in _LIARS)):
        found = f"{', '.join(map(os.path.basename, liars))} is loaded: it turns syncs into nothing"
        return CheckResult("preload", "failed", found, "start without it (LD_PRELOAD)")
    return CheckResult("preload", "ok", "no library that is known to take syncs away")


def examine_space(free: int) -> CheckResult:
    found = f"{free / (1 << 30):.1f} GiB free"
    if free < FREE_BYTES_MIN:
        return CheckResult("space", "warning", found, "free some: a full disk refuses every write")
    return CheckResult("space", "ok", found, numbers={"free_bytes": free})


def examine_limits() -> CheckResult:
    """Judges what this process may have: the size of a file, and how many it may open."""
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if size != resource.RLIM_INFINITY:
        found = f"a file may take {size:,} bytes at most"
        return CheckResult("limits", "warning", found, "ulimit -f unlimited")
    if files != resource.RLIM_INFINITY and files < DESCRIPTORS_MIN:
        return CheckResult("limits", "warning", f"{files} files may be open", "ulimit -n 1024")
    count = "any number of" if files == resource.RLIM_INFINITY else f"{files:,}"
    return CheckResult("limits", "ok", f"files of any size, {count} open")


def examine_sync(place: str, clock: Clock, disk: Disk, *, for_us: int) -> CheckResult:
    """Measures a write and the sync after it, on a file whose size does not change.

    The journal of a files store is such a file: its sync need not write a new size.
    """
    fd = os.open(os.path.join(place, "synced"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        write_all(disk, fd, bytes(BLOCK * FILE_BLOCKS), 0)
        disk.sync(fd)
        writes, syncs = _measure(fd, clock, disk, for_us)
    except OSError as exc:
        return CheckResult(
            "sync", "failed", f"a write or sync failed: {exc.strerror}", "check the disk"
        )
    finally:
        os.close(fd)
    return judge_sync(writes, syncs)


def _measure(fd: int, clock: Clock, disk: Disk, for_us: int) -> tuple[list[int], list[int]]:
    writes: list[int] = []
    syncs: list[int] = []
    end_us = clock.boot_us() + for_us
    while len(syncs) < SAMPLES_MIN or (len(syncs) < SAMPLES_MAX and clock.boot_us() < end_us):
        number = len(syncs)
        block = bytes([number % 251 + 1]) * BLOCK
        offset = number % FILE_BLOCKS * BLOCK
        start = clock.boot_us()
        disk.pwrite(fd, block, offset)
        written = clock.boot_us()
        disk.sync(fd)
        synced = clock.boot_us()
        writes.append(written - start)
        syncs.append(synced - written)
    return sorted(writes), sorted(syncs)


def judge_sync(writes: list[int], syncs: list[int]) -> CheckResult:
    """Judges sorted microseconds of writes alone and of the syncs after them."""
    numbers = {
        "samples": len(syncs),
        "write_median_us": _part(writes, 50),
        "write_p99_us": _part(writes, 99),
        "sync_median_us": _part(syncs, 50),
        "sync_p99_us": _part(syncs, 99),
    }
    median = numbers["sync_median_us"]
    found = f"a sync takes {median:,} µs, 99 % under {numbers['sync_p99_us']:,}; the write alone "
    found += f"{numbers['write_median_us']:,} µs, 99 % under {numbers['write_p99_us']:,}"
    if median < SYNC_US_MIN or median <= numbers["write_median_us"]:
        found += ": too quick to have reached a medium"
        fix = "ask who runs this machine where syncs end: a memory disk, a hypervisor's or a "
        fix += "controller's cache without a battery, or syncs switched off"
        return CheckResult("sync", "warning", found, fix, numbers)
    return CheckResult("sync", "ok", found, None, numbers)


def _part(latencies: list[int], percent: int) -> int:
    return latencies[min(len(latencies) * percent // 100, len(latencies) - 1)]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""


# --- what processes can rely on -------------------------------------------------------------------
#
# The store needs each of these promises of the kernel and the file system.

RENAMES = 300
PAGE = 4096

Examination = Callable[[str, Clock, Disk, Children], CheckResult]


def examine_locks(place: str, clock: Clock, disk: Disk, children: Children) -> CheckResult:
    """Whether a lock keeps another process out, and is gone with the process that held it."""
    path = os.path.join(place, "lock")
    for name, lock in (("flock", disk.lock), ("fcntl locks", fcntl.lockf)):

        def hold(say: Callable[[object], None], wait: Callable[[], None]) -> None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            lock(fd, fcntl.LOCK_EX)  # noqa: B023
            say("held")
            wait()

        holder = children.start(hold)
        fd = -1
        try:
            holder.hear()
            fd = os.open(path, os.O_RDWR)
            if _can_lock(lock, fd):
                return _broken("locks", f"{name}: two processes had the same lock at once")
            holder.kill()
            if not _can_lock(lock, fd):
                return _broken("locks", f"{name}: a dead process still has its lock")
        except (OSError, Silent) as exc:
            return _broken("locks", f"{name}: {exc}")
        finally:
            children.end(holder)
            if fd >= 0:
                os.close(fd)
    return CheckResult("locks", "ok", "flock and fcntl: exclusive, and gone with a killed process")


def _can_lock(lock: Callable[[int, int], object], fd: int) -> bool:
    try:
        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def examine_renames(place: str, clock: Clock, disk: Disk, children: Children) -> CheckResult:
    """Whether a reader of a file that is being replaced always finds the old bytes or the new."""
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    path = os.path.join(place, "renamed")
    contents = [bytes([letter]) * PAGE for letter in b"ab"]

    def replace(say: Callable[[object], None], wait: Callable[[], None]) -> None:
        for number in range(RENAMES):
            data = contents[number % 2]
            replace_file(disk, "renamed", data, at=folder, temp="renamed.new", durable=False)
            if not number:
                say("begun")
        say("done")

    reads = 0
    child = children.start(replace)
    try:
        child.hear()
        while True:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                reads += 1
                if file.read() in contents:
                    if _is_done(child):
                        break
                    continue
            return _broken("renames", f"a reader found a file missing or torn (read {reads})")
    except (OSError, Silent) as exc:
        return _broken("renames", str(exc))
    finally:
        children.end(child)
        os.close(folder)
    return CheckResult("renames", "ok", f"atomic: {RENAMES} renames seen by {reads} reads")


def _is_done(child: ForkedChild) -> bool:
    try:
        return child.hear(0) == "done"
    except Silent:
        if child.status is not None:
            raise
        return False


def examine_shared_pages(place: str, clock: Clock, disk: Disk, children: Children) -> CheckResult:
    """Whether what one process writes to a mapped page is what another one reads."""
    path = os.path.join(place, "page")
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, PAGE)

    def write(say: Callable[[object], None], wait: Callable[[], None]) -> None:
        mine = os.open(path, os.O_RDWR)
        page = mmap.mmap(mine, PAGE)
        for letter in b"abcdef":
            page[0] = letter
            say(letter)
            wait()

    child = children.start(write)
    try:
        with mmap.mmap(fd, PAGE) as page:
            for letter in b"abcdef":
                child.hear()
                if page[0] != letter or os.pread(fd, 1, 0) != bytes([letter]):
                    return _broken("shared pages", "a mapped page of two processes differs")
                child.go()
    except (OSError, ValueError, Silent) as exc:
        return _broken("shared pages", f"files cannot be shared by mapping them: {exc}")
    finally:
        children.end(child)
        os.close(fd)
    return CheckResult("shared pages", "ok", "a mapped page is the same to two processes")


def examine_links(place: str, clock: Clock, disk: Disk, children: Children) -> CheckResult:
    """Whether a file gets a second name only if that is free, as the making of a database needs."""
    old, new = os.path.join(place, "old"), os.path.join(place, "new")
    try:
        os.close(os.open(old, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.link(old, new)
        try:
            os.link(old, new)
        except FileExistsError:
            return CheckResult("hard links", "ok", "made once, refused for a name that is taken")
        return _broken("hard links", "a name that is taken was given a second time")
    except OSError as exc:
        return _broken("hard links", f"{exc.strerror}: a SQLite store cannot be made there")


def _broken(check: str, found: str) -> CheckResult:
    return CheckResult(
        check, "failed", found, "put stores on a local file system, such as ext4 or xfs"
    )


EXAMINATIONS: tuple[Examination, ...] = (
    examine_locks,
    examine_renames,
    examine_shared_pages,
    examine_links,
)

"""A short torture test of a store on the user's own disk: does the disk keep its promises?

examinations  what the disk is (file system, mount, cost of a sync, space, limits), and what
              processes can rely on there (locks, renames, mapped pages)
trials        a store that is killed, meets disk errors, and runs out of space; checked after each
processes     forked children, and what they report

Everything happens in a new directory below the one that is named. It is removed at the end, after
an error too. Nothing else there is touched.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from holdfast.backends.files.disk import Disk
from holdfast.clock import Clock, SystemClock
from holdfast.errors import NotFoundError, UnavailableError, UsageError
from holdfast.selftest import examinations, trials
from holdfast.selftest.examinations import CheckResult, Verdict
from holdfast.selftest.processes import Children

PREFIX = "holdfast-selftest-"
SECONDS_MAX = 86_400.0
FREE_BYTES_MIN = 64 << 20
UNPROVEN = (
    "power loss: a killed process leaves the kernel's cache intact, so nothing here proves that "
    'the drive keeps what it was told to sync; "make powerloss" (root, in a checkout) cuts the '
    "power of a real file system",
    "a drive that acknowledges a flush from a cache that it then loses: no program can see that; "
    "only pulling the plug can",
)

Tell = Callable[[str], None]


class SelftestReport(Struct):
    """What a selftest found: `ok` is False if anything failed; warnings alone leave it True."""

    disk: str
    seed: int
    seconds: float = 0.0
    checks: list[CheckResult] = field(default_factory=list[CheckResult])
    unproven: tuple[str, ...] = UNPROVEN

    @property
    def ok(self) -> bool:
        return self.verdict != "not sound"

    @property
    def verdict(self) -> str:
        verdicts: set[Verdict] = {each.verdict for each in self.checks}
        if "failed" in verdicts:
            return "not sound"
        return "sound, with warnings" if "warning" in verdicts else "sound"


def run(
    directory: str | os.PathLike[str],
    *,
    seconds: float = 15.0,
    seed: int | None = None,
    clock: Clock | None = None,
    make_disk: Callable[[], Disk] = Disk,
    show: Callable[[CheckResult], None] = lambda _: None,
    tell: Tell = lambda _: None,
) -> SelftestReport:
    """Examines the disk below `directory` for about `seconds` and returns what was found.

    `show` gets each result as soon as it is known, `tell` gets what goes on. `make_disk` is for
    tests: it makes the disk that is examined, and that stores on plain files are put on.
    """
    clock = clock or SystemClock()
    if isinstance(seconds, bool) or not 0 < seconds <= SECONDS_MAX:
        raise UsageError(f"seconds is a number above 0, at most {SECONDS_MAX:.0f}: found {seconds}")
    began_us = clock.boot_us()
    if seed is None:
        seed = int.from_bytes(clock.random_bytes(3), "big")
    report = SelftestReport(os.path.abspath(os.fspath(directory)), seed)
    with scratch_below(report.disk) as place, Children() as children:
        for each in _examine(report, place, seconds, clock, make_disk, children, tell):
            report.checks.append(each)
            show(each)
    report.seconds = (clock.boot_us() - began_us) / 1_000_000
    return report


def _examine(
    report: SelftestReport,
    place: str,
    seconds: float,
    clock: Clock,
    make_disk: Callable[[], Disk],
    children: Children,
    tell: Tell,
) -> Iterator[CheckResult]:
    end_us = clock.boot_us() + round(seconds * 1_000_000)
    tell("looking at the file system")
    yield from examinations.examine(place)
    disk = make_disk()
    tell("measuring what a sync costs")
    yield examinations.examine_sync(place, clock, disk, for_us=round(seconds * 100_000))
    for examine in examinations.EXAMINATIONS:
        tell(f"examining {examine.__name__.removeprefix('examine_').replace('_', ' ')}")
        yield examine(place, clock, disk, children)
    if any(each.check == "network" for each in report.checks):
        return  # holdfast refuses to put a store there, so there is nothing to kill
    setup = trials.TrialSetup(place, clock, report.seed, make_disk, children, tell)
    left_us = max(end_us - clock.boot_us(), 0)
    yield from trials.kill(setup, for_us=left_us * 5 // 10)
    yield from trials.fail(setup, for_us=left_us * 3 // 10)
    yield from trials.fill(setup, for_us=left_us * 2 // 10)


@contextmanager
def scratch_below(directory: str) -> Generator[str]:
    """Yields a new directory below another one, and removes it and all that is in it."""
    if not os.path.lexists(directory):
        raise NotFoundError(
            f'there is no directory "{directory}"', hint="name a directory on the disk to examine"
        )
    if not os.path.isdir(directory):
        raise UsageError(
            f'"{directory}" is not a directory', hint="name a directory on the disk to examine"
        )
    try:
        free = shutil.disk_usage(directory).free
        place = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    except OSError as exc:
        raise UnavailableError(
            f'nothing can be written below "{directory}": {exc.strerror}',
            hint="give this user the right to write there, or name another directory",
        ) from exc
    try:
        if free < FREE_BYTES_MIN:
            raise UnavailableError(
                f'"{directory}" has {free >> 20} MiB free: the test needs {FREE_BYTES_MIN >> 20}',
                hint="free some space; the test never fills a disk",
            )
        yield place
    finally:
        _remove(place)


def _remove(place: str) -> None:
    """Removes the scratch directory; an interrupt meanwhile is raised when that is done."""
    try:
        shutil.rmtree(place, ignore_errors=True)
    except KeyboardInterrupt:
        shutil.rmtree(place, ignore_errors=True)
        raise

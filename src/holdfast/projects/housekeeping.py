"""Housekeeping while a coordinator works: slow operations, memory, and the disk.

Nothing here stops running work. Slow operations are counted, kept in the state of the project (the
newest few, written at most once a minute) and reported by `project doctor`. They also change what
the coordinator does: files are checked less often if that takes long, and once a context took too
long, later ones are built without a search. If the process uses more memory than allowed, caches
that can be read again are dropped. If the disk has little space, no new task is begun.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import sys
from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from holdfast.backends.deadline import monotonic
from holdfast.core.event import to_datetime
from holdfast.core.kernel import kernel_of
from holdfast.core.limits import check_size, disk_space
from holdfast.core.observe import Observed
from holdfast.core.retention import GRACE_S, Retention
from holdfast.errors import LimitError, UsageError
from holdfast.projects.sessions import conversation
from holdfast.record.context import RecordContext
from holdfast.record.retention_policies import RetentionPolicy

if TYPE_CHECKING:
    from holdfast.projects.coordinator import Coordinator
    from holdfast.projects.project import Project

KEY = "slow"
"""The key of the state with the slow operations, newest last."""
KEPT_MAX = 20
WRITE_S = 60.0
LOOK_S = 5.0
KINDS = frozenset({"commit", "read", "lease"})
"""The kinds of operations that should be fast; a step takes as long as its agent."""
_logger = logging.getLogger("holdfast.projects")


class SlowOperation(Struct, frozen=True):
    """Something that took longer than `[project] slow` allows."""

    what: str
    seconds: float
    times: int
    at: str
    """When it was last noticed, in UTC."""


class Housekeeping:
    """Watches speed, memory and disk for one coordinator."""

    def __init__(self, main: Coordinator) -> None:
        self._main = main
        self._settings = main.project.settings
        self.slow: dict[str, SlowOperation] = {}
        """The slow operations since this coordinator began, by name, each with its slowest time."""
        self.trims = 0
        """How often caches were dropped because the memory limit was exceeded."""
        self._mutex = Lock()
        self._is_new = False
        self._written_at = monotonic() - WRITE_S
        self._look_at = 0.0

    # --- what is slow ----------------------------------------------------------------------------

    def observe(self, observed: Observed) -> None:
        """Notes an operation of the store if it was slow; the store calls it in any thread."""
        if observed.kind in KINDS:
            self.took(f"{observed.kind} {observed.name}", observed.duration_s)

    def took(self, what: str, seconds: float) -> bool:
        """Notes how long something took, and returns whether that was too long."""
        if seconds <= self._settings.slow_s:
            return False
        now = to_datetime(kernel_of(self._main.store).clock.now_us()).isoformat(timespec="seconds")
        with self._mutex:
            before = self.slow.pop(what, None)
            times = 1 if before is None else before.times + 1
            longest = seconds if before is None else max(before.seconds, seconds)
            self.slow[what] = SlowOperation(what, round(longest, 3), times, now)
            while len(self.slow) > KEPT_MAX:
                self.slow.pop(next(iter(self.slow)))
            self._is_new = True
        return True

    # --- looking ---------------------------------------------------------------------------------

    def look(self, *, now: bool = False) -> None:
        """Checks the memory and writes what was slow, every few seconds; with `now`, at once."""
        at = monotonic()
        if at < self._look_at and not now:
            return
        self._look_at = at + LOOK_S
        self._check_memory()
        if self._is_new and (now or at - self._written_at >= WRITE_S):
            with self._mutex:  # not during the write: what that takes is noted by this thread, too
                self._is_new, self._written_at = False, at
                slow = list(self.slow.values())
            found = [asdict(one) for one in slow]
            self._main.scope.set(KEY, found)
            _logger.warning('project "%s" is slow: %s', self._main.project.id, found[-1])

    def _check_memory(self) -> None:
        most = self._settings.limits.memory
        if most is None or memory_bytes() <= check_size(most, "project.limits.memory"):
            return
        self.trims += 1
        kernel = kernel_of(self._main.store)
        kernel.log.folds.trim()
        kernel.part(RecordContext).scans.forget()
        gc.collect()
        used = memory_bytes()
        text = f"the process takes {used:,} bytes: project.limits.memory is {most}"
        _logger.warning("%s; what can be read again was forgotten", text)
        kernel.log.report(text)

    def check_disk(self) -> None:
        """Raises LimitError if the disk has too little space to begin a task."""
        check_disk(self._main.project)


def memory_bytes() -> int:
    """Returns how much memory this process uses, in bytes."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux: the peak, in bytes or KiB
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def check_disk(project: Project) -> None:
    """Raises LimitError if the disk of a project has less free space than `limits.free`."""
    least = check_size(project.settings.limits.free, "project.limits.free")
    free, _ = disk_space(str(project.root))
    if free < least:
        raise LimitError(
            f'the disk of "{project.root}" has {free:,} bytes left: project.limits.free is '
            f"{project.settings.limits.free}; no task is begun, and what is there can be read",
            hint="make room, or holdfast project prune",
        )


# --- letting go -----------------------------------------------------------------------------------


def prune(project: Project, *, dry_run: bool = False, grace_s: float = GRACE_S) -> Retention:
    """Removes the sessions that `[project.retention]` does not keep; see `hf.retention.run`.

    Active sessions stay. A removed session is in the bin until the grace is over.
    """
    policy = policy_of(project)
    if policy is None:
        raise UsageError(
            f'project "{project.id}" keeps all its sessions: [project.retention] says nothing',
            hint='set older_than = "90d", count or bytes in [project.retention] of holdfast.toml',
        )
    # Without sessions there is no policy to apply, but the bin may still have earlier ones.
    policies = [policy] if project.sessions(limit=1) else []
    retention = project.store.retention
    if dry_run:
        done = retention.preview(policies=policies, grace_s=grace_s)
    else:
        done = retention.run(policies=policies, grace_s=grace_s)
    newest: Any = project.scope.get("session")
    gone = {one.scope for one in done.binned}
    if newest is not None and not dry_run and conversation(project, newest).name in gone:
        project.scope.delete("session")
    return done


def policy_of(project: Project) -> RetentionPolicy | None:
    """Returns the retention policy of the project's sessions; None if none is set."""
    said = project.settings.retention
    if said.older_than is None and said.count is None and said.bytes is None:
        return None
    prefix = conversation(project, "x").name.removesuffix("x")
    if "*" in prefix:
        raise UsageError(
            f'[project.retention] cannot name the sessions of "{project.id}": its id has a *',
            hint="give the project an id without one",
        )
    return RetentionPolicy(
        f"{prefix}*", older_than=said.older_than, count=said.count, bytes=said.bytes
    )

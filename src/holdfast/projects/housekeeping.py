"""Keeping house while a coordinator works: what is slow, how much memory it takes, the disk.

Nothing here stops work by itself. What is slow is counted, kept in the state of the project (the
newest few, written once a minute at most) and told by `project doctor`. It is also acted on: files
are looked at less often when that takes long, and a context that took too long is built without a
search from then on. When the process takes more memory than it may, what can be read again is
forgotten. On a disk with little space no task is begun: what is there stays, and can be read.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import sys
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
"""Where the state of a project has what was slow, newest last."""
KEPT_MAX = 20
WRITE_S = 60.0
LOOK_S = 5.0
KINDS = frozenset({"commit", "read", "lease"})
"""What a store does that must not take long; a step takes as long as its agent."""
_logger = logging.getLogger("holdfast.projects")


class SlowOperation(Struct, frozen=True):
    """Something that took longer than `[project] slow` allows."""

    what: str
    seconds: float
    times: int
    at: str
    """When it was noticed last, in UTC."""


class Housekeeping:
    """What one coordinator watches while it works."""

    def __init__(self, main: Coordinator) -> None:
        self._main = main
        self._settings = main.project.settings
        self.slow: dict[str, SlowOperation] = {}
        """What was slow since this coordinator began, by what it was; the slowest time of each."""
        self.trims = 0
        """How often memory was given back because the limit was passed."""
        self._is_new = False
        self._written_at = monotonic() - WRITE_S
        self._look_at = 0.0

    # --- what is slow ----------------------------------------------------------------------------

    def observe(self, observed: Observed) -> None:
        """Is told by the store what it did; called in any thread, and only notes."""
        if observed.kind in KINDS:
            self.took(f"{observed.kind} {observed.name}", observed.duration_s)

    def took(self, what: str, seconds: float) -> bool:
        """Notes how long something took; says whether that was too long."""
        if seconds <= self._settings.slow_s:
            return False
        before = self.slow.pop(what, None)
        times = 1 if before is None else before.times + 1
        longest = seconds if before is None else max(before.seconds, seconds)
        now = to_datetime(kernel_of(self._main.store).clock.now_us()).isoformat(timespec="seconds")
        self.slow[what] = SlowOperation(what, round(longest, 3), times, now)
        while len(self.slow) > KEPT_MAX:
            self.slow.pop(next(iter(self.slow)))
        self._is_new = True
        return True

    # --- looking ---------------------------------------------------------------------------------

    def look(self, *, now: bool = False) -> None:
        """Looks at memory and writes what was slow; every few seconds, or `now`."""
        at = monotonic()
        if at < self._look_at and not now:
            return
        self._look_at = at + LOOK_S
        self._check_memory()
        if self._is_new and (now or at - self._written_at >= WRITE_S):
            self._is_new, self._written_at = False, at
            found = [asdict(one) for one in self.slow.values()]
            self._main.scope.set(KEY, found)
            _logger.warning('project "%s" is slow: %s', self._main.project.id, found[-1])

    def _check_memory(self) -> None:
        most = self._settings.limits.memory
        if most is None or memory_bytes() <= check_size(most, "project.limits.memory"):
            return
        self.trims += 1
        kernel = kernel_of(self._main.store)
        kernel.log.folds.trim()
        kernel.part(RecordContext).scans.trim()
        gc.collect()
        used = memory_bytes()
        text = f"the process takes {used:,} bytes: project.limits.memory is {most}"
        _logger.warning("%s; what can be read again was forgotten", text)
        kernel.log.report(text)

    def check_disk(self) -> None:
        """Raises LimitError if the disk has too little space for a task to be begun."""
        check_disk(self._main.project)


def memory_bytes() -> int:
    """Returns how much memory this process takes now."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux: the most that it ever took, in bytes or KiB
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def check_disk(project: Project) -> None:
    """Raises LimitError if the disk of a project has less free than its limits ask for."""
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
    """Lets go of the sessions that `[project.retention]` does not keep; see `hf.retention.run`.

    One that somebody is in stays. A session that goes is in the bin until the grace is over.
    """
    policy = policy_of(project)
    if policy is None:
        raise UsageError(
            f'project "{project.id}" keeps all its sessions: [project.retention] says nothing',
            hint='set older_than = "90d", count or bytes in [project.retention] of holdfast.toml',
        )
    # Without any the bin may still have those that went before.
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
    """Returns what `[project.retention]` says of the project's sessions; None if nothing."""
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

"""The faults that T9 is tried with: what is broken, and by which anomaly it must be found."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Backend
from holdfast.core.transaction import View
from holdfast.scope import Scope
from tests.broken import around, memory

SUFFIXES = ("-session", "-realtime")


def _as_it_is(backend: Backend) -> Backend:
    return backend


@dataclass(frozen=True)
class Plant:
    """A fault: a wrapper of each process's backend, or a kind of memory backend."""

    name: str
    broken: str
    """What is broken, in one line."""
    findings: tuple[str, ...]
    """The anomalies that it is found by: one of these, with or without the order of time."""
    programmes: tuple[str, ...] = ("t9-memory",)
    wrap: Callable[[Any], Any] = _as_it_is
    kind: type[MemoryBackend] | None = None
    within: int = 100
    """Within how many points, at most: the first one that finds it ends the run, and which one that
    is depends on the scheduler of the operating system."""

    def foretells(self, type: str) -> bool:
        for suffix in SUFFIXES:
            type = type.removesuffix(suffix)
        return type in self.findings


def _no_lock(backend: Any) -> Any:
    with tempfile.TemporaryFile() as own:
        lock = backend.opened.store_lock
        lock._lock_fd = os.dup(own.fileno())
        lock.release = lambda: fcntl.flock(lock._lock_fd, fcntl.LOCK_UN)
    return backend


def _stale_writer(backend: Any) -> Any:
    """The cache of heads is taken for complete, whatever other processes wrote."""
    backend._seen = property
    backend._write.__func__.__globals__["catch_up"] = lambda execute, cache: cache.position
    return backend


def _forks_at(shift: int | None) -> Callable[[Any], Any]:
    def plant(backend: Any) -> Any:
        if not hasattr(Scope, "sound_fork"):
            sound = Scope.sound_fork = Scope.fork  # type: ignore[attr-defined]

            def fork(self: Scope, id: str, *, at: Any = None) -> Scope:
                moved = None if shift is None else max(1, min(self.revision, at + shift))
                return sound(self, id, at=moved)

            Scope.fork = fork  # type: ignore[method-assign,assignment]
        return backend

    return plant


def _views_now(backend: Any) -> Any:
    View._state_of = lambda self, scope: self._log.newest(scope.name)  # type: ignore[method-assign]
    return backend


ALL = ("t9-memory", "t9-files", "t9-sqlite")
SHARED = ("t9-files", "t9-sqlite")
LOST = ("lost-append", "half-commit")

_PLANTS = (
    Plant(
        "no-lock", "processes do not lock each other out", ("error", *LOST), ("t9-files",), _no_lock
    ),
    Plant(
        "stale-writer",
        "a writer trusts its cache of heads, though others wrote",
        ("error", *LOST),
        ("t9-sqlite",),
        _stale_writer,
    ),
    Plant(
        "no-expectation",
        "the expected revision is not checked",
        ("G-single",),
        ("t9-memory", "t9-sqlite"),
        around.ExpectsNothing,
    ),
    Plant(
        "no-guard",
        "streams that were only read are not guarded",
        ("G2", "G-single"),
        (*ALL, "t9-redis"),
        around.GuardsNothing,
    ),
    Plant(
        "stale-heads",
        "heads come from a cache",
        ("G-single",),
        (*ALL, "t9-postgresql"),
        around.RemembersHeads,
    ),
    Plant(
        "old-snapshot",
        "reads go backwards: a replica that is behind answers now and then",
        ("G-single",),
        ("t9-memory", "t9-files"),
        around.ServesOldSnapshots,
    ),
    Plant(
        "half-commit",
        "of a commit over several streams only the first is written",
        LOST,
        ("t9-memory", "t9-files"),
        around.WritesHalf,
    ),
    Plant(
        "answer-first",
        "a commit is acknowledged before it is written",
        LOST,
        ("t9-memory", "t9-sqlite"),
        around.AnswersFirst,
    ),
    Plant(
        "sent-twice",
        "after a lost answer the commit is sent again as a new one",
        ("duplicate-append",),
        wrap=around.SendsTwice,
    ),
    Plant(
        "refused-but-written",
        "a commit is refused and written all the same",
        ("G1a", "duplicate-append"),
        wrap=around.RefusesAfterWriting,
    ),
    Plant(
        "answers-mixed",
        "the answers to a list of commits come in another order",
        ("G1a", *LOST),
        ("t9-memory", "t9-files"),
        around.MixesAnswers,
    ),
    Plant(
        "no-keys",
        "a retry is written again: keys are not kept",
        ("duplicate-append",),
        (*ALL, "t9-redis"),
        around.ForgetsKeys,
    ),
    Plant(
        "keys-of-one-process",
        "keys are known only to the process that used them",
        ("duplicate-append",),
        ("t9-files",),
        around.KeepsKeysToItself,
    ),
    Plant(
        "no-fence",
        "a commit under a lease that passed on is let in",
        ("not-linearisable",),
        (*SHARED, "t9-postgresql"),
        around.FencesNothing,
    ),
    Plant(
        "leases-of-one-process",
        "a lease is seen only by the process that took it",
        ("not-linearisable",),
        (*SHARED, "t9-redis"),
        around.KeepsLeasesToItself,
    ),
    Plant(
        "one-epoch",
        "the epoch is used again by the next holder",
        ("not-linearisable",),
        ("t9-memory", "t9-sqlite"),
        around.ReusesEpochs,
    ),
    Plant(
        "no-expiry",
        "a lease whose time is up still counts",
        ("not-linearisable",),
        ("t9-memory", "t9-files"),
        around.NeverExpires,
    ),
    Plant(
        "fork-one-less",
        "a fork begins one revision too early",
        ("fork-base",),
        wrap=_forks_at(-1),
    ),
    Plant(
        "fork-one-more",
        "a fork begins one revision too late",
        ("fork-base",),
        wrap=_forks_at(1),
    ),
    Plant(
        "fork-of-now",
        "a fork begins at the newest revision, whichever was asked for",
        ("fork-base",),
        ("t9-files",),
        _forks_at(None),
    ),
    Plant(
        "torn-view",
        "a view reads each scope at another moment",
        ("G-single",),
        ("t9-memory",),
        _views_now,
    ),
    Plant(
        "unlocked-memory",
        "threads read, change and write the same list without a lock",
        (*LOST, "not-a-prefix"),
        kind=memory.TakesNoLock,
    ),
    Plant(
        "dirty-read",
        "readers see a commit that is then refused",
        ("G1a",),
        kind=memory.ShowsWhatItMayRefuse,
    ),
    Plant(
        "clock-merge",
        "late commits are put where their writer's clock says",
        ("not-a-prefix",),
        kind=memory.MergesByClock,
    ),
)

PLANTS = {plant.name: plant for plant in _PLANTS}


def plants_of(programme: str) -> dict[str, int]:
    """Returns the plants of a programme, and within how many points each must be found."""
    return {plant.name: plant.within for plant in _PLANTS if programme in plant.programmes}

"""What all modules of one store's record share: log, worker, open decisions and caches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from threading import Lock
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from holdfast.core.kernel import Kernel
from holdfast.core.log import WritableScope, scope_stream
from holdfast.record.keyed_item import KeyedItem
from holdfast.record.message_scan import Scans
from holdfast.record.task_events import TaskTables

_NUMBERS_MAX = 65536

ReadObserver = Callable[[tuple[str | int, ...], bool], None]
"""Called with a path of a state that was read, and whether everything below it was read too."""


class FoundDecision(NamedTuple):
    """Where a decision is: its sort key, its id, and the scopes that have it."""

    key: tuple[str | int, ...]
    id: str
    streams: Sequence[str]


FindDecisions = Callable[
    [str | None, "tuple[str | int, ...] | None", int], Sequence[FoundDecision] | None
]
"""Returns the next decisions, newest first, after a sort key: of a scope, sorted by revision, or of
the store, sorted by time and id.

The last argument is how many events would have to be read without the index. It returns None if
reading them is the better way (`query/decided.py`).
"""


class RecordContext:
    """What the record keeps in memory while a store is open; there is one per store."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.log = log = kernel.log
        self.lease_keeper = kernel.leases
        self.policy_log = log
        """The log that the store's policy is read from: the store's own, also in a joint commit."""
        self.policy_seen = "off"
        self.policy_due = 0.0
        """The policy when it was last read, and when a run reads it again (`monotonic`)."""
        self.open_decisions: dict[str, str] = {}
        """The ids of decisions that this worker has opened and not closed, with their scopes."""
        self.unfinished_recoveries: set[str] = set()
        """Decisions that this worker took over in a recovery and that have no outcome so far. Their
        owner is alive, yet the next recovery of this worker may try them again."""
        self._recovering: set[str] = set()
        self._mutex = Lock()
        self.deciding: ContextVar[tuple[str, ...]] = ContextVar("holdfast-deciding", default=())
        """The decisions whose blocks the running code is in."""
        self.known_numbers: dict[KeyedItem, int] = {}
        """How many events each item had when it was last read; a hint, checked before use."""
        self.scans = Scans(log)
        """Which messages conversations have, as far as they were read."""
        self.tables = TaskTables(log)
        """The tasks of the scopes that were read."""
        self.turn_memory: dict[str, dict[tuple[str, str], Any]] = {}
        """By scope, working memory with the lifetime of a turn (`memory.py`); never stored."""
        self.read_observers: dict[str, list[ReadObserver]] = {}
        """By scope, the observers of reads of its state (`audit.py`)."""
        self.find_decisions: FindDecisions | None = None
        """The index of decisions; None in a joint commit, which has no index."""
        self.settled: RecordContext | None = None
        """In the context of a joint commit that is durable: the store's own context."""
        self.stop_observing: Callable[[], None] = lambda: None
        """Stops observing reads; called when the last read observer is removed."""
        kernel.when_let_go(self.scans.forget, self.tables.forget)

    def remember_number(self, item: KeyedItem, number: int) -> None:
        """Remembers how many events an item has; the oldest entries are dropped."""
        if item not in self.known_numbers and len(self.known_numbers) >= _NUMBERS_MAX:
            self.known_numbers.pop(next(iter(self.known_numbers)), None)
        self.known_numbers[item] = number

    @contextmanager
    def recovering(self, id: str) -> Generator[bool]:
        """The block of one decision's recovery; yields False if another thread here recovers it."""
        with self._mutex:
            is_first = id not in self._recovering
            self._recovering.add(id)
        try:
            yield is_first
        finally:
            if is_first:
                self._recovering.discard(id)

    @property
    def worker(self) -> str:
        return self.lease_keeper.worker


def context_of(scope: WritableScope) -> RecordContext:
    """Returns the record context of a scope; in a joint commit, that of the joint commit."""
    return scope_stream(scope).kernel.part(RecordContext)


StaleReason = Literal["past its time", "contradicted", "owner silent"]


class Stale(Struct, frozen=True):
    """Something recorded that may no longer be true."""

    kind: str  # "fact", "decision", …
    id: str  # a fact's name, a decision's id
    scope: str
    why: StaleReason
    text: str
    since: datetime

"""What all parts of one store's record share: the log, who this worker is, what it has open."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from threading import Lock
from typing import Any, Literal

from msgspec import Struct

from holdfast.core.leases import LeaseKeeper
from holdfast.core.log import Log
from holdfast.record.keyed_item import KeyedItem
from holdfast.record.message_scan import Scans
from holdfast.record.task_events import TaskTables

_NUMBERS_MAX = 65536

ReadObserver = Callable[[tuple[str | int, ...], bool], None]
"""Is told of a place of a state that was read, and whether with everything below it."""


class RecordContext:
    """One per store. Parts that keep something for the life of the store keep it here."""

    def __init__(self, log: Log, lease_keeper: LeaseKeeper) -> None:
        self.log = log
        self.lease_keeper = lease_keeper
        self.policy = "off"
        self.open_decisions: dict[str, str] = {}
        """The ids of decisions that this worker opened and has not closed, with their scopes."""
        self.unfinished_recoveries: set[str] = set()
        """Decisions that this worker took over to do them again, and came to no outcome: though
        their owner lives, the next recovery may try once more."""
        self._recovering: set[str] = set()
        self._mutex = Lock()
        self.deciding: ContextVar[tuple[str, ...]] = ContextVar("holdfast-deciding", default=())
        """The decisions whose blocks the running code stands in."""
        self.stale_sources: list[Callable[[], Iterable[Any]]] = []
        """What else lists things that a silent worker left in progress (`stale.py`)."""
        self.known_numbers: dict[KeyedItem, int] = {}
        """How many events things had when they were last looked at."""
        self.scans = Scans(log)
        """Which messages conversations have, as far as somebody looked."""
        self.tables = TaskTables(log)
        """The tasks of the scopes that somebody asked for."""
        self.read_observers: dict[str, list[ReadObserver]] = {}
        """By scope, who wants to know what of its state is read (`audit.py`)."""

    def remember_number(self, item: KeyedItem, number: int) -> None:
        """Keeps in mind how many events a thing has, of the things that were asked for last."""
        if item not in self.known_numbers and len(self.known_numbers) >= _NUMBERS_MAX:
            self.known_numbers.pop(next(iter(self.known_numbers)), None)
        self.known_numbers[item] = number

    @contextmanager
    def recovering(self, id: str) -> Generator[bool]:
        """The block of one decision's recovery; False in it if another thread here is at it."""
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


StaleReason = Literal["past its time", "contradicted", "owner silent"]


class Stale(Struct, frozen=True):
    """One thing that describes a world which may be gone."""

    kind: str  # "fact", "decision", …
    id: str  # a fact's name, a decision's id
    scope: str
    why: StaleReason
    text: str
    since: datetime

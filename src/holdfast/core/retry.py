"""Retries of `edit(function)` and `commit(function)` after a conflict.

The function always runs in its caller's thread or task. After the first losses it is just called
again. After `TURN_AFTER` losses the caller takes a turn on the streams that it lost, so that others
in this process wait (`write_priority.py`). After `LEASE_AFTER` losses a faster writer must be in
another process. Then the caller also takes a lease on the name of each stream. Callers that keep
losing in other processes want the same lease, so they write one after the other. Like a turn, the
lease is a courtesy: no commit is fenced by it, and a caller that does not get it in time goes on
without it.

Plain writes of other processes ask for neither, and can be faster for ever. So the tries are
counted, and the last ConflictError is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from holdfast.backends.deadline import monotonic
from holdfast.backends.protocol import Lease
from holdfast.core.log import Log
from holdfast.core.write_priority import MINE, Turn
from holdfast.errors import ConflictError, HoldfastError

T = TypeVar("T")
_logger = logging.getLogger("holdfast.log")

RETRIES = 100
"""How often a function is called again, unless the caller gives another number."""
TURN_AFTER = 2
LEASE_AFTER = 4
LEASE_S = 10.0
LEASE_WAIT_S = 2.0
PAUSE_S = 0.004
"""How long to wait before a lease that another process holds is asked for again."""


class Contest:
    """One caller's tries: how many it lost, and the turn and leases that it took for the next."""

    def __init__(self, log: Log, worker: str, retries: int) -> None:
        self._log = log
        self._turns = log.turns
        self._worker = worker
        self._retries = retries
        self._losses = 0
        self._lost: set[str] = set()
        self._turn: Turn | None = None
        self._leases: dict[str, Lease | None] = {}
        self._lease_until = 0.0
        self._outer = MINE.get()

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that it lost, sorted, so that all callers take leases in the same order."""
        return tuple(sorted(self._lost))

    def lost(self, error: ConflictError) -> None:
        """Counts a loss; raises the error if no try is left."""
        self._losses += 1
        if self._losses > self._retries:
            raise error
        self._lost.add(error.stream)
        self._lease_until = monotonic() + LEASE_WAIT_S
        _logger.debug("it is tried again: %s", error)

    def take_turn(self) -> bool:
        """Takes a turn if it is time for one; returns False if it must wait for another's turn."""
        if self._losses < TURN_AFTER:
            return True
        turn = self._turn
        if turn is None or turn.is_over or turn.streams != self.streams:
            self.end_turn()
            self._turn = turn = self._turns.begin(self.streams)
            if turn is None:
                return False
            MINE.set((*self._outer, turn))
        return True

    @property
    def wants_leases(self) -> bool:
        """Whether it is time for leases that the caller does not have."""
        if self._losses < LEASE_AFTER or monotonic() >= self._lease_until:
            return False
        return any(stream not in self._leases for stream in self._lost)

    def take_leases(self) -> bool:
        """Takes leases if it is time for them; returns False if the caller should ask again soon.

        A lease that this worker's own code holds under the same name serves as well.
        """
        if not self.wants_leases:
            return True
        try:
            for stream in self.streams:
                if stream not in self._leases:
                    self._leases[stream] = self._lease(stream)
        except _HeldElsewhere:
            return False
        except HoldfastError as error:
            _logger.debug("an edit goes on without a lease: %s", error)
        return True

    def _lease(self, stream: str) -> Lease | None:
        leases = self._log.leases
        holder = leases.holder(stream)
        if holder is not None and holder.owner == self._worker:
            return None
        lease = leases.acquire(stream, f"{self._worker}.edit", ttl_s=LEASE_S)
        if lease is None:
            raise _HeldElsewhere
        return lease

    def end(self) -> None:
        """Gives back what was taken."""
        self.end_turn()
        for lease in self._leases.values():
            if lease is not None:
                try:
                    self._log.leases.release(lease)
                except HoldfastError as error:
                    _logger.debug("a lease lapses by itself: %s", error)
        self._leases.clear()

    @property
    def holds_leases(self) -> bool:
        """Whether `end` has something to give back to the backend."""
        return any(self._leases.values())

    def end_turn(self) -> None:
        """Ends the turn, so that those who wait for it go on."""
        if self._turn is not None:
            self._turns.end(self._turn)
            self._turn = None
            MINE.set(self._outer)


class _HeldElsewhere(Exception):
    """Another process has the lease."""


def persist(log: Log, worker: str, retries: int, attempt: Callable[[], T]) -> T:
    """Calls `attempt` until it succeeds; raises its ConflictError after `retries` more tries."""
    contest = Contest(log, worker, retries)
    try:
        while True:
            while not contest.take_turn():
                log.turns.wait(contest.streams)
            while not contest.take_leases():
                log.clock.sleep(PAUSE_S)
            try:
                return attempt()
            except ConflictError as error:
                contest.lost(error)
    finally:
        contest.end()

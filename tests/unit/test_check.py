"""A check of a store that is written to meanwhile, and of one whose order has lost something."""

from __future__ import annotations

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import START, Position, Record
from holdfast.core.log import READ_CHUNK, Log
from holdfast.store import Store
from holdfast.testing import FakeClock
from tests.opening import store_of_log


def store_on(backend: MemoryBackend) -> Store:
    return store_of_log(Log(backend, clock=FakeClock(), actor="tester"), url="memory:", worker="w")


class Busy(MemoryBackend):
    """Is written to by somebody else, once, when all heads are asked for."""

    writes = False

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        if self.writes:
            self.writes = False
            other = store_on(self)
            old = other.team("old")
            for _ in range(READ_CHUNK + 1):
                old.increment("n")
            other.team("new").set("n", 1)
            old.fork("forked").set("n", 1)
        return super().streams(prefix=prefix, after=after, limit=limit)


def test_what_is_written_during_a_check_is_checked_too() -> None:
    backend = Busy(clock=FakeClock())
    store = store_on(backend)
    store.team("old").set("n", 1)
    before = store.check().events
    backend.writes = True
    report = store.check()
    assert report.findings == []
    assert report.events > before + READ_CHUNK


class Forgets(MemoryBackend):
    """Leaves the newest event of a stream out where all streams are read."""

    hidden = ""

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        records = super().read_all(after=after, limit=limit)
        [head] = super().heads([self.hidden])
        newest = head.position if head else None
        return [record for record in records if record.position != newest]


@pytest.mark.parametrize("other", [False, True])
def test_an_event_that_the_order_of_the_store_has_lost_is_a_finding(other: bool) -> None:
    backend = Forgets(clock=FakeClock())
    store = store_on(backend)
    store.team("a").set("n", 1)
    store.team("a").set("n", 2)
    if other:
        store.team("b").set("n", 1)
    backend.hidden = "team/a"
    [finding] = store.check().findings
    assert (finding.where, finding.problem) == ('stream "team/a"', "does not end at its head 2")

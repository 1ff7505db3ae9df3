"""Clauses 6, 16 and 17: what a thread is given, another one that only looks does not take away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.backends.files import FilesBackend
from holdfast.backends.protocol import Fence, Mark, Receipt
from holdfast.clock import SystemClock
from holdfast.testing.records import RecordBuilder
from tests.unit.files.conftest import FaultyDisk

LOOKED_S = 0.5  # that one who may look has looked; one who may not waits for us, not we for it


class Looked:
    """A disk on which somebody looks at leases.json in the very moment in which it is replaced."""

    def __init__(self) -> None:
        self.look: Callable[[], object] | None = None
        self.lookers: list[threading.Thread] = []
        self.disk = FaultyDisk(self._fault)

    def _fault(self, _: int, name: str, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if name == "rename" and self.look is not None:
            look, self.look = self.look, None
            looker = threading.Thread(target=look)
            looker.start()
            looker.join(LOOKED_S)
            self.lookers.append(looker)
        return run()

    def end(self) -> None:
        for looker in self.lookers:
            looker.join(120)
        assert self.lookers, "nobody looked"
        self.lookers.clear()


def test_a_lease_that_is_taken_while_another_thread_looks_is_held(tmp_path: Path) -> None:
    looked = Looked()
    backend = FilesBackend(tmp_path / "s", clock=SystemClock(), disk=looked.disk)
    leases, build = backend.leases, RecordBuilder()
    looked.look = lambda: leases.holder("other")
    lease = leases.acquire("mine", "a", ttl_s=600)
    looked.end()
    assert lease is not None
    # The next change writes the book down: with the lease of the one before in it.
    assert leases.acquire("second", "a", ttl_s=600) is not None
    assert leases.holder("mine") == lease
    fence = Fence("mine", "a", lease.epoch)
    [outcome] = backend.commit([build.commit(build.append("x"), fence=fence)])
    assert isinstance(outcome, Receipt)
    looked.look = leases.list
    leases.release(lease)
    looked.end()
    assert leases.holder("mine") is None
    backend.close()


def test_a_mark_that_is_claimed_while_another_thread_looks_is_claimed_once(tmp_path: Path) -> None:
    looked = Looked()
    backend = FilesBackend(tmp_path / "s", clock=SystemClock(), disk=looked.disk)
    build = RecordBuilder()
    backend.commit([build.commit(build.append("x"), marks=(Mark("todo", "1"), Mark("todo", "2")))])
    looked.look = backend.marks.claims
    first = backend.marks.claim("todo", "a", n=1, ttl_s=600)
    looked.end()
    second = backend.marks.claim("todo", "a", n=2, ttl_s=600)
    assert [mark.key for mark in (*first, *second)] == ["1", "2"]
    backend.close()

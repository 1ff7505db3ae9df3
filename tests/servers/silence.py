"""The part of the contract in which servers differ from one host: nobody sees a process die."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from holdfast.backends.protocol import Backend, Mark
from holdfast.testing import FakeClock, RecordBuilder
from holdfast.testing.child import Child
from holdfast.testing.durable import MultiProcessContract
from holdfast.testing.leases import acquired
from holdfast.testing.trial import accepted


class SilentOwners(MultiProcessContract):
    """The multi-process contract of a server: a dead owner is one that is silent for too long."""

    @abstractmethod
    def wait_out(self, seconds: float) -> None:
        """Moves the clock of the server that `shared` is on."""

    def reboot(self, clock: FakeClock) -> None:
        clock.advance(3600)

    def test_clause_16_a_dead_processs_lease_and_claims_pass_on_at_once(
        self, place: Path, shared: Backend, build: RecordBuilder
    ) -> None:
        """Not at once: no server can tell a dead owner from a slow one. They pass on in time."""
        accepted(shared, build.commit(marks=[Mark("i", "m"), Mark("i", "n")]))
        with Child(self, place, "hold") as child:
            epoch, keys = child.hear()
            assert keys == ["m", "n"]
            child.kill()
            assert shared.leases.acquire("l", "w1", ttl_s=10) is None
            assert shared.marks.claim("i", "w1", n=9, ttl_s=10) == []
            self.wait_out(3601)
            assert acquired(shared, "l", "w1").epoch > epoch
            claimed = shared.marks.claim("i", "w1", n=9, ttl_s=10)
            assert [mark.key for mark in claimed] == ["m", "n"]

"""The position that a question waits for, where commits become visible in another order."""

from typing import Any

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Moment, Position
from holdfast.core.log import Log
from holdfast.testing import FakeClock


class _UnderWay(Moment, frozen=True, gc=False):
    """A moment at which something is under way until a later number."""

    number: int

    def is_settled(self, later: Any) -> bool:
        return later.number >= self.number + 2


def test_a_commit_under_way_is_waited_for() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    log = Log(backend, clock=clock, actor="a")
    assert log.settled_position(0) == (Position(0), True)
    numbers = iter(range(100))
    backend.moment = lambda: _UnderWay(Position(0), next(numbers))  # type: ignore[method-assign]
    assert log.settled_position(60) == (Position(0), True)
    assert log.settled_position(0) == (Position(0), False)
    assert log.side_tables("query") is None

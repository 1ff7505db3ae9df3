"""Turns: for a moment one caller of this process has a stream to itself, after it kept losing.

A caller that reads, computes and then writes loses to callers that only write, and may lose for
ever. So after some losses it takes a turn on the stream: what others in this process want to commit
there waits until the turn is over. What was queued before is finite, and after it nobody in this
process is faster.

A turn is a courtesy, not a guard: the commit is still refused if somebody wrote meanwhile. So a
turn may lapse, and it does after `TURN_S`: otherwise there could be a deadlock, because its
holder may be waiting for one of those who wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from threading import RLock

from holdfast.backends.deadline import monotonic
from holdfast.backends.gates import open_gate, shut_gate

TURN_S = 2.0
"""How long others wait for a turn at most."""


class Turn:
    """One caller's turn on some streams. `until` is when it lapses."""

    __slots__ = ("_tell", "is_over", "streams", "until")

    def __init__(self, streams: tuple[str, ...], until: float) -> None:
        self.streams = streams
        self.until = until
        self.is_over = False
        self._tell: list[Callable[[], object]] = []

    def when_over(self, tell: Callable[[], object]) -> None:
        """Calls `tell` when the turn is over, at once if it is: from any thread, perhaps twice."""
        # Added first and checked then: if the turn ends in between, it is told twice. The other
        # way round it might not be told at all.
        self._tell.append(tell)
        if self.is_over:
            tell()

    def forget(self, tell: Callable[[], object]) -> None:
        """Removes a function that `when_over` added."""
        self._tell.remove(tell)

    def end(self) -> None:
        """Ends the turn, and tells all who wait for it."""
        self.is_over = True
        for tell in tuple(self._tell):
            tell()


MINE: ContextVar[tuple[Turn, ...]] = ContextVar("holdfast_turns", default=())
"""The turns of this thread or task: its own commits do not wait for them."""


class Turns:
    """The turns that are taken in one store of this process, by stream."""

    def __init__(self) -> None:
        self.held: dict[str, Turn] = {}
        """By stream. It is empty nearly always, and then costs a commit one check."""
        self._mutex = RLock()

    def begin(self, streams: tuple[str, ...]) -> Turn | None:
        """Returns a turn on all of the streams; None if somebody else has one of them."""
        with self._mutex:
            if self.ahead(streams) is not None:
                return None
            turn = Turn(streams, monotonic() + TURN_S)
            for stream in streams:
                self.held[stream] = turn
            return turn

    def end(self, turn: Turn) -> None:
        """Ends a turn, which may be over already."""
        with self._mutex:
            for stream in turn.streams:
                if self.held.get(stream) is turn:
                    del self.held[stream]
        turn.end()

    def ahead(self, streams: Sequence[str]) -> Turn | None:
        """Returns somebody else's turn on one of the streams, None if there is none."""
        for stream in streams:
            turn = self.held.get(stream)
            if turn is None or turn in MINE.get():
                continue
            if monotonic() < turn.until:
                return turn
            self.end(turn)
        return None

    def wait(self, streams: Sequence[str]) -> None:
        """Returns when nobody else has a turn on one of the streams."""
        while (turn := self.ahead(streams)) is not None:
            gate = shut_gate()
            tell = partial(open_gate, gate)
            turn.when_over(tell)
            try:
                gate.acquire(timeout=max(turn.until - monotonic(), 0))
            finally:
                turn.forget(tell)

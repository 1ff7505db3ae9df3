"""Values of a state that have ended: which clock decides, and the state without them (0073).

The ends are part of the state, folded from events (`tree/ends.py`). A read of the present state
leaves out the values that have ended. A read of an old revision shows what was there.

The clock that judges a stream judges its values too: the server's, or this host's if there is no
server. A server is asked for its time now and then; in between, its time is carried on by this
host's boot clock, which nobody can set. So a read of a state with ends seldom costs a round trip.
Each backend of a mixed store has a time of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from holdfast.backends.protocol import Backend
from holdfast.clock import Clock
from holdfast.core import tree
from holdfast.core.event import UNKNOWN, StreamState
from holdfast.core.layers import Layer, register_layer

ENDING = "state.ends"
"""The index with a mark for each stream that has values with ends; due when the first ends."""
register_layer(Layer(name="key ends", indexes=(ENDING,)))

ASKED_US = 10_000_000
"""How long a server's time is carried on by this host's clock before the server is asked again."""
_SHOWN_MAX = 4096


class KeyEnds:
    """Finds what has ended in the states of one store."""

    def __init__(self, backend_of: Callable[[str], Backend], clock: Clock) -> None:
        """`backend_of` returns the backend that keeps a stream."""
        self._backend_of = backend_of
        self._clock = clock
        # A server's time, and the boot time of then, for each backend on a server.
        self._asked: dict[int, tuple[int, int]] = {}
        self._shown: dict[str, tuple[StreamState, int, int, StreamState]] = {}

    def now_us(self, stream: str) -> int:
        """Returns the time on the clock that judges a stream; a server's is an estimate."""
        backend = self._backend_of(stream)
        # A backend on a server has a limit for each call; one on this host has none.
        if getattr(backend, "timeout_s", None) is None:
            return backend.now_us(stream)
        boot_us = self._clock.boot_us()
        asked = self._asked.get(id(backend))
        if asked is None or not 0 <= boot_us - asked[1] < ASKED_US:
            asked = self._asked[id(backend)] = backend.now_us(stream), boot_us
        return asked[0] + boot_us - asked[1]

    def shown(self, state: StreamState, stream: str) -> StreamState:
        """Returns a state without the values that have ended.

        The result is cached until the next value ends. A state without ends is returned unchanged.
        """
        if not state.ends or state.root is UNKNOWN:
            return state
        now_us = self.now_us(stream)
        kept = self._shown.get(stream)
        if kept is not None and kept[0] is state and kept[1] <= now_us < kept[2]:
            return kept[3]
        gone = tree.ended(state.ends, now_us)
        left = [end_us for path, end_us in state.ends.items() if path and end_us > now_us]
        shown = state
        if gone:
            ends = {path: end_us for path, end_us in state.ends.items() if end_us > now_us}
            shown = replace(state, root=tree.without(state.root, gone), ends=ends)
        if len(self._shown) >= _SHOWN_MAX:
            self._shown.clear()
        self._shown[stream] = state, now_us, min(left, default=1 << 63), shown
        return shown

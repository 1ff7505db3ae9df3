"""The cache of folds and ends of streams; the least recently used are forgotten first.

The size of each fold is estimated in bytes, and a budget limits the sum: 100,000 small states fit,
or a few large ones. When a fold is forgotten, the StreamEnd of its stream stays. It is small, and
enough for most writes: events that change no state, or that only set keys at the top of it and so
fit any state.

Use is noted in a set, which costs a read or write one call into C. To make room, the folds are
taken in the order in which they were kept: one that was used since is weighed again and put last,
any other is forgotten (the clock algorithm). So nothing is sorted, and a read moves nothing. The
order is kept in an OrderedDict, because in a dict the search for the first key would pass over all
the empty places at the front, thousands of them.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from holdfast.core.event import NOTHING, StreamEnd, StreamState
from holdfast.core.tree import footprint

FOLDS_BYTES_MAX = 128 << 20
FOLD_BYTES = 500
"""The bytes that a fold takes apart from its state: itself, its link, its name, table entries."""
ENDS_MAX = 1 << 17
_UNKEPT_MAX = 1024


class Folds:
    """The newest known states of streams, and the ends of streams whose state is not known."""

    def __init__(self) -> None:
        self.states: dict[str, StreamState] = {}
        """Callers may read it, and replace a state that is there; only `keep` adds one."""
        self.ends: OrderedDict[str, StreamEnd] = OrderedDict()
        self.used: set[str] = set()
        """Streams of `states` that were used since room was last made."""
        self.bytes_max = FOLDS_BYTES_MAX
        self.ends_max = ENDS_MAX
        self.bytes = 0
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()

    def keep(self, stream: str, state: StreamState, *, is_grown: bool = False) -> None:
        """Keeps a state or an end of a stream. With `is_grown` a state is weighed again."""
        with self._lock:
            if isinstance(state, StreamEnd):
                self._keep_end(stream, state)
                return
            self.ends.pop(stream, None)
            self.states[stream] = state
            if is_grown or stream not in self._sizes:
                self._weigh(stream, state)
                self._make_room(stream)

    def _keep_end(self, stream: str, end: StreamEnd) -> None:
        self.ends.pop(stream, None)
        if len(self.ends) >= self.ends_max:
            self.ends.popitem(last=False)
        self.ends[stream] = end

    def _weigh(self, stream: str, state: StreamState) -> None:
        size = FOLD_BYTES + footprint(state.root)
        self.bytes += size - self._sizes.get(stream, 0)
        self._sizes[stream] = size

    def trim(self) -> None:
        """Replaces every fold by its end, which frees memory; states are read again on demand."""
        with self._lock:
            for stream, state in list(self.states.items()):
                self._keep_end(stream, _end(state))
            self.states.clear()
            self._sizes.clear()
            self.used.clear()
            self.bytes = 0

    def forget(self, stream: str) -> None:
        """Replaces the fold of one stream by its end, because its events were let go of."""
        with self._lock:
            state = self.states.pop(stream, None)
            if state is not None:
                self._keep_end(stream, _end(state))
                self.bytes -= self._sizes.pop(stream, 0)
                self.used.discard(stream)

    def _make_room(self, newest: str) -> None:
        """Forgets folds until the rest fits the budget; the newest one stays, however large."""
        if len(self.used) > len(self._sizes) + _UNKEPT_MAX:
            self.used.intersection_update(self._sizes)
        while self.bytes > self.bytes_max and len(self._sizes) > 1:
            stream = next(iter(self._sizes))
            state = self.states.get(stream)
            if state is not None and (stream == newest or stream in self.used):
                self.used.discard(stream)
                self.bytes -= self._sizes.pop(stream)
                self._weigh(stream, state)
                continue
            self.bytes -= self._sizes.pop(stream)
            self.states.pop(stream, None)
            if state is not None:
                self._keep_end(stream, _end(state))


def _end(state: StreamState) -> StreamEnd:
    return StreamEnd(
        state.revision,
        state.link,
        state.time,
        NOTHING,
        state.parent,
        state.closed_at,
        state.dropped,
        state.expires_us,
        state.removed_at,
        state.version,
        state.subject,
        state.slides_us,
    )

"""The folds in memory, and the ends of streams: what was not used for longest is forgotten first.

A fold is weighed by an estimate of the bytes that it takes, and all of them together by a budget:
100,000 small states fit, and so do a few large ones. When a fold is forgotten, the end of its
stream stays, which is small and is all that most writes need: an event that changes no state, or
one that only sets keys of the state, which fits whatever is there.

Use is noted in a set, one call of C on the way of a read or write. Whoever must make room begins
with what was kept first: a fold that was used since is weighed again and put last, any other is
forgotten. So nothing is sorted, and nothing is moved while it is only read. What is forgotten from
the front is kept in an OrderedDict: the first key of a dict is looked for among all places that are
empty now, thousands of them.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from holdfast.core.event import NOTHING, StreamEnd, StreamState
from holdfast.core.tree import footprint

FOLDS_BYTES_MAX = 128 << 20
FOLD_BYTES = 500
"""What a fold takes beside its state: itself, its link, its name, its places in tables."""
ENDS_MAX = 1 << 17
_UNKEPT_MAX = 1024


class Folds:
    """The newest known state of streams, and the ends of those whose state is not known."""

    def __init__(self) -> None:
        self.states: dict[str, StreamState] = {}
        """Read it as it is. Replacing a state that is there is fine; `keep` adds one."""
        self.ends: OrderedDict[str, StreamEnd] = OrderedDict()
        self.used: set[str] = set()
        """Streams of `states` that were used since they were last looked at here."""
        self.bytes_max = FOLDS_BYTES_MAX
        self.ends_max = ENDS_MAX
        self.bytes = 0
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()

    def keep(self, stream: str, state: StreamState, *, is_grown: bool = False) -> None:
        """Keeps what is known of a stream. One that has grown is weighed again."""
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
        """Forgets every fold but the end of each: what is asked for again is read again."""
        with self._lock:
            for stream, state in list(self.states.items()):
                self._keep_end(stream, _end(state))
            self.states.clear()
            self._sizes.clear()
            self.used.clear()
            self.bytes = 0

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

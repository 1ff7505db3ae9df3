"""Streams that end by themselves: when, by whose clock, and what is left of them (0010).

The very first event of such a stream says when it ends, so the end is part of its history: the
same in every backend and in every copy, and never moved. It is judged by the backend's own clock:
the server's, or this host's where there is no server. A commit is judged by the backend, in the
same step as everything else; what is read is judged here.

A scope that is held does not end for those who read it, and nothing of it goes. It takes no commit
after its end.
"""

from __future__ import annotations

from holdfast.backends.protocol import Backend, Head, MarkQuery, Record, find_marks
from holdfast.core.event import expires_of
from holdfast.core.layers import Layer, register_layer
from holdfast.errors import CorruptError, ExpiredError

EXPIRING = "scope.expires"
"""The index that has a mark for each stream with a lifetime, due when it ends."""

HOLDS = "retention.hold"
"""The index that has a mark for each scope that is held."""

register_layer(Layer(name="expiry", indexes=(EXPIRING,)))

_KNOWN_MAX = 65536
_OBJECTS_STAY_US = 60_000_000


class Expiry:
    """When the streams of one store end."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[str, int] = {}
        self._intended: dict[str, float] = {}

    def intend(self, stream: str, ttl_s: float) -> None:
        """Notes how long a stream is to last, if it is begun by this process from here on.

        It is kept here, and not in each write, because whatever is written first begins it.
        """
        self._intended[stream] = ttl_s

    def begin(self, stream: str) -> int:
        """Returns when a stream ends that begins now, in whole milliseconds; 0 if it lasts."""
        ttl_s = self._intended.get(stream)
        if ttl_s is None:
            return 0
        return (self._backend.now_us(stream) + round(ttl_s * 1_000_000)) // 1000 * 1000

    def keep_until(self, stream: str) -> int:
        """Returns how long the objects of a stream must be kept, 0 for good.

        It is asked a moment before a new stream's own end is: so they stay a little longer.
        """
        [head] = self._backend.heads([stream])
        if head is not None and head.expires_us and self.is_held(stream):
            return 0
        ends = self.begin(stream) if head is None else self.end(stream, head)
        return ends + _OBJECTS_STAY_US if ends else 0

    def check(self, stream: str, expires_us: int) -> None:
        """Raises ExpiredError if that end has come. What lasts costs nothing."""
        if self._is_over(stream, expires_us):
            raise ExpiredError(stream, expires_us=expires_us)

    def end(self, stream: str, head: Head) -> int:
        """Returns when a stream that is there ends, 0 if it lasts; reads one event at most once."""
        if head.expires_us or head.first > 1:
            return head.expires_us  # forks last
        known = self._known.get(stream)
        if known is None:
            # In a store where no stream ends by itself, which is nearly every one, no event is
            # read. A stream that is there is never given an end later.
            known = expires_of(self._backend.read(stream, limit=1)[0]) if self._some_end() else 0
            self.know(stream, known)
        return known

    def known_end(self, stream: str) -> int:
        """Returns when a stream ends of which `kept` has just seen records; 0 if it lasts."""
        return self._known.get(stream, 0)

    def know(self, stream: str, expires_us: int) -> None:
        """Keeps in mind when a stream ends: that never changes."""
        self._intended.pop(stream, None)  # it has begun
        if stream not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                self._known.pop(next(iter(self._known)), None)
            self._known[stream] = expires_us

    def kept(self, records: list[Record]) -> list[Record]:
        """Returns the records, of any streams, without those of streams whose end has come."""
        for record in records:
            if record.revision == 1:
                self.know(record.stream, expires_of(record))
        streams = dict.fromkeys(record.stream for record in records)
        if unknown := [stream for stream in streams if stream not in self._known]:
            if self._some_end():
                for stream, head in zip(unknown, self._backend.heads(unknown), strict=True):
                    self.know(stream, self.end(stream, head) if head is not None else 0)
            else:
                for stream in unknown:
                    self.know(stream, 0)
        gone = {stream for stream in streams if self._is_over(stream, self._known.get(stream, 0))}
        return [record for record in records if record.stream not in gone] if gone else records

    def _some_end(self) -> bool:
        """Returns whether any stream of the store ends by itself, or may do so."""
        try:
            return bool(self._backend.marks.list(EXPIRING, limit=1))
        except CorruptError:
            return True  # of a damaged store: then each stream's own first event says it

    def has_ended(self, stream: str, head: Head) -> bool:
        """Returns whether the end of a stream has come, and no hold keeps it."""
        return self._is_over(stream, self.end(stream, head))

    def is_due(self, stream: str, head: Head) -> bool:
        """Returns whether the end of a stream has come, held or not."""
        return self._has_come(stream, self.end(stream, head))

    def is_held(self, stream: str) -> bool:
        """Returns whether a scope is held."""
        try:
            return bool(find_marks(self._backend.marks, MarkQuery(HOLDS, keys=(stream,), limit=1)))
        except CorruptError:
            return False  # nothing goes for that: retention asks for the holds itself

    def _is_over(self, stream: str, expires_us: int) -> bool:
        return self._has_come(stream, expires_us) and not self.is_held(stream)

    def _has_come(self, stream: str, expires_us: int) -> bool:
        if not expires_us:
            return False
        self._intended.pop(stream, None)  # it has begun
        return self._backend.now_us(stream) >= expires_us

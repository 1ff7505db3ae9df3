"""Streams that end by themselves: when, and by which clock (0065).

The first event of such a stream says how long it lasts. The end is fixed by that, or it slides:
then it is a fixed time after the newest event, whose time is in the log. So the end is part of the
history, and equal in every backend and every copy. The backend's clock judges it: the server's, or
this host's if there is no server. The backend judges commits, in the same step as all other checks;
reads are judged here.

A scope that is held can still be read after its end, and nothing of it is let go of. But it accepts
no commit after its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

from holdfast.backends.protocol import Backend, Head, MarkQuery, Record, find_marks
from holdfast.core.event import LASTS, Lifetime, StreamState, lifetime_of
from holdfast.core.layers import Layer, register_layer
from holdfast.errors import CorruptError, ExpiredError

EXPIRING = "scope.expires"
"""The index with a mark for each stream that has a lifetime, due when it ends."""

HOLDS = "retention.hold"
"""The index with a mark for each scope that is held."""

register_layer(Layer(name="expiry", indexes=(EXPIRING,)))

TOUCHES = 10
"""A touch writes only if this fraction of the lifetime (1/10) has passed since the newest event."""

_KNOWN_MAX = 65536
_OBJECTS_STAY_US = 60_000_000


class ExpiryPolicy(NamedTuple):
    """How long new streams last."""

    ttl_s: float
    slides: bool = False


class Expiry:
    """When the streams of one store end."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: OrderedDict[str, Lifetime] = OrderedDict()
        self._intended: dict[str, ExpiryPolicy] = {}
        self._mutex = Lock()
        self._newest: OrderedDict[str, int] = OrderedDict()  # sliding ends that `kept` has found
        self.of_level: Callable[[str], ExpiryPolicy | None] = _no_term
        """Returns the stored policy of a level, for scopes that begin without a `ttl_s`."""

    def intend(self, stream: str, ttl_s: float, *, slides: bool = False) -> None:
        """Notes how long a stream will last if this process begins it.

        It is kept here and not in a write, because any kind of write may be the first.
        """
        self._intended[stream] = ExpiryPolicy(ttl_s, slides)

    def terms(self, streams: Sequence[str]) -> dict[str, ExpiryPolicy]:
        """Returns how long each of some new streams will last; streams that last are left out.

        The policy of a level is read once, however many of its streams begin.
        """
        of_levels: dict[str, ExpiryPolicy | None] = {}
        found: dict[str, ExpiryPolicy] = {}
        for stream in streams:
            term = self._intended.get(stream)
            if term is None:
                level = stream.partition("/")[0]
                if level not in of_levels:
                    of_levels[level] = self.of_level(level)
                term = of_levels[level]
            if term is not None:
                found[stream] = term
        return found

    def will_end(self, stream: str) -> bool:
        """Returns whether a stream ends by itself, or would if it began now."""
        [head] = self._backend.heads([stream])
        return bool(self.terms([stream])) if head is None else self.end(stream, head) > 0

    def begin(self, stream: str, term: ExpiryPolicy | None) -> Lifetime:
        """Returns the lifetime of a stream that begins now with this term; None: it lasts."""
        if term is None:
            return LASTS
        length_us = round(term.ttl_s * 1_000_000)
        ends = (self._backend.now_us(stream) + length_us) // 1000 * 1000
        return Lifetime(ends, length_us if term.slides else 0)

    def keep_until(self, stream: str) -> int:
        """Returns until when the snapshots of a stream must be kept; 0: for good.

        For a new stream this is computed a moment before the stream's own end. So a minute is
        added, and the snapshots outlast the stream.
        """
        [head] = self._backend.heads([stream])
        if head is not None and head.expires_us and self.is_held(stream):
            return 0
        ends = self._begun(stream).expires_us if head is None else self.end(stream, head)
        return ends + _OBJECTS_STAY_US if ends else 0

    def keep_blobs_until(self, stream: str) -> int:
        """Returns until when the blobs of a stream must be kept; 0: for good.

        The blobs of a stream with a sliding end have none: no commit could renew every blob that
        earlier events name. `retain` deletes them.
        """
        [head] = self._backend.heads([stream])
        lifetime = self._begun(stream) if head is None else self.lifetime(stream, head)
        return 0 if lifetime.slides_us else self.keep_until(stream)

    def _begun(self, stream: str) -> Lifetime:
        """Returns the lifetime that a stream would have if it began now."""
        return self.begin(stream, self.terms([stream]).get(stream))

    def check(self, stream: str, state: StreamState) -> None:
        """Raises ExpiredError if the end of a stream has come; a stream that lasts costs nothing.

        Another process may have moved a sliding end since that state, so the head is read again
        before the error is raised.
        """
        ends = state.ends_us
        if self._is_over(stream, ends):
            [head] = self._backend.heads([stream]) if state.slides_us else [None]
            if head is not None:
                ends = max(ends, self.end(stream, head))
            self.check_end(stream, ends)

    def check_end(self, stream: str, ends_us: int) -> None:
        """Raises ExpiredError if this end has come and no hold keeps the stream."""
        if self._is_over(stream, ends_us):
            raise ExpiredError(stream, expires_us=ends_us)

    def end(self, stream: str, head: Head) -> int:
        """Returns when an existing stream ends, 0 if it lasts; may read one event, once."""
        if head.expires_us or head.first > 1:
            return head.expires_us  # forks last
        return self.lifetime(stream, head).end(head.time)

    def lifetime(self, stream: str, head: Head) -> Lifetime:
        """Returns how long an existing stream lasts; may read one event, once."""
        if head.first > 1:
            return LASTS
        known = self._known.get(stream)
        if known is None:
            # No event is read in a store where no stream ends by itself, which is nearly every
            # store. The answer can be cached: a stream never gets a lifetime after its first event.
            ends = head.expires_us or self._some_end()
            known = lifetime_of(self._backend.read(stream, limit=1)[0]) if ends else LASTS
            self.know(stream, known)
        return known

    def known_lifetime(self, stream: str) -> Lifetime:
        """Returns how long a stream lasts; `kept` must just have seen records of it."""
        return self._known.get(stream, LASTS)

    def known_end(self, stream: str) -> int:
        """Returns when a stream ends, 0 if it lasts; `kept` must just have seen records of it."""
        return self._newest.get(stream) or self._known.get(stream, LASTS).expires_us

    def know(self, stream: str, lifetime: Lifetime) -> None:
        """Caches how long a stream lasts, which never changes."""
        self._intended.pop(stream, None)  # it has begun
        if stream not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                self._known.popitem(last=False)
            self._known[stream] = lifetime

    def kept(self, records: list[Record]) -> list[Record]:
        """Returns the records, of any streams, without those of streams whose end has come."""
        for record in records:
            if record.revision == 1:
                self.know(record.stream, lifetime_of(record))
        streams = dict.fromkeys(record.stream for record in records)
        if unknown := [stream for stream in streams if stream not in self._known]:
            if self._some_end():
                self._look_up(unknown)
            else:
                for stream in unknown:
                    self.know(stream, LASTS)
        ends = {
            stream: self._known[stream].expires_us for stream in streams if stream in self._known
        }
        if slid := [stream for stream in ends if self._known[stream].slides_us]:
            heads = zip(slid, self._backend.heads(slid), strict=True)
            found = {name: self.end(name, head) for name, head in heads if head is not None}
            self._know_ends(found)
            ends |= found
        gone = {stream for stream, end in ends.items() if self._is_over(stream, end)}
        return [record for record in records if record.stream not in gone] if gone else records

    def _know_ends(self, found: dict[str, int]) -> None:
        """Caches sliding ends. Nothing is dropped that another thread may be about to ask for."""
        with self._mutex:
            for name, end in found.items():
                self._newest[name] = max(end, self._newest.get(name, 0))
                self._newest.move_to_end(name)
            while len(self._newest) > _KNOWN_MAX:
                self._newest.popitem(last=False)

    def _look_up(self, streams: list[str]) -> None:
        for stream, head in zip(streams, self._backend.heads(streams), strict=True):
            if head is not None and head.expires_us and self._is_over(stream, head.expires_us):
                # A server that lets go by itself may have deleted its events already.
                self.know(stream, Lifetime(head.expires_us))
            else:
                self.know(stream, LASTS if head is None else self.lifetime(stream, head))

    def _some_end(self) -> bool:
        """Returns whether any stream of the store ends by itself, or may do so."""
        try:
            return bool(self._backend.marks.list(EXPIRING, limit=1))
        except CorruptError:
            return True  # the store is damaged: then the first event of each stream is read

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
            return False  # only reads rely on this: retention reads the holds itself

    def is_held_past(self, stream: str, ends_us: int) -> bool:
        """Returns whether an end has come, and a hold keeps the scope for those who read it."""
        return self._has_come(stream, ends_us) and self.is_held(stream)

    def _is_over(self, stream: str, expires_us: int) -> bool:
        return self._has_come(stream, expires_us) and not self.is_held(stream)

    def _has_come(self, stream: str, expires_us: int) -> bool:
        if not expires_us:
            return False
        self._intended.pop(stream, None)  # it has begun
        return self._backend.now_us(stream) >= expires_us


def _no_term(level: str) -> None:
    del level

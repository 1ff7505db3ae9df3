"""What this process knows of streams: numbers for good, heads as of a position.

No row says where a stream's head is: that would be a second truth, and one more page for every
commit. The head is the newest row of the stream, and it is remembered here. The cache is complete
up to `position`: a remembered head is the true one unless some event above that position belongs
to its stream. Everything that moves a head adds an ordinal, so the newest ordinal, one look at the
end of one table, tells whether there is anything new.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

from holdfast.backends.protocol import Head

_STREAMS_MAX = 50_000


class Stream(NamedTuple):
    """A stream's number, and the first revision that it holds."""

    id: int
    first: int


class Heads:
    """Shared by the writing and the reading side; the lock is held for a few dict operations."""

    def __init__(self) -> None:
        self.position = 0
        self.heads: dict[str, Head] = {}
        self.streams: dict[str, Stream] = {}
        self._names: dict[int, str] = {}
        self._lock = Lock()

    def remember(self, streams: dict[str, Stream]) -> None:
        """Keeps numbers that were read from committed rows: they never change."""
        with self._lock:
            self._remember(streams)

    def advance(self, newest: int, changed: Iterable[int] | None) -> None:
        """Forgets the heads of the changed streams, all if None, and is complete up to `newest`."""
        with self._lock:
            if newest <= self.position:
                return
            if changed is None:
                self.heads.clear()
            else:
                for stream_id in changed:
                    self.heads.pop(self._names.get(stream_id, ""), None)
            self.position = newest

    def offer(self, position: int, heads: dict[str, Head], streams: dict[str, Stream]) -> None:
        """Remembers heads that were true at `position`, unless more has been seen since."""
        with self._lock:
            self._remember(streams)
            if position == self.position:
                self._keep(heads)

    def publish(self, position: int, heads: dict[str, Head], streams: dict[str, Stream]) -> None:
        """Takes over what a transaction left, made on everything before it, up to `position`.

        If another thread has meanwhile looked further, our heads may be old already.
        """
        with self._lock:
            if streams:
                self._remember(streams)
            if position >= self.position:
                self._keep(heads)
                self.position = position

    def _keep(self, heads: dict[str, Head]) -> None:
        # A head may be here only while its stream's number is, else `advance` would not find it.
        for name, head in heads.items():
            if name in self.streams:
                self.heads[name] = head

    def _remember(self, streams: dict[str, Stream]) -> None:
        if len(self.streams) + len(streams) > _STREAMS_MAX:
            self.streams.clear()
            self._names.clear()
            self.heads.clear()
        for name, stream in streams.items():
            self.streams[name] = stream
            self._names[stream.id] = name

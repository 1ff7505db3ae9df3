"""Finds streams with a time that is ahead, and how far this host's clock is from the backend's.

An event's time is never before that of the event before it. So one write with a clock that is years
ahead holds the stream at that time until it has come. Meanwhile its states can be found by
revision, but not by time.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from holdfast.backends.protocol import AHEAD_US
from holdfast.core.log import Log


class StreamAhead(Struct, frozen=True):
    """A stream whose newest time is ahead; `sound` is its newest revision that is not (0: none)."""

    stream: str
    ahead_us: int
    sound: int


def streams_ahead(log: Log) -> Iterator[StreamAhead]:
    """Yields the streams that are more than AHEAD_US ahead of the clock that judges them."""
    after = ""
    while names := log.stream_page(after=after):
        now_us = log.now_us(names[0])
        for name, head in zip(names, log.heads(names), strict=True):
            if head is None or head.time <= now_us + AHEAD_US:
                continue
            # Judged again by the stream's own clock: in a mixed store another backend may keep it.
            now_us = log.now_us(name)
            if head.time > now_us + AHEAD_US and not log.expiry.has_ended(name, head):
                sound = log.revision_at_time(name, now_us + AHEAD_US)
                yield StreamAhead(name, head.time - now_us, sound)
        after = names[-1]


def skew_us(log: Log, stream: str) -> int:
    """Returns how far this host's clock is ahead of the one that judges a stream (< 0: behind).

    The host's time is taken in the middle of the call, because the answer takes a while.
    """
    before = log.clock.now_us()
    judged = log.now_us(stream)
    return (before + log.clock.now_us()) // 2 - judged

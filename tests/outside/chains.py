"""Events as an outside reader finds them, and the proof that they are what was written.

Nothing here, and nothing in this directory, imports holdfast: what it says about a store is said
from the format documents alone (docs/decisions/0001 and 0002, and the schema of the database).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, NamedTuple

_ID = re.compile(r"op:\d+(?:\.\d+)*")


class Damage(Exception):
    """The store is not what its format says; the text says where."""


class Event(NamedTuple):
    """One stored event."""

    stream: str
    revision: int
    position: int
    time: int
    type: str
    actor: str
    payload: bytes
    link: bytes
    key: str | None
    checkpoint: str | None
    subject: str | None
    meta: str | None = None

    @property
    def data(self) -> Any:
        return json.loads(self.payload)

    @property
    def ids(self) -> set[str]:
        """The ids of operations that wrote this event: in the payload, or as a name or key.

        A `restored` event repeats old values; a fork has the id in the name of its stream.
        """
        texts = [self.key or "", self.checkpoint or ""]
        if self.type == "forked":
            texts.append(self.stream)
        elif self.type == "changed":
            texts.append(self.payload.decode())
        return {found for text in texts for found in _ID.findall(text)}


def next_link(previous: bytes, event: Event) -> bytes:
    """Returns the link that an event must have behind `previous` (0002, links and time)."""
    meta = () if event.meta is None else (event.meta,)
    envelope = json.dumps(
        [
            event.stream,
            event.revision,
            event.time,
            event.type,
            event.actor,
            event.key,
            event.checkpoint,
            event.subject,
            *meta,
        ],
        ensure_ascii=False,
        separators=(",", ":"),
    )
    return sha256(previous + sha256(event.payload).digest() + envelope.encode()).digest()


def by_stream(events: Iterable[Event]) -> dict[str, list[Event]]:
    streams: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        streams[event.stream].append(event)
    return dict(streams)


def check_chains(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Recomputes every link; returns the events by stream, or raises Damage.

    Revisions have no gaps, times do not fall within a stream, positions do not fall in the store,
    and a fork goes on from its parent's revision and link.
    """
    links: dict[tuple[str, int], bytes] = {}
    newest: dict[str, Event] = {}
    origins: dict[str, tuple[str, int]] = {}
    streams: dict[str, list[Event]] = defaultdict(list)
    position = 0
    for event in events:
        where = f"event {event.revision} of {event.stream!r}"
        if event.position < position:
            raise Damage(f"{where} has position {event.position} behind {position}")
        position = event.position
        last = newest.get(event.stream)
        if last is None and event.type == "forked":
            origin = origins[event.stream] = event.data["from"], event.data["at"]
            before, link = origin[1], _inherited(links, origins, *origin)
        elif last is None:
            before, link = 0, bytes(32)
        else:
            before, link = last.revision, last.link
            if event.time < last.time:
                raise Damage(f"{where} is older than the one before it")
        if event.revision != before + 1:
            raise Damage(f"{where} follows revision {before}")
        if next_link(link, event) != event.link:
            raise Damage(f"{where} does not match its link")
        links[event.stream, event.revision] = event.link
        newest[event.stream] = event
        streams[event.stream].append(event)
    return dict(streams)


def _inherited(
    links: dict[tuple[str, int], bytes],
    origins: dict[str, tuple[str, int]],
    stream: str,
    revision: int,
) -> bytes:
    """Returns the link of a revision that a stream has by itself or by inheritance."""
    while (stream, revision) not in links:
        if stream not in origins:
            raise Damage(f"a fork begins at revision {revision} of {stream!r}, which is not there")
        stream = origins[stream][0]
    return links[stream, revision]

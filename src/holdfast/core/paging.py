"""Events from the newest backwards, page by page: of a stream, of a store, of a mixed store."""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.event import Event, Position
from holdfast.core.log import Log
from holdfast.errors import UsageError


class EventPage(Struct, frozen=True):
    """Events, newest first."""

    events: list[Event]
    before: int | None
    """What to give as `before` for the next page; None after the last one."""


def newest_in_stream(log: Log, stream: str, *, limit: int, before: int | None = None) -> EventPage:
    """Returns the newest events of a stream, of those before a revision if one is given."""
    head = log.head(stream)
    newest = 0 if head is None else head.revision
    last = newest if before is None else max(0, min(newest, before - 1))
    start = max(0, last - limit)
    records = log.records(stream, after=start, until=last) if last else []
    events = [Event(record) for record in records]
    return EventPage(events[::-1], start + 1 if start else None)


def newest_in_store(log: Log, *, limit: int, before: int | None = None) -> EventPage:
    """Returns the newest events of a store, of those before a position if one is given.

    A page holds whole commits, so it may hold more events than `limit`. A commit may have many
    events or none, so the window is widened until it holds enough. The window may begin inside a
    commit; the events of that commit are left to the next page, which has them all.
    """
    if log.routes.is_split:
        return _newest_in_mixed(log, limit, before)
    end = log.position() if before is None else Position(min(log.position(), before - 1))
    width = limit
    while True:
        start = Position(max(0, end - width))
        events = _events_between(log, start, end)
        if start and events:
            first = events[0].position
            events = [event for event in events if event.position != first]
        if len(events) >= limit or start == 0:
            break
        width *= 4
    cut = max(0, len(events) - limit)
    while cut > 0 and events[cut - 1].position == events[cut].position:
        cut -= 1
    more = events[cut].position if cut or start else None
    return EventPage(events[cut:][::-1], more)


def _events_between(log: Log, start: Position, end: Position) -> list[Event]:
    """Returns the events after one position up to another, oldest first."""
    events: list[Event] = []
    for record in log.follow(after=start, timeout_s=0):
        if record.position > end:
            break
        events.append(Event(record))
    return events


def _newest_in_mixed(log: Log, limit: int, before: int | None) -> EventPage:
    """Returns the newest events of every backend of a mixed store, merged by their times.

    The backends have no common order, so there is no position to go on from.
    """
    if before is not None:
        raise UsageError(
            "a mixed store has no events before a position: its backends have no common order",
            hint="name a scope, or raise the limit",
        )
    events: list[Event] = []
    for backend in log.routes.parts():
        part = Log(backend, clock=log.clock, actor=log.actor)
        events += newest_in_store(part, limit=limit).events
    # Sorted from oldest to newest and reversed, so that events of one time keep their order.
    events = sorted(reversed(events), key=lambda event: event.time)
    return EventPage(events[-limit:][::-1], None)

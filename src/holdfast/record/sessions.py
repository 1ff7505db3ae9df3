"""Sessions: who is in a conversation, and whether they left it or died in it.

    session.begun    {"worker", "keep"?}    somebody entered it; keep: its state stays at the end
    session.crashed  {}                     whoever let it go found its worker dead

They are the numbered events of one thing of the scope (`thing.py`): a session that is kept may be
begun again after a crash. It ends with its scope, and nothing is written for that but `closed`. So
whether a session that has not ended is active or crashed is not stored but judged when it is read,
by its worker's lease, as it is for turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Literal

from msgspec import Struct

from holdfast.core import codec
from holdfast.core.commit import Cleared, NewEvent
from holdfast.core.event import to_datetime
from holdfast.errors import ClosedError, ConflictError, ExpiredError
from holdfast.record import keyed_item as things
from holdfast.record import turns
from holdfast.record.context import RecordContext
from holdfast.record.keyed_item import KeyedItem, Recorder
from holdfast.record.stale import Stale

BEGUN = "session.begun"
CRASHED = "session.crashed"
INDEX = "session"
"""Has a mark for each session that was begun and has not ended."""
_ALL = 1 << 31

Status = Literal["active", "completed", "crashed"]


class Session(Struct, frozen=True):
    """A session as it was when it was read."""

    scope: str
    worker: str
    status: Status
    begun_at: datetime
    ended_at: datetime | None
    keep: bool


class _Begun(Struct):
    worker: str
    keep: bool = False


def _thing(stream: str) -> KeyedItem:
    return KeyedItem(INDEX, stream, "begun")


def begin(context: RecordContext, recorder: Recorder, *, keep: bool) -> None:
    """Writes down that this worker is in a session now; its mark lasts until it has ended."""
    context.lease_keeper.beat()
    thing = _thing(recorder.name)
    newest = things.newest_of(context.log, thing)
    number = 1 if newest is None else newest[0] + 1
    new_event = NewEvent(BEGUN, codec.encode({"worker": context.worker, "keep": keep}))
    part = recorder._event_write(new_event, key=thing.key(number))
    things.append(context.log, thing, number, part, marks=(thing.mark(INDEX),))


def note_crash(context: RecordContext, stream: str) -> None:
    """Writes down, before a session is let go, that its worker did not end it."""
    thing = _thing(stream)
    newest = things.newest_of(context.log, thing)
    if newest is None or newest[1].type == CRASHED:
        return
    number = newest[0] + 1
    part = things.next_part(thing, number, NewEvent(CRASHED, b"{}"))
    with suppress(ConflictError, ClosedError):  # another lets it go at the same time
        things.append(context.log, thing, number, part)


def unmarked(stream: str) -> Cleared:
    """Returns what clears the mark of a session that has ended."""
    return _thing(stream).cleared(INDEX)


def read_session(context: RecordContext, stream: str) -> Session | None:
    """Returns the newest session of a scope, None if there was none.

    Raises ExpiredError if the scope has ended by itself.
    """
    thing = _thing(stream)
    newest = things.newest_of(context.log, thing)
    if newest is None:
        return None
    number, record = newest
    has_crashed = record.type == CRASHED
    if has_crashed:
        record = things.record_at(context.log, thing, things.find(context.log, thing, number - 1))
    begun = codec.decode_as(record.payload, _Begun)
    is_closed = things.is_closed(context.log, stream)
    head = context.log.head(stream) if is_closed else None
    if is_closed and not has_crashed:
        status: Status = "completed"
    elif not has_crashed and context.lease_keeper.is_alive(begun.worker):
        status = "active"
    else:
        status = "crashed"
    return Session(
        stream,
        begun.worker,
        status,
        to_datetime(record.time),
        None if head is None else to_datetime(head.time),
        begun.keep,
    )


def status_of(context: RecordContext, stream: str) -> Status:
    """Returns what became of a conversation: crashed if a worker died in its session or turn."""
    session = read_session(context, stream)
    if session is not None:
        return session.status
    if things.is_closed(context.log, stream):
        return "completed"
    for mark in context.log.marks.list(turns.INDEX, limit=_ALL):
        if mark.group == stream and not context.lease_keeper.is_alive(turns.worker_of(mark)):
            return "crashed"
    return "active"


def marked(context: RecordContext) -> Iterator[tuple[str, Session | None]]:
    """Yields the scopes whose session was not seen to its end; None for one that expired."""
    for mark in context.log.marks.list(INDEX, limit=_ALL):
        try:
            yield mark.group, read_session(context, mark.group)
        except ExpiredError:
            yield mark.group, None


def unended(context: RecordContext) -> list[Session]:
    """Returns the sessions that have not ended, active or crashed, oldest first."""
    found = [one for _, one in marked(context) if one is not None and one.status != "completed"]
    return sorted(found, key=lambda one: (one.begun_at, one.scope))


def left_behind(context: RecordContext) -> Iterator[Stale]:
    """Yields the sessions whose worker died in them."""
    for one in unended(context):
        if one.status == "crashed":
            said = f'worker "{one.worker}" died in it'
            yield Stale("session", one.scope, one.scope, "owner silent", said, one.begun_at)

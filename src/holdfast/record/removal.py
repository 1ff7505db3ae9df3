"""What the removal of a scope needs to know: what is under way there, and which marks it has.

A removal is one event, `removed`, with which the state begins anew and empty. Everything that is
found by key or by reading back (messages, tasks, decisions, facts, sessions) begins anew with it,
because a key belongs to the life that it was used in. What is found by marks has them cleared in
the same commit; the event says which, so that an undo can set them again (0025).
"""

from __future__ import annotations

from holdfast.core import layers
from holdfast.core.commit import Cleared, Mark, NewEvent, StreamWrite
from holdfast.core.event import LIFE, REMOVED, removed_payload
from holdfast.core.expiry import EXPIRING
from holdfast.core.log import ABSENT, NO_LIMIT
from holdfast.errors import UsageError
from holdfast.record.context import RecordContext

_SHOWN_MAX = 3


def check_nothing_under_way(context: RecordContext, stream: str) -> None:
    """Raises UsageError that names what a scope cannot be removed for."""
    held = list(layers.held_by(context, stream))
    holder = context.log.leases.holder(stream)
    if holder is not None:
        held.append(f'"{holder.owner}" holds the lease "{stream}"')
    if held:
        more = f", and {len(held) - _SHOWN_MAX} more" if len(held) > _SHOWN_MAX else ""
        raise UsageError(
            f'scope "{stream}" cannot be removed: {"; ".join(held[:_SHOWN_MAX])}{more}',
            hint="end it first, or let recover() close what a dead worker left",
        )


def removal(context: RecordContext, stream: str) -> tuple[NewEvent, tuple[Mark | Cleared, ...]]:
    """Returns the event that removes a scope, and what becomes of marks with it."""
    own = (ABSENT, EXPIRING)
    marks = [
        mark
        for mark in context.log.marks.list(limit=NO_LIMIT)
        if mark.group == stream and mark.index not in own
    ]
    changes = [Cleared(mark.index, mark.key) for mark in marks]
    new_event = NewEvent(REMOVED, removed_payload(marks))
    return new_event, (*changes, Mark(ABSENT, stream, group=stream))


def removed(stream: str) -> StreamWrite:
    """Returns what ends the life of a layer's stream, wherever that is by then."""
    new_event = NewEvent(REMOVED, removed_payload([]))
    return StreamWrite(stream, (new_event,), checkpoint=LIFE)


def along(context: RecordContext, stream: str) -> list[StreamWrite]:
    """Returns what ends the streams of layers that are about a scope, in the commit of its removal.

    In a mixed store, one that another backend keeps stays: no commit reaches both.
    """
    place_of = context.log.routes.place_of
    near = place_of(stream)
    return [removed(one) for one in layers.along_with(context, stream) if place_of(one) == near]

"""What the removal of a scope needs to know: what is under way there, and which marks it has.

A removal is one event, `removed`, with which the state begins anew and empty. Everything that is
found by key or by reading back (messages, tasks, decisions, facts, sessions) begins anew with it,
because a key belongs to the life that it was used in. What is found by marks has them cleared in
the same commit; the event says which, so that an undo can set them again (0025).
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.core import layers
from holdfast.core.commit import Cleared, Fence, Mark, NewEvent, StreamWrite
from holdfast.core.event import LIFE, REMOVED, removed_payload
from holdfast.core.expiry import EXPIRING
from holdfast.core.log import ABSENT
from holdfast.errors import HoldfastError, UsageError
from holdfast.record.context import RecordContext

_logger = logging.getLogger("holdfast.scope")

_SHOWN_MAX = 3
LEASE_S = 10.0
"""How long a removal may take: after that its lease can be taken, and its commit is refused."""
_REMOVER = ".remove"


def check_nothing_under_way(context: RecordContext, stream: str) -> None:
    """Raises UsageError that names what a scope cannot be removed for."""
    held = list(layers.held_by(context, stream))
    holder = context.log.leases.holder(stream)
    hint = "end it first, or let recover() close what a dead worker left"
    if holder is not None and holder.owner != _remover(context):
        held.append(f'"{holder.owner}" holds the lease "{stream}"')
        if holder.owner.endswith(_REMOVER):
            # On a server nobody knows of a killed process before its lease is over.
            hint = f"somebody else removes it; if that was killed, try again in {LEASE_S:.0f} s"
    if held:
        more = f", and {len(held) - _SHOWN_MAX} more" if len(held) > _SHOWN_MAX else ""
        raise UsageError(
            f'scope "{stream}" cannot be removed: {"; ".join(held[:_SHOWN_MAX])}{more}',
            hint=hint,
        )


def _remover(context: RecordContext) -> str:
    """Returns whose the lease is that a removal takes: not the worker's own, which may have it."""
    return f"{context.worker}{_REMOVER}"


@contextmanager
def leased(context: RecordContext, *streams: str) -> Generator[Fence | None]:
    """Holds the leases of scopes' names while these are removed, but for those that others have.

    What is under way is looked for before the commit. A lease is no event of the scope, so one that
    somebody takes in between would be no conflict: he would hold the lease of what is gone. While
    the removal has it nobody gets it, and the commit is fenced by the first of them: if that lapsed
    before the commit, nothing is removed. Inside another lease's block, and in a run, the commit
    has that fence, because it has one only.
    """
    leases, owner = context.log.leases, _remover(context)
    taken = [leases.acquire(stream, owner, ttl_s=LEASE_S) for stream in streams]
    first = taken[0] if taken and not context.log.is_fenced_here else None
    try:
        yield None if first is None else Fence(first.name, owner, first.epoch)
    finally:
        for lease in taken:
            try:
                if lease is not None:
                    leases.release(lease)
            except HoldfastError as error:
                _logger.debug("the lease of a removal lapses by itself: %s", error)


def removal(context: RecordContext, stream: str) -> tuple[NewEvent, tuple[Mark | Cleared, ...]]:
    """Returns the event that removes a scope, and what becomes of marks with it."""
    own = (ABSENT, EXPIRING)
    marks = [mark for mark in context.log.find_marks(group=stream) if mark.index not in own]
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

"""The removal of a scope: checks that nothing is under way there, and clears its marks.

A removal is one event, `removed`, after which the state begins anew and empty. Everything that is
found by key or by reading back (messages, tasks, decisions, facts, sessions) begins anew too,
because a key belongs to the life in which it was used. Marks are cleared in the same commit; the
event lists them, so that an undo can set them again (0025).
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
"""How long a removal may take. After that others can take its lease, and its commit is refused."""
_REMOVER = ".remove"


def check_nothing_under_way(context: RecordContext, stream: str) -> None:
    """Raises UsageError, with the reasons, if a scope cannot be removed now."""
    held = list(layers.held_by(context, stream))
    holder = context.log.leases.holder(stream)
    hint = "end it first, or let holdfast recover close what a dead worker left"
    if holder is not None and holder.owner != _remover(context):
        held.append(f'"{holder.owner}" holds the lease "{stream}"')
        if holder.owner.endswith(_REMOVER):
            # On a server, a killed process is not noticed before its lease is over.
            hint = f"somebody else removes it; if that was killed, try again in {LEASE_S:.0f} s"
    if held:
        more = f", and {len(held) - _SHOWN_MAX} more" if len(held) > _SHOWN_MAX else ""
        raise UsageError(
            f'scope "{stream}" cannot be removed: {"; ".join(held[:_SHOWN_MAX])}{more}',
            hint=hint,
        )


def _remover(context: RecordContext) -> str:
    """Returns the owner of a removal's lease; not the worker itself, which may hold the lease."""
    return f"{context.worker}{_REMOVER}"


@contextmanager
def leased(context: RecordContext, *streams: str) -> Generator[Fence | None]:
    """Holds the leases on the names of scopes while these are removed, except those of others.

    What is under way is checked before the commit. A lease is not an event of the scope. If
    somebody took the scope's lease between check and commit, there would be no conflict, and that
    worker would hold the lease of a scope that is gone. So the removal holds the lease itself, and
    its commit is fenced by the first of them: if that lapses before the commit, nothing is removed.
    A commit has only one fence. Inside another lease's block, and in a run, it is that one's.
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
    """Returns the event that removes a scope, and the changes of its marks."""
    own = (ABSENT, EXPIRING)
    marks = [mark for mark in context.log.find_marks(group=stream) if mark.index not in own]
    changes = [Cleared(mark.index, mark.key) for mark in marks]
    new_event = NewEvent(REMOVED, removed_payload(marks))
    return new_event, (*changes, Mark(ABSENT, stream, group=stream))


def removed(stream: str) -> StreamWrite:
    """Returns the write that ends the life of a layer's stream, at whatever revision it is."""
    new_event = NewEvent(REMOVED, removed_payload([]))
    return StreamWrite(stream, (new_event,), checkpoint=LIFE)


def along(context: RecordContext, stream: str) -> list[StreamWrite]:
    """Returns the writes, for the commit of a scope's removal, that end layers' streams about it.

    In a mixed store, a stream in another backend stays, because no commit reaches both backends.
    """
    place_of = context.log.routes.place_of
    near = place_of(stream)
    return [removed(one) for one in layers.along_with(context, stream) if place_of(one) == near]

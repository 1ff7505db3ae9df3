"""Marks that end: ignored from then on, and cleared by the next recovery or retain (0073).

The end of a mark is a mark too, in the index `mark.ends`, due at the end and set by the same
commit. So no backend has to know of it. Marks have no revisions. So the group of the end names a
stream that guards it: one that the commit wrote to, or `marks/log` if it wrote to none. Each commit
that sets or clears a mark with an end writes to that stream too, and the commit that clears an
ended mark expects the revision that it has read there. So no mark is cleared that was set anew.

A mark that is set together with a scope that ends has that scope's name as its group. It goes with
the scope, as the marks of the record do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from holdfast.backends.protocol import Cleared, Mark
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.expiry import EXPIRING
from holdfast.core.layers import Layer, owned_indexes, register_layer
from holdfast.core.log import NO_LIMIT, Log
from holdfast.errors import ConflictError, ExpiredError

ENDS = "mark.ends"
"""The index that has a mark for each mark that ends, due then."""
STREAM = "marks/log"
SET = "mark.set"
"""The type of an event that says only that a mark with an end was set or cleared."""
register_layer(Layer(name="mark ends", prefixes=("marks",), indexes=(ENDS,)))

_logger = logging.getLogger("holdfast.marks")
_BETWEEN = "\x1f"

Marks = tuple[Mark | Cleared, ...]


def completed(
    log: Log, marks: Marks, ttls: Mapping[tuple[str, str], int], streams: Sequence[str]
) -> tuple[Marks, tuple[StreamWrite, ...]]:
    """Returns the marks of a user's commit to some streams, and the writes that guard their ends.

    `ttls` says how long some of the marks last, in microseconds.
    """
    known = {one.key: one for one in log.find_marks(ENDS, keys=[_name(one) for one in marks])}
    ending = next((stream for stream in streams if log.expiry.will_end(stream)), "")
    found: list[Mark | Cleared] = []
    guards: list[str] = []
    for mark in marks:
        ttl_us, name = ttls.get((mark.index, mark.key), 0), _name(mark)
        found.append(replace(mark, group=ending) if ending and isinstance(mark, Mark) else mark)
        if name in known:
            guards.append(known[name].group)
        if ttl_us:
            guard = streams[0] if streams else STREAM
            guards.append(guard)
            found.append(Mark(ENDS, name, log.now_us(guard) + ttl_us, group=guard))
        elif name in known:
            found.append(Cleared(ENDS, name))
    told = [one for one in dict.fromkeys(guards) if one not in streams]
    return tuple(found), tuple(StreamWrite(one, (NewEvent(SET, b"null"),)) for one in told)


def living(log: Log, marks: Sequence[Mark]) -> list[Mark]:
    """Returns the marks without users' marks that have ended, or whose scope has ended."""
    owned = owned_indexes()
    own = [mark for mark in marks if mark.index not in owned]
    if not own:
        return list(marks)
    gone = {
        one.key
        for one in log.find_marks(ENDS, keys=[_name(mark) for mark in own])
        if _is_over(log, one)
    }
    ended = {group for group in {mark.group for mark in own} if group and _has_ended(log, group)}
    return [
        mark
        for mark in marks
        if mark.index in owned or (_name(mark) not in gone and mark.group not in ended)
    ]


def sweep(log: Log) -> int:
    """Clears users' marks that have ended, or whose scope has ended; returns how many."""
    count = 0
    for end in log.marks.list(ENDS, limit=NO_LIMIT):
        if _is_over(log, end):
            count += _clear(log, end)
    for mark in _of_ended_scopes(log):
        names = Cleared(mark.index, mark.key), Cleared(ENDS, _name(mark))
        log.commit(ProposedCommit((), marks=names))
        count += 1
    return count


def _clear(log: Log, end: Mark) -> bool:
    """Clears a mark that has ended, unless it was set or cleared since."""
    [head] = log.heads((end.group,))
    [again, *_] = log.find_marks(ENDS, keys=[end.key]) or [None]
    if again != end or head is None:
        return False
    index, _, key = end.key.partition(_BETWEEN)
    marks = Cleared(index, key), Cleared(ENDS, end.key)
    try:
        log.commit(ProposedCommit((), ((end.group, head.revision),), marks=marks))
    except (ConflictError, ExpiredError) as error:
        _logger.debug("a mark that has ended is looked at by the next recovery: %s", error)
        return False
    return True


def _of_ended_scopes(log: Log) -> Iterator[Mark]:
    if not log.marks.list(EXPIRING, limit=1):
        return  # nothing in this store expires
    owned = owned_indexes()
    ended: dict[str, bool] = {}
    for mark in log.marks.list(limit=NO_LIMIT):
        if mark.index not in owned and mark.group:
            if mark.group not in ended:
                ended[mark.group] = _has_ended(log, mark.group)
            if ended[mark.group]:
                yield mark


def _is_over(log: Log, end: Mark) -> bool:
    return log.key_ends.now_us(end.group) >= end.due


def _has_ended(log: Log, stream: str) -> bool:
    [head] = log.heads((stream,))
    return head is not None and log.expiry.has_ended(stream, head)


def _name(mark: Mark | Cleared) -> str:
    return f"{mark.index}{_BETWEEN}{mark.key}"

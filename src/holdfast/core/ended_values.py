"""Lets go of the bytes of values that have ended (0073).

A value with an end is in the event that set it, in the events that changed it, and in bases. The
payload of each of these goes when a value in it has ended, even a superseded one. Everything else
that it held is first written by value to a base, which is proved (`compaction.py`) and has no ended
values.

The steps have this order, so that after a kill at any point the next run finds the same work again:

    (1) an event takes the ended values out of the state, and sets again the list items whose
        events will go: snapshots name the event of an item instead of its value
    (2) a base has the state after that, and at each checkpoint
    (3) the payloads are let go of, as any others (`retention.py`)
    (4) an event says when the next value ends; until then the mark `state.ends` stays due
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.protocol import GONE, Cleared, Head, Mark
from holdfast.core import tree
from holdfast.core.codec import Path
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.compaction import CHANGES, must_stay, put_base
from holdfast.core.event import BASED, CHANGED, StreamState, ends_of_base, ops_of
from holdfast.core.key_ends import ENDING
from holdfast.core.log import NO_LIMIT, READ_CHUNK, Log
from holdfast.core.meta import Meta, encode_meta
from holdfast.core.tree import Ends, Lazy, List, Map, Op, encode_ops, fold_ends
from holdfast.errors import ConflictError, ExpiredError

_logger = logging.getLogger("holdfast.retention")
_NEVER = 1 << 63


class Ended(Struct, frozen=True):
    """The events of a stream that hold ended values, and when the first of these values ended."""

    stream: str
    since_us: int
    until: int
    revisions: frozenset[int]
    kept: int = 0
    """How many more such events stay, because a fork began after them."""


def due_streams(log: Log, limit_us: int) -> list[str]:
    """Returns the streams that may hold values which ended by `limit_us`, ordered by name."""
    marks = log.marks.list(ENDING, due_before=limit_us + 1, limit=NO_LIMIT)
    return sorted(mark.key for mark in marks)


def find(log: Log, stream: str, after: int, limit_us: int) -> Ended:
    """Returns the events after a revision that may go, perhaps none; changes nothing."""
    [head] = log.heads((stream,))
    state = log.folded(stream)
    if head is None or state.dropped or state.is_absent:
        return Ended(stream, limit_us, 0, frozenset())
    ends = {at: end_us for at, end_us in _holding(log, stream, head) if end_us <= limit_us}
    free = frozenset(at for at in ends if at > after)
    since_us = min((ends[at] for at in free), default=limit_us)
    return Ended(stream, since_us, head.revision, free, len(ends) - len(free))


def prepare(log: Log, found: Ended, limit_us: int) -> Ended:
    """Writes what must be stored before those events may go; returns the events that may.

    Raises ClosedError if the scope is closed, and ConflictError if it was written to meanwhile.
    """
    stream = found.stream
    state = log.folded(stream)
    ops = _items_anew(log, stream, state, found.revisions)
    is_there = bool(tree.ended(state.ends or {}, limit_us))
    if ops or is_there:
        # The log itself removes ended values from the state with every change, so with this one.
        keeps = tree.until_op((), min((state.ends or {}).values(), default=0))
        _change(log, stream, state, [*ops, keeps])
    [head] = log.heads((stream,))
    assert head is not None, "BUG: a stream that was written to is not there"
    put_base(log, stream, head, head.revision, lambda one: _without_ended(one, limit_us))
    stays = must_stay(log, stream, head)
    return replace(found, until=head.revision, revisions=found.revisions - stays)


def settle(log: Log, stream: str) -> None:
    """Records when the next value ends whose bytes are still stored, and sets the mark to it."""
    ends: Ends = {}
    try:
        state = log.folded(stream)
        [head] = log.heads((stream,))
        if head is not None and not state.dropped and not state.is_absent:
            ends = state.ends or {}
            left = min((end_us for _, end_us in _holding(log, stream, head)), default=_NEVER)
            if ends.get((), left) < left and not state.closed_at:
                there = min((end_us for path, end_us in ends.items() if path), default=_NEVER)
                _change(log, stream, state, [tree.until_op((), left if left < there else 0)])
                return
    except ConflictError as error:
        _logger.debug('the ends in "%s" are looked at by the next retain: %s', stream, error)
        return
    except ExpiredError as error:
        _logger.debug("values have ended with their scope: %s", error)
    due = min(ends.values(), default=0)
    if log.find_marks(ENDING, keys=[stream]) != ([Mark(ENDING, stream, due)] if due else []):
        mark = Mark(ENDING, stream, due) if due else Cleared(ENDING, stream)
        log.commit(ProposedCommit((), marks=(mark,)))


def _change(log: Log, stream: str, state: StreamState, ops: list[Op]) -> None:
    """Writes ops to a stream at this state, with the schema version that the state has."""
    meta = encode_meta(Meta(schema=state.version)) if state.version else None
    made = NewEvent(CHANGED, encode_ops(ops), tuple(ops), meta=meta)
    log.commit(ProposedCommit((StreamWrite(stream, (made,), state.revision),)))


def _without_ended(state: StreamState, limit_us: int) -> StreamState:
    """Returns a state without the values that have ended at a time."""
    if not state.ends:
        return state
    gone = tree.ended(state.ends, limit_us)
    ends = {path: end_us for path, end_us in state.ends.items() if end_us > limit_us}
    return replace(state, root=tree.without(state.root, gone), ends=ends or None)


def _holding(log: Log, stream: str, head: Head) -> Iterator[tuple[int, int]]:
    """Yields each event of the present life that holds values with ends, and the first end."""
    began = log.life(stream, head.revision)
    after = max(began, head.first - 1)
    ends = log.at(stream, after).ends if after > began else None
    while after < head.revision:
        page = log.read(stream, after=after, until=head.revision, limit=READ_CHUNK)
        for record in page:
            if record.payload == GONE:
                continue
            if record.type == BASED:
                if found := ends_of_base(record.payload, log.blobs.read):
                    yield record.revision, min(found)
                continue
            ops = ops_of(record)
            if ends is None and not (ops and ops[-1].kind == tree.UNTIL):
                continue
            ends = fold_ends(ends, ops, log.blobs.read)
            places = [place for op in ops for place in _places(op, log)]
            held = [
                end_us
                for path, end_us in (ends or {}).items()
                if path and any(_overlap(path, place) for place in places)
            ]
            if held and record.type in CHANGES:
                yield record.revision, min(held)
        after = page[-1].revision


def _places(op: Op, log: Log) -> list[Path]:
    """Returns the paths of the values whose bytes an op contains."""
    if op.kind in ("delete", tree.UNTIL, "truncate"):
        return []
    if op.kind == "merge":
        return [(*op.keys, key) for key in tree.level_of(op, log.blobs.read)]
    return [op.keys]


def _overlap(path: Path, other: Path) -> bool:
    shared = min(len(path), len(other))
    return path[:shared] == other[:shared]


def _items_anew(log: Log, stream: str, state: StreamState, revisions: frozenset[int]) -> list[Op]:
    """Returns ops that set again the list items whose events will be let go of."""
    doomed: list[tuple[Path, Lazy]] = []
    shown = _without_ended(state, log.key_ends.now_us(stream))
    open_nodes: list[tuple[Path, Any]] = [((), shown.root)]
    while open_nodes:
        path, node = open_nodes.pop()
        if isinstance(node, Map):
            parts: list[tuple[Path, Any]] = [((*path, key), kept) for key, kept in node._kept()]
        else:
            items = [item for chunk in node.vector().chunks() for item in chunk]
            parts = [((*path, index), item) for index, item in enumerate(items)]
        for place, kept in parts:
            if isinstance(kept, Map | List):
                open_nodes.append((place, kept))
            elif isinstance(node, List) and type(kept) is Lazy and kept.source is not None:
                doomed += [(place, kept)] if kept.source[0] in revisions else []
    return [tree.raw_op("set", place, kept) for place, kept in doomed]

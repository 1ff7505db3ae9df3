"""Folds the past of a state into a base: the result of old changes, by value (0059).

A base is an event of the stream itself, `scope.based`. So it is durable, linked to everything
before it, and copied, exported and backed up like any other event; backends need nothing new for
it. It has the state at some revisions, its points: at every checkpoint up to the cut, and at the
cut. With a base, the payloads of older changes can be let go of, and the state is still known at
each checkpoint and at every revision from the cut on.

Nothing is written unless three states agree at each point: the one that the log returns (from
memory or snapshots), the one that is replayed from the events alone, and the one that the base
decodes to. A difference is damage, and then every event stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, starmap
from typing import Any

from holdfast.backends.protocol import GONE, Head
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.event import (
    BASE,
    BASED,
    CHANGED,
    MIGRATED,
    OUR_NAMES,
    StreamState,
    based_payload,
    point_of,
)
from holdfast.core.log import Log
from holdfast.core.tree import Lazy, List, Map, diff, diff_ops, encode_ops, until_op
from holdfast.errors import CorruptError

CHANGES = (CHANGED, MIGRATED)
"""The types of events whose result a base holds."""
TYPES = (*CHANGES, BASED)
"""The types of events that may go once there is a newer base: changes, and older bases."""


def write_base(log: Log, stream: str, head: Head, *, after: int, cut: int) -> frozenset[int] | None:
    """Writes a base of a stream as of `head`; returns the old events that must stay anyway.

    If no change between `after` and the cut could go, it writes nothing and returns None. Raises
    ConflictError if the stream was written to meanwhile, and CorruptError if the states differ.
    """
    kept = must_stay(log, stream, head)
    if not any(revision not in kept for revision in _changes(log, stream, after, cut)):
        return None
    put_base(log, stream, head, cut, lambda state: state)
    return kept


def put_base(
    log: Log, stream: str, head: Head, cut: int, shown: Callable[[StreamState], StreamState]
) -> None:
    """Proves and writes a base of a stream as of `head`; raises as `write_base` does.

    `shown` returns the part of a state that the base will have.
    """
    points: list[tuple[int, int, bytes]] = []
    states: list[StreamState] = []
    for revision in _points(log, stream, head, cut):
        state = shown(log.replayed(stream, head, revision))
        prove(stream, state, shown(log.at(stream, revision)), "what the log hands out")
        ops = [log.blobs.spill(op, stream) for op in diff_ops(Map(), state.root)]
        ops += starmap(until_op, (state.ends or {}).items())
        points.append((revision, state.version, encode_ops(ops)))
        states.append(state)
    payload = based_payload(points)
    for state in states:
        found = point_of(payload, state.revision, log.blobs.read)
        assert found is not None, "BUG: a base without one of its points"
        prove(stream, state, found.onto(state), "the base")
    write = StreamWrite(stream, (NewEvent(BASED, payload),), head.revision, checkpoint=BASE)
    log.commit(ProposedCommit((write,)))
    # The stored base is read back in the way in which readers will do it. Nothing may be let go of
    # before this has succeeded: the events are the only other copy.
    for state in states:
        prove(stream, state, log.on_base(stream, head, state.revision), "the base as it is stored")


def folded_until(log: Log, stream: str, after: int) -> int:
    """Returns the cut of the newest base for which changes after `after` went, 0 if there is none.

    Changes that were kept below this cut are kept for items of lists, and stay: the base has the
    values, but does not say which events they came from. A base for which no change went comes from
    a run that was killed early: the changes that it replaces can still go.
    """
    cuts: list[int] = []
    for found in log.find(stream, checkpoint=BASE):
        payload = log.record(stream, found.revision).payload
        point = None if payload == GONE else point_of(payload, found.revision, log.blobs.read)
        if point is None:
            break  # it went with all that is older
        cuts.append(point.revision)
    for cut, below in pairwise([*cuts, after]):
        if _has_gone(log, stream, max(below, after), cut):
            return cut
    return 0


def _has_gone(log: Log, stream: str, after: int, until: int) -> bool:
    """Returns whether a change between two revisions has lost its payload.

    One is enough: it is recorded of all of them that they go, before the first one does.
    """
    while after < until:
        page = log.stored(stream, after=after, until=until)
        if any(record.type in CHANGES and record.payload == GONE for record in page):
            return True
        after = page[-1].revision
    return False


def prove(stream: str, replayed: StreamState, found: StreamState, what: str) -> None:
    """Raises CorruptError unless a state equals the one that the events alone fold to.

    The order of keys at the top, the ends and the schema version count too.
    """
    differs = diff(replayed.root, found.root) or list(replayed.root) != list(found.root)
    differs = differs or (replayed.ends or {}) != (found.ends or {})
    if differs or replayed.version != found.version:
        raise CorruptError(
            f'the state of "{stream}" at revision {replayed.revision} is not what its events fold '
            f"to in {what}: nothing was let go of",
            stream=stream,
            revision=replayed.revision,
        )


def _points(log: Log, stream: str, head: Head, cut: int) -> list[int]:
    """Returns the revisions that must stay known: checkpoints of this life, and the cut."""
    began = max(log.life(stream, head.revision), head.first - 1)
    named = {
        found.revision
        for found in log.find(stream)
        if began < found.revision < cut and found.name not in OUR_NAMES
    }
    return [*sorted(named), cut]


def _changes(log: Log, stream: str, after: int, cut: int) -> Iterator[int]:
    """Yields the revisions of changes that have their payload."""
    while after < cut:
        page = log.stored(stream, after=after, until=cut)
        for record in page:
            if record.type in CHANGES and record.payload != GONE:
                yield record.revision
        after = page[-1].revision


def must_stay(log: Log, stream: str, head: Head) -> frozenset[int]:
    """Returns the events that must stay although a base has their result.

    These are the events whose values are items of lists in the newest state: snapshots, and states
    in the memory of other processes, name the event of such an item instead of holding its value.
    So the event stays as long as the item. In a sealed stream, events with the name of a checkpoint
    stay too, because the name is sealed with the payload.
    """
    found: set[int] = set()
    if log.subject_of(stream) is not None:
        found.update(one.revision for one in log.find(stream))
    open_nodes: list[Any] = [log.replayed(stream, head, head.revision).root]
    while open_nodes:
        node = open_nodes.pop()
        items: Sequence[Any]
        if isinstance(node, Map):
            items = [kept for _, kept in node._kept()]
        else:
            items = [item for chunk in node.vector().chunks() for item in chunk]
            found.update(item.source[0] for item in items if type(item) is Lazy and item.source)
        open_nodes += [item for item in items if isinstance(item, Map | List)]
    return frozenset(found)

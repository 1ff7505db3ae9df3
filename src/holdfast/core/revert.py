"""Computes what a state would be without the events of some writers, path by path.

Here a path leads to a value that is not a mapping; a list is one value. It is reverted if the
newest event that changed it is one of the chosen ones; then it gets the value from before the last
run of chosen events. A path that somebody else has written to since stays unchanged: what they
wrote may be right, or may be based on what is reverted. People must judge that, so it is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from holdfast.backends.protocol import Record
from holdfast.core import past, tree
from holdfast.core.codec import Path
from holdfast.core.event import StreamState, state_of
from holdfast.core.log import Log
from holdfast.core.tree import MISSING, Lazy, Map
from holdfast.core.tree.ops import Op, delete_op, locate, raw_op

Chooses = Callable[[Record], bool]
"""Given a record, returns whether its event is one of those to revert."""


class Overwritten(Struct, frozen=True):
    """A path that was written by the chosen events, and is not reverted."""

    path: Path
    revision: int
    """The last chosen event that wrote it."""
    since: int
    """The event of somebody else that wrote it since; 0 if the values around it changed."""


class WayBack(Struct, frozen=True):
    """The ops from a state to the one without the chosen events, and what they leave as it is."""

    before: StreamState
    after: Map
    ops: tuple[Op, ...]
    kept: tuple[Overwritten, ...]


class _Touched(Struct):
    """Who wrote a path last: a chosen event ("theirs") or another."""

    revision: int
    root: Map | None = None  # the state before their last run of events; None: it is not theirs
    theirs: int = 0


def way_back(log: Log, stream: str, first: int, chooses: Chooses) -> WayBack:
    """Returns what must change in a stream's state; `first` is the first of the chosen events.

    It reads all events from there on. Raises LetGoError if the state before was let go of.
    """
    head = log.head(stream)
    end = 0 if head is None else head.revision
    before = log.at(stream, first - 1)
    state_of(before, stream)
    touched: dict[Path, _Touched] = {}
    root, lasting = before.root, tree.lasting(before.root, before.ends)
    for one in past.states(log, stream, after=first - 1, until=end, newest_first=False):
        now = state_of(one.stored, stream)
        _note(touched, (root, now, lasting), one.event.record, chooses(one.event.record))
        root, lasting = now, tree.lasting(now, one.stored.ends)
    now = log.at(stream, end)
    return _way(log, log.key_ends.shown(now, stream), touched)


def _note(
    touched: dict[Path, _Touched],
    states: tuple[Map, Map, Map],
    record: Record,
    is_theirs: bool,
) -> None:
    """Notes who wrote the paths that an event changed.

    `states` are the state before it, the state after it, and the first one without values that have
    an end: such a value is not brought back.
    """
    old, new, lasting = states
    for change in tree.diff(old, new, is_same_stream=True):
        steps = [place for place, step in enumerate(change.path) if type(step) is int]
        path = change.path[: steps[0]] if steps else change.path
        leaves = {*_leaves(locate(old, path), path), *_leaves(locate(new, path), path)}
        for leaf in leaves:
            known = touched.get(leaf)
            if not is_theirs:
                theirs = 0 if known is None else known.theirs
                touched[leaf] = _Touched(record.revision, None, theirs)
            elif known is None or known.root is None:
                touched[leaf] = _Touched(record.revision, lasting, record.revision)
            else:
                known.revision = known.theirs = record.revision


def _leaves(kept: object, path: Path) -> Iterator[Path]:
    """Yields the paths at or below one that lead to empty mappings or to other values."""
    if kept is MISSING:
        return
    value = kept.force() if type(kept) is Lazy else kept
    if isinstance(value, Map) and value:
        for key in value:
            yield from _leaves(locate(value, (key,)), (*path, key))
    else:
        yield path


def _way(log: Log, now: StreamState, touched: dict[Path, _Touched]) -> WayBack:
    """Returns the way from a state to the one without theirs; shorter paths go first."""
    blobs, root = log.blobs.read, now.root
    kept = [
        Overwritten(path, one.theirs, one.revision)
        for path, one in touched.items()
        if one.root is None and one.theirs
    ]

    def put(op: Op) -> None:
        nonlocal root
        root = tree.apply(root, [op], revision=None, blobs=blobs)

    theirs = {path: one for path, one in touched.items() if one.root is not None}
    for path in sorted(theirs, key=len):
        one = theirs[path]
        assert one.root is not None, "BUG: not theirs"
        wanted, there = locate(one.root, path), locate(root, path)
        if wanted is MISSING:
            _take_away(put, lambda at: locate(root, at), one.root, path)
            continue
        others = [leaf for leaf in _leaves(there, path) if leaf != path and leaf not in theirs]
        around = [path[:length] for length in range(1, len(path))]
        blocked = [at for at in around if not isinstance(tree.get(root, at, Map()), Map)]
        if blocked or others:
            kept.append(Overwritten(path, one.theirs, 0))
        elif not (isinstance(tree.get(one.root, path), Map) and isinstance(there, Map)):
            value = tree.get(one.root, path)
            # A mapping begins empty. The paths below it follow one by one, because somebody else
            # may have written some of them since.
            is_map = isinstance(value, Map) and len(value) > 0
            put(tree.set_op(path, {}) if is_map else raw_op("set", path, wanted))
    ops = tuple(tree.diff_ops(now.root, root, is_same_stream=True))
    return WayBack(now, root, ops, tuple(sorted(kept, key=lambda one: str(one.path))))


def _take_away(
    put: Callable[[Op], None], there: Callable[[Path], object], before: Map, path: Path
) -> None:
    """Deletes a value, and the mappings around it that are empty then and were not there before."""
    if there(path) is MISSING:
        return
    value = there(path)
    value = value.force() if type(value) is Lazy else value
    if isinstance(value, Map) and value:
        return  # it is a mapping now: what is below it has paths of its own
    put(delete_op(path))
    above = path[:-1]
    while above and locate(before, above) is MISSING:
        value = there(above)
        value = value.force() if type(value) is Lazy else value
        if not isinstance(value, Map) or value:
            return
        put(delete_op(above))
        above = above[:-1]

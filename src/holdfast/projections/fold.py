"""The fold of a projection: from events to a state.

The state is an immutable tree, like the state of a scope. A handler gets a draft of it. So a new
state shares what did not change, a handler that raises changes nothing, and a state that a reader
holds never changes. A fold always stands between two commits, never within one.

Events come from one scope or from the whole store. From a scope they are those of its life,
including a fork's past, in the order of revisions. From the store they are those of all scopes, or
of the scopes whose names match a pattern, in the order of positions, each once. There, a removal of
a scope or its undo changes the past: the fold begins again if that scope had events of the
projection. It also begins again when a scope that it has events of has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, Protocol

from msgspec import Struct

from holdfast.backends.protocol import GONE, START, Position, Record
from holdfast.core import codec, tree
from holdfast.core.arguments import name_of
from holdfast.core.draft import Draft
from holdfast.core.event import REMOVED, RESTORED, Change, life_before, to_datetime
from holdfast.core.log import READ_CHUNK, Log
from holdfast.core.own_event import OwnEvent
from holdfast.core.tree import Difference, Map
from holdfast.errors import ProjectionError, UsageError, show_error, show_value
from holdfast.names import fits_pattern, is_pattern
from holdfast.projections.define import VALUE, Projection


class Place(Struct, frozen=True):
    """How far a fold has read, and the newest event that it has seen."""

    at: int = 0
    """The revision in the scope, or the position in the store."""
    events: int = 0
    """How many events were handled."""
    life: int = 0
    """For a scope: the revision that ended the life before the one that is folded."""
    until_us: int = 0
    """When the first of the scopes with handled events expires; 0 if none does."""
    stream: str = ""
    revision: int = 0
    """The stream, revision and link of the newest event that was read, handled or not."""
    link: bytes = b""


class Source(Protocol):
    """Where the events of a projection come from."""

    name: str

    def copy(self) -> Source:
        """Returns a copy for another fold."""
        ...

    def start(self) -> Place:
        """Returns where a fold begins."""
        ...

    def holds(self, place: Place) -> bool:
        """Returns whether the events up to a place are still those that were folded."""
        ...

    def commits(self, place: Place, projection: Projection) -> Iterator[tuple[Place, list[Record]]]:
        """Yields the commits after a place: the place after each, and the records to handle.

        Raises FoldAgain if what was folded before no longer counts.
        """
        ...


class FoldAgain(Exception):
    """Raised when the past has changed, so that the fold must begin again."""


class ScopeSource:
    """The events of one scope."""

    def __init__(self, log: Log, name: str) -> None:
        self._log = log
        self.name = name

    def copy(self) -> ScopeSource:
        return ScopeSource(self._log, self.name)

    def start(self) -> Place:
        life = self._log.life(self.name)
        return Place(life, life=life)

    def holds(self, place: Place) -> bool:
        head = self._log.head(self.name, to_read=True)
        newest = 0 if head is None else head.revision
        return place.at <= newest and place.life == self._log.life(self.name)

    def commits(self, place: Place, projection: Projection) -> Iterator[tuple[Place, list[Record]]]:
        at = place.at
        while records := self._log.records(self.name, after=at, limit=READ_CHUNK):
            for record in records:
                at = record.revision
                if record.type == REMOVED and self._log.life(self.name) != place.life:
                    # The scope was removed since `holds` was called. A removal that was undone
                    # leaves the life unchanged, and does not count.
                    raise FoldAgain
                is_handled = projection.handles(record.type) and _is_clear(record)
                handled = [record] if is_handled else []
                yield _moved(place, at, record, 0), handled


def _is_clear(record: Record) -> bool:
    """Returns whether an event has its data, and no sealed value in it.

    A saved state with a sealed value would be a copy of it in clear.
    """
    return record.payload != GONE and codec.SEALED_VALUE not in record.payload


class StoreSource:
    """The events of all scopes of a store, or of those whose names match a pattern."""

    def __init__(self, log: Log, pattern: str) -> None:
        self._log = log
        self.name = pattern or "*"
        self._pattern = pattern
        self._lives: dict[str, int] = {}

    def copy(self) -> StoreSource:
        source = StoreSource(self._log, self._pattern)
        source._lives = self._lives
        return source

    def _has(self, stream: str) -> bool:
        return not self._pattern or fits_pattern(self._pattern, stream)

    def start(self) -> Place:
        """Returns the start of the log, after reading through it for removals.

        Events of a life that has ended are not handled. Without this pass, the fold would handle
        them, meet the removal, and begin again.
        """
        removed: set[str] = set()
        at = START
        while records := self._log.read_all(after=at, limit=READ_CHUNK):
            at = records[-1].position
            removed.update(one.stream for one in records if one.type == REMOVED)
        self._lives = {stream: self._log.life(stream) for stream in removed}
        return Place()

    def holds(self, place: Place) -> bool:
        if place.until_us and self._log.now_us("global") >= place.until_us:
            return False
        return place.at <= self._log.position()

    def commits(self, place: Place, projection: Projection) -> Iterator[tuple[Place, list[Record]]]:
        at = Position(place.at)
        while records := self._log.read_all(after=at, limit=READ_CHUNK):
            at = records[-1].position
            kept = {id(record) for record in self._log.expiry.kept(records)}
            for position, members in groupby(records, _position_of):
                commit = list(members)
                handled: list[Record] = []
                ends = 0
                for record in commit:
                    if self._changes_a_life(record, projection):
                        raise FoldAgain
                    if id(record) in kept and self._is_handled(record, projection):
                        handled.append(record)
                        ends = _earlier(ends, self._log.expiry.known_end(record.stream))
                yield _moved(place, position, commit[-1], ends), handled

    def _is_handled(self, record: Record, projection: Projection) -> bool:
        return (
            projection.handles(record.type)
            and _is_clear(record)
            and record.subject is None  # what is sealed enters no state of the whole store
            and self._has(record.stream)
            and record.revision > self._lives.get(record.stream, 0)
        )

    def _changes_a_life(self, record: Record, projection: Projection) -> bool:
        """Returns whether an event is a removal, or its undo, that changes the handled events."""
        stream, revision = record.stream, record.revision
        if record.payload == GONE:
            return False  # of a life that has ended
        if record.type == RESTORED:
            if life_before(record) is None:
                return False
        elif record.type != REMOVED:
            return False
        if not self._has(stream):
            return False
        if self._lives.get(stream) == self._log.life(stream):
            return False  # `start` has counted it; a fold that was loaded knows no lives
        at = 0
        while records := self._log.read(stream, after=at, until=revision, limit=READ_CHUNK):
            if any(projection.handles(one.type) for one in records):
                return True
            at = records[-1].revision
        return False


def _position_of(record: Record) -> int:
    return int(record.position)


def _earlier(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


def _moved(place: Place, at: int, record: Record, until_us: int) -> Place:
    """Returns the place after a commit; `advance` adds the number of handled events."""
    return Place(at, 0, place.life, until_us, record.stream, record.revision, record.link)


def source_of(log: Log, over: object) -> Source:
    """Returns the source of events: a scope, the scopes of a pattern, or all if `over` is None."""
    if over is None:
        name = ""
    elif isinstance(over, str) and is_pattern(over):
        name = over
    else:
        return ScopeSource(log, name_of(over))
    if log.routes.is_split:
        raise UsageError(
            "a projection over several scopes needs one order of events, and the backends of a "
            "mixed store have none",
            hint="project each scope, or keep the scopes in one backend",
        )
    return StoreSource(log, name)


class Fold:
    """The state of a projection, and how far it is folded."""

    def __init__(
        self, log: Log, projection: Projection, source: Source, root: Map, place: Place
    ) -> None:
        self._log = log
        self.projection = projection
        self.source = source
        self.root = root
        self.place = place

    def again(self) -> Fold:
        """Returns a new fold from the beginning."""
        projection = self.projection
        source = self.source.copy()
        return Fold(self._log, projection, source, projection.start, source.start())

    def copy(self) -> Fold:
        """Returns an independent fold at the same place, which shares the immutable state."""
        return Fold(self._log, self.projection, self.source.copy(), self.root, self.place)

    def advance(
        self, *, until: int | None = None, tell: Callable[[Change], object] | None = None
    ) -> None:
        """Handles what was committed since, up to the place `until` if it is given.

        `tell` is called with each change. Raises FoldAgain if the past has changed. Raises
        ProjectionError if a handler fails; the fold then stands before the commit of that event.
        """
        draft = Draft(self.root)
        for place, records in self.source.commits(self.place, self.projection):
            if until is not None and place.at > until:
                return
            changes: list[Change] = []
            for record in records:
                before = draft.state
                draft, is_new = self._handled(draft, record)
                if tell is not None:
                    found = tree.touched([] if is_new else draft.ops, before, draft.state)
                    changes += self._changes(record, found)
                draft.ops.clear()
            self.root = draft.state
            self.place = Place(
                place.at,
                self.place.events + len(records),
                place.life,
                _earlier(self.place.until_us, place.until_us),
                place.stream,
                place.revision,
                place.link,
            )
            if tell is not None:
                for change in changes:
                    tell(change)

    def _handled(self, draft: Draft, record: Record) -> tuple[Draft, bool]:
        """Returns the draft after an event, and whether the handler returned a new mapping."""
        event = OwnEvent(record, self._log.blobs.read)
        is_mapping = self.projection.is_mapping
        state: Any = draft if is_mapping else draft[VALUE]
        try:
            found = self.projection.handler(event.type)(state, event)
            if found is None or found is state:
                return draft, False
            if not is_mapping:
                draft[VALUE] = found
                return draft, False
            if not isinstance(found, Mapping):
                raise UsageError(
                    f"it returned {show_value(found)}: expected the state, or None if it was "
                    "changed in place"
                )
            root = tree.apply(draft.state, (tree.set_op((), found),), revision=None)
        except Exception as error:
            raise ProjectionError(
                f'projection "{self.projection.name}" failed at event {record.revision} of '
                f'"{record.stream}" ({event.type}): {show_error(error)}',
                projection=self.projection.name,
                stream=record.stream,
                revision=record.revision,
                hint="correct the handler; the events and the state before it are as they were",
            ) from error
        return Draft(root), True

    def _changes(self, record: Record, found: list[Difference]) -> list[Change]:
        skipped = 0 if self.projection.is_mapping else 1
        return [
            Change(
                self.projection.name,
                self.place.events + 1,
                one.path[skipped:],
                one.old,
                one.new,
                to_datetime(record.time),
                record.position,
            )
            for one in found
        ]

    def difference(self, other: Fold) -> list[Change]:
        """Returns where the state of another fold differs from this one's."""
        skipped = 0 if self.projection.is_mapping else 1
        return [
            Change(self.projection.name, other.place.events, one.path[skipped:], one.old, one.new)
            for one in tree.diff(self.root, other.root)
        ]

"""The audit of a scope's state: what is never read, what changes often, and what is needed.

State that nobody reads is noise: it takes room in every prompt and every backup. While its block is
open, an audit observes which paths of a scope are read through this store. Afterwards it lists what
was not read. It can also run a job with and without an item, to show whether the item matters.

While an audit is open, the log returns the scope's state in a form that reports reads
(`Log.add_transform`). While none is open, reads cost nothing extra.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, ItemsView, Iterable, Iterator
from datetime import datetime
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from holdfast.core import codec, tree
from holdfast.core.arguments import Path, check_call, check_path
from holdfast.core.event import ops_of, state_of, to_datetime
from holdfast.core.log import scope_stream
from holdfast.core.tree import MISSING, Lazy, List, Map, Op
from holdfast.core.tree.frozen import enter_level
from holdfast.core.tree.seals import IS_LOOKING
from holdfast.errors import ClosedError, NotFoundError, UsageError, show_error, show_value
from holdfast.names import GLOBAL, new_id
from holdfast.record.context import ReadObserver, RecordContext
from holdfast.record.in_run import refuse_in_body

if TYPE_CHECKING:
    from holdfast.scope import Scope

_logger = logging.getLogger("holdfast.record")

StatePath = tuple[str | int, ...]
TrialJob = Callable[["Scope"], Any]

_lock = Lock()


class AuditItem(Struct, frozen=True):
    """A part of a scope's state: how large it is, and how often it changes.

    `changes` and `changed_at` are those of the top-level key that it is under. `read` is None if
    reads were not observed.
    """

    path: StatePath
    size: int
    changes: int
    changed_at: datetime | None
    read: bool | None


class TrialOutcome(Struct, frozen=True):
    """What a job returned or raised, its changes of the state, and the messages it added."""

    returned: Any
    error: str | None
    changes: dict[StatePath, Any]
    said: list[tuple[str, str]]


class Comparison(Struct, frozen=True):
    """What a job did with the whole state, and what it did without one item."""

    path: StatePath
    whole: TrialOutcome
    without: TrialOutcome

    @property
    def is_same(self) -> bool:
        """Whether the job did the same without the item, and so does not need it."""
        return self.whole == self.without


class Audit:
    """What `scope.life.audit()` returns; reads are observed in its block."""

    def __init__(self, context: RecordContext, scope: Scope) -> None:
        self._scope = scope
        self.name = scope.name
        self._context = context
        self._reads: dict[StatePath, bool] | None = None

    def __repr__(self) -> str:
        return f"<Audit of {self.name}>"

    # --- observing -------------------------------------------------------------------------------

    def __enter__(self) -> Audit:
        self._reads = self._reads or {}
        read_observers = self._context.read_observers
        with _lock:
            if not read_observers:
                transform = partial(_observed, read_observers)
                self._context.stop_observing = self._context.log.add_transform(transform)
            read_observers.setdefault(self.name, []).append(self._record_read)
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        read_observers = self._context.read_observers
        with _lock:
            read_observers[self.name].remove(self._record_read)
            if not read_observers[self.name]:
                del read_observers[self.name]
            if not read_observers:
                self._context.stop_observing()
        return False

    def _record_read(self, path: StatePath, is_whole: bool) -> None:
        reads = cast("dict[StatePath, bool]", self._reads)
        if is_whole or path not in reads:
            reads[path] = is_whole

    # --- reporting -------------------------------------------------------------------------------

    @property
    def reads(self) -> list[StatePath]:
        """The paths that were read, including those above them, in the order of reading."""
        return list(self._check_begun())

    def items(self) -> list[AuditItem]:
        """Returns every top-level key of the present state, the largest first."""
        change_counts = _change_counts(self._scope)
        reads = self._reads
        found = [
            _item((key,), kept, change_counts, None if reads is None else (key,) in reads)
            for key, kept in self._root()._kept()
        ]
        return sorted(found, key=_by_size)

    def unread(self) -> list[AuditItem]:
        """Returns the items of which neither the value nor the key was read, the largest first.

        A path below which nothing was read is one item; a list is always one item.
        """
        self._check_begun()
        change_counts = _change_counts(self._scope)
        found = [_item(*one, change_counts, False) for one in self._unread(self._root(), ())]
        return sorted(found, key=_by_size)

    def _unread(self, node: Map, path: StatePath) -> Iterator[tuple[StatePath, Any]]:
        reads = self._check_begun()
        for key, kept in node._kept():
            place = (*path, key)
            if place not in reads:
                yield place, kept
            elif not reads[place]:
                value = kept.force() if type(kept) is Lazy else kept
                if isinstance(value, Map):
                    yield from self._unread(value, place)

    def _check_begun(self) -> dict[StatePath, bool]:
        if self._reads is None:
            raise UsageError(
                f'no reads of "{self.name}" were observed: the audit was not begun',
                hint="run the work in its block: with scope.life.audit() as audit: …",
            )
        return self._reads

    def _root(self) -> Map:
        return state_of(self._context.log.newest(self.name), self.name)

    # --- comparing -------------------------------------------------------------------------------

    def without(self, path: Path, job: TrialJob) -> Comparison:
        """Runs job(scope) on two forks, one of them without an item, and compares the outcomes.

        The forks have everything else, including messages and the scopes above, and are dropped
        afterwards. Anything that the job does outside of its scope is really done, and twice.
        """
        check_call(job, "a job")
        place = self._check_item(path)
        whole = _run_trial(TrialRun(self._scope, place, with_it=True), job)
        return Comparison(
            place, whole, _run_trial(TrialRun(self._scope, place, with_it=False), job)
        )

    def _check_item(self, path: Path) -> StatePath:
        """Returns the path of an item that can be left out, or raises."""
        refuse_in_body("trying a job without an item")
        place = check_path(path)
        if self._scope.level == GLOBAL:
            raise UsageError(
                "the global scope cannot be forked: no job can be tried in it",
                hint="keep what you want to try in a scope of another level",
            )
        if not place:
            raise UsageError(
                f"an item is a part of the state, found the whole state: {show_value(path)}"
            )
        if tree.get(self._root(), place, MISSING) is MISSING:
            raise NotFoundError(
                f'scope "{self.name}" has nothing at {place!r}', hint="items() lists its keys"
            )
        return place


class TrialRun:
    """A fork for one run of a job, with an item or without it."""

    def __init__(self, scope: Scope, item: StatePath, *, with_it: bool) -> None:
        self.scope = scope.fork(f"audit-{new_id(scope_stream(scope).log.clock)}")
        if with_it:
            self.scope.checkpoint("audit")  # so that revisions are the same with and without it
        else:
            self.scope.delete(item)
        self._begun = self.scope.revision
        self._item = item

    def end(self, returned: Any, failure: Exception | None) -> TrialOutcome:
        """Returns what the job did, and drops the fork."""
        changes = {change.path: change.new for change in self.scope.diff(self._begun)}
        if changes.get(self._item) is MISSING:
            # The job deleted the item. Without the item it cannot do that: so it is no difference.
            del changes[self._item]
        said: list[tuple[str, str]] = []
        try:
            for message in reversed(self.scope.messages):
                if message.revision <= self._begun:
                    break
                said.insert(0, (message.role, message.text))
        except ClosedError:
            _logger.debug('the messages of "%s" were dropped by the job', self.scope.name)
        self.drop()
        error = None if failure is None else show_error(failure)
        return TrialOutcome(returned, error, changes, said)

    def drop(self) -> None:
        """Drops the fork."""
        try:
            self.scope.close(keep=False)
        except ClosedError:
            _logger.debug('"%s" was closed by the job', self.scope.name)


def _run_trial(attempt: TrialRun, job: TrialJob) -> TrialOutcome:
    returned: Any = None
    failure: Exception | None = None
    try:
        returned = job(attempt.scope)
    except Exception as raised:
        failure = raised
    except BaseException:
        attempt.drop()
        raise
    return attempt.end(returned, failure)


# --- a state that reports its readers ------------------------------------------------------------


class _Entries(dict[str, Any]):
    """The entries of a map that report reads.

    They are in a real Map, so that all functions of the tree work on it. A draft made from it
    reports reads too.
    """

    __slots__ = ("_notes", "_path")

    def __init__(
        self, kept: Iterable[tuple[str, Any]], path: StatePath, notes: tuple[ReadObserver, ...]
    ) -> None:
        super().__init__(kept)
        self._path = path
        self._notes = notes

    def _report(self, key: str, is_whole: bool) -> None:
        if IS_LOOKING.get():
            return
        for note in self._notes:
            note((*self._path, key), is_whole)

    def _child(self, key: str, kept: Any) -> Any:
        value = kept.force() if type(kept) is Lazy else kept
        if isinstance(value, Map) and len(value):
            self._report(key, False)
            return Map(_Entries(value._kept(), (*self._path, key), self._notes))
        self._report(key, True)
        return value

    def __getitem__(self, key: str) -> Any:
        return self._child(key, super().__getitem__(key))

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if super().__contains__(key) else default

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self._report(key, False)
            yield key

    def items(self) -> ItemsView[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # The caller gets whole values and does not ask the maps below, so everything counts as
        # read.
        for key in super().__iter__():
            self._report(key, True)
        return super().items()

    def copy(self) -> _Entries:
        return _Entries(super().items(), self._path, self._notes)

    def __or__(self, other: dict[str, Any]) -> _Entries:  # pyright: ignore
        both = self.copy()
        both.update(other)
        return both


def _observed(read_observers: dict[str, list[ReadObserver]], state: Map, name: str) -> Map:
    """Returns a scope's state, in a form that reports reads if an audit of the scope is open."""
    observers = tuple(read_observers.get(name, ()))
    return Map(_Entries(state._kept(), (), observers)) if observers else state


# --- what is stored ------------------------------------------------------------------------------


def _change_counts(scope: Scope) -> dict[str | int, tuple[int, int]]:
    """Returns for each key how many events changed it, and the time of the newest."""
    found: dict[str | int, tuple[int, int]] = {}
    for event in scope.history():
        keys: set[str | int] = set()
        for op in ops_of(event.record):
            keys |= {op.keys[0]} if op.keys else {*found, *_level(scope, op)}
        for key in keys:
            found[key] = found.get(key, (0, 0))[0] + 1, event.record.time
    return found


def _level(scope: Scope, op: Op) -> list[str]:
    """Returns the keys of a mapping that an op sets as the whole state."""
    if op.kind == "delete":
        return []
    blobs = scope_stream(scope).log.blobs.read
    reference = codec.parse_blob_ref(op.value)
    return list(enter_level(op.value if reference is None else blobs(*reference), blobs))


def _item(
    path: StatePath, kept: Any, change_counts: dict[str | int, tuple[int, int]], read: bool | None
) -> AuditItem:
    changes, time = change_counts.get(path[0], (0, 0))
    return AuditItem(path, _size(kept), changes, to_datetime(time) if time else None, read)


def _size(kept: Any) -> int:
    """Returns how many bytes a value takes, also if it is in a blob."""
    if type(kept) is Lazy:
        raw = kept.stored()
        reference = codec.parse_blob_ref(raw)
        return len(raw) if reference is None else reference[1]
    if isinstance(kept, Map):
        return max(1 + sum(len(codec.encode(key)) + 2 + _size(one) for key, one in kept._kept()), 2)
    if isinstance(kept, List):
        return max(1 + sum(1 + _size(one) for chunk in kept.vector().chunks() for one in chunk), 2)
    return len(codec.encode(kept))


def _by_size(item: AuditItem) -> tuple[int, str]:
    return -item.size, repr(item.path)

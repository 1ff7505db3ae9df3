"""The audit of a scope's state: what is kept and never read, how often it changes, what it is for.

State that nobody reads is noise: it costs room in every prompt and every backup. An audit notes
which places of a scope are read through this store while its block is open, tells afterwards what
was not, and tries a job with and without an item, which is the proof that the item matters.

Reads are noted by a state that notes them: while an audit is open, the log shows its scope's state
with entries that say what is asked of them (`Log.show`). While none is, there is nothing of this on
any path: no test, no call.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from holdfast.core import codec, tree
from holdfast.core.arguments import Path, check_call, check_path
from holdfast.core.event import StreamState, ops_of, state_of, to_datetime
from holdfast.core.tree import MISSING, Lazy, List, Map, Op
from holdfast.core.tree.frozen import enter_level
from holdfast.errors import ClosedError, NotFoundError, UsageError, show_error, show_value
from holdfast.names import GLOBAL, new_id
from holdfast.record.context import ReadObserver, RecordContext
from holdfast.record.in_run import refuse_in_body

if TYPE_CHECKING:
    from holdfast.scope import Scope

StatePath = tuple[str | int, ...]
TrialJob = Callable[["Scope"], Any]

_lock = Lock()


class AuditItem(Struct, frozen=True):
    """A place of a scope's state: how large it is, and how often it changes.

    `changes` and `changed_at` are those of the key of the state that it lies under. `read` is None
    where no reads were noted.
    """

    path: StatePath
    size: int
    changes: int
    changed_at: datetime | None
    read: bool | None


class TrialOutcome(Struct, frozen=True):
    """What became of a job: what it returned or raised, and what it left in its scope."""

    returned: Any
    error: str | None
    changes: dict[StatePath, Any]
    said: list[tuple[str, str]]


class Comparison(Struct, frozen=True):
    """A job, tried with everything and without one item."""

    path: StatePath
    whole: TrialOutcome
    without: TrialOutcome

    @property
    def is_same(self) -> bool:
        """Says whether the job did the same without the item: if so, it is not what it needs."""
        return self.whole == self.without


class Audit:
    """What `store.audit(scope)` returns; reads are noted in its block."""

    def __init__(self, context: RecordContext, scope: Scope) -> None:
        self._scope = scope
        self.name = scope.name
        self._context = context
        self._reads: dict[StatePath, bool] | None = None

    def __repr__(self) -> str:
        return f"<Audit of {self.name}>"

    # --- noting ----------------------------------------------------------------------------------

    def __enter__(self) -> Audit:
        self._reads = self._reads or {}
        read_observers = self._context.read_observers
        with _lock:
            read_observers.setdefault(self.name, []).append(self._record_read)
            self._context.log.show = partial(_show, read_observers)
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        read_observers = self._context.read_observers
        with _lock:
            read_observers[self.name].remove(self._record_read)
            if not read_observers[self.name]:
                del read_observers[self.name]
            if not read_observers:
                self._context.log.show = state_of
        return False

    def _record_read(self, path: StatePath, is_whole: bool) -> None:
        reads = cast("dict[StatePath, bool]", self._reads)
        if is_whole or path not in reads:
            reads[path] = is_whole

    # --- telling ---------------------------------------------------------------------------------

    @property
    def reads(self) -> list[StatePath]:
        """The places that were read, those on the way to them included, in the order of reading."""
        return list(self._check_begun())

    def items(self) -> list[AuditItem]:
        """Returns every key of the state as it is now, the largest first."""
        change_counts = _change_counts(self._scope)
        reads = self._reads
        found = [
            _item((key,), kept, change_counts, None if reads is None else (key,) in reads)
            for key, kept in self._root().kept()
        ]
        return sorted(found, key=_by_size)

    def unread(self) -> list[AuditItem]:
        """Returns what was never read, the largest first: not its value, nor that it is there.

        Where nothing below a place was read it is told of as one, a list always.
        """
        self._check_begun()
        change_counts = _change_counts(self._scope)
        found = [_item(*one, change_counts, False) for one in self._unread(self._root(), ())]
        return sorted(found, key=_by_size)

    def _unread(self, node: Map, path: StatePath) -> Iterator[tuple[StatePath, Any]]:
        reads = self._check_begun()
        for key, kept in node.kept():
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
                f'no reads of "{self.name}" were noted: the audit was not begun',
                hint="let the work run in its block: with store.audit(scope) as audit: …",
            )
        return self._reads

    def _root(self) -> Map:
        return state_of(self._context.log.newest(self.name), self.name)

    # --- trying ----------------------------------------------------------------------------------

    def without(self, path: Path, job: TrialJob) -> Comparison:
        """Runs job(scope) on two forks, one of them without an item, and tells what each did.

        The forks have everything else, messages and scopes above included, and are let go
        afterwards. What the job does outside of its scope is really done, twice.
        """
        check_call(job, "a job")
        place = self._check_item(path)
        whole = _run_trial(TrialRun(self._scope, place, with_it=True), job)
        return Comparison(
            place, whole, _run_trial(TrialRun(self._scope, place, with_it=False), job)
        )

    def _check_item(self, path: Path) -> StatePath:
        """Returns the place of an item that can be left out, or raises."""
        refuse_in_body("trying a job without an item")
        place = check_path(path)
        if self._scope.level == GLOBAL:
            raise UsageError(
                "there is one global scope, which cannot be forked: nothing can be tried in it",
                hint="keep what is to be tried in a scope of another level",
            )
        if not place:
            raise UsageError(f"the whole state is no item, found {show_value(path)}")
        if tree.get(self._root(), place, MISSING) is MISSING:
            raise NotFoundError(
                f'scope "{self.name}" has nothing at {place!r}', hint="items() lists its keys"
            )
        return place


class TrialRun:
    """A fork for one run of a job, with an item or without it."""

    def __init__(self, scope: Scope, item: StatePath, *, with_it: bool) -> None:
        self.scope = scope.fork(f"audit-{new_id(scope._context.log.clock)}")
        if with_it:
            self.scope.checkpoint("audit")  # so that revisions are the same with and without it
        else:
            self.scope.delete(item)
        self._begun = self.scope.revision
        self._item = item

    def end(self, returned: Any, failure: Exception | None) -> TrialOutcome:
        """Returns what the job did, and lets the fork go."""
        changes = {change.path: change.new for change in self.scope.diff(self._begun)}
        if changes.get(self._item) is MISSING:
            del changes[self._item]  # it could not be taken away where it was not
        said: list[tuple[str, str]] = []
        with suppress(ClosedError):  # the job let its scope go
            for message in reversed(self.scope.messages):
                if message.revision <= self._begun:
                    break
                said.insert(0, (message.role, message.text))
        self.drop()
        return TrialOutcome(
            returned, None if failure is None else show_error(failure), changes, said
        )

    def drop(self) -> None:
        """Lets the fork go."""
        with suppress(ClosedError):
            self.scope.close(keep=False)


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


# --- a state that notes its readers --------------------------------------------------------------


class _Entries(dict[str, Any]):
    """The entries of a map, which tell what is asked of them.

    They are those of a real Map, so that all of the tree works on it; and what a draft makes of it
    notes its readers too.
    """

    __slots__ = ("_notes", "_path")

    def __init__(
        self, kept: Iterable[tuple[str, Any]], path: StatePath, notes: tuple[ReadObserver, ...]
    ) -> None:
        super().__init__(kept)
        self._path = path
        self._notes = notes

    def _report(self, key: str, is_whole: bool) -> None:
        for note in self._notes:
            note((*self._path, key), is_whole)

    def _child(self, key: str, kept: Any) -> Any:
        value = kept.force() if type(kept) is Lazy else kept
        if isinstance(value, Map) and len(value):
            self._report(key, False)
            return Map(_Entries(value.kept(), (*self._path, key), self._notes))
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
        # Whoever asks for these takes all there is, without asking the maps below.
        for key in super().__iter__():
            self._report(key, True)
        return super().items()

    def copy(self) -> _Entries:
        return _Entries(super().items(), self._path, self._notes)

    def __or__(self, other: dict[str, Any]) -> _Entries:  # pyright: ignore
        both = self.copy()
        both.update(other)
        return both


def _show(
    read_observers: dict[str, list[ReadObserver]], stream_state: StreamState, name: str
) -> Map:
    """Returns a scope's state, noting its readers if somebody wants to know."""
    root = state_of(stream_state, name)
    notes = tuple(read_observers.get(name, ()))
    return Map(_Entries(root.kept(), (), notes)) if notes else root


# --- what is stored ------------------------------------------------------------------------------


def _change_counts(scope: Scope) -> dict[str | int, tuple[int, int]]:
    """Returns for each key how many events changed it, and when the newest did."""
    found: dict[str | int, tuple[int, int]] = {}
    for event in scope.history():
        keys: set[str | int] = set()
        for op in ops_of(event.record):
            keys |= {op.keys[0]} if op.keys else {*found, *_level(scope, op)}
        for key in keys:
            found[key] = found.get(key, (0, 0))[0] + 1, event.record.time
    return found


def _level(scope: Scope, op: Op) -> list[str]:
    """Returns the keys of a mapping that an op puts in the place of the whole state."""
    if op.kind == "delete":
        return []
    blobs = scope._context.log.blobs.read
    reference = codec.parse_blob_ref(op.value)
    return list(enter_level(op.value if reference is None else blobs(*reference), blobs))


def _item(
    path: StatePath, kept: Any, change_counts: dict[str | int, tuple[int, int]], read: bool | None
) -> AuditItem:
    changes, time = change_counts.get(path[0], (0, 0))
    return AuditItem(path, _size(kept), changes, to_datetime(time) if time else None, read)


def _size(kept: Any) -> int:
    """Returns how many bytes a value takes, one that is a blob included."""
    if type(kept) is Lazy:
        raw = kept.stored()
        reference = codec.parse_blob_ref(raw)
        return len(raw) if reference is None else reference[1]
    if isinstance(kept, Map):
        return max(1 + sum(len(codec.encode(key)) + 2 + _size(one) for key, one in kept.kept()), 2)
    if isinstance(kept, List):
        return max(1 + sum(1 + _size(one) for chunk in kept.vector().chunks() for one in chunk), 2)
    return len(codec.encode(kept))


def _by_size(item: AuditItem) -> tuple[int, str]:
    return -item.size, repr(item.path)

"""Several scopes at once: a commit over them (both or neither), and a view of them (one moment)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, cast, runtime_checkable

from msgspec.structs import replace

from holdfast.backends.protocol import Cleared, Fence, Lease, Mark
from holdfast.core import tree
from holdfast.core.arguments import Path, check_expected, check_path, check_whole, update_ops
from holdfast.core.commit import CommitResult, ProposedCommit, StreamWrite, check_lease, conflict
from holdfast.core.commit_queue import Request
from holdfast.core.event import StreamState
from holdfast.core.log import Log
from holdfast.core.tree import Map, Op
from holdfast.errors import UsageError, show_value
from holdfast.names import check_name


@runtime_checkable
class WritableScope(Protocol):
    """What a commit over several scopes needs of each: its name, and events for its stream."""

    @property
    def name(self) -> str: ...
    @property
    def _subscribers(self) -> Listeners: ...
    def _change_write(
        self, ops: Sequence[Op], expected: int | None, key: str | None, checkpoint: str | None
    ) -> StreamWrite: ...
    def _checkpoint_write(
        self, name: str | None, expected: int | None, key: str | None
    ) -> StreamWrite: ...


class Listeners(Protocol):
    """Who hears of a scope's changes."""

    def tell(self, write: StreamWrite, before: StreamState, after: StreamState) -> None: ...


class PendingCommit:
    """What `with store.commit() as tx:` hands out. Nothing is written before the block ends.

    A scope that was read through it is guarded: if somebody changed it meanwhile, the commit
    raises ConflictError and nothing of it is written, in any scope (guarantees 2 and 3).
    """

    def __init__(
        self, log: Log, *, key: str | None, lease: Lease | None, waits: bool = True
    ) -> None:
        self._log = log
        self._waits = waits
        self._request: Request | None = None
        self._key = None if key is None else check_name(key, "key")
        self._lease = lease
        self._scopes: dict[str, PendingScope] = {}
        self._marks: dict[tuple[str, str], Mark | Cleared] = {}
        self._watch: list[str] = []
        self.result: CommitResult | None = None

    def scope(self, scope: WritableScope) -> PendingScope:
        """Returns the scope as this commit will leave it."""
        pending = self._scopes.get(_name_of(scope))
        if pending is None:
            pending = self._scopes[scope.name] = PendingScope(self._log, scope)
        return pending

    def mark(self, index: str, key: str, *, due: int = 0, priority: int = 0) -> None:
        """Sets a mark in the same atomic unit; the last word on a mark counts."""
        check_whole(due, "due")
        check_whole(priority, "priority", least=-(1 << 63))
        self._add_mark(Mark(index, key, due, priority))

    def clear(self, index: str, key: str) -> None:
        """Clears a mark in the same atomic unit."""
        self._add_mark(Cleared(index, key))

    def _add_mark(self, mark: Mark | Cleared) -> None:
        name = check_name(mark.index, "index"), check_name(mark.key, "mark key")
        self._marks[name] = replace(mark, index=name[0], key=name[1])

    def watch(self, scope: WritableScope) -> None:
        """Asks the receipt for the newest revision of a scope, at no extra trip (`news`)."""
        self._watch.append(_name_of(scope))

    @property
    def news(self) -> dict[str, int]:
        """The newest revisions of the watched scopes, known when the block has ended."""
        return {} if self.result is None else self.result.news

    def __enter__(self) -> PendingCommit:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        proposed = self._proposed() if kind is None else None
        if proposed is not None:
            if self._waits:
                self._finish(proposed, self._log.commit(proposed))
            else:
                self._request = self._log.submit(proposed)
        return False

    def wait(self) -> CommitResult:
        """Returns when what `submit` queued is durable, or raises why it was refused."""
        if self.result is None:
            if self._request is None:
                raise UsageError("nothing was committed or submitted: there is nothing to wait for")
            self._finish(self._request.work, self._log.wait(self._request))
        assert self.result is not None, "BUG: finished without an answer"
        return self.result

    def _proposed(self) -> ProposedCommit | None:
        """Returns what the block gathered; None if there is nothing to write."""
        fence = None
        if self._lease is not None:
            lease = check_lease(self._lease)
            fence = Fence(lease.name, lease.owner, lease.epoch)
        parts: list[StreamWrite] = []
        reads: list[tuple[str, int]] = []
        for pending in self._scopes.values():
            write = pending._write(self._key)
            if write is not None:
                parts.append(write)
            elif (expected := pending._guard()) is not None:
                reads.append((pending.name, expected))
        if not parts and not self._marks:
            return None
        marks = tuple(self._marks.values())
        return ProposedCommit(tuple(parts), tuple(reads), fence, marks, tuple(self._watch))

    def _finish(self, proposed: ProposedCommit, result: CommitResult) -> None:
        """Keeps the answer, and tells the subscribers of every scope."""
        self.result = result
        for write, before, after in zip(proposed.writes, result.before, result.after, strict=True):
            self._scopes[write.stream]._subscribers.tell(write, before, after)


class PendingScope:
    """One scope inside a pending commit: its writes gather, its reads see them."""

    def __init__(self, log: Log, scope: WritableScope) -> None:
        self.name = scope.name
        self._base: StreamState | None = None
        self._subscribers = scope._subscribers
        self._scope = scope
        self._log = log
        self._ops: list[Op] = []
        self._expected: int | None = None
        self._checkpoint: str | None = None

    @property
    def state(self) -> Map:
        """The state as the commit would leave it; reading it guards the scope."""
        if self._base is None:
            self._base = self._log.newest(self.name)
        root = self._log.show(self._base, self.name)
        if not self._ops:
            return root
        return tree.apply(
            root, self._ops, revision=self._base.revision + 1, blobs=self._log.blobs.read
        )

    def get(self, path: Path, default: Any = None) -> Any:
        """Returns a value; reading it guards the scope."""
        return tree.get(self.state, check_path(path), default)

    def set(self, path: Path, value: Any) -> None:
        self._ops.append(tree.set_op(path, value))

    def update(self, values: Mapping[str, Any]) -> None:
        self._ops += update_ops(values)

    def delete(self, path: Path) -> None:
        self._ops.append(tree.delete_op(path))

    def append(self, path: Path, item: Any) -> None:
        self._ops.append(tree.append_op(path, item))

    def increment(self, path: Path, by: int | float = 1) -> None:
        self._ops.append(tree.increment_op(path, by))

    def checkpoint(self, name: str) -> None:
        """Names the revision that the commit makes of this scope."""
        self._checkpoint = name

    def expect(self, revision: int) -> None:
        """Guards the scope at a revision that was read elsewhere."""
        self._expected = check_expected(revision)

    def _write(self, key: str | None) -> StreamWrite | None:
        """Returns what the commit adds to this scope's stream, None if nothing."""
        if not self._ops and self._checkpoint is None:
            return None
        if not self._ops:
            return self._scope._checkpoint_write(self._checkpoint, self._guard(), key)
        return self._scope._change_write(self._ops, self._guard(), key, self._checkpoint)

    def _guard(self) -> int | None:
        """Returns the revision that the scope must be at: the one expected, or the one read.

        Raises ConflictError if they differ: one of the two is stale already.
        """
        read = None if self._base is None else self._base.revision
        if self._expected is None or read is None:
            return read if self._expected is None else self._expected
        if self._expected != read:
            raise conflict(self.name, self._expected, read)
        return read


class View:
    """Several scopes at one moment: it never straddles a commit (guarantee 2)."""

    def __init__(self, log: Log) -> None:
        self._log = log
        # Before the moment: so it holds each of them, and only what came since is ever read.
        self._bases = log.states_in_memory()
        self._moment = log.moment()
        self._seen: dict[str, StreamState] = {}
        self.position = self._moment.position
        """Where to follow from: what is not in the view comes, on PostgreSQL perhaps more."""

    def state(self, scope: WritableScope) -> Map:
        """Returns the scope's state as it was at the view's moment."""
        return self._log.show(self._state_of(scope), scope.name)

    def revision(self, scope: WritableScope) -> int:
        """Returns the scope's revision at the view's moment."""
        return self._state_of(scope).revision

    def get(self, scope: WritableScope, path: Path, default: Any = None) -> Any:
        """Returns one value of a scope at the view's moment."""
        return tree.get(self.state(scope), check_path(path), default)

    def _state_of(self, scope: WritableScope) -> StreamState:
        name = _name_of(scope)
        state = self._seen.get(name)
        if state is None:
            state = self._log.state_at(name, self._moment, self._bases.get(name))
            self._seen[name] = state
        elif state.expires_us:
            self._log.expiry.check(name, state.expires_us)
        return state


def _name_of(scope: object) -> str:
    """Returns the scope's name, or raises UsageError for what is no scope.

    The answer is kept for each class: Python takes longer for it than a view of memory does.
    """
    kind = type(scope)
    if kind not in _SCOPES:
        if not isinstance(scope, WritableScope):
            raise UsageError(
                f"expected a scope, found {show_value(scope)}",
                hint='store.scope("team/red") is one',
            )
        _SCOPES.add(kind)
    return cast("WritableScope", scope).name


_SCOPES: set[type] = set()

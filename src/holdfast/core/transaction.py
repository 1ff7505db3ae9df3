"""Several scopes at once: a commit over them (all or nothing), and a view of them (one moment)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, Self, cast

from msgspec.structs import replace

from holdfast.backends.protocol import Cleared, Fence, Lease, Mark
from holdfast.core import mark_ends, tree
from holdfast.core.arguments import (
    Duration,
    Path,
    check_alone,
    check_ends_alone,
    check_expected,
    check_flag,
    check_import_time,
    check_key_ttl,
    check_path,
    check_ttl,
    check_whole,
    update_ops,
)
from holdfast.core.codec import for_subject
from holdfast.core.commit import (
    CommitResult,
    ProposedCommit,
    ReadGuard,
    StreamWrite,
    Ttls,
    check_lease,
    conflict,
)
from holdfast.core.commit_queue import Request
from holdfast.core.event import StreamState
from holdfast.core.log import Log, WritableScope, is_replayed, scope_stream
from holdfast.core.meta import Meta, encode_meta
from holdfast.core.tree import MISSING, Map, Op
from holdfast.errors import UsageError, show_value
from holdfast.names import check_name, check_scope_name


class PendingCommit:
    """A commit over several scopes, as `with store.commit() as tx:` gives it.

    Nothing is written before the block ends; then all of it is written, or nothing. Each path that
    was read through it is guarded: if another writer changed one meanwhile, the block raises
    ConflictError, which names the paths, and nothing is written to any scope (guarantees 2 and 3).
    Other changes to those scopes do not matter.
    """

    def __init__(
        self,
        log: Log,
        *,
        key: str | None,
        lease: Lease | None,
        meta: Meta | None = None,
        time: datetime | None = None,
        waits: bool = True,
    ) -> None:
        self._log = log
        self._waits = waits
        self._request: Request | None = None
        self._key = None if key is None else check_name(key, "key")
        self._lease = lease
        self._meta = encode_meta(meta)
        if meta is not None and meta.imported_at is not None:
            raise UsageError(
                "imported_at is said by the log itself, of a commit with a time",
                hint="give commit the time at which it happened",
            )
        self._time = None if time is None else check_import_time(time)
        self._scopes: dict[str, PendingScope] = {}
        self._marks: dict[tuple[str, str], Mark | Cleared] = {}
        self._mark_ttls: dict[tuple[str, str], int] = {}  # of marks that the user set or cleared
        self._watch: list[str] = []
        self.result: CommitResult | None = None

    def scope(self, scope: WritableScope) -> PendingScope:
        """Returns the scope as this commit will leave it, to read from and write to."""
        pending = self._scopes.get(_name_of(scope))
        if pending is None:
            pending = self._scopes[scope.name] = PendingScope(self._log, scope)
        return pending

    def mark(
        self,
        index: str,
        key: str,
        *,
        due: int = 0,
        priority: int = 0,
        ttl_s: Duration | None = None,
    ) -> None:
        """Sets a mark with the same commit; of several calls for one mark the last counts.

        With `ttl_s` the mark ends so long from now: after that nobody finds or claims it. A mark
        that is set together with a scope that ends is gone when that scope has ended.
        """
        check_whole(due, "due")
        check_whole(priority, "priority", least=-(1 << 63))
        ttl_us = 0 if ttl_s is None else round(check_ttl(ttl_s) * 1_000_000)
        name = self._add_mark(Mark(index, key, due, priority))
        self._mark_ttls[name] = ttl_us

    def clear(self, index: str, key: str) -> None:
        """Clears a mark with the same commit."""
        self._add_mark(Cleared(index, key))

    def _add_mark(self, mark: Mark | Cleared) -> tuple[str, str]:
        name = check_name(mark.index, "index"), check_name(mark.key, "mark key")
        self._marks[name] = replace(mark, index=name[0], key=name[1])
        self._mark_ttls[name] = 0
        return name

    def watch(self, scope: WritableScope) -> None:
        """Asks for the newest revision of a scope with the answer to the commit (see `news`).

        It costs no extra round trip.
        """
        self._watch.append(_name_of(scope))

    @property
    def news(self) -> dict[str, int]:
        """The newest revisions of the watched scopes, known when the block has ended."""
        return {} if self.result is None else self.result.news

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        proposed = self._proposed() if kind is None else None
        if proposed is not None:
            if self._waits:
                self._finish(proposed, self._log.commit(proposed))
            else:
                if self._log.turns.held:
                    self._log.turns.wait([write.stream for write in proposed.writes])
                if self._log.dispatcher.is_full:
                    self._log.dispatcher.wait_for_room()
                self._request = self._log.submit(proposed)
        return False

    def wait(self) -> CommitResult:
        """Waits until a commit with `waits=False` is durable; raises if it was refused."""
        if self.result is None:
            if self._request is None:
                raise UsageError("nothing was committed or submitted: there is nothing to wait for")
            self._finish(self._request.work, self._log.wait(self._request))
        assert self.result is not None, "BUG: finished without an answer"
        return self.result

    def _proposed(self) -> ProposedCommit | None:
        """Returns what the block gathered, or None if there is nothing to write."""
        fence = None
        if self._lease is not None:
            lease = check_lease(self._lease)
            fence = Fence(lease.name, lease.owner, lease.epoch)
        parts: list[StreamWrite] = []
        reads: list[tuple[str, int]] = []
        guards: list[ReadGuard] = []
        for pending in self._scopes.values():
            expected, guard = pending._guards()
            if guard is not None:
                guards.append(guard)
            write = pending._write(expected, self._key)
            if write is not None:
                parts.append(write)
            elif expected is not None:
                reads.append((pending.name, expected))
        if not parts and not self._marks:
            return None
        marks = tuple(self._marks.values())
        if self._mark_ttls:
            own = tuple(mark for name, mark in self._marks.items() if name in self._mark_ttls)
            rest = tuple(mark for name, mark in self._marks.items() if name not in self._mark_ttls)
            streams = [write.stream for write in parts]
            own, more = mark_ends.completed(self._log, own, self._mark_ttls, streams)
            marks, parts = (*rest, *own), [*parts, *more]
        watch = tuple(self._watch)
        guarded = tuple(guards)
        return ProposedCommit(
            tuple(parts),
            tuple(reads),
            fence,
            marks,
            watch,
            guards=guarded,
            meta=self._meta,
            time=self._time,
        )

    def _drop(self) -> None:
        """Ends the block without a commit."""

    def _finish(self, proposed: ProposedCommit, result: CommitResult) -> None:
        """Keeps the result of the commit, which is durable now."""
        self.result = result


def proposed_by(pending: PendingCommit) -> ProposedCommit | None:
    """Returns what a block gathered, for a caller that commits it with more; None if nothing."""
    return pending._proposed()


def finish(pending: PendingCommit, proposed: ProposedCommit, result: CommitResult) -> None:
    """Ends a block whose commit was made elsewhere, with the result of that commit."""
    pending._finish(proposed, result)


def drop(pending: PendingCommit) -> None:
    """Ends a block without a commit."""
    pending._drop()


class PendingScope:
    """One scope inside a pending commit: its writes gather, and its reads see them.

    A read guards the path that was read. `.state`, `in`, iterating and `len` guard the mapping that
    they look through; a key that is absent guards the mapping or list that it would be in. What the
    commit itself has set needs no guard. `append`, `increment` and `set` with `if_absent` read
    nothing, so those of several writers never conflict.
    """

    def __init__(self, log: Log, scope: WritableScope) -> None:
        self.name = scope.name
        self._base: StreamState | None = None
        self._target = scope_stream(scope)
        self._log = log
        self._ops: list[Op] = []
        self._defaults: list[Op] = []
        self._ttls: dict[int, Ttls] = {}  # by the number of ops when they were given
        self._subjects: dict[int, str] = {}  # by the identity of an op
        self._read: dict[tuple[str | int, ...], None] = {}
        self._expected: int | None = None
        self._checkpoint: str | None = None

    @property
    def state(self) -> Map:
        """The state as the commit would leave it; reading it guards the whole state."""
        self._add_guard(())
        return self._now()

    def get(self, path: Path, default: Any = None) -> Any:
        """Returns a value; reading it guards it, or its container if it is absent."""
        place = check_path(path)
        self._add_guard(place)
        return tree.get(self._now(), place, default)

    def __getitem__(self, key: str) -> Any:
        value = self.get(key, MISSING)
        if value is MISSING:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self.state

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def set(
        self,
        path: Path,
        value: Any,
        *,
        diff: bool = False,
        if_absent: bool = False,
        subject: str | None = None,
        ttl_s: Duration | None = None,
    ) -> None:
        """Puts a value at a key or path; with `diff` only what differs from the present is stored.

        `diff` compares, which is a read: so the path is guarded. With `if_absent` the value is put
        only where there is nothing yet; if another writer is first, that value stays. With
        `subject` the value is sealed for that subject when the block ends, as by `Scope.set`. With
        `ttl_s` the value ends so long after the commit.
        """
        op = self._of(partial(tree.set_op, path, value), subject)
        if check_flag(if_absent, "if_absent"):
            check_alone("if_absent", diff=diff, ttl_s=ttl_s)
            self._set_if_absent(op)
        elif ttl_s is not None:
            check_ends_alone(diff=diff)
            ttls = tuple(check_key_ttl([op], ttl_s).items())
            self._ops.append(op)
            self._ttls[len(self._ops)] = ttls
        elif check_flag(diff, "diff") and subject is None and not is_replayed():
            if tree.locate(self._now(), op.keys) is not MISSING:
                self._add_guard(op.keys)
            self._ops += tree.set_difference(self._now(), op)
        else:
            self._ops.append(op)

    def _set_if_absent(self, op: Op) -> None:
        if any(_overlap(op.keys, other.keys) for other in self._ops):
            # This commit has changed the place itself: so what it did there counts too.
            if self.get(op.keys, MISSING) is MISSING:
                self._ops.append(op)
        else:
            self._defaults.append(op)

    def update(
        self,
        values: Mapping[str, Any],
        *,
        replace: bool = False,
        subject: str | None = None,
        ttl_s: Duration | None = None,
    ) -> None:
        """Puts several values, each at its key; with `subject` each is sealed for that subject.

        With `ttl_s` each ends so long after the commit. With `replace` the values become the whole
        state: what differs from the present state is stored.
        """
        if check_flag(replace, "replace"):
            check_alone("replace", subject=subject, ttl_s=ttl_s)
            return self.set((), values, diff=True)
        ops = update_ops(values) if subject is None else self._all_of(values, subject)
        ttls = () if ttl_s is None else tuple(check_key_ttl(ops, ttl_s).items())
        self._ops += ops
        self._ttls[len(self._ops)] = ttls

    def delete(self, path: Path, *, missing_ok: bool = False) -> None:
        """Deletes a value, which must be there; `missing_ok` looks first, which is a read."""
        if not check_flag(missing_ok, "missing_ok") or self.get(path, MISSING) is not MISSING:
            self._ops.append(tree.delete_op(path))

    def append(self, path: Path, item: Any, *, subject: str | None = None) -> None:
        """Appends an item to a list; a missing list is created."""
        self._ops.append(self._of(partial(tree.append_op, path, item), subject))

    def increment(self, path: Path, by: int | float = 1) -> None:
        """Adds to a number; a missing one counts as 0."""
        self._ops.append(tree.increment_op(path, by))

    def _of(self, make: Callable[[], Op], subject: str | None) -> Op:
        """Returns the op, and remembers the subject that its value belongs to."""
        if subject is None:
            return make()
        name, op = check_name(subject, "subject"), for_subject(make)
        self._subjects[id(op)] = name
        return op

    def _all_of(self, values: Mapping[str, Any], subject: str) -> list[Op]:
        name, ops = check_name(subject, "subject"), for_subject(partial(update_ops, values))
        self._subjects |= {id(op): name for op in ops}
        return ops

    def checkpoint(self, name: str) -> None:
        """Gives a name to the revision of this scope that the commit makes."""
        self._checkpoint = check_name(name, "checkpoint name")

    def expect(self, revision: int) -> None:
        """Guards the whole scope: the commit raises ConflictError if it is at another revision."""
        self._expected = check_expected(revision)

    def _now(self) -> Map:
        """Returns the state as the commit would leave it."""
        base = self._stored()
        root = self._log.show(base, self.name)
        if not self._ops and not self._defaults:
            return root
        blobs = self._log.blobs.read
        for op in (*tree.missing_ops(root, self._defaults, blobs), *self._ops):
            # As the log will store it: what is read here may be written elsewhere in this commit.
            kept = (op,) if id(op) in self._subjects else tree.keep_seals(root, (op,), blobs)
            root = tree.apply(root, kept, revision=None, blobs=blobs)
        return root

    def _stored(self) -> StreamState:
        """Returns the state that this commit reads: the newest one at the first read."""
        if self._base is None:
            self._base = self._log.newest(self.name)
        return self._base

    def _add_guard(self, path: tuple[str | int, ...]) -> None:
        """Guards the part of the stored state that a read of a path depends on."""
        stored = self._stored().root
        for op in self._ops:
            if op.kind == "set" and op.keys == path[: len(op.keys)]:
                return  # the commit has put its own value there: what is stored does not matter
        # What a transform or an upgrade shows at a path may come from any other path, so then the
        # whole state is guarded.
        typed = self._log.typed
        is_stored = not self._log.is_transformed and typed.is_current(self._stored(), self.name)
        self._read[tree.reach(stored, path) if is_stored else ()] = None

    def _write(self, expected: int | None, key: str | None) -> StreamWrite | None:
        """Returns what the commit adds to this scope's stream, None if nothing."""
        if self._ops or self._defaults:
            of: set[str] = set()
            ops, defaults = self._sealed(self._ops, of), self._sealed(self._defaults, of)
            ttls = _last_ttls(self._ops, self._ttls) if self._ttls else ()
            return self._target.change_write(
                ops, expected, key, self._checkpoint, defaults, tuple(of), ttls
            )
        if self._checkpoint is not None:
            return self._target.checkpoint_write(self._checkpoint, expected, key)
        return None

    def _sealed(self, ops: list[Op], of: set[str]) -> list[Op]:
        """Returns ops with the values of subjects sealed, and adds the subjects' ids to `of`."""
        result: list[Op] = []
        for op in ops:
            subject = self._subjects.get(id(op))
            if subject is not None:
                (op,), seal = self._target.sealed_ops((op,), subject)
                if seal is not None:
                    of.add(seal.subject)
            result.append(op)
        return result

    def _guards(self) -> tuple[int | None, ReadGuard | None]:
        """Returns the revision that was expected, and the guard of what was read.

        Raises ConflictError if the reads are of another revision: one of the two is stale.
        """
        if self._base is None or not self._read:
            return self._expected, None
        if self._expected is not None and self._expected != self._base.revision:
            raise conflict(self.name, self._expected, self._base.revision)
        paths = ((),) if () in self._read else tuple(self._read)
        return self._expected, ReadGuard(self.name, self._base, paths)


def _last_ttls(ops: Sequence[Op], given: dict[int, Ttls]) -> Ttls:
    """Returns how long values last, without those that a later op of the commit sets or deletes."""
    found: list[tuple[tuple[str | int, ...], int]] = []
    for count, ttls in given.items():
        later = [op.keys for op in ops[count:] if op.kind in ("set", "delete")]
        found += [
            (path, ttl_us)
            for path, ttl_us in ttls
            if not any(one == path[: len(one)] for one in later)
        ]
    return tuple(found)


def _overlap(path: tuple[str | int, ...], other: tuple[str | int, ...]) -> bool:
    """Returns whether two paths are equal, or one leads to the other."""
    shared = min(len(path), len(other))
    return path[:shared] == other[:shared]


class View:
    """Several scopes at one moment: of each commit it shows all or nothing (guarantee 2)."""

    def __init__(self, log: Log) -> None:
        self._log = log
        # Taken before the moment, so the moment holds each of these states, and only what was
        # written since has to be read (0020).
        self._bases = log.states_in_memory()
        self._moment = log.moment()
        self._seen: dict[str, StreamState] = {}
        self.position = self._moment.position
        """Where to follow from: all that the view does not hold comes after it.

        On PostgreSQL some events that the view holds may come again.
        """

    def state(self, scope: WritableScope) -> Map:
        """Returns the scope's state as it was at the view's moment."""
        state = self._state_of(scope)
        if state.ends is not None:
            state = self._log.key_ends.shown(state, scope.name)
        return self._log.show(state, scope.name)

    def states(self, scopes: Iterable[WritableScope | str]) -> dict[str, Map]:
        """Returns the states of many scopes by name, in one read where that is possible.

        A scope without events has an empty state; one that has expired is left out.
        """
        names = [check_scope_name(one) if isinstance(one, str) else _name_of(one) for one in scopes]
        shown: dict[str, Map] = {}
        # If the moment holds a scope's head, its newest state is its state at the moment. Otherwise
        # it was written to since, and the state at the moment is looked up alone.
        heads = self._log.heads(names)
        for name, head, state in zip(names, heads, self._log.newest_of(names), strict=True):
            if state is None:
                continue
            if head is not None and (
                head.revision != state.revision or not self._moment.has(head.position)
            ):
                state = self._state_of_name(name)
                if state.ends is not None:
                    state = self._log.key_ends.shown(state, name)
            shown[name] = self._log.show(state, name)
        return shown

    def revision(self, scope: WritableScope) -> int:
        """Returns the scope's revision at the view's moment."""
        return self._state_of(scope).revision

    def get(self, scope: WritableScope, path: Path, default: Any = None) -> Any:
        """Returns one value of a scope at the view's moment."""
        return tree.get(self.state(scope), check_path(path), default)

    def _state_of(self, scope: WritableScope) -> StreamState:
        return self._state_of_name(_name_of(scope))

    def _state_of_name(self, name: str) -> StreamState:
        state = self._seen.get(name)
        if state is None:
            state = self._log.state_at(name, self._moment, self._bases.get(name))
            self._seen[name] = state
        elif state.expires_us:
            self._log.expiry.check(name, state)
        return state


def of_memory(name: str) -> UsageError:
    """Returns the error for a scratch scope in a commit or view over several scopes."""
    return UsageError(
        f'"{name}" is a scratch scope: it is kept in memory, and the store does not know it',
        hint="read it and write to it outside of the block",
    )


def _name_of(scope: object) -> str:
    """Returns the scope's name, or raises UsageError if it is no scope.

    The check is done once for each class: it takes Python longer than a view of states in memory.
    """
    kind = type(scope)
    if kind not in _SCOPES:
        if not isinstance(scope, WritableScope):
            raise UsageError(
                f"expected a scope, found {show_value(scope)}",
                hint='store.scope("team/red") is one',
            )
        if scope_stream(scope).log.is_scratch:
            raise of_memory(scope.name)
        _SCOPES.add(kind)
    return cast("WritableScope", scope).name


_SCOPES: set[type] = set()

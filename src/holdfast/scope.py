"""Scopes: owners of state with a level and an id, and what can be done with one.

Every write is one event in the scope's stream, durable when the call returns. Every write takes
`expected` (a revision: refuse if the scope moved on), `key` (idempotency: the same key writes once)
and `checkpoint` (a name for the revision that the write makes).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    Self,
    TypeVar,
    cast,
    overload,
    runtime_checkable,
)

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import codec, event, past, tree
from holdfast.core.arguments import (
    Duration,
    Path,
    check_alone,
    check_call,
    check_ends_alone,
    check_expected,
    check_flag,
    check_key_ttl,
    check_path,
    check_text,
    check_ttl,
    check_whole,
    update_ops,
)
from holdfast.core.commit import (
    CommitResult,
    Fence,
    NewEvent,
    ProposedCommit,
    ReadGuard,
    StreamWrite,
    Ttls,
    conflict,
    untouchable,
)
from holdfast.core.dispatcher import OnError, Subscribed, Subscriber, Subscription
from holdfast.core.draft import Draft
from holdfast.core.event import (
    CLOSED,
    Change,
    Checkpoint,
    Event,
    Life,
    Moment,
    StreamState,
    restored_payload,
    state_of,
)
from holdfast.core.expiry import TOUCHES
from holdfast.core.keystore import is_pseudonym
from holdfast.core.listing import adopt_levels, scope_names, whole_ids
from holdfast.core.log import ScopeStream, is_replayed
from holdfast.core.meta import Meta, encode_meta
from holdfast.core.own_event import OwnEvent
from holdfast.core.page import PAGE_SIZE, Page, cut
from holdfast.core.paging import event_filter
from holdfast.core.past import StateAt
from holdfast.core.retry import RETRIES, persist
from holdfast.core.sealing import key_for
from holdfast.core.tree import MISSING, List, Map, Op
from holdfast.errors import (
    ConflictError,
    CorruptError,
    ExpiredError,
    LeaseLostError,
    NotFoundError,
    UsageError,
    ValueDomainError,
    show_value,
)
from holdfast.names import (
    CONVERSATION,
    ESCAPE,
    GLOBAL,
    TEAM,
    WORKFLOW,
    Levels,
    check_name,
    escape,
    has_digest,
    split_name,
    unescape,
)
from holdfast.record import keyed_item, own_events, removal
from holdfast.record.audit import Audit
from holdfast.record.catches import Catch, Finder, catch_decisions, catches_in, log_catch
from holdfast.record.context import RecordContext
from holdfast.record.decisions import (
    Decision,
    Decisions,
    IfExists,
    Link,
    OpenDecision,
    check_effect,
    kept_when_closed,
)
from holdfast.record.difference import Difference, Restored
from holdfast.record.facts import Facts, marks_at_close
from holdfast.record.in_run import refuse_in_body, unjournalled
from holdfast.record.memory import Memory
from holdfast.record.message_events import Message
from holdfast.record.messages import Messages
from holdfast.record.session_export import session_document, write_session
from holdfast.record.sessions import SessionStatus, status_of
from holdfast.record.tasks import (
    TaskRestore,
    Tasks,
    cancel_tasks,
    has_open_tasks,
    restore_tasks,
    undo_restore_of_tasks,
)

_logger = logging.getLogger("holdfast.scope")

if TYPE_CHECKING:
    # A scope whose schema was not named is one of anything.
    from typing_extensions import TypeVar

    from holdfast.core.kernel import Kernel

    S_co = TypeVar("S_co", default=Any, covariant=True)
else:
    S_co = TypeVar("S_co", covariant=True)

RESTORE_RETRIES = 8
DIFFERENCE_RETRIES = 4
CLOSE_RETRIES = 100
HISTORY_CHUNK = 200

__all__ = [
    "AsyncState",
    "ConversationScope",
    "ConversationState",
    "Edit",
    "GlobalScope",
    "GlobalState",
    "Recalled",
    "Scope",
    "ScopeLife",
    "State",
    "TeamScope",
    "TeamState",
    "WorkflowScope",
    "WorkflowState",
    "json_default",
]


class Recalled(Struct, frozen=True):
    """The decisions that an agent needs when it begins: all orders, and the newest of the rest."""

    orders: list[Decision]
    recent: list[Decision]


class Scope(Generic[S_co]):
    """One scope of a store. Making one writes nothing; the first write creates its stream.

    `Scope[Ticket]` is one whose state has the schema `Ticket`: type checkers know what `typed` is.
    """

    def __init__(
        self,
        context: RecordContext,
        level: str,
        id: str | None,
        *,
        levels: Levels,
        parent: Scope | None,
        ttl_s: Duration | None = None,
        slides: bool = False,
        given: str | None = None,
        subject: str | None = None,
    ) -> None:
        """`id` is the stored id; `given` is the id that it was made from, if known."""
        self.level = level
        self.name = level if id is None else f"{level}/{id}"
        self._id = id if given is None else given
        whole_id: str | None = None
        if id is not None and ESCAPE in id:
            self._id = given
            if has_digest(id):
                whole_id = "" if given is None else escape(given)
            else:
                self._id = unescape(id)
        self._context = context
        self._log = log = context.log
        self._levels = levels
        self._parent = parent
        if parent is not None:
            levels.check_parent(self.name, parent)
        self._stream = ScopeStream(
            context.kernel,
            self.name,
            parent=None if parent is None else parent.name,
            expires=ttl_s is not None,
            is_reserved=level in levels.reserved,
            whole_id=whole_id,
        )
        if ttl_s is not None:
            log.expiry.intend(self.name, check_ttl(ttl_s), slides=check_flag(slides, "slides"))
        elif slides:
            raise UsageError("slides says how a lifetime ends: expected ttl_s with it")
        if subject is not None:
            log.give_to(self.name, check_name(subject, "subject"))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            from holdfast.renamed import SCOPE, no_attribute

            raise no_attribute("a scope", name, SCOPE)

    def __repr__(self) -> str:
        return f"<Scope {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scope) and (other.name, other._log) == (self.name, self._log)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def id(self) -> str | None:
        """The id as it was given, however long it is; None for the global scope.

        The name of a scope holds at most 512 bytes of an id. If this scope was opened by a
        shortened name, the first use of `id` reads the whole id from the scope's first event.
        """
        if self._id is None and self._stream.whole_id is not None:
            [self._id] = whole_ids(self._log, [self.name])
            self._stream.whole_id = escape(self._id)
        return self._id

    # --- reading ---------------------------------------------------------------------------------

    @property
    def state(self) -> Map:
        """The newest state: an immutable value that you may keep."""
        return self._log.show(self._log.newest(self.name), self.name)

    @property
    def typed(self) -> S_co:
        """The newest state as a value of its schema's type; each use makes a new one.

        It is for reading: changes to the value are not stored. Fields of the state that the type
        does not have are left out of it. Raises SchemaError if the state lacks what the type needs,
        and UsageError if this program has no schema for the scope.
        """
        return cast("S_co", self._log.typed.value(self._log.newest(self.name), self.name))

    @property
    def revision(self) -> int:
        """The newest revision; 0 before the first write."""
        head = self._log.head(self.name)
        return 0 if head is None else head.revision

    @property
    def parent(self) -> Scope | None:
        """The scope in which `lookup` continues: the one given here, or the recorded one."""
        if self._parent is not None:
            return self._parent
        recorded = self._log.newest(self.name).parent
        return None if recorded is None else self._sibling(recorded)

    @property
    def subject(self) -> str | None:
        """The random id of the subject that the scope belongs to, or None.

        The events, snapshots and large values of such a scope are sealed. Erasing the subject
        makes them unreadable for good.
        """
        return self._log.subject_of(self.name)

    @property
    def life(self) -> ScopeLife:
        """When the scope was last written to and when it ends, and an audit of its use."""
        return ScopeLife(self)

    @property
    def session(self) -> ScopeSession:
        """The session that the scope holds: its id, status and export."""
        return ScopeSession(self)

    def get(self, path: Path, default: Any = None) -> Any:
        """Returns the value at a key or path of this scope, or the default; see also `lookup`."""
        return tree.get(self.state, check_path(path), default)

    def lookup(self, path: Path, default: Any = None) -> Any:
        """Returns the value here, else in the parents in turn, else in the global scope.

        Returns the default if none of them has a value at the path.
        """
        path = check_path(path)
        for scope in upwards(self):
            value = tree.get(scope.state, path, MISSING)
            if value is not MISSING:
                return value
        return default

    def at(self, moment: Moment, *, raw: bool = False) -> Map:
        """Returns the state at a revision, a checkpoint's name, a Checkpoint or a datetime.

        A negative revision counts back from the newest: -1 is the one before it. The state is
        shown at the version of this program's schema; `raw` returns it as stored.
        """
        state = self._log.at(self.name, self._revision_of(moment))
        if raw is not False and check_flag(raw, "raw"):
            return state_of(state, self.name)
        return self._log.show(state, self.name)

    def diff(self, since: Moment, until: Moment | None = None, *, raw: bool = False) -> Difference:
        """Returns what differs between two moments; `until` is now unless given.

        The result is a list of changes of the state. Its `messages` and `tasks` say what differs in
        those; its `decisions` and `facts` are those recorded between the moments. Both states are
        compared at the version of this program's schema; with `raw`, as stored.
        """
        check_flag(raw, "raw")
        revision = self.revision if until is None else self._revision_of(until)
        return self._difference(self._revision_of(since), revision, raw=raw, is_now=until is None)

    def _difference(
        self, since: int, until: int, *, raw: bool = False, is_now: bool = False
    ) -> Difference:
        old = self._log.at(self.name, since)
        new = self._stream.unended(until) if is_now else self._log.at(self.name, until)
        old_root, new_root, is_same = (old.root, new.root, True) if raw else self._both(old, new)
        changes = [
            Change(self.name, until, change.path, change.old, change.new)
            for change in tree.diff(old_root, new_root, is_same_stream=is_same)
        ]
        return Difference(self, self._context, since, until, changes)

    def _both(self, old: StreamState, new: StreamState) -> tuple[Map, Map, bool]:
        """Returns two states at one version of the schema, and whether both are as stored."""
        typed = self._log.typed
        is_stored = typed.is_current(old, self.name) and typed.is_current(new, self.name)
        return typed.shown(old, self.name), typed.shown(new, self.name), is_stored

    def history(
        self,
        *,
        after: int = 0,
        until: int | None = None,
        type: str | type[Any] | None = None,
        actor: str | None = None,
        source: str | None = None,
        trust: str | None = None,
        removed: bool = False,
    ) -> Iterator[Event]:
        """Yields the scope's events, oldest first; a fork's past is included.

        `after` and `until` are revisions: the range begins after the one and ends with the other.
        `type` is the name of a type; for your own events (`record`) also its class, and the class
        `OwnEvent` selects all of these. `actor`, `source` and `trust` select by what the writer
        said. Events of earlier lives, up to the newest removal, are left out unless `removed`.
        """
        wanted = event_filter(type, actor, source, trust)
        last = self.revision if until is None else check_whole(until, "until")
        after = check_whole(after, "after")
        if not check_flag(removed, "removed"):
            after = max(after, self._life())
        while after < last:
            records = self._log.records(self.name, after=after, until=last, limit=HISTORY_CHUNK)
            if not records:
                return
            for record in records:
                if wanted.matches(record):
                    yield self._log.event(record)
            after = records[-1].revision

    def states(
        self,
        *,
        after: int = 0,
        until: int | None = None,
        newest_first: bool = False,
        removed: bool = False,
    ) -> Iterator[StateAt]:
        """Yields the state of each revision with its event; a fork's past is included.

        Each state is what `at` returns for that revision. All of them come from one fold, so the
        whole costs about as much as reading the events. Earlier lives are left out unless
        `removed`.
        """
        after = check_whole(after, "after")
        return past.states(
            self._log,
            self.name,
            after=after if check_flag(removed, "removed") else max(after, self._life()),
            until=None if until is None else check_whole(until, "until"),
            newest_first=check_flag(newest_first, "newest_first"),
        )

    def checkpoints(
        self, *, after: str | None = None, limit: int | None = PAGE_SIZE
    ) -> Page[Checkpoint]:
        """Returns a page of the checkpoints, newest first; the same name may occur again.

        Pass the cursor of a page as `after` to get the next page.
        """
        began = self._life()
        found = (
            Checkpoint(found.name, self.name, found.revision, event.to_datetime(found.time))
            for stream, until in self._log.ancestry(self.name, self.revision)
            for found in self._log.checkpoints(stream)
            if began < found.revision <= until and found.name not in event.OUR_NAMES
        )
        return cut("checkpoints", found, lambda one: (-one.revision,), after=after, limit=limit)

    def _revision_of(self, moment: Moment) -> int:
        """Returns the revision of a moment; a name stands for its newest checkpoint."""
        if isinstance(moment, Checkpoint):
            return moment.revision
        if isinstance(moment, int) and not isinstance(moment, bool):
            if not -1 << 63 < moment < 1 << 63:
                raise UsageError(f"there is no revision {show_value(moment)}: no stream is so long")
            if moment >= 0:
                return moment
            newest = self.revision
            if newest and newest + moment < 0:
                raise NotFoundError(
                    f'scope "{self.name}" has no revision {moment}, counted back from its newest: '
                    f"it has 1 to {newest}"
                )
            return newest + moment
        if isinstance(moment, datetime):
            if moment.tzinfo is None:
                raise UsageError("a datetime needs a time zone: use datetime.now(UTC)")
            return self._log.revision_at_time(self.name, event.from_datetime(moment))
        if not isinstance(moment, str):
            raise UsageError(
                "a moment is a revision, a checkpoint's name, a Checkpoint or a datetime, "
                f"found {show_value(moment)}"
            )
        began = self._life()
        for stream, until in self._log.ancestry(self.name, self.revision):
            for found in self._log.find(stream, checkpoint=moment):
                if began < found.revision <= until:
                    return found.revision
        raise NotFoundError(
            f'scope "{self.name}" has no checkpoint "{moment}"',
            hint="checkpoints() lists those that there are",
        )

    # --- writing ---------------------------------------------------------------------------------

    def set(
        self,
        path: Path,
        value: Any,
        *,
        diff: bool = False,
        if_absent: bool = False,
        subject: str | None = None,
        ttl_s: Duration | None = None,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        """Puts a value at a key (text) or path (tuple) and returns the new revision.

        `diff` stores only the difference to the present value: for a list that grew, its new items.

        `if_absent` puts the value only if nothing is there yet. Of several concurrent writers one
        sets it, and none is refused. Both options write no event if there is nothing to change,
        unless `expected`, `key` or `checkpoint` ask for one.

        `subject` makes the value that subject's, even in a scope that others share: it is sealed as
        a whole with the subject's key, and reads as ERASED after the subject was erased.

        `ttl_s` gives the value an end: so long from now it disappears for every reader, except at
        older revisions, and retention removes its bytes later. Setting the value again gives it a
        new end, or none. Changes below it and appends to it do not move the end.
        """
        if subject is None:
            op = tree.set_op(path, value)
        else:
            op = codec.for_subject(partial(tree.set_op, path, value))
        ttls: Ttls = ()
        if if_absent is not False and check_flag(if_absent, "if_absent"):
            check_alone("if_absent", diff=diff, ttl_s=ttl_s)
            return self._set_if_absent(op, subject, expected, key, checkpoint)
        if ttl_s is not None:
            check_ends_alone(diff=diff)
            ttls = tuple(check_key_ttl([op], ttl_s).items())
        elif (
            diff is not False and check_flag(diff, "diff") and subject is None and not is_replayed()
        ):
            return self._set_difference(op, expected, key, checkpoint)
        return self._change((op,), expected, key, checkpoint, subject, ttls)

    def update(
        self,
        values: Mapping[str, Any],
        *,
        replace: bool = False,
        subject: str | None = None,
        ttl_s: Duration | None = None,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        """Sets several keys in one event and returns the new revision.

        With `replace` the values become the whole state; only the difference to the present state
        is stored. `subject` and `ttl_s` apply to each value, as in `set`.
        """
        if replace is not False and check_flag(replace, "replace"):
            check_alone("replace", subject=subject, ttl_s=ttl_s)
            return self.set(
                (), values, diff=True, expected=expected, key=key, checkpoint=checkpoint
            )
        if subject is None:
            ops = update_ops(values)
        else:
            ops = codec.for_subject(partial(update_ops, values))
        ttls = () if ttl_s is None else tuple(check_key_ttl(ops, ttl_s).items())
        return self._change(ops, expected, key, checkpoint, subject, ttls)

    def delete(
        self,
        path: Path,
        *,
        missing_ok: bool = False,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        """Deletes the value at a key or path and returns the new revision.

        Raises UsageError if nothing is there. With `missing_ok` it writes nothing then, unless
        `expected`, `key` or `checkpoint` ask for an event.
        """
        op = tree.delete_op(path)
        if missing_ok is not False and check_flag(missing_ok, "missing_ok"):
            return self._delete_if_there(op, expected, key, checkpoint)
        return self._change([op], expected, key, checkpoint)

    def append(
        self,
        path: Path,
        item: Any,
        *,
        subject: str | None = None,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        """Appends to the list at a key or path and returns the new revision.

        The list is made if nothing is there. Concurrent appends do not conflict: all of them are
        kept, in some order. With `subject` the item is sealed for that subject, as in `set`.
        """
        if subject is None:
            op = tree.append_op(path, item)
        else:
            op = codec.for_subject(partial(tree.append_op, path, item))
        return self._change([op], expected, key, checkpoint, subject)

    def increment(
        self,
        path: Path,
        by: int | float = 1,
        *,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        """Adds to the number at a key or path (0 if absent) and returns the new revision.

        Concurrent increments do not conflict.
        """
        op = tree.increment_op(path, by)
        return self._change([op], expected, key, checkpoint)

    def checkpoint(self, name: str, *, expected: int | None = None) -> Checkpoint:
        """Names the state as it is now, by an event; `checkpoint=` of a write names that write."""
        name = check_name(name, "checkpoint name")
        result = self._commit(self._stream.checkpoint_write(name, expected, None))
        after = result.after[0]
        return Checkpoint(name, self.name, after.revision, event.to_datetime(after.time))

    @overload
    def edit(self, *, key: str | None = None, checkpoint: str | None = None) -> Edit: ...
    @overload
    def edit(
        self,
        function: Callable[[Draft], object],
        *,
        retries: int = RETRIES,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int: ...
    def edit(
        self,
        function: Callable[[Draft], object] | None = None,
        *,
        retries: int = RETRIES,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> Edit | int:
        """Gives you a draft of the state to change, and commits it if nobody else wrote meanwhile.

        `with scope.edit() as draft:` raises ConflictError if somebody did. `scope.edit(function)`
        then calls `function(draft)` again on the newer state, up to `retries` times, and returns
        the new revision. An edit that keeps losing gets a turn: other writers in this process wait
        for it, and so do edits in other processes. A block or function that raises writes nothing.
        """
        if function is None:
            return Edit(self, key=key, checkpoint=checkpoint)
        check_call(function, "what edit is given")

        def attempt() -> int:
            edit = Edit(self, key=key, checkpoint=checkpoint)
            with edit as draft:
                function(draft)
            return edit.revision

        worker = self._context.lease_keeper.worker
        return persist(self._log, worker, check_whole(retries, "retries"), attempt)

    def restore(
        self, to: Moment, *, expected: int | None = None, messages: bool = True
    ) -> Restored:
        """Brings back an earlier moment as a new revision; no event is removed or rewritten.

        State, messages and tasks go back together; with `messages=False` the messages stay.
        Decisions and facts always stay, because the world does not go back. Returns the new
        revision, as an int whose `changes` say what changed, and whose `decisions` and `facts` are
        those recorded since that moment.
        """
        check_flag(messages, "messages")
        revision = self._revision_of(to)
        if revision < (began := self._life()):
            raise NotFoundError(
                f'revision {revision} of scope "{self.name}" is of an earlier life, which was '
                f"removed at revision {began}",
                hint=f"at({revision}) reads it; set what you need of it again",
            )
        tasks = partial(restore_tasks, self._context, self.name, revision)
        payload_of = partial(restored_payload, undo=not messages)
        return self._restore(revision, expected, payload_of, tasks)

    def _restore(
        self,
        revision: int,
        expected: int | None,
        payload_of: Callable[[int, bytes], bytes],
        tasks: Callable[[], TaskRestore | None],
    ) -> Restored:
        """Brings a state back with one event; `tasks` says what becomes of the tasks."""
        target = self._log.at(self.name, revision)
        state_of(target, self.name)
        for _ in range(RESTORE_RETRIES):
            now = self._log.newest(self.name)
            way = self._way_back(now, target)
            ops = tuple(self._log.blobs.spill(op, self.name) for op in way)
            payload = payload_of(revision, tree.encode_ops(ops))
            guard = now.revision if expected is None else expected
            write = self._stream.write((NewEvent(event.RESTORED, payload, ops),), guard)
            try:
                made = self._commit_restored(write, tasks())
                return Restored(made, self, guard, revision)
            except ConflictError as error:
                if expected is not None:
                    raise
                _logger.debug("restore is tried again: %s", error)
        raise self._contended("restored")

    def _way_back(self, now: StreamState, target: StreamState) -> list[Op]:
        """Returns the ops that bring an older state back, except for values with an end."""
        if target.ends:
            root = tree.held_over(target.root, target.ends, now.root, now.ends)
            target = replace(target, root=root)
        start, end, is_same = self._both(now, target)
        return tree.diff_ops(start, end, is_same_stream=is_same)

    def _contended(self, what: str) -> UsageError:
        return UsageError(
            f'scope "{self.name}" changed {RESTORE_RETRIES} times while it was being {what}: '
            "nothing was written",
            hint="stop its other writers first",
        )

    def undo(self) -> Restored:
        """Takes back the newest change, which may itself be an undo; returns the new revision.

        A change of the state is taken back alone. A restore is taken back completely: the messages
        and tasks that it took away return. What was said and done since stays. A removal is taken
        back completely too, marks included, as long as nothing was written since: the first write
        begins a new life. Undoing that undo removes the scope again, if nothing else was written.
        """
        for _ in range(RESTORE_RETRIES):
            newest = self.revision
            if newest and newest == self._log.life(self.name, newest):
                try:
                    return self._return(newest)
                except ConflictError as error:
                    _logger.debug("undo of a removal is tried again: %s", error)
                    continue
            change, is_restore = self._log.newest_change(self.name, newest)
            if self._log.record(self.name, change).type == event.MIGRATED:
                raise UsageError(
                    f'the newest change of scope "{self.name}", at revision {change}, is a '
                    "migration to another version of its schema: it cannot be undone",
                    hint=f"restore({change - 1}) brings back what was there, upgraded; a version "
                    "falls by migrate(to=…) alone",
                )
            if is_restore and event.life_before(self._log.record(self.name, change)) is not None:
                if change != newest:
                    raise NotFoundError(
                        f'scope "{self.name}" has no change to undo since its removal was taken '
                        f"back at revision {change}, and more was recorded since",
                        hint="remove() removes it again, with what was recorded",
                    )
                try:
                    return Restored(self.remove(expected=newest), self, newest, newest - 1)
                except ConflictError as error:
                    _logger.debug("undo of a return is tried again: %s", error)
                    continue
            undoes = change if is_restore else 0
            tasks = partial(undo_restore_of_tasks, self._context, self.name, undoes)
            payload_of = partial(restored_payload, undo=True, undoes=undoes)
            try:
                return self._restore(change - 1, newest, payload_of, tasks)
            except ConflictError as error:
                _logger.debug("undo is tried again, on a newer change: %s", error)
        raise self._contended("undone")

    def _return(self, removed_at: int) -> Restored:
        """Takes back a removal, which must be the newest event."""
        [record] = self._log.records(self.name, after=removed_at - 1, until=removed_at)
        before = self._log.at(self.name, removed_at - 1)
        life = Life(before.removed_at, before.parent, before.closed_at, before.dropped)
        root = tree.lasting(before.root, before.ends)
        way = tree.diff_ops(Map(), root, is_same_stream=True)
        ops = tuple(self._log.blobs.spill(op, self.name) for op in way)
        payload = restored_payload(
            removed_at - 1, tree.encode_ops(ops), undo=True, undoes=removed_at, life=life
        )
        meta = encode_meta(Meta(schema=before.version)) if before.version else None
        write = StreamWrite(
            self.name,
            (NewEvent(event.RESTORED, payload, ops, meta=meta),),
            removed_at,
            checkpoint=event.LIFE,
        )
        proposed = ProposedCommit((write,), marks=event.marks_before(record))
        return Restored(self._log.commit(proposed).revision, self, removed_at, removed_at - 1)

    def remove(self, *, expected: int | None = None) -> int:
        """Removes the scope, as if it had never been, and returns the revision of the removal.

        State, messages, tasks, decisions, facts, checkpoints and keys are gone for every reader,
        and `scopes()` no longer lists it. The next write begins a new life of the name. Its
        revisions continue the old numbers, so a writer that still expects a revision of the old
        life is refused. Until then `undo` takes the removal back. No bytes are deleted:
        `at(revision)` and `history(removed=True)` read the old life until retention removes it, and
        forks keep what they refer to.

        Raises NotFoundError if there is nothing to remove, and UsageError if something is under
        way, which it names: an open decision, an unfinished run, a live worker's session, turn or
        task, or a lease of the scope's name.
        """
        self._stream.write((), expected)  # raises if this scope is not for its user to write
        for _ in range(CLOSE_RETRIES):
            now = self._log.newest(self.name)
            if now.is_absent:
                raise NotFoundError(f'scope "{self.name}" is not there: there is nothing to remove')
            guard = now.revision if expected is None else expected
            try:
                with removal.leased(self._context, self.name) as fence:
                    return self._remove_at(guard, fence)
            except ConflictError as error:
                if expected is not None:
                    raise
                _logger.debug("remove is tried again: %s", error)
            except LeaseLostError as error:
                if error.lease != self.name:
                    raise
                _logger.debug("remove is tried again: %s", error)
        raise UsageError(
            f'scope "{self.name}" changed {CLOSE_RETRIES} times while it was being removed',
            hint="stop its other writers first",
        )

    def _remove_at(self, revision: int, fence: Fence | None) -> int:
        """Removes the scope at a revision, if nothing is under way there."""
        # The commit expects that revision: what another writer begins after this check makes it a
        # conflict, so nothing can slip in between the check and the removal.
        removal.check_nothing_under_way(self._context, self.name)
        new_event, marks = removal.removal(self._context, self.name)
        write = StreamWrite(self.name, (new_event,), revision, checkpoint=event.LIFE)
        more = removal.along(self._context, self.name)
        return self._log.commit(ProposedCommit((write, *more), fence=fence, marks=marks)).revision

    def fork(self, id: str, *, at: Moment | None = None) -> Self:
        """Returns a new scope of this level that begins at a moment of this one; now unless given.

        The past is shared by reference: nothing is copied, whatever its size.
        """
        _, stored = self._levels.check_scope(self.level, id)
        revision = self.revision if at is None else self._revision_of(at)
        if revision == 0 or (at is None and revision == self._life()):
            raise UsageError(f'scope "{self.name}" has no events yet: there is nothing to fork')
        self._log.check_known(self.name, revision)
        fork = cast("Self", self._like(self.level, stored, self._parent, id))
        payload = event.forked_payload(self.name, revision, fork._stream.whole_id)
        write = StreamWrite(
            fork.name, (NewEvent(event.FORKED, payload),), origin=(self.name, revision)
        )
        self._log.commit(ProposedCommit((write,)))
        return fork

    def close(
        self, *, keep: bool | None = None, export: str | os.PathLike[str] | None = None
    ) -> int:
        """Ends the scope, so that it takes no more writes, and returns the new revision.

        First its open decisions and standing orders are closed as abandoned, each in a separate
        commit, tasks that are not closed are cancelled, and working memory kept for the session is
        dropped. With `keep=False` the state is dropped too: reading it raises ClosedError, while
        earlier revisions can be read until retention removes them. With `keep=None` the policy of
        the level decides (`retention.on_close`). `export` names a file to which the session is
        written first, exactly as it is when the scope is closed: its status is "completed".
        """
        if keep is None:
            stored = kept_when_closed(self._context, self.level)
            keep = self._levels.keeps(self.level) if stored is None else stored
        check_flag(keep, "keep")
        for _ in range(CLOSE_RETRIES):
            Decisions(self._context).abandon(self, "the scope was closed")
            cancel_tasks(self._context, self, "the scope was closed")
            if keep:
                self.memory.end("session")
            # The revision is read before the check: what another writer opened before it is seen
            # by the check, and what it opens after it makes the commit a conflict. So nothing is
            # left open in a closed scope, where it could never be closed.
            revision = self.revision
            if Decisions(self._context).has_open(self.name) or has_open_tasks(
                self._context, self.name
            ):
                continue
            if export is not None:
                # What comes between makes the commit a conflict.
                self.session._export(export, "completed")
            new_event = NewEvent(CLOSED, codec.encode_plain({"keep": keep}))
            write = self._stream.write((new_event,), revision)
            marks = marks_at_close(self._context, self.name, keep=keep)
            try:
                result = self._log.commit(ProposedCommit((write,), marks=marks))
            except ConflictError as error:
                _logger.debug("close is tried again: %s", error)
                continue
            return result.revision
        raise UsageError(
            f'scope "{self.name}" changed {CLOSE_RETRIES} times while it was being closed',
            hint="stop its other writers first",
        )

    def subscribe(
        self,
        subscriber: Subscriber,
        *,
        on_error: OnError | None = None,
    ) -> Subscribed:
        """Calls `subscriber(change)` for every change that this process makes in this scope.

        It does not matter by which call or handle. One thread of the store makes the calls, after
        the writer has its answer, in the order of positions. If a subscriber raises, the error is
        logged and passed to `on_error(error, change)`, and the other subscribers are still called.
        Use `follow` for the changes of other processes. Returns a function that ends the
        subscription; its `drain()`, and `close()` of the store, wait until all changes so far were
        delivered.
        """
        check_call(subscriber, "a subscriber")
        if on_error is not None:
            check_call(on_error, "on_error")
        return self._log.subscribe(self.name, Subscription(subscriber, on_error))

    # --- decisions -------------------------------------------------------------------------------

    def decide(
        self,
        decision: str,
        *,
        because: str | None = None,
        action: str | None = None,
        verify: object = None,
        act: object = None,
        alternatives: Sequence[str] = (),
        links: Sequence[Link | str | tuple[str, str]] = (),
        call: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        key: str | None = None,
        priority: int | str = 0,
        supersedes: str | None = None,
        standing: bool = False,
        owner: str | None = None,
        more: Mapping[str, Any] | None = None,
        if_exists: IfExists = "raise",
    ) -> OpenDecision:
        """Records a decision before its act; durable when it returns.

        `with scope.decide(…) as d:` is the block of the act, and `d.outcome(…)` closes the
        decision. `verify` and `act` are functions registered with `@holdfast.verifier` and
        `@holdfast.act`, or their names: after a crash the first says whether the act was done, and
        the second does it again if it was not. A `standing` order counts until it is superseded.
        With the same `key` a decision is made once. `owner` names a person who answers for it, so
        no process has to live for it. `more` holds fields of your own.

        `call` is the id of the tool call that the decision belongs to, and `arguments` are what the
        tool is called with; `verify` and `act` find them in the decision. Each call is decided
        once. The commit that closes the decision also writes the result of the call, as a message
        of the role `tool`.
        """
        return Decisions(self._context).open(
            self,
            decision,
            because=because,
            action=action,
            verify=verify,
            act=act,
            alternatives=alternatives,
            links=links,
            call=call,
            arguments=arguments,
            key=key,
            priority=priority,
            supersedes=supersedes,
            standing=standing,
            owner=owner,
            more=more,
            if_exists=if_exists,
        )

    @property
    def decisions(self) -> ScopeDecisions:
        """The decisions, standing orders and catches of this scope."""
        return ScopeDecisions(self)

    # --- facts -----------------------------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        """The facts: claims about the world, how to verify them, and until when they count."""
        return Facts(self._context, self)

    # --- messages --------------------------------------------------------------------------------

    @property
    def messages(self) -> Messages:
        """The messages: a sequence to read from either end, with the methods that change it."""
        return Messages(self, self._context)

    def say(self, content: str, *, role: str = "user", subject: str | None = None) -> Message:
        """Adds a message; durable when it returns. `messages.add` has more options."""
        return self.messages.add(role, content, subject=subject)

    # --- tasks -----------------------------------------------------------------------------------

    @property
    def tasks(self) -> Tasks:
        """The tasks of this scope."""
        return Tasks(self._context, self)

    # --- working memory --------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        """The working memory: files, notes, results, errors and settings that an agent keeps."""
        return Memory(self._context, self, upwards)

    # --- events of your own ----------------------------------------------------------------------

    def record(
        self,
        event: object,
        data: Any = None,
        *,
        refs: Iterable[object] = (),
        unchecked: bool = False,
        subject: str | None = None,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> OwnEvent:
        """Records an event of your own type and returns it; durable when it returns.

        `event` is a value of a class that `@holdfast.event` declared. It can also be such a class
        or the name of its type; then `data` is a mapping of its fields. `refs` says what the event
        refers to: `decision:…`, `task:…`, the id of a git commit, a path, a URL, another event. The
        event changes no state. Raises SchemaError if the data does not fit the class, and
        NotFoundError if the type is unknown; with `unchecked` any data is recorded unchecked. With
        `subject` its data is sealed with that subject's key, and reads as ERASED after the subject
        was erased.
        """
        name = None if subject is None else check_name(subject, "subject")
        seal = None if name is None else self._log.seal_for(self.name, name)
        prepared = own_events.prepare(self._log, self.name, event, data, refs, unchecked, seal)
        key = key_for(key, seal)
        write = self._stream.write((prepared,), expected, key, checkpoint)
        return own_events.recorded(self._log, write, self._commit(write))

    # --- like a dict -----------------------------------------------------------------------------

    def __getitem__(self, key: str) -> Any:
        return self.state[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        self.delete(key)

    def __contains__(self, key: object) -> bool:
        return key in self.state

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def keys(self) -> KeysView[str]:
        """The keys of the newest state; with `[]` this makes `dict(scope)` and `**scope` work."""
        return self.state.keys()

    # --- parts -----------------------------------------------------------------------------------

    def _life(self) -> int:
        """Returns the revision after which the present life begins; 0 if it is the first."""
        return self._log.life(self.name)

    def _change(
        self,
        ops: Sequence[Op],
        expected: int | None,
        key: str | None,
        checkpoint: str | None,
        subject: str | None = None,
        ttls: Ttls = (),
    ) -> int:
        of: tuple[str, ...] = ()
        if subject is not None:
            ops, seal = self._stream.sealed_ops(ops, subject)
            key, of = key_for(key, seal), () if seal is None else (seal.subject,)
        write = self._stream.change_write(ops, expected, key, checkpoint, (), of, ttls)
        return self._commit(write).after[0].revision

    def _set_if_absent(
        self,
        op: Op,
        subject: str | None,
        expected: int | None,
        key: str | None,
        checkpoint: str | None,
    ) -> int:
        """Does what `set` does with `if_absent`: an existing value is left alone."""
        if expected is None and key is None and checkpoint is None and not is_replayed():
            now = self._log.newest(self.name)
            root = self._log.typed.shown(now, self.name)
            if not now.closed_at and tree.locate(root, op.keys) is not MISSING:
                return now.revision
        of: tuple[str, ...] = ()
        if subject is not None:
            (op,), seal = self._stream.sealed_ops((op,), subject)
            key, of = key_for(key, seal), () if seal is None else (seal.subject,)
        write = self._stream.change_write((), expected, key, checkpoint, (op,), of)
        return self._commit(write).revision

    def _set_difference(
        self, op: Op, expected: int | None, key: str | None, checkpoint: str | None
    ) -> int:
        """Does what `set` does, with ops that store only the difference.

        The ops are right only if the value at the path is still the one that they were made from,
        so a guard covers that path. After `DIFFERENCE_RETRIES` losses the whole value is stored,
        which is right on any state: no writer starves. A repetition with the same key must send the
        same bytes, so it is computed from the state before the event that has the key.
        """
        for _ in range(DIFFERENCE_RETRIES):
            found = [] if key is None else self._log.find(self.name, key=check_name(key, "key"))
            if found:
                base = self._log.at(self.name, found[0].revision - 1)
            else:
                base = self._log.newest(self.name)
                if expected is not None and check_expected(expected) != base.revision:
                    raise conflict(self.name, expected, base.revision)
            ops = tree.set_difference(self._log.typed.shown(base, self.name), op)
            if not ops and key is None and checkpoint is None and not base.closed_at:
                return base.revision
            place = op.keys if self._log.typed.is_current(base, self.name) else ()
            guards = () if found or ops == [op] else (ReadGuard(self.name, base, (place,)),)
            try:
                write = self._stream.change_write(ops, expected, key, checkpoint)
                return self._commit(write, guards).revision
            except ConflictError as error:
                if expected is not None:
                    raise
                _logger.debug("what differs is looked for again: %s", error)
            except UsageError:
                if key is None or found or not self._log.find(self.name, key=key):
                    raise
                _logger.debug('what was written with key "%s" meanwhile is repeated', key)
        return self._change((op,), expected, key, checkpoint)

    def _delete_if_there(
        self, op: Op, expected: int | None, key: str | None, checkpoint: str | None
    ) -> int:
        """Does what `delete` does with `missing_ok`; a guard covers the value that it found."""
        refuse_in_body("delete(missing_ok=True)")
        for _ in range(RESTORE_RETRIES):
            found = [] if key is None else self._log.find(self.name, key=check_name(key, "key"))
            if found:
                base = self._log.at(self.name, found[0].revision - 1)
            else:
                base = self._log.newest(self.name)
            is_there = tree.locate(base.root, op.keys) is not MISSING
            is_asked = key is not None or checkpoint is not None or expected is not None
            if not is_there and not is_asked and not base.closed_at:
                return base.revision
            guards = (ReadGuard(self.name, base, (op.keys,)),) if is_there and not found else ()
            write = self._stream.change_write([op] if is_there else [], expected, key, checkpoint)
            try:
                return self._commit(write, guards).revision
            except ConflictError as error:
                if expected is not None:
                    raise
                _logger.debug("what is to be deleted is looked for again: %s", error)
        raise self._contended("changed")

    def _commit_restored(self, write: StreamWrite, back: TaskRestore | None) -> int:
        """Commits a restore together with the events that it causes for tasks."""
        if back is None:
            return self._commit(write).revision
        write = replace(write, new_events=(*write.new_events, back.new_event), key=back.key)
        result = keyed_item.append(self._log, back.events, back.number, write, marks=back.marks)
        return result.revision

    def _commit(self, write: StreamWrite, guards: tuple[ReadGuard, ...] = ()) -> CommitResult:
        return self._log.commit(ProposedCommit((write,), guards=guards))

    def _like(
        self, level: str, id: str | None, parent: Scope | None, given: str | None = None
    ) -> Scope:
        """Returns another scope of the same store."""
        return scope_class(level)(
            self._context,
            level,
            id,
            levels=self._levels,
            parent=parent,
            given=given,
        )

    def _sibling(self, name: str) -> Scope:
        return self._like(*split_name(name), None)


# The scopes of the four built-in levels: what tells them apart, for readers and type checkers.


class ConversationScope(Scope[S_co]):
    """A conversation's scope."""

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self.id or ""


class WorkflowScope(Scope[S_co]):
    """A workflow's scope."""

    @property
    def workflow_id(self) -> str:
        """The id of the workflow's execution."""
        return self.id or ""


class TeamScope(Scope[S_co]):
    """A team's scope."""

    @property
    def team_id(self) -> str:
        """The id of the team."""
        return self.id or ""


class GlobalScope(Scope[S_co]):
    """The global scope."""

    @property
    def is_global(self) -> Literal[True]:
        """True: there is one such scope for the whole application."""
        return True


_CLASSES: dict[str, type[Scope]] = {
    CONVERSATION: ConversationScope,
    WORKFLOW: WorkflowScope,
    TEAM: TeamScope,
    GLOBAL: GlobalScope,
}


def upwards(scope: Scope) -> Iterator[Scope]:
    """Yields a scope and those above it: its parents in turn, and the global scope."""
    above: Scope | None = scope
    seen: set[str] = set()
    while above is not None:
        yield above
        if above.level == GLOBAL:
            return
        seen.add(above.name)
        above = above.parent
        if above is not None and above.name in seen:
            raise CorruptError(f'scope "{above.name}" stands above itself', stream=above.name)
    yield scope._sibling(GLOBAL)


def scope_within(scope: Scope, context: RecordContext) -> Scope:
    """Returns a scope as a joint commit sees it; its writes are visible only after the commit."""
    level, id = split_name(scope.name)
    own = type(scope)(
        context, level, id, levels=scope._levels, parent=scope._parent, given=scope._id
    )
    own._stream.expires = scope._stream.expires
    return own


def scope_class(level: str) -> type[Scope]:
    """Returns the class of a level's scopes."""
    return _CLASSES.get(level, Scope)


class ScopeLife:
    """When a scope was last written to and when it ends, and an audit of its use."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._log = scope._log
        self._name = scope.name

    def __repr__(self) -> str:
        return f"<ScopeLife of {self._name}>"

    @property
    def updated_at(self) -> datetime | None:
        """When the newest event was written; None before the first one and after a removal."""
        head = self._log.head(self._name)
        if head is None or self._log.life(self._name) == head.revision:
            return None
        return event.to_datetime(head.time)

    @property
    def is_closed(self) -> bool:
        """Whether the scope was closed and takes no more writes."""
        return self._log.newest(self._name).closed_at > 0

    @property
    def expires_at(self) -> datetime | None:
        """When the scope ends by itself; None if it lasts, or has not begun yet.

        If the end slides, each write and `touch` move it.
        """
        ends = self._log.newest(self._name).ends_us
        return event.to_datetime(ends) if ends else None

    def ends_at(self, path: Path) -> datetime | None:
        """Returns when the value at a key or path ends by itself, or None.

        That is the end of the value or of a mapping around it, whichever is earlier. None means
        that the value lasts, or that nothing is there.
        """
        ends, place = self._log.newest(self._name).ends or {}, check_path(path)
        found = [us for one, us in ends.items() if one and one == place[: len(one)]]
        if not found or tree.locate(self._scope.state, place) is MISSING:
            return None
        return event.to_datetime(min(found))

    def revision_at(self, moment: Moment) -> int:
        """Returns the revision that a moment stands for; a name stands for its newest checkpoint.

        Raises NotFoundError if there is no such checkpoint.
        """
        return self._scope._revision_of(moment)

    def touch(self) -> datetime:
        """Marks the scope as in use, so that its end slides on, and returns the new end.

        It writes an event only if a tenth of the lifetime has passed since the newest one, so it is
        cheap to call often and from many processes. Raises NotFoundError if the scope is not there,
        ExpiredError if its end has come, and UsageError if it lasts or its end is fixed.
        """
        log, name = self._log, self._name
        while True:
            head = log.head(name)
            if head is None or log.absent([name]):
                raise NotFoundError(f'there is no scope "{name}" to touch')
            lifetime = log.expiry.lifetime(name, head)
            if not lifetime.slides_us:
                raise untouchable(name, lasts=not lifetime.expires_us)
            ends = lifetime.end(head.time)
            if log.now_us(name) < ends - lifetime.slides_us + lifetime.slides_us // TOUCHES:
                return event.to_datetime(ends)
            touched = (NewEvent(event.TOUCHED, b"null"),)
            write = self._scope._stream.write(touched, head.revision)
            try:
                with unjournalled():
                    return event.to_datetime(self._scope._commit(write).after[0].ends_us)
            except ConflictError as error:  # another writer has moved the end
                _logger.debug("touch is tried again: %s", error)

    def audit(self) -> Audit:
        """Returns an audit of the state: how often each item changes, and what a block reads.

        `with scope.life.audit() as audit:` notes what is read in the block; `audit.unread()` then
        returns what was not.
        """
        return Audit(self._scope._context, self._scope)


class ScopeSession:
    """The session that a scope holds: its id, status and export."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __repr__(self) -> str:
        return f"<ScopeSession of {self._scope.name}>"

    @property
    def id(self) -> str:
        """The id of the session, which is that of the scope."""
        return self._scope.id or ""

    @property
    def status(self) -> SessionStatus:
        """The status of the session: active, completed (it was closed) or crashed.

        It is crashed if a worker died during its session or in a turn, and it was not ended since.
        """
        return status_of(self._scope._context, self._scope.name)

    def export(self, to: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Returns the session as a plain JSON document, and writes it to the file `to` if given.

        The document has messages, decisions, tool results, files and state
        (`record/session_export.py` describes each key). The file is written whole or not at all.
        """
        return self._export(to, self.status)

    def _export(self, to: str | os.PathLike[str] | None, status: SessionStatus) -> dict[str, Any]:
        decisions = Decisions(self._scope._context).list(scope=self._scope, limit=None)
        decisions = sorted(decisions, key=lambda one: one.revision)
        document = session_document(self._scope, decisions, status)
        if to is not None:
            write_session(document, to)
        return document


class ScopeDecisions:
    """The decisions, standing orders and catches of one scope: `scope.decisions`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._context = scope._context

    def __repr__(self) -> str:
        return f"<ScopeDecisions of {self._scope.name}>"

    def list(
        self,
        *,
        incomplete: bool = False,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
        before: int | None = None,
        older_than: object = None,
    ) -> Page[Decision]:
        """Returns the decisions of the scope, newest first; see `hf.decisions.list`."""
        return Decisions(self._context).list(
            incomplete=incomplete,
            scope=self._scope,
            after=after,
            limit=limit,
            before=before,
            older_than=older_than,
        )

    def recall(self, *, recent: int = 20) -> Recalled:
        """Returns the decisions that count here.

        These are all standing orders of this scope and of the scopes above it, and the `recent`
        newest decisions of this scope, newest first.
        """
        decisions = Decisions(self._context)
        orders = decisions.standing([scope.name for scope in upwards(self._scope)])
        return Recalled(orders, decisions.recent(self._scope, check_whole(recent, "recent")))

    @contextmanager
    def effect(self, name: str) -> Generator[None]:
        """Checks an effect against the policy at the beginning of its block.

        If no decision is open here, the policy ignores it, warns, or raises UndecidedError; the
        last two record a catch.
        """
        check_text(name, "an effect")
        check_effect(self._context, self._scope, name)
        yield

    def catch(
        self,
        caught: str,
        *,
        control: str = "review",
        outcome: str | None = None,
        notes: str | None = None,
        about: str | None = None,
    ) -> Catch:
        """Records by hand what a control has caught here; durable when it returns.

        `about` is a link to the thing that was caught, such as `message:…` or `commit:…`.
        """
        return log_catch(
            self._context,
            self._scope,
            caught,
            control=control,
            outcome=outcome,
            notes=notes,
            about=about,
        )

    def catches(self) -> Sequence[Catch]:
        """Returns the catches of this scope, oldest first: by hand, by policies, in messages."""
        return [*catches_in(self._context, self._scope)]

    def catch_unrecorded(self, *, last: int = 200, find: Finder | None = None) -> Sequence[Catch]:
        """Records a catch for each decision that a message states but nobody recorded.

        Looks at the `last` newest messages and returns the new catches. A sentence counts if it
        says that something was decided, unless a decision here has most of its words or links to
        the message. `find` is a function that returns what a message decides, to replace this
        heuristic. Each message is caught once.
        """
        return catch_decisions(self._context, self._scope, last=last, find=find)


class Scopes:
    """Makes the scopes of one store from their names, for every layer that needs one."""

    def __init__(self, kernel: Kernel) -> None:
        self.log = kernel.log
        self._levels = kernel.levels
        self._context = kernel.part(RecordContext)
        self._clear_ids = bool(kernel.settings is not None and kernel.settings.clear_ids)

    def scope(
        self,
        level: str,
        id: str | None = None,
        schema: type[Any] | None = None,
        *,
        parent: Scope | None = None,
        ttl_s: Duration | None = None,
        slides: bool = False,
        subject: str | None = None,
    ) -> Scope:
        """Returns a scope by level and id, or by its whole name; see `Store.scope`."""
        if id is None and isinstance(level, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            level, id = split_name(level)
            is_stored = id is not None and ESCAPE in id
        else:
            is_stored = False
        if not self._levels.has(level):
            # Another process may have registered the level. If the store is too damaged to say so,
            # scopes of the levels that are known here can still be read.
            with suppress(CorruptError):
                adopt_levels(self.log, self._levels)
        level, stored = self._levels.check_scope(level, id, is_stored=is_stored)
        if subject is not None:
            self.check_opaque(id, "scope id")
        if schema is not None:
            name = level if stored is None else f"{level}/{stored}"
            self.log.typed.check_schema(name, schema)
        return scope_class(level)(
            self._context,
            level,
            stored,
            levels=self._levels,
            parent=parent,
            ttl_s=ttl_s,
            slides=slides,
            given=None if is_stored else id,
            subject=subject,
        )

    def workflow(self, id: str) -> Scope:
        """Returns the scope of a workflow, such as the state of a run."""
        return self.scope(WORKFLOW, id)

    def check_opaque(self, id: str | None, what: str) -> None:
        """Raises UsageError if an id might reveal who a subject is."""
        if not self._clear_ids and not is_pseudonym(id or ""):
            raise UsageError(
                f"{what} {show_value(id)} may tell who the subject is, and ids are stored in "
                "clear: expected a pseudonym, a UUID or a random id",
                hint="hf.subjects.pseudonym(…) makes one from any text; Settings(clear_ids=True) "
                "allows any id",
            )

    def named(self, names: Sequence[str]) -> Sequence[Scope]:
        """Returns scopes by their stored names; whole ids of shortened names are read in one go."""
        long = [name for name in names if has_digest(name)]
        given: dict[str, str] = {}
        if len(long) > 1:
            # If one has expired or is damaged, its own `id` raises that when it is used.
            with suppress(CorruptError, ExpiredError):
                given = dict(zip(long, whole_ids(self.log, long), strict=True))
        return [
            self.scope(split_name(name)[0], given[name]) if name in given else self.scope(name)
            for name in names
        ]

    def of_id(self, id: str) -> Sequence[Scope]:
        """Returns the scopes that have this id, of whatever level, widest first."""
        scopes = [self.scope(level, id) for level in self.levels() if level != GLOBAL]
        heads = self.log.heads([scope.name for scope in scopes])
        found = [scope for scope, head in zip(scopes, heads, strict=True) if head is not None]
        removed = self.log.absent([scope.name for scope in found])
        return [scope for scope in found if scope.name not in removed]

    def levels(self) -> Sequence[str]:
        """Returns the names of all levels, including those that other processes registered."""
        adopt_levels(self.log, self._levels)
        return self._levels.names()

    def names(self) -> Sequence[str]:
        """Returns the stored names of all scopes."""
        return scope_names(self.log, self.levels(), prefix="", after="", limit=None)


class Edit:
    """The block of `with scope.edit() as draft:`."""

    def __init__(self, scope: Scope, *, key: str | None, checkpoint: str | None) -> None:
        self._scope = scope
        self._key = key
        self._checkpoint = checkpoint
        self.revision = 0

    def __enter__(self) -> Draft:
        log = self._scope._log  # pyright: ignore[reportPrivateUsage]
        base = log.newest(self._scope.name)
        self.revision, self._draft = (
            base.revision,
            Draft(log.show(base, self._scope.name), log.blobs.read),
        )
        return self._draft

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        if kind is None and self._draft.ops:
            self.revision = self._scope._change(  # pyright: ignore[reportPrivateUsage]
                self._draft.ops, self.revision, self._key, self._checkpoint
            )
        return False


# Typed protocols of the four built-in scopes: runtime-checkable, easy to fake in a test.


@runtime_checkable
class State(Protocol):
    """What every scope offers, for code that does not depend on the level."""

    @property
    def name(self) -> str:
        """Level and id, such as `conversation/ticket-7`."""
        ...

    @property
    def state(self) -> Map:
        """The newest state, frozen."""
        ...

    def get(self, path: Path, default: Any = None) -> Any:
        """Returns one value, or the default if it is not there."""
        ...

    def set(self, path: Path, value: Any) -> int:
        """Puts a value at a key or path; returns the new revision."""
        ...

    def update(self, values: Mapping[str, Any]) -> int:
        """Puts several values; returns the new revision."""
        ...


@runtime_checkable
class ConversationState(State, Protocol):
    """A conversation's state: history, messages, tool results; one agent session."""

    @property
    def session_id(self) -> str:
        """The id of the session."""
        ...


@runtime_checkable
class WorkflowState(State, Protocol):
    """A workflow's state: what its nodes share; one execution."""

    @property
    def workflow_id(self) -> str:
        """The id of the workflow's execution."""
        ...


@runtime_checkable
class TeamState(State, Protocol):
    """A team's state: what its agents share; one team session."""

    @property
    def team_id(self) -> str:
        """The id of the team."""
        ...


@runtime_checkable
class GlobalState(State, Protocol):
    """The application's state: settings, shared resources, caches."""

    @property
    def is_global(self) -> Literal[True]:
        """True: there is one for the whole application."""
        ...


@runtime_checkable
class AsyncState(Protocol):
    """What every scope of an async store offers."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> Awaitable[Map]: ...
    async def get(self, path: Path, default: Any = None) -> Any: ...
    async def set(self, path: Path, value: Any) -> int: ...
    async def update(self, values: Mapping[str, Any]) -> int: ...


def json_default(value: object) -> Any:
    """Converts a stored value for `json.dumps(value, default=json_default)`.

    States, their mappings and lists, and scopes become dicts and lists. Bytes, datetimes and other
    values that JSON cannot express become the tagged objects that they are stored as.
    """
    if isinstance(value, Scope):
        return value.state.to_dict()
    if isinstance(value, Map):
        return value.to_dict()
    if isinstance(value, List):
        return value.to_list()
    try:
        return json.loads(codec.encode(value))
    except ValueDomainError as error:
        raise TypeError(str(error)) from error

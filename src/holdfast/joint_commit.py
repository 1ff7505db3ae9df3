"""Joint commits: one commit of what several recorders record, and of changes of any state.

    with hf.commit() as tx:
        tx.scope(chat).messages.add("tool", "sent", tool_call_id="c1")
        tx.scope(chat).tasks.close(task, "sent")
        tx.scope(team).increment("sent")

Inside the block the recorders are the usual ones of the scope, but on a log that only gathers
events (`core/staging.py`). So each sees what the block has recorded so far, and refuses what it
would refuse outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from holdfast.backends.protocol import Lease, Record
from holdfast.core.commit import CommitResult, ProposedCommit, ReadGuard, StreamWrite, conflict
from holdfast.core.event import StreamState
from holdfast.core.log import WritableScope, scope_stream
from holdfast.core.meta import Meta
from holdfast.core.provenance import both
from holdfast.core.staging import GatheringLog
from holdfast.core.transaction import PendingCommit, PendingScope, of_memory
from holdfast.errors import UsageError, show_value
from holdfast.record.context import RecordContext
from holdfast.record.decisions import Decision, Decisions, OpenDecision
from holdfast.record.facts import Facts
from holdfast.record.in_run import refuse_in_body
from holdfast.record.messages import Messages
from holdfast.record.sessions import OpenTurn, end_in, go_on_after
from holdfast.record.tasks import Tasks
from holdfast.scope import Scope, scope_within

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="RecordingScope")


def _recorded(
    function: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], T]:
    """Returns a method of `Scope` that records in the joint commit instead."""

    @wraps(function)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return function(self._recorder(), *args, **kwargs)

    return call


class JointCommit(PendingCommit):
    """What `with store.commit() as tx:` returns: state, records and marks, all or nothing.

    Only the block itself sees what is recorded in it, until the commit is made.
    The ids of messages and decisions are final from the start. Revisions and times are set again
    by the commit, because another writer may have been faster with something else.
    """

    def __init__(
        self,
        context: RecordContext,
        sibling: Callable[[str], Scope],
        *,
        key: str | None,
        lease: Lease | None,
        meta: Meta | None = None,
        time: datetime | None = None,
        waits: bool = True,
    ) -> None:
        super().__init__(context.log, key=key, lease=lease, meta=meta, time=time, waits=waits)
        self._context = context
        self._sibling = sibling
        self._recording: RecordContext | None = None
        self._gathering: GatheringLog | None = None
        self._known_open: dict[str, str] = {}
        self._settled: list[Callable[[], object]] = []

    def scope(self, scope: WritableScope) -> JointScope:
        """Returns the scope as this commit will leave it, with its recorders."""
        return self._pending_scope(scope, JointScope)

    def _pending_scope(self, scope: WritableScope, kind: Callable[[JointCommit, Scope], S]) -> S:
        """Returns a scope of this commit; if it is new here, `kind` makes it."""
        known = self._scopes.get(getattr(scope, "name", ""))
        if known is None:
            known = kind(self, _check_scope(scope))
            self._scopes[known.name] = known
        return cast("S", known)

    def outcome(self, decision: OpenDecision | str, text: str, *, output: Any = None) -> Decision:
        """Closes a decision, given by its handle or id, as part of this commit."""
        decisions = Decisions(self._context_of_block())
        id = decision.id if isinstance(decision, OpenDecision) else decision
        closed = decisions.close_entry(decisions.get(id), text, output=output)
        if isinstance(decision, OpenDecision):
            self._when_durable(partial(setattr, decision, "stored", closed))
        return closed

    def _context_of_block(self) -> RecordContext:
        """Returns the context for recording inside the block; made at the first use."""
        if self._recording is None:
            refuse_in_body("recording in a joint commit")
            self._gathering = GatheringLog(self._context.log, self._key)
            self._recording = self._context.kernel.over(self._gathering).part(RecordContext)
            self._recording.policy_log = self._context.policy_log
            self._known_open = dict(self._context.open_decisions)
            self._recording.open_decisions.update(self._known_open)
            self._recording.tables.begin_with(self._context.tables)
        return self._recording

    def _when_durable(self, settle: Callable[[], object]) -> None:
        """Registers a call to make once the commit is durable; it is dropped if that fails."""
        self._settled.append(settle)

    def _recorded_in(self, scope: Scope) -> Scope:
        """Returns a scope whose recorders record in this commit."""
        return scope_within(scope, self._context_of_block())

    def _joined(
        self, stream: str, write: StreamWrite | None, guard: int | None
    ) -> StreamWrite | None:
        """Returns the write to a stream, with the events that were recorded there added."""
        if self._gathering is None:
            return write
        return self._gathering.joined(stream, write, guard)

    def _guard(self, stream: str, expected: int | None) -> int | None:
        """Returns the revision that a stream must be at; raises ConflictError if two differ.

        The caller may expect one, and what was recorded may depend on one.
        """
        base = None if self._gathering is None else self._gathering.guard(stream)
        if base is None or expected in (None, base):
            return expected if base is None else base
        raise conflict(stream, base, expected or 0)

    def _proposed(self) -> ProposedCommit | None:
        if self._gathering is not None:
            self._gathering.end()
            for stream in self._gathering.streams_gathered():
                if stream not in self._scopes:  # an item that is in another scope
                    self._scopes[stream] = RecordingScope(self, self._sibling(stream))
            self._marks = {**self._gathering.gathered_marks, **self._marks}
        return super()._proposed()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        if kind is not None:
            self._drop()
        return super().__exit__(kind)

    def _drop(self) -> None:
        """Ends the block without a commit: what was recorded in it is dropped."""
        if self._gathering is not None:
            self._gathering.end()

    def _finish(self, proposed: ProposedCommit, result: CommitResult) -> None:
        super()._finish(proposed, result)
        if self._gathering is None or self._recording is None:
            return
        for write, after in zip(proposed.writes, result.after, strict=True):
            if self._gathering.gathered_events(write.stream):
                records = self._records(write, after, result)
                self._gathering.place(write.stream, records)
        self._recording.settled = self._context
        opened, known = self._recording.open_decisions, self._known_open
        for id in known.keys() - opened.keys():
            self._context.open_decisions.pop(id, None)
        self._context.open_decisions.update(
            {id: stream for id, stream in opened.items() if id not in known}
        )
        for settle in self._settled:
            settle()

    def _records(
        self, write: StreamWrite, after: StreamState, result: CommitResult
    ) -> Sequence[Record]:
        """Returns the events of a write as they were stored.

        If the commit repeats an earlier one with the same key, they are read from the store.
        """
        write = result.written(write)
        count, last = len(write.new_events), after.revision
        if result.repeated:
            records = self._log.records(write.stream, after=last - count, until=last)
        else:
            actor, said = self._log.provenance
            meta = both(said, self._meta)
            records = [
                Record(
                    write.stream, number, after.time, one.type, actor, one.payload, b"",
                    one.key, position=result.position, meta=meta,
                )
                for number, one in enumerate(write.new_events, last - count + 1)
            ]  # fmt: skip
        return records


class RecordingScope(PendingScope):
    """One scope inside a joint commit: what is recorded there, and then its change of state."""

    def __init__(self, joint: JointCommit, scope: Scope) -> None:
        super().__init__(joint._context.log, scope)
        self._joint = joint
        self._own = scope
        self._recorded: Scope | None = None

    def _recorder(self) -> Scope:
        if self._recorded is None:
            self._recorded = self._joint._recorded_in(self._own)
        return self._recorded

    def _write(self, expected: int | None, key: str | None) -> StreamWrite | None:
        return self._joint._joined(self.name, super()._write(expected, key), expected)

    def _guards(self) -> tuple[int | None, ReadGuard | None]:
        expected, guard = super()._guards()
        return self._joint._guard(self.name, expected), guard

    def _let_go_on(self, turn: OpenTurn) -> OpenTurn:
        """Returns a turn that begins in this commit and may continue after it."""
        self._joint._when_durable(partial(go_on_after, turn, self._own))
        return turn

    def _end_turn(self, turn: OpenTurn) -> None:
        """Ends a turn of this conversation in this commit."""
        self._joint._when_durable(end_in(turn, self._recorder().messages))


def recorder_of(scope: RecordingScope) -> Scope:
    """Returns the scope whose recorders record in a joint commit."""
    return scope._recorder()


class JointScope(RecordingScope):
    """One scope inside a joint commit: its state, and its recorders.

    What is recorded comes before the change of the state; each keeps its own order.
    """

    @property
    def messages(self) -> Messages:
        """The messages as the commit will leave them; see `Scope.messages`."""
        return self._recorder().messages

    @property
    def tasks(self) -> Tasks:
        """The tasks as the commit will leave them; see `Scope.tasks`."""
        return self._recorder().tasks

    @property
    def facts(self) -> Facts:
        """The facts as the commit will leave them; see `Scope.facts`."""
        return self._recorder().facts

    decide = _recorded(Scope.decide)
    record = _recorded(Scope.record)

    def turn(self) -> OpenTurn:
        """Returns a turn that begins in this commit and may continue after it."""
        return self._let_go_on(self._recorder().messages.turn())

    def end_turn(self, turn: OpenTurn) -> None:
        """Ends a turn of this conversation in this commit."""
        self._end_turn(turn)


def _check_scope(scope: object) -> Scope:
    if not isinstance(scope, Scope):
        raise UsageError(
            f"expected a scope, found {show_value(scope)}",
            hint='store.scope("team/red") is one',
        )
    found = cast("Scope", scope)
    if scope_stream(found).log.is_scratch:
        raise of_memory(found.name)
    return found

"""Performing a step: intent, attempts, outcome, and what a crash left open. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from holdfast.backends.deadline import monotonic
from holdfast.core import codec, intent
from holdfast.core.commit import CommitResult, ProposedCommit
from holdfast.core.transaction import PendingCommit, drop, finish, proposed_by
from holdfast.errors import ConflictError, UsageError, ValueDomainError, show_value
from holdfast.joint_commit import JointCommit
from holdfast.runs import events, values
from holdfast.runs.define import ONCE, Step
from holdfast.runs.execution import Execution
from holdfast.runs.journal import Answer, Entry
from holdfast.runs.operation import COMMIT, Call, CommitWith, Operation, Pause, RunSuspended

CONFLICTS_MAX = 1000
_logger = logging.getLogger("holdfast.runs")
INLINE_US = 250_000
"""How long a wait may hold a thread; a longer wait suspends the run."""


class StepContext(Struct, eq=False):
    """What a step's function gets as its `ctx`: its place and key, and whether it must stop."""

    _execution: Execution
    path: str
    key: str
    """The idempotency key: the same in every attempt, and after a crash."""
    attempt: int
    tx: JointCommit | None = None

    @property
    def run(self) -> str:
        """The run's id."""
        return self._execution.id

    @property
    def cancelled(self) -> bool:
        """Whether the run must stop. A long step should ask now and then, and return or raise."""
        run = self._execution
        is_leaving = run.stop_wanted or run.leaving is not None
        return is_leaving and not run.is_cleaning(self.path)


class Begun(Struct, frozen=True):
    """What a verifier is called with: a step that was begun and has no recorded outcome."""

    run: str
    path: str
    name: str
    key: str
    attempt: int
    inputs: dict[str, Any]


class StepCall(Struct, frozen=True):
    """One call of a step in one block."""

    step: Step[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: bytes
    digest: str
    answer: Answer
    closing: Callable[[Any], tuple[PendingCommit, ProposedCommit | None]] | None = None
    """Returns further writes for the commit that records the value, or None for none."""


def perform(run: Execution, call: StepCall) -> Operation:
    """Performs or replays a step, as the journal's answer says, and returns its value."""
    answer, entry = call.answer, call.answer.entry
    if answer.verdict == "diverged":
        raise run.diverge(answer)
    if answer.verdict == "replay":
        assert entry is not None, "BUG: a replay of nothing"
        return outcome_of(run, call.step, entry)
    attempt, key = 1, f"{run.life_name}/{answer.path}"
    if answer.verdict == "open":
        assert entry is not None, "BUG: nothing is open"
        key = entry.key or key
        if entry.retry_at is not None:
            yield from pause(run, entry.retry_at, f"retry of {answer.path}", answer.path)
            attempt = entry.attempt + 1
        else:
            # A crash is not a failure of the step: the attempt that it interrupted is repeated
            # under the same number.
            attempt = entry.attempt
            if entry.effect == "effect" and entry.verdict != "not done":
                yield from settle(run, entry)
                if entry.state == "done":
                    return outcome_of(run, call.step, entry)
    if call.step.effect == "txn":
        return (yield from _perform_txn(run, call))
    return (yield from _attempts(run, call, attempt, key))


def _attempts(run: Execution, call: StepCall, attempt: int, key: str) -> Operation:
    step, path = call.step, call.answer.path
    while True:
        if step.effect not in events.SAFE:
            if run.journal.forked is not None and not allowed(run, step, path):
                return _record_done(run, call, attempt, None)
            policy = run.record_context
            if (
                step.effect == "effect"
                and policy is not None
                and (policy.policy_seen != "off" or policy.policy_due <= monotonic())
            ):
                yield Call(run.before_effect, (step.name,), path=path)
            run.record(
                events.Intended(
                    path,
                    call.answer.ordinal,
                    "step",
                    step.name,
                    step.effect,
                    attempt,
                    key,
                    call.digest,
                    run.store(call.inputs),
                    step.verify,
                    label=call.answer.label,
                    source=call.answer.source,
                    attempts=step.retry.attempts,
                )
            )
            yield COMMIT
            if not run.is_sure():
                # The process was paused for longer than its lease lasts. Since the intent was
                # written, another worker may have taken the run, asked the verifier, and acted. So
                # the lease is renewed first, which raises if it is lost.
                yield Call(run.confirm, (), path=path)
        args = call.args
        if step.signature.first == "ctx":
            args = (StepContext(run, path, key, attempt), *args)
        try:
            value = yield Call(step.function, args, call.kwargs, step.is_async, path, step.drop)
        except Exception as error:
            fault = values.fault_of(error, _outcome(step, error))
            retry_at = yield from _failed(run, call, attempt, error, fault)
            entry = run.journal.entries[path]
            if entry.state == "done":
                return outcome_of(run, step, entry)
            if retry_at is None:
                raise values.error_of(fault, path) from error
            _logger.debug('run "%s": %s raised %s and is tried again', run.id, path, fault.kind)
            yield from pause(run, retry_at, f"retry of {path}", path)
            attempt += 1
            continue
        if call.closing is not None:
            pending, extra = call.closing(value)
            if extra is not None:
                return (yield from _commit_done(run, call, attempt, value, (pending, extra)))
        return _record_done(run, call, attempt, value)


def _commit_done(
    run: Execution,
    call: StepCall,
    attempt: int,
    value: Any,
    writes: tuple[PendingCommit, ProposedCommit],
) -> Operation:
    """Records a step's value together with writes to other streams, all or nothing."""
    encoded = values.encode(value)
    done = events.StepDone(call.answer.path, run.store(encoded), None, (), attempt)
    pending, extra = writes
    written: CommitResult = yield CommitWith(done, extra)
    finish(pending, extra, _without_first(written))
    return call.step.signature.rebuild("return", codec.decode(encoded))


def _without_first(written: CommitResult) -> CommitResult:
    """Returns the receipt without its first write, which is the event of the journal."""
    return CommitResult(written.position, written.before[1:], written.after[1:], written.news)


def _outcome(step: Step[..., Any], error: Exception) -> str:
    return "not done" if isinstance(error, step.not_done) else "unknown"


def _failed(
    run: Execution, call: StepCall, attempt: int, error: Exception, fault: events.Fault
) -> Operation:
    """Records an attempt that raised; returns when to try again, None if never.

    An `effect` that raised may still have been done (a timeout proves nothing). So it is tried
    again only if its exception is listed as `not_done`, or its verifier says so (rule 8).
    """
    step, path, retry = call.step, call.answer.path, call.step.retry
    again = attempt < retry.attempts and isinstance(error, retry.on)
    if step.effect == "effect" and fault.outcome != "not done" and step.verify is not None:
        verdict: intent.Verdict = yield Call(intent.judge, (step.verify, begun(run, path)))
        if isinstance(verdict, intent.Done):
            _record_settled(run, path, verdict)
            return None
        if isinstance(verdict, intent.NotDone):
            _record_settled(run, path, verdict)
        else:
            again = False
    elif step.effect == "effect" and fault.outcome != "not done":
        again = False
    retry_at = run.log.clock.now_us() + retry.pause_us(attempt) if again else None
    run.record(
        events.Failed(
            path,
            fault,
            attempt,
            retry_at,
            call.answer.ordinal,
            "step",
            step.name,
            step.effect,
            call.digest,
            label=call.answer.label,
            source=call.answer.source,
            attempts=retry.attempts,
        )
    )
    return retry_at


def _record_done(run: Execution, call: StepCall, attempt: int, value: Any) -> Any:
    """Records a step's value and returns its stored form, the same as in a replay (rule 1)."""
    step, path, answer = call.step, call.answer.path, call.answer
    lost = None
    try:
        encoded = codec.encode(value)
    except ValueDomainError:
        encoded, lost = _encode_other(run, call, attempt, value)
    stored = events.ABSENT if lost else run.store(encoded)
    if step.effect not in events.SAFE and path in run.journal.entries:
        done = events.StepDone(path, stored, lost, (), attempt)
    else:
        done = events.StepDone(
            path,
            stored,
            lost,
            (),
            attempt,
            answer.ordinal,
            "step",
            step.name,
            step.effect,
            call.digest,
            answer.label,
            answer.source,
        )
    run.record(done)
    if lost:
        raise _lost(path, lost)
    return step.signature.rebuild("return", codec.decode(encoded, blob=run.open_part))


def _encode_other(
    run: Execution, call: StepCall, attempt: int, value: Any
) -> tuple[bytes, str | None]:
    """Returns the bytes of a value that `codec` does not take as it is, or why it cannot be stored.

    A step that may be performed again fails if its value cannot be stored.
    """
    step, answer = call.step, call.answer
    try:
        return values.encode(value), None
    except ValueDomainError as error:
        if step.effect not in events.SAFE:
            # The act was done. That must be recorded, even if its result cannot be.
            return b"null", values.text_of(error)
        fault = values.fault_of(error)
        failed = events.Failed(
            answer.path,
            fault,
            attempt,
            None,
            answer.ordinal,
            "step",
            step.name,
            step.effect,
            call.digest,
            answer.label,
            answer.source,
        )
        run.record(failed)
        raise values.error_of(fault, answer.path) from error


def outcome_of(run: Execution, step: Step[..., Any], entry: Entry) -> Any:
    """Returns the value in a step's record, or raises its error."""
    if entry.state == "failed":
        assert entry.error is not None, "BUG: a failure without an error"
        raise values.error_of(entry.error, entry.path)
    if entry.lost:
        raise _lost(entry.path, entry.lost)
    return step.signature.rebuild("return", run.load(entry.value))


def _lost(path: str, why: str) -> Exception:
    text = f"the step was done and is not repeated, but its result cannot be stored: {why}"
    return values.error_of(events.Fault("ValueDomainError", text), path)


def allowed(run: Execution, step: Step[..., Any], path: str) -> bool:
    """Returns whether an act may be performed; False in a dry fork. Parks a fork that must ask."""
    if run.dry == "live" or (path, "effects") in run.journal.adopted:
        return True
    if run.dry == "dry":
        return False
    source = f'the act "{step.name}"'
    raise run.park_diverged(path, "effects", "a person's approval before a fork acts", source, "")


# --- what a crash left open ----------------------------------------------------------------------


def begun(run: Execution, path: str) -> Begun:
    """Returns the intent at a path in the form for verifiers."""
    return begun_of(run.id, run.journal.entries[path], run.load)


def begun_of(run: str, entry: Entry, load: Any) -> Begun:
    """Returns an intent of a run in the form for verifiers."""
    inputs: dict[str, Any] = load(entry.inputs) or {}
    return Begun(run, entry.path, entry.name, entry.key or "", entry.attempt, inputs)


def settle(run: Execution, entry: Entry) -> Operation:
    """Asks the verifier about an intent without an outcome; parks the run if it cannot say."""
    verdict: intent.Verdict = yield Call(intent.judge, (entry.verify, begun(run, entry.path)))
    _record_settled(run, entry.path, verdict)
    if isinstance(verdict, intent.Unknown):
        raise run.park(
            f'nobody knows whether "{entry.path}" was done: {verdict.reason}', entry.path
        )


def _record_settled(run: Execution, path: str, verdict: intent.Verdict) -> None:
    run.record(settled(path, verdict, "verifier", run.store))


def settled(path: str, verdict: intent.Verdict, by: str, store: Any) -> events.Settled:
    """Returns the event of a verdict on an open intent."""
    value = events.ABSENT
    reason = ""
    if isinstance(verdict, intent.Done):
        value = store(values.encode(verdict.output))
    elif isinstance(verdict, intent.Unknown):
        reason = values.text_of(verdict.reason)
    return events.Settled(path, intent.verdict_name(verdict), by, value, reason)


def pause(run: Execution, until: int, reason: str, path: str) -> Operation:
    """Waits until a time, in this thread if it is near; else suspends the run.

    A cleanup after a stop always waits in its thread, because a stopping run is not suspended.
    """
    left = until - run.log.clock.now_us()
    if left > INLINE_US and not run.is_hurried(path):
        raise RunSuspended(reason, until)
    if left > 0:
        yield COMMIT  # everything recorded is made durable before a wait (rule 7)
        yield Pause(until)


# --- txn -----------------------------------------------------------------------------------------


def _perform_txn(run: Execution, call: StepCall) -> Operation:
    """Calls a body with a pending commit; its writes and `done` become one commit (rule 11)."""
    step, path = call.step, call.answer.path
    if not allowed(run, step, path):
        return _record_done(run, call, 1, None)
    for _ in range(CONFLICTS_MAX):
        pending = run.new_commit()
        context = StepContext(run, path, f"{run.life_name}/{path}", 1, pending)
        first = {"ctx": (context,), "tx": (pending,)}.get(step.signature.first, ())
        try:
            value = yield Call(
                step.function, (*first, *call.args), call.kwargs, step.is_async, path
            )
            return (yield from _commit_txn(run, call, pending, value))
        except ConflictError as conflict:
            drop(pending)
            _logger.debug('run "%s": txn %s is called again: %s', run.id, path, conflict)
            continue  # nothing was written: the body reads again
        except Exception as error:
            drop(pending)
            fault = values.fault_of(error, "not done")
            failed = events.Failed(
                path,
                fault,
                1,
                None,
                call.answer.ordinal,
                "step",
                step.name,
                "txn",
                call.digest,
                call.answer.label,
                call.answer.source,
            )
            run.record(failed)
            raise values.error_of(fault, path) from error
    raise UsageError(f'txn "{path}" met {CONFLICTS_MAX} conflicts in a row: nothing was written')


def _commit_txn(run: Execution, call: StepCall, pending: JointCommit, value: Any) -> Operation:
    encoded = values.encode(value)
    done = events.StepDone(
        call.answer.path,
        run.store(encoded),
        None,
        (),
        1,
        call.answer.ordinal,
        "step",
        call.step.name,
        "txn",
        call.digest,
        call.answer.label,
        call.answer.source,
    )
    extra = proposed_by(pending) or ProposedCommit(())
    written: CommitResult = yield CommitWith(done, extra)
    finish(pending, extra, _without_first(written))
    return call.step.signature.rebuild("return", codec.decode(encoded))


# --- writes to another database -------------------------------------------------------------------
#
# `ctx.txn_in` writes to another SQL database exactly once, with the help of a ledger row in the
# same transaction (rule 11).
#
# The body writes through the user's own DB-API connection. In the same transaction, a row with the
# step's key and its result is added to the table `holdfast_ledger` there. If the process dies
# between that commit and the record in the journal, the row tells that the step was done. If a late
# owner commits too, the row's primary key refuses its transaction.

_MAKE = (
    "CREATE TABLE IF NOT EXISTS holdfast_ledger "
    "(key VARCHAR(512) PRIMARY KEY, result TEXT NOT NULL)"
)


# The two ways in which drivers mark a place for a value.
_FIND = {
    "qmark": "SELECT result FROM holdfast_ledger WHERE key = ?",
    "format": "SELECT result FROM holdfast_ledger WHERE key = %s",
}


_ADD = {
    "qmark": "INSERT INTO holdfast_ledger (key, result) VALUES (?, ?)",
    "format": "INSERT INTO holdfast_ledger (key, result) VALUES (%s, %s)",
}


class Connection(Protocol):
    """A DB-API connection that is not in autocommit mode."""

    def cursor(self) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


def once(
    connection: Connection,
    key: str,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls `body(connection, …)` and commits it with a ledger row, unless the row exists."""
    for name in ("cursor", "commit", "rollback"):
        if not callable(getattr(connection, name, None)):
            raise UsageError(f"txn_in takes a DB-API connection, found {show_value(connection)}")
    style = "qmark" if type(connection).__module__.startswith("sqlite3") else "format"
    cursor = connection.cursor()
    try:
        cursor.execute(_MAKE)
        connection.commit()
        cursor.execute(_FIND[style], (key,))
        row = cursor.fetchone()
        if row is not None:
            connection.rollback()
            return codec.decode(row[0].encode())
        result = values.encode(body(connection, *args, **kwargs))
        cursor.execute(_ADD[style], (key, result.decode()))
        connection.commit()
    except BaseException as error:
        # Also if the ledger could not be asked: an open transaction would hold its locks, and its
        # next user would write into it.
        try:
            connection.rollback()
        except Exception as second:
            error.add_note(f"the rollback after it failed, too: {type(second).__name__}")
        raise
    return codec.decode(result)


def txn_step(function: Callable[..., Any]) -> Step[..., Any]:
    """Makes a step of the class txn from a function."""
    if not callable(function):
        raise UsageError(f"ctx.txn takes a function, found {show_value(function)}")
    name = getattr(function, "__name__", "txn")
    return Step(function, effect="txn", name=name, verify=None, retry=ONCE, not_done=(), ignore=())


def ledger_step(connection: Any, function: Callable[..., Any]) -> Step[..., Any]:
    """Makes a step that calls a function once, in a transaction of another database.

    Its class is `idempotent`: after a crash it is called again with the same key, and the ledger in
    that database tells whether the body may run.
    """
    if not callable(function):
        raise UsageError(f"ctx.txn_in takes a function, found {show_value(function)}")

    def act(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        return once(connection, values.commit_key(ctx.key), function, args, kwargs)

    name = getattr(function, "__name__", "txn_in")
    return Step(
        act, effect="idempotent", name=name, verify=None, retry=ONCE, not_done=(), ignore=()
    )

"""One run that this process owns: its journal, the buffer of new events, and its end.

Durability (decision 0013, rule 7): `record` folds an event into the journal and puts it into the
buffer; the next commit of the run includes the buffer. So one commit carries the outcome of a step
and the intent of the next, and a chain of effects costs one sync per step.

No act begins before every record up to its intent is durable. Every act commits first, commits are
sent under one lock, and a branch whose records went into another branch's commit waits for the
answer to that commit. A commit that fails leaves memory ahead of the store. The run then stops in
this process, and the worker that resumes it starts from what is stored.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Lock, RLock
from typing import Any, TypeVar

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.backends.deadline import monotonic
from holdfast.backends.gates import Flag, Waiters, shut_gate
from holdfast.backends.protocol import Cleared, Fence, Lease, Mark
from holdfast.core import codec
from holdfast.core.blobs import BLOB_BYTES_MIN
from holdfast.core.commit import CommitResult, NewEvent, ProposedCommit, StreamWrite, changed
from holdfast.core.commit_queue import Request
from holdfast.core.inbox import Inbox
from holdfast.core.inbox import stream_of as inbox_of
from holdfast.core.log import WRITER, Log
from holdfast.core.observe import Observers
from holdfast.core.sealing import READER, Sealing
from holdfast.core.tree import Op
from holdfast.errors import ClosedError, ConflictError, HoldfastError, UnavailableError, UsageError
from holdfast.joint_commit import JointCommit
from holdfast.names import WORKFLOW
from holdfast.record.context import RecordContext
from holdfast.runs import events, values
from holdfast.runs.define import RunFunction
from holdfast.runs.events import ABSENT
from holdfast.runs.journal import Answer, Journal, digest_of, done_of, name_in_life
from holdfast.runs.manifest import DUE, INDEX
from holdfast.runs.operation import (
    Call,
    Cancelled,
    Control,
    OwnerLost,
    Parked,
    RunSuspended,
    Stopped,
    calling_line,
)

# --- commits in flight ----------------------------------------------------------------------------
#
# Commits of a run that were sent and are not answered yet.
#
# A commit includes everything in the buffer, whichever branch recorded it. So a branch that finds
# its intent gone from the buffer knows only that it was sent, not that it is durable. It waits here
# before it acts, like the branch that sent the commit.


class InFlightCommit:
    """One commit that was sent."""

    def __init__(self, number: int, in_flight: InFlight) -> None:
        self.number = number
        self._in_flight = in_flight

    def complete(self, error: BaseException | None = None) -> None:
        """Reports that the commit was answered, with the error if it failed."""
        self._in_flight.complete(self, error)


class InFlight:
    """The commits of one run that are not answered yet."""

    def __init__(self, lost: Callable[[BaseException], object]) -> None:
        self._lost = lost
        self._sent = 0
        self.pending: set[int] = set()
        self._lock = Lock()
        self._waiters = Waiters()

    def add(self) -> InFlightCommit:
        """Counts a commit that is about to be sent."""
        with self._lock:
            self._sent += 1
            self.pending.add(self._sent)
            return InFlightCommit(self._sent, self)

    def wait(self) -> None:
        """Waits until everything sent so far is answered."""
        newest = self._sent
        gate = shut_gate()
        try:
            self._waiters.add(gate)
            while any(number <= newest for number in tuple(self.pending)):
                gate.acquire()
        finally:
            self._waiters.remove(gate)

    def complete(self, commit: InFlightCommit, error: BaseException | None) -> None:
        """Removes a commit that was answered, and wakes the threads that wait for it."""
        # The loss is noted first: a branch that wakes up must not act on a commit that failed.
        if error is not None:
            self._lost(error)
        with self._lock:
            self.pending.discard(commit.number)
        self._waiters.wake()


def complete_all(answered: Sequence[Request]) -> None:
    """Completes commits that were submitted with their `InFlightCommit` as context."""
    for request in answered:
        request.context.complete(request.error)


CLEANUP_US = 60_000_000
"""How long after a stop cleanups may begin operations."""
T = TypeVar("T")
_logger = logging.getLogger("holdfast.runs")
Marks = tuple[Mark | Cleared, ...]


class AskingStore:
    """The block around the engine's own requests to the store: for inbox, blobs and children.

    A store that cannot be reached is not an outcome of the body. If the body saw the error, it
    might catch it and go on, or fail for good. So the run is left, and can be resumed.
    """

    def __init__(self, lost: Callable[[BaseException], Control]) -> None:
        self._lost = lost

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnavailableError):
            raise self._lost(error) from error


class Failure(Struct, eq=False):
    """The exception that a run failed with in this process, as the cause for `result` to show.

    An exception keeps every variable of its frames alive. So only handles of the run keep it, and
    it is freed with them.
    """

    error: BaseException | None = None


class Execution:
    """One run while this process, its owner, executes it."""

    def __init__(
        self,
        log: Log,
        id: str,
        function: RunFunction[..., Any],
        journal: Journal,
        lease: Lease,
        failure: Failure | None = None,
    ) -> None:
        self.log = log
        self.id = id
        self.begun: dict[str, float] = {}
        """When the first attempt of each step began; kept only while there are observers."""
        self.life_name = name_in_life(id, journal.began)
        """The run's name in keys; an earlier run of the same id, removed since, had another."""
        self.stream = f"run/{id}"
        self.function = function
        self.journal = journal
        self.lease = lease
        self.fence = Fence(lease.name, lease.owner, lease.epoch)
        self.inbox = Inbox(log, self.stream)
        self.leaving: Control | None = None
        self.stop_wanted = False
        self.cleaning: dict[str, bool] = {}
        """The cleanups at work, and of each whether its branch is no longer wanted."""
        self._clean_until: int | None = None
        self.seen = 0  # the revision of the inbox that the pass took into account
        self.generation = 0
        self.contexts: list[Any] = []
        self.over = Flag()
        self.when_over: list[Callable[[], None]] = []
        self.when_stopped: Callable[[], None] | None = None
        self.is_sure: Callable[[], bool] = lambda: True  # False: another may have the lease by now
        self.confirm: Callable[[], None] = lambda: None  # renews the lease; raises if it is lost
        self.record_context: RecordContext | None = None  # has the policy on undecided effects
        self.new_commit: Callable[[], JointCommit]  # what a step of the class txn writes to
        self.before_effect: Callable[[str], None] = lambda _: None  # checks the policy; may raise
        self.outcome: BaseException | None = None  # what this process's pass ended with
        self.failure = Failure() if failure is None else failure
        self._lock = RLock()
        self._buffer: list[NewEvent] = []
        self._marks: Marks = ()  # to be set with what is buffered
        self.in_flight = InFlight(self.lost)
        self.asking_store = AskingStore(self.lost)
        self._loss: OwnerLost | None = None
        self._branches = 0
        self.is_closed = False  # nothing more is recorded in this process

    def is_in(self, log: Log) -> bool:
        """Whether a log is the run's own, or of another handle on the same store."""
        return log.stored_at == self.log.stored_at

    @property
    def is_buffered(self) -> bool:
        """Whether something was recorded that no commit has included yet."""
        return bool(self._buffer)

    # --- recording -------------------------------------------------------------------------------

    def record(self, event: Struct) -> None:
        """Folds an event and buffers it; the next commit makes it durable."""
        with self._lock:
            if self.is_closed:
                raise self._closed()
            self.journal.apply(event)
            self._buffer.append(NewEvent(events.TYPES[type(event)], codec.encode_plain(event)))
        if self.log.observers is not None:
            self._tell(self.log.observers, event)

    @contextmanager
    def attempt(self, call: Call) -> Generator[None]:
        """Reports an attempt of a step to observers: its call, its duration, and how it ended."""
        observers = self.log.observers
        if observers is None or not call.path or call.function == self.confirm:
            yield
            return
        began, failure = monotonic(), None
        self.begun.setdefault(call.path, began)
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            observers.tell("attempt", call.path, began, failure, run=self.id, step=call.path)

    def _tell(self, observers: Observers, event: Struct) -> None:
        """Reports to observers that a step has ended, or that it failed and will be retried."""
        if not isinstance(event, events.StepDone | events.Failed) or event.path not in self.begun:
            return
        error = None
        began = self.begun[event.path]
        if isinstance(event, events.Failed):
            error = values.error_of(event.error, event.path)
        if isinstance(event, events.Failed) and event.retry_at is not None:
            observers.tell(
                "retry",
                event.path,
                began,
                error,
                run=self.id,
                step=event.path,
                until_us=event.retry_at,
            )
            return
        del self.begun[event.path]
        observers.tell(
            "step", event.path, began, error, run=self.id, step=event.path, attempt=event.attempt
        )

    def _closed(self) -> Stopped:
        # For a branch that was given up, and whose step ended only now.
        return Stopped(f'run "{self.id}" was left: nothing more is recorded')

    def take_buffer(self, marks: Marks = (), expected: int | None = None) -> ProposedCommit | None:
        """Returns everything recorded and not sent yet as one commit; None if there is nothing.

        The caller holds the lock until the commit is sent, so that commits are in the order of the
        records. The journal must not have holes: if a commit fails, the thread that sends for the
        log calls `lost` at once, and `abort_if` keeps it from writing any later commit of the run.
        """
        if not self._buffer and not marks:
            return None
        new_events = tuple(self._buffer)
        self._buffer.clear()
        self.generation += 1
        marks, self._marks = marks or self._marks, ()
        writes = (StreamWrite(self.stream, new_events, expected),) if new_events else ()
        return ProposedCommit(
            writes, (), self.fence, marks, (self.inbox.stream,), self.abort_if, self.lost
        )

    def put(
        self,
        send: Callable[[ProposedCommit, InFlightCommit], T],
        marks: Marks = (),
        expected: int | None = None,
    ) -> T | None:
        """Passes the buffer to `send` as one commit; returns None if it is empty.

        `send` must complete the commit in flight that it gets, now or later.
        """
        with self._lock:
            proposed = self.take_buffer(marks, expected)
            if proposed is None:
                return None
            commit = self.in_flight.add()
            try:
                return send(proposed, commit)
            except BaseException as error:
                commit.complete(error)
                raise

    def _submit(self, proposed: ProposedCommit, commit: InFlightCommit) -> Request:
        return self.log.submit(proposed, waker=complete_all, context=commit)

    def commit(self, marks: Marks = (), expected: int | None = None) -> None:
        """Makes everything recorded so far durable, if the journal is at the expected revision."""
        written: CommitResult | None = None
        try:
            if self._branches:
                request = self.put(self._submit, marks, expected)
                written = None if request is None else self.log.wait(request)
            else:
                with self._lock:
                    proposed = self.take_buffer(marks, expected)
                    if proposed is not None:
                        try:
                            written = self.log.commit(proposed)
                        except BaseException as error:
                            # Still under the lock, so that no other branch sends a commit after
                            # the one that failed.
                            self.lost(error)
                            raise
            if self.in_flight.pending:
                self.in_flight.wait()
            if self._loss is not None:
                raise self._loss
        except BaseException as error:
            raise self.lost(error) from error
        if written is not None and written.news.get(self.inbox.stream, 0) > self.inbox.revision:
            self.look()

    def flush(self) -> None:
        """Submits the buffer, unless the lock is busy.

        It never raises: after a failure the next operation leaves the run.
        """
        if self._lock.acquire(blocking=False):
            try:
                self.push()
            except BaseException as error:
                self.lost(error)
            finally:
                self._lock.release()

    def listen(self) -> None:
        """Reads the inbox while a long step runs and no commit's receipt reports messages."""
        if self._lock.acquire(blocking=False):
            try:
                if not self.is_closed:
                    self.look()
            except BaseException as error:
                self.lost(error)
            finally:
                self._lock.release()
        self.interrupt()

    def interrupt(self) -> None:
        """Interrupts what the run awaits, if the run must stop and can be interrupted."""
        interrupt = self.when_stopped
        if self.stop_wanted and interrupt is not None and not self.cleaning:
            interrupt()

    def push(self) -> None:
        """Submits the buffer, which is then written before the caller's next commit."""
        self.put(self._submit)

    def commit_with(self, event: Struct, extra: ProposedCommit) -> CommitResult:
        """Commits an event together with writes to other streams, all or nothing (rule 11).

        ConflictError means that nothing of it was written, and that the run goes on.
        """
        try:
            if self._branches:
                written = self.log.wait(self.join(event, extra, self.log.submit))
            else:
                written = self.join(event, extra, self.log.commit)
            self.in_flight.wait()
            self.check_loss()
        except (ConflictError, UsageError):
            raise
        except BaseException as error:
            raise self.lost(error) from error
        self.joined(event)
        if self.has_news(written):
            self.look()
        return written

    def join(self, event: Struct, extra: ProposedCommit, send: Callable[[ProposedCommit], T]) -> T:
        """Passes an event and other writes to `send` as one commit, after the buffer.

        It is sent under the lock, because a branch that was given up must not write after the
        run's last event.
        """
        with self._lock:
            if self.is_closed:
                raise self._closed()
            self.push()
            writes = (StreamWrite(self.stream, (new_event(event),)), *extra.writes)
            watch = (*extra.watch, self.inbox.stream)
            return send(
                replace(extra, writes=writes, fence=self.fence, watch=watch, abort_if=self.abort_if)
            )

    def joined(self, event: Struct) -> None:
        """Folds an event that was committed together with other writes."""
        with self._lock:
            self.journal.apply(event)

    def has_news(self, written: CommitResult | None) -> bool:
        """Returns whether a commit's receipt reports messages that were not read yet."""
        news = {} if written is None else written.news
        return news.get(self.inbox.stream, 0) > self.inbox.revision

    def look(self) -> None:
        """Reads the inbox, and marks the run as stopping if there is a stop."""
        with self._lock, self.asking_store:
            self.inbox.look()
            stop = self.inbox.stop()
            if stop is not None:
                self.stop_wanted = True
                if self.journal.cancelling is None and not self.is_closed:
                    self.record(events.Cancelling(stop.sender))
                    self._marks = (Mark(INDEX, self.id, group="cancelling"),)

    def alone(self) -> AbstractContextManager[bool]:
        """Returns the lock under which a message is both found and recorded as taken.

        Without it, two branches could take the same message.
        """
        return self._lock

    def lost(self, error: BaseException) -> Control:
        """Ends the run in this process after a commit that failed; returns what to raise."""
        if isinstance(error, Control):
            return error
        if self._loss is None:
            level = logging.DEBUG if isinstance(error, UsageError) else logging.WARNING
            _logger.log(level, 'run "%s" is left by this process: %s', self.id, error)
            self._loss = OwnerLost(error)
        self.leaving = self.leaving or self._loss
        return self.leaving

    def abort_if(self) -> HoldfastError | None:
        """Returns why nothing of the run may be written any more; None while it may."""
        if self._loss is None:
            return None
        return UnavailableError(
            f'run "{self.id}" was lost in this process: nothing was written', hint="resume the run"
        )

    def check_loss(self) -> None:
        """Raises if a commit of the run failed, in any thread."""
        if self._loss is not None:
            raise self._loss

    def forked(self, count: int) -> None:
        """Adds to the number of branches that record for this run beside its own thread.

        While there are any, commits are submitted, so that branches share syncs.
        """
        with self._lock:
            self._branches += count

    def record_last(self, last: Struct) -> None:
        """Records the last event of the pass; nothing can be recorded after it.

        The receipt of this event may report a stop. If that were recorded after `ended`, a run that
        has ended would look like one that has not.
        """
        with self._lock:
            self.record(last)
            self.is_closed = True

    def close(self) -> None:
        """Ends recording in this process, and drops what is buffered."""
        with self._lock:
            self.is_closed = True
            self._buffer.clear()

    def note(self, path: str, text: str) -> None:
        """Records a warning, once."""
        with self._lock:
            note = events.Noted(path, text)
            if note not in self.journal.notes:
                self.record(note)

    def swallowed(self, path: str, where: str) -> None:
        """Notes the line that swallowed a control exception."""
        if not self.is_closed:
            self.note(path, f"a control exception was swallowed at {where}")

    # --- values ----------------------------------------------------------------------------------

    def store(self, encoded: bytes) -> Raw:
        """Returns an encoded value as an event holds it: a large one is put into a blob.

        A value that contains sealed values stays in the event, because an erasure and the collector
        of blobs find only those that an event names.
        """
        if len(encoded) < BLOB_BYTES_MIN or codec.SEALED_VALUE in encoded:
            return Raw(encoded)
        with self.asking_store:
            return stored(self.log, self.stream, encoded)

    def load(self, raw: Raw) -> Any:
        """Returns a recorded value."""
        return values.decode(raw, self._read_blob)

    def reads(self, sealing: Sealing, subject: str) -> None:
        """Notes that code of the run reads a subject's data: the run is the subject's from here on.

        Every later record of it is sealed, and so are its own state, its inbox, its forks and the
        runs that it starts. Raises UsageError for a second subject. Data of another store counts
        only if its keys are those of this one: others are not erased here.
        """
        log = self.log
        if sealing is not log.sealing and not log.sealing.keys.has(subject):
            return
        with self._lock:
            owner = log.subject_of(self.stream)
            if owner == subject:
                return
            if log.sealing.keys.is_erased(subject):
                return  # nothing of it can be read any more
            if owner is not None:
                raise two_subjects(self.id, owner, subject)
            for stream in streams_of(self.id):
                log.become(stream, subject)
            self.record(events.Noted("", f"it has read data of subject {subject}, and is theirs"))
        self._begin_sealed()

    def _begin_sealed(self) -> None:
        """Writes to the run's own state and inbox, so that whoever writes there next seals it."""
        writer, reader = WRITER.set(None), READER.set(None)
        try:
            self.push()
            for stream in streams_of(self.id)[1:]:
                with suppress(ClosedError):
                    write = StreamWrite(stream, (changed([]),))
                    self.log.commit(ProposedCommit((write,), abort_if=self.abort_if))
        finally:
            READER.reset(reader)
            WRITER.reset(writer)

    def reads_value(self, raw: bytes) -> None:
        """Notes the subjects of the sealed values that a value has which the run was given."""
        if codec.SEALED_VALUE in raw:
            keys = self.log.sealing.keys
            for subject in sorted(codec.subjects_in(raw)):
                if not keys.is_erased(subject):
                    self.reads(self.log.sealing, subject)

    def open_part(self, id: str, size: int) -> Any:
        """Opens a sealed value of a subject within a recorded value."""
        return codec.decode(self._read_blob(id, size))

    def closed_copy(self, log: Log, scope: str, value: Any) -> Any:
        """Returns a value that was read from a scope in the form for the journal.

        If the scope belongs to a subject, the value is sealed with the subject's key. A run of the
        same subject needs no seal here, because all of its journal is sealed. Raises ErasedError.
        """
        self.reads_value(codec.encode(value))
        subject = log.subject_of(scope)
        if subject is None or subject == self.log.subject_of(self.stream):
            return value
        seal = log.sealing.of(subject)
        with self.asking_store:
            # The added space gives it another digest, and so another blob than the scope's own,
            # which is deleted with the scope.
            op = Op("set", "value", Raw(codec.encode(value) + b" "))
            return codec.SealedLeaf(bytes(self.log.blobs.sealed(op, self.stream, seal).value))

    def _read_blob(self, id: str, size: int) -> bytes:
        with self.asking_store:
            return self.log.blobs.read(id, size)

    # --- leaving ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises the control exception that the run is left with, if there is one."""
        if self.leaving is not None:
            raise self.leaving
        if self.stop_wanted:
            self.leaving = Cancelled(f'run "{self.id}" is to stop')
            raise self.leaving

    def is_cleaning(self, path: str) -> bool:
        """Returns whether an operation is part of a cleanup, which a stop does not refuse."""
        return any(path.startswith(f"{block}/") for block in (*self.cleaning,))

    def is_cleaning_below(self, block: str) -> bool:
        """Returns whether a cleanup inside a block is at work."""
        return any(path.startswith(f"{block}/") for path in (*self.cleaning,))

    def is_hurried(self, path: str) -> bool:
        """Returns whether an operation belongs to a cleanup of a run or branch that must stop."""
        return any(
            (self.stop_wanted or is_unwanted) and path.startswith(f"{block}/")
            for block, is_unwanted in (*self.cleaning.items(),)
        )

    def check_cleanup(self) -> None:
        """Raises if a cleanup must not go on: the run is lost, or it took too long after a stop.

        The time begins when this process first asks. So an owner that takes the run over an hour
        after another died still has the full time.
        """
        self.check_loss()
        if self.leaving is not None and not isinstance(self.leaving, Cancelled):
            raise self.leaving
        if self.stop_wanted:
            now = self.log.clock.now_us()
            if self._clean_until is None:
                self._clean_until = now + CLEANUP_US
            elif now > self._clean_until:
                raise Cancelled(f'run "{self.id}" is to stop, and its cleanup took too long')

    def diverge(self, answer: Answer) -> Control:
        """Parks the run for an operation that diverges, and returns what to raise."""
        source = answer.source or calling_line(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return self.park_diverged(
            answer.path, answer.problem, answer.expected, answer.found, source
        )

    def park_diverged(
        self, path: str, problem: str, expected: str, found: str, source: str
    ) -> Control:
        """Parks the run for a divergence, and returns what to raise."""
        with self._lock:
            if self.leaving is None:
                self.record(events.Diverged(path, problem, expected, found, source))
                self.leaving = Parked(
                    f'the code diverges at "{path}": expected {expected}, found {found}'
                    + (f" at {source}" if source else ""),
                    path,
                )
            return self.leaving

    def suspend(self, reason: str) -> None:
        """Ends the pass where it is; everything recorded stays, and the run can be resumed.

        A process that a step has started gets TERM, then KILL. A step without an outcome is judged
        as after a crash.
        """
        with self._lock:
            if self.leaving is None:
                self.leaving = RunSuspended(reason, None, self.inbox.revision)
        self.flush()

    def park(self, reason: str, path: str) -> Control:
        """Parks the run for a person, and returns what to raise."""
        with self._lock:
            if self.leaving is None:
                self.leaving = Parked(reason, path)
            return self.leaving

    @property
    def dry(self) -> str:
        """Whether acts are performed: "live", or in a fork what the fork was made with."""
        forked = self.journal.forked
        return "live" if forked is None else forked.effects


def streams_of(id: str) -> tuple[str, str, str]:
    """Returns the streams that hold what a run does: its journal, its own state, its inbox."""
    return f"run/{id}", f"{WORKFLOW}/{id}", inbox_of(f"run/{id}")


def two_subjects(id: str, owner: str, other: str) -> UsageError:
    """Returns the error for a run that has data of one subject, and reads that of another."""
    return UsageError(
        f'run "{id}" has data of subject {owner} and was about to have that of subject {other}: '
        "one run is one subject's, because one key seals it",
        hint="read it in a run of its own: ctx.child, or hf.runs.start",
    )


def stored(log: Log, stream: str, encoded: bytes) -> Raw:
    """Returns an encoded value as an event of that stream holds it: a large one in a blob."""
    if log.redactor is not None:
        encoded = log.redactor.clean_value(encoded, stream)
    return Raw(log.blobs.spill(Op("set", "value", Raw(encoded)), stream).value)


def open_children(journal: Journal) -> list[tuple[str, str]]:
    """Returns the children without a recorded result, each with its `when_parent_ends`.

    A child that a fork shares with its origin belongs to the origin and is left out.
    """
    return [
        (entry.child, entry.when_parent_ends or "cancel")
        for entry in tuple(journal.entries.values())
        if entry.child is not None and entry.state == "open" and entry.origin is None
    ]


def children_to_cancel(journal: Journal, *, is_cancelled: bool) -> list[str]:
    """Returns the children that end with their parent; after a stop also those to be waited for."""
    gone = ("cancel", "wait") if is_cancelled else ("cancel",)
    return [id for id, policy in open_children(journal) if policy in gone]


def new_event(event: Struct) -> NewEvent:
    """Encodes an event of a journal for a commit."""
    return NewEvent(events.TYPES[type(event)], codec.encode_plain(event))


def as_error(error: BaseException) -> HoldfastError | BaseException:
    """Returns the error that `result` raises when this process's pass stopped."""
    return error.cause if isinstance(error, OwnerLost) else error


# --- writers --------------------------------------------------------------------------------------
#
# Commits that a run's body, or one of its steps, makes to a store (rule 3). In the run's own store
# they are fenced by the run's lease. Another store does not know that lease, so writes there are
# not fenced; but a write of a body still has its key, so that a replay does not make it twice, and
# the journal is durable before it.


_OURS = ("run/", "lease/", "store/")


class BodyWriter:
    """Gives each write of a body its key, its fence and its place in the journal.

    A replay sends the write again, and because of the key the backend answers as it did the first
    time. The record in the journal does not prove that the write was done. It is there to detect
    code that now writes something else: then the run diverges.
    """

    is_replayed = True

    def __init__(self, context: Any) -> None:
        self._context = context

    def fencing(self) -> StepWriter:
        """Returns a writer that only fences, for commits that need no place in the journal."""
        self._context._begin(anywhere=True)
        block = self._context._block
        if block.refuse is not None and not block.is_replayed():
            raise block.refuse()
        run: Execution = self._context._execution
        run.push()
        return StepWriter(run, self._context._block.path, is_after=True)

    def fences(self, log: Log) -> bool:
        """Whether a log is that of the run."""
        return self._context._execution.is_in(log)

    @property
    def path(self) -> str:
        """The run, the block, and how many operations the block has performed."""
        context = self._context
        return f"run/{context._execution.life_name}/{context._block.path}#{context._block.calls}"

    def prepare(self, proposed: ProposedCommit, log: Log) -> ProposedCommit:
        run: Execution = self._context._execution
        if not proposed.writes or proposed.writes[0].stream.startswith(_OURS):
            return proposed
        self._context._begin(anywhere=True)  # asyncio hands some writes to a thread of its own
        written = [
            [_name(run, p), [(q.type, q.payload) for q in p.new_events]] for p in proposed.writes
        ]
        digest = digest_of(codec.encode(written))
        name = _name(run, proposed.writes[0])
        answer = self._context._block.ask("write", name, "idempotent", digest)
        if answer.verdict == "diverged":
            raise self._context._leave_with(run.diverge(answer))
        if answer.verdict == "execute":
            run.record(done_of(answer, "write", name, "idempotent", ABSENT, digest))
        # The buffer is submitted before the write, so that everything that the write may depend on
        # is durable before it. If the buffer cannot be written, `abort_if` stops the write too.
        run.push()
        # A write that a fork inherited keeps its origin's key, so that it is not made twice.
        origin = None if answer.entry is None else answer.entry.origin
        key = values.commit_key(
            f"{name_in_life(origin or run.id, run.journal.began)}/{answer.path}"
        )
        writes = tuple([_keyed(write, key) for write in proposed.writes])
        proposed = replace(proposed, writes=writes, abort_if=run.abort_if)
        return _fenced(run, proposed, log, is_after=True)


class StepWriter(Struct, frozen=True, eq=False, weakref=True):
    """Fences what a step writes, without keys: the step's class says what a repetition does.

    No two are equal, because names of records are counted per writer (`record/in_run.py`).
    """

    execution: Execution
    block: str
    is_after: bool = False  # it follows submitted records: if they fail, it must not be written

    @property
    def is_replayed(self) -> bool:
        """Whether a replay makes these writes again: never for a step."""
        return False

    @property
    def path(self) -> str:
        """The run and the operation."""
        return f"run/{self.execution.life_name}/{self.block}"

    def fencing(self) -> StepWriter:
        """Returns itself: it fences, and does nothing else."""
        return self

    def fences(self, log: Log) -> bool:
        """Whether a log is that of the run."""
        return self.execution.is_in(log)

    def prepare(self, proposed: ProposedCommit, log: Log) -> ProposedCommit:
        if not proposed.writes or proposed.writes[0].stream.startswith(_OURS):
            return proposed
        run = self.execution
        proposed = replace(proposed, abort_if=run.abort_if if self.is_after else None)
        return _fenced(run, proposed, log, is_after=self.is_after)


def _name(run: Execution, write: StreamWrite) -> str:
    """Returns the name of a stream in the journal; a fork's own state has its origin's name.

    Each run has a state of its own, named by its id. Under its own name, a fork would not find the
    records of writes that it inherited. Under the origin's name it finds them, and the writes from
    before the fork are made again, in the fork's own state.
    """
    if run.journal.root is not None and write.stream == f"workflow/{run.id}":
        return f"workflow/{run.journal.root}"
    return write.stream


def _fenced(
    run: Execution, proposed: ProposedCommit, log: Log, *, is_after: bool
) -> ProposedCommit:
    """Adds the run's lease as a fence to a write, if the write goes to the backend with the lease.

    In a mixed store a scope may be kept in another backend than runs are; another store is the same
    case. There the key still makes the write happen once, but a late owner is not refused.

    Only commits in the same queue are written in order. A write through another log goes through
    another queue, so the records that were submitted before it are waited for.
    """
    if is_after and log is not run.log:
        run.in_flight.wait()
        if (lost := run.abort_if()) is not None:
            raise lost
    if proposed.fence is not None or not run.is_in(log):
        return proposed
    place_of = run.log.routes.place_of
    near = place_of(proposed.writes[0].stream) == place_of(run.fence.name)
    return replace(proposed, fence=run.fence) if near else proposed


def _keyed(write: StreamWrite, key: str) -> StreamWrite:
    return write if write.key is not None else replace(write, key=key)


def status_marks(id: str, status: events.Status, due: int | None = None) -> Marks:
    """Returns the marks for a status: one lists an unfinished run, the other makes it due."""
    index = Cleared(INDEX, id) if status in events.ENDED else Mark(INDEX, id, group=status)
    if due is None:
        return (index, Cleared(DUE, id))
    return (index, Mark(DUE, id, due))

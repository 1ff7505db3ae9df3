"""The engine: starts, resumes and ends the runs of one store in this process (rule 10)."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context as ContextVars
from functools import partial
from typing import Any, Generic, TypeVar, overload

from msgspec import Raw, Struct

from holdfast.backends.deadline import monotonic
from holdfast.backends.gates import Waiters, shut_gate
from holdfast.backends.protocol import Fence, Lease, Mark
from holdfast.core import codec, inbox
from holdfast.core.arguments import Duration, check_timeout
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite, changed
from holdfast.core.kernel import Kernel
from holdfast.core.sealing import stream_of
from holdfast.errors import (
    ConflictError,
    ErasedError,
    ExistsError,
    HoldfastError,
    LeaseLostError,
    NeedsAttentionError,
    NotFoundError,
    RunCancelledError,
    RunFailedError,
    StillRunningError,
    UsageError,
    show_value,
)
from holdfast.joint_commit import JointCommit
from holdfast.names import check_name, new_id
from holdfast.record.context import RecordContext
from holdfast.record.decisions import check_effect
from holdfast.runs import blocks, events, values
from holdfast.runs.blocks import Progress, perform_pass
from holdfast.runs.context import Context
from holdfast.runs.define import RunFunction, find_run, has_run, is_run
from holdfast.runs.execution import (
    DUE,
    INDEX,
    Execution,
    Failure,
    Marks,
    children_to_cancel,
    new_event,
    status_marks,
    stored,
    streams_of,
    two_subjects,
)
from holdfast.runs.journal import Block, Journal
from holdfast.runs.operation import OwnerLost, Parked, RunSuspended
from holdfast.runs.pool import Pool, PoolCall
from holdfast.runs.sessions import AgentSteps
from holdfast.runs.supervisor import Supervisor, WakeCondition
from holdfast.runs.waits import ChildSpec, check_id, message_name
from holdfast.scope import Scope, Scopes

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Run(Generic[R_co]):
    """A handle of one run of a store, wherever that is executed. It keeps nothing open."""

    def __init__(self, engine: Engine, id: str, failure: Failure | None = None) -> None:
        self.id = id
        self._engine = engine
        self._failure = failure

    @property
    def status(self) -> events.Status:
        """The run's status, such as "running" or "completed"."""
        return self.progress.status

    @property
    def progress(self) -> Progress:
        """What the run is doing: statement, blocks, "iteration 2 of 3", "attempt 1 of 3"."""
        return self._engine.progress_of(self.id)

    @property
    def journal(self) -> Journal:
        """Everything that is recorded of the run."""
        return self._engine.journal_of(self.id)

    @property
    def variables(self) -> dict[str, Any]:
        """The newest values of `let` and `const`, by block and name."""
        found = self.journal.variables.items()
        return {
            "/".join(name for name in place if name): self._engine.load(raw) for place, raw in found
        }

    @overload
    def result(self: Run[Coroutine[Any, Any, R]], timeout: Duration | None = None) -> R: ...
    @overload
    def result(self, timeout: Duration | None = None) -> R_co: ...
    def result(self, timeout: Duration | None = None) -> Any:
        """Waits for the end and returns the run's value.

        Raises RunFailedError, RunCancelledError, NeedsAttentionError when the run is parked, and
        StillRunningError when `timeout` seconds were not enough.
        """
        ended = self._engine.await_end(self.id, timeout)
        return result_of(self._engine, self.id, ended, self._failure)

    def cancel(self) -> None:
        """Asks the run to stop; see `hf.runs.cancel`."""
        self._engine.cancel(self.id)

    def __repr__(self) -> str:
        return f"<Run {self.id}>"


def result_of(engine: Engine, id: str, ended: events.Ended, failure: Failure | None) -> Any:
    """Returns the value that a run ended with, or raises its error.

    `failure` is known only in the process where the run ended.
    """
    if ended.status == "cancelled":
        raise RunCancelledError(id)
    if ended.error is not None:
        data = engine.load(ended.error.data)
        fault, cause = ended.error, None if failure is None else failure.error
        raise RunFailedError(
            id, fault.kind, fault.message, data, traceback=fault.traceback
        ) from cause
    return engine.load(ended.value)


def attention_of(id: str, journal: Journal) -> NeedsAttentionError:
    """Returns the error that says why a run is parked, and what can be done about it."""
    if (diverged := journal.diverged) is not None:
        where = f" at {diverged.source}" if diverged.source else ""
        return NeedsAttentionError(
            id,
            f'the code diverges from the journal at "{diverged.path}": expected '
            f"{diverged.expected}, found {diverged.found}{where}",
            path=diverged.path,
            hint="correct the code and resume it, adopt the difference, or fork it",
        )
    uncertain = [entry for entry in journal.uncertain() if entry.verdict == "unknown"]
    path = uncertain[0].path if uncertain else ""
    reason = journal.suspended.reason if journal.suspended is not None else "it is parked"
    return NeedsAttentionError(
        id, values.text_of(reason), path=path, hint="look, then settle it and resume the run"
    )


def no_run(id: str) -> NotFoundError:
    """Returns the error for a run that is not there."""
    return NotFoundError(f'there is no run "{id}"', hint="store.runs.list() lists those there are")


def _passed_on(id: str, cause: LeaseLostError) -> LeaseLostError:
    """Returns the error for callers that wait for a run whose owner here lost the lease."""
    return LeaseLostError(
        f'run "{id}" was left by this worker: {cause.message}',
        lease=cause.lease,
        epoch=cause.epoch,
        hint="it is taken up again by this worker if the lease is free, else by whoever holds it: "
        "ask for its result again",
    )


LEASE_S = 30.0
SLICE_S = 0.25
_logger = logging.getLogger("holdfast.runs")
Launcher = Callable[[Execution], None]


class Engine:
    """The runs of one store: executes those of this process, and reads the journals of all."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        kernel.on_close(self.close)
        self.scopes = kernel.part(Scopes)
        self.log = kernel.log
        self.pool = Pool("holdfast-run")
        self.active: dict[str, Execution] = {}
        self.jobs: dict[str, PoolCall] = {}
        self.launch_async: Launcher | None = None
        self.agents = AgentSteps()
        self.supervisor = Supervisor(self)
        self._free = Waiters()
        self._busy: dict[str, int] = {}  # the run that a thread starts or resumes
        self._is_open = True

    # --- starting --------------------------------------------------------------------------------

    def start(
        self,
        function: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        id: str | None = None,
        if_exists: str = "error",
        queue: str | None = None,
        subject: str | None = None,
    ) -> Run[Any]:
        """Creates a run and executes it in this process; with a queue, it is only queued."""
        defined = self._check_function(function, queue)
        if if_exists not in ("error", "attach"):
            raise UsageError(f'if_exists is "error" or "attach", found {show_value(if_exists)}')
        if queue is not None:
            queue = check_name(queue, "queue")
        defined.signature.check(args, kwargs)
        inputs = defined.signature.inputs(args, kwargs)
        id = check_id(new_id(self.log.clock) if id is None else id)
        if subject is not None:
            for stream in streams_of(id):
                self.log.give_to(stream, subject)
        self._take_seals(id, inputs)
        created = events.Created(defined.name, self.storing(id)(inputs), queue=queue)
        failure = Failure()
        if self._create(id, defined, created, queue, failure):
            return Run(self, id, failure)
        if if_exists == "error":
            raise ExistsError(
                f'run "{id}" exists already', hint='resume it, or start with if_exists="attach"'
            )
        return self.resume(id)

    def _take_seals(self, id: str, inputs: bytes) -> None:
        """Gives a new run to the subject whose sealed values are among its inputs, if there are."""
        of = {*codec.subjects_in(inputs)} if codec.SEALED_VALUE in inputs else set[str]()
        of = {one for one in of if not self.log.sealing.keys.is_erased(one)}
        if not of:
            return
        owner = self.log.subject_of(f"run/{id}")
        if len(of | {owner or min(of)}) > 1:
            raise two_subjects(id, owner or min(of), max(of - {owner or min(of)}))
        for stream in streams_of(id):
            if self.log.head(stream) is None:
                self.log.become(stream, min(of))

    def _create(
        self,
        id: str,
        function: RunFunction[..., Any],
        created: events.Created,
        queue: str | None,
        failure: Failure | None = None,
    ) -> bool:
        """Creates a run and launches it unless it is queued; False if the id is in use."""
        with self.only_one(id):
            began = None if id in self.active else self.free_after(id)
            if began is None:
                return False
            journal = Journal(began)
            if queue is not None:
                marks = status_marks(id, "pending", self.log.clock.now_us())
                return self._begin(id, journal, [created], marks, None)
            lease = self.acquire_lease(id)
            if lease is None:
                # Another worker took the lease but has not created the run: it is slow, paused or
                # dead. So the run is created here as pending and due, and a worker claims it when
                # the lease is free.
                marks = status_marks(id, "pending", self.log.clock.now_us())
                return self._begin(id, journal, [created], marks, None)
            claimed = events.Claimed(lease.owner, lease.epoch, function.code)
            try:
                marks = status_marks(id, "running")
                is_new = self._begin(id, journal, [created, claimed], marks, lease)
            except BaseException:
                self.release_lease(lease)
                raise
            if not is_new:
                self.release_lease(lease)
                return False
            self._launch(Execution(self.log, id, function, journal, lease, failure))
            return True

    @contextlib.contextmanager
    def only_one(self, id: str) -> Generator[None]:
        """The block in which one thread of this process at a time may start or resume a run.

        To the backend two threads are one worker, and it would give both the same lease. If a
        thread finds its own id here, an interrupt kept it from cleaning up when it left.
        """
        me, gate = threading.get_ident(), shut_gate()
        try:
            self._free.add(gate)
            while self._busy.setdefault(id, me) != me:
                gate.acquire(timeout=SLICE_S)
            yield
        finally:
            self._free.remove(gate)
            if self._busy.get(id) == me:
                del self._busy[id]
            self._free.wake()

    def _begin(
        self, id: str, journal: Journal, first: list[Any], marks: Marks, lease: Lease | None
    ) -> bool:
        new_events: list[NewEvent] = []
        for event in first:
            journal.apply(event)
            new_events.append(new_event(event))
        writes = [StreamWrite(f"run/{id}", tuple(new_events), expected=journal.began)]
        # The first event of a stream decides which subject it belongs to. So all streams of a
        # subject's run are begun here, before anybody else can begin one of them without a subject.
        writes += [
            StreamWrite(stream, (changed([]),))
            for stream in streams_of(id)[1:]
            if stream in self.log.sealing.intended or stream in self.log.sealing.becoming
        ]
        fence = None if lease is None else Fence(lease.name, lease.owner, lease.epoch)
        try:
            self.log.commit(ProposedCommit(tuple(writes), fence=fence, marks=marks))
        except ConflictError:
            return False
        return True

    def resume(self, id: str) -> Run[Any]:
        """Resumes a run that waits or whose owner is dead; if it runs already, only returns it."""
        id = check_id(id)
        began = monotonic()
        with self.only_one(id):
            if (active := self.active.get(id)) is not None:
                return Run(self, id, active.failure)
            lease = None if self.ended(id) is not None else self.acquire_lease(id)
            if lease is None:
                self.supervisor.forget(id)  # it has ended, or another worker has it
                return Run(self, id)
            run = None
            try:
                run = self._claim(id, lease)
            finally:
                if run is None:
                    self.release_lease(lease)
            self.supervisor.forget(id)
            if run is not None:
                if self.log.observers is not None:
                    epoch = run.lease.epoch
                    self.log.observers.tell("recovery", id, began, run=id, epoch=epoch)
                self._launch(run)
        return Run(self, id, None if run is None else run.failure)

    def _claim(self, id: str, lease: Lease) -> Execution | None:
        """Reads a run's journal and records this worker as its owner; None if it has ended."""
        while (journal := self.journal_of(id)).ended is None:
            assert journal.created is not None, "BUG: a run that was not created"
            function = self._check_function(find_run(journal.created.name), None)
            for stream in streams_of(id)[1:]:  # those that no process has begun yet
                self.log.give_as(stream, f"run/{id}")
            run, read = Execution(self.log, id, function, journal, lease), journal.revision
            before = journal.claims[-1].code if journal.claims else None
            run.record(events.Claimed(lease.owner, lease.epoch, function.code))
            if None not in (before, function.code) and before != function.code:
                run.note("", "the code of the run has changed since it was executed before")
            try:
                run.look()
                run.commit(status_marks(id, "running"), expected=read)
            except OwnerLost as lost:
                # A commit of an earlier pass, under the same lease and with an unknown outcome, was
                # written after the journal was read. The lease fences every other worker, so it is
                # safe to read the journal again and claim the run at its new revision.
                if not isinstance(lost.cause, ConflictError):
                    raise lost.cause from lost
                _logger.debug('run "%s" is read again: %s', id, lost.cause)
            else:
                return run
        return None

    def acquire_lease(self, id: str) -> Lease | None:
        """Takes the run's lease and keeps renewing it; None if another worker has it.

        The lease writes no event: the `claimed` event records its epoch, fenced by the lease.
        """
        self._check_open()
        began, name = monotonic(), f"run/{id}"
        lease = self.kernel.leases.hold(name, ttl_s=LEASE_S)
        if self.log.observers is not None:
            epoch = 0 if lease is None else lease.epoch
            self.log.observers.tell("lease", name, began, run=id, epoch=epoch)
        return lease

    def release_lease(self, lease: Lease) -> None:
        """Gives a run's lease back."""
        self.kernel.leases.drop(lease)
        self.log.leases.release(lease)

    def _check_function(self, function: object, queue: str | None) -> RunFunction[..., Any]:
        if not is_run(function):
            raise UsageError(
                f"a run is started from its function, found {show_value(function)}",
                hint="put @holdfast.run above it",
            )
        if function.is_async and self.launch_async is None and queue is None:
            raise UsageError(
                f'run "{function.name}" is async', hint="start it from a store of holdfast.aio"
            )
        return function

    # --- executing -------------------------------------------------------------------------------

    def _launch(self, run: Execution) -> None:
        self.active[run.id] = run
        run.is_sure = partial(self.kernel.leases.is_sure, run.lease)
        run.confirm = partial(self._confirm, run)
        run.record_context = self.kernel.part(RecordContext)
        run.new_commit = partial(
            JointCommit, run.record_context, self.scopes.scope, key=None, lease=None
        )
        run.before_effect = partial(self._before_effect, run.id)
        self.supervisor.begin()
        if run.function.is_async:
            assert self.launch_async is not None, "BUG: checked before"
            try:
                self.launch_async(run)
            except BaseException:
                # The loop was closed. Nothing else would ever release the run.
                self.active.pop(run.id, None)
                self.release_lease(run.lease)
                raise
            return
        job = PoolCall(lambda: ContextVars().run(self._execute, run))
        self.jobs[run.id] = job
        self.pool.submit(job)

    def _before_effect(self, id: str, effect: str) -> None:
        """Applies the store's policy on effects that no open decision covers; may raise."""
        scope = self.scopes.workflow(id)
        check_effect(self.kernel.part(RecordContext), scope, effect)

    def _confirm(self, run: Execution) -> None:
        """Renews the lease now; if it cannot, the run is left, and this raises why."""
        try:
            self.kernel.leases.keep(run.lease, ttl_s=LEASE_S)
        except BaseException as error:
            raise run.lost(error) from error

    def _execute(self, run: Execution) -> None:
        context = Context(run, Block(run.journal), None, self)
        run.contexts.append(context)
        control: BaseException | None = None
        try:
            control = context._drive(perform_pass(context))
        except BaseException as error:
            control = run.lost(error)
        finally:
            self.finish_pass(run, control)

    def finish_pass(self, run: Execution, control: BaseException | None) -> None:
        """Releases a run after a pass, watches for what wakes it, and informs its parent."""
        run.close()
        run.outcome = control
        if isinstance(control, RunSuspended):
            if self.log.observers is not None:
                self.log.observers.tell(
                    "wait", control.reason, monotonic(), run=run.id, until_us=control.until
                )
            self.supervisor.watch(run.id, WakeCondition(control.until, run.seen, control.children))
        with self.only_one(run.id):
            self.active.pop(run.id, None)
            self.jobs.pop(run.id, None)
            if self._is_open:
                try:
                    self.release_lease(run.lease)
                except HoldfastError as error:
                    _logger.debug('the lease of run "%s" is left to run out: %s', run.id, error)
        if isinstance(control, OwnerLost) and isinstance(control.cause, LeaseLostError):
            self.supervisor.take_up(run.id)
        try:
            if isinstance(control, Parked) and self._is_open:
                # A stop may have come while the run was being parked. Its sender saw that the run
                # had an owner, and left the stop to it, that is to this pass.
                run.inbox.look()
                if run.inbox.stop() is not None:
                    self.cancel(run.id)
                    if run.journal.cleanups:
                        self.supervisor.take_up(run.id)
            if run.journal.ended is not None:
                self._tell_parent(run)
        except BaseException as error:
            # A parent that was not informed looks at its children's journals from time to time.
            _logger.warning(
                'run "%s" was left, and what follows from that failed: %s', run.id, error
            )
            if not isinstance(error, HoldfastError):
                run.outcome = OwnerLost(error)
        finally:
            run.over.set()
            for tell in tuple(run.when_over):
                tell()

    def _tell_parent(self, run: Execution) -> None:
        created = run.journal.created
        if created is not None and created.parent is not None:
            parent = created.parent
            if self.ended(parent) is None:
                self.send(parent, "steer", None, name=message_name("child", run.id), key=run.id)

    def start_child(self, run: Execution, id: str, spec: ChildSpec, path: str) -> None:
        """Starts a child, or resumes it if an earlier pass of the parent started it."""
        for stream in streams_of(id):
            self.log.give_as(stream, run.stream)
        self._take_seals(id, bytes(spec.inputs))
        inputs = self.storing(id)(spec.inputs)
        created = events.Created(spec.function.name, inputs, run.id, path, spec.policy)
        if self._create(id, spec.function, created, None):
            return
        found, parent = self.created_of(id), run.journal.entries[path].origin or run.id
        is_ours = (found.parent, found.path) == (parent, path)
        if not is_ours and (found.name, found.inputs) != (created.name, created.inputs):
            raise ExistsError(
                f'run "{id}" exists already, and is not the child that is asked for here',
                hint="give the child an id of its own, or none",
            )
        self.resume(id)

    def child_ended(self, run: Execution, id: str) -> events.Ended | None:
        """Waits for a child's pass in this process, and returns how the child ended.

        None if it has not ended: it waits for something itself, or is executed elsewhere.
        """
        while True:
            job, child = self.jobs.get(id), self.active.get(id)
            if child is None:
                return self.ended(id)
            if job is not None:
                job.do()
            while not child.over.wait(SLICE_S):
                run.check()

    # --- reading ---------------------------------------------------------------------------------

    def journal_of(self, id: str) -> Journal:
        """Reads a run's whole journal, or raises NotFoundError."""
        began = self.log.life(f"run/{id}")
        journal = Journal(began)
        for record in self.log.records(f"run/{id}", after=began):
            journal.apply(events.read(record.type, record.payload))
        if journal.created is None:
            raise self._no_run(id)
        return journal

    def created_of(self, id: str) -> events.Created:
        """Returns how a run was created: its function and inputs. Reads its first record alone."""
        began = self.log.life(f"run/{id}")
        for record in self.log.records(f"run/{id}", after=began, until=began + 1):
            return codec.decode_as(record.payload, events.Created)
        raise self._no_run(id)

    def ended(self, id: str) -> events.Ended | None:
        """Returns the end of a run, from its last records; None if it has not ended.

        Only verdicts can follow the end: on acts that were under way when the run ended.
        """
        event = self._newest(id)
        while event is not None and isinstance(event[1], events.Settled):
            event = self._event_at(id, event[0] - 1)
        if event is None or isinstance(event[1], events.Removed):
            raise self._no_run(id)
        return event[1] if isinstance(event[1], events.Ended) else None

    def _no_run(self, id: str) -> NotFoundError:
        """Returns the error for a run that is not there, or whose subject was erased.

        While a hold on one scope keeps the key, only the subject's own stream says that.
        """
        stream = f"run/{id}"
        subject = self.log.subject_of(stream)
        if subject is not None and (
            self.log.newest(stream_of(stream, subject)).root.get("erasing")
            or self.log.sealing.keys.is_erased(subject)
        ):
            return ErasedError(subject, f'run "{id}"')
        return no_run(id)

    def free_after(self, id: str) -> int | None:
        """Returns the revision after which a new run of an id begins; None if the id is in use."""
        event = self._newest(id)
        if event is None:
            return 0
        return event[0] if isinstance(event[1], events.Removed) else None

    def _newest(self, id: str) -> tuple[int, Struct | None] | None:
        """Returns the last event of a run's stream, with its revision."""
        head = self.log.head(f"run/{id}")
        return None if head is None else self._event_at(id, head.revision)

    def _event_at(self, id: str, revision: int) -> tuple[int, Struct | None]:
        [record] = self.log.records(f"run/{id}", after=revision - 1, until=revision)
        return revision, events.read(record.type, record.payload)

    def load(self, raw: Any) -> Any:
        """Returns a recorded value."""
        return values.decode(raw, self.log.blobs.read)

    def storing(self, id: str) -> Callable[[bytes], Raw]:
        """Returns the function that puts encoded values into a run's events, or into blobs."""
        return partial(stored, self.log, f"run/{id}")

    def state_of(self, id: str) -> Scope:
        """Returns the scope of a run's own state."""
        return self.scopes.workflow(id)

    def is_due(self, id: str, waits: events.Suspended) -> bool:
        """Returns whether a suspended run can go on: its time has come, or there is news for it.

        Every caller that waits for the run asks this, because the process that suspended it, and
        that would have woken it, may be dead.
        """
        if (waits.until or 1 << 62) <= self.log.clock.now_us():
            return True
        head = self.log.head(inbox.stream_of(f"run/{id}"))
        return (head is not None and head.revision > waits.seen) or self.any_ended(waits.children)

    def any_ended(self, ids: tuple[str, ...]) -> bool:
        """Returns whether one of these runs has ended or was removed."""
        return any(self.free_after(id) is not None or self.ended(id) is not None for id in ids)

    def progress_of(self, id: str) -> blocks.Progress:
        """Returns what a run is doing: exactly if it runs here, else as its journal says."""
        run = self.active.get(check_id(id))
        if run is not None:
            return blocks.progress_of(run)
        return blocks.recorded_progress(self.journal_of(id))

    def await_end(self, id: str, timeout_s: Duration | None) -> events.Ended:
        """Waits for a run's end, wherever it runs; resumes it if its owner dies meanwhile."""
        left_s = check_timeout(timeout_s)
        run = self.active.get(id)
        while True:
            job = self.jobs.get(id)
            if run is not None and job is not None and left_s is None:
                job.do()
            position = self.log.position()
            if (ended := self.look_at(id, run)) is not None:
                return ended
            if left_s is not None and left_s <= 0:
                raise StillRunningError(id, self.progress_of(id).status)
            slice_s = SLICE_S if left_s is None else min(SLICE_S, left_s)
            if run is None or run.over.is_set():
                run = self.active.get(id)
            if run is not None:  # keep this object: its outcome says whether it was lost meanwhile
                run.over.wait(slice_s)
            else:
                self.log.wait_after(position, timeout_s=slice_s)
            left_s = None if left_s is None else left_s - slice_s

    def look_at(self, id: str, run: Execution | None) -> events.Ended | None:
        """Returns a run's end if it has ended; raises if it is parked, or was lost here.

        A run that is due and has no owner is resumed.
        """
        if run is not None:
            if not run.over.is_set():
                return None
            if isinstance(run.outcome, OwnerLost):
                cause = run.outcome.cause
                if not isinstance(cause, LeaseLostError):
                    raise cause
                if (ended := self.ended(id)) is not None:
                    return ended  # its next owner has ended it already
                raise _passed_on(id, cause) from cause
        if (ended := self.ended(id)) is not None:
            return ended
        if id in self.active:
            return None
        journal = self.journal_of(id)
        status = journal.status
        if status == "needs_attention":
            raise attention_of(id, journal)
        assert journal.created is not None, "BUG: a run that was not created"
        waits = journal.suspended
        is_due = waits is None or self.is_due(id, waits)
        is_ours = has_run(journal.created.name) and journal.created.queue is None
        if is_due and is_ours and self.log.leases.holder(f"run/{id}") is None:
            self.resume(id)
        return None

    def _opened_for(self, id: str, value: Any) -> Any:
        """Returns what is sent to a run, with the seals opened that its own inbox has as a whole.

        Raises UsageError if the run is not the subject's: its journal would have it in clear.
        """
        encoded = codec.encode(value)
        if codec.SEALED_VALUE not in encoded:
            return value
        if codec.subjects_in(encoded) != {self.log.subject_of(f"run/{id}")}:
            raise UsageError(
                f'what is sent to run "{id}" has values that are sealed for a subject, and the run '
                "is not that subject's",
                hint="start such a run with subject=…",
            )
        return codec.decode(
            encoded, blob=lambda name, size: self.load(Raw(codec.reference(name, size)))
        )

    def send(
        self, id: str, kind: str, value: Any, *, name: str | None = None, key: str | None = None
    ) -> int:
        """Puts a message into a run's inbox; a message of a waking kind makes the run due."""
        if self.ended(check_id(id)) is not None:
            raise UsageError(f'run "{id}" has ended: nobody would take a message')
        value = self._opened_for(id, value)
        marks = self.supervisor.waking_marks(id) if kind in inbox.WAKING else ()
        revision = inbox.send(self.log, f"run/{id}", kind, value, name=name, id=key, marks=marks)
        self.supervisor.wake()
        return revision

    def cancel(self, id: str, *, now: bool = False) -> None:
        """Asks a run to stop (rule 9); a run without an owner is ended here.

        A run with cleanups to do is only made due, unless `now` is given: a worker that can execute
        it does the cleanups. This process may have neither its code nor its executor.
        """
        id = check_id(id)
        if self.ended(id) is not None:
            return
        inbox.send(self.log, f"run/{id}", "stop", id="stop")
        with self.only_one(id):
            run = self.active.get(id)
            if run is not None:
                run.stop_wanted = True
                run.interrupt()
                return
            lease = self.acquire_lease(id)
            if lease is None:
                return  # its owner learns of the stop from the receipt of its next commit
            try:
                journal = self.journal_of(id)
                if journal.ended is None and journal.cleanups and not now:
                    self._leave_to_clean(id, lease, journal)
                    return
                if journal.ended is None:
                    marks = status_marks(id, "cancelled")
                    self.append(id, lease, [events.Ended("cancelled")], marks)
                self.supervisor.forget(id)
            finally:
                self.release_lease(lease)
        for child in children_to_cancel(journal, is_cancelled=True):
            self.cancel_child(id, child)

    def suspend(self, id: str, reason: str) -> bool:
        """Suspends a run that is executed here; returns whether it was executed here.

        Unlike a cancel this is not an outcome. Only `resume` or a message to the run wakes it.
        """
        with self.only_one(id):
            run = self.active.get(id)
            if run is not None:
                run.suspend(reason)
        return run is not None

    def _leave_to_clean(self, id: str, lease: Lease, journal: Journal) -> None:
        """Makes a stopping run without an owner due, so that a worker does its cleanups."""
        marks = (Mark(INDEX, id, group="cancelling"), Mark(DUE, id, self.log.clock.now_us()))
        added = [events.Cancelling()] if journal.cancelling is None else []
        self.append(id, lease, added, marks)
        self.supervisor.wake()

    def cancel_child(self, parent: str, id: str) -> None:
        """Cancels a child, unless it was never started or belongs to another run."""
        try:
            if self.created_of(id).parent == parent:
                self.cancel(id)
        except NotFoundError as error:
            _logger.debug('no child of run "%s" to cancel: %s', parent, error)

    def append(self, id: str, lease: Lease, added: list[Any], marks: Marks) -> None:
        """Adds events to the journal of a run whose lease this process holds, outside a pass."""
        new_events = tuple(new_event(e) for e in added)
        fence = Fence(lease.name, lease.owner, lease.epoch)
        writes = (StreamWrite(f"run/{id}", new_events),) if new_events else ()
        self.log.commit(ProposedCommit(writes, fence=fence, marks=marks))

    # --- ending ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops every run of this process where it is; each can be resumed."""
        self._is_open = False
        runs = list(self.active.values())
        self.supervisor.close()
        for run in runs:
            run.lost(UsageError("the store was closed"))

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError("the store is closed", hint="open it again with holdfast.open")

"""Blocks of a run (its body, parallel branches, folds, nested runs), and its progress.

Generators and plain functions, without I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from msgspec import Raw, Struct

from holdfast.core import codec
from holdfast.errors import StepError, UsageError, show_value
from holdfast.runs import events, values, waits
from holdfast.runs.define import RunFunction, Signature, is_run, is_step
from holdfast.runs.events import Fault
from holdfast.runs.execution import Execution, children_to_cancel, open_children, status_marks
from holdfast.runs.journal import (
    CLEANUP,
    Answer,
    Block,
    Entry,
    Journal,
    digest_of,
    escape,
    iteration,
)
from holdfast.runs.operation import (
    COMMIT,
    SETTLE,
    Call,
    Cancelled,
    Control,
    Enter,
    Finish,
    Fork,
    Operation,
    OwnerLost,
    Parked,
    RunSuspended,
    Stopped,
    passed_through,
)


class LoopPosition(Struct, frozen=True):
    """A loop that the run is in."""

    name: str
    index: int
    total: int | None
    kind: str = "each"

    def __str__(self) -> str:
        text = f"{self.name}: iteration {self.index + 1}"
        if self.total is None:
            return text
        return f"{text}, at most {self.total}" if self.kind == "loop" else f"{text} of {self.total}"


_LASTING = frozenset(("each", "repeat", "loop", "fold", "run", "block", "child", CLEANUP))
"""Kinds of operations that stay open while later ones are performed."""


class CurrentOperation(Struct, frozen=True, gc=False):
    """The operation that a block is at."""

    path: str
    label: str
    attempts: int


class Progress(Struct, frozen=True):
    """What a run is doing now, with one statement for each branch that is at work."""

    status: events.Status
    statements: tuple[str, ...]
    blocks: tuple[str, ...]
    last_done: str | None

    def __str__(self) -> str:
        where = ", ".join(self.blocks)
        what = "; ".join(self.statements)
        return " / ".join(part for part in (self.status, where, what) if part)


def progress_of(run: Execution) -> Progress:
    """Returns the progress of a run that is executed in this process."""
    statements: list[str] = []
    loops: dict[str, None] = {}
    for context in list(run.contexts):
        current: CurrentOperation | None = context._current
        for loop in list(context._loops):
            loops[str(loop)] = None
        if current is not None:
            entry = run.journal.entries.get(current.path)
            statements.append(_statement(current.path, entry, current.attempts))
    status = "cancelling" if run.stop_wanted else run.journal.status
    return Progress(status, tuple(statements), tuple(loops), run.journal.last_done)


def recorded_progress(journal: Journal) -> Progress:
    """Returns the progress of a run as its journal tells."""
    statements: list[str] = []
    loops: dict[str, None] = {}
    for entry in at_work(journal):
        statements.append(_statement(entry.path, entry, entry.attempts))
        loops.update(dict.fromkeys(map(str, loops_at(journal, entry.path))))
    return Progress(journal.status, tuple(statements), tuple(loops), journal.last_done)


def at_work(journal: Journal) -> list[Entry]:
    """Returns the newest operation of the body, or of each branch that has not ended.

    An operation that is still open is preferred to any that has ended.
    """
    entries = journal.entries
    parallels = [e.path for e in entries.values() if e.kind == "parallel" and e.state == "open"]
    places = {path: _place_of(path, parallels) for path in entries}
    # A body or branch that waits for a parallel block is represented by the block's branches.
    left = {place.rpartition("/")[0] for place in places.values()}
    newest: dict[str, tuple[bool, int, Entry]] = {}
    for path, entry in entries.items():
        place = places[path]
        ended = entries.get(place)
        if path in left or (ended is not None and ended.state != "open"):
            continue
        is_open = entry.state == "open" and entry.kind not in _LASTING
        rank = (is_open, entry.revision, entry)
        newest[place] = max(newest.get(place, rank), rank, key=lambda rank: rank[:2])
    inside = {_place_of(block, parallels) for block in left if block}
    found = [entry for place, (_, _, entry) in newest.items() if place not in inside]
    # If all branches have ended and the block has not recorded that yet, the block is at work.
    return found or [entries[path] for path in parallels[-1:]]


def _place_of(path: str, parallels: list[str]) -> str:
    """Returns the path of the branch that an operation is in; empty if it is in the body."""
    place = ""
    for block in parallels:
        if path.startswith(f"{block}/"):
            name = path[len(block) + 1 :].partition("/")[0]
            place = max(place, f"{block}/{name}", key=len)
    return place


def _statement(path: str, entry: Entry | None, attempts: int) -> str:
    """Returns an operation as text: where it is, and the attempt, the next one after a failure."""
    attempt = 1 if entry is None else entry.attempt + (entry.retry_at is not None)
    tries = f" (attempt {attempt} of {attempts})" if attempts > 1 else ""
    source = f" at {entry.source}" if entry is not None and entry.source else ""
    return f"{path}{source}{tries}"


def loops_at(journal: Journal, path: str) -> list[LoopPosition]:
    """Returns the loops around a path, from the totals that they were opened with."""
    found: list[LoopPosition] = []
    for end in [place for place, char in enumerate(path) if char == "]"]:
        loop, _, index = path[:end].rpartition("[")
        entry = journal.entries.get(loop)
        if entry is not None and (entry.total is not None or entry.kind == "loop"):
            name = entry.label or entry.name or entry.kind
            number = _number_of(journal, loop, index, entry.total)
            found.append(LoopPosition(name, number, entry.total, entry.kind))
    return found


def _number_of(journal: Journal, loop: str, index: str, total: int | None) -> int:
    """Returns the number of an iteration in its loop.

    Named iterations (`by=`) are counted in the order of their records; those that recorded nothing
    are not counted.
    """
    if total is None:
        return int(index)
    names = iterations_of(journal, loop)
    if all(name.isdigit() and int(name) < total for name in names):
        return int(index)
    return names.index(index)


def iterations_of(journal: Journal, loop: str) -> list[str]:
    """Returns the names of a loop's iterations that recorded something, in order."""
    begin = f"{loop}["
    paths = [
        (entry.revision, path) for path, entry in journal.entries.items() if path.startswith(begin)
    ]
    return list(dict.fromkeys(path[len(begin) :].partition("]")[0] for _, path in sorted(paths)))


def opened(
    answer: Answer,
    kind: str,
    name: str,
    total: int | None,
    digest: str | None = None,
) -> events.Intended:
    """Returns the record of a block that opened."""
    return events.Intended(
        answer.path,
        answer.ordinal,
        kind,
        name,
        "pure",
        digest=digest,
        total=total,
        displaced=answer.displaced,
        label=answer.label,
        source=answer.source,
    )


# --- calling bodies ------------------------------------------------------------------------------


def invoke(context: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation:
    """Calls the body of a block: a step, a run, or a function, which gets `ctx` if it takes it."""
    if is_step(function):
        operation: Operation = context._guarded(context._step_operation(function, args, kwargs))
        return (yield from operation)
    body = function.function if is_run(function) else function
    if first_parameter(body) == "ctx":
        args = (context, *args)
    return (yield Enter(body, args, kwargs, context))


@lru_cache(maxsize=512)
def first_parameter(function: Callable[..., Any]) -> str:
    """Returns the name of a function's first parameter."""
    return Signature(function).first


def nested(
    context: Any,
    answer: Answer,
    function: RunFunction[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Operation:
    """Runs another run's body as a block of this one; a replay does not enter a finished one."""
    run: Execution = context._execution
    if answer.verdict == "diverged":
        raise run.diverge(answer)
    if answer.verdict == "replay":
        assert answer.entry is not None, "BUG: a replay of nothing"
        return function.signature.rebuild("return", run.load(answer.entry.value))
    digest = digest_of(function.signature.inputs(args, kwargs))
    if answer.verdict == "execute":
        run.record(opened(answer, "run", name, None, digest))
    outer = context._block
    block = context._block = Block(run.journal, answer.path, displaced=answer.displaced)
    try:
        value = yield from invoke(context, function, args, kwargs)
        context._close_block(block)
    finally:
        context._block = outer
    encoded = values.encode(value)
    run.record(events.StepDone(answer.path, run.store(encoded)))
    return function.signature.rebuild("return", codec.decode(encoded))


def fold(
    context: Any,
    answer: Answer,
    name: str,
    items: list[Any],
    init: Any,
    body: Any,
) -> Operation:
    """Performs a fold, beginning with the first iteration that has no record."""
    run: Execution = context._execution
    if answer.verdict == "diverged":
        raise run.diverge(answer)
    if answer.verdict == "replay":
        assert answer.entry is not None, "BUG: a replay of nothing"
        return run.load(answer.entry.value)
    if answer.verdict == "execute":
        run.record(opened(answer, "fold", name, len(items)))
    encoded = values.encode(init)
    outer, depth = context._block, len(context._loops)
    try:
        for number, item in enumerate(items):
            path = iteration(answer.path, number)
            digest = digest_of(values.encode(item))
            entry = run.journal.entries.get(path)
            if entry is not None:
                if entry.digest != digest and (path, "inputs") not in run.journal.adopted:
                    found = f"item {number} with digest {digest}"
                    expected = f"item {number} with digest {entry.digest}"
                    raise run.park_diverged(path, "inputs", expected, found, "")
                assert entry.value, "BUG: an iteration without a value"
                encoded = bytes(entry.value)
                continue
            block = context._block = Block(run.journal, path, displaced=answer.displaced)
            context._loops[depth:] = [LoopPosition(answer.label or name, number, len(items))]
            carried = values.decode(encoded, run.log.blobs.read)
            value = yield from invoke(context, body, (carried, item), {})
            context._close_block(block)
            encoded = bytes(run.store(values.encode(value)))
            run.record(
                events.StepDone(
                    path, Raw(encoded), kind="iteration", name=name, effect="pure", digest=digest
                )
            )
    finally:
        context._block = outer
        del context._loops[depth:]
    run.record(events.StepDone(answer.path, Raw(encoded)))
    return values.decode(encoded, run.log.blobs.read)


def clean_up(context: Any, answer: Answer, call: Branch, error: BaseException | None) -> Operation:
    """Performs a cleanup after its part of the body was left, normally, by an error or by a stop.

    Its operations are in a block of their own, and a stop does not refuse them. After a stop, a
    failure of the cleanup is only noted, and the stop goes on.
    """
    run: Execution = context._execution
    path, is_stop = answer.path, isinstance(error, Control)
    is_replayed = path not in run.journal.cleanups
    left_with, context._leaving = context._leaving, None
    outer, depth = context._block, len(context._loops)
    left_loops, context._left_loops = context._left_loops, []
    block = context._block = Block(run.journal, path, displaced=answer.displaced)
    run.cleaning[path] = context._is_stopped
    try:
        yield SETTLE
        yield from invoke(context, call.function, call.args, call.kwargs)
        if context._leaving is not None:
            raise context._leaving  # it was swallowed
        context._close_block(block)
        if not is_replayed:
            run.record(events.StepDone(path))
    except Exception as failed:
        if not is_replayed:
            run.record(events.Failed(path, values.fault_of(failed)))
        if not is_stop:
            raise
        run.note(path, f"the cleanup failed: {values.text_of(failed)}")
    except Control as control:
        left_with = left_with or context._stop_of(control)
        if isinstance(control, OwnerLost):
            left_with = control
        if left_with is control:
            raise
        if not is_stop:
            raise left_with from control
        run.note(path, f"the cleanup was left: {values.text_of(control)}")
    finally:
        context._block, context._leaving = outer, left_with
        context._left_loops = left_loops
        del context._loops[depth:]
        del run.cleaning[path]
    if not is_stop and not is_replayed:
        # A stop that came during the cleanup takes effect now. This pass performed the cleanup, so
        # the outer block has no records beyond this point.
        context._begin()
        if outer.refuse is not None:
            raise outer.refuse()


# --- parallel ------------------------------------------------------------------------------------


class Branch(Struct, frozen=True):
    """One arm of a parallel block, not yet begun."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Outcome(Struct, frozen=True):
    """How a branch ended: its value, or its error."""

    value: Any = None
    error: StepError | None = None

    @property
    def ok(self) -> bool:
        """Whether it has a value."""
        return self.error is None


class Enough(int):
    """A join policy: a number of successes ends the block, and too few are not a failure.

    If too few branches succeed, all are waited for. The block returns `Outcome`s: those of the
    successes that counted or, if there were too few, of all branches.
    """


class ParallelJoin:
    """The state of a parallel block: its branches, how they ended, and whether it is decided."""

    def __init__(self, branches: dict[str, Branch], join: str | int) -> None:
        self.branches = branches
        self.join = join
        self.order: list[str] = []  # branches that ended with a value, in the order they ended
        self.faults: dict[str, Fault] = {}
        self.causes: dict[str, BaseException] = {}
        self.controls: list[Control] = []
        self.contexts: dict[str, Any] = {}
        self.over: set[str] = set()  # branches that are not at work any more, however they ended

    @property
    def needed(self) -> int:
        """How many branches must end with a value."""
        if isinstance(self.join, int):
            return self.join
        return 1 if self.join == "first" else len(self.branches)

    @property
    def decided(self) -> bool:
        """Whether the outcome is fixed, whatever the other branches do."""
        if self.settles and len(self.order) + len(self.faults) == len(self.branches):
            return True
        if self.join == "settle":
            return False
        if isinstance(self.join, Enough):
            return len(self.order) >= self.needed
        spare = len(self.branches) - self.needed
        return len(self.order) >= self.needed or len(self.faults) > spare

    @property
    def settles(self) -> bool:
        """Whether it returns outcomes, including failures, instead of failing."""
        return self.join == "settle" or isinstance(self.join, Enough)

    @property
    def returns_early(self) -> bool:
        """Whether a branch that is still at work may be given up."""
        return self.join not in ("all", "settle")

    def ended(self, name: str, error: BaseException | None, fault: Fault | None) -> None:
        """Counts a branch that has ended."""
        self.over.add(name)
        if isinstance(error, Control):
            self.controls.append(error)
        elif fault is not None:
            self.faults[name] = fault
            if error is not None:
                self.causes[name] = error
        else:
            self.order.append(name)

    def control(self) -> Control | None:
        """Returns the most serious control exception of the branches, to leave the block with.

        If all of them are waits, they are combined into one.
        """
        left = [control for control in self.controls if not isinstance(control, Stopped)]
        for control in left:
            if not isinstance(control, RunSuspended):
                return control
        waiting = [control for control in left if isinstance(control, RunSuspended)]
        if not waiting:
            return None
        times = [control.until for control in waiting if control.until is not None]
        reason = "; ".join(control.reason for control in waiting)
        seen = [control.seen for control in waiting if control.seen is not None]
        children = tuple(child for control in waiting for child in control.children)
        return RunSuspended(reason, min(times, default=None), min(seen, default=None), children)


def check_join(join: object, count: int) -> str | int:
    """Returns the join policy if it is valid, or raises UsageError."""
    if not count:
        raise UsageError("parallel was given no branches")
    if join in ("all", "settle", "first"):
        return str(join)
    if isinstance(join, bool) or not isinstance(join, int) or not 1 <= join <= count:
        raise UsageError(
            f'join is "all", "settle", "first" or a number up to {count}, found {show_value(join)}'
        )
    return join


def shape_of(branches: dict[str, Branch]) -> str:
    """Returns a digest of the branches' names, which tells whether a replay has the same ones."""
    for name, branch in branches.items():
        values.check_name_text(name, "a branch's name")
        if not isinstance(branch, Branch):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f'branch "{name}" is {show_value(branch)}', hint="wrap it: ctx.branch(function, …)"
            )
    return digest_of(codec.encode(sorted(branches)))


def parallel(context: Any, answer: Answer, joining: ParallelJoin) -> Operation:
    """Runs the branches that have not ended yet, and returns their values by the join policy."""
    run: Execution = context._execution
    path, entries = answer.path, run.journal.entries
    if answer.verdict == "diverged":
        raise run.diverge(answer)
    if answer.verdict == "replay":
        assert answer.entry is not None, "BUG: a replay of nothing"
        return _joined(run, joining, answer.entry)
    if answer.verdict == "execute":
        shape = shape_of(joining.branches)
        run.record(opened(answer, "parallel", "", len(joining.branches), shape))
    places = {name: f"{path}/{escape(name)}" for name in joining.branches}
    for name, place in _by_end(entries, places):
        entry = entries[place]
        joining.ended(name, None, entry.error)
    if not joining.decided:
        left = [name for name in joining.branches if name not in joining.over]
        yield _forked(context, answer, joining, left)
        if not joining.decided and (control := joining.control()) is not None:
            raise control
    if run.journal.cleanups and (losers := _uncleaned(run, joining, places)):
        yield _forked(context, answer, joining, losers)
    error = _verdict(joining)
    if error is not None:
        run.record(events.Failed(path, error[1]))
        raise values.error_of(error[1], path) from joining.causes.get(error[0])
    order = joining.order if not joining.returns_early else joining.order[: joining.needed]
    run.record(events.StepDone(path, run.store(codec.encode(order))))
    return _joined(run, joining, entries[path])


def _forked(context: Any, answer: Answer, joining: ParallelJoin, names: list[str]) -> Fork:
    """Returns the act that runs these branches; if the block is decided, only to clean them up."""
    is_unwanted, journal = joining.decided, context._execution.journal
    joining.over.difference_update(names)
    joining.contexts = {}
    for name in names:
        block = Block(journal, f"{answer.path}/{escape(name)}", displaced=answer.displaced)
        joining.contexts[name] = context._inner(block)
        joining.contexts[name]._is_stopped = is_unwanted
    return Fork(joining)


def _uncleaned(run: Execution, joining: ParallelJoin, places: dict[str, str]) -> list[str]:
    """Returns the losing branches that still have cleanups to do.

    When they lost, they were waiting, or their owner had died. They are entered for the cleanups
    alone: each is left where its journal ends.
    """
    return [
        name
        for name, place in places.items()
        if name not in joining.order
        and name not in joining.faults
        and run.journal.cleans_below(place)
    ]


def _by_end(entries: dict[str, Entry], places: dict[str, str]) -> list[tuple[str, str]]:
    """Returns the branches that have ended already, in the order in which they ended."""
    ended = [
        (name, place)
        for name, place in places.items()
        if place in entries and entries[place].state != "open"
    ]
    return sorted(ended, key=lambda one: entries[one[1]].revision)


def _verdict(joining: ParallelJoin) -> tuple[str, Fault] | None:
    """Returns the failure that the whole block fails with, if it fails."""
    if joining.settles or len(joining.order) >= joining.needed:
        return None
    return next(iter(joining.faults.items()))


def _joined(run: Execution, joining: ParallelJoin, entry: Entry) -> dict[str, Any]:
    """Returns the values by branch, or raises.

    It uses the records alone, so the live result and that of a replay are the same.
    """
    if entry.error is not None:
        raise values.error_of(entry.error, entry.path)
    found: dict[str, Any] = {}
    order = run.load(entry.value)
    for name in joining.branches:
        ended = run.journal.entries.get(f"{entry.path}/{escape(name)}")
        if ended is None:
            continue
        if name in order:
            value = _rebuilt(run, joining, name, ended)
            found[name] = Outcome(value) if joining.settles else value
        elif joining.settles and ended.error is not None and len(order) < joining.needed:
            found[name] = Outcome(error=values.error_of(ended.error, ended.path))
    return found


def _rebuilt(run: Execution, joining: ParallelJoin, name: str, entry: Entry) -> Any:
    function = joining.branches[name].function
    value = run.load(entry.value)
    if is_step(function) or is_run(function):
        return function.signature.rebuild("return", value)
    return value


def branch_body(context: Any, name: str, joining: ParallelJoin) -> Operation:
    """Runs the body of one branch and records how it ended; returns its error and fault, if any."""
    run: Execution = context._execution
    branch = joining.branches[name]
    path = context._block.path
    error: BaseException | None = None
    fault: Fault | None = None
    try:
        value = yield from invoke(context, branch.function, branch.args, branch.kwargs)
        if context._left_with is not None:
            raise context._left_with  # it was swallowed: what the body returned does not count
        context._close_block(context._block)
        encoded = values.encode(value)
        run.record(
            events.StepDone(path, run.store(encoded), kind="branch", name=name, effect="pure")
        )
    except BaseException as raised:
        error = context._left_with or raised
        if isinstance(error, Exception):
            fault = values.fault_of(error)
            failed = events.Failed(path, fault, kind="branch", name=name, effect="pure")
            try:
                run.record(failed)
            except Stopped as stopped:  # the branch was given up, and the run is over
                return stopped, None
        elif not isinstance(error, Control):
            error = run.lost(raised)
    return error, fault


def perform_pass(context: Any) -> Operation:
    """Runs the body and records how it was left; returns the control exception, if any."""
    run: Execution = context._execution
    encoded = b"null"
    error: BaseException | None = None
    is_stopping = run.stop_wanted
    try:
        created = run.journal.created
        assert created is not None, "BUG: a run that was not created"
        args, kwargs = run.function.signature.arguments(run.load(created.inputs))
        value = yield from invoke(context, run.function, tuple(args), kwargs)
        if context._left_with is None:
            context._close_block(context._block)
            encoded = values.encode(value)
            yield from _await_children(context)
    except BaseException as raised:
        error = raised
    run.when_stopped = None  # the pass is over: recording its end must not be interrupted
    control = context._left_with or (error if isinstance(error, Control) else None)
    if control is None and error is not None and not isinstance(error, Exception):
        control = run.lost(error)  # an interrupt of this process, not of the run
    elif control is not None and error is not control and not isinstance(control, OwnerLost):
        run.swallowed(context._block.path, passed_through(control))
    if isinstance(control, OwnerLost):
        return control
    is_left_to_clean = run.stop_wanted and not is_stopping and bool(run.journal.cleanups)
    if isinstance(control, RunSuspended | Parked) and run.stop_wanted and not is_left_to_clean:
        control = Cancelled(f'run "{run.id}" is to stop')
    # Messages after this revision were not seen by every wait of this pass. They wake the run if
    # it is suspended; so this is the oldest look, not the newest, and no message is missed.
    run.seen = run.inbox.revision
    if isinstance(control, RunSuspended) and control.seen is not None:
        run.seen = control.seen
    if is_left_to_clean and isinstance(control, RunSuspended):
        # The run is due at once. The next pass knows of the stop from its beginning, and does the
        # cleanups.
        control = RunSuspended(control.reason, run.log.clock.now_us(), 0, control.children)
        run.seen = 0
    try:
        yield from _leave(context, control, error, encoded)
    except Control as lost:
        return lost
    return control


def _leave(
    context: Any, control: Control | None, error: BaseException | None, encoded: bytes
) -> Operation:
    """Records the end of a pass: suspended, parked, cancelled, failed or completed."""
    run: Execution = context._execution
    if isinstance(control, RunSuspended):
        until, children = control.until, control.children
        run.record_last(events.Suspended(control.reason, until, seen=run.seen, children=children))
        look_at = [run.log.clock.now_us() + waits.CHILD_LOOK_US] if children else []
        due = min([until, *look_at] if until is not None else look_at, default=None)
        yield Finish(status_marks(run.id, "waiting", due))
        return
    if isinstance(control, Parked):
        run.record_last(events.Suspended(control.reason, attention=True, seen=run.seen))
        yield Finish(status_marks(run.id, "needs_attention"))
        return
    to_cancel = children_to_cancel(run.journal, is_cancelled=isinstance(control, Cancelled))
    if to_cancel:
        # What made the body end is made durable before a child is cancelled (rule 7). Otherwise,
        # after a crash, the body might not end here when it is replayed, and need the child.
        yield COMMIT
    for id in to_cancel:
        yield Call(context._engine.cancel_child, (run.id, id))
    if isinstance(control, Cancelled):
        ended = events.Ended("cancelled")
    elif error is not None:
        run.failure.error = error
        ended = events.Ended("failed", error=values.fault_of(error))
    else:
        ended = events.Ended("completed", run.store(encoded))
    run.record_last(ended)
    yield Finish(status_marks(run.id, ended.status))


def _await_children(context: Any) -> Operation:
    run: Execution = context._execution
    for id, policy in open_children(run.journal):
        if policy == "wait":
            seen = run.inbox.revision
            with run.asking_store:
                ended = yield Call(context._engine.child_ended, (run, id))
            if ended is None:
                raise context._leave_with(waits.child_wait(id, seen))

"""The whole life of one pass through a run: its body, and what becomes of it. No I/O."""

from __future__ import annotations

from typing import Any

from holdfast.backends.protocol import Cleared, Mark
from holdfast.runs import events, values, waits
from holdfast.runs.acts import COMMIT, Call, Finish, Operation
from holdfast.runs.blocks import invoke
from holdfast.runs.control import (
    Cancelled,
    Control,
    OwnerLost,
    Parked,
    Suspended,
    passed_through,
)
from holdfast.runs.execution import DUE, INDEX, Execution, doomed_children, open_children

Marks = tuple[Mark | Cleared, ...]


def status_marks(id: str, status: events.Status, due: int | None = None) -> Marks:
    """Returns the marks of a run in a status: listed while unfinished, due if it is to be woken."""
    index = Cleared(INDEX, id) if status in events.ENDED else Mark(INDEX, id, group=status)
    if due is None:
        return (index, Cleared(DUE, id))
    return (index, Mark(DUE, id, due))


def life(context: Any) -> Operation:
    """Runs the body and records how it was left; returns the control it was left with, if any."""
    run: Execution = context.execution
    encoded = b"null"
    error: BaseException | None = None
    try:
        created = run.journal.created
        assert created is not None, "BUG: a run that was not created"
        args, kwargs = run.function.signature.arguments(run.load(created.inputs))
        value = yield from invoke(context, run.function, tuple(args), kwargs)
        if context.left_with is None:
            context.close_block(context.block)
            encoded = values.encode(value)
            yield from _await_children(context)
    except BaseException as raised:
        error = raised
    run.when_stopped = None  # the pass is over: what is left to be done must not be interrupted
    control = context.left_with or (error if isinstance(error, Control) else None)
    if control is None and error is not None and not isinstance(error, Exception):
        control = run.lost(error)  # an interrupt of this process, not of the run
    elif control is not None and error is not control and not isinstance(control, OwnerLost):
        run.swallowed(context.block.path, passed_through(control))
    if isinstance(control, OwnerLost):
        return control
    if isinstance(control, Suspended | Parked) and run.stop_wanted:
        control = Cancelled(f'run "{run.id}" is to stop')
    # What came behind this was not heeded by every wait of this pass: it wakes a suspended run.
    run.seen = run.inbox.revision
    if isinstance(control, Suspended) and control.seen is not None:
        run.seen = control.seen
    try:
        yield from _leave(context, control, error, encoded)
    except Control as lost:
        return lost
    return control


def _leave(
    context: Any, control: Control | None, error: BaseException | None, encoded: bytes
) -> Operation:
    """Records the end of a pass: suspended, parked, cancelled, failed or completed."""
    run: Execution = context.execution
    if isinstance(control, Suspended):
        until, children = control.until, control.children
        run.seal(events.Suspended(control.reason, until, seen=run.seen, children=children))
        look_at = [run.log.clock.now_us() + waits.CHILD_LOOK_US] if children else []
        due = min([until, *look_at] if until is not None else look_at, default=None)
        yield Finish(status_marks(run.id, "waiting", due))
        return
    if isinstance(control, Parked):
        run.seal(events.Suspended(control.reason, attention=True, seen=run.seen))
        yield Finish(status_marks(run.id, "needs_attention"))
        return
    doomed = doomed_children(run.journal, is_cancelled=isinstance(control, Cancelled))
    if doomed:
        # What made the body end is durable before a child hears of it (rule 7): entered again, the
        # body might not end here, and ask for the child.
        yield COMMIT
    for id in doomed:
        yield Call(context.engine.cancel_child, (run.id, id))
    if isinstance(control, Cancelled):
        ended = events.Ended("cancelled")
    elif error is not None:
        ended = events.Ended("failed", error=values.fault_of(error))
    else:
        ended = events.Ended("completed", run.store(encoded))
    run.seal(ended)
    yield Finish(status_marks(run.id, ended.status))


def _await_children(context: Any) -> Operation:
    run: Execution = context.execution
    for id, policy in open_children(run.journal):
        if policy == "wait":
            seen = run.inbox.revision
            with run.reaching:
                ended = yield Call(context.engine.child_ended, (run, id))
            if ended is None:
                raise context.poisoned(waits.child_wait(id, seen))

"""What a run waits for: time, a person, a signal, a child. Generators, no I/O.

Nothing here holds a thread for long. A wait that is not over raises `RunSuspended`. The run is then
suspended, and entered again when it is due or when a message for it arrives.
"""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.core import codec
from holdfast.core.arguments import check_duration
from holdfast.core.inbox import KINDS, InboxMessage
from holdfast.core.tree import MISSING
from holdfast.errors import ExistsError, UsageError, show_value
from holdfast.names import NAME_BYTES_MAX, check_name
from holdfast.runs import events, values
from holdfast.runs.define import RunFunction, is_run
from holdfast.runs.execution import Execution
from holdfast.runs.journal import Answer, Entry, digest_of, done_of
from holdfast.runs.operation import COMMIT, LOOK, Call, Operation, Pause, RunSuspended
from holdfast.runs.steps import INLINE_US, pause

POLICIES = ("cancel", "leave", "wait")
_logger = logging.getLogger("holdfast.runs")
ID_BYTES_MAX = 400
CHILD_LOOK_US = 30_000_000
"""After how long a run that waits for a child is due, so that some worker looks at the child."""
_RESERVED = ("answer/", "signal/", "child/")


def sleep(run: Execution, answer: Answer, length: Any) -> Operation:
    """Waits until a time that was fixed and recorded when the run first came here."""
    _check(run, answer)
    if answer.verdict == "replay":
        return
    if answer.verdict == "execute":
        due = run.log.clock.now_us() + round(check_duration(length, "a sleep") * 1e6)
        run.record(
            events.Intended(
                answer.path,
                answer.ordinal,
                "sleep",
                "",
                "pure",
                due=due,
                label=answer.label,
                source=answer.source,
            )
        )
    due = run.journal.entries[answer.path].due
    assert due is not None, "BUG: a sleep without an end"
    yield from pause(run, due, f"sleep at {answer.path}", answer.path)
    run.record(events.StepDone(answer.path))


class Waiting(Struct, frozen=True):
    """The arguments of a wait or a signal."""

    kind: str
    name: str
    schema: Any
    timeout: Any
    default: Any

    def convert(self, value: Any) -> Any:
        """Converts an answer to the schema's type, or raises msgspec.ValidationError."""
        return value if self.schema is None else msgspec.convert(value, self.schema)


def wait(run: Execution, answer: Answer, waiting: Waiting) -> Operation:
    """Returns the answer, or the default after the timeout; until then the run is suspended."""
    _check(run, answer)
    path = answer.path
    if answer.verdict == "replay":
        return _came(run, run.journal.entries[path], waiting)
    if answer.verdict == "execute":
        due = None
        if waiting.timeout is not None:
            length = check_duration(waiting.timeout, "timeout")
            due = run.log.clock.now_us() + round(length * 1e6)
        run.record(
            events.Intended(
                path,
                answer.ordinal,
                waiting.kind,
                waiting.name,
                "idempotent",
                due=due,
                label=answer.label,
                source=answer.source,
            )
        )
        yield COMMIT  # from now on others can see what is asked, and answer
    entry = run.journal.entries[path]
    yield LOOK
    while entry.state == "open":
        # Noted before the search: another branch may read the inbox on meanwhile, and a message
        # that this search did not see must still wake the run.
        seen = run.inbox.revision
        if _take_next(run, entry, waiting):
            continue
        if entry.due is not None and entry.due <= run.log.clock.now_us():
            _expire(run, path, waiting)
        elif entry.due is not None and entry.due - run.log.clock.now_us() <= INLINE_US:
            yield COMMIT
            yield Pause(entry.due)
            yield LOOK
        else:
            raise RunSuspended(f"{waiting.kind} {waiting.name}", entry.due, seen)
    return _came(run, entry, waiting)


def _take_next(run: Execution, entry: Entry, waiting: Waiting) -> bool:
    """Takes the next message for a wait, under the lock: branches may wait for one signal."""
    with run.alone():
        message = _message(run, entry)
        if message is not None:
            _take_answer(run, entry, waiting, message)
    return message is not None


def _message(run: Execution, entry: Entry) -> InboxMessage | None:
    prefix = "answer" if entry.kind == "wait" else "signal"
    name = message_name(prefix, entry.path if entry.kind == "wait" else entry.name)
    return run.inbox.first(name, run.journal.taken)


def _take_answer(run: Execution, entry: Entry, waiting: Waiting, message: InboxMessage) -> None:
    try:
        waiting.convert(message.value)
    except msgspec.ValidationError as error:
        run.record(events.Refused(entry.path, (message.revision,), values.text_of(error)))
        return
    value = run.store(codec.encode(message.value))
    run.record(events.StepDone(entry.path, value, taken=(message.revision,)))


def _expire(run: Execution, path: str, waiting: Waiting) -> None:
    if waiting.default is MISSING:
        fault = events.Fault("TimeoutError", f"nothing came for {waiting.kind} {waiting.name}")
        run.record(events.Failed(path, fault))
    else:
        run.record(events.StepDone(path, run.store(values.encode(waiting.default)), lost=None))


def _came(run: Execution, entry: Entry, waiting: Waiting) -> Any:
    if entry.error is not None:
        raise values.error_of(entry.error, entry.path)
    value = run.load(entry.value)
    try:
        return waiting.convert(value)
    except msgspec.ValidationError as error:
        _logger.debug('run "%s": %s is returned as it is stored: %s', run.id, entry.path, error)
        return value  # a default need not fit the schema


def message_name(prefix: str, name: str) -> str:
    """Returns the name under which an answer, a signal or a child's end is sent."""
    full = f"{prefix}/{name}"
    if len(full.encode()) <= NAME_BYTES_MAX:
        return full
    return f"{prefix}/{sha256(name.encode()).hexdigest()}"


def take(run: Execution, answer: Answer, kinds: tuple[str, ...]) -> Operation:
    """Takes and returns the messages that are not an answer, a signal, a child's end or a stop."""
    _check(run, answer)
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"a message is one of {', '.join(KINDS)}, found {show_value(kind)}")
    if answer.verdict == "execute":
        yield LOOK
        with run.alone():
            found = [
                message
                for message in run.inbox.waiting(run.journal.taken)
                if message.kind != "stop"
                and (not kinds or message.kind in kinds)
                and not (message.name or "").startswith(_RESERVED)
            ]
            value = codec.encode([msgspec.structs.asdict(message) for message in found])
            taken = tuple(message.revision for message in found)
            run.record(done_of(answer, "inbox", "", "pure", run.store(value), taken=taken))
    return [InboxMessage(**fields) for fields in run.load(run.journal.entries[answer.path].value)]


# --- children ------------------------------------------------------------------------------------


class ChildSpec(Struct, frozen=True):
    """The child that a parent asks for."""

    function: RunFunction[..., Any]
    inputs: bytes
    id: str | None
    policy: str

    @property
    def name(self) -> str:
        return self.function.name.rpartition(":")[2]

    @property
    def digest(self) -> str:
        return digest_of(self.inputs)


class ChildRun(Struct, frozen=True):
    """A run that another run started."""

    id: str
    name: str
    path: str


def check_child(
    function: object, args: tuple[Any, ...], kwargs: dict[str, Any], id: str | None, policy: str
) -> ChildSpec:
    """Checks the arguments of `ctx.child`; raises UsageError."""
    if not is_run(function):
        raise UsageError(f"ctx.child takes a run, found {show_value(function)}")
    if policy not in POLICIES:
        raise UsageError(
            f"when_parent_ends is one of {', '.join(POLICIES)}, found {show_value(policy)}"
        )
    if id is not None:
        check_id(id)
    other = None if policy == "cancel" else policy
    function.signature.check_settings("ctx.child", args, id=id, when_parent_ends=other)
    function.signature.check(args, kwargs)
    return ChildSpec(function, function.signature.inputs(args, kwargs), id, policy)


def check_id(id: object) -> str:
    """Returns the id if it can name a run, or raises UsageError."""
    checked = check_name(id, "run id")
    if len(checked.encode()) > ID_BYTES_MAX:
        raise UsageError(f"run id {checked[:40]!r}… is too long: at most {ID_BYTES_MAX} bytes fit")
    return checked


def child(context: Any, answer: Answer, spec: ChildSpec) -> Operation:
    """Makes the intent to start a child durable, then starts it, or finds it started.

    The child's id is part of the intent. So after a crash in between, the next pass starts or finds
    the same child, and not a second one.
    """
    run: Execution = context._execution
    _check(run, answer)
    path = answer.path
    if answer.verdict == "execute":
        id = spec.id or child_id(f"{run.life_name}/{path}")
        run.record(
            events.Intended(
                path,
                answer.ordinal,
                "child",
                spec.name,
                "idempotent",
                digest=spec.digest,
                child=id,
                when_parent_ends=spec.policy,
                label=answer.label,
                source=answer.source,
            )
        )
        yield COMMIT
    entry = run.journal.entries[path]
    assert entry.child is not None, "BUG: a child without an id"
    if entry.state == "open":
        try:
            with run.asking_store:
                yield Call(context._engine.start_child, (run, entry.child, spec, path))
        except ExistsError as error:
            # The run with that id is not a child of this run. So it is neither joined nor cancelled
            # at this run's end.
            run.record(events.Failed(path, values.fault_of(error)))
    if entry.error is not None:
        raise values.error_of(entry.error, path)
    return ChildRun(entry.child, spec.name, path)


def join(context: Any, answer: Answer, child: ChildRun) -> Operation:
    """Returns a child's result; suspends the run while the child waits for something itself."""
    run: Execution = context._execution
    _check(run, answer)
    if answer.verdict == "execute":
        seen = run.inbox.revision
        with run.asking_store:
            ended: events.Ended | None = yield Call(context._engine.child_ended, (run, child.id))
        if ended is None:
            raise child_wait(child.id, seen)
        fault = ended.error
        if ended.status == "cancelled":
            fault = events.Fault("RunCancelledError", f'run "{child.id}" was cancelled')
        run.record(events.StepDone(child.path))
        if fault is not None:
            failed = events.Failed(
                answer.path,
                fault,
                1,
                None,
                answer.ordinal,
                "join",
                child.name,
                "pure",
                label=answer.label,
                source=answer.source,
            )
            run.record(failed)
        else:
            run.record(done_of(answer, "join", child.name, "pure", ended.value))
    entry = run.journal.entries[answer.path]
    if entry.error is not None:
        raise values.error_of(entry.error, child.id)
    return run.load(entry.value)


def child_id(id: str) -> str:
    """Returns the id for a child, or a digest of it if the path of its parents is too long."""
    return id if len(id.encode()) <= ID_BYTES_MAX else f"child-{sha256(id.encode()).hexdigest()}"


def child_wait(id: str, seen: int) -> RunSuspended:
    """Returns the wait for a child's end.

    A child sends its parent a message when it ends. If its worker died before that, the worker that
    has the parent sees the last event in the child's journal. It looks without entering the parent,
    because each entry would write to the parent's journal.
    """
    return RunSuspended(f"child {id}", None, seen, (id,))


def _check(run: Execution, answer: Answer) -> None:
    if answer.verdict == "diverged":
        raise run.diverge(answer)

"""The context of a run's body, with every durable operation that the body can perform.

`Operations` has all of them. Those that only record (`let`, `const`, `now`, loops) are plain calls;
those that may act or wait are generators that are given to `_drive`. There are two drivers:
`Context`, below, performs in its own thread what a generator asks for; `AsyncContext` of
`holdfast.aio` awaits it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context as ContextVars
from contextvars import copy_context
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, ParamSpec, TypeVar, cast, overload

from msgspec import Struct

from holdfast.agents.command import Command as AgentCommand
from holdfast.agents.protocol import NO, SUMMARY_MAX, YES, Executor, Question
from holdfast.agents.protocol import Call as AgentCall
from holdfast.agents.protocol import Kind as QuestionKind
from holdfast.backends.deadline import monotonic
from holdfast.backends.gates import Waiters, shut_gate
from holdfast.core import codec
from holdfast.core.arguments import Path, check_path, check_whole
from holdfast.core.event import to_datetime
from holdfast.core.log import WRITER, scope_stream
from holdfast.core.sealing import READER
from holdfast.core.tree import MISSING, get
from holdfast.errors import ErasedError, UsageError, show_value
from holdfast.runs import blocks, events, processes, sessions, steps, values, waits
from holdfast.runs.blocks import Branch, ParallelJoin, branch_body
from holdfast.runs.define import CURRENT, ONCE, RunFunction, Signature, Step, is_run, is_step
from holdfast.runs.execution import BodyWriter, Execution, StepWriter
from holdfast.runs.journal import (
    CLEANUP,
    Answer,
    Block,
    Entry,
    block_of,
    digest_of,
    done_of,
    iteration,
)
from holdfast.runs.operation import (
    Call,
    Cancelled,
    CommitNow,
    CommitWith,
    Control,
    Enter,
    Finish,
    Fork,
    Look,
    Operation,
    OwnerLost,
    Pause,
    Settle,
    Stopped,
    calling_line,
    passed_through,
)
from holdfast.runs.pool import PoolCall
from holdfast.scope import Scope

P = ParamSpec("P")
R = TypeVar("R")

# --- variables ------------------------------------------------------------------------------------
#
# Variables of a run. The journal has every value that they had; a replay assigns them again.


class GivenNames(Struct, frozen=True):
    """The key, label and source that a caller gives to an operation that only records."""

    key: str | None
    label: str | None
    source: str | None

    def ask(self, block: Block, kind: str, name: str, digest: str | None = None) -> Answer:
        """Asks the journal what to do for this operation."""
        return block.ask(
            kind, name, "pure", digest, key=self.key, label=self.label, source=self.source
        )


class Variable:
    """What `ctx.let` returns. In a replay, `.value` is the value that it had at that point."""

    __slots__ = ("_context", "_is_const", "_value", "name")

    def __init__(self, context: Operations, name: str, is_const: bool) -> None:
        self.name = name
        self._context = context
        self._is_const = is_const
        self._value: Any = None

    @property
    def value(self) -> Any:
        """The current value. Change it with `set`, not in place: the journal would not know."""
        return self._value

    def set(
        self,
        value: Any,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Sets another value, and returns it as it was stored."""
        if self._is_const:
            raise UsageError(f'"{self.name}" is a const: its value never changes')
        if CURRENT.get() not in (None, self._context):
            raise UsageError(
                f'a branch cannot set "{self.name}", which is declared around it',
                hint="return the value from the branch, and set it after the parallel block",
            )
        self._context._begin()
        self._assign("set", value, GivenNames(key, label, source))
        return self._value

    def _assign(self, kind: str, value: Any, names: GivenNames) -> None:
        """Records a value under the next path of its block, or takes the one recorded there."""
        context, run = self._context, self._context._execution
        encoded = values.encode(value)
        digest = digest_of(encoded)
        answer = names.ask(context._block, kind, self.name, digest)
        before = answer.entry
        if answer.verdict == "diverged":
            raise context._leave_with(run.diverge(answer))
        if kind == "const" and answer.verdict == "execute" and before is not None:
            if (answer.path, "inputs") not in run.journal.adopted:
                raise context._leave_with(self._differs(answer, before, value))
            self._value = run.load(before.value)
            return
        if answer.verdict == "execute":
            stored = run.store(encoded)
            run.record(done_of(answer, kind, self.name, "pure", stored, digest))
        self._value = values.decode(encoded, run.log.blobs.read)

    def _differs(self, answer: Answer, before: Entry, value: Any) -> Control:
        run = self._context._execution
        return run.park_diverged(
            answer.path,
            "inputs",
            f"const {self.name} = {show_value(run.load(before.value))}",
            f"const {self.name} = {show_value(value)}",
            answer.source or calling_line(sys._getframe(1)),  # pyright: ignore[reportPrivateUsage]
        )


class Operations:
    """The operations of a run's body, or of one branch of it; each branch has its own context.

    Operations that only record are plain calls, the same for both drivers. Operations that act or
    wait are given to `_drive`.
    """

    _replays_at_once = False
    """Whether the answer to a question is returned directly, and not as an awaitable."""

    def __init__(self, execution: Execution, block: Block, parent: Any, engine: Any) -> None:
        self._execution = execution
        self._engine = engine
        self._block = block
        self._parent = parent
        self._base = block.path
        self._loops: list[blocks.LoopPosition] = [*parent._loops] if parent is not None else []
        self._current: blocks.CurrentOperation | None = None
        self._is_stopped = False
        self._writer = BodyWriter(self)
        self._variables: dict[tuple[str, str], Variable] = {}
        self._left_loops: list[tuple[Block, str, set[str]]] = []
        self._leaving: Control | None = None
        self._thread = threading.get_ident()

    def _drive(self, operation: Operation) -> Any:
        """Performs an operation and returns its value, or an awaitable of it.

        If a control exception leaves the operation, the block is left with it.
        """
        raise AssertionError("BUG: a context without a driver")

    # --- reading ---------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._execution.id

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop; if so, the next operation will raise."""
        run = self._execution
        is_leaving = run.stop_wanted or self._is_stopped
        return is_leaving and not run.is_cleaning(f"{self._block.path}/")

    @property
    def state(self) -> Any:
        """The run's own state: the scope `workflow/<id>`."""
        return self._engine.state_of(self._execution.id)

    @property
    def progress(self) -> blocks.Progress:
        """What the run is doing now."""
        return blocks.progress_of(self._execution)

    # --- entering and leaving --------------------------------------------------------------------

    def _begin(self, *, anywhere: bool = False) -> None:
        """Returns if an operation may begin here; raises if the block must be left."""
        if threading.get_ident() != self._thread and not anywhere:
            raise UsageError(
                f'block "{self._block.path or "body"}" of run "{self.run_id}" was used by another '
                "thread than the one that entered it",
                hint="use ctx.parallel with ctx.branch: each branch gets a context of its own",
            )
        if self._leaving is not None:
            self._note_swallowed(self._leaving)
            raise self._leaving
        run = self._execution
        if run.is_closed and not self._is_stopped:
            raise UsageError(f'run "{self.run_id}" was left: its context can no longer be used')
        if self._is_stopped or run.leaving is not None or run.stop_wanted:
            try:
                self._begin_to_leave()
            except Control as control:
                raise self._leave_with(control) from None

    def _begin_to_leave(self) -> None:
        """Raises if the block must be left here.

        While a cleanup is still to be done, the block is left only where its journal ends. The body
        is replayed up to there, because that is the way it reaches its cleanups, in this pass and
        in one after a crash. So the block refuses only operations that have no outcome yet.
        """
        run, block = self._execution, self._block
        is_unwanted = self._is_stopped and not run.is_closed
        if is_unwanted or (run.stop_wanted and isinstance(run.leaving, Cancelled | None)):
            if run.cleaning and run.is_cleaning(f"{block.path}/"):
                run.check_cleanup()
                return
            cleans = run.journal.cleanups
            if cleans and (not self._is_stopped or run.journal.cleans_below(self._base)):
                run.check_loss()
                block.refuse = self._refuse
                return
        self._check_stop()

    def _refuse(self) -> Control:
        """Returns the control exception to raise at the end of the block's journal."""
        try:
            self._check_stop()
        except Control as control:
            return self._leave_with(control)
        raise AssertionError("BUG: nothing is to be left")

    def _check_stop(self) -> None:
        """Raises if what this block does is no longer wanted; may be called from any thread."""
        run = self._execution
        if run.cleaning and run.is_cleaning(f"{self._block.path}/"):
            run.check_cleanup()
            return
        if self._is_stopped:
            raise Stopped("another branch decided the block")
        run.check()

    def _check_wanted(self) -> None:
        """Raises if a long step of this block must end; a process that runs asks this repeatedly.

        May be called from any thread.
        """
        self._check_stop()
        if not self._execution.is_sure():
            self._execution.confirm()

    def _stop_of(self, control: Control) -> Control:
        """Returns what a cleanup is left with; in a run that must stop, a wait becomes the stop."""
        if isinstance(control, OwnerLost):
            return control
        if self._is_stopped:
            return Stopped("another branch decided the block")
        run = self._execution
        return Cancelled(f'run "{run.id}" is to stop') if run.stop_wanted else control

    def _as_control(self, error: BaseException | None) -> BaseException | None:
        """Returns the exception that left a body, translated to the run's control exceptions."""
        return error

    def _move_here(self) -> None:
        """Makes the calling thread the one that may use this context."""
        self._thread = threading.get_ident()

    def _leave_with(self, control: Control) -> Control:
        """Notes the control exception that the block is left with, and returns it for `raise`."""
        if self._leaving is None:
            self._leaving = control
        return control

    @property
    def _left_with(self) -> Control | None:
        """The control exception that the block is left with, even if the body swallowed it."""
        run = self._execution
        if self._leaving is None and run.cleaning and run.is_cleaning(f"{self._block.path}/"):
            return None if isinstance(run.leaving, Cancelled) else run.leaving
        return self._leaving or run.leaving

    def _note_swallowed(self, control: Control) -> None:
        where = passed_through(control) or calling_line(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        self._execution.swallowed(self._block.path, where)

    def _guarded(self, operation: Operation) -> Operation:
        """Runs an operation inside another and, as `_drive` does, notes a control exception."""
        try:
            return (yield from operation)
        except Control as control:
            self._leave_with(control)
            raise

    def _close_block(self, block: Block) -> None:
        """Checks for records of a block that this pass did not read (rule 2).

        Harmless ones become a note, acts a divergence.
        """
        while self._left_loops:
            left, path, seen = self._left_loops.pop()
            self._close_block(left)
            self._close_loop(path, seen)
        harmless, acts = block.leftovers()
        for entry in harmless:
            self._execution.note(
                entry.path, "it is in the journal, and the code did not ask for it"
            )
        for entry in acts:
            raise self._unread(entry.path, f"{entry.kind} {entry.name}")

    def _unread(self, path: str, expected: str) -> Control:
        """Parks the run for an act in the journal that the code no longer asks for."""
        found = f'the end of block "{self._block.path or "body"}"'
        return self._leave_with(self._execution.park_diverged(path, "unread", expected, found, ""))

    # --- values that are recorded -----------------------------------------------------------------

    def let(
        self,
        name: str,
        value: Any = None,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Variable:
        """Declares a variable of this block; `.value` reads it and `.set(value)` writes it."""
        return self._declare("let", name, value, GivenNames(key, label, source))

    def const(
        self,
        name: str,
        value: Any,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Declares a value that never changes, and returns it.

        If a replay computes another value, the run diverges.
        """
        return self._declare("const", name, value, GivenNames(key, label, source)).value

    def _declare(self, kind: str, name: str, value: Any, names: GivenNames) -> Variable:
        self._begin()
        values.check_name_text(name, "a variable's name")
        place = self._block.path, name
        if place in self._variables:
            raise UsageError(f'variable "{name}" is declared twice in one block')
        variable = Variable(self, name, kind == "const")
        variable._assign(kind, value, names)
        self._variables[place] = variable
        return variable

    def variable(self, name: str) -> Variable:
        """Returns a variable of this block, or of the nearest block around it."""
        context: Operations | None = self
        while context is not None:
            place = context._block.path
            while (place, name) not in context._variables and place != context._base:
                place = block_of(place)
            if (place, name) in context._variables:
                return context._variables[place, name]
            context = context._parent
        raise UsageError(f'no variable "{name}" is declared here', hint="ctx.let declares one")

    def now(
        self, *, key: str | None = None, label: str | None = None, source: str | None = None
    ) -> datetime:
        """Returns the current time; a replay returns the same one."""
        clock = self._execution.log.clock
        return self._recorded_value(
            "now", "", lambda: to_datetime(clock.now_us()), GivenNames(key, label, source)
        )

    def random(
        self, *, key: str | None = None, label: str | None = None, source: str | None = None
    ) -> float:
        """Returns a random number from 0 up to but not including 1; a replay returns the same."""
        clock = self._execution.log.clock
        return self._recorded_value(
            "random",
            "",
            lambda: (int.from_bytes(clock.random_bytes(7), "big") >> 3) / (1 << 53),
            GivenNames(key, label, source),
        )

    def uuid(
        self, *, key: str | None = None, label: str | None = None, source: str | None = None
    ) -> str:
        """Returns a random UUID as text; a replay returns the same one."""

        def make() -> str:
            number = int.from_bytes(self._execution.log.clock.random_bytes(16), "big")
            number = number & ~(0xF000 << 64) | 0x4000 << 64
            text = f"{number & ~(0xC000 << 48) | 0x8000 << 48:032x}"
            return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

        return self._recorded_value("uuid", "", make, GivenNames(key, label, source))

    def _recorded_value(
        self, kind: str, name: str, make: Callable[[], Any], names: GivenNames
    ) -> Any:
        """Returns the recorded value; makes and records it if there is none."""
        self._begin()
        answer = names.ask(self._block, kind, name)
        if answer.verdict == "diverged":
            raise self._leave_with(self._execution.diverge(answer))
        if answer.verdict == "replay":
            assert answer.entry is not None, "BUG: a replay of nothing"
            return self._execution.load(answer.entry.value)
        encoded = values.encode(make())
        self._execution.record(done_of(answer, kind, name, "pure", self._execution.store(encoded)))
        return values.decode(encoded, self._execution.log.blobs.read)

    # --- steps -----------------------------------------------------------------------------------

    @overload
    def step(self, function: Step[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step(
        self,
        function: Step[..., R],
        /,
        *args: Any,
        key: str | None = ...,
        label: str | None = ...,
        source: str,
        **kwargs: Any,
    ) -> R: ...
    @overload
    def step(
        self,
        function: Step[..., R],
        /,
        *args: Any,
        key: str | None = ...,
        label: str,
        source: str | None = ...,
        **kwargs: Any,
    ) -> R: ...
    @overload
    def step(
        self,
        function: Step[..., R],
        /,
        *args: Any,
        key: str,
        label: str | None = ...,
        source: str | None = ...,
        **kwargs: Any,
    ) -> R: ...
    def step(
        self,
        function: Any,
        /,
        *args: Any,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Performs a step and returns its value; if it was performed before, the recorded value."""
        if not is_step(function):
            raise UsageError(
                f"ctx.step takes a step, found {show_value(function)}",
                hint='put @holdfast.step(effect="…") above the function',
            )
        if key is not None or label is not None or source is not None:
            function.signature.check_settings("ctx.step", args, key=key, label=label, source=source)
        return self._drive(self._step_operation(function, args, kwargs, key, label, source))

    def _step_operation(
        self,
        step: Step[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Operation:
        """Takes the step's place in the journal, and returns the operation that performs it.

        The place is taken at once, and not when the operation runs, so that paths and ordinals
        follow the order of the calls.
        """
        self._begin()
        inputs = step.signature.inputs(args, kwargs)
        digest = digest_of(inputs)
        answer = self._block.ask(
            "step", step.name, step.effect, digest, key=key, label=label, source=source
        )
        self._current = blocks.CurrentOperation(
            answer.path, label or step.name, step.retry.attempts
        )
        call = steps.StepCall(step, args, kwargs, inputs, digest, answer)
        return steps.perform(self._execution, call)

    def _call_step(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Performs a step that a body called like a plain function."""
        return self._drive(self._step_operation(step, args, kwargs))

    def txn(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls `function(tx, …)`; its writes and their record in the journal are one commit."""
        step = function if is_step(function) else steps.txn_step(function)
        if step.effect != "txn":
            raise UsageError(f'ctx.txn takes a step of the class txn, found "{step.effect}"')
        step.signature.check_settings("ctx.txn", args, key=key, label=label, source=source)
        return self._drive(self._step_operation(step, args, kwargs, key, label, source))

    def txn_in(
        self,
        connection: Any,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls `function(connection, …)` once, in a transaction of another SQL database.

        A row in a ledger table there, in the same transaction, records that it was done. You open
        and close the connection; it must not be in autocommit mode, nor have a transaction open.
        """
        step = steps.ledger_step(connection, function)
        if key or label or source:
            signature = Signature(function)
            given = args if signature.first in ("ctx", "tx") else (connection, *args)
            signature.check_settings("ctx.txn_in", given, key=key, label=label, source=source)
        return self._drive(self._step_operation(step, args, kwargs, key, label, source))

    def process(
        self,
        argv: Sequence[str | os.PathLike[str]],
        /,
        *,
        effect: events.Effect,
        stdin: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: Any = None,
        check: bool = True,
        output_max: int = processes.OUTPUT_BYTES_MAX,
        grace: Any = processes.GRACE_S,
        verify: Any = None,
        retry: Any = None,
        name: str | None = None,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Runs a command as a step, without a shell, and returns its `Output`.

        The command ends with the run: a cancel, a timeout, a lost race or a lost lease sends TERM
        to its process group, and KILL when `grace` is over or this process dies. An exit code other
        than 0 raises StepError of the kind ExitError, unless `check` is False. Its environment has
        HOLDFAST_RUN, HOLDFAST_KEY (the idempotency key) and `env`, which is not journalled because
        it may hold secrets.
        """
        command = processes.Command(
            argv,
            stdin=stdin,
            cwd=cwd,
            env=env,
            timeout=timeout,
            grace=grace,
            output_max=output_max,
            check=check,
        )
        settings = {"effect": effect, "verify": verify, "retry": retry}
        settings["name"] = command.name if name is None else name
        step = command.as_step(self._execution.log.clock, self._check_wanted, settings)
        return self._drive(self._step_operation(step, command.inputs, {}, key, label, source))

    def session(
        self,
        prompt: str,
        /,
        *,
        system: str | None = None,
        context: Mapping[str, str] | Sequence[Sequence[str]] | None = None,
        model: str | None = None,
        agent: str | None = None,
        memory: str | None = None,
        skills: Sequence[str] = (),
        permissions: Mapping[str, Any] | None = None,
        directory: str | None = None,
        remember: bool | tuple[Scope, Path] = False,
        executor: Executor | AgentCommand | None = None,
        effect: str = "idempotent",
        retry: Any = None,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Asks an agent, as a step, and returns its `Answer`.

        The step's inputs are prompt, context and model; its value is text, model and usage. With
        `effect="effect"` the agent is asked again only after an error that proves that nothing was
        sent; any other error parks the run. `remember=True` keeps the agent's memory in the answer;
        with a scope and a path it is also written there, in the commit that closes the session. An
        executor that is a command runs in `directory`.
        """
        call = AgentCall(
            prompt,
            system,
            sessions.pairs_of(context) if context else (),
            model,
            agent,
            memory,
            tuple(skills) if skills else (),
            None if permissions is None else dict(permissions),
            directory,
        )
        made = self._engine.agents
        chosen, keeps = made.chosen(executor), remember is not False
        asked = made.session(self, chosen, call, effect, retry, keeps=keeps)
        if isinstance(remember, bool):
            return self._ask(asked, key, label, source)
        scope, path = remember
        kept = cast("tuple[str, ...]", check_path(path))
        place = sessions.MemoryPlace(getattr(scope, "sync", scope), kept)
        return self._ask(asked, key, label, source, sessions.closing(place, asked, self))

    def decide(
        self,
        question: str,
        /,
        *,
        options: Sequence[str] = (YES, NO),
        kind: QuestionKind = "if",
        context: Mapping[str, str] | Sequence[Sequence[str]] | None = None,
        executor: Executor | AgentCommand | None = None,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Asks an agent to decide, as an idempotent step, and returns one of the options.

        If the answer is none of them, the agent is asked once more; then StepError is raised.
        """
        asked = Question(question, kind, tuple(options), sessions.pairs_of(context))
        made = self._engine.agents
        step = made.decision(self, made.chosen(executor), asked)
        return self._ask(step, key, label, source)

    def summarise(
        self,
        text: str,
        /,
        *,
        limit: int = SUMMARY_MAX,
        executor: Executor | AgentCommand | None = None,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Asks an agent for a shorter text, as a step of the class read."""
        check_whole(limit, "limit", least=1)
        made = self._engine.agents
        asked = made.summary(self, made.chosen(executor), text, limit)
        return self._ask(asked, key, label, source)

    def _ask(
        self,
        asked: sessions.AgentStep,
        key: str | None,
        label: str | None,
        source: str | None,
        closing: Any = None,
    ) -> Any:
        """Asks an agent as a step, and returns the step's value in the form that callers get."""
        self._begin()
        step, args = asked.step, asked.args
        if asked.inputs is None:
            inputs = step.signature.inputs(args, {})
        else:
            inputs = codec.encode_sorted(asked.inputs)
        digest = digest_of(inputs)
        answer = self._block.ask(
            "step", step.name, step.effect, digest, key=key, label=label, source=source
        )
        if answer.verdict == "replay" and self._replays_at_once:
            assert answer.entry is not None, "BUG: a replay of nothing"
            return asked.convert(steps.outcome_of(self._execution, step, answer.entry))
        self._current = blocks.CurrentOperation(
            answer.path, label or step.name, step.retry.attempts
        )
        call = steps.StepCall(step, args, {}, inputs, digest, answer, closing)
        operation = steps.perform(self._execution, call)
        if self._replays_at_once:
            return asked.convert(self._drive(operation))
        return self._drive(sessions.converted(operation, asked.convert))

    def read(
        self,
        scope: Scope,
        path: Path | None = None,
        default: Any = None,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Returns a value of a scope's state, as it was when the run first read it (rule 3)."""
        steps_ = () if path is None else check_path(path)
        scope = getattr(scope, "sync", scope)
        shown = "/".join([scope.name, *map(str, steps_)])[:200]

        def look() -> Any:
            with codec.kept_closed():  # the value goes into the journal: sealed values stay sealed
                found = get(scope.state, steps_, default) if steps_ else scope.state
                plain = found.thaw() if isinstance(found, codec.Thawable) else found
            try:
                return self._execution.closed_copy(scope_stream(scope).log, scope.name, plain)
            except ErasedError:
                return default if steps_ else {}  # nothing is there any more

        reading = Step(
            look,
            effect="read",
            name=f"read {shown}",
            verify=None,
            retry=ONCE,
            not_done=(),
            ignore=(),
        )
        return self._drive(self._step_operation(reading, (), {}, key, label, source))

    # --- blocks ----------------------------------------------------------------------------------

    def branch(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Branch:
        """Returns a branch for `parallel`: a step, a run, or a function that takes `ctx`."""
        return Branch(function, args, kwargs)

    def parallel(
        self,
        branches: Mapping[str, Branch] | None = None,
        /,
        *,
        join: str | int = "all",
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
        **named: Branch,
    ) -> Any:
        """Runs branches side by side and returns their values by name.

        `join` is "all" (all must succeed, the first failure ends the block), "settle" (waits for
        all and returns `Outcome`s), "first" (the first success ends it), or a number (that many
        successes end it).
        """
        self._begin()
        every = {**(branches or {}), **named}
        joining = ParallelJoin(every, blocks.check_join(join, len(every)))
        shape = blocks.shape_of(every)
        answer = self._block.ask("parallel", "", "pure", shape, key=key, label=label, source=source)
        return self._drive(blocks.parallel(self, answer, joining))

    def each(
        self,
        items: Iterable[Any],
        *,
        name: str = "each",
        by: Callable[[Any], str] | None = None,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Iterator[Any]:
        """Yields items, each in a block of its own, which a replay enters again.

        Blocks are named by index, or by `by(item)`. Use it directly in a `for` statement.
        """
        return self._loop("each", name, list(items), by, key, label, source)

    def repeat(
        self,
        times: int,
        *,
        name: str = "repeat",
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Iterator[int]:
        """Yields 0, 1, 2, … each in a block of its own; `ctx.progress` says "iteration 2 of 3"."""
        items = range(check_whole(times, "times"))
        return self._loop("repeat", name, items, None, key, label, source)

    def loop(
        self,
        max: int | None = None,
        *,
        name: str = "loop",
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Iterator[int]:
        """Yields 0, 1, 2, … each in a block of its own, until it is left or `max` is reached.

        `ctx.progress` says "iteration 3, at most 5".
        """
        items = count() if max is None else range(check_whole(max, "max", least=1))
        return self._loop("loop", name, items, None, key, label, source)

    def _loop(
        self,
        kind: str,
        name: str,
        items: Sequence[Any] | count[int],
        by: Callable[[Any], str] | None,
        key: str | None,
        label: str | None,
        source: str | None,
    ) -> Generator[Any]:
        self._begin()
        leaf = name if name != kind else ""
        answer = self._block.ask(kind, leaf, "pure", key=key, label=label, source=source)
        if answer.verdict == "diverged":
            raise self._leave_with(self._execution.diverge(answer))
        total = None if isinstance(items, count) else len(items)
        if answer.verdict == "execute":
            self._execution.record(blocks.opened(answer, kind, name, total))
        outer, depth = self._block, len(self._loops)
        seen: set[str] = set()
        try:
            for number, item in enumerate(items):
                path = iteration(answer.path, number if by is None else str(by(item)))
                if path in seen:
                    raise UsageError(f'two iterations are named "{path}": make their names differ')
                seen.add(path)
                if self._block.refuse is not None and self._is_at_end(answer.path, path, seen):
                    raise self._block.refuse()
                self._block = Block(self._execution.journal, path, displaced=answer.displaced)
                self._loops[depth:] = [
                    blocks.LoopPosition(answer.label or name, number, total, kind)
                ]
                yield item
                self._begin()
                self._close_block(self._block)
            self._close_loop(answer.path, seen)
        except GeneratorExit:
            # The loop was left by a break or by an exception; a generator cannot tell which. So its
            # last iteration is checked for unread records only if the block around it ends well.
            self._left_loops.append((self._block, answer.path, seen))
            raise
        finally:
            self._block = outer
            del self._loops[depth:]

    def _is_at_end(self, loop: str, block: str, seen: set[str]) -> bool:
        """Returns whether the journal has no record of an iteration, nor of anything after it.

        Asked while the run is stopping. A loop is otherwise left by the first operation in it that
        has no record; a loop whose body performs no operation would never be left.
        """
        journal = self._execution.journal
        if block in journal.ordinals:
            return False
        begun, base = journal.entries[loop].revision, f"{self._base}/" if self._base else ""
        before = tuple(f"{one}/" for one in seen)
        return not any(
            entry.revision > begun and path.startswith(base) and not path.startswith(before)
            for path, entry in tuple(journal.entries.items())
        )

    def cleanup(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
        **kwargs: Any,
    ) -> Cleanup:
        """Returns a block for `with`; the function is called however the block is left.

        The function gets `ctx` if its first parameter has that name. Its operations are performed
        after a cancel, too, and by the next owner if this one dies. After a cancel, they may begin
        for one minute, and they may not wait for anybody. Its return value is ignored.
        """
        signature = Signature(function)
        signature.check_settings("ctx.cleanup", args, key=key, label=label, source=source)
        name = getattr(function, "__name__", "")
        names = GivenNames(key, label, source)
        return Cleanup(self, name, Branch(function, args, kwargs), names)

    def _close_loop(self, path: str, seen: set[str]) -> None:
        """Parks the run if the journal has acts of iterations that the loop no longer has."""
        journal = self._execution.journal
        for act in journal.acts_outside(path, seen):
            entry = journal.entries.get(act)
            if entry is not None and (act, "unread") not in journal.adopted:
                raise self._unread(act, f"{entry.kind} {entry.name}")

    def fold(
        self,
        name: str,
        items: Iterable[Any],
        init: Any = None,
        body: Callable[..., Any] | None = None,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Calls `body(ctx, accumulator, item)` for each item and returns the last accumulator.

        Only the accumulator goes from one iteration to the next. So a replay skips finished
        iterations, where `each` would enter them again.
        """
        self._begin()
        if body is None or not callable(body):
            raise UsageError(f"body is a function, found {show_value(body)}")
        answer = self._block.ask("fold", name, "pure", key=key, label=label, source=source)
        return self._drive(blocks.fold(self, answer, name, list(items), init, body))

    reduce = fold

    def run(
        self,
        function: Any,
        /,
        *args: Any,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs another run's function as a block of this run; recursion is allowed."""
        if not is_run(function):
            raise UsageError(f"ctx.run takes a run, found {show_value(function)}")
        function.signature.check_settings("ctx.run", args, key=key, label=label, source=source)
        return self._enter_run(function, args, kwargs, key, label, source)

    def _enter_run(
        self,
        function: RunFunction[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        /,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Does the work of `run`, also for a run that is called like a plain function."""
        self._begin()
        digest = digest_of(function.signature.inputs(args, kwargs))
        name = function.name.rpartition(":")[2]
        answer = self._block.ask("run", name, "pure", digest, key=key, label=label, source=source)
        return self._drive(blocks.nested(self, answer, function, name, args, kwargs))

    # --- waiting ---------------------------------------------------------------------------------

    def sleep(
        self,
        length: Any,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Waits for a length of time ("10m", 1.5) that crashes do not extend.

        A long wait holds no thread: the run is suspended meanwhile.
        """
        self._begin()
        answer = self._block.ask("sleep", "", "pure", key=key, label=label, source=source)
        return self._drive(waits.sleep(self._execution, answer, length))

    def wait(
        self,
        name: str,
        *,
        schema: Any = None,
        timeout: Any = None,
        default: Any = MISSING,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Waits until somebody answers (`hf.runs.answer`), without holding a thread.

        The first answer counts. After `timeout` it returns `default`, or raises StepError if there
        is none. An answer that does not fit `schema` is refused, and the wait goes on.
        """
        return self._wait("wait", name, schema, timeout, default, key, label, source)

    def signal(
        self,
        name: str,
        *,
        schema: Any = None,
        timeout: Any = None,
        default: Any = MISSING,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Returns the oldest signal of that name (`hf.runs.signal`) that was not taken yet.

        If there is none it waits, as `wait` does.
        """
        return self._wait("signal", name, schema, timeout, default, key, label, source)

    def _wait(
        self,
        kind: str,
        name: str,
        schema: Any,
        timeout: Any,
        default: Any,
        key: str | None,
        label: str | None,
        source: str | None,
    ) -> Any:
        self._begin()
        values.check_name_text(name, f"the name of a {kind}")
        waiting = waits.Waiting(kind, name, schema, timeout, default)
        answer = self._block.ask(kind, name, "idempotent", key=key, label=label, source=source)
        self._current = blocks.CurrentOperation(answer.path, label or f"{kind} {name}", 1)
        return self._drive(waits.wait(self._execution, answer, waiting))

    def inbox(
        self,
        *kinds: str,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Takes and returns the messages in the run's inbox, of these kinds or of all but stop."""
        self._begin()
        answer = self._block.ask("inbox", "", "pure", key=key, label=label, source=source)
        return self._drive(waits.take(self._execution, answer, kinds))

    # --- children --------------------------------------------------------------------------------

    def child(
        self,
        function: Any,
        /,
        *args: Any,
        id: str | None = None,
        when_parent_ends: str = "cancel",
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Starts another run and returns it; `ctx.join(child)` waits for its result.

        `when_parent_ends` says what happens if this run ends first: the child is cancelled
        ("cancel"), left alone ("leave") or waited for ("wait").
        """
        self._begin()
        spec = waits.check_child(function, args, kwargs, id, when_parent_ends)
        spec.function.signature.check_settings(
            "ctx.child", args, key=key, label=label, source=source
        )
        answer = self._block.ask(
            "child", spec.name, "idempotent", spec.digest, key=key, label=label, source=source
        )
        return self._drive(waits.child(self, answer, spec))

    def join(
        self,
        child: waits.ChildRun,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Waits for a child's result and records it; raises StepError if the child failed."""
        self._begin()
        if not isinstance(child, waits.ChildRun):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"ctx.join takes what ctx.child returned, found {show_value(child)}")
        answer = self._block.ask("join", child.name, "pure", key=key, label=label, source=source)
        return self._drive(waits.join(self, answer, child))


class Cleanup:
    """What `ctx.cleanup` returns: the block of a `with`, or in async runs of an `async with`."""

    def __init__(self, context: Operations, name: str, call: Branch, names: GivenNames) -> None:
        self._context = context
        self._name = name
        self._call = call
        self._names = names
        self._answer: Answer | None = None
        self._outer: Block | None = None

    def __enter__(self) -> None:
        if not isinstance(self._context, Context):
            raise UsageError("a cleanup of an async run is entered with async with")
        self._begin()

    def _begin(self) -> None:
        """Records that a cleanup is due, so that a later pass knows of it after a crash."""
        context, name = self._context, self._name
        context._begin()
        answer = self._names.ask(context._block, CLEANUP, name)
        if answer.verdict == "diverged":
            raise context._leave_with(context._execution.diverge(answer))
        if answer.verdict == "execute":
            context._execution.record(blocks.opened(answer, CLEANUP, name, None))
        self._answer, self._outer = answer, context._block

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if is_end(error):
            self._context._drive(self._operation(error))

    async def __aenter__(self) -> None:
        self._begin()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        found = self._context._as_control(error)
        if is_end(found):
            await self._context._drive(self._operation(found))
        if found is not error and found is not None:
            raise found

    def _operation(self, error: BaseException | None) -> Operation:
        assert self._answer is not None, "BUG: it was not entered"
        assert self._outer is not None, "BUG: it was not entered"
        self._context._block = self._outer
        return blocks.clean_up(self._context, self._answer, self._call, error)


def is_end(error: BaseException | None) -> bool:
    """Returns whether a part of a body is over; it is not if the run waits, is parked or lost."""
    return error is None or isinstance(error, Exception | Cancelled | Stopped)


# --- the sync driver ------------------------------------------------------------------------------

SLICE_S = 0.05
"""How often a waiting thread checks whether it may go on."""


# --- what front ends and other layers ask of a context --------------------------------------------


def execution_of(ctx: Operations | steps.StepContext) -> Execution:
    """Returns the run that a body, or a step of it, is executed by."""
    return ctx._execution


def engine_of(ctx: Operations) -> Any:
    """Returns the engine that executes a body."""
    return ctx._engine


def block_in(ctx: Operations) -> Block:
    """Returns the block of the journal that a body is in."""
    return ctx._block


def declared_here(ctx: Operations, name: str) -> Variable | None:
    """Returns the variable that the current block itself declared under a name, if any."""
    return ctx._variables.get((ctx._block.path, name))


def is_const(variable: Variable) -> bool:
    """Returns whether a variable was declared by `const`."""
    return variable._is_const


def reworded(ctx: Operations, text: str, source: str) -> Any:
    """Returns a question to a person in the executor's words, asked by a step of the class read.

    If the executor does not reword questions, returns the text itself.
    """
    asked = ctx._engine.agents.rewording(text)
    return text if asked is None else ctx._ask(asked, None, None, source)


@contextmanager
def inner_block(ctx: Operations, name: str, key: str | None, source: str | None) -> Generator[None]:
    """Surrounds a part of a body with a block of its own, in which names are counted from 1.

    For front ends whose language has blocks where Python has none. A replay enters it again.
    """
    ctx._begin()
    answer = ctx._block.ask("block", name, "pure", key=key, source=source)
    if answer.verdict == "diverged":
        raise ctx._leave_with(ctx._execution.diverge(answer))
    if answer.verdict == "execute":
        ctx._execution.record(blocks.opened(answer, "block", name, None))
    outer = ctx._block
    inner = ctx._block = Block(ctx._execution.journal, answer.path, displaced=answer.displaced)
    try:
        yield
        ctx._close_block(inner)
    finally:
        ctx._block = outer


class Context(Operations):
    """What the body of a sync run gets as its `ctx`."""

    _replays_at_once = True

    def _drive(self, operation: Operation) -> Any:
        try:
            act = next(operation)
            while True:
                try:
                    sent = _PERFORM[type(act)](self, act)
                except BaseException as error:
                    act = operation.throw(error)
                else:
                    act = operation.send(sent)
        except StopIteration as stop:
            return stop.value
        except Control as control:
            self._leave_with(control)
            raise

    def _inner(self, block: Block) -> Context:
        """Returns the context of a branch."""
        return Context(self._execution, block, self, self._engine)

    def _commit(self, act: CommitNow) -> None:
        self._execution.commit()

    def _commit_with(self, act: CommitWith) -> Any:
        return self._execution.commit_with(act.event, act.extra)

    def _call(self, act: Call) -> Any:
        if act.is_async:
            raise UsageError(
                f'step "{act.path}" is async and was called in a sync run',
                hint="make the run async def, or the step def",
            )
        inside = CURRENT.set(None)
        writing = WRITER.set(StepWriter(self._execution, act.path))
        reading = READER.set(self._execution.reads)
        try:
            if self._execution.log.observers is None:
                return act.function(*act.args, **act.kwargs)
            with self._execution.attempt(act):
                return act.function(*act.args, **act.kwargs)
        finally:
            READER.reset(reading)
            WRITER.reset(writing)
            CURRENT.reset(inside)

    def _enter(self, act: Enter) -> Any:
        inside = CURRENT.set(act.context)
        writing = WRITER.set(act.context._writer)
        reading = READER.set(self._execution.reads)
        try:
            return act.function(*act.args, **act.kwargs)
        finally:
            READER.reset(reading)
            WRITER.reset(writing)
            CURRENT.reset(inside)

    def _pause(self, act: Pause) -> None:
        began, log = monotonic(), self._execution.log
        self._pause_until(act)
        if log.observers is not None:
            log.observers.tell("wait", self._block.path, began, run=self._execution.id)

    def _pause_until(self, act: Pause) -> None:
        clock = self._execution.log.clock
        while (left := act.until - clock.now_us()) > 0:
            self._check_stop()
            clock.sleep(min(left / 1e6, SLICE_S))

    def _finish(self, act: Finish) -> None:
        self._execution.commit(act.marks)

    def _look(self, act: Look) -> None:
        self._execution.look()

    def _fork(self, act: Fork) -> None:
        _Branches(self, act.joining).run()

    def _settle(self, act: Settle) -> None:
        """Does nothing: no thread is interrupted."""


_PERFORM: dict[type, Any] = {
    CommitNow: Context._commit,  # pyright: ignore[reportPrivateUsage]
    CommitWith: Context._commit_with,  # pyright: ignore[reportPrivateUsage]
    Call: Context._call,  # pyright: ignore[reportPrivateUsage]
    Enter: Context._enter,  # pyright: ignore[reportPrivateUsage]
    Pause: Context._pause,  # pyright: ignore[reportPrivateUsage]
    Finish: Context._finish,  # pyright: ignore[reportPrivateUsage]
    Look: Context._look,  # pyright: ignore[reportPrivateUsage]
    Fork: Context._fork,  # pyright: ignore[reportPrivateUsage]
    Settle: Context._settle,  # pyright: ignore[reportPrivateUsage]
}


def _in(variables: ContextVars, live: Callable[..., None], *args: Any) -> None:
    variables.run(live, *args)


class _Branches:
    """The threads of one parallel block."""

    def __init__(self, context: Context, joining: ParallelJoin) -> None:
        self._context = context
        self._joining = joining
        self._lock = threading.Lock()
        self._waiters = Waiters()
        self._left = len(joining.contexts)

    def run(self) -> None:
        """Runs the branches; returns when the join is decided or no branch is at work any more."""
        pool = self._context._engine.pool
        jobs = [
            PoolCall(partial(_in, copy_context(), self._run_branch, name, context))
            for name, context in self._joining.contexts.items()
        ]
        self._context._execution.forked(len(jobs))
        early = self._joining.returns_early
        for job in jobs if early else jobs[1:]:
            pool.submit(job)
        if not early:
            # The calling thread does the first branch itself, and then every branch that no thread
            # has begun. So nested blocks cannot deadlock when the pool has no threads left.
            for job in jobs:
                job.do()
        gate = shut_gate()
        try:
            self._waiters.add(gate)
            while self._left and not (early and self._is_over()):
                gate.acquire(timeout=SLICE_S if early else -1)
                if early and not self._joining.decided and pool.is_full:
                    any(job.do() for job in jobs)
        finally:
            self._waiters.remove(gate)

    def _is_over(self) -> bool:
        """Returns whether the join is decided and no losing branch still has to clean up."""
        joining, journal = self._joining, self._context._execution.journal
        return joining.decided and not (
            journal.cleanups
            and any(
                name not in joining.over and journal.cleans_below(context._base)
                for name, context in joining.contexts.items()
            )
        )

    def _run_branch(self, name: str, context: Context) -> None:
        run, joining = context._execution, self._joining
        context._move_here()
        run.contexts.append(context)
        try:
            error, fault = context._drive(branch_body(context, name, joining))
        finally:
            run.contexts.remove(context)
            run.forked(-1)
        with self._lock:
            joining.ended(name, error, fault)
            self._left -= 1
            if joining.decided:
                for other in joining.contexts.values():
                    other._is_stopped = True
        self._waiters.wake()

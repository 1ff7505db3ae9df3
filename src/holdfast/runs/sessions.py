"""Sessions, decisions and summaries of agents as steps of a run.

Each is one step. Its inputs are the question (prompt, context, model) and its value is the answer
(text, model, usage), so it is the record of one model call.

A session is `idempotent` unless the caller says `effect`. A session of the class `effect` without
an answer is asked again only after an error that proves that nothing was sent; any other error
parks the run. A decision is `idempotent`: if a replay asks it with other inputs, the run diverges
instead of silently taking another path. A summary is `read`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.agents.command import Command
from holdfast.agents.protocol import (
    AgentError,
    Answer,
    Call,
    Executor,
    NotSentError,
    Question,
    Rewording,
    Usage,
)
from holdfast.core.commit import ProposedCommit
from holdfast.core.transaction import PendingCommit, proposed_by
from holdfast.errors import UsageError, show_value
from holdfast.runs import processes
from holdfast.runs.define import ONCE, Retry, Step, check_retry
from holdfast.runs.events import Effect
from holdfast.runs.operation import Operation
from holdfast.runs.processes import Output
from holdfast.scope import Scope

ASKED_TWICE = Retry(attempts=2, wait_s=0.0, on=(AgentError,))
"""An answer that is none of the options is asked for once more."""
_CLASSES = ("idempotent", "effect")
_AT_ONCE = (Answer, str)


class MemoryPlace(Struct, frozen=True):
    """Where an agent's memory is kept: a scope, and a path in its state."""

    scope: Scope
    path: tuple[str, ...]


class AgentStep(Struct, frozen=True):
    """A question as a step, with its arguments and the function that converts its stored value.

    `inputs` is what the journal keeps of the arguments; None means the arguments themselves.
    """

    step: Step[..., Any]
    args: tuple[Any, ...]
    inputs: dict[str, Any] | None
    convert: Callable[[Any], Any]


class AgentSteps:
    """Makes the steps for questions to executors, and reuses them for questions that are alike."""

    def __init__(self) -> None:
        self.executor: Executor | Command | None = None
        self._made: dict[tuple[Any, ...], tuple[Any, Step[..., Any]]] = {}
        self._last: tuple[Any, ...] = (None, "", "", None, None)

    def chosen(self, executor: Executor | Command | None) -> Executor | Command:
        """Returns the executor to ask: the one of the call, else the store's."""
        found = self.executor if executor is None else executor
        if found is None:
            raise UsageError(
                "nobody answers for agents here",
                hint="give the store an executor: store.runs.use_executor(Scripted(…)), "
                "or load_executor() for the one of holdfast.toml",
            )
        return found

    def session(
        self,
        context: Any,
        executor: Executor | Command,
        call: Call,
        effect: str,
        retry: Any,
        *,
        keeps: bool,
    ) -> AgentStep:
        """Returns the step for one session; with `keeps` its value includes the agent's memory."""
        if effect not in _CLASSES:
            raise UsageError(f"a session is idempotent or effect, found {show_value(effect)}")
        tries = ONCE if retry is None or retry is ONCE else check_retry(retry)
        if isinstance(executor, Command):
            made = _process(context, executor, call, "session", effect, tries)
            if effect == "effect":
                made.step.function = _parking(made.step.function)
            return AgentStep(made.step, made.args, None, partial(_answer_of_output, executor, call))
        named = _asked(call)
        kind = "remembered" if keeps else "session"
        return AgentStep(self._step(executor, kind, effect, tries), (call,), named, _answer)

    def decision(self, context: Any, executor: Executor | Command, question: Question) -> AgentStep:
        """Returns the step for one decision."""
        if isinstance(executor, Command):
            made = _process(context, executor, question, "decide", "idempotent", ASKED_TWICE)
            made.step.function = _choosing(made.step.function, question)
            return AgentStep(made.step, made.args, None, partial(_choice_of_output, question))
        named: dict[str, Any] = {
            "text": question.text,
            "kind": question.kind,
            "options": list(question.options),
        }
        if question.context:
            named["context"] = [list(pair) for pair in question.context]
        step = self._step(executor, "decide", "idempotent", ASKED_TWICE)
        return AgentStep(step, (question,), named, _same)

    def summary(
        self, context: Any, executor: Executor | Command, text: str, limit: int
    ) -> AgentStep:
        """Returns the step for one summary."""
        if isinstance(executor, Command):
            call = executor.summary_of(text, limit)
            made = _process(context, executor, call, "summarise", "read", ONCE)
            return AgentStep(made.step, made.args, None, partial(_summary_of_output, limit))
        return AgentStep(
            self._step(executor, "summarise", "read", ONCE), (text, limit), None, _same
        )

    def rewording(self, text: str) -> AgentStep | None:
        """Returns the step that rewords a question to a person; None if the executor cannot."""
        if not isinstance(self.executor, Rewording):
            return None
        return AgentStep(self._step(self.executor, "reword", "read", ONCE), (text,), None, _same)

    def _step(
        self, executor: Executor, kind: str, effect: Effect | str, retry: Retry
    ) -> Step[..., Any]:
        last = self._last
        if last[0] is executor and last[1] == kind and last[2] == effect and last[3] is retry:
            return last[4]
        key = (id(executor), kind, effect, retry)
        found = self._made.get(key)
        if found is None:
            function = _FUNCTIONS[kind](executor)
            if effect == "effect":
                function = _parking(function)
            made: Step[..., Any] = Step(
                function,
                effect=cast("Effect", effect),
                name="session" if kind == "remembered" else kind,
                verify=None,
                retry=retry,
                not_done=(NotSentError,) if effect == "effect" else (),
                ignore=(),
            )
            made.is_async = _is_async(executor, kind)
            # The executor is kept too: the key has its `id`, which must not be used for another.
            found = self._made[key] = executor, made
        self._last = (executor, kind, effect, retry, found[1])
        return found[1]


def converted(operation: Operation, convert: Callable[[Any], Any]) -> Operation:
    """Performs an operation, and returns its converted value."""
    return convert((yield from operation))


def closing(place: MemoryPlace, asked: AgentStep, context: Any) -> Any:
    """Returns the function that adds an agent's memory to the commit that closes its session."""

    def write(value: Any) -> tuple[PendingCommit, ProposedCommit | None]:
        answer: Answer = asked.convert(value)
        pending = PendingCommit(context._execution.log, key=None, lease=None)
        if answer.memory is not None:
            pending.scope(place.scope).set(place.path, answer.memory)
        return pending, proposed_by(pending)

    return write


# --- executors that are objects -------------------------------------------------------------------


def _asked(call: Call) -> dict[str, Any]:
    """Returns the stored inputs of a call: its arguments, without place, attempt and key."""
    found: dict[str, Any] = {"prompt": call.prompt}
    if call.system is not None:
        found["system"] = call.system
    if call.model is not None:
        found["model"] = call.model
    if call.agent is not None:
        found["agent"] = call.agent
    if call.memory is not None:
        found["memory"] = call.memory
    if call.permissions is not None:
        found["permissions"] = call.permissions
    if call.context:
        found["context"] = [list(pair) for pair in call.context]
    if call.skills:
        found["skills"] = list(call.skills)
    return found


def _answering(executor: Executor) -> Callable[..., Any]:
    def session(ctx: Any, call: Call) -> Any:
        told = replace(call, place=ctx.path, attempt=ctx.attempt, key=ctx.key)
        return _then(executor.answer(told), _stored)

    return session


def _remembering(executor: Executor) -> Callable[..., Any]:
    def session(ctx: Any, call: Call) -> Any:
        told = replace(call, place=ctx.path, attempt=ctx.attempt, key=ctx.key)
        return _then(executor.answer(told), _stored_with_memory)

    return session


def _deciding(executor: Executor) -> Callable[..., Any]:
    def decide(ctx: Any, question: Question) -> Any:
        told = replace(question, place=ctx.path, attempt=ctx.attempt, key=ctx.key)
        return _then(executor.decide(told), lambda said: _chosen(question, said))

    return decide


def _summarising(executor: Executor) -> Callable[..., Any]:
    def summarise(text: str, limit: int) -> Any:
        return _then(executor.summarise(text, limit), lambda said: str(said)[:limit])

    return summarise


def _rewording(executor: Any) -> Callable[..., Any]:
    def reword(text: str) -> Any:
        return _then(executor.reword(text), lambda said: str(said).strip() or text)

    return reword


def _then(said: Any, use: Callable[[Any], Any]) -> Any:
    """Applies a function to an executor's answer, at once or when the answer is awaited."""
    if isinstance(said, _AT_ONCE) or not hasattr(said, "__await__"):
        return use(said)

    async def later() -> Any:
        return use(await said)

    return later()


_FUNCTIONS: dict[str, Callable[[Executor], Callable[..., Any]]] = {
    "session": _answering,
    "remembered": _remembering,
    "decide": _deciding,
    "summarise": _summarising,
    "reword": _rewording,
}
_METHODS = {
    "session": "answer",
    "remembered": "answer",
    "decide": "decide",
    "summarise": "summarise",
}


def _is_async(executor: Executor, kind: str) -> bool:
    return iscoroutinefunction(getattr(executor, _METHODS.get(kind, kind)))


def _read(said: Any) -> Answer:
    answer = Answer(said) if isinstance(said, str) else said
    if not isinstance(answer, Answer):
        raise AgentError(f"an executor returned no Answer: {show_value(answer)}")
    return answer


def _stored_with_memory(said: Any) -> dict[str, Any]:
    answer = _read(said)
    found = _stored(answer)
    if answer.memory is not None:
        found["memory"] = answer.memory
    return found


def _stored(said: Any) -> dict[str, Any]:
    """Returns an answer in the form for the journal."""
    answer = _read(said)
    found: dict[str, Any] = {"text": answer.text}
    if (usage := answer.usage) is not None:
        counted = found["usage"] = {}
        if usage.input is not None:
            counted["input"] = usage.input
        if usage.output is not None:
            counted["output"] = usage.output
    if answer.model is not None:
        found["model"] = answer.model
    return found


def _answer(stored: Any) -> Answer:
    """Returns the answer from its stored form, which a dry fork or a person may have left empty."""
    if not isinstance(stored, dict):
        return Answer("" if stored is None else str(stored))
    found = cast("dict[str, Any]", stored)
    text, usage = found.get("text", ""), found.get("usage")
    return Answer(
        text if isinstance(text, str) else str(text),
        None if usage is None else Usage(usage.get("input"), usage.get("output")),
        found.get("memory"),
        found.get("model"),
    )


def _same(value: Any) -> Any:
    return value


def _chosen(question: Question, said: Any) -> str:
    found = question.choose(str(said))
    if found not in question.options:
        raise AgentError(
            f'"{question.text}" was answered with {show_value(said)}: expected one of '
            f"{', '.join(question.options)}"
        )
    return found


def _parking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function whose failures park the run, unless they prove that nothing was sent.

    It is for sessions of the class effect: after a failure nobody knows whether the agent began.
    """

    def session(ctx: Any, *args: Any, **named: Any) -> Any:
        try:
            said = function(ctx, *args, **named)
        except Exception as error:
            raise _parked(ctx, error) from error
        return later(ctx, said) if hasattr(said, "__await__") else said

    async def later(ctx: Any, said: Any) -> Any:
        try:
            return await said
        except Exception as error:
            raise _parked(ctx, error) from error

    return session


def _parked(ctx: Any, error: Exception) -> BaseException:
    if isinstance(error, NotSentError):
        return error
    reason = f'nobody knows whether "{ctx.path}" was done: {type(error).__name__}: {error}'
    return ctx._execution.park(reason, ctx.path)


# --- commands -------------------------------------------------------------------------------------


def _process(
    context: Any,
    executor: Command,
    asked: Call | Question,
    name: str,
    effect: str,
    retry: Retry,
) -> AgentStep:
    """Returns the process step that asks a command."""
    command = processes.Command(
        executor.words_for(asked),
        stdin=executor.input_for(asked),
        cwd=executor.directory_for(asked),
        env=executor.environment_for(asked),
        timeout=executor.timeout,
        grace=processes.GRACE_S,
        output_max=processes.OUTPUT_BYTES_MAX,
        check=True,
    )
    settings: dict[str, Any] = {"effect": effect, "retry": retry, "name": name}
    if effect == "effect":
        settings["not_done"] = NotSentError
    step = command.as_step(context._execution.log.clock, context._check_wanted, settings)
    step.function = _reaching(step.function)
    return AgentStep(step, command.inputs, None, _same)


def _reaching(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that raises NotSentError if its command could not be started."""

    def session(ctx: Any, argv: Any, stdin: Any, cwd: Any) -> Any:
        try:
            return function(ctx, argv, stdin, cwd)
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise NotSentError(str(error)) from error

    return session


def _choosing(function: Callable[..., Any], question: Question) -> Callable[..., Any]:
    def decide(ctx: Any, argv: Any, stdin: Any, cwd: Any) -> Any:
        output = function(ctx, argv, stdin, cwd)
        _chosen(question, _printed(output))
        return output

    return decide


def _printed(output: Any) -> str:
    return output.out if isinstance(output, Output) else ""


def _choice_of_output(question: Question, output: Any) -> str:
    return question.choose(_printed(output))


def _summary_of_output(limit: int, output: Any) -> str:
    return _printed(output)[:limit]


def _answer_of_output(executor: Command, call: Call, output: Any) -> Answer:
    if isinstance(output, Output):
        return executor.answer_of(call, output.out)
    return Answer("" if output is None else str(output))


def pairs_of(
    context: Mapping[str, str] | Sequence[Sequence[str]] | None,
) -> tuple[tuple[str, str], ...]:
    """Returns the context as pairs of name and text, in order, or raises UsageError."""
    if context is None:
        return ()
    found: list[Any] = list(context.items() if isinstance(context, Mapping) else context)
    for pair in found:
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise UsageError(f"context has names and texts, found {show_value(pair)}")
    return tuple((name, text) for name, text in found)

"""Engines that are broken on purpose, each in one way: the corpus must catch every one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from holdfast.core import codec
from holdfast.core.leases import LeaseKeeper
from holdfast.runs import blocks, context, events, execution, steps, values, waits
from holdfast.runs.execution import BodyWriter
from holdfast.runs.journal import Answer, Block
from holdfast.runs.operation import CommitNow

Plant = Callable[[], Any]


@contextmanager
def no_fence() -> Generator[None]:
    """Commits of a run are not bound to its lease, and nobody asks for it before an act."""
    take_buffer = execution.Execution.take_buffer

    def unfenced(self: Any, *how: Any, **named: Any) -> Any:
        proposed = take_buffer(self, *how, **named)
        return None if proposed is None else replace(proposed, fence=None)

    sure = patch.object(LeaseKeeper, "is_sure", lambda self, lease: True)
    with patch.object(execution.Execution, "take_buffer", unfenced), sure:
        yield


def no_intent() -> Any:
    """An act is performed without being written down first."""

    def unwritten(self: Any, event: Any) -> None:
        if isinstance(event, events.Intended) and event.effect == "effect":
            with self._lock:
                self.journal.apply(event)
            return
        record(self, event)

    record = execution.Execution.record
    return patch.object(execution.Execution, "record", unwritten)


def unsynced_intent() -> Any:
    """An intent is buffered, and the act does not wait for it."""
    attempts = steps._attempts

    def hasty(*args: Any) -> Any:
        operation = attempts(*args)
        try:
            act = next(operation)
            while True:
                try:
                    sent = None if isinstance(act, CommitNow) else (yield act)
                except BaseException as error:
                    act = operation.throw(error)
                else:
                    act = operation.send(sent)
        except StopIteration as stop:
            return stop.value

    return patch.object(steps, "_attempts", hasty)


def repeats_uncertain() -> Any:
    """An act that was cut short is done again without asking."""

    def careless(run: Any, entry: Any) -> Any:
        return
        yield

    return patch.object(steps, "settle", careless)


def name_only_keys() -> Any:
    """The second call of a step in a block has the key of the first."""

    def nameless(self: Any, kind: str, name: str, key: str | None) -> str:
        path = by_path(self, kind, name, key)
        self._read.discard(path.partition("#")[0])
        return path.partition("#")[0]

    by_path = Block._path
    return patch.object(Block, "_path", nameless)


def inputs_ignored() -> Any:
    """A record is replayed whatever it was called with."""
    ask = Block.ask

    def trusting(self: Any, *rest: Any, **more: Any) -> Any:
        answer: Answer = ask(self, *rest, **more)
        if answer.problem == "inputs":
            return Answer("replay", answer.path, answer.ordinal, answer.entry)
        return answer

    return patch.object(Block, "ask", trusting)


def swallowed_control() -> Any:
    """A control exception that the body swallowed is forgotten."""
    return patch.object(context.Operations, "_leave_with", lambda self, control: control)


def results_not_read_back() -> Any:
    """A live step returns what its function returned, a replayed one what was stored."""
    record_done = steps._record_done

    def raw(run: Any, call: Any, attempt: int, value: Any) -> Any:
        record_done(run, call, attempt, value)
        return value

    return patch.object(steps, "_record_done", raw)


def forgets_attempts() -> Any:
    """The number of an attempt lives in memory alone."""

    def fresh_attempts(run: Any, call: Any, attempt: int, key: str) -> Any:
        return attempts(run, call, 1, key)

    attempts = steps._attempts
    return patch.object(steps, "_attempts", fresh_attempts)


def writes_without_keys() -> Any:
    """A write of the body is made again at each replay."""
    return patch.object(BodyWriter, "prepare", lambda self, proposed: proposed)


def takes_twice() -> Any:
    """A message that was taken is handed out again."""
    done = events.StepDone

    def untaken(run: Any, entry: Any, waiting: Any, message: Any) -> None:
        run.record(done(entry.path, run.store(codec.encode(message.value))))

    return patch.object(waits, "_take_answer", untaken)


def fold_starts_over() -> Any:
    """A fold forgets the accumulator of finished iterations."""
    fold = blocks.fold

    def forgetful(context: Any, answer: Any, name: str, items: Any, init: Any, *rest: Any) -> Any:
        for number in range(len(items)):
            entry = context._execution.journal.entries.get(f"{answer.path}[{number}]")
            if entry is not None:
                entry.value = context._execution.store(values.encode(init))
        return fold(context, answer, name, items, init, *rest)

    return patch.object(context.blocks, "fold", forgetful)


def stops_at_once() -> Any:
    """A run that is to stop is left at its first operation, before it comes to its cleanups."""
    return patch.object(context.Operations, "_begin_to_leave", context.Operations._check_stop)


PLANTS: dict[Plant, str] = {
    no_fence: "a paused owner",
    no_intent: "effect_chain",
    unsynced_intent: "effect_chain",
    repeats_uncertain: "effect_chain",
    name_only_keys: "effect_chain",
    inputs_ignored: "changed inputs",
    swallowed_control: "swallowed control",
    results_not_read_back: "live and replay",
    forgets_attempts: "a long back-off",
    writes_without_keys: "body_writes",
    takes_twice: "signals",
    fold_starts_over: "folding",
    stops_at_once: "cleaned_after_a_stop",
}
"""Each with what must catch it: a program of the corpus that is cut, or a test of a rule."""


@contextmanager
def planted(plant: Plant) -> Generator[None]:
    """Breaks the engine for the length of a block."""
    with plant():
        yield

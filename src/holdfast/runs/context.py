"""The context of a run's body: every durable operation of it.

`Operations` has them all, for both colours. Those that only record (`let`, `const`, `now`, loops)
are plain calls everywhere; those that may act or wait are generators handed to `drive`, which the
subclass performs (`Context`, here) or awaits (`holdfast.aio`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.arguments import Path, check_path, check_whole
from holdfast.errors import UsageError, show_value
from holdfast.runs import blocks, events, processes, steps, values, waits
from holdfast.runs.acts import Operation
from holdfast.runs.blocks import Branch, Joining
from holdfast.runs.define import ONCE, RunFunction, Step, is_run, is_step
from holdfast.runs.journal import Block, iteration
from holdfast.runs.recording import Recording
from holdfast.scope import Scope
from holdfast.tree import MISSING, Map, get


class Operations(Recording):
    """What a run can do, in one block of it."""

    # --- steps -----------------------------------------------------------------------------------

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
        """Performs a step, or returns what it gave when it was performed before."""
        if not is_step(function):
            raise UsageError(
                f"ctx.step takes a step, found {show_value(function)}",
                hint='put @holdfast.step(effect="…") above the function',
            )
        if key is not None or label is not None or source is not None:
            function.signature.check_settings("ctx.step", args, key=key, label=label, source=source)
        return self.drive(self.step_operation(function, args, kwargs, key, label, source))

    def step_operation(
        self,
        step: Step[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Operation:
        """Takes the step's place in the journal now, and returns how it is performed."""
        self.enter()
        inputs = step.signature.inputs(args, kwargs)
        digest = values.digest(inputs)
        answer = self.block.ask(
            "step", step.name, step.effect, digest, key=key, label=label, source=source
        )
        self.doing = blocks.Doing(answer.path, label or step.name, step.retry.attempts)
        call = steps.StepCall(step, args, kwargs, inputs, digest, answer)
        return steps.perform(self.execution, call)

    def call_plainly(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Does what a step or run does that is called like a function in a run's body."""
        if is_run(function):
            return self.enter_run(function, args, kwargs)
        return self.drive(self.step_operation(function, args, kwargs))

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
        """Calls `function(tx, …)`; its writes and the record of it are one commit (rule 11)."""
        step = function if is_step(function) else blocks.txn_step(function)
        if step.effect != "txn":
            raise UsageError(f'ctx.txn takes a step of the class txn, found "{step.effect}"')
        step.signature.check_settings("ctx.txn", args, key=key, label=label, source=source)
        return self.drive(self.step_operation(step, args, kwargs, key, label, source))

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
        """Calls `function(connection, …)` in a transaction of another SQL database, once.

        A row of a ledger there, in the same transaction, remembers that it was done. The connection
        is yours: it must not be in autocommit mode, nor have a transaction open.
        """
        step = blocks.ledger_step(connection, function)
        if key or label or source:
            signature = values.Signature(function)
            given = args if signature.first in ("ctx", "tx") else (connection, *args)
            signature.check_settings("ctx.txn_in", given, key=key, label=label, source=source)
        return self.drive(self.step_operation(step, args, kwargs, key, label, source))

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

        It ends with the run: a cancel, a timeout, a lost race or lease sends TERM to its process
        group, and KILL when `grace` is over or this process dies. An exit code other than 0 raises
        StepError of the kind ExitError, unless `check` is False. HOLDFAST_RUN and HOLDFAST_KEY, the
        idempotency key, are in its environment, with `env`, which is not journalled.
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
        step = command.as_step(self.execution.log.clock, self.still_wanted, settings)
        return self.drive(self.step_operation(step, command.inputs, {}, key, label, source))

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
        """Returns a value of a scope's state as it was when the run first read it (rule 3)."""
        steps_ = () if path is None else check_path(path)
        scope = getattr(scope, "sync", scope)
        shown = "/".join([scope.name, *map(str, steps_)])[:200]

        def look() -> Any:
            found = get(scope.state, steps_, default) if steps_ else scope.state
            return found.to_dict() if isinstance(found, Map) else found

        reading = Step(
            look,
            effect="read",
            name=f"read {shown}",
            verify=None,
            retry=ONCE,
            not_done=(),
            ignore=(),
        )
        return self.drive(self.step_operation(reading, (), {}, key, label, source))

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

        `join` is "all" (the first failure ends it), "settle" (waits for all, returns `Outcome`s),
        "first" (the first success counts), or a number (that many successes count).
        """
        self.enter()
        every = {**(branches or {}), **named}
        joining = Joining(every, blocks.check_join(join, len(every)))
        shape = blocks.shape_of(every)
        answer = self.block.ask("parallel", "", "pure", shape, key=key, label=label, source=source)
        return self.drive(blocks.parallel(self, answer, joining))

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
        """Yields items, each in a block of its own that is entered again when the run is replayed.

        Blocks are named by index, or by what `by(item)` says. Use it right in a `for` statement.
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

    def _loop(
        self,
        kind: str,
        name: str,
        items: Sequence[Any],
        by: Callable[[Any], str] | None,
        key: str | None,
        label: str | None,
        source: str | None,
    ) -> Generator[Any]:
        self.enter()
        leaf = name if name != kind else ""
        answer = self.block.ask(kind, leaf, "pure", key=key, label=label, source=source)
        if answer.verdict == "diverged":
            raise self.poisoned(self.execution.diverge(answer))
        if answer.verdict == "execute":
            self.execution.record(blocks.opened(answer, kind, name, len(items)))
        outer, depth = self.block, len(self.frames)
        seen: set[str] = set()
        try:
            for number, item in enumerate(items):
                path = iteration(answer.path, number if by is None else str(by(item)))
                if path in seen:
                    raise UsageError(f'two iterations are named "{path}": make their names differ')
                seen.add(path)
                self.block = Block(self.execution.journal, path, displaced=answer.displaced)
                self.frames[depth:] = [blocks.Frame(answer.label or name, number, len(items))]
                yield item
                self.enter()
                self.close_block(self.block)
            self._close_loop(answer.path, seen)
        finally:
            self.block = outer
            del self.frames[depth:]

    def _close_loop(self, path: str, seen: set[str]) -> None:
        """Looks for acts of iterations that are no longer there."""
        journal = self.execution.journal
        gone = [acts for block, acts in journal.acting.get(path, {}).items() if block not in seen]
        for act in (act for acts in gone for act in acts):
            entry = journal.entries.get(act)
            if entry is not None and (act, "unread") not in journal.adopted:
                raise self.unread(act, f"{entry.kind} {entry.name}")

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

        The accumulator is all that goes from one iteration to the next, so finished iterations are
        skipped when the run is replayed, not entered again.
        """
        self.enter()
        if body is None or not callable(body):
            raise UsageError(f"body is a function, found {show_value(body)}")
        answer = self.block.ask("fold", name, "pure", key=key, label=label, source=source)
        return self.drive(blocks.fold(self, answer, name, list(items), init, body))

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
        """Runs another run's function as a block of this run; it may call itself."""
        if not is_run(function):
            raise UsageError(f"ctx.run takes a run, found {show_value(function)}")
        function.signature.check_settings("ctx.run", args, key=key, label=label, source=source)
        return self.enter_run(function, args, kwargs, key, label, source)

    def enter_run(
        self,
        function: RunFunction[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        /,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Does what `run` does, for one that may also be called like a function."""
        self.enter()
        digest = values.digest(function.signature.inputs(args, kwargs))
        name = function.name.rpartition(":")[2]
        answer = self.block.ask("run", name, "pure", digest, key=key, label=label, source=source)
        return self.drive(blocks.nested(self, answer, function, name, args, kwargs))

    # --- waiting ---------------------------------------------------------------------------------

    def sleep(
        self,
        length: Any,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Waits for a length of time ("10m", 1.5), across crashes; a long wait holds no thread."""
        self.enter()
        answer = self.block.ask("sleep", "", "pure", key=key, label=label, source=source)
        return self.drive(waits.sleep(self.execution, answer, length))

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
        """Waits until somebody answers (`store.answer`), without a thread; the first answer counts.

        After `timeout` it returns `default`, or raises StepError if there is none. An answer that
        does not fit `schema` is refused, and the wait goes on.
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
        """Returns the oldest signal of that name (`store.signal`) that was not taken yet."""
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
        self.enter()
        values.check_name_text(name, f"the name of a {kind}")
        wanted = waits.Waiting(kind, name, schema, timeout, default)
        answer = self.block.ask(kind, name, "idempotent", key=key, label=label, source=source)
        self.doing = blocks.Doing(answer.path, label or f"{kind} {name}", 1)
        return self.drive(waits.wait(self.execution, answer, wanted))

    def inbox(
        self,
        *kinds: str,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Takes what came for the run and was not taken yet, of these kinds or of all but stop."""
        self.enter()
        answer = self.block.ask("inbox", "", "pure", key=key, label=label, source=source)
        return self.drive(waits.take(self.execution, answer, kinds))

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

        When this run ends before it, the child is cancelled, left alone ("leave") or waited for
        ("wait"), as `when_parent_ends` says.
        """
        self.enter()
        spec = waits.check_child(function, args, kwargs, id, when_parent_ends)
        spec.function.signature.check_settings(
            "ctx.child", args, key=key, label=label, source=source
        )
        answer = self.block.ask(
            "child", spec.name, "idempotent", spec.digest, key=key, label=label, source=source
        )
        return self.drive(waits.child(self, answer, spec))

    def join(
        self,
        child: waits.Child,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Waits for a child's result, which is recorded; raises StepError if it failed."""
        self.enter()
        if not isinstance(child, waits.Child):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"ctx.join takes what ctx.child returned, found {show_value(child)}")
        answer = self.block.ask("join", child.name, "pure", key=key, label=label, source=source)
        return self.drive(waits.join(self, answer, child))

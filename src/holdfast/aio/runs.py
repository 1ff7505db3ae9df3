"""Runs for asyncio: the same operations over the same journal, awaited."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from holdfast.agents.command import Command
from holdfast.agents.protocol import Executor
from holdfast.aio.loop import Loop, Reading, shielded
from holdfast.aio.mirror import Mirror, mirror
from holdfast.aio.scope import AsyncScope
from holdfast.backends.deadline import monotonic
from holdfast.core.arguments import Duration, check_timeout
from holdfast.core.commit import CommitResult, ProposedCommit
from holdfast.core.log import WRITER
from holdfast.core.sealing import READER
from holdfast.errors import ConflictError, StillRunningError, UsageError
from holdfast.runs.blocks import ParallelJoin, Progress, branch_body, perform_pass
from holdfast.runs.context import Operations
from holdfast.runs.define import CURRENT, RunFunction, Step
from holdfast.runs.engine import SLICE_S, Engine, Run, result_of
from holdfast.runs.events import Status
from holdfast.runs.execution import Execution, InFlightCommit, StepWriter
from holdfast.runs.journal import Block, Journal
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
    Pause,
    Settle,
    Stopped,
)
from holdfast.runs.pool import PoolCall
from holdfast.runs.room import RunsRoom

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
R_co = TypeVar("R_co", covariant=True)
_logger = logging.getLogger("holdfast.aio")


class AsyncContext(Operations):
    """The `ctx` of an `async def` run: all methods that act or wait are awaited.

    A step takes its place in the journal when it is called, not when it is awaited, so
    `asyncio.gather(ctx.step(a), ctx.step(b))` has the same order at every replay.
    """

    def __init__(
        self, execution: Execution, block: Block, parent: Any, engine: Engine, loop: Loop
    ) -> None:
        super().__init__(execution, block, parent, engine)
        self._home = loop
        self._inside: list[Any] = []  # the tasks that are inside blocks of this context

    if TYPE_CHECKING:  # the same method, whose value is awaited

        @overload
        def step(
            self,
            function: Step[P, Coroutine[Any, Any, R]],
            /,
            *args: P.args,
            **kwargs: P.kwargs,
        ) -> Awaitable[R]: ...
        @overload
        def step(
            self, function: Step[P, R], /, *args: P.args, **kwargs: P.kwargs
        ) -> Awaitable[R]: ...
        @overload
        def step(
            self,
            function: Step[..., Any],
            /,
            *args: Any,
            key: str | None,
            label: str | None = ...,
            source: str | None = ...,
            **kwargs: Any,
        ) -> Awaitable[Any]: ...
        def step(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, function: Any, /, *args: Any, **kwargs: Any
        ) -> Any: ...

    async def _drive(self, operation: Operation) -> Any:
        try:
            act = next(operation)
            while True:
                try:
                    sent = await _PERFORM[type(act)](self, act)
                except asyncio.CancelledError as cancelled:
                    act = operation.throw(self._cancelled(cancelled))
                except BaseException as error:
                    act = operation.throw(error)
                else:
                    act = operation.send(sent)
        except StopIteration as stop:
            return stop.value
        except Control as control:
            self._leave_with(control)
            raise

    def _cancelled(self, cancelled: BaseException) -> BaseException:
        """Returns what a cancelled await means for the run: a stop, if one was asked for."""
        run = self._execution
        if self._is_stopped:
            return self._leave_with(Stopped("another branch decided the block"))
        if run.stop_wanted:
            run.leaving = run.leaving or Cancelled(f'run "{run.id}" is to stop')
            return run.leaving
        return cancelled

    def _call_step(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not step.is_async:
            raise UsageError(
                f'step "{step.name}" is a plain function and was called in an async run',
                hint=f"write await ctx.step({step.name}, …)",
            )
        return super()._call_step(step, args, kwargs)

    def _enter_run(
        self,
        function: RunFunction[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        /,
        *how: Any,
        **named: Any,
    ) -> Any:
        if not function.is_async:
            raise UsageError(
                f'run "{function.name}" is a plain function: an async run cannot enter it',
                hint="start it with ctx.child, or make it async def",
            )
        return super()._enter_run(function, args, kwargs, *how, **named)

    @property
    def state(self) -> AsyncScope:
        return AsyncScope(self._home, self._engine.state_of(self._execution.id))

    def _inner(self, block: Block) -> AsyncContext:
        """Returns the context of a branch."""
        return AsyncContext(self._execution, block, self, self._engine, self._home)

    # --- acts ------------------------------------------------------------------------------------

    async def _commit(self, act: CommitNow) -> None:
        await self._put(())

    async def _finish(self, act: Finish) -> None:
        await self._put(act.marks)

    async def _put(self, marks: tuple[Any, ...]) -> None:
        run = self._execution
        try:
            task = run.put(self._launch, marks)
            written = None if task is None else await shielded(task)
            await self._landed()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise run.lost(error) from error
        if run.has_news(written):
            await self._home.hop(run.look)

    def _launch(
        self, proposed: ProposedCommit, commit: InFlightCommit
    ) -> asyncio.Task[CommitResult]:
        task = self._home.enqueue(proposed)
        task.add_done_callback(lambda done: commit.complete(_error_of(done)))
        return task

    async def _landed(self) -> None:
        """Waits until every commit of the run that other threads or tasks sent is answered."""
        run = self._execution
        if run.in_flight.pending:
            await self._home.hop(run.in_flight.wait)
        run.check_loss()

    async def _commit_with(self, act: CommitWith) -> Any:
        run = self._execution
        try:
            task = run.join(act.event, act.extra, self._home.enqueue)
            task.add_done_callback(lambda done: _error_of(done) or run.joined(act.event))
            written = await shielded(task)
            await self._landed()
        except (ConflictError, UsageError, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise run.lost(error) from error
        if run.has_news(written):
            await self._home.hop(run.look)
        return written

    async def _call(self, act: Call) -> Any:
        inside = CURRENT.set(None)
        writing = WRITER.set(StepWriter(self._execution, act.path))
        reading = READER.set(self._execution.reads)
        try:
            if self._execution.log.observers is not None:
                with self._execution.attempt(act):
                    return await self._called(act)
            if act.is_async:  # as in `_called`, inlined: it saves a frame if nobody observes
                return await act.function(*act.args, **act.kwargs)
            return await self._called(act)
        finally:
            READER.reset(reading)
            WRITER.reset(writing)
            CURRENT.reset(inside)

    async def _called(self, act: Call) -> Any:
        if act.is_async:
            return await act.function(*act.args, **act.kwargs)
        return await self._in_thread(partial(act.function, *act.args, **act.kwargs), act.drop)

    async def _in_thread(self, function: Callable[[], Any], drop: Callable[[], None] | None) -> Any:
        """Calls a synchronous step in a thread of the engine, so that the store's few stay free.

        If the await is cancelled and the step can be dropped (it is a process), it is dropped and
        waited for: the run must not be left while the step still works.
        """
        loop, context = self._home.loop, copy_context()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if future.done():
                return  # the run was cancelled meanwhile: the outcome of the step is uncertain
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def work() -> None:
            value, error = None, None
            try:
                value = context.run(function)
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(settle, value, error)
            except RuntimeError as closed:  # the loop was closed meanwhile
                _logger.debug("a step ended and nobody awaits it: %s", closed)

        self._engine.pool.submit(PoolCall(work))
        try:
            return await (future if drop is None else asyncio.shield(future))
        except asyncio.CancelledError:
            while drop is not None and not future.done():
                drop()
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((future,))
            if future.done() and not future.cancelled():
                future.exception()  # marks it as retrieved: the cancellation is raised instead
            raise

    async def _enter(self, act: Enter) -> Any:
        inside = CURRENT.set(act.context)
        writing = WRITER.set(act.context._writer)
        reading = READER.set(self._execution.reads)
        try:
            with act.context._alone():
                result = act.function(*act.args, **act.kwargs)
                return await result if inspect.isawaitable(result) else result
        finally:
            READER.reset(reading)
            WRITER.reset(writing)
            CURRENT.reset(inside)

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Refuses to enter a block while another task is inside a block of the same context.

        A context is in one block at a time. Two nested runs or folds awaited side by side would
        each record the operations of the other as their own, in an order that differs at replay.
        """
        if self._block.path == self._base:
            yield
            return
        task = asyncio.current_task()
        if self._inside and self._inside[-1] is not task:
            raise UsageError(
                f'block "{self._block.path}" of run "{self.run_id}" was entered while another was',
                hint="use ctx.parallel with ctx.branch: each branch gets a context of its own",
            )
        self._inside.append(task)
        try:
            yield
        finally:
            self._inside.pop()

    async def _pause(self, act: Pause) -> None:
        began, log = monotonic(), self._execution.log
        await self._pause_until(act)
        if log.observers is not None:
            log.observers.tell("wait", self._block.path, began, run=self._execution.id)

    async def _pause_until(self, act: Pause) -> None:
        clock = self._execution.log.clock
        while (left := act.until - clock.now_us()) > 0:
            self._check_stop()
            await asyncio.sleep(min(left / 1e6, SLICE_S))

    async def _look(self, act: Look) -> None:
        await self._home.hop(self._execution.look)

    async def _fork(self, act: Fork) -> None:
        joining: ParallelJoin = act.joining
        names = {
            asyncio.create_task(context._run_branch(name, joining)): name
            for name, context in joining.contexts.items()
        }
        waiting = set(names)
        try:
            while waiting and not joining.decided:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                context = joining.contexts[names[task]]
                is_known, context._is_stopped = context._is_stopped, True
                if not is_known and not self._execution.is_cleaning_below(context._base):
                    task.cancel()  # a branch in its cleanup finishes that first, and stops then
            # Shielded: even if this task is cancelled, no branch is at work when the block is left.
            await shielded(asyncio.gather(*waiting, return_exceptions=True))

    async def _settle(self, act: Settle) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    def _as_control(self, error: BaseException | None) -> BaseException | None:
        if not isinstance(error, asyncio.CancelledError):
            return error
        found = self._cancelled(error)
        return self._leave_with(found) if isinstance(found, Control) else found

    async def _run_branch(self, name: str, joining: ParallelJoin) -> None:
        """The task of one branch."""
        run = self._execution
        run.contexts.append(self)
        run.forked(1)
        try:
            error, fault = await self._drive(branch_body(self, name, joining))
        finally:
            run.contexts.remove(self)
            run.forked(-1)
        joining.ended(name, error, fault)


def _error_of(done: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if done.cancelled() else done.exception()


_PERFORM: dict[type, Any] = {
    CommitNow: AsyncContext._commit,  # pyright: ignore[reportPrivateUsage]
    CommitWith: AsyncContext._commit_with,  # pyright: ignore[reportPrivateUsage]
    Call: AsyncContext._call,  # pyright: ignore[reportPrivateUsage]
    Enter: AsyncContext._enter,  # pyright: ignore[reportPrivateUsage]
    Pause: AsyncContext._pause,  # pyright: ignore[reportPrivateUsage]
    Finish: AsyncContext._finish,  # pyright: ignore[reportPrivateUsage]
    Look: AsyncContext._look,  # pyright: ignore[reportPrivateUsage]
    Fork: AsyncContext._fork,  # pyright: ignore[reportPrivateUsage]
    Settle: AsyncContext._settle,  # pyright: ignore[reportPrivateUsage]
}


class RunTasks:
    """Executes the `async def` runs of a store on one event loop."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.engine = loop.kernel.part(Engine)
        self._tasks: dict[asyncio.Task[None], Execution] = {}
        loop.begin = self._begin

    def launch(self, run: Execution) -> None:
        """Begins a run on a loop, from any thread.

        If the store has several loops, it is the one from which the run was started, else this one.
        The run gets a new context: the caller's context variables, above all a run around it, may
        end before this run does.
        """
        home = self.loop.nearest()
        assert home.begin is not None, "BUG: a loop without runs"
        try:
            home.loop.call_soon_threadsafe(home.begin, run, context=Context())
        except RuntimeError as error:
            raise UsageError(
                "the event loop of this store is closed: no async run is executed here any more",
                hint="open the store again in the loop that is to execute its runs",
            ) from error

    def _begin(self, run: Execution) -> None:
        task = self.loop.loop.create_task(self._execute(run))
        self._tasks[task] = run
        task.add_done_callback(self._tasks.pop)

    def _stop(self, run: Execution, task: asyncio.Task[None]) -> None:
        def stop() -> None:
            # This is checked on the loop, because by now the pass may be over or in its cleanup.
            if run.when_stopped is not None and not run.cleaning:
                task.cancel()

        try:
            self.loop.loop.call_soon_threadsafe(stop)
        except RuntimeError as error:
            _logger.debug('run "%s" is not stopped, its loop is closed: %s', run.id, error)

    async def _execute(self, run: Execution) -> None:
        # `when_stopped` is set here and not by the caller: a task that is cancelled before its
        # first step runs nothing, not even its `finally`.
        task = asyncio.current_task()
        assert task is not None, "BUG: a run outside a task"
        run.when_stopped = lambda: self._stop(run, task)
        context = AsyncContext(run, Block(run.journal), None, self.engine, self.loop)
        run.contexts.append(context)
        control: BaseException | None = None
        try:
            control = await context._drive(perform_pass(context))
        except BaseException as error:
            control = run.lost(error)
        finally:
            await shielded(
                asyncio.ensure_future(self.loop.hop(self.engine.finish_pass, run, control))
            )

    async def close(self) -> None:
        """Stops every run of this loop where it is; each can be resumed later."""
        mine = list(self._tasks.values())
        if self.engine.launch_async == self.launch:  # no other loop: include runs still to begin
            mine = [run for run in self.engine.active.values() if run.function.is_async]
        for run in mine:  # callers who wait for it get this error, not the cancellation
            run.lost(UsageError("the store was closed"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class AsyncRun(Mirror[Run[R_co]], Generic[R_co]):
    """One run of a store; see `Run`."""

    def __init__(self, loop: Loop, run: Run[R_co]) -> None:
        super().__init__(loop, run)
        self.id = run.id

    @property
    def status(self) -> Reading[Status]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.status))

    @property
    def progress(self) -> Reading[Progress]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.progress))

    @property
    def journal(self) -> Reading[Journal]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.journal))

    @property
    def variables(self) -> Reading[dict[str, Any]]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.variables))

    @overload
    async def result(
        self: AsyncRun[Coroutine[Any, Any, R]], timeout: Duration | None = None
    ) -> R: ...
    @overload
    async def result(self, timeout: Duration | None = None) -> R_co: ...
    async def result(self, timeout: Duration | None = None) -> Any:
        left_s = check_timeout(timeout)
        engine = self._loop.kernel.part(Engine)
        run = engine.active.get(self.id)
        while True:
            ended = await self._loop.hop(engine.look_at, self.id, run)
            if ended is not None:
                return result_of(engine, self.id, ended, self.sync._failure)
            if left_s is not None and left_s <= 0:
                raise StillRunningError(self.id, await self.status)
            slice_s = SLICE_S if left_s is None else min(SLICE_S, left_s)
            if run is None or run.over.is_set():
                run = engine.active.get(self.id)
            await self._pause(run, slice_s)
            left_s = None if left_s is None else left_s - slice_s

    async def _pause(self, run: Execution | None, slice_s: float) -> None:
        """Waits for a slice of time: for the run to end if it is here, else for a commit."""
        if run is None:
            position = await self._loop.hop(self._loop.log.position)
            await self._loop.wait_after(position, slice_s)
            return
        over = asyncio.Event()
        tell = self._loop.loop.call_soon_threadsafe

        def wake() -> None:
            tell(over.set)

        run.when_over.append(wake)
        try:
            if not run.over.is_set():
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(over.wait(), slice_s)
        finally:
            run.when_over.remove(wake)

    async def cancel(self) -> None:
        await self._loop.hop_shielded(self.sync.cancel)


class AsyncRunsRoom(Mirror[RunsRoom]):
    """The runs of a store, executed here or elsewhere; see `RunsRoom`."""

    if TYPE_CHECKING:  # a decorator loses the parameters of the run's function

        @overload
        async def start(
            self, function: RunFunction[P, R], /, *args: P.args, **kwargs: P.kwargs
        ) -> AsyncRun[R]: ...
        @overload
        async def start(
            self,
            function: RunFunction[..., R],
            /,
            *,
            id: str,
            if_exists: str = ...,
            queue: str | None = ...,
            subject: str | None = ...,
            **kwargs: Any,
        ) -> AsyncRun[R]: ...
        @overload
        async def start(
            self,
            function: Callable[Concatenate[A, ...], R],
            first: A,
            /,
            *,
            id: str,
            if_exists: str = ...,
            queue: str | None = ...,
            subject: str | None = ...,
            **kwargs: Any,
        ) -> AsyncRun[R]: ...
        @overload
        async def start(
            self,
            function: Callable[Concatenate[A, B, ...], R],
            first: A,
            second: B,
            /,
            *rest: Any,
            id: str,
            if_exists: str = ...,
            queue: str | None = ...,
            subject: str | None = ...,
            **kwargs: Any,
        ) -> AsyncRun[R]: ...
        @overload
        async def start(
            self,
            function: RunFunction[..., R],
            /,
            *args: Any,
            queue: str,
            id: str | None = ...,
            if_exists: str = ...,
            subject: str | None = ...,
            **kwargs: Any,
        ) -> AsyncRun[R]: ...
        async def start(self, function: Any, /, *args: Any, **kwargs: Any) -> Any: ...
    else:
        start = mirror(RunsRoom.start, AsyncRun)
    resume = mirror(RunsRoom.resume, AsyncRun)
    get = mirror(RunsRoom.get, AsyncRun)
    fork = mirror(RunsRoom.fork, AsyncRun)
    list = mirror(RunsRoom.list)
    cancel = mirror(RunsRoom.cancel)
    answer = mirror(RunsRoom.answer)
    signal = mirror(RunsRoom.signal)
    send = mirror(RunsRoom.send)
    settle = mirror(RunsRoom.settle)
    adopt = mirror(RunsRoom.adopt)
    remove = mirror(RunsRoom.remove)

    def use_executor(self, executor: Executor | Command | None) -> None:
        self.sync.use_executor(executor)

"""The context of a sync run: performs what operations ask for, in the thread that it is in."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context as ContextVars
from contextvars import copy_context
from functools import partial
from typing import Any

from holdfast.core.log import WRITER
from holdfast.errors import UsageError
from holdfast.runs import acts
from holdfast.runs.acts import Operation
from holdfast.runs.blocks import Joining, branch_body
from holdfast.runs.context import Operations
from holdfast.runs.control import Control
from holdfast.runs.define import CURRENT
from holdfast.runs.execution import StepWriter
from holdfast.runs.journal import Block

# --- pool -----------------------------------------------------------------------------------------
#
# Threads for runs and branches: a bounded number, and no deadlock when they are used up.
#
# A job that no thread has begun can be taken by whoever waits for it, and is then done in that
# thread. So a parent that waits for its children, however deep, always finds somebody to do the
# work.


IDLE_S = 5.0


class PoolCall:
    """Something to be done once, by a thread of the pool or by whoever takes it first."""

    __slots__ = ("_lock", "_work", "done")

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._lock = threading.Lock()
        self.done = threading.Event()

    def do(self) -> bool:
        """Does the work unless somebody has begun it; says whether it was done here."""
        with self._lock:
            work, self._work = self._work, None
        if work is None:
            return False
        try:
            work()
        finally:
            self.done.set()
        return True


class Pool:
    """Threads that come when there is work and go when there is none."""

    def __init__(self, name: str, *, threads_max: int = 64) -> None:
        self._name = name
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiting: deque[PoolCall] = deque()
        self._threads = 0
        self._idle = 0

    def submit(self, job: PoolCall) -> None:
        """Puts a job in line for the next free thread."""
        with self._lock:
            self._waiting.append(job)
            if self._idle >= len(self._waiting):
                self._work.notify()
            elif self._threads < self._threads_max:
                self._threads += 1
                threading.Thread(target=self._live, name=self._name, daemon=True).start()

    @property
    def is_full(self) -> bool:
        """Whether a job that is put in line must wait for another to end."""
        with self._lock:
            return self._threads >= self._threads_max and not self._idle

    def _live(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    self._idle += 1
                    came = self._work.wait(IDLE_S)
                    self._idle -= 1
                    if not came and not self._waiting:
                        self._threads -= 1
                        return
                job = self._waiting.popleft()
            try:
                job.do()
            except BaseException:
                # Told as any thread's end would be, and not ended: others are in line behind it.
                told = (*sys.exc_info(), threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(told))


SLICE_S = 0.05
"""How long a thread that waits goes without looking whether it is still wanted."""


class Context(Operations):
    """What the body of a sync run gets as its `ctx`."""

    def drive(self, operation: Operation) -> Any:
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
            self.poisoned(control)
            raise

    def inner(self, block: Block) -> Context:
        """Returns the context of a branch."""
        return Context(self.execution, block, self, self.engine)

    def _commit(self, act: acts.CommitNow) -> None:
        self.execution.commit()

    def _commit_with(self, act: acts.CommitWith) -> Any:
        return self.execution.commit_with(act.event, act.extra)

    def _call(self, act: acts.Call) -> Any:
        if act.is_async:
            raise UsageError(
                f'step "{act.path}" is async and was called in a sync run',
                hint="make the run async def, or the step def",
            )
        inside = CURRENT.set(None)
        writing = WRITER.set(StepWriter(self.execution, act.path))
        try:
            return act.function(*act.args, **act.kwargs)
        finally:
            WRITER.reset(writing)
            CURRENT.reset(inside)

    def _enter(self, act: acts.Enter) -> Any:
        inside = CURRENT.set(act.context)
        writing = WRITER.set(act.context.writer)
        try:
            return act.function(*act.args, **act.kwargs)
        finally:
            WRITER.reset(writing)
            CURRENT.reset(inside)

    def _pause(self, act: acts.Pause) -> None:
        clock = self.execution.log.clock
        while (left := act.until - clock.now_us()) > 0:
            self.execution.check()
            clock.sleep(min(left / 1e6, SLICE_S))

    def _finish(self, act: acts.Finish) -> None:
        self.execution.commit(act.marks)

    def _look(self, act: acts.Look) -> None:
        self.execution.look()

    def _fork(self, act: acts.Fork) -> None:
        _Branches(self, act.joining).run()


_PERFORM: dict[type, Any] = {
    acts.CommitNow: Context._commit,  # pyright: ignore[reportPrivateUsage]
    acts.CommitWith: Context._commit_with,  # pyright: ignore[reportPrivateUsage]
    acts.Call: Context._call,  # pyright: ignore[reportPrivateUsage]
    acts.Enter: Context._enter,  # pyright: ignore[reportPrivateUsage]
    acts.Pause: Context._pause,  # pyright: ignore[reportPrivateUsage]
    acts.Finish: Context._finish,  # pyright: ignore[reportPrivateUsage]
    acts.Look: Context._look,  # pyright: ignore[reportPrivateUsage]
    acts.Fork: Context._fork,  # pyright: ignore[reportPrivateUsage]
}


def _in(variables: ContextVars, live: Callable[..., None], *args: Any) -> None:
    variables.run(live, *args)


class _Branches:
    """The threads of one parallel block."""

    def __init__(self, context: Context, joining: Joining) -> None:
        self._context = context
        self._joining = joining
        self._changed = threading.Condition()
        self._left = len(joining.contexts)

    def run(self) -> None:
        """Returns when the joining is decided, or when no branch is at work any more."""
        pool = self._context.engine.pool
        jobs = [
            PoolCall(partial(_in, copy_context(), self._live, name, context))
            for name, context in self._joining.contexts.items()
        ]
        self._context.execution.forked(len(jobs))
        early = self._joining.returns_early
        for job in jobs if early else jobs[1:]:
            pool.submit(job)
        if not early:
            # The caller does one itself, and whatever no thread has begun: nesting cannot deadlock.
            for job in jobs:
                job.do()
        with self._changed:
            while self._left and not (early and self._joining.decided):
                self._changed.wait(SLICE_S if early else None)
                if early and not self._joining.decided and pool.is_full:
                    self._changed.release()
                    try:
                        any(job.do() for job in jobs)
                    finally:
                        self._changed.acquire()

    def _live(self, name: str, context: Context) -> None:
        run, joining = context.execution, self._joining
        context.here()
        run.contexts.append(context)
        try:
            error, fault = context.drive(branch_body(context, name, joining))
        finally:
            run.contexts.remove(context)
            run.forked(-1)
        with self._changed:
            joining.ended(name, error, fault)
            self._left -= 1
            if joining.decided:
                for other in joining.contexts.values():
                    other.is_stopped = True
            self._changed.notify_all()

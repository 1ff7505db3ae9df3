"""The runs of a store: `hf.runs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from holdfast.agents.command import Command
from holdfast.agents.protocol import Executor
from holdfast.core.intent import Verdict
from holdfast.core.kernel import Kernel
from holdfast.core.page import PAGE_SIZE, Page
from holdfast.errors import UsageError, show_value
from holdfast.names import check_name
from holdfast.renamed import NotCalled
from holdfast.runs import admin
from holdfast.runs.admin import RunSummary
from holdfast.runs.define import RunFunction, is_run
from holdfast.runs.engine import Engine, Run
from holdfast.runs.events import Status
from holdfast.runs.waits import check_id, message_name
from holdfast.scope import Scopes

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
_STATUSES = Status.__args__


class RunsRoom(NotCalled):
    """The runs of a store: durable executions of functions, in this process or in others."""

    def __init__(self, kernel: Kernel) -> None:
        self._engine = kernel.part(Engine)
        self._scopes = kernel.part(Scopes)

    def __repr__(self) -> str:
        return "<RunsRoom>"

    # Without settings, a type checker compares all arguments with the function's parameters. With
    # settings it can compare the first two only, because Python's type system cannot describe
    # further arguments together with keyword-only settings.
    @overload
    def start(
        self, function: RunFunction[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Run[R]: ...
    @overload
    def start(
        self,
        function: RunFunction[..., R],
        /,
        *,
        id: str,
        if_exists: str = ...,
        queue: str | None = ...,
        subject: str | None = ...,
        **kwargs: Any,
    ) -> Run[R]: ...
    @overload
    def start(
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
    ) -> Run[R]: ...
    @overload
    def start(
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
    ) -> Run[R]: ...
    @overload
    def start(
        self,
        function: RunFunction[..., R],
        /,
        *args: Any,
        queue: str,
        id: str | None = ...,
        if_exists: str = ...,
        subject: str | None = ...,
        **kwargs: Any,
    ) -> Run[R]: ...
    def start(
        self,
        function: Any,
        /,
        *args: Any,
        id: str | None = None,
        if_exists: str = "error",
        queue: str | None = None,
        subject: str | None = None,
        **kwargs: Any,
    ) -> Run[Any]:
        """Starts a run in this process; the run is durable when this returns.

        With `queue` it is only queued, and `resume` executes it. An id that is in use raises
        ExistsError; with `if_exists="attach"` it resumes that run instead.

        With `subject` the run belongs to that subject: its journal, its own state, the messages to
        it and the runs that it starts are sealed with the subject's key. `subjects.erase(subject)`
        ends and removes it.
        """
        if is_run(function):
            other = None if if_exists == "error" else if_exists
            function.signature.check_settings(
                "start", args, id=id, queue=queue, if_exists=other, subject=subject
            )
        if subject is not None:
            subject = check_name(subject, "subject")
            if id is not None:
                self._scopes.check_opaque(id, "run id")
        return self._engine.start(
            function, args, kwargs, id=id, if_exists=if_exists, queue=queue, subject=subject
        )

    def resume(self, id: str) -> Run[Any]:
        """Resumes a run that waits or whose owner is dead; one with a living owner runs on there.

        Returns the handle of the run in either case.
        """
        return self._engine.resume(id)

    def get(self, id: str) -> Run[Any]:
        """Returns the handle of a run without resuming it, or raises NotFoundError."""
        self._engine.ended(check_id(id))
        return Run(self._engine, id)

    def list(
        self,
        *,
        status: str | None = None,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[RunSummary]:
        """Returns a page of the store's runs by id, optionally of one status.

        Unfinished runs are found by their marks, without reading a stream. The page's cursor, given
        as `after`, leads to the next page.
        """
        if status is not None and status not in _STATUSES:
            raise UsageError(
                f"a status is one of {', '.join(_STATUSES)}, found {show_value(status)}"
            )
        return admin.runs(self._engine, status, after=after, limit=limit)

    def cancel(self, run: str, *, now: bool = False) -> None:
        """Asks a run to stop at its next operation; a run that nobody executes ends at once.

        A run with cleanups to do (`ctx.cleanup`, `finally` of a program) ends when the worker that
        executes it next has done them. With `now`, a run that nobody executes ends without them.
        """
        self._engine.cancel(run, now=now)

    def answer(self, run: str, name: str, value: Any = None) -> None:
        """Answers a wait of a run, by its name or path; a second answer raises ExistsError."""
        admin.answer(self._engine, run, name, value)

    def signal(self, run: str, name: str, value: Any = None, *, id: str | None = None) -> None:
        """Sends a signal, which `ctx.signal(name)` takes exactly once.

        With an `id` it is sent once, however often this is called.
        """
        self._engine.send(run, "steer", value, name=message_name("signal", name), key=id)

    def send(
        self,
        run: str,
        kind: str,
        value: Any = None,
        *,
        name: str | None = None,
        id: str | None = None,
    ) -> None:
        """Puts a message into a run's inbox: stop, interrupt, steer, follow-up or ambient."""
        if kind == "stop":
            self._engine.cancel(run)
            return
        self._engine.send(run, kind, value, name=name, key=id)

    def settle(self, run: str, path: str, verdict: Verdict) -> None:
        """Settles an uncertain act of a run: Done(output) if it was done, NotDone() if not."""
        admin.settle(self._engine, run, path, verdict)

    def adopt(self, run: str) -> None:
        """Accepts the divergence that a run is parked for; call `resume` to go on."""
        admin.adopt(self._engine, run)

    def fork(
        self,
        run: str,
        at: str | int,
        *,
        id: str | None = None,
        edit: Mapping[str, Any] | None = None,
        effects: str = "ask",
        signals: str = "drop",
        children: str = "share",
    ) -> Run[Any]:
        """Forks a run: the new run begins where the other was before the step or revision `at`.

        Call `resume` to execute it. `edit` replaces the values of recorded operations. `effects`
        says how acts are treated: "ask" parks the run before the first, "live" performs them, "dry"
        leaves them out. `signals="copy"` copies messages that the other run has not taken yet.
        `children="drop"` forgets children without a result, which are otherwise shared.
        """
        return admin.fork(
            self._engine,
            run,
            at,
            new=id,
            edit=edit,
            effects=effects,
            signals=signals,
            children=children,
        )

    def remove(self, run: str) -> list[str]:
        """Removes a run that has ended, with its children, so that their ids can be used again.

        Journal, inbox and own state are gone for every reader, in one commit. Returns the ids of
        the removed runs, its own first. No data is deleted: forks keep what they refer to, and
        `events(scope="run/…")` still shows what the run did. Raises NotFoundError if there is no
        such run, and UsageError, with the reason, if the run, a child or its parent has not ended,
        or if its state is in use.
        """
        return admin.remove(self._engine, run)

    def use_executor(self, executor: Executor | Command | None) -> None:
        """Sets the executor that answers for agents in the runs of this process.

        The choice is not stored.
        """
        self._engine.agents.executor = executor

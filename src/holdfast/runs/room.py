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

    # A type checker compares all arguments with the function's parameters or, beside settings, the
    # first two: Python has no way to write the type of arguments that stand among settings.
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
        """Starts a run in this process; it exists for good when this returns.

        With a queue it is only queued, and `resume` executes it. A known id raises ExistsError
        unless `if_exists="attach"`.

        With `subject` the run is that subject's: its journal, its own state, what is sent to it and
        the runs that it starts are sealed by the subject's key, until `subjects.erase(subject)`,
        which ends and removes it.
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
        """Goes on with a run: takes over from a dead owner, attaches to a living one."""
        return self._engine.resume(id)

    def get(self, id: str) -> Run[Any]:
        """Returns a run that exists, and leaves it alone."""
        self._engine.ended(check_id(id))
        return Run(self._engine, id)

    def list(
        self,
        *,
        status: str | None = None,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[RunSummary]:
        """Returns the runs of the store by id, of one status if given.

        Unfinished ones are found by their marks, without reading a stream. The cursor of a page,
        given as `after`, leads to the next one.
        """
        if status is not None and status not in _STATUSES:
            raise UsageError(
                f"a status is one of {', '.join(_STATUSES)}, found {show_value(status)}"
            )
        return admin.runs(self._engine, status, after=after, limit=limit)

    def cancel(self, run: str, *, now: bool = False) -> None:
        """Asks a run to stop at its next operation; one that is not being executed ends now.

        One that has cleanups to do (`ctx.cleanup`, `finally` of a program) ends when they are done,
        by whoever executes it next. With `now` one that nobody executes ends without them.
        """
        self._engine.cancel(run, now=now)

    def answer(self, run: str, name: str, value: Any = None) -> None:
        """Answers what a run waits for; the first answer counts, a second is an ExistsError."""
        admin.answer(self._engine, run, name, value)

    def signal(self, run: str, name: str, value: Any = None, *, id: str | None = None) -> None:
        """Sends a signal, which `ctx.signal(name)` takes exactly once; an `id` is sent once."""
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
        """Says whether an uncertain act of a parked run was done: Done(output) or NotDone()."""
        admin.settle(self._engine, run, path, verdict)

    def adopt(self, run: str) -> None:
        """Accepts the divergence that a run is parked for; `resume` then goes on."""
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
        """Returns a new run that begins where another was before the step `at`; resume it to go on.

        `edit` gives recorded operations other values. `effects` says what becomes of acts: "ask"
        parks before the first, "live" performs them, "dry" leaves them out.
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
        """Removes a run that has ended, and its children: their ids can begin again.

        Journal, inbox and own state are gone for every reader, in one commit. Returns the ids, its
        own first. Nothing is deleted: forks keep what they refer to, and `events(scope="run/…")`
        still tells what it did. Raises NotFoundError if there is no such run, and UsageError, which
        names it, if it, a child or its parent has not ended, or its state is in use.
        """
        return admin.remove(self._engine, run)

    def use_executor(self, executor: Executor | Command | None) -> None:
        """Says who answers for agents in the runs that this process executes.

        It is a choice of the caller's: nothing of it is stored.
        """
        self._engine.agents.executor = executor

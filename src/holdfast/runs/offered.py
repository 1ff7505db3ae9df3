"""What a store offers for runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import UsageError, show_value
from holdfast.intent import Verdict
from holdfast.runs import tended
from holdfast.runs.define import is_run
from holdfast.runs.engine import Engine
from holdfast.runs.events import Status
from holdfast.runs.handle import Run
from holdfast.runs.tended import RunSummary
from holdfast.runs.waits import check_id, message_name

_STATUSES = Status.__args__


class RunStore:
    """The part of a store that executes runs, and looks after those of others."""

    engine: Engine

    def start(
        self,
        function: Any,
        /,
        *args: Any,
        id: str | None = None,
        if_exists: str = "error",
        queue: str | None = None,
        **kwargs: Any,
    ) -> Run:
        """Starts a run in this process; it exists for good when this returns.

        With a queue it is only put in line, and `resume` executes it. A known id raises ExistsError
        unless `if_exists="attach"`.
        """
        if is_run(function):
            other = None if if_exists == "error" else if_exists
            function.signature.check_settings("start", args, id=id, queue=queue, if_exists=other)
        return self.engine.start(function, args, kwargs, id=id, if_exists=if_exists, queue=queue)

    def resume(self, id: str) -> Run:
        """Goes on with a run: takes over from a dead owner, attaches to a living one."""
        return self.engine.resume(id)

    def run(self, id: str) -> Run:
        """Returns a run that exists, and leaves it alone."""
        self.engine.ended(check_id(id))
        return Run(self.engine, id)

    def runs(self, *, status: str | None = None) -> list[RunSummary]:
        """Returns the runs of the store by id, of one status if given.

        Unfinished ones are found by their marks, without reading a stream.
        """
        if status is not None and status not in _STATUSES:
            raise UsageError(
                f"a status is one of {', '.join(_STATUSES)}, found {show_value(status)}"
            )
        return tended.runs(self.engine, status)

    def cancel(self, run: str) -> None:
        """Asks a run to stop: at its next operation it does; one that nobody executes ends now."""
        self.engine.cancel(run)

    def answer(self, run: str, name: str, value: Any = None) -> None:
        """Answers what a run waits for; the first answer counts, a second is an ExistsError."""
        tended.answer(self.engine, run, name, value)

    def signal(self, run: str, name: str, value: Any = None, *, id: str | None = None) -> None:
        """Sends a signal, which `ctx.signal(name)` takes exactly once; an `id` is sent once."""
        self.engine.send(run, "steer", value, name=message_name("signal", name), key=id)

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
            self.engine.cancel(run)
            return
        self.engine.send(run, kind, value, name=name, key=id)

    def settle(self, run: str, path: str, verdict: Verdict) -> None:
        """Says whether an uncertain act of a parked run was done: Done(output) or NotDone()."""
        tended.settle(self.engine, run, path, verdict)

    def adopt(self, run: str) -> None:
        """Accepts the divergence that a run is parked for; `resume` then goes on."""
        tended.adopt(self.engine, run)

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
    ) -> Run:
        """Returns a new run that begins where another was before the step `at`; resume it to go on.

        `edit` gives recorded operations other values. `effects` says what becomes of acts: "ask"
        parks before the first, "live" performs them, "dry" leaves them out.
        """
        return tended.fork(
            self.engine,
            run,
            at,
            new=id,
            edit=edit,
            effects=effects,
            signals=signals,
            children=children,
        )

"""The engine's own thread: writes buffers that no commit included, and wakes runs that wait."""

from __future__ import annotations

import logging
import threading
from typing import Any
from weakref import ReferenceType, ref

from msgspec import Struct

from holdfast.backends.gates import Flag, start_thread
from holdfast.backends.protocol import Mark
from holdfast.core.inbox import stream_of
from holdfast.errors import HoldfastError, LeaseLostError, UnavailableError
from holdfast.runs import waits
from holdfast.runs.execution import DUE

FLUSH_S = 0.02
"""After how long a buffer is written if no commit of the run includes it (rule 7: soon)."""
LOOK_S = 0.25
"""How often the inboxes of waiting runs are checked for messages of other processes."""
_logger = logging.getLogger("holdfast.runs")


class WakeCondition(Struct, frozen=True):
    """What wakes a suspended run: a time, a message after `seen`, the end of a child."""

    until: int | None
    seen: int
    children: tuple[str, ...] = ()


class Supervisor:
    """Serves the runs of one process while their own threads are busy or have ended."""

    def __init__(self, engine: Any) -> None:
        self.flush_s: float | None = FLUSH_S
        self._engine: ReferenceType[Any] = ref(engine)
        self._waiting: dict[str, WakeCondition] = {}
        self._left: set[str] = set()  # runs whose lease was lost here
        self._lengths: dict[str, int] = {}  # of the journals of children, at the last look
        self._generations: dict[str, int] = {}
        self._heard: dict[str, int] = {}
        self._listen_at = 0
        self._adopt_at = 0
        self._mutex = threading.Lock()
        self._wake = Flag()
        self._thread: threading.Thread | None = None
        self._is_open = True

    def begin(self) -> None:
        """Starts the thread, the first time there is something to do."""
        with self._mutex:
            if self._thread is None and self._is_open:
                self._thread = threading.Thread(
                    target=_watch, args=(ref(self), self._wake), name="holdfast-runs", daemon=True
                )
                start_thread(self._thread)
        self._wake.set()

    def watch(self, id: str, condition: WakeCondition) -> None:
        """Watches a suspended run, and resumes it here when its condition is met."""
        with self._mutex:
            self._waiting[id] = condition
        self._wake.set()

    def take_up(self, id: str) -> None:
        """Resumes a run that lost its lease here, unless another worker has the lease.

        A lease may lapse although its worker is alive, because the store could not be reached in
        time. Maybe no other worker looks after this run, and then it would stop for ever.
        """
        with self._mutex:
            if self._is_open:
                self._left.add(id)
        self._wake.set()

    def forget(self, id: str) -> None:
        """Stops watching a run that is no longer suspended, or has an owner again."""
        with self._mutex:
            self._waiting.pop(id, None)
            self._left.discard(id)

    def wake(self) -> None:
        """Makes the thread look at once."""
        self._wake.set()

    def waking_marks(self, id: str) -> tuple[Mark, ...]:
        """Returns the marks that make a run due now, for workers that claim due runs."""
        engine = self._engine()
        return (Mark(DUE, id, engine.log.clock.now_us()),) if engine is not None else ()

    def close(self) -> None:
        """Ends the thread; runs that wait are left to the worker that resumes them."""
        with self._mutex:
            self._is_open = False
            self._waiting.clear()
            self._left.clear()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def work(self) -> float | None:
        """Does what is due; returns how long to pause, or None to pause until woken."""
        engine = self._engine()
        if engine is None or not self._is_open:
            return None
        self._flush(engine)
        self._listen(engine)
        self._adopt(engine)
        self._take_up(engine)
        self._resume(engine)
        if engine.active and self.flush_s is not None:
            return self.flush_s
        return LOOK_S if self._waiting or self._left or engine.active else None

    def _flush(self, engine: Any) -> None:
        if self.flush_s is None:
            return
        before, self._generations = self._generations, {}
        for id, run in _active(engine):
            generation = run.generation
            if run.is_buffered and before.get(id) == generation:
                run.flush()
            self._generations[id] = run.generation

    def _listen(self, engine: Any) -> None:
        """Reads the inboxes of runs that made no commit since the last look, if anything came.

        An owner learns of messages from the receipts of its commits. During a long step there are
        none, and without this a stop would go unnoticed. One request asks for all runs.
        """
        now = engine.log.clock.boot_us()
        if now < self._listen_at:
            return
        self._listen_at = now + round(LOOK_S * 1e6)
        before, self._heard = self._heard, {id: r.generation for id, r in _active(engine)}
        still = [(id, run) for id, run in _active(engine) if before.get(id) == run.generation]
        if not still:
            return
        try:
            heads = engine.log.heads([run.inbox.stream for _, run in still])
        except HoldfastError as error:
            _logger.debug("inboxes are not read now, and are with the next look: %s", error)
            return
        for (_, run), head in zip(still, heads, strict=True):
            if head is not None and head.revision > run.inbox.revision:
                run.listen()

    def _adopt(self, engine: Any) -> None:
        """Resumes children that are waited for here and whose own worker has died.

        When a parent is taken over from a dead worker, its child's lease may not have lapsed yet,
        so the child still seems to be alive. If nobody looked again later, the child would never be
        resumed, and its journal would never grow and wake the parent.
        """
        now = engine.log.clock.boot_us()
        with self._mutex:
            children = {
                child for condition in self._waiting.values() for child in condition.children
            }
        if not children or now < self._adopt_at:
            return
        self._adopt_at = now + waits.CHILD_LOOK_US
        for id in sorted(children):
            try:
                if engine.log.leases.holder(f"run/{id}") is None:
                    engine.look_at(id, None)
            except BaseException as error:  # as in `_resume`: the others go on
                self.report(f'run "{id}"', error)

    def _take_up(self, engine: Any) -> None:
        with self._mutex:
            left = sorted(self._left)
        for id in left:
            try:
                engine.resume(id)  # calls `forget`, also if another worker has the run
            except BaseException as error:  # as in `_resume`: the others go on
                if not isinstance(error, UnavailableError | LeaseLostError):
                    self.forget(id)  # asking again would not help
                self.report(f'run "{id}"', error)

    def _resume(self, engine: Any) -> None:
        with self._mutex:
            waiting = dict(self._waiting)
        if not waiting:
            return
        now = engine.log.clock.now_us()
        streams = [stream_of(f"run/{id}") for id in waiting]
        try:
            children = self._grown(engine, waiting)
            heads = engine.log.heads(streams)
        except BaseException as error:
            # This thread serves all runs, so it goes on after any error. It asks again later, also
            # about children whose growth it noticed but could not act on.
            self._lengths.clear()
            self.report("runs that wait", error)
            return
        for (id, condition), head in zip(waiting.items(), heads, strict=True):
            is_due = condition.until is not None and condition.until <= now
            has_news = head is not None and head.revision > condition.seen
            grown = tuple(child for child in condition.children if child in children)
            try:
                if is_due or has_news or engine.any_ended(grown):
                    engine.resume(id)  # calls `forget`
            except BaseException as error:
                # Missing code, or a journal that cannot be read, must not stop the other runs.
                for child in grown:
                    self._lengths.pop(child, None)
                self.report(f'run "{id}"', error)

    def report(self, subject: str, error: BaseException) -> None:
        """Reports an unexpected error once; errors of the store itself are only logged."""
        engine = self._engine()
        report = f"{subject} could not be resumed: {type(error).__name__}: {error}"
        if engine is None or isinstance(error, HoldfastError):
            _logger.debug("%s", report)
            return
        with self._mutex:  # this thread and a caller of `work` may meet the same error
            is_new = report not in engine.log.reports
            if is_new:
                engine.log.reports.append(report)
        if is_new:
            _logger.warning("%s", report)

    def _grown(self, engine: Any, waiting: dict[str, WakeCondition]) -> set[str]:
        """Returns the awaited children whose journals grew since the last look."""
        ids = [child for condition in waiting.values() for child in condition.children]
        if not ids:
            self._lengths.clear()
            return set()
        heads = engine.log.heads([f"run/{id}" for id in ids])
        lengths = {id: 0 if h is None else h.revision for id, h in zip(ids, heads, strict=True)}
        before, self._lengths = self._lengths, lengths
        return {id for id, length in lengths.items() if length and before.get(id) != length}

    @property
    def is_open(self) -> bool:
        """Whether the store is open."""
        return self._is_open


def _active(engine: Any) -> list[tuple[str, Any]]:
    return list(engine.active.items())


def _watch(supervisor_ref: ReferenceType[Supervisor], wake: Flag) -> None:
    while (supervisor := supervisor_ref()) is not None and supervisor.is_open:
        try:
            pause_s = supervisor.work()
        except BaseException as error:
            # The thread must survive: without it, every waiting run of the process waits for ever.
            supervisor.report("runs", error)
            pause_s = LOOK_S
        del supervisor
        wake.wait(pause_s)
        wake.clear()

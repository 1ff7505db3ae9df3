"""The engine's own thread: writes buffers that nothing took along, and wakes runs that wait."""

from __future__ import annotations

import threading
from typing import Any
from weakref import ReferenceType, ref

from holdfast.backends.protocol import Mark
from holdfast.inbox import stream_of
from holdfast.runs.execution import DUE

FLUSH_S = 0.02
"""After how long a buffer is written that no commit of the run took along (rule 7: soon)."""
LOOK_S = 0.25
"""How often the inboxes of runs that wait here are looked at, for messages of other processes."""
FAR_US = 1 << 62


class Tending:
    """What one process's runs need while their own threads are busy, or have gone home."""

    def __init__(self, engine: Any) -> None:
        self.flush_s: float | None = FLUSH_S
        self._engine: ReferenceType[Any] = ref(engine)
        self._waiting: dict[str, tuple[int, int]] = {}  # run -> due, revision of its inbox
        self._generations: dict[str, int] = {}
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_open = True

    def begin(self) -> None:
        """Starts the thread, the first time there is something to tend."""
        with self._mutex:
            if self._thread is None and self._is_open:
                self._thread = threading.Thread(
                    target=_live, args=(ref(self), self._wake), name="holdfast-runs", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def host(self, id: str, until: int | None, inbox_revision: int) -> None:
        """Takes a suspended run: it is resumed here when it is due or something comes for it."""
        with self._mutex:
            self._waiting[id] = (FAR_US if until is None else until, inbox_revision)
        self._wake.set()

    def forget(self, id: str) -> None:
        """Leaves a run alone that is no longer suspended."""
        with self._mutex:
            self._waiting.pop(id, None)

    def wake(self) -> None:
        """Looks now instead of in a moment."""
        self._wake.set()

    def waking_marks(self, id: str) -> tuple[Mark, ...]:
        """Returns the marks that make a run due now, for whoever claims such runs."""
        engine = self._engine()
        return (Mark(DUE, id, engine.log.clock.now_us()),) if engine is not None else ()

    def close(self) -> None:
        """Ends the thread; runs that wait are left to whoever resumes them."""
        with self._mutex:
            self._is_open = False
            self._waiting.clear()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def tend(self) -> float | None:
        """Does what is due; returns how long to pause, None until woken."""
        engine = self._engine()
        if engine is None or not self._is_open:
            return None
        self._flush(engine)
        self._resume(engine)
        if engine.active and self.flush_s is not None:
            return self.flush_s
        return LOOK_S if self._waiting else None

    def _flush(self, engine: Any) -> None:
        if self.flush_s is None:
            return
        before, self._generations = self._generations, {}
        for id, run in list(engine.active.items()):
            generation = run.generation
            if before.get(id) == generation:
                run.flush()
            self._generations[id] = run.generation

    def _resume(self, engine: Any) -> None:
        with self._mutex:
            waiting = dict(self._waiting)
        if not waiting:
            return
        now = engine.log.clock.now_us()
        streams = [stream_of(f"run/{id}") for id in waiting]
        try:
            heads = engine.log.backend.heads(streams)
            for (id, (due, seen)), head in zip(waiting.items(), heads, strict=True):
                if due <= now or (head is not None and head.revision > seen):
                    engine.resume(id)  # which makes this forget it
        except BaseException:
            # Whatever it was (a backend that cannot be reached, code that is gone), this thread
            # serves other runs too: it goes on, and asks again.
            return

    @property
    def is_open(self) -> bool:
        """Whether the store is."""
        return self._is_open


def _live(tending_ref: ReferenceType[Tending], wake: threading.Event) -> None:
    while (tending := tending_ref()) is not None and tending.is_open:
        pause_s = tending.tend()
        del tending
        wake.wait(pause_s)
        wake.clear()

"""Observers: functions that are told what a store did, and how long it took (0029).

Mostly there are none, which costs one check. An observer is called in the thread that did the work,
after the work is done. What it raises is logged and harms nothing. It must not write to the store
that it observes: such a write is refused, because the thread may be one that commits for others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import local
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.deadline import monotonic
from holdfast.clock import Clock
from holdfast.core.commit import ProposedCommit
from holdfast.core.commit_queue import Request
from holdfast.core.meta import Meta, decode_meta, encode_meta, joined
from holdfast.errors import UsageError

_logger = logging.getLogger("holdfast.observe")

Kind = Literal["commit", "read", "step", "attempt", "wait", "lease", "recovery", "retry"]


class Observed(Struct, frozen=True, kw_only=True):
    """Something that a store did."""

    kind: Kind
    name: str
    """What it was about: the first stream of a commit, a stream, a step, a lease, a run."""
    began_us: int
    """When it began, in microseconds since 1970."""
    duration_s: float
    error: str | None = None
    """The error that it ended with, if any: its class and its message."""
    run: str | None = None
    step: str | None = None
    trace: str | None = None
    """The trace that a commit belongs to, as it is stored with its events."""
    details: dict[str, Any] = {}


class Observer(Protocol):
    """Any function of one `Observed`."""

    def __call__(self, observed: Observed, /) -> object: ...


Tracer = Callable[[], str | None]


class Observers:
    """The observers of a log."""

    def __init__(self, clock: Clock, all: Sequence[tuple[Observer, Tracer | None]]) -> None:
        self.all = tuple(all)
        self._clock = clock

    def traced(self, proposed: ProposedCommit) -> ProposedCommit:
        """Returns a commit with its caller's trace, unless it has one; runs in that thread."""
        if getattr(_telling, "is_so", False):
            raise UsageError(
                "an observer wrote to the store that it observes: nothing was written",
                hint="hand over what it was told, and write from another thread",
            )
        for _, tracer in self.all:
            trace = None
            if tracer is not None:
                try:
                    trace = encode_meta(Meta(trace=tracer()))
                except Exception:
                    _logger.warning("a trace could not be told", exc_info=True)
            if trace is not None:
                own = proposed.meta
                return replace(proposed, meta=trace if own is None else joined(trace, own))
        return proposed

    def tell(
        self,
        kind: Kind,
        name: str,
        began: float,
        error: BaseException | None = None,
        *,
        run: str | None = None,
        step: str | None = None,
        trace: str | None = None,
        **details: Any,
    ) -> None:
        """Tells all observers of something that has ended; `began` is on the monotonic clock."""
        duration_s = max(monotonic() - began, 0.0)
        observed = Observed(
            kind=kind,
            name=name,
            began_us=self._clock.now_us() - round(duration_s * 1_000_000),
            duration_s=duration_s,
            error=None if error is None else f"{type(error).__name__}: {error}",
            run=run,
            step=step,
            trace=trace,
            details=details,
        )
        before = getattr(_telling, "is_so", False)  # an observer that reads is told of that read
        _telling.is_so = True
        try:
            for observer, _ in self.all:
                try:
                    observer(observed)
                except Exception:
                    _logger.warning("an observer raised", exc_info=True)
        finally:
            _telling.is_so = before

    def tell_commits(
        self, requests: Sequence[Request], began: float, failure: BaseException | None
    ) -> None:
        """Tells of a batch, commit by commit: they share one duration, and mostly one sync.

        `failure` is the error of the commits that have no answer of their own.
        """
        for request in requests:
            proposed: ProposedCommit = request.work
            streams = [write.stream for write in proposed.writes]
            meta = None if proposed.meta is None else decode_meta(proposed.meta)
            self.tell(
                "commit",
                streams[0] if streams else "",
                began,
                request.error if request.answered else failure,
                trace=None if meta is None else meta.trace,
                streams=streams,
                events=sum(len(write.new_events) for write in proposed.writes),
                batch=len(requests),
            )


_telling = local()  # whether this thread is telling: an observer must not write then

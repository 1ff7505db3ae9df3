"""The state of a projection, kept up to date, and its subscribers.

One fold for each projection and source is in memory. It is brought up to date at each read, which
costs as much as folding what was committed since. It is saved beside the log (`stored.py`) once
folding has cost several times what saving costs, and when the store is closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.backends.deadline import monotonic
from holdfast.backends.gates import open_gate, shut_gate, start_thread
from holdfast.backends.protocol import START, Position
from holdfast.core.arguments import Duration, check_call, check_timeout
from holdfast.core.dispatcher import OnError, Subscriber
from holdfast.core.event import Change
from holdfast.core.kernel import Kernel
from holdfast.core.log import Log
from holdfast.core.watch import PositionWaiter
from holdfast.errors import HoldfastError, UsageError, show_value
from holdfast.projections import stored
from holdfast.projections.define import VALUE, Projection
from holdfast.projections.fold import Fold, FoldAgain, Place, source_of

_logger = logging.getLogger("holdfast.projections")

KEPT_EVENTS_MIN = 1000
"""A fold is saved after so many events, unless saving costs much more than folding them."""
CLOSED_EVENTS_MIN = 100
CLOSED_S_MIN = 0.05
"""When the store is closed, a fold is saved after so many events, or if they took so long."""
KEEPING_SHARE = 4.0
"""How many times longer folding must have taken since the last save than that save took.

So saving takes at most about a fourth of the time that folding takes.
"""
LOOK_S = 30.0
END_S = 30.0


class KeptFold:
    """The fold of one projection over one source in this process."""

    def __init__(self, log: Log, projection: Projection, over: object) -> None:
        self._log = log
        self._over = over
        self._mutex = threading.RLock()
        self._begin(projection, None)
        self._seen: tuple[str | None, Projection] | None = None

    def _begin(self, projection: Projection, thumb: str | None) -> None:
        source = source_of(self._log, self._over)
        self._fold = Fold(self._log, projection, source, projection.start, Place())
        self._thumb = thumb
        self._kept_events = 0
        self._folding_s = self._keeping_s = 0.0

    def newest(self, projection: Projection) -> Fold:
        """Brings the fold up to date, and returns a copy of it."""
        with self._mutex:
            self._load(projection)
            self._catch_up()
            return self._fold.copy()

    def _load(self, projection: Projection) -> None:
        """Makes sure that the fold was made by the current code: a saved one, or a new one."""
        thumb = projection.thumb()
        if self._seen == (thumb, projection):
            return
        self._begin(projection, thumb)
        if thumb is None or not stored.load(self._log, self._fold, thumb):
            self._fold = self._fold.again()
        self._kept_events = self._fold.place.events
        self._seen = (thumb, projection)

    def _catch_up(self) -> None:
        began = monotonic()
        try:
            self._fold = up_to_date(self._fold)
        finally:
            # After a failed handler too: the events before it stay folded.
            self._folding_s += monotonic() - began
            self._kept_events = min(self._kept_events, self._fold.place.events)
            due = self._folding_s >= KEEPING_SHARE * self._keeping_s
            if due and self._fold.place.events - self._kept_events >= KEPT_EVENTS_MIN:
                self._keep()

    def _keep(self) -> None:
        if self._thumb is None:
            return
        began = monotonic()
        stored.save(self._log, self._fold, self._thumb)
        self._keeping_s = monotonic() - began
        self._folding_s = 0.0
        self._kept_events = self._fold.place.events

    def close(self) -> None:
        """Saves the fold, if enough events were added since it was saved."""
        with self._mutex:
            since = self._fold.place.events - self._kept_events
            if since >= CLOSED_EVENTS_MIN or (since and self._folding_s >= CLOSED_S_MIN):
                self._keep()

    def verify(self, projection: Projection) -> list[Change]:
        """Folds all events again, and returns where the fold in memory differed from that."""
        with self._mutex:
            self._load(projection)
            self._catch_up()
            while True:
                replayed = self._fold.again()
                try:
                    replayed.advance(until=self._fold.place.at)
                    break
                except FoldAgain:
                    self._catch_up()
            found = self._fold.difference(replayed)
            if found:
                self._log.report(
                    f'the fold of projection "{projection.name}" differed from its replay in '
                    f"{len(found)} places: the replay took its place"
                )
                self._fold = replayed
                self._keep()
            return found


def up_to_date(fold: Fold, tell: Callable[[Change], object] | None = None) -> Fold:
    """Returns the fold with what was committed since, or a new one if it had to begin again.

    `tell` is called with each change; after a new beginning, with what differs between the two.
    """
    is_again = False
    while True:
        try:
            if not is_again and fold.source.holds(fold.place):
                fold.advance(tell=tell)
                return fold
            again = fold.again()
            again.advance()
            break
        except FoldAgain:
            _logger.debug('projection "%s" is folded again', fold.projection.name)
            is_again = True
    if tell is not None:
        for change in fold.difference(again):
            tell(change)
    return again


class Projections:
    """The projections of one store in this process."""

    def __init__(self, kernel: Kernel) -> None:
        self.log = kernel.log
        kernel.on_close(self.close)
        self._mutex = threading.Lock()
        self._folds: dict[tuple[str, str, str], KeptFold] = {}
        self._tellers: set[_Teller] = set()

    def projected(self, projection: Projection, over: object) -> Projected:
        """Returns a projection over a scope, a pattern of names, or with None the whole store."""
        if not isinstance(projection, Projection):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"expected a projection, found {show_value(projection)}",
                hint="@holdfast.projection(init=dict) makes a class of handlers one",
            )
        source = source_of(self.log, over)
        key = (projection.name, type(source).__name__, source.name)
        with self._mutex:
            fold = self._folds.get(key)
            if fold is None:
                fold = self._folds[key] = KeptFold(self.log, projection, over)
        return Projected(self, projection, fold, source.name)

    def begin(self, teller: _Teller) -> None:
        """Starts the thread of a subscriber."""
        with self._mutex:
            self._tellers.add(teller)
        teller.start()

    def end(self, teller: _Teller) -> None:
        with self._mutex:
            self._tellers.discard(teller)
        teller.end()

    def close(self) -> None:
        """Waits until subscribers have been called for all that is committed; saves the folds."""
        with self._mutex:
            tellers, self._tellers = self._tellers, set()
            folds = list(self._folds.values())
        for teller in tellers:
            teller.finish()
        for fold in folds:
            fold.close()


class Projected:
    """A projection over a scope, several scopes or the store. Each read is up to date."""

    def __init__(
        self, projections: Projections, projection: Projection, fold: KeptFold, over: str
    ) -> None:
        self._projections = projections
        self._log = projections.log
        self._fold = fold
        self.projection = projection
        self.over = over

    def __repr__(self) -> str:
        return f"<Projected {self.projection.name} over {self.over}>"

    @property
    def state(self) -> Any:
        """The state now, which is immutable.

        For a projection of all events at once, it is what the function returns.
        """
        return shown(self._newest())

    @property
    def events(self) -> int:
        """The number of events that the state was folded from."""
        return self._newest().place.events

    def _newest(self) -> Fold:
        return self._fold.newest(self.projection)

    def verify(self) -> list[Change]:
        """Folds all events again, and returns where the kept state differs; empty if it is right.

        If it differs, the new fold replaces it, and the store's status reports that.
        """
        return self._fold.verify(self.projection)

    def follow(self, *, timeout_s: Duration | None = None) -> Iterator[Change]:
        """Yields each change of the state from now on, whichever process caused it.

        Without `timeout_s` it never ends; with it, it ends when no change came for so long. The
        `scope` of a change is the name of the projection, its `revision` the number of events.
        """
        return self._follow(self._newest(), check_timeout(timeout_s))

    def _follow(self, fold: Fold, timeout_s: float | None) -> Iterator[Change]:
        began = monotonic()
        while True:
            seen = self._log.position()
            changes: list[Change] = []
            fold = up_to_date(fold, changes.append)
            if changes:
                yield from changes
                began = monotonic()
                continue
            left_s = LOOK_S if timeout_s is None else timeout_s - (monotonic() - began)
            if left_s <= 0:
                return
            self._log.wait_after(seen, min(left_s, LOOK_S))

    def subscribe(
        self, subscriber: Subscriber, *, on_error: OnError | None = None
    ) -> Callable[[], None]:
        """Calls `subscriber(change)` for every change from now on, in a separate thread.

        Changes of other processes count too. If the subscriber raises, the error is logged and
        given to `on_error(error, change)`. `close()` of the store waits until the subscriber was
        called for everything committed, 30 s at most. Returns the function that ends it.
        """
        check_call(subscriber, "a subscriber")
        if on_error is not None:
            check_call(on_error, "on_error")
        teller = _Teller(self._log, self._newest(), subscriber, on_error)
        self._projections.begin(teller)
        return lambda: self._projections.end(teller)


def shown(fold: Fold) -> Any:
    """Returns the state of a fold in the form that readers get."""
    projection = fold.projection
    if projection.view is not None:
        return projection.view(fold.root[VALUE].to_list())
    return fold.root if projection.is_mapping else fold.root[VALUE]


class _Teller:
    """One subscriber of a projection, and the thread that calls it."""

    def __init__(
        self, log: Log, fold: Fold, subscriber: Subscriber, on_error: OnError | None
    ) -> None:
        self._log = log
        self._fold = fold
        self._subscriber = subscriber
        self._on_error = on_error
        self._gate = shut_gate()
        self._is_over = self._is_last = False
        self._thread = threading.Thread(target=self._run, name="holdfast-projection", daemon=True)

    def start(self) -> None:
        start_thread(self._thread)

    def end(self) -> None:
        """Ends the calls, without waiting for the thread."""
        self._is_over = True
        open_gate(self._gate)

    def finish(self) -> None:
        """Waits until the subscriber was called for everything committed, `END_S` at most.

        A subscriber that closes the store calls this in the thread itself, which cannot wait for
        its own end.
        """
        self._is_last = True
        open_gate(self._gate)
        if threading.current_thread() is not self._thread:
            self._thread.join(END_S)

    def _run(self) -> None:
        while not self._is_over:
            is_last, seen = self._is_last, START
            try:
                seen = self._log.position()
                self._fold = up_to_date(self._fold, self._tell)
            except HoldfastError as error:
                if is_last or self._is_over:
                    return
                _logger.warning(
                    'subscribers of projection "%s" are not told: %s',
                    self._fold.projection.name,
                    error,
                )
            if is_last:
                return
            self._wait(seen)

    def _wait(self, seen: Position) -> None:
        """Waits until something was committed since, or the end has come, `LOOK_S` at most."""
        waiter = PositionWaiter(seen, seen, lambda: open_gate(self._gate))
        self._log.watch.add(waiter)
        try:
            if not self._is_over and not self._is_last:
                self._gate.acquire(timeout=LOOK_S)
        finally:
            self._log.watch.remove(waiter)

    def _tell(self, change: Change) -> None:
        if self._is_over:
            return
        try:
            self._subscriber(change)
        except Exception as error:
            _logger.exception('a subscriber of projection "%s" raised', change.scope)
            if self._on_error is not None:
                try:
                    self._on_error(error, change)
                except Exception:
                    _logger.exception('on_error of projection "%s" raised', change.scope)

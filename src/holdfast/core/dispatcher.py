"""The dispatcher: one thread that tells subscribers what became durable, in the order of positions.

A write is answered first; it never waits for a subscriber's function or fails with it. The log
itself puts the changes of each commit here. So every commit counts: a call, a commit that does not
wait, a message with a state, a closing scope, or another handle of this process on the same store,
which shares the dispatcher. Handles commit side by side, so a change may be put before one with a
lower position. Therefore a change is told only when every batch that was on its way when it was put
has ended: by then all changes before it have been put.

The queue is bounded: while more than `WAITING_MAX` changes wait, a commit waits before it writes.
It waits `ROOM_S` at most, because the subscriber may itself be waiting for that commit.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

from msgspec import Struct

from holdfast.backends.deadline import monotonic
from holdfast.backends.gates import Waiters, open_gate, shut_gate, start_thread
from holdfast.backends.protocol import Position
from holdfast.core import tree
from holdfast.core.arguments import Duration, check_seconds
from holdfast.core.commit import PreparedCommit, StreamWrite
from holdfast.core.event import MIGRATED, Change, StreamEnd, StreamState, to_datetime

_logger = logging.getLogger("holdfast.scope")

EVERY = ""
"""Stands for all scopes of the store."""
WAITING_MAX = 10_000
ROOM_S = 5.0
LINGER_S = 1.0
"""How long the thread waits for more changes before it ends."""
DRAIN_S = 30.0


class Subscriber(Protocol):
    """Is called with each change: any function of one argument, in asyncio also a coroutine's."""

    def __call__(self, change: Change, /) -> object: ...


OnError = Callable[[Exception, Change], object]


class Subscription(Struct, eq=False):
    """A subscriber of a scope, and the function that is called with its errors."""

    tell: Subscriber
    on_error: OnError | None
    is_over: bool = False


class Subscribed:
    """What `subscribe` returns: call it to end the subscription; `drain` waits for deliveries."""

    def __init__(self, dispatcher: Dispatcher, end: Callable[[], None]) -> None:
        self._dispatcher = dispatcher
        self._end = end

    def __call__(self) -> None:
        """Ends the subscription: the subscriber is not called any more."""
        self._end()

    def drain(self, *, timeout_s: Duration = DRAIN_S) -> bool:
        """Waits until subscribers were told of everything committed so far.

        Returns False if that took longer than `timeout_s`.
        """
        return self._dispatcher.drain(check_seconds(timeout_s, "timeout_s", above=-1e-9))


class _Durable(Struct, frozen=True):
    """What one commit did to one stream, and the subscriptions that existed then."""

    position: Position
    write: StreamWrite
    before: StreamState
    after: StreamState
    listeners: tuple[Subscription, ...]
    batches: frozenset[int]  # the batches that were on their way when it was put
    is_migrated: bool = False  # the state went to another version of its schema first


class Dispatcher:
    """The subscriptions of a store, the changes that wait to be told, and the thread for them."""

    def __init__(self) -> None:
        self.listening: dict[str, tuple[Subscription, ...]] = {}
        """Subscriptions by scope. Nearly always empty: then a commit pays for one lookup."""
        self.is_full = False
        self._mutex = threading.RLock()
        self._waiting: list[tuple[int, int, _Durable]] = []
        self._numbers = count()
        self._batches: set[int] = set()
        self._put = 0
        self._told = 0
        self._changed = Waiters()
        self._work = shut_gate()
        self._thread: threading.Thread | None = None

    def subscribe(self, scope: str, subscription: Subscription) -> Callable[[], None]:
        """Adds a subscription to a scope; returns the function that ends it."""
        with self._mutex:
            self.listening[scope] = (*self.listening.get(scope, ()), subscription)

        def unsubscribe() -> None:
            subscription.is_over = True
            with self._mutex:
                left = [one for one in self.listening.get(scope, ()) if one is not subscription]
                if left:
                    self.listening[scope] = tuple(left)
                else:
                    self.listening.pop(scope, None)

        return unsubscribe

    # --- for the log -----------------------------------------------------------------------------

    def hears(self, stream: str) -> bool:
        """Returns whether a stream has a subscription."""
        return stream in self.listening or EVERY in self.listening

    def begin(self) -> int:
        """Notes that a batch is on its way to the backend; call `end` when it is answered."""
        with self._mutex:
            number = next(self._numbers)
            self._batches.add(number)
            return number

    def end(self, batch: int) -> None:
        with self._mutex:
            self._batches.discard(batch)
        open_gate(self._work)

    def put(self, one: PreparedCommit, position: Position) -> None:
        """Queues the changes of a durable commit for the present subscriptions.

        A stream that was not folded had no subscription when the commit was prepared: it is left
        out.
        """
        # Positions of a mixed store have no single order: there the order of calls is used.
        order = position if type(position) is int else 0
        writes: tuple[StreamWrite, ...] = one.request.work.writes
        with self._mutex:
            batches = frozenset(self._batches)
            for write, before, after in zip(writes, one.before, one.after, strict=True):
                listeners = self.listening.get(write.stream, ()) + self.listening.get(EVERY, ())
                if listeners and not isinstance(after, StreamEnd):
                    durable = _Durable(
                        position,
                        write,
                        before,
                        after,
                        listeners,
                        batches,
                        is_migrated=_is_migrated(one, write.stream),
                    )
                    heapq.heappush(self._waiting, (order, next(self._numbers), durable))
                    self._put += 1
            self.is_full = len(self._waiting) > WAITING_MAX
            if self._waiting and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(
                    target=self._tell_all, name="holdfast-subscribers", daemon=True
                )
                start_thread(self._thread)
        open_gate(self._work)

    def wait_for_room(self) -> None:
        """Returns when the queue has room, or after `ROOM_S`."""
        if not self._wait(lambda: not self.is_full, ROOM_S):
            _logger.warning("subscribers are slow: %d changes wait to be told", len(self._waiting))

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Returns when all that was put so far has been told; False if that takes too long.

        It returns True at once if a subscriber calls it, which would wait for itself.
        """
        target = self._put
        return self._wait(lambda: self._told >= target, timeout_s)

    def _wait(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        if threading.current_thread() is self._thread:
            return True
        until = monotonic() + timeout_s
        gate = shut_gate()
        try:
            self._changed.add(gate)
            while not is_so():
                if not gate.acquire(timeout=max(until - monotonic(), 0)):
                    return False
            return True
        finally:
            self._changed.remove(gate)

    # --- the thread ------------------------------------------------------------------------------

    def _tell_all(self) -> None:
        while True:
            with self._mutex:
                durable = self._next()
            if durable is not None:
                try:
                    _tell(durable)
                except BaseException:
                    # A value that cannot be read, or an exit, must not stop later changes.
                    _logger.exception('a change of "%s" was not told', durable.write.stream)
                self._told += 1
                self._changed.wake()
            elif not self._work.acquire(timeout=LINGER_S):
                with self._mutex:
                    if not self._waiting:
                        self._thread = None
                        return

    def _next(self) -> _Durable | None:
        """Takes the next change to tell; None if there is none, or an earlier one may come."""
        if not self._waiting or not self._batches.isdisjoint(self._waiting[0][2].batches):
            return None
        _, _, durable = heapq.heappop(self._waiting)
        self.is_full = len(self._waiting) > WAITING_MAX
        return durable


def _is_migrated(one: PreparedCommit, stream: str) -> bool:
    """Returns whether a commit brought the state of a stream to another version of its schema."""
    records = [record for append in one.commit.appends for record in append.records]
    return any(record.type == MIGRATED and record.stream == stream for record in records)


def _tell(durable: _Durable) -> None:
    write, before, after = durable.write, durable.before, durable.after
    ops = [op for one in write.new_events for op in (*one.defaults, *one.ops)]
    if ops and before.ends:
        # The log removed ended values with this change, beyond the ops of its writer.
        gone = [path for path in before.ends if tree.locate(after.root, path) is tree.MISSING]
        ops = [*map(tree.delete_op, gone), *ops]
    if durable.is_migrated:
        ops = []  # the migration may have changed any place: tell whatever differs
    for change in tree.touched(ops, before.root, after.root):
        told = Change(
            write.stream,
            after.revision,
            change.path,
            change.old,
            change.new,
            to_datetime(after.time),
            durable.position,
        )
        for subscription in durable.listeners:
            if not subscription.is_over:
                _tell_one(subscription, told)


def _tell_one(subscription: Subscription, change: Change) -> None:
    """Calls one subscriber; an error of it is logged and does not affect the others."""
    try:
        subscription.tell(change)
    except Exception as error:
        _logger.exception('a subscriber of "%s" raised', change.scope)
        if subscription.on_error is not None:
            try:
                subscription.on_error(error, change)
            except Exception:
                _logger.exception('on_error of a subscriber of "%s" raised', change.scope)


_shared: WeakValueDictionary[Any, Dispatcher] = WeakValueDictionary()
_sharing = threading.Lock()


def shared_dispatcher(place: object) -> Dispatcher:
    """Returns the dispatcher of all handles that this process has open on one place."""
    with _sharing:
        found = _shared.get(place)
        if found is None:
            found = _shared[place] = Dispatcher()
        return found


def _forget() -> None:
    """Runs in a forked child: the thread and the waiting changes belong to the parent."""
    global _sharing
    _sharing = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_forget)

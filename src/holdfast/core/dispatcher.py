"""The dispatcher: one thread that tells subscribers what became durable, in the order of positions.

A write is answered first, and never waits for a subscriber or fails with it. What a commit changed
is put here by the log itself, so it makes no difference who made it: a call, a commit that does not
wait, a message with a state, a closing scope, or another handle of this process on the same store,
which shares the dispatcher. Handles commit side by side, so what is put may overtake: a change is
told when every batch that was on its way when it was put has ended. By then whatever stands before
it is here.

It is bounded: while more than `WAITING_MAX` changes wait to be told, who commits waits a little
before it writes, `ROOM_S` at most. The subscriber may be waiting for that very commit.
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
"""How long the thread waits for more before it ends."""
DRAIN_S = 30.0


class Subscriber(Protocol):
    """Who is told of changes: any function of one, for asyncio a coroutine function too."""

    def __call__(self, change: Change, /) -> object: ...


OnError = Callable[[Exception, Change], object]


class Subscription(Struct, eq=False):
    """One who wants to hear of a scope, and who is told of its errors."""

    tell: Subscriber
    on_error: OnError | None
    is_over: bool = False


class Subscribed:
    """What `subscribe` returns: called, it ends; `drain` waits until all was told."""

    def __init__(self, dispatcher: Dispatcher, end: Callable[[], None]) -> None:
        self._dispatcher = dispatcher
        self._end = end

    def __call__(self) -> None:
        """Tells the subscriber nothing more."""
        self._end()

    def drain(self, *, timeout_s: Duration = DRAIN_S) -> bool:
        """Returns when subscribers were told of all that is committed; False if not in time."""
        return self._dispatcher.drain(check_seconds(timeout_s, "timeout_s", above=-1e-9))


class _Durable(Struct, frozen=True):
    """What one commit did to one stream, to be told to those who listened then."""

    position: Position
    write: StreamWrite
    before: StreamState
    after: StreamState
    listeners: tuple[Subscription, ...]
    batches: frozenset[int]  # those on their way when it was put
    is_migrated: bool = False  # the state went to another version of its schema first


class Dispatcher:
    """Who wants to hear of which scope, what they are to hear, and the thread that tells them."""

    def __init__(self) -> None:
        self.listening: dict[str, tuple[Subscription, ...]] = {}
        """Subscriptions by scope. Empty nearly always: then a commit pays one look."""
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
        """Adds one who wants to hear of a scope; returns the function that ends it."""
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
        """Says whether anybody wants to hear of a stream."""
        return stream in self.listening or EVERY in self.listening

    def begin(self) -> int:
        """Notes that a batch is on its way to the backend; `end` says that it has been answered."""
        with self._mutex:
            number = next(self._numbers)
            self._batches.add(number)
            return number

    def end(self, batch: int) -> None:
        with self._mutex:
            self._batches.discard(batch)
        open_gate(self._work)

    def put(self, one: PreparedCommit, position: Position) -> None:
        """Takes what a durable commit did, for those who listen now.

        A stream that was not folded has nobody who listened when the commit was prepared.
        """
        # Positions of a store of several backends have no one order: there it is that of commits.
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
        """Returns when few enough changes wait to be told, or after a while."""
        if not self._wait(lambda: not self.is_full, ROOM_S):
            _logger.warning("subscribers are slow: %d changes wait to be told", len(self._waiting))

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Returns when all that was put so far has been told; False if that takes too long.

        At once for a subscriber: it would wait for itself.
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
                    # A value that cannot be read, an exit: the next change is told all the same.
                    _logger.exception('a change of "%s" was not told', durable.write.stream)
                self._told += 1
                self._changed.wake()
            elif not self._work.acquire(timeout=LINGER_S):
                with self._mutex:
                    if not self._waiting:
                        self._thread = None
                        return

    def _next(self) -> _Durable | None:
        """Takes what is to be told next; None if nothing is, or something before it may come."""
        if not self._waiting or not self._batches.isdisjoint(self._waiting[0][2].batches):
            return None
        _, _, durable = heapq.heappop(self._waiting)
        self.is_full = len(self._waiting) > WAITING_MAX
        return durable


def _is_migrated(one: PreparedCommit, stream: str) -> bool:
    """Says whether a commit brought the state of a stream to another version of its schema."""
    records = [record for append in one.commit.appends for record in append.records]
    return any(record.type == MIGRATED and record.stream == stream for record in records)


def _tell(durable: _Durable) -> None:
    write, before, after = durable.write, durable.before, durable.after
    ops = [op for one in write.new_events for op in (*one.defaults, *one.ops)]
    if ops and before.ends:
        # Values that had ended went with this change, which its writer did not say.
        gone = [path for path in before.ends if tree.locate(after.root, path) is tree.MISSING]
        ops = [*map(tree.delete_op, gone), *ops]
    if durable.is_migrated:
        ops = []  # all that differs was touched
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
    """Tells one of a change; its error is its own, and the others are told all the same."""
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
    """In a forked child: the thread is the parent's, and so is whatever waits to be told."""
    global _sharing
    _sharing = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_forget)

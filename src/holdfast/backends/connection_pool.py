"""What backends on a server share: connections, calls with a deadline, waiting, acknowledgements.

A call has one deadline, which may have begun before the call (`deadline.py`). It covers waiting for
a free connection, connecting, repeated attempts after a connection broke or a server went down, and
the answer. While there is time, a call that may be repeated is repeated every 50 ms, or sooner if a
connection becomes free.

There are no threads here, and no state is kept in a session of the server. So a store survives
failovers and restarts of its server, works through poolers, and nothing runs on in a forked child.
Subclasses say what differs between servers: how a connection is made, and what an error of the
driver means.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock, get_ident
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from holdfast.backends.deadline import CALL
from holdfast.backends.gates import Waiters, shut_gate
from holdfast.backends.handle import Handle
from holdfast.backends.judge import check_shape
from holdfast.backends.protocol import Commit, Position, Receipt, Refusal, written_in_part
from holdfast.errors import (
    CorruptError,
    HoldfastError,
    LostCommitsError,
    UnavailableError,
    UsageError,
)

_log = logging.getLogger("holdfast.backends")

AGAIN_AFTER_S = 0.05
# A connection that was unused for longer than this is closed: a firewall on the way may have
# dropped it silently, and the next call would notice only at its deadline. A new one costs a few
# milliseconds.
UNUSED_S = 30.0
# An attempt is begun only with enough time left: twice what the last one took, but at most this.
_ATTEMPT_S = 0.5


class DeadlineError(Exception):
    """The deadline of the call has passed, and the server has not answered."""


def unavailable(
    where: str,
    problem: str,
    *,
    outcome_known: bool,
    remedy: str | None = None,
    otherwise: str = "check the server and the network, then try again",
) -> UnavailableError:
    """Returns the error for a server that failed to answer or refused, with the best hint."""
    if remedy is None and not outcome_known:
        remedy = "look whether the commit is there, or repeat it with its key"
    problem = problem.rstrip(".")  # a driver ends its sentence
    return UnavailableError(
        f'"{where}" {problem}', outcome_known=outcome_known, hint=remedy or otherwise
    )


class ServerURL(Protocol):
    """What the URLs of all servers have."""

    @property
    def timeout_s(self) -> float: ...
    @property
    def pool(self) -> int: ...


class ServerConnection(Protocol):
    """A connection whose every wait ends at the deadline of the call that uses it."""

    deadline: float
    returned: float

    @property
    def process(self) -> object:
        """The server process that it leads to; None where that is not asked for."""
        ...

    def close(self) -> None: ...


T = TypeVar("T")
C = TypeVar("C", bound=ServerConnection)


class Loan(Generic[C]):
    """A connection that a call has taken, or the right to make one."""

    def __init__(self) -> None:
        self.connection: C | None = None


class ConnectionPool(Handle, ABC, Generic[C]):
    """The connections of one open store: made when needed, kept, and closed when they failed."""

    def __init__(self, server_url: ServerURL) -> None:
        super().__init__()
        self._size = server_url.pool
        self._timeout_s = server_url.timeout_s
        self._lost: LostCommitsError | None = None
        self._idle: list[C] = []
        self._loans: set[Loan[C]] = set()
        self._process: object = None
        self._free = RLock()  # guards `_idle` and `_loans`; nothing waits while it has this lock
        self._freed = Waiters()

    # --- what differs between servers ------------------------------------------------------------

    @abstractmethod
    def connect(self, deadline: float) -> C:
        """Returns a new connection, which the caller closes."""

    @abstractmethod
    def is_lost(self, exc: BaseException) -> bool:
        """Returns whether the connection broke: then it is unknown what the server did."""

    @abstractmethod
    def may_retry(self, exc: BaseException) -> bool:
        """Returns whether the same call on another connection may succeed."""

    @abstractmethod
    def is_answer(self, exc: BaseException) -> bool:
        """Returns whether this is a server's answer: then the connection can be used again."""

    @abstractmethod
    def translate(self, exc: Exception, *, outcome_known: bool) -> HoldfastError | None:
        """Returns the error to raise in place of the driver's, None if it is not the driver's."""

    def is_unreached(self, exc: BaseException) -> bool:
        """Returns whether no server was reached: then an earlier answer is the better error."""
        return False

    def is_fit(self, connection: C) -> bool:
        """Returns whether a connection that is given back can be used again."""
        return connection.process == self._process

    def before_use(self, connection: C) -> None:
        """Examines a connection that is about to be used; may raise."""

    def moved(self, exc: BaseException) -> bool:
        """Notes the new place of the store if the server named one; returns whether it did."""
        return False

    closes_idle_on_failure = True
    """Whether one connection that failed closes all idle ones too."""

    # --- what all servers share ------------------------------------------------------------------

    def call(self, work: Callable[[C], T], *, repeatable: bool = True, writes: bool = False) -> T:
        """Calls `work` with a connection and returns its result; repeats it while that may help.

        With `repeatable` False it is not repeated once a connection broke, but still after errors
        that say that nothing was done. With `writes`, the error says that the outcome is unknown if
        the connection of any attempt broke, also if a later attempt was refused: the first one may
        have been written.
        """
        self.check_open()
        deadline = min(monotonic() + self._timeout_s, CALL.deadline)
        if monotonic() >= deadline:
            raise UnavailableError(
                f"there is no time left of {self._timeout_s:g} s: nothing was asked of the server",
                hint="check the server and the network, then try again",
            )
        unknown = False
        answer: Exception | None = None  # the last error that a server answered with
        while True:
            if self._lost is not None:
                raise self._lost
            began = monotonic()
            try:
                return self._lend(work, deadline)
            except Exception as exc:
                unknown = unknown or (writes and self.is_lost(exc))
                again = self.may_retry(exc) and (repeatable or not self.is_lost(exc))
                # An attempt that has no time for its answer would turn a known outcome into an
                # unknown one, so it is not begun.
                needs_s = AGAIN_AFTER_S + min(2 * (monotonic() - began), _ATTEMPT_S)
                if not again or monotonic() + needs_s >= deadline:
                    self._raise(answer if answer and self.is_unreached(exc) else exc, unknown)
                    raise
                # Only the type of the error: a driver's message may hold a secret.
                _log.debug("a call to the server is repeated after %s", type(exc).__name__)
                answer = exc if self.is_answer(exc) else answer
                moved = self.moved(exc)
            if not moved:
                self._wait_for_free(AGAIN_AFTER_S)
            self.check_open()

    @contextmanager
    def apart(self) -> Generator[C]:
        """Yields a connection that nothing else has used or will use; it is closed after the block.

        It is not counted in the size of the pool, so a long statement on it holds up no other call.
        """
        self.check_open()
        connection: C | None = None
        try:
            connection = self.connect(monotonic() + self._timeout_s)
            yield connection
        except Exception as exc:
            self._raise(exc, unknown=False)
            raise
        finally:
            if connection is not None:
                connection.close()

    def _raise(self, exc: Exception, unknown: bool) -> None:
        """Raises the error that the caller gets in place of this one; returns if it gets this."""
        if isinstance(exc, UnavailableError | UsageError) and unknown:
            # Also if the server came back with settings that are refused: an earlier attempt may
            # have been written before it went down.
            raise UnavailableError(exc.message, outcome_known=False, hint=exc.hint) from None
        ours = self.translate(exc, outcome_known=not unknown)
        if isinstance(ours, CorruptError) and unknown:
            # The damage was found by a later attempt: the first one may have been written.
            said = f"{ours.message}; an earlier attempt may have been written"
            raise UnavailableError(said, outcome_known=False, hint=ours.hint) from ours
        if ours is not None:
            # Without its cause: a driver's message may hold a secret.
            raise ours from None

    def note_process(self, connection: C) -> None:
        """Notes the server process that a new connection leads to: only this one is used from now.

        Idle connections to another process are closed. After a failover the old server may be alive
        and not know that it was replaced. A caller that wrote to the new server and then read from
        the old one would miss its own write, or take it for lost.
        """
        with self._free:
            before, self._process = self._process, connection.process
        if before not in (None, connection.process):
            _log.warning("the server process was %s, now %s answers", before, connection.process)
            self.drop_idle()

    def mark_lost(self, exc: LostCommitsError) -> None:
        """Ends the use of this pool: every later call raises the same error."""
        self._lost = exc

    def _lend(self, work: Callable[[C], T], deadline: float) -> T:
        """Calls `work` with a connection, and frees or closes the connection afterwards."""
        loan: Loan[C] = Loan()
        healthy = False
        try:
            connection = self.take(deadline, loan)
            self.before_use(connection)
            result = work(connection)
            healthy = True
            return result
        except BaseException as exc:
            healthy = self.is_answer(exc) and not self.may_retry(exc)
            raise
        finally:
            try:
                self.give_back(loan, healthy)
            except BaseException:
                # Interrupted, such as by Ctrl-C: done once more, or a connection of the pool would
                # stay lent for ever. A loan that has ended already is left alone.
                self.give_back(loan, healthy=False)
                raise

    def take(self, deadline: float, loan: Loan[C]) -> C:
        """Returns a connection, which belongs to the loan from then on; waits until one is free."""
        if not self._begin(loan):
            gate = shut_gate()
            try:
                self._freed.add(gate)
                while not self._begin(loan):
                    if not gate.acquire(timeout=max(deadline - monotonic(), 0)):
                        raise UnavailableError(
                            f"all {self._size} connections of this store were busy for "
                            f"{self._timeout_s:g} s",
                            hint="allow more with pool= in the URL",
                        )
            finally:
                self._freed.remove(gate)
        if loan.connection is None:
            loan.connection = self.connect(deadline)
        loan.connection.deadline = deadline
        return loan.connection

    def _begin(self, loan: Loan[C]) -> bool:
        """Gives an idle connection to a loan, or room for a new one; False if there is neither."""
        with self._free:
            self.check_open()
            while self._idle:
                # The loan gets the connection before the list loses it: an interrupt may come
                # between the two, and the connection must not be lost with it.
                connection = self._idle[-1]
                loan.connection = connection
                self._loans.add(loan)
                self._idle.pop()
                if monotonic() - connection.returned < UNUSED_S:
                    return True
                loan.connection = None
                connection.close()
            if loan not in self._loans and len(self._loans) >= self._size:
                return False
            self._loans.add(loan)
            return True

    def give_back(self, loan: Loan[C], healthy: bool) -> None:
        """Ends a loan: its connection is free again if it is fit, else closed."""
        connection = loan.connection
        if connection is None:
            self._end(loan)
            return
        fit = self.is_fit(connection)
        if healthy and fit and self.is_open:
            connection.returned = monotonic()
            with self._free:
                if loan in self._loans:
                    self._idle.append(connection)
                    self._loans.discard(loan)
            self._freed.wake()
            if not self.is_open:
                self.drop_idle()  # closed by another thread at this very moment
            return
        with self._free:
            if connection in self._idle:
                self._idle.remove(connection)
        connection.close()
        self._end(loan)
        if self.closes_idle_on_failure or not fit:
            # If the server went away, the idle connections are broken too: each would cost a later
            # call a failed attempt. New ones cost little.
            self.drop_idle()

    def _end(self, loan: Loan[C]) -> None:
        with self._free:
            self._loans.discard(loan)
        self._freed.wake()

    def _wait_for_free(self, timeout_s: float) -> None:
        """Waits until a connection is free, at most for `timeout_s`."""
        gate = shut_gate()
        try:
            self._freed.add(gate)
            gate.acquire(timeout=timeout_s)
        finally:
            self._freed.remove(gate)

    def drop_idle(self) -> None:
        """Closes every connection that is not in use."""
        with self._free:
            dropped, self._idle = self._idle, []
        self._freed.wake()
        for connection in dropped:
            connection.close()

    def close(self) -> bool:
        """Closes every idle connection; those in use are closed when they are given back."""
        self.mark_closed()
        if self.is_inherited:
            return False
        self.drop_idle()
        return True


class Checkout(Generic[C]):
    """What the parts of a store on a server share: its pool, whether it may write, who waits."""

    def __init__(self, pool: ConnectionPool[C], *, read_only: bool) -> None:
        self._pool = pool
        self._read_only = read_only
        self.changed = Waiters()

    def call(self, work: Callable[[C], T], *, repeatable: bool = True) -> T:
        """Calls `work` with a connection to write on; raises UsageError if read-only."""
        self.check_writes()
        return self._pool.call(work, repeatable=repeatable, writes=True)

    def check_writes(self) -> None:
        """Raises UsageError if the store is closed or open read-only."""
        self._pool.check_open()
        if self._read_only:
            raise UsageError(
                "store is open read-only, found a write", hint="open it without read_only"
            )

    def wake(self) -> None:
        """Wakes every thread of this process that waits for a commit."""
        self.changed.wake()

    def close(self) -> None:
        if self._pool.close():
            self.wake()


def split_commits(
    commits: Sequence[Commit], *, most: int, bytes_max: int
) -> Iterator[list[Commit]]:
    """Yields a list of commits in parts that fit into one call; asserts the shape of each."""
    part: list[Commit] = []
    size = 0
    for commit in commits:
        check_shape(commit)
        bytes_ = sum(len(record.payload) for append in commit.appends for record in append.records)
        if part and (len(part) >= most or size + bytes_ > bytes_max):
            yield part
            part, size = [], 0
        part.append(commit)
        size += bytes_
    if part:
        yield part


def write_parts(
    parts: Iterable[T], write: Callable[[T], list[Receipt | Refusal]]
) -> list[Receipt | Refusal]:
    """Writes a list of commits part by part, in order; returns the outcomes of all of them.

    If a later part fails, the error says that the outcome of the list is unknown. A caller that
    believed that nothing was written would write the earlier parts a second time.
    """
    outcomes: list[Receipt | Refusal] = []
    for part in parts:
        try:
            outcomes += write(part)
        except HoldfastError as error:
            if not outcomes:
                raise
            raise written_in_part(error) from error
    return outcomes


# --- waiting for the next position ----------------------------------------------------------------

# Fewer than twenty questions a second, however fast the server answers: a call of `wait` for one
# second asks at its beginning, at its end, and seventeen times in between.
POLL_S = 0.058
_GLANCE_S = 1.0


class PositionPoller:
    """Waits for the next position on a server, by a cheap question at most twenty times a second.

    Of the threads that wait, only one asks; the others use its answer. A commit through the same
    handle wakes them at once. Polling works through poolers and failovers, where a notification
    that belongs to a session would be lost.
    """

    def __init__(
        self, checkout: Checkout[Any], ask: Callable[[], int], check_open: Callable[[], None]
    ) -> None:
        self._checkout = checkout
        self._ask_server = ask
        self._check_open = check_open
        self._newest = 0
        self._asker: int | None = None  # the thread that asks

    def wait(self, after: Position, timeout_s: float) -> Position:
        """Returns the newest position, at once if it is greater than `after`, else when it is."""
        deadline = monotonic() + timeout_s
        me, gate = get_ident(), shut_gate()
        changed = self._checkout.changed
        try:
            changed.add(gate)
            newest = self._ask()
            while newest <= after and (left_s := deadline - monotonic()) > 0:
                if self._asker in (None, me):
                    self._asker = me
                    gate.acquire(timeout=min(left_s, POLL_S))
                    newest = self._ask()
                else:
                    gate.acquire(timeout=min(left_s, _GLANCE_S))
                    self._check_open()
                    newest = self._newest
            return Position(newest)
        finally:
            changed.remove(gate)
            if self._asker == me:
                self._asker = None
                changed.wake()  # one of the others becomes the one that asks, or has its answer

    def _ask(self) -> int:
        newest = self._ask_server()
        self._newest = max(self._newest, newest)
        return newest


# --- what was acknowledged ------------------------------------------------------------------------

STREAMS_MAX = 10_000

AckedEvent = tuple[str, tuple[int, bytes | None]]
"""A stream, and the revision and link of the newest event that was acknowledged there.

The link is None if the event is known only as the one that already has a commit's key.
"""


class AckTracker:
    """The newest acknowledged event of up to 10,000 streams, and the newest position.

    When another server answers, they must be there. A standby or replica that takes over may lack
    the newest commits, and so may a server that comes back with an older disk. Such a loss must not
    look like a conflict, or go unnoticed.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._position = 0
        self._acked: OrderedDict[str, tuple[int, bytes | None]] = OrderedDict()
        self._lock = RLock()

    def note(self, commits: Sequence[Commit], outcomes: Sequence[Receipt | Refusal]) -> None:
        """Remembers what was acknowledged."""
        with self._lock:
            for commit, outcome in zip(commits, outcomes, strict=True):
                if isinstance(outcome, Refusal):
                    # A refused duplicate tells the caller that its commit is there, so that is an
                    # acknowledgement too.
                    if outcome.reason == "duplicate" and outcome.revision:
                        self._remember(outcome.stream, outcome.revision, None)
                    continue
                self._position = max(self._position, outcome.position)
                for append in commit.appends:
                    last = append.records[-1]
                    self._remember(append.stream, last.revision, last.link)
            while len(self._acked) > STREAMS_MAX:
                self._acked.popitem(last=False)

    def _remember(self, stream: str, revision: int, link: bytes | None) -> None:
        known = self._acked.pop(stream, None)
        # Of two threads, the one with the older event may come here later. Of one revision, a known
        # link is worth more than none.
        is_newer = known is None or revision + (link is not None) > known[0]
        self._acked[stream] = known if known is not None and not is_newer else (revision, link)

    def acknowledged(self) -> tuple[int, list[AckedEvent]]:
        """Returns the newest acknowledged position, 0 if there is none, and the newest events."""
        with self._lock:
            return self._position, list(self._acked.items())

    def lost(
        self, what: str, stream: str | None = None, revision: int | None = None
    ) -> LostCommitsError:
        """Returns the error that says what is gone."""
        return LostCommitsError(
            f"{what} was acknowledged and is gone: another server process answers ({self._where})",
            where=self._where,
            stream=stream,
            revision=revision,
            hint="a failover or restart lost it; open the store again to go on from what is there",
        )

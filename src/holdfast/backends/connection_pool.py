"""What a handle was told is durable, to be looked for when another server answers.

A standby or replica that takes over may not have the newest commits, nor a server that comes back
from an older disk. Their loss must not pass for a conflict, or for nothing at all. So the newest
position and the newest events of up to 10,000 streams are remembered, and must be there again.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from threading import Condition, Lock
from time import monotonic
from typing import Generic, Protocol, TypeVar

from holdfast.backends.handle import Handle
from holdfast.backends.judge import check_shape
from holdfast.backends.protocol import Commit, Position, Receipt, Refusal
from holdfast.errors import HoldfastError, LostCommitsError, UnavailableError, UsageError

# --- lines ----------------------------------------------------------------------------------------
#
# The few connections that a store keeps open to a server, and calls with a deadline on them.
#
# A call has one deadline. It covers waiting for a free connection, connecting, asking again after a
# connection broke or a server went down, and the answer. While there is time a call that may be
# repeated is repeated: at once on another connection, then every 50 ms.
#
# There are no threads here and no state in a session. So a store survives failovers and restarts of
# its server, works through poolers, and nothing runs on in a forked child. What differs between
# servers is left to the kind: how a connection is made, and what an error of its driver means.


AGAIN_AFTER_S = 0.05
# Longer than this a line is not kept unused: what lies between may have forgotten it silently, and
# the next call would find out only at its deadline. A new one costs a few milliseconds.
UNUSED_S = 30.0
# What an attempt takes that is worth beginning, at most; as a rule, twice what the last one took.
_ATTEMPT_S = 0.5


class DeadlineError(Exception):
    """The call's time is over and the server has not answered."""


def unavailable(
    where: str,
    said: str,
    *,
    outcome_known: bool,
    remedy: str | None = None,
    otherwise: str = "check the server and the network, then try again",
) -> UnavailableError:
    """Returns the error for a server that did not do what was asked, with the best hint."""
    if remedy is None and not outcome_known:
        remedy = "look whether the commit is there, or repeat it with its key"
    said = said.rstrip(".")  # drivers end their sentences
    return UnavailableError(
        f'"{where}" {said}', outcome_known=outcome_known, hint=remedy or otherwise
    )


class AnyURL(Protocol):
    """What a URL says of every server."""

    @property
    def timeout_s(self) -> float: ...
    @property
    def pool(self) -> int: ...


class AnyConnection(Protocol):
    """A connection whose every wait ends at the deadline of the call that uses it."""

    deadline: float
    returned: float

    @property
    def process(self) -> object:
        """Which server process it leads to; None where nobody asks."""
        ...

    def close(self) -> None: ...


T = TypeVar("T")
L = TypeVar("L", bound=AnyConnection)


class ConnectionPool(Handle, ABC, Generic[L]):
    """The lines of one open store: made when needed, kept, and thrown away when one has failed."""

    def __init__(self, place: AnyURL) -> None:
        super().__init__()
        self._pool = place.pool
        self._timeout_s = place.timeout_s
        self._lost: LostCommitsError | None = None
        self._idle: list[L] = []
        self._count = 0
        self._process: object = None
        self._free = Condition()

    # --- what differs ----------------------------------------------------------------------------

    @abstractmethod
    def connect(self, deadline: float) -> L:
        """Returns a new line, which the caller closes."""

    @abstractmethod
    def is_lost(self, exc: BaseException) -> bool:
        """Returns whether the connection went, so that nobody knows what the server did."""

    @abstractmethod
    def may_retry(self, exc: BaseException) -> bool:
        """Returns whether the same call on another connection may succeed."""

    @abstractmethod
    def is_answer(self, exc: BaseException) -> bool:
        """Returns whether a server said this: the line that brought it is whole."""

    @abstractmethod
    def translate(self, exc: Exception, *, outcome_known: bool) -> HoldfastError | None:
        """Returns the error to raise in place of a driver's, None for one that is none."""

    def is_unreached(self, exc: BaseException) -> bool:
        """Returns whether no server was reached: what one said before tells more."""
        return False

    def is_fit(self, line: L) -> bool:
        """Returns whether a line that comes back can be used again."""
        return line.process == self._process

    def before_use(self, line: L) -> None:
        """Looks at a line that is about to be used; may raise."""

    def moved(self, exc: BaseException) -> bool:
        """Takes note of where the store is now, if that is what a server said."""
        return False

    one_spoils_all = True
    """Whether a line that failed makes the idle ones suspect, also if it is fit itself."""

    # --- what they share -------------------------------------------------------------------------

    def call(self, work: Callable[[L], T], *, repeatable: bool = True, writes: bool = False) -> T:
        """Returns what `work` returns, given a line; repeats it as long as that may help.

        With `writes`, an error says that the outcome is unknown if any attempt was lost.
        """
        self.check_open()
        deadline = monotonic() + self._timeout_s
        unknown = False
        said: Exception | None = None  # a server's last word
        while True:
            if self._lost is not None:
                raise self._lost
            began = monotonic()
            try:
                with self._line(deadline) as line:
                    return work(line)
            except Exception as exc:
                unknown = unknown or (writes and self.is_lost(exc))
                again = self.may_retry(exc) and (repeatable or not self.is_lost(exc))
                # One that has no time to be answered would make a known outcome an unknown one.
                needs_s = AGAIN_AFTER_S + min(2 * (monotonic() - began), _ATTEMPT_S)
                if not again or monotonic() + needs_s >= deadline:
                    self._raise(said if said and self.is_unreached(exc) else exc, unknown)
                    raise
                said = exc if self.is_answer(exc) else said
                moved = self.moved(exc)
            if not moved:
                with self._free:
                    self._free.wait(AGAIN_AFTER_S)
            self.check_open()

    def _raise(self, exc: Exception, unknown: bool) -> None:
        """Raises the error that the caller is told, if it is another one than this."""
        if isinstance(exc, UnavailableError | UsageError) and unknown:
            # Also of a server that came back unfit: the commit may have been its last.
            raise UnavailableError(exc.message, outcome_known=False, hint=exc.hint) from None
        ours = self.translate(exc, outcome_known=not unknown)
        if ours is not None:
            # Not with its cause: a driver's words may hold a secret.
            raise ours from None

    def met(self, line: L) -> None:
        """Takes note of the server process that a new line leads to, which is the one from now on.

        Lines to another are used no more: behind a failover the old server may be alive and not
        know that it is over. Who wrote to the new one and read from the old would miss its own
        write, or take it for lost.
        """
        with self._free:
            is_other = self._process not in (None, line.process)
            self._process = line.process
        if is_other:
            self.drop_idle()

    def lose(self, exc: LostCommitsError) -> None:
        """Ends the use of these lines: every call from here on is told the same."""
        self._lost = exc

    @contextlib.contextmanager
    def _line(self, deadline: float) -> Generator[L]:
        line = self._take(deadline)
        healthy = False
        try:
            self.before_use(line)
            yield line
            healthy = True
        except BaseException as exc:
            healthy = self.is_answer(exc) and not self.may_retry(exc)
            raise
        finally:
            self._give_back(line, healthy)

    def _take(self, deadline: float) -> L:
        with self._free:
            while True:
                self.check_open()
                while self._idle:
                    line = self._idle.pop()
                    if monotonic() - line.returned < UNUSED_S:
                        line.deadline = deadline
                        return line
                    self._count -= 1
                    line.close()
                if self._count < self._pool:
                    self._count += 1
                    break
                if not self._free.wait(max(deadline - monotonic(), 0)):
                    raise UnavailableError(
                        f"all {self._pool} connections of this store were busy for "
                        f"{self._timeout_s:g} s",
                        hint="allow more with pool= in the URL",
                    )
        try:
            return self.connect(deadline)
        except BaseException:
            self._forget_one()
            raise

    def _give_back(self, line: L, healthy: bool) -> None:
        fit = self.is_fit(line)
        if healthy and fit and self.is_open:
            line.returned = monotonic()
            with self._free:
                self._idle.append(line)
                self._free.notify()
            if not self.is_open:
                self.drop_idle()  # closed by another thread at this very moment
            return
        line.close()
        self._forget_one()
        if self.one_spoils_all or not fit:
            # One broke: the others likely have too, if the server went. New ones cost little.
            self.drop_idle()

    def _forget_one(self) -> None:
        with self._free:
            self._count -= 1
            self._free.notify()

    def drop_idle(self) -> None:
        """Closes every line that nobody uses."""
        with self._free:
            dropped, self._idle = self._idle, []
            self._count -= len(dropped)
            self._free.notify_all()
        for line in dropped:
            line.close()

    def close(self) -> bool:
        """Closes every idle line; those in use are closed when they come back."""
        if not self.mark_closed():
            return False
        self.drop_idle()
        return True


# --- gate -----------------------------------------------------------------------------------------
#
# What the parts of a store on a server share: its lines, whether it may write, who waits.


class Checkout(Generic[L]):
    """Every write goes through here."""

    def __init__(self, lines: ConnectionPool[L], *, read_only: bool) -> None:
        self._lines = lines
        self._read_only = read_only
        self.changed = Condition()
        self.stirred = 0

    def call(self, work: Callable[[L], T], *, repeatable: bool = True) -> T:
        """Returns what `work` returns, given a line to write on."""
        self._lines.check_open()
        if self._read_only:
            raise UsageError(
                "store is open read-only, found a write", hint="open it without read_only"
            )
        return self._lines.call(work, repeatable=repeatable, writes=True)

    def wake(self) -> None:
        """Wakes every thread of this process that waits for a commit."""
        with self.changed:
            self.stirred += 1
            self.changed.notify_all()

    def close(self) -> None:
        if self._lines.close():
            self.wake()


def cut(commits: Sequence[Commit], *, most: int, bytes_max: int) -> Iterator[list[Commit]]:
    """Yields a list of commits, each checked for its shape, in parts that one call may take."""
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


def in_parts(
    parts: Iterable[T], write: Callable[[T], list[Receipt | Refusal]]
) -> list[Receipt | Refusal]:
    """Returns the outcomes of a list of commits that is written part by part, in its order.

    Behind the first part nothing can be said to the whole list but that its outcome is unknown:
    who was told that nothing was written would write what is there a second time.
    """
    outcomes: list[Receipt | Refusal] = []
    for part in parts:
        try:
            outcomes += write(part)
        except HoldfastError as error:
            if not outcomes:
                raise
            raise UnavailableError(
                f"{error.message}; earlier commits of the same list were written",
                outcome_known=False,
                hint=error.hint,
            ) from error
    return outcomes


# --- follower -------------------------------------------------------------------------------------
#
# Waiting for the next position on a server: a cheap question, at most twenty times a second.
#
# Only one thread of a process asks; the others wait for its answer. A commit of this process wakes
# it at once.


# Below twenty a second however fast the server answers: whoever waits calls `wait` once a second,
# which begins with a question and ends with one, and asks seventeen times between.
POLL_S = 0.058
_GLANCE_S = 1.0


class Stirred(Protocol):
    """What counts the commits of this process, and tells of them."""

    changed: Condition
    stirred: int


class Follower:
    """The newest position that this process has seen, and who asks for the next."""

    def __init__(
        self, gate: Stirred, ask: Callable[[], int], check_open: Callable[[], None]
    ) -> None:
        self._gate = gate
        self._ask_server = ask
        self._check_open = check_open
        self._newest = 0
        self._asking = False

    def wait(self, after: Position, timeout_s: float) -> Position:
        """Returns the newest position, at once if it is greater than `after`, else when it is."""
        deadline = monotonic() + timeout_s
        stirred = self._gate.stirred
        newest = self._ask()
        while newest <= after and (left_s := deadline - monotonic()) > 0:
            newest, stirred = self._wait(left_s, stirred)
        return Position(newest)

    def _wait(self, left_s: float, stirred: int) -> tuple[int, int]:
        changed = self._gate.changed
        with changed:
            if self._asking:
                changed.wait(min(left_s, _GLANCE_S))
                self._check_open()
                return self._newest, self._gate.stirred
            self._asking = True
        try:
            with changed:
                if self._gate.stirred == stirred:
                    changed.wait(min(left_s, POLL_S))
                stirred = self._gate.stirred
            return self._ask(), stirred
        finally:
            with changed:
                self._asking = False
                changed.notify_all()

    def _ask(self) -> int:
        newest = self._ask_server()
        with self._gate.changed:
            self._newest = max(self._newest, newest)
        return newest


STREAMS_MAX = 10_000

Tail = tuple[str, tuple[int, bytes | None]]
"""A stream, and the revision and link of the newest event that was acknowledged there.

The link is None if the event was told of only as the one that has a commit's key already.
"""


class AckTracker:
    """The newest acknowledged event of each stream, and the newest position."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._position = 0
        self._tails: dict[str, tuple[int, bytes | None]] = {}
        self._lock = Lock()

    def note(self, commits: Sequence[Commit], outcomes: Sequence[Receipt | Refusal]) -> None:
        """Remembers what was acknowledged."""
        with self._lock:
            for commit, outcome in zip(commits, outcomes, strict=True):
                if isinstance(outcome, Refusal):
                    # Done before, says the server: to the caller that is an acknowledgement.
                    if outcome.reason == "duplicate" and outcome.revision:
                        self._remember(outcome.stream, outcome.revision, None)
                    continue
                self._position = max(self._position, outcome.position)
                for append in commit.appends:
                    last = append.records[-1]
                    self._remember(append.stream, last.revision, last.link)
            while len(self._tails) > STREAMS_MAX:
                del self._tails[next(iter(self._tails))]

    def _remember(self, stream: str, revision: int, link: bytes | None) -> None:
        known = self._tails.pop(stream, None)
        # Of two threads the one with the older news may come later.
        is_newer = known is None or revision + (link is not None) > known[0]
        self._tails[stream] = known if known is not None and not is_newer else (revision, link)

    def told(self) -> tuple[int, list[Tail]]:
        """Returns the newest position, 0 if there is none, and the newest events."""
        with self._lock:
            return self._position, list(self._tails.items())

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

"""The few connections that a store keeps open to a server, and calls with a deadline on them.

A call has one deadline. It covers waiting for a free connection, connecting, asking again after a
connection broke or a server went down, and the answer. While there is time a call that may be
repeated is repeated: at once on another connection, then every 50 ms.

There are no threads here and no state in a session. So a store survives failovers and restarts of
its server, works through poolers, and nothing runs on in a forked child. What differs between
servers is left to the kind: how a connection is made, and what an error of its driver means.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from threading import Condition
from time import monotonic
from typing import Generic, Protocol, TypeVar

from holdfast.backends.handle import Handle
from holdfast.errors import HoldfastError, LostCommitsError, UnavailableError, UsageError

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


class AnyPlace(Protocol):
    """What a URL says of every server."""

    @property
    def timeout_s(self) -> float: ...
    @property
    def pool(self) -> int: ...


class AnyLine(Protocol):
    """A connection whose every wait ends at the deadline of the call that uses it."""

    deadline: float
    returned: float

    @property
    def process(self) -> object:
        """Which server process it leads to; None where nobody asks."""
        ...

    def close(self) -> None: ...


T = TypeVar("T")
L = TypeVar("L", bound=AnyLine)


class Lines(Handle, ABC, Generic[L]):
    """The lines of one open store: made when needed, kept, and thrown away when one has failed."""

    def __init__(self, place: AnyPlace) -> None:
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

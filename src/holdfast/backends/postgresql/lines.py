"""Connections with a deadline, and the few that a store keeps open.

A call has one deadline. It covers waiting for a free connection, connecting, asking again after a
connection broke or a server went down, and the answer. While there is time a call that may be
repeated is repeated: at once on another connection, then every 50 ms.

There are no threads here and no state in a session. So a store survives failovers and restarts of
its server, works through poolers, and nothing runs on in a forked child.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Generator, Mapping, Sequence
from threading import Condition
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.waiting import Ready, Wait

from holdfast.backends.handle import Handle
from holdfast.backends.postgresql.errors import DeadlineError, is_lost, may_retry, translate
from holdfast.backends.postgresql.place import Place
from holdfast.errors import UnavailableError

_AGAIN_AFTER_S = 0.05
_CONNECT_S = 10
# Longer than this a line is not kept unused: what lies between may have forgotten it silently, and
# the next call would find out only at its deadline. A new one costs a few milliseconds.
_UNUSED_S = 30.0
T = TypeVar("T")
Row = tuple[Any, ...]
Values = Sequence[Any] | Mapping[str, Any]


class Line(psycopg.Connection[Row]):
    """A connection whose every wait ends at the deadline of the call that uses it."""

    deadline = float("inf")
    returned = 0.0

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Runs one of psycopg's generators to its end, or to the deadline.

        A line that ran out of time is closed: its answer, should it still come, belongs to nobody.
        """
        poll = select.poll()
        fd = self.pgconn.socket
        try:
            want = next(gen)
            while True:
                poll.register(fd, _EVENTS[want])
                left_s = self.deadline - monotonic()
                events = poll.poll(max(left_s, 0) * 1000 if left_s < 1e6 else None)
                if not events:
                    raise DeadlineError
                want = gen.send(_ready(events[0][1], want))
        except StopIteration as end:
            return end.value
        except BaseException:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.close()
            raise

    def ask(self, statement: str, values: Values = ()) -> list[Row]:
        """Returns the rows of one statement, a transaction of its own."""
        with self.cursor(binary=True) as cursor:
            cursor.execute(statement, values)  # pyright: ignore[reportArgumentType]
            result = cursor.pgresult
            return cursor.fetchall() if result is not None and result.nfields else []

    def answer(self, statement: bytes, values: Sequence[bytes | None]) -> bytes | None:
        """Returns the one value of a statement, all in text and without psycopg's conversions.

        The hot path: a cursor would cost more than the server's own work.
        """
        with self.lock:
            self.pgconn.send_query_params(statement, values)
            [result] = self.wait(generators.execute(self.pgconn))
        if result.status != ExecStatus.TUPLES_OK:
            raise error_from_result(result)
        return result.get_value(0, 0)


_EVENTS = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}


def _ready(events: int, want: Wait) -> Ready:
    if events & ~(select.POLLIN | select.POLLOUT):
        return Ready(int(want))  # an error or a hang-up: whoever reads or writes will see it
    return Ready(bool(events & select.POLLIN) | bool(events & select.POLLOUT) << 1)


class Lines(Handle):
    """The lines of one open store: made when needed, kept, and thrown away when one has failed."""

    def __init__(self, place: Place, *, writes: bool) -> None:
        super().__init__()
        self.place = place
        self._parameters = _parameters(place, writes=writes)
        self._idle: list[Line] = []
        self._count = 0
        self._free = Condition()

    def call(
        self, work: Callable[[Line], T], *, repeatable: bool = True, writes: bool = False
    ) -> T:
        """Returns what `work` returns, given a line; repeats it as long as that may help.

        With `writes`, an error says that the outcome is unknown if any attempt was lost.
        """
        self.check_open()
        deadline = monotonic() + self.place.timeout_s
        unknown = False
        while True:
            try:
                with self._line(deadline) as line:
                    return work(line)
            except Exception as exc:
                unknown = unknown or (writes and is_lost(exc) and not _never_sent(exc))
                again = may_retry(exc) and (repeatable or _never_sent(exc))
                if not again or monotonic() + _AGAIN_AFTER_S >= deadline:
                    if isinstance(exc, UnavailableError) and unknown:
                        exc.outcome_known = False
                    ours = translate(exc, self.place, outcome_known=not unknown)
                    if ours is None:
                        raise
                    raise ours from _scrubbed(exc, self.place)
            with self._free:
                self._free.wait(_AGAIN_AFTER_S)
            self.check_open()

    def connect(self, deadline: float) -> Line:
        """Returns a new line, which the caller closes."""
        left_s = max(2, min(_CONNECT_S, int(deadline - monotonic()) + 1))
        try:
            parameters: dict[str, Any] = {"connect_timeout": left_s, **self._parameters}
            line = Line.connect(**parameters, autocommit=True, prepare_threshold=None)
        except psycopg.Error as exc:
            exc.add_note(_NOT_SENT)
            raise
        line.deadline = deadline
        return line

    @contextlib.contextmanager
    def _line(self, deadline: float) -> Generator[Line]:
        line = self._take(deadline)
        healthy = False
        try:
            yield line
            healthy = True
        except BaseException as exc:
            healthy = not may_retry(exc) and isinstance(exc, psycopg.Error)
            raise
        finally:
            self._give_back(line, healthy)

    def _take(self, deadline: float) -> Line:
        with self._free:
            while True:
                self.check_open()
                while self._idle:
                    line = self._idle.pop()
                    if monotonic() - line.returned < _UNUSED_S:
                        line.deadline = deadline
                        return line
                    self._count -= 1
                    line.close()
                if self._count < self.place.pool:
                    self._count += 1
                    break
                if not self._free.wait(max(deadline - monotonic(), 0)):
                    raise UnavailableError(
                        f"all {self.place.pool} connections of this store were busy for "
                        f"{self.place.timeout_s:g} s",
                        hint="allow more with pool= in the URL",
                    )
        try:
            return self.connect(deadline)
        except BaseException:
            self._forget_one()
            raise

    def _give_back(self, line: Line, healthy: bool) -> None:
        idle = line.pgconn.transaction_status == TransactionStatus.IDLE
        if healthy and idle and self.is_open:
            line.returned = monotonic()
            with self._free:
                self._idle.append(line)
                self._free.notify()
            if self.is_open:
                return
            self._drop_idle()  # closed by another thread at this very moment
            return
        line.close()
        self._forget_one()
        if not idle:
            # One broke: the others likely have too, if the server went. New ones cost little.
            self._drop_idle()

    def _forget_one(self) -> None:
        with self._free:
            self._count -= 1
            self._free.notify()

    def _drop_idle(self) -> None:
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
        self._drop_idle()
        return True

    def after_fork(self) -> None:
        """Gives up the child's copies of the sockets, without a word to the server.

        The objects are kept for ever: freeing one would end the parent's session.
        """
        from ctypes import py_object, pythonapi

        pythonapi.Py_IncRef(py_object(self._idle))
        for line in self._idle:
            with contextlib.suppress(OSError, psycopg.Error):
                os.close(line.pgconn.socket)


_NOT_SENT = "nothing was sent"


def _never_sent(exc: BaseException) -> bool:
    return _NOT_SENT in getattr(exc, "__notes__", ())


def _scrubbed(exc: Exception, place: Place) -> Exception | None:
    """Returns the cause to show: none where its text holds a secret."""
    return exc if place.hide(str(exc)) == str(exc) else None


def _parameters(place: Place, *, writes: bool) -> dict[str, Any]:
    wait_ms = int(place.timeout_s * 1000)
    defaults: dict[str, str | int] = {
        "application_name": "holdfast",
        "tcp_user_timeout": wait_ms,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    if writes:
        defaults["target_session_attrs"] = "read-write"
    # Names and payloads are UTF-8, whatever the environment says.
    return {**defaults, **place.parameters, "client_encoding": "UTF8"}

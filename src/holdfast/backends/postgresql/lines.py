"""Lines to a PostgreSQL server: psycopg's connections, with our own wait under one deadline."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Mapping, Sequence
from threading import local
from time import monotonic
from typing import Any, Self, TypeVar

import psycopg
from psycopg import generators
from psycopg.abc import PQGen, PQGenConn
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.waiting import Ready, Wait

from holdfast.backends.lines import DeadlineError, Lines
from holdfast.backends.postgresql.errors import is_lost, may_retry, translate
from holdfast.backends.postgresql.place import Place
from holdfast.errors import HoldfastError, LostCommitsError

_CONNECT_S = 10
T = TypeVar("T")
Row = tuple[Any, ...]
Values = Sequence[Any] | Mapping[str, Any]


class Line(psycopg.Connection[Row]):
    """A connection whose every wait ends at the deadline of the call that uses it."""

    deadline = float("inf")
    returned = 0.0
    process: Row | None = None

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        """Connects, or gives up at the deadline: psycopg's own limit is two seconds or more.

        It is asked for its turn ten times a second, also while nothing comes.
        """
        deadline: float = getattr(_connecting, "deadline", float("inf"))
        steps = super()._connect_gen(conninfo)
        try:
            want = next(steps)
            while True:
                ready = yield want
                if monotonic() >= deadline:
                    raise DeadlineError
                want = steps.send(ready)
        except StopIteration as end:
            return end.value

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
            results = self.wait(generators.execute(self.pgconn))
        # The row comes before the commit: an error that the commit ends in is a second result.
        for result in reversed(results):
            if result.status != ExecStatus.TUPLES_OK:
                raise error_from_result(result)
        return results[0].get_value(0, 0)


_connecting = local()  # the deadline of this thread's call, while it connects

_EVENTS = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}


def _ready(events: int, want: Wait) -> Ready:
    if events & ~(select.POLLIN | select.POLLOUT):
        return Ready(int(want))  # an error or a hang-up: whoever reads or writes will see it
    return Ready(bool(events & select.POLLIN) | bool(events & select.POLLOUT) << 1)


class PostgresqlLines(Lines[Line]):
    """Lines to a PostgreSQL server, or to the one of several that takes writes."""

    one_spoils_all = False

    def __init__(self, place: Place, *, writes: bool) -> None:
        super().__init__(place)
        self.place = place
        self.meet: Callable[[Line], None] | None = None  # asked of each new line
        self.look: Callable[[Line], None] | None = None  # asked before each use of one
        self._parameters = _parameters(place, writes=writes)

    def is_lost(self, exc: BaseException) -> bool:
        return is_lost(exc) and _NOT_SENT not in getattr(exc, "__notes__", ())

    def may_retry(self, exc: BaseException) -> bool:
        return may_retry(exc)

    def is_answer(self, exc: BaseException) -> bool:
        return isinstance(exc, psycopg.Error)

    def translate(self, exc: Exception, *, outcome_known: bool) -> HoldfastError | None:
        return translate(exc, self.place, outcome_known=outcome_known)

    def is_fit(self, line: Line) -> bool:
        return super().is_fit(line) and line.pgconn.transaction_status == TransactionStatus.IDLE

    def connect(self, deadline: float) -> Line:
        left_s = max(2, min(_CONNECT_S, int(deadline - monotonic()) + 1))
        _connecting.deadline = deadline
        try:
            parameters: dict[str, Any] = {"connect_timeout": left_s, **self._parameters}
            line = Line.connect(**parameters, autocommit=True, prepare_threshold=None)
        except (psycopg.Error, DeadlineError) as exc:
            exc.add_note(_NOT_SENT)
            raise
        finally:
            _connecting.deadline = float("inf")
        line.deadline = deadline
        self._examine(line, self.meet)
        self.met(line)
        return line

    def before_use(self, line: Line) -> None:
        self._examine(line, self.look)

    def _examine(self, line: Line, question: Callable[[Line], None] | None) -> None:
        """Asks something about the server itself; a line that breaks over it was never used."""
        if question is None:
            return
        try:
            question(line)
        except LostCommitsError as exc:
            self.lose(exc)
            line.close()
            raise
        except BaseException as exc:
            line.close()
            exc.add_note(_NOT_SENT)
            raise

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

"""Connections to a PostgreSQL server: psycopg's, with our own wait under one deadline."""

from __future__ import annotations

import contextlib
import os
import re
import select
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from threading import local
from time import monotonic
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from msgspec import Struct
from psycopg import ProgrammingError, generators
from psycopg.abc import PQGen, PQGenConn
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, PGconn, TransactionStatus
from psycopg.waiting import Ready, Wait

from holdfast.backends.connection_pool import Checkout, ConnectionPool, DeadlineError, unavailable
from holdfast.backends.tenancy import check_tenant
from holdfast.errors import (
    CorruptError,
    FormatError,
    HoldfastError,
    LostCommitsError,
    NotFoundError,
    UsageError,
)
from holdfast.names import check_login, check_name, number, without, without_secrets

# --- the URL --------------------------------------------------------------------------------------
#
# It names the server and the store, and says how long a call may take.
#
#     postgresql://user@host:5432/database?application=shop&schema=holdfast&timeout=30&pool=8
#     postgresql://user@/database?host=/var/run/postgresql
#
# `application`, `tenant`, `schema`, `timeout`, `pool` and `sql_role` are ours. Everything else is
# passed to libpq unchanged, whose environment variables and password files work too. A password is
# never shown.


SCHEMES = ("postgresql://", "postgres://")
TENANTS = "holdfast_tenants"
"""The schema of tenants, unless the URL names another."""
APPLICATION_BYTES_MAX = 128
_SECRETS = ("password", "sslpassword", "oauth_client_secret")
_WHOLE_NUMBERS = {
    "connect_timeout",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "tcp_user_timeout",
}
_OURS = ("application", "tenant", "schema", "timeout", "pool", "sql_role")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")


class PostgresqlURL(Struct, frozen=True):
    """One store on one server."""

    shown: str  # the URL without secrets
    parameters: dict[str, str | int]  # libpq's
    secrets: tuple[str, ...]
    application: str = "default"
    schema: str = "holdfast"
    timeout_s: float = 30.0
    pool: int = 8
    tenant: str = ""
    sql_role: str = ""  # the role that runs a user's SQL statements; "": the user of the URL
    locks: str = ""  # the text that the numbers of locks are made from; "": the application

    def hide(self, text: str) -> str:
        """Returns a message of libpq or the server without secrets."""
        return without(self.secrets, text)


def parse_url(url: str, *, for_tenants: bool = False) -> PostgresqlURL:
    """Returns what the URL says, or raises UsageError without repeating a password."""
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    try:
        parts = urlsplit(url)
        check_login(url, parts)
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in _OURS:
                ours[name] = value
            else:
                theirs.append((name, value))
        # libpq reads %20, not +, as a space.
        query = urlencode(theirs, quote_via=quote)
        found = conninfo_to_dict(urlunsplit(parts._replace(scheme="postgresql", query=query)))
        _check_values(found)
    except (ProgrammingError, ValueError) as exc:
        raise UsageError(
            f'"{without_secrets(url)}" is not a URL of a PostgreSQL database'
            + ("" if "@" in url else f": {_reason(exc)}"),  # libpq repeats pieces of a password
            hint='write it as "postgresql://user@host/database" or '
            '"postgresql://user@/database?host=/var/run/postgresql"',
        ) from None
    parameters: dict[str, str | int] = {
        name: value for name, value in found.items() if value is not None
    }
    given = [parameters[name] for name in _SECRETS if parameters.get(name)]
    secrets = {str(secret) for secret in given} | {quote(str(secret)) for secret in given}
    is_tenant = for_tenants or "tenant" in ours
    if is_tenant and "application" in ours:
        raise UsageError(
            f'"{without_secrets(url)}" names an application, and a tenant has one of its own',
            hint="leave application= out of the URL",
        )
    return PostgresqlURL(
        shown=without_secrets(url),
        parameters=parameters,
        secrets=tuple(sorted(secrets, key=len, reverse=True)),
        application=_application(ours.get("application", "default")),
        schema=_schema(ours.get("schema", TENANTS if is_tenant else "holdfast")),
        timeout_s=number(ours.get("timeout", "30"), "timeout", least=0.1, most=86_400),
        pool=int(number(ours.get("pool", "8"), "pool", least=1, most=1000)),
        tenant=check_tenant(ours["tenant"]) if "tenant" in ours else "",
        sql_role=check_name(ours["sql_role"], "sql_role") if "sql_role" in ours else "",
    )


def _check_values(found: Mapping[str, str | int | None]) -> None:
    """Raises ValueError for a value that libpq would otherwise refuse only when it connects.

    libpq is told to connect to a place without a server: it checks its parameters before it looks
    for one, so nothing is reached.
    """
    given: dict[str, Any] = {name: text for name, text in found.items() if text is not None}
    for name in _WHOLE_NUMBERS & given.keys():
        int(given[name])
    hosts = str(given.get("host", "")).count(",") + 1
    given.pop("hostaddr", None)
    nowhere = ",".join(["/holdfast/no/such/place"] * hosts)
    tried = PGconn.connect_start(make_conninfo(**{**given, "host": nowhere}).encode())
    said = tried.error_message.decode("utf-8", "replace").strip()
    tried.finish()
    if said.startswith("invalid "):
        raise ValueError(said)


def _application(name: str) -> str:
    check_name(name, "application")
    if len(name.encode()) > APPLICATION_BYTES_MAX:
        raise UsageError(f"application is at most {APPLICATION_BYTES_MAX} bytes, found {name!r}")
    return name


def _schema(name: str) -> str:
    if not _SCHEMA.match(name):
        raise UsageError(
            f"schema must be a lower-case letter or '_', then at most 62 letters, digits or '_', "
            f"found {name!r}"
        )
    return name


def _reason(exc: Exception) -> str:
    """Returns libpq's message, unless it quotes a part of the URL that may be secret."""
    text = str(exc).strip()
    return text if ":" not in text.replace(": ", "") and "@" not in text else "it cannot be parsed"


# --- errors ---------------------------------------------------------------------------------------
#
# What an error of PostgreSQL means to a caller. Nothing above this package sees an error of
# psycopg.
#
# Two questions decide: may the call be tried again, and is its outcome known? If the server
# answered with an error, it has rolled the transaction back. If the connection broke, the outcome
# is unknown.


# Serialization failures, deadlocks: the transaction was rolled back, the next one may succeed.
_AGAIN = frozenset(("40001", "40P01"))
# The server is stopping or starting, is no longer the primary, or has no free connection.
_ELSEWHERE = frozenset(("57P01", "57P02", "57P03", "25006", "53300", "HF004"))
# The session has another isolation or durability than a commit needs. On a connection that was used
# before, another user of the session may have changed it, so the commit is sent again on a new one.
# On a new connection it is the role's own setting, and trying again would not help.
_UNSETTLED = frozenset(("HF001", "HF002"))
_KEPT = "the connection was used before"
_REMEDIES = {
    "53100": "free some space on the server's disk, then try again",
    "58030": "the server's disk fails: repair it, then try again",
    "53200": "give the server more memory, then try again",
    "42501": "grant the user what it needs: see docs/guides/postgresql.md",
    "28000": "check the user and the server's pg_hba.conf",
    "28P01": "check the user's password",
    "25006": "the server takes no writes: name the primary, or several hosts",
    "HF001": "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
    "HF002": 'ALTER ROLE … SET synchronous_commit = on, or open with durability="process"',
}


def is_lost(exc: BaseException) -> bool:
    """Returns whether the connection broke: then it is unknown what the server did."""
    if isinstance(exc, DeadlineError):
        return True
    if isinstance(exc, psycopg.Error) and exc.diag.severity_nonlocalized == "PANIC":
        # The server ended in the middle of its work: the commit may be on its disk.
        return True
    if not isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    state = exc.sqlstate
    return state is None or state.startswith("08") or state in ("57P01", "57P02")


def may_retry(exc: BaseException) -> bool:
    """Returns whether the same call on another connection may succeed."""
    if isinstance(exc, DeadlineError):
        return False
    state = exc.sqlstate if isinstance(exc, psycopg.Error) else None
    if state in _UNSETTLED:
        return _KEPT in getattr(exc, "__notes__", ())
    return is_lost(exc) or state in _AGAIN or state in _ELSEWHERE


def translate(
    exc: BaseException, server_url: PostgresqlURL, *, outcome_known: bool
) -> HoldfastError | None:
    """Returns the error to raise in place of psycopg's error, None if it is not one of psycopg."""
    if isinstance(exc, DeadlineError):
        said = f"did not answer within {server_url.timeout_s:g} s"
        return unavailable(server_url.shown, said, outcome_known=outcome_known)
    if isinstance(exc, UnicodeEncodeError):
        return UsageError(f"a name holds a lone surrogate: {exc.object[:40]!r}")
    if isinstance(exc, UnicodeDecodeError):
        return UsageError("a payload is not UTF-8 text")
    if not isinstance(exc, psycopg.Error):
        return None
    state = exc.sqlstate or ""
    said = server_url.hide(exc.diag.message_primary or str(exc).strip() or type(exc).__name__)
    if state.startswith("22") or isinstance(exc, psycopg.DataError):
        return UsageError(f"PostgreSQL cannot store this value: {said}")
    if state in ("XX001", "XX002", "58P01"):  # damage found, or a file that is not there
        return CorruptError(f'"{server_url.shown}" is damaged: {said}', where=server_url.shown)
    if state in ("42P01", "42883", "42703", "3F000"):
        return FormatError(
            f'"{server_url.shown}" has lost tables or functions of its schema: {said}',
            hint="restore the schema from a backup",
        )
    if state == "3D000":
        return NotFoundError(f'"{server_url.shown}": {said}', hint="create the database first")
    remedy = _REMEDIES.get(state)
    return unavailable(
        server_url.shown, f"is unavailable: {said}", outcome_known=outcome_known, remedy=remedy
    )


_CONNECT_S = 10
_CANCEL_S = 2.0
T = TypeVar("T")
Row = tuple[Any, ...]
Values = Sequence[Any] | Mapping[str, Any]


class PostgresqlConnection(psycopg.Connection[Row]):
    """A connection whose every wait ends at the deadline of the call that uses it."""

    deadline = float("inf")
    returned = 0.0
    process: Row | None = None
    reported: tuple[bytes | None, ...] = ()
    """The settings that the server reported when the connection was made."""
    cancels = False
    """Whether a statement is cancelled on the server when its deadline has passed."""

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        """Connects, or raises DeadlineError: psycopg's own limit is at least two seconds.

        psycopg resumes this generator ten times a second, also while the server sends nothing, so
        the deadline is checked that often.
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
        """Runs one of psycopg's generators to its end, or until the deadline.

        The wait is our own, because a server that hangs keeps its TCP connection alive. A
        connection whose statement still runs then is closed: nobody would read the answer.
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
                if self.cancels:
                    with contextlib.suppress(psycopg.Error):
                        self.cancel_safe(timeout=_CANCEL_S)
                self.close()
            raise

    def ask(self, statement: str, values: Values = ()) -> list[Row]:
        """Returns the rows of one statement, which is a transaction of its own."""
        with self.cursor(binary=True) as cursor:
            cursor.execute(statement, values)  # pyright: ignore[reportArgumentType]
            result = cursor.pgresult
            return cursor.fetchall() if result is not None and result.nfields else []

    def answer(self, statement: bytes, values: Sequence[bytes | None]) -> bytes | None:
        """Returns the single value of a statement, as text and without psycopg's conversions.

        This is the hot path: a cursor would cost more than the server's own work.
        """
        with self.lock:
            self.pgconn.send_query_params(statement, values)
            results = self.wait(generators.execute(self.pgconn))
        # The server sends the row before it commits. An error of the commit itself comes as a
        # second result, so the last result decides: a row alone is no receipt.
        for result in reversed(results):
            if result.status != ExecStatus.TUPLES_OK:
                error = error_from_result(result)
                if self.returned:
                    error.add_note(_KEPT)
                raise error
        return results[0].get_value(0, 0)


_connecting = local()  # the deadline of this thread's call, while it connects

_EVENTS = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}


def _ready(events: int, want: Wait) -> Ready:
    if events & ~(select.POLLIN | select.POLLOUT):
        return Ready(int(want))  # an error or a hang-up: the next read or write raises it
    return Ready(bool(events & select.POLLIN) | bool(events & select.POLLOUT) << 1)


class PostgresqlPool(ConnectionPool[PostgresqlConnection]):
    """Connections to a PostgreSQL server, or to the one of several that takes writes."""

    closes_idle_on_failure = False

    def __init__(self, server_url: PostgresqlURL, *, writes: bool) -> None:
        super().__init__(server_url)
        self.server_url = server_url
        # Called with each new connection, and before each use of one.
        self.on_connect: Callable[[PostgresqlConnection], None] | None = None
        self.on_use: Callable[[PostgresqlConnection], None] | None = None
        self._parameters = _parameters(server_url, writes=writes)

    def is_lost(self, exc: BaseException) -> bool:
        return is_lost(exc) and _NOT_SENT not in getattr(exc, "__notes__", ())

    def may_retry(self, exc: BaseException) -> bool:
        return may_retry(exc)

    def is_answer(self, exc: BaseException) -> bool:
        return isinstance(exc, psycopg.Error) and exc.sqlstate not in _UNSETTLED

    def translate(self, exc: Exception, *, outcome_known: bool) -> HoldfastError | None:
        return translate(exc, self.server_url, outcome_known=outcome_known)

    def is_fit(self, connection: PostgresqlConnection) -> bool:
        return (
            super().is_fit(connection)
            and connection.pgconn.transaction_status == TransactionStatus.IDLE
            and _reported(connection) == connection.reported
        )

    def connect(self, deadline: float) -> PostgresqlConnection:
        left_s = max(2, min(_CONNECT_S, int(deadline - monotonic()) + 1))
        _connecting.deadline = deadline
        try:
            parameters: dict[str, Any] = {"connect_timeout": left_s, **self._parameters}
            connection = PostgresqlConnection.connect(
                **parameters, autocommit=True, prepare_threshold=None
            )
        except (psycopg.Error, DeadlineError) as exc:
            exc.add_note(_NOT_SENT)
            raise
        finally:
            _connecting.deadline = float("inf")
        connection.deadline = deadline
        self._examine(connection, _settle)
        self._examine(connection, self.on_connect)
        self.note_process(connection)
        return connection

    def before_use(self, connection: PostgresqlConnection) -> None:
        self._examine(connection, self.on_use)

    def _examine(
        self,
        connection: PostgresqlConnection,
        question: Callable[[PostgresqlConnection], None] | None,
    ) -> None:
        """Asks a question about the server before the call is sent.

        If the connection breaks here, nothing of the call was sent: its outcome stays known.
        """
        if question is None:
            return
        try:
            question(connection)
        except LostCommitsError as exc:
            self.mark_lost(exc)
            connection.close()
            raise
        except BaseException as exc:
            connection.close()
            exc.add_note(_NOT_SENT)
            raise

    def after_fork(self) -> None:
        """Closes a forked child's copies of the sockets without sending anything to the server.

        The connection objects are kept for ever: freeing one would end the parent's session.
        """
        from ctypes import py_object, pythonapi

        pythonapi.Py_IncRef(py_object(self._idle))
        for connection in self._idle:
            with contextlib.suppress(OSError, psycopg.Error):
                os.close(connection.pgconn.socket)


_NOT_SENT = "nothing was sent"

# The settings of a session are not trusted. Its encoding is set when the connection is made, and so
# is its search path if that would let other functions take the place of the server's own. Isolation
# and durability are checked by every commit on the server. Some settings are reported by the server
# whenever they change. They are compared when a connection is given back, which costs no question:
# a session that anybody has changed since, such as another program behind a pooler, is not used
# again. Settings that are right are not touched, because behind a pooler the session is not ours.

_REPORTED = (b"client_encoding", b"search_path", b"session_authorization", b"is_superuser",
             b"standard_conforming_strings")  # fmt: skip
_SETTLE = """SELECT pg_catalog.set_config('search_path', 'pg_catalog', false)
 WHERE (pg_catalog.current_schemas(true))[1] OPERATOR(pg_catalog.<>) 'pg_catalog'"""


def _settle(connection: PostgresqlConnection) -> None:
    connection.ask(_SETTLE)
    connection.reported = _reported(connection)


def _reported(connection: PostgresqlConnection) -> tuple[bytes | None, ...]:
    return tuple(map(connection.pgconn.parameter_status, _REPORTED))


def _parameters(server_url: PostgresqlURL, *, writes: bool) -> dict[str, Any]:
    wait_ms = int(server_url.timeout_s * 1000)
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
    return {**defaults, **server_url.parameters, "client_encoding": "UTF8"}


class PostgresqlCheckout(Checkout[PostgresqlConnection]):
    """What the parts of a store share: its pool, its application, whether it may write."""

    def __init__(self, server_url: PostgresqlURL, pool: PostgresqlPool, *, read_only: bool) -> None:
        super().__init__(pool, read_only=read_only)
        self.server_url = server_url
        self.application = server_url.application
        self.lock_space = server_url.locks or server_url.application
        self.pool = pool

    def ask(self, statement: str, values: Values) -> list[Row]:
        """Returns the rows of a statement that only reads."""
        text = in_schema(statement, self.server_url.schema)
        return self.pool.call(lambda connection: connection.ask(text, values))

    def write(self, statement: str, values: Values, *, repeatable: bool = True) -> list[Row]:
        """Returns the rows of a statement that writes."""
        text = in_schema(statement, self.server_url.schema)
        return self.call(lambda connection: connection.ask(text, values), repeatable=repeatable)


@cache
def in_schema(statement: str, schema: str) -> str:
    """Returns a statement with the name of its schema put in; `parse_url` has checked the name."""
    return statement.replace("holdfast.", f"{schema}.").replace('"holdfast"', f'"{schema}"')

"""Connections to a Redis server, or to the server of a cluster that has the store.

redis-py makes the connections: it knows URLs, passwords and TLS. Commands then bypass it and use
the socket and hiredis directly, because redis-py's timeouts begin anew with every byte received,
and a call here has one deadline.

In a cluster a store is in one slot, so one server has all of it. The answer MOVED says where it is
now. ASK is not followed: while a slot moves, a key that is not on the new server yet would look
like one that was never written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import hiredis
import redis
from msgspec import msgpack
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.retry import Retry

from holdfast.backends.connection_pool import Checkout, ConnectionPool, DeadlineError, unavailable
from holdfast.backends.protocol import Durability
from holdfast.backends.redis.encoding import Keys
from holdfast.backends.redis.server import (
    QUESTIONS,
    RedisServer,
    RedisURL,
    Script,
    script,
    server_of,
)
from holdfast.errors import (
    CorruptError,
    FormatError,
    HoldfastError,
    LostCommitsError,
    NotFoundError,
    UsageError,
)

# --- errors ---------------------------------------------------------------------------------------
#
# What an error of Redis means to a caller. Nothing above this package sees an error of redis-py.
#
# Two questions decide: may the call be tried again, and is its outcome known? A server that is
# full, read-only or cut off refuses a script at its first write, so nothing of it was written. If
# the connection broke, the outcome is unknown.


# The server is starting or busy, lost its role as master, or is moving keys to another server.
_AGAIN = frozenset(
    (
        *("LOADING", "BUSY", "MASTERDOWN", "READONLY", "NOREPLICAS", "CLUSTERDOWN"),
        *("MOVED", "ASK", "TRYAGAIN", "NONLOCAL", "REPLICA"),
    )
)
_REMEDIES = {
    "OOM": "raise maxmemory (CONFIG SET maxmemory …) or free some memory, then try again",
    "MISCONF": "the server cannot write its files: free some space on its disk, then try again",
    "READONLY": "the server is a replica: name the master",
    "REPLICA": "the server is a replica: name the master",
    "NOREPLICAS": "the server has fewer replicas than min-replicas-to-write",
    "NOAUTH": "put the password into the URL: redis://:password@host",
    "WRONGPASS": "check the user and the password",
    "NOPERM": "grant the user what it needs: see docs/guides/redis.md",
    "CLUSTERDOWN": "the cluster does not serve all slots: see CLUSTER INFO",
    "ASK": "the cluster moves this store to another server: try again when it has",
    "TRYAGAIN": "the cluster moves this store to another server: try again when it has",
    "NONLOCAL": "the cluster moves this store to another server: try again when it has",
}
_OURS = ("DAMAGED", "LOST", "GONE", "HEADLESS", "WRONGTYPE", "NOSCRIPT")
_CODES = "|".join((*_OURS, *_AGAIN, *_REMEDIES))
_CODE = re.compile(rf"(?:^|[\s:-])({_CODES})\b")


class CutError(Exception):
    """The connection broke: it is unknown what the server did."""


class UnreachedError(Exception):
    """No connection could be made: nothing was sent."""


class ReplyError(Exception):
    """The server answered with an error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if "non local key" in text or "accessed undeclared key" in text:
            self.code = "NONLOCAL"
        else:
            found = _CODE.search(text)
            self.code = found.group(1) if found else text.partition(" ")[0]


def is_lost(exc: BaseException) -> bool:
    return isinstance(exc, DeadlineError | CutError)


def may_retry(exc: BaseException) -> bool:
    """Returns whether the same call on another connection may succeed."""
    if isinstance(exc, ReplyError):
        return exc.code in _AGAIN
    return isinstance(exc, CutError | UnreachedError)


def problem_of(text: str) -> str:
    """Returns the problem that a script of ours reported, without the server's words around it."""
    for code in ("DAMAGED ", "LOST "):
        _, found, problem = text.partition(code)
        if found:
            return re.sub(r"\s+script: \S+, on @user_script:\d+\.?$", "", problem)
    return "it has another type than it was written with" if "WRONGTYPE" in text else text


def translate(
    exc: BaseException, server_url: RedisURL, *, outcome_known: bool, is_open: bool = False
) -> HoldfastError | None:
    """Returns the error to raise in place of one of this package's errors, None for any other.

    A key of another type is damage once the store `is_open`; before that, the keys belong to
    another program.
    """
    if isinstance(exc, DeadlineError):
        said = f"did not answer within {server_url.timeout_s:g} s"
        return unavailable(server_url.shown, said, outcome_known=outcome_known)
    if isinstance(exc, UnicodeEncodeError):
        return UsageError(f"a name holds a lone surrogate: {exc.object[:40]!r}")
    if isinstance(exc, ReplyError):
        return _reply(exc, server_url, outcome_known=outcome_known, is_open=is_open)
    if isinstance(exc, CutError | UnreachedError | redis.RedisError):
        said = f"is unavailable: {server_url.hide(str(exc)) or type(exc).__name__}"
        return unavailable(server_url.shown, said, outcome_known=outcome_known)
    return None


def _reply(
    exc: ReplyError, server_url: RedisURL, *, outcome_known: bool, is_open: bool
) -> HoldfastError:
    where = server_url.shown
    said = server_url.hide(str(exc))
    if exc.code == "GONE":
        return NotFoundError(
            f'the store of application "{server_url.application}" is no longer in "{where}"',
            hint="restore it from a backup, or open it again to begin a new one",
        )
    if exc.code == "HEADLESS":
        return CorruptError(
            f'"{where}" has lost the key of application "{server_url.application}"', where=where
        )
    if exc.code == "WRONGTYPE" and is_open:
        return CorruptError(
            f'"{where}" is damaged: a key of the store has another type than it was written with',
            where=where,
            hint='run "holdfast check", which names the key, and restore the store from a backup',
        )
    if exc.code == "WRONGTYPE":
        return FormatError(
            f'"{where}" has keys of another program: {said}',
            hint="choose another application or database",
        )
    if exc.code == "DAMAGED":
        return CorruptError(f'"{where}" is damaged: {problem_of(said)}', where=where)
    if exc.code == "LOST":
        return LostCommitsError(f'"{where}" has lost commits: {problem_of(said)}', where=where)
    return unavailable(
        where,
        f"is unavailable: {said}",
        outcome_known=outcome_known,
        remedy=_REMEDIES.get(exc.code),
        otherwise="check the server's log",
    )


_pack_words: Callable[[Any], bytes] = hiredis.pack_command  # pyright: ignore


def _pack(command: Sequence[Word]) -> bytes:
    """Returns the bytes of a command.

    Numbers are made text here and not by hiredis: the call that it uses for them checks for
    signals, and hiredis does not check whether that call failed. An interrupt in it would end the
    process with SIGSEGV.
    """
    return _pack_words(tuple(b"%d" % word if type(word) is int else word for word in command))


_CHUNK = 1 << 17
EXAMINED_FOR_S = 10.0
_log = logging.getLogger("holdfast.backends")
Word = str | bytes | int
Address = tuple[str, int]


class RedisConnection:
    """A connection whose every wait ends at the deadline of the call that uses it."""

    def __init__(self, driver: Any, deadline: float) -> None:
        self._driver = driver
        self._socket: socket.socket = driver._sock
        self._reader = hiredis.Reader()
        self.deadline = deadline
        self.returned = 0.0
        self.process: str | None = None
        self.server: RedisServer
        self.examined = 0.0
        self.waits = False

    def ask(self, *commands: Sequence[Word]) -> list[Any]:
        """Returns the answers to commands that are sent together; raises the first error."""
        answers = self.ask_each(*commands)
        for answer in answers:
            if isinstance(answer, hiredis.ReplyError):
                raise ReplyError(str(answer))
        return answers

    def ask_each(self, *commands: Sequence[Word]) -> list[Any]:
        """Returns the answers to commands that are sent together, with errors among them."""
        try:
            self._send(b"".join([_pack(command) for command in commands]))
            return [self._receive() for _ in commands]
        except TimeoutError:
            raise DeadlineError from None
        except (OSError, hiredis.ProtocolError) as exc:
            raise CutError(str(exc)) from None

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        """Returns the answer of a script; sends its text to a server that does not know it.

        A server that has lost a script (NOSCRIPT) has run nothing, so sending it again is safe. On
        a connection that `waits`, WAITAOF is sent with the script: still one round trip.
        """
        try:
            return self._run(b"EVALSHA", script.digest, keys, arguments)
        except ReplyError as exc:
            if exc.code != "NOSCRIPT":
                raise
        return self._run(b"EVAL", script.text, keys, arguments)

    def _run(
        self, verb: bytes, script: bytes, keys: Sequence[str], arguments: Sequence[Word]
    ) -> Any:
        call = (verb, script, len(keys), *keys, *arguments)
        if not self.waits:
            return self.ask(call)[0]
        # At least 1: WAITAOF takes 0 for "wait for ever". Without the sync in time, or with an
        # error in its place, the script has run but its outcome counts as unknown.
        left_ms = max(1, int((self.deadline - monotonic()) * 1000))
        answer, synced = self.ask_each(call, (b"WAITAOF", 1, 0, left_ms))
        if isinstance(answer, hiredis.ReplyError):
            raise ReplyError(str(answer))
        if isinstance(synced, hiredis.ReplyError):
            raise CutError(str(synced))
        if synced[0] < 1:
            raise DeadlineError
        return answer

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(self._left_s())
        self._socket.sendall(data)

    def _receive(self) -> Any:
        while (answer := self._reader.gets()) is False:
            self._socket.settimeout(self._left_s())
            data = self._socket.recv(_CHUNK)
            if not data:
                raise CutError("the server closed the connection")
            self._reader.feed(data)
        return answer

    def _left_s(self) -> float:
        left_s = self.deadline - monotonic()
        if left_s <= 0:
            raise DeadlineError
        return left_s

    def close(self) -> None:
        with contextlib.suppress(OSError, redis.RedisError):
            self._driver.disconnect()

    def give_up(self) -> None:
        """Closes a forked child's copy of the socket without sending anything to the server."""
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())


class RedisPool(ConnectionPool[RedisConnection]):
    """Connections to the server that has the store, which may change in a cluster."""

    def __init__(self, server_url: RedisURL, durability: Durability) -> None:
        super().__init__(server_url)
        self.server_url = server_url
        self.recheck: Callable[[RedisConnection], None] | None = None
        self._durability: Durability = durability
        self._root = Keys(server_url.application).root
        self._addresses: list[Address | None] = [None]  # None: as the URL says
        self._server: RedisServer | None = None  # as it was when it was last examined
        self._is_warned = False
        self.is_open_store = False

    def is_lost(self, exc: BaseException) -> bool:
        return is_lost(exc)

    def may_retry(self, exc: BaseException) -> bool:
        return may_retry(exc)

    def is_answer(self, exc: BaseException) -> bool:
        return isinstance(exc, ReplyError)

    def is_unreached(self, exc: BaseException) -> bool:
        return isinstance(exc, UnreachedError)

    def translate(self, exc: Exception, *, outcome_known: bool) -> HoldfastError | None:
        ours = translate(
            exc, self.server_url, outcome_known=outcome_known, is_open=self.is_open_store
        )
        return self.explained(ours) if isinstance(ours, CorruptError) else ours

    def moved(self, exc: BaseException) -> bool:
        if not isinstance(exc, ReplyError) or exc.code != "MOVED":
            return False
        host, _, port = str(exc).rpartition(" ")[2].rpartition(":")
        here = self._addresses[0]
        host = host or (here[0] if here else self.server_url.parameters.get("host", "localhost"))
        self._prefer((host, int(port)))
        self.drop_idle()
        return True

    def _prefer(self, address: Address | None) -> None:
        with self._free:
            others = [one for one in self._addresses if one != address]
            self._addresses = [address, *others]

    def connect(self, deadline: float) -> RedisConnection:
        """Returns a new connection to a suitable server, which the caller closes."""
        address = self._addresses[0]
        driver = _driver(self.server_url, address, deadline, patient=len(self._addresses) == 1)
        try:
            driver.connect()
        except (redis.RedisError, OSError) as exc:
            driver.disconnect()
            self._pass_over(address)
            if isinstance(exc, redis.ResponseError | redis.AuthenticationError):
                raise ReplyError(str(exc)) from None
            raise UnreachedError(self.server_url.hide(str(exc))) from None
        connection = RedisConnection(driver, deadline)
        try:
            self._examine(connection)
        except (DeadlineError, CutError) as exc:
            connection.close()
            self._pass_over(address)
            raise UnreachedError(str(exc) or "the server does not answer") from None
        except BaseException:
            connection.close()
            raise
        return connection

    def _pass_over(self, address: Address | None) -> None:
        with self._free:
            others = [one for one in self._addresses if one != address]
            self._addresses = [*others, address]

    def before_use(self, connection: RedisConnection) -> None:
        """Reads the settings again every ten seconds: they can be changed while the server runs.

        A connection in steady use would otherwise know only the settings from when it was made. In
        between, a write may go to a server that was told to evict; what it evicts is found by the
        counts of keys.
        """
        if monotonic() - connection.examined > EXAMINED_FOR_S:
            self.read_settings(connection)

    def read_settings(self, connection: RedisConnection) -> RedisServer:
        """Returns the server's settings; raises if it cannot give the store's durability."""
        info, append, rewrite, here = connection.ask_each(*QUESTIONS, ("HGET", self._root, "store"))
        for answer in (info, here):
            if isinstance(answer, hiredis.ReplyError):
                raise ReplyError(str(answer))
        settings = [None if isinstance(a, hiredis.ReplyError) else a for a in (append, rewrite)]
        self._server = server = server_of(info, *settings)
        if server.role != "master":
            raise ReplyError(f"REPLICA this is a replica of {server.master}")
        server.check(self.server_url, self._durability)
        if server.evicts and not self._is_warned:
            self._is_warned = True
            _log.warning(
                "the server's maxmemory-policy is %s: it may delete what was acknowledged",
                server.shown_policy,
            )
        connection.server, connection.process = server, server.run_id
        connection.waits = server.waits(self._durability)
        connection.examined = monotonic()
        return server

    def explained(self, error: CorruptError) -> CorruptError:
        """Returns the error for something that is gone: LostCommitsError if the server evicts keys.

        The settings are read again first, because the policy may have been changed at run time.
        """
        try:
            self._lend(self.read_settings, monotonic() + self.server_url.timeout_s)
        except (HoldfastError, ReplyError, CutError, UnreachedError, DeadlineError) as exc:
            # Usually the policy itself: it is refused for the store's durability. `_server` has the
            # settings all the same.
            _log.debug("the server was asked why something is gone: %s", type(exc).__name__)
        server = self._server
        if server is None or not (server.evicts or server.evicted_keys):
            return error
        return LostCommitsError(
            f"{error.message}; the server evicts keys (maxmemory-policy {server.shown_policy}, "
            f"{server.evicted_keys} evicted since it started)",
            where=error.where,
            stream=error.stream,
            revision=error.revision,
            hint="CONFIG SET maxmemory-policy noeviction, and restore the store from a backup",
        )

    def _examine(self, connection: RedisConnection) -> None:
        server = self.read_settings(connection)
        if server.is_cluster:
            self._learn_nodes(connection)
        with self._free:
            same = self._process in (None, server.run_id)
        if not same and self.recheck is not None:
            # Another server process than before: a restart or a failover, which may have lost
            # commits. What was acknowledged to this handle must be there, or every later call
            # raises: a loss must not go unnoticed, or look like a conflict.
            try:
                self.recheck(connection)
            except LostCommitsError as exc:
                self.mark_lost(exc)
                raise
        self.note_process(connection)

    def doubt(self) -> None:
        """Makes the next connection check what was acknowledged, whichever server it leads to."""
        with self._free:
            self._process = ""
        self.drop_idle()

    def is_newest(self, process: str | None) -> bool:
        """Returns whether this is the server process of the newest connection."""
        return process == self._process

    def _learn_nodes(self, connection: RedisConnection) -> None:
        [rows] = connection.ask(("CLUSTER", "SLOTS"))
        nodes = {(node[0].decode(), node[1]) for row in rows for node in row[2:] if node[0]}
        with self._free:
            self._addresses += sorted(nodes - set(self._addresses))

    def after_fork(self) -> None:
        for connection in self._idle:
            connection.give_up()


def _driver(
    server_url: RedisURL, address: Address | None, deadline: float, *, patient: bool
) -> Any:
    """Returns a connection object of redis-py that is not connected yet."""
    parameters = dict(server_url.parameters)
    kind = parameters.pop("connection_class", Connection)
    if address is not None:
        if "path" in parameters:
            kind = Connection
            del parameters["path"]
        parameters["host"], parameters["port"] = address
    left_s = deadline - monotonic()
    if left_s <= 0:
        raise UnreachedError("there is no time left to connect")
    return kind(
        **parameters,
        # Where there are other servers to try, a silent one must not use up the whole deadline.
        socket_connect_timeout=left_s if patient else min(left_s, 2.0),
        socket_timeout=left_s if patient else min(left_s, 2.0),
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        decode_responses=False,
    )


def _raise_first(problems: list[tuple[str, str]], key: str | None = None) -> None:
    """Raises the first problem, or the first of one key."""
    for where, problem in problems:
        if key in (None, where):
            raise ReplyError(problem)


class RedisCheckout(Checkout[RedisConnection]):
    """What the parts of a store share: its pool, its keys, its id, and whether it may write.

    Every question includes one for the store's id. So a database that was emptied, or that holds
    another store under the same name, is an error and never looks like a store without events.
    """

    def __init__(self, pool: RedisPool, store: str, *, read_only: bool) -> None:
        super().__init__(pool, read_only=read_only)
        self.server_url = pool.server_url
        self.pool = pool
        self.keys = Keys(pool.server_url.application)
        self.store = store
        self.clock: str | None = None  # a test's own, in place of the server's

    def ask(self, *commands: Sequence[Word]) -> list[Any]:
        """Returns the answers of commands that only read."""
        return self.pool.call(lambda connection: self.ask_on(connection, *commands))

    def ask_on(self, connection: RedisConnection, *commands: Sequence[Word]) -> list[Any]:
        store, *answers = connection.ask(("HGET", self.keys.root, "store"), *commands)
        if store != self.store.encode():
            raise ReplyError("GONE the store is not there")
        return answers

    def ask_counted(
        self,
        count: str,
        length: tuple[str, str],
        *commands: Sequence[Word],
        is_doubtful: Callable[[list[Any]], bool] = bool,
    ) -> list[Any]:
        """Returns the answers of commands that only read a key whose length the store counts.

        Redis has no empty keys: one that was deleted or evicted looks like one that was never
        written. So `count` names the field of the store's own key that says how long the key should
        be, and `length` is the command that returns how long it is. Both are sent with the
        commands, in one round trip but not atomically: if they differ, a script, which runs alone,
        finds out whether a writer came between or something is gone. `is_doubtful` says for which
        answers that matters.
        """

        def work(connection: RedisConnection) -> list[Any]:
            (store, counted), *answers, found = connection.ask(
                ("HMGET", self.keys.root, "store", count), *commands, length
            )
            if store != self.store.encode():
                raise ReplyError("GONE the store is not there")
            if counted is not None and int(counted) != found and is_doubtful(answers):
                problems, _ = self.problems_on(connection, (), is_store_included=True)
                _raise_first(problems, length[1])
            return answers

        return self.pool.call(work)

    def problems_on(
        self, connection: RedisConnection, streams: Sequence[str], *, is_store_included: bool
    ) -> tuple[list[tuple[str, str]], list[bool]]:
        """Returns the keys that are not as long as their counts, and which streams have ended.

        A stream has ended, in this sense, if the server has deleted its keys at its end.
        """
        problems, let_go = self.run_on(connection, "whole", (), (is_store_included, streams))
        found = [(where.decode(), problem.decode()) for where, problem in problems]
        return found, [one == 1 for one in let_go]

    def is_let_go(self, stream: str) -> bool:
        """Returns whether the server has deleted a stream at its end; raises if it is damaged.

        If the stream has no head, missing heads of any stream count: one of them may be its own.
        """

        def work(connection: RedisConnection) -> bool:
            problems, [let_go] = self.problems_on(connection, (stream,), is_store_included=True)
            _raise_first([one for one in problems if one[0] in self.keys.of_stream(stream)])
            [has_head] = self.ask_on(connection, ("HEXISTS", self.keys.heads, stream))
            if not has_head:
                _raise_first(problems, self.keys.heads)
            return let_go

        return self.pool.call(work)

    def position(self) -> int:
        """Returns the newest position that was given."""
        [position] = self.ask(("HGET", self.keys.root, "position"))
        return self.number(position)

    def number(self, stored: bytes | None) -> int:
        """Returns a number that is stored in the store's own key, as position and format are."""
        if stored is None or not stored.isdigit():
            where = self.server_url.shown
            raise CorruptError(f'"{where}": the key {self.keys.root} is damaged', where=where)
        return int(stored)

    def look(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Returns the answer of a script that only reads."""
        return self.pool.call(lambda connection: self.run_on(connection, name, keys, arguments))

    def write(
        self,
        name: str,
        keys: Sequence[str],
        arguments: Sequence[Any],
        *data: bytes,
        repeatable: bool = True,
    ) -> Any:
        """Returns the answer of a script that writes."""
        return self.call(
            lambda connection: self.run_on(connection, name, keys, arguments, *data),
            repeatable=repeatable,
        )

    def run_on(
        self,
        connection: RedisConnection,
        name: str,
        keys: Sequence[str],
        arguments: Sequence[Any],
        *data: bytes,
    ) -> Any:
        words = self.store, msgpack.encode(arguments), *data
        return connection.run(script(name, self.clock), (self.keys.root, *keys), words)

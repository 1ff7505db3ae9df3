"""Lines to a Redis server, or to the one of a cluster that has the store.

redis-py makes the connections: it knows URLs, passwords and TLS. What is asked on one goes past it,
straight to the socket and hiredis, because its own timeouts begin anew with every byte received.

In a cluster a store is in one slot, so there is one server to speak to. The answer MOVED says where
it is now; ASK is not followed, because a store that is half moved must look like none at all.
"""

from __future__ import annotations

import contextlib
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
from holdfast.backends.redis.entries import Keys
from holdfast.backends.redis.server import QUESTIONS, Script, Server, ServerURL, script, server_of
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
# What an error of Redis means to a caller. Nothing above this package sees one of redis-py's.
#
# Two questions decide: may the call be tried again, and is it known what became of it? A server
# that answered with an error has done nothing of the script: what a server refuses, it refuses at
# the script's first write. A connection that broke says nothing.


# The server is coming up, busy, was switched, or moves keys to another one.
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
_CODES = "|".join(("DAMAGED", "GONE", "HEADLESS", "WRONGTYPE", "NOSCRIPT", *_AGAIN, *_REMEDIES))
_CODE = re.compile(rf"(?:^|[\s:-])({_CODES})\b")


class CutError(Exception):
    """The connection went, so that nobody knows what the server did."""


class UnreachedError(Exception):
    """There is no connection: nothing was sent."""


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


def translate(exc: BaseException, place: ServerURL, *, outcome_known: bool) -> HoldfastError | None:
    """Returns the error to raise in place of one of this package's, None for any other."""
    if isinstance(exc, DeadlineError):
        said = f"did not answer within {place.timeout_s:g} s"
        return unavailable(place.shown, said, outcome_known=outcome_known)
    if isinstance(exc, UnicodeEncodeError):
        return UsageError(f"a name holds a lone surrogate: {exc.object[:40]!r}")
    if isinstance(exc, ReplyError):
        return _reply(exc, place, outcome_known=outcome_known)
    if isinstance(exc, CutError | UnreachedError | redis.RedisError):
        said = f"is unavailable: {place.hide(str(exc)) or type(exc).__name__}"
        return unavailable(place.shown, said, outcome_known=outcome_known)
    return None


def _reply(exc: ReplyError, place: ServerURL, *, outcome_known: bool) -> HoldfastError:
    where = place.shown
    said = place.hide(str(exc))
    if exc.code == "GONE":
        return NotFoundError(
            f'the store of application "{place.application}" is no longer in "{where}"',
            hint="restore it from a backup, or open it again to begin a new one",
        )
    if exc.code == "HEADLESS":
        return CorruptError(
            f'"{where}" has lost the key of application "{place.application}"', where=where
        )
    if exc.code == "WRONGTYPE":
        return FormatError(
            f'"{where}" has keys of another program: {said}',
            hint="choose another application or database",
        )
    if exc.code == "DAMAGED":
        return CorruptError(f'"{where}" is damaged: {said.partition("DAMAGED ")[2]}', where=where)
    return unavailable(
        where,
        f"is unavailable: {said}",
        outcome_known=outcome_known,
        remedy=_REMEDIES.get(exc.code),
        otherwise="check the server's log",
    )


_pack: Callable[[Any], bytes] = hiredis.pack_command  # pyright: ignore
_CHUNK = 1 << 17
Word = str | bytes | int
Address = tuple[str, int]


class RedisConnection:
    """A connection whose every wait ends at the deadline of the call that uses it."""

    def __init__(self, connection: Any, deadline: float) -> None:
        self._connection = connection
        self._socket: socket.socket = connection._sock
        self._reader = hiredis.Reader()
        self.deadline = deadline
        self.returned = 0.0
        self.process: str | None = None
        self.server: Server
        self.waits = False

    def ask(self, *commands: Sequence[Word]) -> list[Any]:
        """Returns the answers of some commands, sent at once; an error among them is raised."""
        answers = self.ask_each(*commands)
        for answer in answers:
            if isinstance(answer, hiredis.ReplyError):
                raise ReplyError(str(answer))
        return answers

    def ask_each(self, *commands: Sequence[Word]) -> list[Any]:
        """Returns the answers of some commands, errors as they are."""
        try:
            self._send(b"".join(map(_pack, commands)))
            return [self._receive() for _ in commands]
        except TimeoutError:
            raise DeadlineError from None
        except (OSError, hiredis.ProtocolError) as exc:
            raise CutError(str(exc)) from None

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        """Returns what a script answers; a server that does not know it is sent its text.

        Where each write is waited for, the wait is sent with it: still one round trip.
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
            self._connection.disconnect()

    def give_up(self) -> None:
        """Closes a forked child's copy of the socket, without a word to the server."""
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())


class RedisPool(ConnectionPool[RedisConnection]):
    """Lines to the server that has the store: in a cluster, wherever it is now."""

    def __init__(self, place: ServerURL, durability: Durability) -> None:
        super().__init__(place)
        self.place = place
        self.recheck: Callable[[RedisConnection], None] | None = None
        self._durability: Durability = durability
        self._root = Keys(place.application).root
        self._addresses: list[Address | None] = [None]  # None: as the URL says

    def is_lost(self, exc: BaseException) -> bool:
        return is_lost(exc)

    def may_retry(self, exc: BaseException) -> bool:
        return may_retry(exc)

    def is_answer(self, exc: BaseException) -> bool:
        return isinstance(exc, ReplyError)

    def is_unreached(self, exc: BaseException) -> bool:
        return isinstance(exc, UnreachedError)

    def translate(self, exc: Exception, *, outcome_known: bool) -> HoldfastError | None:
        return translate(exc, self.place, outcome_known=outcome_known)

    def moved(self, exc: BaseException) -> bool:
        if not isinstance(exc, ReplyError) or exc.code != "MOVED":
            return False
        host, _, port = str(exc).rpartition(" ")[2].rpartition(":")
        here = self._addresses[0]
        host = host or (here[0] if here else self.place.parameters.get("host", "localhost"))
        self._prefer((host, int(port)))
        self.drop_idle()
        return True

    def _prefer(self, address: Address | None) -> None:
        with self._free:
            others = [one for one in self._addresses if one != address]
            self._addresses = [address, *others]

    def connect(self, deadline: float) -> RedisConnection:
        """Returns a new line to a server that fits, which the caller closes."""
        address = self._addresses[0]
        connection = _connection(self.place, address, deadline, patient=len(self._addresses) == 1)
        try:
            connection.connect()
        except (redis.RedisError, OSError) as exc:
            connection.disconnect()
            self._pass_over(address)
            if isinstance(exc, redis.ResponseError | redis.AuthenticationError):
                raise ReplyError(str(exc)) from None
            raise UnreachedError(self.place.hide(str(exc))) from None
        line = RedisConnection(connection, deadline)
        try:
            self._examine(line)
        except (DeadlineError, CutError) as exc:
            line.close()
            self._pass_over(address)
            raise UnreachedError(str(exc) or "the server does not answer") from None
        except BaseException:
            line.close()
            raise
        return line

    def _pass_over(self, address: Address | None) -> None:
        with self._free:
            others = [one for one in self._addresses if one != address]
            self._addresses = [*others, address]

    def _examine(self, line: RedisConnection) -> None:
        info, append, rewrite, here = line.ask_each(*QUESTIONS, ("HGET", self._root, "store"))
        for answer in (info, here):
            if isinstance(answer, hiredis.ReplyError):
                raise ReplyError(str(answer))
        settings = [None if isinstance(a, hiredis.ReplyError) else a for a in (append, rewrite)]
        server = server_of(info, *settings)
        if server.role != "master":
            raise ReplyError(f"REPLICA this is a replica of {server.master}")
        server.check(self.place, self._durability)
        line.server, line.process = server, server.run_id
        line.waits = server.waits(self._durability)
        if server.is_cluster:
            self._learn_nodes(line)
        with self._free:
            same = self._process in (None, server.run_id)
        if not same and self.recheck is not None:
            # Another server process than before: a restart, or a failover. What this handle was
            # told must be there, else it goes no further.
            try:
                self.recheck(line)
            except LostCommitsError as exc:
                self.lose(exc)
                raise
        self.met(line)

    def doubt(self) -> None:
        """Has what this handle was told looked for by the next line, whatever it leads to."""
        with self._free:
            self._process = ""
        self.drop_idle()

    def is_newest(self, process: str | None) -> bool:
        """Returns whether this is the server process that was met last."""
        return process == self._process

    def _learn_nodes(self, line: RedisConnection) -> None:
        [rows] = line.ask(("CLUSTER", "SLOTS"))
        nodes = {(node[0].decode(), node[1]) for row in rows for node in row[2:] if node[0]}
        with self._free:
            self._addresses += sorted(nodes - set(self._addresses))

    def after_fork(self) -> None:
        for line in self._idle:
            line.give_up()


def _connection(
    place: ServerURL, address: Address | None, deadline: float, *, patient: bool
) -> Any:
    """Returns a connection of redis-py's that is not made yet."""
    parameters = dict(place.parameters)
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
        # Where there are other servers to try, one that is silent must not take all the time.
        socket_connect_timeout=left_s if patient else min(left_s, 2.0),
        socket_timeout=left_s if patient else min(left_s, 2.0),
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        decode_responses=False,
    )


# --- gate -----------------------------------------------------------------------------------------
#
# What the parts of an open store share: its lines, its keys, its id, and whether it may write.


class RedisCheckout(Checkout[RedisConnection]):
    """Everything that is asked of the server goes through here.

    Each question is asked together with the store's id. So a database that was emptied, or another
    store in this one's place, is never taken for a store without events.
    """

    def __init__(self, lines: RedisPool, store: str, *, read_only: bool) -> None:
        super().__init__(lines, read_only=read_only)
        self.place = lines.place
        self.lines = lines
        self.keys = Keys(lines.place.application)
        self.store = store
        self.clock: str | None = None  # a test's own, in place of the server's

    def ask(self, *commands: Sequence[Word]) -> list[Any]:
        """Returns the answers of commands that only read."""
        return self.lines.call(lambda line: self.ask_on(line, *commands))

    def ask_on(self, line: RedisConnection, *commands: Sequence[Word]) -> list[Any]:
        store, *answers = line.ask(("HGET", self.keys.root, "store"), *commands)
        if store != self.store.encode():
            raise ReplyError("GONE the store is not there")
        return answers

    def look(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Returns what a script answers that only reads."""
        return self.lines.call(lambda line: self.run_on(line, name, keys, arguments))

    def write(
        self,
        name: str,
        keys: Sequence[str],
        arguments: Sequence[Any],
        *data: bytes,
        repeatable: bool = True,
    ) -> Any:
        """Returns what a script answers that writes."""
        return self.call(
            lambda line: self.run_on(line, name, keys, arguments, *data), repeatable=repeatable
        )

    def run_on(
        self,
        line: RedisConnection,
        name: str,
        keys: Sequence[str],
        arguments: Sequence[Any],
        *data: bytes,
    ) -> Any:
        words = self.store, msgpack.encode(arguments), *data
        return line.run(script(name, self.clock), (self.keys.root, *keys), words)

"""Lines to a Redis server, or to the one of a cluster that has the store.

redis-py makes the connections: it knows URLs, passwords and TLS. What is asked on one goes past it,
straight to the socket and hiredis, because its own timeouts begin anew with every byte received.

In a cluster a store is in one slot, so there is one server to speak to. The answer MOVED says where
it is now; ASK is not followed, because a store that is half moved must look like none at all.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.retry import Retry

from holdfast.backends.lines import DeadlineError, Lines
from holdfast.backends.protocol import Durability
from holdfast.backends.redis.errors import (
    CutError,
    ReplyError,
    UnreachedError,
    is_lost,
    may_retry,
    translate,
)
from holdfast.backends.redis.keys import Keys
from holdfast.backends.redis.place import Place
from holdfast.backends.redis.scripts import Script
from holdfast.backends.redis.server import QUESTIONS, Server, server_of
from holdfast.errors import HoldfastError, LostCommitsError

_pack: Callable[[Any], bytes] = hiredis.pack_command  # pyright: ignore
_CHUNK = 1 << 17
Word = str | bytes | int
Address = tuple[str, int]


class Line:
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


class RedisLines(Lines[Line]):
    """Lines to the server that has the store: in a cluster, wherever it is now."""

    def __init__(self, place: Place, durability: Durability) -> None:
        super().__init__(place)
        self.place = place
        self.recheck: Callable[[Line], None] | None = None
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

    def connect(self, deadline: float) -> Line:
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
        line = Line(connection, deadline)
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

    def _examine(self, line: Line) -> None:
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

    def _learn_nodes(self, line: Line) -> None:
        [rows] = line.ask(("CLUSTER", "SLOTS"))
        nodes = {(node[0].decode(), node[1]) for row in rows for node in row[2:] if node[0]}
        with self._free:
            self._addresses += sorted(nodes - set(self._addresses))

    def after_fork(self) -> None:
        for line in self._idle:
            line.give_up()


def _connection(place: Place, address: Address | None, deadline: float, *, patient: bool) -> Any:
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

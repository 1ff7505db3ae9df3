"""Connections with a deadline, and the few that a store keeps open.

A call has one deadline. It covers waiting for a free connection, connecting, asking again after a
connection broke or a server went down, and the answer. While there is time a call that may be
repeated is repeated: at once on another connection, then every 50 ms.

redis-py makes the connections: it knows URLs, passwords and TLS. What is asked on one goes past it,
straight to the socket and hiredis, because its own timeouts begin anew with every byte received.

In a cluster a store is in one slot, so there is one server to speak to. The answer MOVED says where
it is now; ASK is not followed, because a store that is half moved must look like none at all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from time import monotonic
from typing import Any, TypeVar

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.retry import Retry

from holdfast.backends.handle import Handle
from holdfast.backends.protocol import Durability
from holdfast.backends.redis.errors import (
    CutError,
    DeadlineError,
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
from holdfast.errors import LostCommitsError, UnavailableError, UsageError

_pack: Callable[[Any], bytes] = hiredis.pack_command  # pyright: ignore
_AGAIN_AFTER_S = 0.05
_CHUNK = 1 << 17
T = TypeVar("T")
Word = str | bytes | int
Address = tuple[str, int]


class Line:
    """A connection whose every wait ends at the deadline of the call that uses it."""

    def __init__(self, connection: Any, deadline: float) -> None:
        self._connection = connection
        self._socket: socket.socket = connection._sock
        self._reader = hiredis.Reader()
        self.deadline = deadline
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


class Lines(Handle):
    """The lines of one open store: made when needed, kept, and thrown away when one has failed."""

    def __init__(self, place: Place, durability: Durability) -> None:
        super().__init__()
        self.place = place
        self.recheck: Callable[[Line], None] | None = None
        self._durability: Durability = durability
        self._root = Keys(place.application).root
        self._addresses: list[Address | None] = [None]  # None: as the URL says
        self._run_id: str | None = None
        self._lost: LostCommitsError | None = None
        self._idle: list[Line] = []
        self._count = 0
        self._free = threading.Condition()

    def call(
        self, work: Callable[[Line], T], *, repeatable: bool = True, writes: bool = False
    ) -> T:
        """Returns what `work` returns, given a line; repeats it as long as that may help.

        With `writes`, an error says that the outcome is unknown if any attempt was lost.
        """
        self.check_open()
        deadline = monotonic() + self.place.timeout_s
        unknown = False
        answer: ReplyError | None = None  # the server's last word
        while True:
            if self._lost is not None:
                raise self._lost
            try:
                with self._line(deadline) as line:
                    return work(line)
            except Exception as exc:
                unknown = unknown or (writes and is_lost(exc))
                again = may_retry(exc) and (repeatable or not is_lost(exc))
                if not again or monotonic() + _AGAIN_AFTER_S >= deadline:
                    if isinstance(exc, UnavailableError | UsageError) and unknown:
                        # Also of a server that came back unfit: the commit may have been its last.
                        raise UnavailableError(
                            exc.message, outcome_known=False, hint=exc.hint
                        ) from None
                    # That a server said no tells more than that time ran out while asking again.
                    told = answer if isinstance(exc, UnreachedError) and answer else exc
                    ours = translate(told, self.place, outcome_known=not unknown)
                    if ours is None:
                        raise
                    raise ours from None
                answer = exc if isinstance(exc, ReplyError) else answer
                moved = isinstance(exc, ReplyError) and self._moved(exc)
            if not moved:
                with self._free:
                    self._free.wait(_AGAIN_AFTER_S)
            self.check_open()

    def _moved(self, exc: ReplyError) -> bool:
        """Takes note of where the store is now, if that is what the server said."""
        if exc.code != "MOVED":
            return False
        host, _, port = str(exc).rpartition(" ")[2].rpartition(":")
        here = self._addresses[0]
        host = host or (here[0] if here else self.place.parameters.get("host", "localhost"))
        self._prefer((host, int(port)))
        self._drop_idle()
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
        line.server = server
        line.waits = server.waits(self._durability)
        if server.is_cluster:
            self._learn_nodes(line)
        with self._free:
            same = self._run_id in (None, server.run_id)
        if not same and self.recheck is not None:
            # Another server process than before: a restart, or a failover. What this handle was
            # told must be there, else it goes no further.
            try:
                self.recheck(line)
            except LostCommitsError as exc:
                self._lost = exc
                raise
        self._run_id = server.run_id

    def _learn_nodes(self, line: Line) -> None:
        [rows] = line.ask(("CLUSTER", "SLOTS"))
        nodes = {(node[0].decode(), node[1]) for row in rows for node in row[2:] if node[0]}
        with self._free:
            self._addresses += sorted(nodes - set(self._addresses))

    @contextlib.contextmanager
    def _line(self, deadline: float) -> Generator[Line]:
        line = self._take(deadline)
        healthy = False
        try:
            yield line
            healthy = True
        except ReplyError as exc:
            healthy = not may_retry(exc)
            raise
        finally:
            self._give_back(line, healthy)

    def _take(self, deadline: float) -> Line:
        with self._free:
            while True:
                self.check_open()
                if self._idle:
                    line = self._idle.pop()
                    line.deadline = deadline
                    return line
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
        if healthy and self.is_open:
            with self._free:
                self._idle.append(line)
                self._free.notify()
            if not self.is_open:
                self._drop_idle()  # closed by another thread at this very moment
            return
        line.close()
        self._forget_one()
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

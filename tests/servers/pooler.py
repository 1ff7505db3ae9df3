"""A pooler in transaction mode, as pgbouncer is one, that makes the worst of its right to be so.

A client's session is no session of the server: each transaction runs on another one of a few server
connections, the one that was used longest ago. Whatever a client leaves behind in a session (a
setting, a prepared statement, a session's lock) is found by others, and missed by itself.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque

from tests.servers.sockets import hang_up

_READY = ord("Z")
_IDLE = ord("I")


class Pooler:
    """Listens on a port of its own, for a server that trusts it on a Unix socket."""

    def __init__(self, server_socket: str, *, size: int = 3) -> None:
        self._target = server_socket
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._size = size
        self._lines: deque[socket.socket] = deque()
        self._greeting = b""
        self._startup = b""
        self._free = threading.Condition()
        self._clients: list[socket.socket] = []
        self.transactions = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Pooler:
        return self

    def __exit__(self, *_: object) -> None:
        hang_up(self._listener, *self._clients, *self._lines)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            startup = _startup(client)
            with self._free:
                while len(self._lines) < self._size and not self._greeting:
                    self._connect(startup)
            client.sendall(self._greeting)
            while True:
                messages = _until_sync(client)
                if messages is None:
                    return
                self._transact(client, messages)

    def _transact(self, client: socket.socket, messages: bytes) -> None:
        """Runs one transaction on the server connection that was used longest ago."""
        with self._free:
            self._free.wait_for(lambda: bool(self._lines))
            line = self._lines.popleft()
            self.transactions += 1
        try:
            while True:
                line.sendall(messages)
                if _relay(line, client) == _IDLE:
                    return
                more = _until_sync(client)
                if more is None:
                    return
                messages = more
        finally:
            with self._free:
                self._lines.append(line)
                self._free.notify()

    def switch(self, server_socket: str) -> None:
        """Goes over to another server, as a pooler does after a failover; clients stay."""
        with self._free:
            for line in self._lines:
                line.close()
            self._lines.clear()
            self._target = server_socket
            self._connect(self._startup)

    def _connect(self, startup: bytes) -> None:
        self._startup = startup
        greeting = b""
        for _ in range(self._size):
            line = socket.socket(socket.AF_UNIX)
            line.connect(self._target)
            line.sendall(startup)
            greeting = b""
            while True:
                kind, message = _message(line)
                greeting += message
                if kind == _READY:
                    break
            self._lines.append(line)
        self._greeting = greeting


def _startup(client: socket.socket) -> bytes:
    while True:
        size = _exactly(client, 4)
        body = _exactly(client, struct.unpack("!I", size)[0] - 4)
        code = struct.unpack("!I", body[:4])[0]
        if code in (80877103, 80877104):  # asks for TLS or GSS
            client.sendall(b"N")
            continue
        return size + body


def _until_sync(client: socket.socket) -> bytes | None:
    """Returns what a client sends up to where it waits for an answer; None when it goes."""
    messages = b""
    while True:
        kind, message = _message(client)
        if kind == ord("X"):
            return None
        messages += message
        if kind in (ord("S"), ord("Q")):
            return messages


def _relay(line: socket.socket, client: socket.socket) -> int:
    """Passes an answer on; returns the state of the transaction after it."""
    while True:
        kind, message = _message(line)
        client.sendall(message)
        if kind == _READY:
            return message[5]


def _message(one: socket.socket) -> tuple[int, bytes]:
    head = _exactly(one, 5)
    return head[0], head + _exactly(one, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(one: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = one.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data

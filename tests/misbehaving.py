"""A server over TCP that answers each request as a test says, byte for byte."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

Behaviour = Callable[[socket.socket, bytes], None]
"""Answers one request: the connection, and the bytes that came."""


class Misbehaving:
    """A server of 127.0.0.1; `behaviour` is what it does with each request."""

    def __init__(self) -> None:
        self.behaviour: Behaviour = lambda connection, request: None
        self.wrap: Callable[[socket.socket], socket.socket] = lambda connection: connection
        """What is done to a connection before it is spoken over, such as TLS."""
        self.asked: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def close(self) -> None:
        """Ends it and every answer that is still being given."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._socket.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._answer, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), self.wrap(connection) as spoken:
            request = _read(spoken)
            self.asked.append(request)
            self.behaviour(spoken, request)


def _read(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    size = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            size = int(line.partition(b":")[2])
    while len(body) < size:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextlib.contextmanager
def misbehaving() -> Iterator[Misbehaving]:
    """A server that is ended with the block."""
    server = Misbehaving()
    try:
        yield server
    finally:
        server.close()


def for_ever(before: bytes, again: bytes) -> Behaviour:
    """Sends some bytes, and then others again and again, until nobody reads them any more."""

    def behave(connection: socket.socket, request: bytes) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(before)
        while True:
            connection.sendall(again)

    return behave


def answering(status: str, body: bytes, *headers: str) -> bytes:
    """Returns an answer that is whole."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body

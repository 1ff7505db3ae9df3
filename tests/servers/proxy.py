"""A network between a client and a server on loopback that fails on command.

It forwards bytes until it is told otherwise. A fault is armed with `arm`; it strikes the next
connection that sends or gets something, once:

    drop    the next request never arrives, and the connection is gone
    mute    the next request arrives and is answered, but the answer is lost with the connection
    hold    the next request is kept back, and the connection is gone; `release` delivers it late
    black   nothing passes any more in either direction, and nothing is closed (until `heal`)
    half    the first half of the next answer arrives, then the connection is gone

`delay_s` keeps every request back for a while, as a long way does; `requests` counts them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from tests.servers.sockets import hang_up


class Proxy:
    """Listens on a port of its own; `port` is what clients are to use."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._fault: str | None = None
        self._healed = threading.Event()
        self._held: list[tuple[socket.socket, bytes]] = []
        self._sockets: list[socket.socket] = []
        self._late = threading.Event()
        self.struck = threading.Event()
        self.requests = 0
        self.delay_s = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        hang_up(self._listener, *self._sockets)

    def arm(self, fault: str) -> None:
        """Lets the fault strike once."""
        self.struck.clear()
        self._healed.clear()
        with self._lock:
            self._fault = fault

    def heal(self) -> None:
        """Ends "black": what was under way is gone, new connections pass."""
        with self._lock:
            self._fault = None
        self._healed.set()

    def release(self) -> None:
        """Delivers what was held back, and waits until the server has answered it."""
        for upstream, data in self._held:
            upstream.sendall(data)
        assert self._late.wait(60), "the server did not answer what came late"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    hang_up(client)
                    continue
                self._sockets += [client, server]
                for pump in (self._requests, self._answers):
                    threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                self.requests += 1
                if self._strikes("drop"):
                    break
                if self._strikes("hold"):
                    self._held.append((server, data))
                    hang_up(client)
                    return  # the server's side stays open for the late delivery
                if self._is_black():
                    break
                if self.delay_s:
                    time.sleep(self.delay_s)
                server.sendall(data)
        hang_up(client, server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if any(server is held for held, _ in self._held):
                    self._late.set()
                if self._strikes("mute"):
                    break
                if self._strikes("half"):
                    client.sendall(data[: len(data) // 2])
                    break
                if self._is_black():
                    break
                client.sendall(data)
        hang_up(client, server)

    def _strikes(self, fault: str) -> bool:
        with self._lock:
            if self._fault != fault:
                return False
            self._fault = None
        self.struck.set()
        return True

    def _is_black(self) -> bool:
        if self._fault != "black":
            return False
        self.struck.set()
        self._healed.wait(60)
        return True

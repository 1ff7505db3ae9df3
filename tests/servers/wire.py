"""A network between a client and a server on loopback that fails at a byte that was chosen.

It forwards bytes until so many have passed one way since a fault was armed, then it strikes once:

    cut      the connection ends on both sides
    reset    the same with a reset: what was under way is thrown away by the kernel
    hole     nothing passes any more, either way, and nobody is told; it is lost for good
    late     the same, but `heal` delivers to the server what was swallowed
    delay    nothing passes for a moment, then everything
    trickle  one byte passes at a time, with pauses, until `heal`

`hole` and `late` hold for every connection, new ones too, which are accepted and get no answer.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from dataclasses import dataclass

from tests.servers.sockets import hang_up

KINDS = ("cut", "reset", "hole", "late", "delay", "trickle")
DARK = ("hole", "late")
_TRICKLE_S = 0.4
_GLANCE_S = 0.02
_PATIENCE_S = 60.0
_ABORT = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Fault:
    """What happens, on which way ("request", "reply"), after how many bytes."""

    kind: str
    way: str
    after: int
    seconds: float = 0.0


class Wire:
    """Listens on a port of its own; `port` is what clients are to use."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self.dark: Fault | None = None
        self._pairs: list[_Pair] = []
        self.healed = threading.Event()
        self.healed.set()
        self.passed = {"request": 0, "reply": 0}
        self.struck = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        hang_up(self._listener)
        self.heal()
        for pair in self._pairs:
            pair.is_over = True

    def arm(self, fault: Fault | None) -> None:
        """Counts bytes from now on, and lets the fault strike once."""
        with self._lock:
            self.passed = {"request": 0, "reply": 0}
            self._fault = fault
            self.struck = False
            self.healed.clear()

    def heal(self) -> None:
        """Ends every fault: new connections pass, those in the dark end.

        What is delivered late has been answered when this returns.
        """
        with self._lock:
            self._fault = None
            waiting = [pair for pair in self._pairs if pair.is_dark]
            for pair in waiting:
                pair.is_late = self.dark is not None and self.dark.kind == "late"
                pair.is_over = True
            self.dark = None
            self.healed.set()
        for pair in waiting:
            assert pair.ended.wait(_PATIENCE_S), "the server did not answer what came late"

    def meter(self, way: str, data: bytes) -> tuple[bytes, Fault | None]:
        """Returns what may pass of the bytes, and the fault that strikes after it."""
        with self._lock:
            fault = self._fault
            if fault is None or fault.way != way:
                self.passed[way] += len(data)
                return data, None
            room = fault.after - self.passed[way]
            self.passed[way] += min(room, len(data))
            if room > len(data):
                return data, None
            self._fault = None
            self.struck = True
            if fault.kind in DARK:
                self.dark = fault
                for pair in self._pairs:
                    pair.is_dark = True
            return data[:room], fault

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                pair = _Pair(self, client, server)
                with self._lock:
                    pair.is_dark = self.dark is not None
                    self._pairs = [one for one in self._pairs if not one.ended.is_set()]
                    self._pairs.append(pair)
                threading.Thread(target=pair.pump, daemon=True).start()


class _Pair:
    """A client's connection and the server's that belongs to it, both read by one thread."""

    def __init__(self, wire: Wire, client: socket.socket, server: socket.socket) -> None:
        self._wire = wire
        self._client = client
        self._server = server
        self._swallowed = b""
        self.is_dark = False
        self.is_late = False
        self.is_over = False
        self.ended = threading.Event()

    def pump(self) -> None:
        try:
            with contextlib.suppress(OSError):
                self._pump()
                if self.is_late and self._swallowed:
                    self._deliver()
        finally:
            self._client.close()
            self._server.close()
            self.ended.set()

    def _pump(self) -> None:
        open_ = {self._client: self._server, self._server: self._client}
        while open_ and not self.is_over:
            ready, _, _ = select.select(list(open_), [], [], _GLANCE_S)
            for source in ready:
                data = source.recv(1 << 16)
                if self.is_dark:
                    # Of an end, too, nobody on the other side is told.
                    if source is self._client:
                        self._swallowed += data
                    if not data:
                        del open_[source]
                elif not data or not self._pass(source, open_[source], data):
                    return
        while self.is_dark and not self.is_over:
            self._wire.healed.wait(_GLANCE_S)

    def _pass(self, source: socket.socket, sink: socket.socket, data: bytes) -> bool:
        """Forwards what may pass, and does what the fault is; False: the connection ends."""
        way = "request" if source is self._client else "reply"
        passing, fault = self._wire.meter(way, data)
        sink.sendall(passing)
        rest = data[len(passing) :]
        if fault is None:
            return True
        if fault.kind in DARK:
            self._swallowed += rest if source is self._client else b""
        elif fault.kind == "delay":
            self._wire.healed.wait(fault.seconds)
            sink.sendall(rest)
        elif fault.kind == "trickle":
            for at in range(len(rest)):
                sink.sendall(rest[at : at + 1])
                self._wire.healed.wait(_TRICKLE_S)
        elif fault.kind == "reset":
            for one in (self._client, self._server):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        return fault.kind not in ("cut", "reset")

    def _deliver(self) -> None:
        """Gives the server what was swallowed, then the end, and reads until it has ended too."""
        self._server.sendall(self._swallowed)
        self._server.shutdown(socket.SHUT_WR)
        self._server.settimeout(_PATIENCE_S)
        while self._server.recv(1 << 16):
            continue

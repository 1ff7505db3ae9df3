"""The end of a connection, for what stands between a client and a server."""

from __future__ import annotations

import contextlib
import socket


def hang_up(*sockets: socket.socket) -> None:
    """Closes sockets at once, also those that another thread waits at."""
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

"""The deadline of a call to a store on a server.

A call has one deadline for all that it waits for: commits before it in the queue, a free
connection, connecting, repeated attempts, the answer. The deadline of a commit begins when it is
put into the commit queue. The thread that leads a batch sets here until when the backend may try,
because time may have passed since: it may have waited itself, or written for others.
"""

from __future__ import annotations

from threading import local
from time import monotonic

__all__ = ["CALL", "NEVER", "monotonic"]

NEVER = float("inf")


class _Call(local):
    """The deadline of the call that this thread is making."""

    deadline = NEVER


CALL = _Call()

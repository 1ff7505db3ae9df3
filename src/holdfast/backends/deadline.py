"""The deadline of a call to a store on a server.

A call has one, and all that it waits for counts: whoever commits before it, a free connection,
connecting, repeated attempts, the answer. The commit queue knows when a commit was asked for, and
whoever leads a batch says here until when the backend may try: the leader may have been at work
for others, or have waited itself, since.
"""

from __future__ import annotations

from threading import local
from time import monotonic

__all__ = ["CALL", "NEVER", "monotonic"]

NEVER = float("inf")


class _Call(local):
    """What this thread is doing for a caller."""

    deadline = NEVER


CALL = _Call()

"""Who is writing: what a layer above puts around every commit that is made in its context.

A run's body, and each of its steps, set a writer in a context variable. The log hands it every
commit made there, so that a write of a run takes its idempotency key and its fence from the run
without the caller's doing anything. Elsewhere there is no writer, and that costs one look.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from holdfast.wanted import Wanted


class Writer(Protocol):
    """Something that commits are made within."""

    @property
    def path(self) -> str:
        """What names this place for ever: ids made from it are the same when it is replayed."""
        ...

    @property
    def is_replayed(self) -> bool:
        """Whether the code that writes here is run again, and must then write the same."""
        ...

    def fencing(self) -> Writer:
        """Returns a writer of the same place that fences commits and leaves them as they are."""
        ...

    def prepare(self, wanted: Wanted) -> Wanted:
        """Returns the commit as it is to be made here, or raises why it must not be."""
        ...


WRITER: ContextVar[Writer | None] = ContextVar("holdfast_writer", default=None)
"""The innermost writer of this context."""


def prepared(wanted: Wanted) -> Wanted:
    """Returns the commit as this context's writer wants it; as it stands if there is none."""
    writer = WRITER.get()
    return wanted if writer is None else writer.prepare(wanted)

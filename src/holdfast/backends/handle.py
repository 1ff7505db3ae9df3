"""The life of an open backend: open, then closed, or inherited by a forked child.

A forked child inherits descriptors, and with them its parent's file locks and database connections:
what it did through them would be done in its parent's name. So a handle cannot be used in the
child. A hook marks it there before any other code of the child runs, so checking costs only one
test of an attribute.
"""

from __future__ import annotations

import os
from weakref import WeakSet

from holdfast.errors import UsageError

_CLOSED = "store is closed"
_INHERITED = "store handle was inherited by a forked child; open the store again in the child"


class Handle:
    """The base class of backends, so that every call can begin with `check_open()`."""

    def __init__(self) -> None:
        self._dead: str | None = None
        _handles.add(self)

    def check_open(self) -> None:
        """Raises UsageError if this handle was closed, or was opened before this process forked."""
        if self._dead is not None:
            raise UsageError(self._dead)

    @property
    def is_open(self) -> bool:
        return self._dead is None

    def mark_closed(self) -> bool:
        """Marks the handle closed; returns whether it was open, so there is something to close.

        Returns False the second time, and in a forked child: what is open there is the parent's.
        """
        was_open = self._dead is None
        if was_open:
            self._dead = _CLOSED
        return was_open

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy, whose resources belong to its parent."""
        return self._dead == _INHERITED

    def mark_inherited(self) -> bool:
        """Ends the use of the handle in a forked child, before other code of the child runs.

        Returns whether it was open until then, so that there is something to give up.
        """
        was_open = self._dead is None
        if was_open:
            self._dead = _INHERITED
        return was_open

    def after_fork(self) -> None:
        """Runs once in a forked child, after the handle was marked; a backend may override it.

        Inherited descriptors can be closed here by number, which gives up the child's share of a
        lock without releasing the parent's. No lock of `threading` may be taken: it may be held by
        a thread that the child does not have.
        """


_handles: WeakSet[Handle] = WeakSet()


def _mark_inherited() -> None:
    # All handles are marked before any of them gives something up: that may raise, which would end
    # this function.
    for handle in [handle for handle in list(_handles) if handle.mark_inherited()]:
        handle.after_fork()


os.register_at_fork(after_in_child=_mark_inherited)

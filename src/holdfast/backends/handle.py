"""The life of an open backend: open, then closed, or inherited by a forked child.

A forked child inherits descriptors, and with them its parent's file locks and database connections:
whatever it did through them would be done in its parent's name. So a handle dies in the child. It
is marked by a hook that runs in the child before any other code there, which leaves one attribute
test as the whole cost of asking.
"""

from __future__ import annotations

import os
from weakref import WeakSet

from holdfast.errors import UsageError

_CLOSED = "store is closed"
_INHERITED = "store handle was inherited by a forked child; open the store again in the child"


class Handle:
    """What a backend derives from, so that every call can begin with `check_open()`."""

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
        """Returns True if the handle was open until now, so that `close` knows if there is work.

        False the second time, and in a forked child: what is open there belongs to the parent.
        """
        was_open = self._dead is None
        if was_open:
            self._dead = _CLOSED
        return was_open

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy, whose insides are its parent's."""
        return self._dead == _INHERITED

    def mark_inherited(self) -> bool:
        """Ends this process's use of the handle; called in a forked child, before its code runs.

        Returns True if it was open until then, so that there is something to give up.
        """
        was_open = self._dead is None
        if was_open:
            self._dead = _INHERITED
        return was_open

    def after_fork(self) -> None:
        """Runs in a forked child, once, after the handle was marked; a backend may override it.

        The place to close inherited descriptors by number, which frees the child's share of a lock
        without releasing the parent's. Locks of `threading` may be held by threads that the child
        does not have: it must take none.
        """


_handles: WeakSet[Handle] = WeakSet()


def _mark_inherited() -> None:
    # All are marked before any gives something up: that can fail, and then this function ends.
    for handle in [handle for handle in list(_handles) if handle.mark_inherited()]:
        handle.after_fork()


os.register_at_fork(after_in_child=_mark_inherited)

"""Makes a forked child able to open SQLite databases that its parent has open.

SQLite knows in memory which locks this process has on a file, and a forked child inherits that
memory, but not the locks. What a thread of the parent had locked at that moment stays locked in the
child for ever, and what the child takes for locked already, it does not lock: others would then
take it for dead. So a fork waits until nobody is inside SQLite, for a few seconds at most, and the
child closes what it inherited before any other code of it runs. That leaves the parent's locks
alone, because POSIX locks belong to a process, and makes no checkpoint.

A connection that was in the middle of a transaction is not closed, because a rollback would write
to files that are the parent's. Its database is refused in the child, by name.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from threading import RLock, local
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import apsw

from holdfast.errors import UsageError

WAIT_S = 5.0


class Forking:
    """The connections of this process, and the locks under which they are used."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self.wait_s = wait_s
        self._refused: set[tuple[int, int]] = set()
        self._held = local()  # two threads may fork at once; only one of them has the mutex
        self._begin()

    def _begin(self) -> None:
        self._mutex = RLock()
        self._locks: WeakKeyDictionary[Any, None] = WeakKeyDictionary()  # in the order of making
        self._connections: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def wait_for(self, *locks: Any) -> None:
        """Has every fork wait for these locks, in this order."""
        with self._mutex:
            for lock in locks:
                self._locks[lock] = None

    @contextmanager
    def opening(self) -> Generator[None]:
        """Has every fork wait for the end of a block that opens connections."""
        lock = RLock()
        with lock:
            self.wait_for(lock)
            yield

    def connect(self, path: str, **options: Any) -> Any:
        """Opens a connection that a forked child closes; raises UsageError where it could not."""
        if self._refused and _identity(path) in self._refused:
            raise UsageError(
                f'"{path}" cannot be opened in this process: the process that it was forked from '
                "was in the middle of a transaction on it",
                hint='start processes with "spawn" or "forkserver", or fork between transactions',
            )
        with self.opening():
            connection = apsw.Connection(path, **options)
            self._connections[connection] = path
        return connection

    # --- the hooks of a fork ----------------------------------------------------------------------

    def before(self) -> None:
        """Takes every lock, in their order; gives up on those that take too long."""
        until = monotonic() + self.wait_s
        held = self._held.locks = []
        if not self._mutex.acquire(timeout=self.wait_s):
            return  # another thread forks, and waits for locks
        held.append(self._mutex)
        for lock in list(self._locks):
            if lock.acquire(timeout=max(0.0, until - monotonic())):
                held.append(lock)

    def after_in_parent(self) -> None:
        held = self._held.locks
        while held:
            held.pop().release()

    def after_in_child(self) -> None:
        """Closes what can be closed, and notes the databases of what cannot.

        Locks that other threads had are never released here, so they are forgotten: what they
        guarded belongs to handles that cannot be used in a child.
        """
        inherited = list(self._connections.items())
        self.after_in_parent()
        self._begin()
        for connection, path in inherited:
            if not _close(connection) and (found := _identity(path)) is not None:
                self._refused.add(found)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None  # in memory, or a file that is gone
    return found.st_dev, found.st_ino


def _close(connection: Any) -> bool:
    """Closes an inherited connection; returns False if it was in the middle of a transaction.

    Then nothing may close it, not even the garbage collector when the interpreter ends.
    """
    try:
        if not connection.in_transaction:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close(True)
            return True
    except apsw.ConnectionClosedError:
        return True
    except apsw.ThreadingViolationError:
        pass  # a thread of the parent was inside SQLite
    from ctypes import py_object, pythonapi

    pythonapi.Py_IncRef(py_object(connection))
    return False


forking = Forking()
os.register_at_fork(
    before=forking.before,
    after_in_parent=forking.after_in_parent,
    after_in_child=forking.after_in_child,
)

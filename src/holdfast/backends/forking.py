"""Makes a forked child able to open SQLite databases that its parent has open.

SQLite knows in memory which locks this process has on a file, and a forked child inherits that
memory, but not the locks. What a thread of the parent had locked at that moment stays locked in the
child for ever, and what the child takes for locked already, it does not lock: others would then
take it for dead. So a fork waits until nobody is inside SQLite, for a few seconds at most, and the
child closes what it inherited before it opens a database of its own. That leaves the parent's locks
alone, because POSIX locks belong to a process, and makes no checkpoint.

The hooks of a fork never call SQLite: a thread that the child lacks may have one of its global
mutexes, for a connection that is not ours, and then any call would wait for ever. Most children
never use SQLite; one that does needs those mutexes anyway.

A connection that was in the middle of a transaction is not closed, because a rollback would write
to files that are the parent's. Nor is one whose descriptors the child has closed by number: they
may be other files by now. Its database is refused in the child, by name.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Generator
from operator import methodcaller
from threading import RLock, local
from time import monotonic, sleep
from typing import Any
from weakref import WeakKeyDictionary

import apsw

from holdfast.errors import UsageError

WAIT_S = 5.0
_LEAST_S = 0.05
"""How long a fork waits for each lock at least, also if it has waited for another in vain."""
_GIVE_WAY_S = 0.1
"""How long a new connection gives way to a fork. Not for ever: its thread may have a lock."""
_Place = tuple[str, int, int]
"""A file: its path without links, its device and its inode."""


class Forking:
    """The connections of this process, and the locks under which they are used."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self.wait_s = wait_s
        self._inherited: list[tuple[Any, _Place | None]] = []
        self._refused: set[_Place] = set()
        self._witness: _Witness | None = None
        self._mine = local()
        self._begin()

    def _begin(self) -> None:
        self._forks = RLock()  # one fork at a time
        self._adding = RLock()  # only for as long as something is added, or while a process forks
        self._ending = RLock()
        self._is_forking = False
        self._locks: WeakKeyDictionary[Any, None] = WeakKeyDictionary()  # in the order of making
        self._connections: WeakKeyDictionary[Any, _Place | None] = WeakKeyDictionary()

    def wait_for(self, *locks: Any) -> None:
        """Has every fork wait for these locks, in this order."""
        with self._adding:
            for lock in locks:
                self._locks[lock] = None

    @contextlib.contextmanager
    def opening(self) -> Generator[None]:
        """Has every fork wait for the end of a block that opens connections.

        It gives way to a fork that waits already. A loop of such blocks would keep it waiting.
        """
        if getattr(self._mine, "is_opening", False):
            yield
            return
        until = monotonic() + _GIVE_WAY_S
        while self._is_forking and monotonic() < until:
            sleep(0.001)
        lock = RLock()
        with lock:
            self.wait_for(lock)
            try:
                self._mine.is_opening = True
                yield
            finally:
                self._mine.is_opening = False

    def connect(self, path: str, **options: Any) -> Any:
        """Opens a connection after closing inherited ones; raises UsageError if one has to stay."""
        with self.opening():
            self._end_inherited()
            if self._refused and _place(path) in self._refused:
                raise UsageError(
                    f'"{path}" cannot be opened in this process: the process that it was forked '
                    "from was in the middle of a transaction on it, or its descriptors were "
                    "closed after the fork",
                    hint='start processes with "spawn" or "forkserver", or fork between '
                    "transactions, or before the store is opened",
                )
            connection = apsw.Connection(path, **options)
            self._connections[connection] = _place(path)
        return connection

    def _end_inherited(self) -> None:
        """Closes what can be closed, and notes the files of what cannot."""
        if not self._inherited:
            return
        with self._ending:
            inherited = list(self._inherited)
            is_there = self._witness is not None and self._witness.is_there()
            for connection, place in inherited:
                if place is not None and not (is_there and _close(connection)):
                    self._refused.add(place)
            del self._inherited[: len(inherited)]
            witness, self._witness = self._witness, None
            if witness is not None:
                witness.close()

    # --- the hooks of a fork ----------------------------------------------------------------------
    #
    # A signal may interrupt them anywhere: its handler may fork as well, which is why the locks of
    # each fork are an item of a stack, or raise, which ends the hook; Python reports that and goes
    # on. So a lock and the list that it is noted in change within one call of C code, where no
    # handler runs, and what must be done after a fork is done by two hooks: the second has
    # nothing left to do, unless the first one was ended.

    def before(self) -> None:
        """Takes every lock, in their order; gives up on those that take too long.

        A thread that has one of them may need to add another, so nothing may be kept from adding
        until all are taken. Then it is looked again whether some were added.
        """
        held: list[Any] = []
        self._stack().append(held)
        until = monotonic() + self.wait_s
        if not _take(held, self._forks, self.wait_s):
            return  # another thread forks, and waits for locks
        self._is_forking = True
        if self._connections:
            import ctypes  # for the child, in which another thread's import would never end

            del ctypes
        tried: set[Any] = set()
        while True:
            with self._adding:
                known = [lock() for lock in self._locks.keyrefs()]
                new = [lock for lock in known if lock is not None and lock not in tried]
                if not new or (tried and monotonic() > until):
                    _take(held, self._adding, 0)
                    return
            tried.update(new)
            for lock in new:
                _take(held, lock, max(_LEAST_S, until - monotonic()))

    def release(self) -> None:
        """Releases the locks of the newest fork; a second call does nothing."""
        self._is_forking = False
        stack = self._stack()
        if stack and stack[-1]:
            _release(stack[-1])

    def after_in_parent(self) -> None:
        self.release()
        del self._stack()[-1:]

    def keep(self) -> None:
        """Keeps inherited connections alive; a second call does nothing.

        Not even the garbage collector may close them, nor the end of the interpreter. Locks that
        other threads had are never released here, so they are forgotten: what they guarded belongs
        to handles that cannot be used in a child.
        """
        inherited = list(self._connections.items())
        if inherited:
            from ctypes import py_object, pythonapi

            for connection, _ in inherited:
                pythonapi.Py_IncRef(py_object(connection))
            if self._witness is None:
                with contextlib.suppress(OSError):  # too many files: nothing inherited is closed
                    self._witness = _Witness()
        self._inherited += inherited
        self.release()
        self._begin()

    def after_in_child(self) -> None:
        self.keep()
        del self._stack()[-1:]

    def _stack(self) -> list[list[Any]]:
        """Returns the locks that each fork of this thread has; more than one if they are nested."""
        stack: list[list[Any]] | None = getattr(self._mine, "stack", None)
        if stack is None:
            stack = self._mine.stack = []
        return stack


def _take(held: list[Any], lock: Any, timeout_s: float) -> bool:
    count = len(held)
    held.extend(filter(methodcaller("acquire", timeout=timeout_s), (lock,)))
    return len(held) > count


def _release(held: list[Any]) -> None:
    held.insert(0, None)
    deque(map(methodcaller("release"), iter(held.pop, None)), maxlen=0)


def _place(path: str) -> _Place | None:
    try:
        found = os.stat(path)
    except OSError:
        return None  # in memory, or a file that is not there
    return os.path.realpath(path), found.st_dev, found.st_ino


class _Witness:
    """A descriptor of its own, which tells later whether a program closed all its descriptors."""

    def __init__(self) -> None:
        self._fd, other = os.pipe()  # no other file has the inode of a pipe
        os.close(other)
        self._was = os.fstat(self._fd)

    def is_there(self) -> bool:
        try:
            return os.path.samestat(self._was, os.fstat(self._fd))
        except OSError:
            return False

    def close(self) -> None:
        if self.is_there():
            os.close(self._fd)


def _close(connection: Any) -> bool:
    """Closes an inherited connection; returns False if it was in the middle of a transaction."""
    try:
        if connection.in_transaction:
            return False
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close(True)
    except apsw.ConnectionClosedError:
        pass
    except apsw.ThreadingViolationError:
        return False  # a thread of the parent was inside SQLite
    return True


forking = Forking()
os.register_at_fork(
    before=forking.before,
    after_in_parent=forking.release,
    after_in_child=forking.keep,
)
os.register_at_fork(
    after_in_parent=forking.after_in_parent,
    after_in_child=forking.after_in_child,
)

"""One connection that writes, one that reads, and what they share.

A commit holds the writing connection through its sync. Readers have a connection of their own, so
they never wait for that; each connection is used by one thread at a time, behind its lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Any, TypeVar

import apsw

from holdfast.backends.handle import Handle
from holdfast.backends.sqlite.driver import Connection, Execute, Row, execute_of
from holdfast.backends.sqlite.errors import Translated
from holdfast.backends.sqlite.schema import Tables
from holdfast.backends.sqlite.wal import Wal
from holdfast.clock import Clock
from holdfast.errors import UnavailableError, UsageError

T = TypeVar("T")

NEWEST = "SELECT max(ordinal) FROM events"


class Reader:
    """The connection that reads. Every statement sees all that was committed before it began."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.lock = Lock()
        self.execute: Execute = execute_of(connection)

    def rows(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[Row]:
        with self.lock:
            return self.execute(sql, bindings).fetchall()

    @contextmanager
    def snapshot(self) -> Generator[Execute]:
        """Holds one state of the store for several statements; the caller has the lock."""
        try:
            self.execute("BEGIN")
            yield self.execute
        finally:
            if self.connection.in_transaction:
                self.execute("COMMIT")

    def newest(self) -> int:
        with self.lock:
            return self.execute(NEWEST).get or 0


class Writer:
    """The connection that writes, one transaction at a time."""

    def __init__(self, connection: Connection, gate: Gate, wal: Wal | None) -> None:
        self.connection = connection
        self.lock = Lock()
        self.execute: Execute = execute_of(connection)
        self._gate = gate
        self._tables = gate.tables
        self._reach = gate.reach
        self._wal = wal

    def transact(self, work: Callable[[], T], publish: Callable[[T], None] | None = None) -> T:
        """Returns what `work` returned, once everything that it did is durable.

        `publish` is called with it while the connection is still held, so that the next
        transaction finds in memory what this one left on disk.
        """
        execute = self.execute
        with self.lock:
            self._gate.check_open()
            self._gate.check_name()
            try:
                execute("BEGIN IMMEDIATE")
                if self._wal is not None:
                    self._wal.keep_ahead()
                if self._reach is not None:
                    self._reach("sqlite.begun")
                result = work()
                if self._reach is not None:
                    self._reach("sqlite.inserted")
            except BaseException:
                self._roll_back()
                raise
            try:
                execute("COMMIT")
            except apsw.Error as exc:
                self._roll_back()
                raise self._failed_commit(exc) from exc
            self._tables.settle()
            if self._reach is not None:
                self._reach("sqlite.committed")
            if publish is not None:
                publish(result)
            return result

    def close(self) -> None:
        with self.lock:
            self.connection.close()
            if self._wal is not None:
                self._wal.close()

    def _roll_back(self) -> None:
        self._tables.forget()
        # SQLite has already rolled back after some errors; a second time would be an error too.
        if self.connection.in_transaction:
            self.execute("ROLLBACK")

    def _failed_commit(self, exc: apsw.Error) -> Exception:
        """Returns what to raise when COMMIT itself failed.

        A full disk is met before the frame that would make the commit valid is whole, so nothing
        was written. After any other failure the frames may or may not be on disk. A sync must not
        be tried again on this descriptor, because the kernel marks pages clean that it failed to
        write: a second try would report success for bytes that are gone. So the handle dies, and
        whoever opens the file anew reads what is really there.
        """
        if isinstance(exc, apsw.FullError):
            return exc
        return self._gate.poison(f"a commit failed ({exc})")


class Gate(Handle):
    """Whether the store may be used, and what every part of the backend needs to use it."""

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        reading: Connection,
        writing: Connection | None,
        wal: Wal | None,
        reach: Callable[[str], None] | None,
    ) -> None:
        self.path = path
        found = os.stat(path, follow_symlinks=False)
        self._identity = found.st_dev, found.st_ino
        self.clock = clock
        self.tables = Tables()
        self.reach = reach
        self.errors = Translated(path)
        self.changed = Condition()
        self.waiting = 0
        self.reader = Reader(reading)
        self._poison: str | None = None
        self._writer = None if writing is None else Writer(writing, self, wal)
        super().__init__()

    @property
    def writer(self) -> Writer:
        """The writing connection, for a call that writes."""
        self.check_open()
        if self._writer is None:
            raise UsageError(
                f'"{self.path}" is open read-only, found a write',
                hint="open it without read_only",
            )
        return self._writer

    def check_open(self) -> None:
        if self._dead is not None or self._poison is not None:
            super().check_open()
            raise self._poisoned()

    def check_name(self) -> None:
        """Raises, and ends the handle, if somebody deleted or replaced the file while it was open.

        SQLite would go on writing to a file without a name, which is gone when its last user ends.
        """
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            found = None
        except OSError as exc:
            raise UnavailableError(
                f'"{self.path}" cannot be examined: {exc.strerror}',
                hint="check the disk, then try again",
            ) from exc
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            error = self.poison("its file was deleted, moved or replaced while it was open")
            error.outcome_known = True
            raise error

    def poison(self, why: str) -> UnavailableError:
        """Ends the use of this handle, and returns the error for the call that found out."""
        self._poison = why
        self.wake()
        error = self._poisoned()
        error.outcome_known = False
        return error

    def _poisoned(self) -> UnavailableError:
        return UnavailableError(
            f'"{self.path}" is unavailable to this handle: {self._poison}',
            hint="open the store again and look whether the commit is there",
        )

    def wake(self) -> None:
        """Wakes every thread of this process that waits for a commit.

        A thread counts itself before it looks at what is there, so one that is not counted yet
        will see the commit that it would have been woken for.
        """
        if self.waiting:
            with self.changed:
                self.changed.notify_all()

    def close(self) -> None:
        """Closes both connections of a handle that was just marked closed.

        The last one on the host empties the WAL and removes it.
        """
        self.wake()
        with self.errors, self.reader.lock:
            self.reader.connection.close()
        if self._writer is not None:
            if self.reach is not None:
                self.reach("sqlite.closing")
            with self.errors:
                self._writer.close()
            if self.reach is not None:
                self.reach("sqlite.closed")

    def after_fork(self) -> None:
        """Keeps a child from ever closing what it inherited.

        Closing takes mutexes that a thread of the parent may have held at the fork, for ever as
        the child sees it, and may end in a checkpoint. So the child never frees these objects,
        not even when its interpreter ends.
        """
        from ctypes import py_object, pythonapi

        for inherited in (self.reader, self._writer):
            pythonapi.Py_IncRef(py_object(inherited))

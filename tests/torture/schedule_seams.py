"""Puts a scheduler under the library: its locks, threads, files and SQLite calls become turns.

Locks and threads of the modules below are replaced for the time of one run. A `flock` that would
wait is asked for without waiting, again whenever a lock may have become free; SQLite's busy handler
gives its turn away likewise. So nothing waits in the kernel, and the scheduler knows who waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from holdfast.backends import file_watch, gates, liveness, memory
from holdfast.backends.files import backend as files_backend
from holdfast.backends.files import catalog, journal, text
from holdfast.backends.files.disk import Disk
from holdfast.backends.sqlite import batch as heads
from holdfast.backends.sqlite import connection, opening
from holdfast.backends.sqlite import connection as driver
from holdfast.core import commit_queue, dispatcher
from tests.torture.schedule_threads import Lock, Scheduler

FLOCK = object()
"""What those wait for who wait for any lock of a file."""
SQLITE = object()
"""What those wait for who found a database busy."""

RING_BYTES = 16 << 10
"""A store is made for each schedule, and a ring is written when it is made."""

_MINOR = {"pread", "size", "stat", "listdir", "close", "reserve", "truncate", "mkdir"}


class TurnDisk(Disk):
    """A disk whose calls are yield points. It does not sync: no run loses power."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        for name in ("pread", "pwrite", "open", "size", "stat", "truncate", "rename", "unlink"):
            setattr(self, name, self._stepping(name))
        for name in ("mkdir", "listdir", "reserve"):
            setattr(self, name, self._stepping(name))

    def _stepping(self, name: str) -> Callable[..., Any]:
        call = getattr(Disk(), name)
        step, minor = self._scheduler.step, name in _MINOR

        def stepping(*arguments: Any, **named: Any) -> Any:
            step(name, minor=minor)
            return call(*arguments, **named)

        return stepping

    def sync(self, fd: int) -> None:
        self._scheduler.step("sync")

    def sync_directory(self, fd: int) -> None:
        self._scheduler.step("sync_directory", minor=True)

    def lock(self, fd: int, operation: int) -> None:
        take_turns(self._scheduler, fd, operation)

    def close(self, fd: int) -> None:
        self._scheduler.step("close", minor=True)
        os.close(fd)
        self._scheduler.wake(FLOCK)


def take_turns(scheduler: Scheduler, fd: int, operation: int) -> None:
    """`flock` under the scheduler."""
    if operation & fcntl.LOCK_UN:
        fcntl.flock(fd, operation)
        scheduler.wake(FLOCK)
        return
    scheduler.step("flock")
    if operation & fcntl.LOCK_NB:
        fcntl.flock(fd, operation)
        return
    while True:
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            scheduler.block(FLOCK, "flock")


class _Stepping:
    """A module whose named functions are yield points."""

    def __init__(self, module: Any, scheduler: Scheduler, names: set[str]) -> None:
        self._module = module
        self._scheduler = scheduler
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name == "fsync":
            return lambda fd: None
        found = getattr(self._module, name)
        if name not in self._names:
            return found

        def stepping(*arguments: Any, **named: Any) -> Any:
            self._scheduler.step(name)
            return found(*arguments, **named)

        return stepping


@contextlib.contextmanager
def seams(scheduler: Scheduler) -> Iterator[None]:
    """Replaces what waits and what switches, until the block ends."""

    def lock(
        name: str, *, minor: bool = False, again: bool = False, is_gate: bool = False
    ) -> Callable[[], Lock]:
        return lambda: Lock(scheduler, name, minor=minor, again=again, is_gate=is_gate)

    def sleep(seconds: float) -> None:
        scheduler.block(SQLITE, "busy database")

    flocking = SimpleNamespace(
        flock=lambda fd, operation: take_turns(scheduler, fd, operation),
        LOCK_EX=fcntl.LOCK_EX,
        LOCK_SH=fcntl.LOCK_SH,
        LOCK_NB=fcntl.LOCK_NB,
        LOCK_UN=fcntl.LOCK_UN,
    )
    places: list[tuple[Any, str, Any]] = [
        (commit_queue, "threading", _threads(scheduler)),
        (dispatcher, "_sharing", lock("dispatchers", minor=True)()),
        # Its thread is outside of every schedule, and takes locks whenever it likes.
        (file_watch, "_look_at", lambda store: None),
        (gates, "Lock", lock("gate", is_gate=True)),
        (memory, "RLock", lock("store", again=True)),
        (files_backend, "RLock", lock("committing", again=True)),
        (journal, "RING_BYTES", RING_BYTES),
        (catalog, "RLock", lock("catalog", minor=True, again=True)),
        (text, "RLock", lock("segments", minor=True, again=True)),
        (liveness, "RLock", lock("workers", minor=True, again=True)),
        (liveness, "fcntl", flocking),
        (connection, "RLock", lock("connection", again=True)),
        (connection, "execute_of", _executes(scheduler, connection.execute_of)),
        (heads, "RLock", lock("heads", minor=True, again=True)),
        (opening, "sleep", sleep),
        (opening, "os", _Stepping(os, scheduler, {"link", "unlink"})),
        (opening, "connect", partial(_connect_unsynced, opening.connect)),
        (driver, "connect", _Stepping(driver, scheduler, {"connect"}).connect),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    try:
        for module, name, put in places:
            setattr(module, name, put)
        yield
    finally:
        for module, name, was in before:
            setattr(module, name, was)


def _connect_unsynced(connect: Callable[..., Any], path: str, **settings: Any) -> Any:
    return connect(path, **{**settings, "durability": "none"})


def _threads(scheduler: Scheduler) -> SimpleNamespace:
    """Returns what the queue of commits uses of `threading`."""

    class Thread:
        ident: int | None = None

        def __init__(self, *, target: Callable[[], None], name: str, daemon: bool) -> None:
            self._target = target
            self._name = name

        def start(self) -> None:
            self.ident = id(self)
            self._turn = scheduler.spawn(self._name, self._target, background=True)

        def join(self) -> None:
            if scheduler.is_under_way:
                scheduler.join(self._turn)

    return SimpleNamespace(
        Lock=lambda: Lock(scheduler, "queue", minor=False),
        Thread=Thread,
        current_thread=threading.current_thread,
        get_ident=threading.get_ident,
    )


def _executes(scheduler: Scheduler, execute_of: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an `execute_of` whose statements are yield points."""

    def stepping_of(found: Any) -> Callable[..., Any]:
        execute = execute_of(found)

        def stepping(statement: str, *bindings: Any) -> Any:
            scheduler.step(statement[:30], minor=not statement.startswith(("BEGIN", "COMMIT")))
            try:
                return execute(statement, *bindings)
            finally:
                if statement in ("COMMIT", "ROLLBACK"):
                    scheduler.wake(SQLITE)

        return stepping

    return stepping_of

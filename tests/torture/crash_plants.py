"""Faults to prove T4 by: each breaks one step of what makes a store durable, as a bug would.

Some are syncs that the disk never hears of, the others are changes of the code. They are planted
while a store is recorded; it is judged by the code as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from holdfast.backends.files import directory, journal, objects, recovery
from holdfast.backends.files.directory import Directory
from holdfast.backends.files.disk import Disk, write_all
from holdfast.backends.files.journal import RingJournal
from holdfast.backends.files.objects import TEMP, FileObjects
from holdfast.backends.files.opening import Opened
from holdfast.backends.files.text import Segments
from holdfast.backends.sqlite import opening as sqlite_opening
from tests.torture.crash_trace import ROOT, Event, Trace

Loses = Callable[[Event, Trace], bool]
Patch = Callable[[], Any]


def _unsynced(*names: str) -> Loses:
    """Loses the syncs of files and directories whose name begins so."""
    return lambda event, trace: event.kind == "sync" and trace.names[event.node].startswith(names)


def _root_unsynced(*, is_made: bool) -> Loses:
    """Loses the syncs of the directory of a database, before or after it was made."""

    def loses(event: Event, trace: Trace) -> bool:
        if event.kind != "sync" or event.node != ROOT or "store.db" not in trace.folders[ROOT]:
            return False
        return is_made == any(one.kind == "done" for one in trace.events)

    return loses


def _database_unsynced(event: Event, trace: Trace) -> bool:
    return event.kind == "sync" and trace.names[event.node] == "store.db"


def _fill_unsynced(event: Event, trace: Trace) -> bool:
    return event.kind == "sync" and trace.names[event.node].endswith(".new")


def _text_unsynced_in(owner: Any, name: str) -> Patch:
    """Leaves out the syncs of segments while one function runs."""
    real = getattr(owner, name)

    def without(*arguments: Any, **named: Any) -> Any:
        with mock.patch.object(Segments, "sync"):
            return real(*arguments, **named)

    return lambda: mock.patch.object(owner, name, without)


def _rename_first(disk: Disk, name: str, data: bytes, *, at: int, temp: str, durable: bool) -> None:
    fd = disk.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, at=at)
    write_all(disk, fd, data, 0)
    disk.rename(temp, name, at=at)
    if durable:
        disk.sync(fd)
        disk.sync_directory(at)
    disk.close(fd)


@contextmanager
def _replace_by_rename_first() -> Generator[None]:
    with ExitStack() as stack:
        for module in (directory, journal, objects, recovery):
            stack.enter_context(mock.patch.object(module, "replace_file", _rename_first))
        yield


class _Everything(set[str]):
    def __contains__(self, _: object) -> bool:
        return True


def _folders_trusted() -> Any:
    real = FileObjects.__init__

    def trusting(self: FileObjects, backend: Any) -> None:
        real(self, backend)
        setattr(self, "_durable", _Everything())  # noqa: B010

    return mock.patch.object(FileObjects, "__init__", trusting)


def _synchronous(level: int) -> Patch:
    return lambda: mock.patch.dict(getattr(sqlite_opening, "_SYNCHRONOUS"), full=level)  # noqa: B009


LOSES: dict[str, Loses] = {
    "ring-unsynced": _unsynced("ring"),
    "segment-unnamed": _unsynced("log"),
    "directory-unsynced": _unsynced("store"),
    "blob-unsynced": _unsynced(TEMP),
    "index-unsynced": _unsynced("index.sqlite"),
    "checkpoint-unsynced": _database_unsynced,
    "creation-unnamed": _root_unsynced(is_made=False),
    "wal-unnamed": _root_unsynced(is_made=True),
    "creation-unsynced": _fill_unsynced,
}
PATCHES: dict[str, Patch] = {
    "way-unsynced": lambda: mock.patch.object(Directory, "_sync_way"),
    "rename-first": _replace_by_rename_first,
    "folders-trusted": _folders_trusted,
    "slot-reused": _text_unsynced_in(RingJournal, "sync_text"),
    "large-unsynced": _text_unsynced_in(RingJournal, "_write_large"),
    "close-unsynced": _text_unsynced_in(Opened, "_close_cleanly"),
    "recovery-unsynced": _text_unsynced_in(recovery, "settle"),
    "synchronous-normal": _synchronous(1),
    "synchronous-off": _synchronous(0),
}


@contextmanager
def planted(plant: str, trace: Trace) -> Generator[None]:
    """Has the fault in place until the end of the block."""
    trace.loses = LOSES.get(plant)
    with ExitStack() as stack:
        if plant in PATCHES:
            stack.enter_context(PATCHES[plant]())
        yield

"""Stores that survive SIGKILL and not a power loss: what is left out is a sync."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from holdfast.backends.files import directory, journal, objects, recovery, text
from holdfast.backends.files.disk import Disk, write_all
from holdfast.backends.sqlite import opening
from tests.crash import workload


def plant(name: str) -> None:
    """Plants a fault in this process, a child; "" plants none."""
    if name:
        PLANTS[name]()


def _no_sync() -> None:
    """No file of a files store is ever synced."""
    Disk.sync = staticmethod(lambda fd: None)


def _no_directory_sync() -> None:
    """No directory of a files store is ever synced: files, but not their names."""
    Disk.sync_directory = lambda self, fd: None


def _rename_before_sync() -> None:
    """A file is given its name, and synced only then, if at all."""

    def write(disk: Disk, name: str, data: bytes, *, at: int, temp: str, durable: bool) -> None:
        fd = disk.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, at=at)
        write_all(disk, fd, data, 0)
        disk.close(fd)
        disk.rename(temp, name, at=at)
        if durable:
            disk.sync_directory(at)

    for module in (directory, objects, recovery, journal):
        module.replace_file = write


def _text_unsynced() -> None:
    """The ring is written over although the text that it held was not synced."""
    text.Segments.sync = lambda self, begin: None


def _early() -> None:
    """Acknowledged before it is written."""
    workload.is_early = True


def _synchronous(value: int) -> Callable[[], None]:
    def connect() -> None:
        levels: Any = opening._SYNCHRONOUS  # pyright: ignore[reportPrivateUsage]
        levels["full"] = value

    return connect


PLANTS: dict[str, Callable[[], None]] = {
    "early": _early,
    "no-sync": _no_sync,
    "no-directory-sync": _no_directory_sync,
    "rename-before-sync": _rename_before_sync,
    "text-unsynced": _text_unsynced,
    "synchronous-off": _synchronous(0),
    "synchronous-normal": _synchronous(1),
}

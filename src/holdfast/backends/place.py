"""A note of where a store was last opened, to tell a copy beside its original from a moved store.

A store and its copy have the same id and the same history, and differ from then on. For a clone
that is the purpose. It is a mistake where the copy was taken for the original: two processes then
believe that they share a store. So opening a copy on the same machine logs a warning while its
original is still there.

The note is kept with the files of the store's workers (`workers/place`, or `state.db.workers/place`
beside a database if that folder exists: it is made for the first lease). It has a random name, and
the path, device and inode of the store. `cp -r` and `tar` copy the note too, so a copy finds in it
another file than itself, and where that file is. A store that was moved within a file system is the
same file. One that was moved to another file system is not, but nothing is left at the old path.
git does not copy the note: a clone is made on purpose.

Nothing depends on a note: one that cannot be read or written is ignored.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import DecodeError, Struct, ValidationError
from msgspec import json as json_codec

from holdfast.clock import Clock

_log = logging.getLogger("holdfast.backends")

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BYTES_MAX = 16384


class Place(Struct, frozen=True):
    """A file or directory, and where it was seen."""

    path: str
    device: int
    inode: int

    def is_same_file(self, other: Place) -> bool:
        return (self.device, self.inode) == (other.device, other.inode)


class Note(Struct, frozen=True):
    """What is noted of a store: where it is, and where its original is if it is a copy."""

    name: str
    """Random; a copy has the same name as its original, all other stores have others."""
    here: Place
    original: Place | None = None


def note_place(path: str, clock: Clock) -> None:
    """Notes where a store that was opened is, and warns if it is a copy beside its original."""
    try:
        here = _place(path)
        known = _read(path)
        if known is None:
            found = Note(clock.random_bytes(8).hex(), here)
        elif known.here.is_same_file(here) or known.here.path == path:
            found = Note(known.name, here, known.original)  # it was moved, or replaced in place
        else:
            # Another file at another path: a copy if the store at the old place is still there.
            original = known.here if _is_there(known.here, known.name) else known.original
            found = Note(known.name, here, original)
        if found != known:
            _write(path, found)
    except OSError as exc:
        _log.debug("where %s is cannot be noted: %s", path, exc)
        return
    if report := copy_report(path):
        _log.warning("%s", report)


def copy_reports(facts: Mapping[str, Any]) -> list[str]:
    """Returns the reports for all copies among the backends that these facts describe."""
    parts: Iterable[Mapping[str, Any]] = facts.get("levels", {"*": facts}).values()
    paths = {os.path.realpath(one["path"]): None for one in parts if one.get("path")}
    return [report for path in paths if (report := copy_report(path)) is not None]


def copy_report(path: str) -> str | None:
    """Returns the report for a store that is a copy and whose original is still there, or None."""
    try:
        known = _read(path)
        if known is None or known.original is None or not known.here.is_same_file(_place(path)):
            return None
    except OSError:
        return None
    original = known.original
    if original.is_same_file(known.here) or not _is_there(original, known.name):
        return None
    return (
        f'"{path}" is a copy of the store at "{original.path}", which is still there: both have '
        "the same id, and neither sees what is written to the other"
    )


def _place(path: str) -> Place:
    found = os.stat(path)
    return Place(path, found.st_dev, found.st_ino)


def _open_note(path: str, flags: int) -> int:
    """Opens the note of a store; refuses a link in place of the folder, which leads elsewhere."""
    workers = os.path.join(path, "workers") if os.path.isdir(path) else f"{path}.workers"
    folder = os.open(workers, _FOLDER)
    try:
        return os.open("place", flags, 0o600, dir_fd=folder)
    finally:
        os.close(folder)


def _is_there(place: Place, name: str) -> bool:
    """Returns whether the same file is still at its path, with a note of that name."""
    try:
        known = _read(place.path)
        return known is not None and known.name == name and _place(place.path) == place
    except OSError:
        return False


def _read(path: str) -> Note | None:
    try:
        fd = _open_note(path, _READ)
    except FileNotFoundError:
        return None
    try:
        data = os.read(fd, _BYTES_MAX)
    finally:
        os.close(fd)
    try:
        return json_codec.decode(data.partition(b"\n")[0], type=Note)
    except (DecodeError, ValidationError, UnicodeDecodeError):
        return None


def _write(path: str, note: Note) -> None:
    # In place and not synced: a torn note is ignored, and the next open writes it again.
    fd = _open_note(path, _WRITE)
    try:
        os.write(fd, json_codec.encode(note) + b"\n")
    finally:
        os.close(fd)

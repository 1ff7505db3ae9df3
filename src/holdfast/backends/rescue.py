"""Copies what a process still holds of files that were taken from it to files with new names.

A file without a name exists until its last descriptor is closed. So before a handle ends, it copies
what it holds into a new folder, `rescued/<id>/`, with a report for people. Existing files there are
never overwritten, and no store uses them: the people who took the files decide what to do with
them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Sequence

from holdfast.clock import Clock
from holdfast.names import new_id

FOLDER = "rescued"
REPORT = "report.txt"
_CHUNK_BYTES = 1 << 20
_LINE_BYTES_MAX = 2000
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def rescue(
    places: Sequence[str], held: Iterable[tuple[str, int | bytes]], report: str, clock: Clock
) -> str:
    """Writes what is held, and the report, into a new folder; returns its path.

    The folder is made in the first of `places` where that is possible. `held` has names below the
    folder, such as `log/x.jsonl`, each with a descriptor or with bytes. Everything is synced before
    this returns. Raises OSError if the folder cannot be made anywhere or something cannot be
    written; what was written stays.
    """
    folder = _make_folder(places, new_id(clock))
    for name, content in held:
        path = os.path.join(folder, name)
        above = os.path.dirname(path)
        os.makedirs(above, 0o700, exist_ok=True)
        _write(path, content)
        sync_directory(above)
    # The report is written last, so that a folder with a report has all that the report names.
    _write(os.path.join(folder, REPORT), report.encode())
    for above in (folder, os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))):
        sync_directory(above)
    return folder


def reports(place: str) -> list[str]:
    """Returns the first line of each report below `place`, oldest first."""
    folder = os.path.join(place, FOLDER)
    found: list[str] = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        try:
            line = _first_line(os.path.join(folder, name, REPORT))
            found.append(f"{line}; see {FOLDER}/{name}")
        except OSError:
            found.append(f"{FOLDER}/{name} has no {REPORT}: it was not written to its end")
    return found


def _first_line(path: str) -> str:
    """Returns the first line, or its beginning, of a file that may be a pipe or endless."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.read(fd, _LINE_BYTES_MAX).decode(errors="replace").partition("\n")[0]
    finally:
        os.close(fd)


def _make_folder(places: Sequence[str], name: str) -> str:
    problem: OSError | None = None
    for place in places:
        folder = os.path.join(place, FOLDER)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)  # not makedirs: a place that is gone is not made again
            _check_private(folder)
            path = os.path.join(folder, name)
            os.mkdir(path, 0o700)
        except OSError as exc:
            problem = exc
        else:
            return path
    assert problem is not None, "BUG: no place was named"
    raise problem


def _check_private(folder: str) -> None:
    """Raises if others could put a folder of theirs in the place of ours, and read it."""
    found = os.lstat(folder)
    is_private = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE
    if not stat.S_ISDIR(found.st_mode) or not is_private:
        raise PermissionError(errno.EPERM, "it is not a private folder", folder)


def _write(path: str, content: int | bytes) -> None:
    fd = os.open(path, _NEW, 0o600)
    try:
        offset = 0
        while chunk := _read(content, offset):
            offset += os.pwrite(fd, chunk, offset)
        os.fsync(fd)
    finally:
        os.close(fd)


def _read(content: int | bytes, offset: int) -> bytes:
    if isinstance(content, bytes):
        return content[offset : offset + _CHUNK_BYTES]
    return os.pread(content, _CHUNK_BYTES, offset)


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_way(path: str) -> None:
    """Syncs every directory above a folder, up to the root of its file system.

    A power loss must not take the folder. Directories that were there already are synced too: a
    process that made them may have been killed before it did so. A directory that this user may not
    read was not made by this user, and is left out.
    """
    device = os.stat(path).st_dev
    above, below = os.path.dirname(os.path.abspath(path)), ""
    while above != below and os.stat(above).st_dev == device:
        with contextlib.suppress(PermissionError):
            sync_directory(above)
        above, below = os.path.dirname(above), above

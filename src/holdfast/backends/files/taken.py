"""Files that were taken from under an open store: what is reported, and what is rescued.

The descriptors of a handle still lead to what was taken. The ring, and the segments whose names do
not lead to them any more, are copied to `rescued/<id>/`, with holdfast.json. If every segment is
among them, the folder is a store that can be opened and checked. The folder lies beside the store's
directory, because an `rm -r` of that directory may still be under way and would remove it too. It
lies inside if nothing may be written beside the directory, or if that is another file system (the
directory may be a container's volume, and what lies beside it ends with the container). If only the
lock or the shared page was taken, or the store was moved as a whole, no content is lost and nothing
is copied.
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta

from holdfast.backends.files import journal
from holdfast.backends.files.directory import FORMAT, Directory
from holdfast.backends.files.packing import BEGINNING
from holdfast.backends.files.text import OPEN_SEGMENT, Segments
from holdfast.backends.rescue import FOLDER, rescue
from holdfast.backends.rescue import reports as rescued
from holdfast.clock import Clock
from holdfast.errors import FilesTakenError

_log = logging.getLogger("holdfast.backends")

STORE = "the directory"
CUT = "the end of the open segment"
_REMEDY = "end every process that has it open, put back what was taken, then open it again"


def files_taken(
    directory: Directory,
    segments: Segments,
    ring_fd: int,
    taken: list[str],
    position: int,
    clock: Clock,
) -> FilesTakenError:
    """Copies what is held of files that were taken; returns the error, which says where it is."""
    lost = [(name, fd) for name, fd, is_named in segments.held() if not is_named]
    # Without the directory, what is looked for by its whole path is missing as well, although it
    # may still be in its place in the directory. So it is not named.
    passed_over = (OPEN_SEGMENT, "lock") if STORE in taken else (OPEN_SEGMENT,)
    names = [name for name in taken if name not in passed_over]
    names += [name for name, _ in lost if name not in names]
    held: list[tuple[str, int | bytes]] = [*lost]
    if ring_fd >= 0 and (lost or journal.NAME in taken):
        held.append((journal.NAME, ring_fd))
    message = (
        f'files of the store "{directory.path}" were removed, replaced or moved while it was open '
        f"({', '.join(names)})"
    )
    folder, hint = None, _REMEDY
    if held:
        try:
            held.append(("holdfast.json", _identity(directory, [fd for _, fd in lost])))
            report = _report(directory, message, [name for name, _ in held], position, clock)
            folder = rescue(_places(directory), held, report, clock)
            message += f'; what this process still held is in "{folder}"'
            hint = f"{_REMEDY}; {FOLDER} has a copy, and a report"
        except OSError as exc:
            message += f"; what this process still held could not be written down: {exc}"
    elif STORE in taken and (where := _where(directory)) is not None:
        message += f'; it is whole, and now at "{where}"'
        hint = "end every process that has it open, then open it where it is now"
    elif CUT in taken:
        message += "; opening it again writes back what the ring has"
    else:
        message += "; its log is where it was"
    _log.error("%s", message)
    return FilesTakenError(message, rescued=folder, hint=hint)


def _identity(directory: Directory, segments: list[int]) -> bytes:
    """Returns holdfast.json for segments, given by their descriptors.

    Another handle may have packed one since this handle read which format the store has. With a
    lower number, an older holdfast would take the packed one for damaged.
    """
    is_packed = any(os.pread(fd, len(BEGINNING), 0) == BEGINNING for fd in segments)
    return directory.identity_in(FORMAT) if is_packed else directory.identity


def _places(directory: Directory) -> list[str]:
    beside = os.path.dirname(directory.path)
    inside = directory.path if directory.leads_here() else _where(directory)
    if inside is None:
        return [beside]
    return [beside, inside] if is_one_system(beside, directory.fd) else [inside, beside]


def is_one_system(path: str, fd: int) -> bool:
    """Returns whether a path and an open directory lie on the same file system."""
    try:
        return os.stat(path).st_dev == os.fstat(fd).st_dev
    except OSError:
        return False


def _where(directory: Directory) -> str | None:
    """Returns where the directory is now, None if it is gone or the system does not tell."""
    try:
        path = os.readlink(f"/proc/self/fd/{directory.fd}")
        is_there = os.path.samestat(os.lstat(path), os.fstat(directory.fd))
    except OSError:
        return None
    return path if is_there else None


def reports(path: str) -> list[str]:
    """Returns the first lines of all reports about the store at `path`."""
    beside = [one for one in rescued(os.path.dirname(path)) if f'"{path}"' in one]
    return beside + rescued(path)


def _report(
    directory: Directory, message: str, held: list[str], position: int, clock: Clock
) -> str:
    now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock.now_us())
    return f"""\
{message}

store      {directory.store}
found      {now.isoformat(timespec="seconds")} by process {os.getpid()}
position   {position}: every commit up to this one was acknowledged, or read here
here       {", ".join(sorted(held))}

{_REMEDY}.
Files with the same names in the store may be older ones: keep them until "holdfast check" is
content. A folder that has every segment is a store of its own: "holdfast check" reads it here.
What this process wrote last may have been refused: it stands after the position above.
"""

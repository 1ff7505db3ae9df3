"""Space on the disk of a store that is kept for letting go.

On a disk without a free byte nothing can be let go of: that is written down before it is done. So a
store may keep a file of some size beside itself. Letting go deletes it when the disk is full, and
makes it again when there is room. Only that uses it: an ordinary write that met a full disk would
soon have used it up.

The file holds zeros that are really written. A file system that stores nothing for them keeps
nothing free.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterable

from holdfast.core.limits import Limits, disk_space

FULL_BYTES = 1 << 20
"""With less free space than this, a disk counts as full."""
_SPACE = "space"
_IGNORE = ".gitignore"
_CHUNK = 1 << 20
_logger = logging.getLogger("holdfast.limits")


def folder_of(place: str) -> str:
    """Returns the folder of the reserve of the store at a path."""
    return f"{place}.reserve"


def keep(place: str, size: int) -> bool:
    """Keeps so many bytes free for a store; returns whether they are kept.

    They are not if that would take more than half of what is free.
    """
    folder = folder_of(place)
    whole = os.path.join(folder, _SPACE)
    # Several processes may open a store at once. Each writes a file of its own, and who is done
    # first takes away those of the others, and of any that were killed.
    beside = f"{whole}.{os.getpid()}-{secrets.token_hex(4)}"
    try:
        if _size_of(whole) == size:
            _clear(folder)
            return True
        use(place)
        if disk_space(os.path.dirname(os.path.abspath(place)))[0] < 2 * size:
            _logger.warning("no %d bytes are kept free for letting go: the disk is too full", size)
            return False
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(os.path.join(folder, _IGNORE), "wb") as file:
            file.write(b"*\n")
        with open(beside, "wb") as file:
            for at in range(0, size, _CHUNK):
                file.write(bytes(min(_CHUNK, size - at)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, whole)
        _clear(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        if isinstance(error, FileNotFoundError) and _size_of(whole) == size:
            return True  # another process was faster
        _logger.warning("no space is kept free for letting go: %s", error)
        return False
    return True


def keep_all(limits: Limits | None) -> None:
    """Keeps free what the limits of a store say, for letting go; nothing without limits."""
    for place, size in () if limits is None else limits.reserves():
        if size:
            keep(place, size)
        else:
            drop(place)


def drop(place: str) -> None:
    """Frees what is kept for a store, and takes its folder away."""
    folder = folder_of(place)
    if not os.path.isdir(folder):
        return
    try:
        use(place)
        _clear(folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, _IGNORE))
        os.rmdir(folder)
    except OSError as error:
        _logger.warning("the space that was kept free for letting go stays: %s", error)


def _size_of(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _clear(folder: str) -> None:
    for name in os.listdir(folder):
        if name.startswith(f"{_SPACE}."):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def use(place: str) -> bool:
    """Frees what is kept for a store; returns whether there was anything."""
    try:
        os.unlink(os.path.join(folder_of(place), _SPACE))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def use_if_full(places: Iterable[str]) -> bool:
    """Frees what is kept for stores whose disk is full; returns whether anything was freed."""
    kept = [place for place in places if os.path.isdir(folder_of(place))]
    full = [place for place in kept if disk_space(folder_of(place))[0] < FULL_BYTES]
    return any([use(place) for place in full])

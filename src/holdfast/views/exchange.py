"""Writing a file that somebody else may write at the same moment, without losing what they wrote.

The new text is written beside the file and synced, and then the two names are exchanged in one step
of the kernel. So whatever the file held at that very moment is in our hands afterwards, and can be
looked at: if it is not what we had read, somebody saved in between, and that is to be imported.

Where a file system cannot exchange names, the file is first taken away under another name, and the
new one is linked to its name, which fails if somebody made a file there meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Any, Literal

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_RENAME_SWAP = 2
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


def read_file(path: Path) -> bytes | None:
    """Returns what a file holds; None if there is none."""
    try:
        descriptor = open_unnoticed(path)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        return file.read()


def open_unnoticed(path: Path) -> int:
    """Opens a file for reading without changing its time of access, if that is allowed."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:
        return os.open(path, flags)


def write_new(path: Path, data: bytes, mode: int | None = None) -> os.stat_result:
    """Writes a file of our own as a whole, and syncs it; returns what is known of it.

    Its time of access is set to one second before it was written. Whoever reads it changes that,
    so it can be told whether anybody has.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        if mode is not None:
            os.fchmod(descriptor, mode)
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        written_ns = os.fstat(descriptor).st_mtime_ns
        os.utime(descriptor, ns=(written_ns - 1_000_000_000, written_ns))
        os.fsync(descriptor)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


Exchanged = Literal["exchanged", "absent", "beaten"]


def exchange(new: Path, target: Path) -> Exchanged:
    """Puts `new` in the place of `target`, and what was there in the place of `new`.

    "absent": there is no file to exchange it with, and nothing has changed; `put` makes one.
    "beaten": what was there is in the place of `new`, but somebody else's file has the name now.
    """
    try:
        _swap(new, target)
    except FileNotFoundError:
        return "absent"
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return _take_and_link(new, target)
    return "exchanged"


def put(new: Path, target: Path) -> bool:
    """Gives a new file its name; returns False if somebody made one of that name meanwhile."""
    try:
        os.link(new, target)
    except FileExistsError:
        return False
    new.unlink()
    return True


def _take_and_link(new: Path, target: Path) -> Exchanged:
    """Exchanges two names in two steps: the file is taken away, then the new one gets its name.

    Between the two there is no file of that name. If somebody makes one then, theirs stays.
    """
    taken = new.with_name(new.name + ".taken")
    try:
        os.rename(target, taken)
    except FileNotFoundError:
        return "absent"
    is_ours = True
    try:
        os.link(new, target)
    except FileExistsError:
        is_ours = False
    os.replace(taken, new)
    return "exchanged" if is_ours else "beaten"


def _swap(one: Path, other: Path) -> None:
    """Exchanges two names, or raises OSError."""
    library = _library()
    if library is None:
        raise OSError(errno.ENOSYS, "this system cannot exchange two names")
    first, second = os.fsencode(one), os.fsencode(other)
    ctypes.set_errno(0)
    if sys.platform == "darwin":
        failed = library.renamex_np(first, second, _RENAME_SWAP)
    else:
        failed = library.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE)
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))


def _library() -> Any:
    """Returns the C library if it can exchange names."""
    library = ctypes.CDLL(None, use_errno=True)
    name = "renamex_np" if sys.platform == "darwin" else "renameat2"
    return library if hasattr(library, name) else None

"""Writes a file that somebody else may write at the same moment, without losing what they wrote.

The new text is written beside the file and synced, and then the two names are exchanged in one
system call. A plain rename would silently destroy an edit that was saved just before it. After an
exchange, whatever the file held at that moment is still there under the other name: if it is not
what was read before, somebody saved in between, and that can be imported.

Where a file system cannot exchange names, the file is first renamed away, and then the new one is
linked to its name. The link fails if somebody made a file there meanwhile.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, Any, Literal

from holdfast.errors import ExistsError

_HERE = -2 if sys.platform == "darwin" else -100
"""AT_FDCWD: relative names start from the current folder."""
_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS."""
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


def read_file(path: Path) -> bytes | None:
    """Returns the content of a file, or None if there is none."""
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
    """Writes a new file and syncs it; returns its status.

    Its access time is set to one second before its modification time. A later read changes that, so
    it shows whether anybody has read the file.
    """
    # O_NOFOLLOW: a cloned repository may bring a symbolic link of this name, to make us write over
    # a file elsewhere.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
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


def exchange(new: str | Path, target: str | Path, *, folder: int | None = None) -> Exchanged:
    """Puts `new` in the place of `target`, and what was there in the place of `new`.

    With `folder`, an open descriptor, both are names in that folder, even if it was moved.

    Returns "absent" if there is no file to exchange with: nothing has changed then, and `put` makes
    one. Returns "beaten" if the old file is in the place of `new`, but somebody else has made
    another file under its name.
    """
    try:
        _swap(os.fsencode(new), os.fsencode(target), folder)
    except FileNotFoundError:
        return "absent"
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return _take_and_link(os.fsdecode(new), os.fsdecode(target), folder)
    return "exchanged"


def put(new: str | Path, target: str | Path, *, folder: int | None = None) -> bool:
    """Gives a new file its name; returns False if there is a file of that name already.

    A link is used and not a rename, because a rename would replace somebody else's file.
    """
    try:
        os.link(new, target, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    os.unlink(new, dir_fd=folder)
    return True


@contextmanager
def new_file(
    path: str | os.PathLike[str], *, mode: int = 0o666, replaces: bool = False
) -> Generator[IO[bytes]]:
    """Yields a file that gets its name when the block ends: whole and durable, or not at all.

    It is written under a name beside its own that nobody has: a file of such a name may be the
    user's. Raises ExistsError if there is a file of its own name, unless it `replaces` that.
    """
    place = Path(path)
    if not replaces and os.path.lexists(place):
        raise _is_there(place)
    beside, descriptor = _beside(place, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            # Synced before it is named, so that the name never leads to a part of it.
            os.fsync(descriptor)
        if replaces:
            os.replace(beside, place)
        elif not put(beside, place):
            raise _is_there(place)
        # The name is durable too before anybody is told that the file is there.
        folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        with suppress(FileNotFoundError):
            beside.unlink()
        raise


def _beside(place: Path, mode: int) -> tuple[Path, int]:
    """Makes a new file beside a path, and returns its path and a descriptor of it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for number in count(1):
        beside = place.with_name(f"{place.name}.{number}.new")
        with suppress(FileExistsError):
            return beside, os.open(beside, flags, mode)
    raise AssertionError("BUG: numbers have ended")


def _is_there(place: Path) -> ExistsError:
    return ExistsError(
        f'"{place}" exists already, and is not written over', hint="name another file"
    )


def _take_and_link(new: str, target: str, folder: int | None) -> Exchanged:
    """Exchanges two names in two steps: renames the file away, then gives its name to the new one.

    Between the steps there is no file of that name. If somebody makes one then, theirs stays.
    """
    taken = new + ".taken"
    try:
        os.rename(target, taken, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        return "absent"
    is_ours = True
    try:
        os.link(new, target, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        is_ours = False
    except OSError:  # such as a file system without links: the old file gets its name back
        os.rename(taken, target, src_dir_fd=folder, dst_dir_fd=folder)
        raise
    os.replace(taken, new, src_dir_fd=folder, dst_dir_fd=folder)
    return "exchanged" if is_ours else "beaten"


def _swap(one: bytes, other: bytes, folder: int | None) -> None:
    """Exchanges two names in one system call, or raises OSError."""
    import ctypes

    call = _system_call()
    if call is None:
        raise OSError(errno.ENOSYS, "this system cannot exchange two names")
    at = _HERE if folder is None else folder
    ctypes.set_errno(0)
    if call(at, one, at, other, _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fsdecode(other))


@cache
def _system_call() -> Callable[..., Any] | None:
    """Returns the function of the C library that exchanges names, or None if there is none."""
    import ctypes

    name = "renameatx_np" if sys.platform == "darwin" else "renameat2"
    call: Any = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if call is not None:
        number, text = ctypes.c_int, ctypes.c_char_p
        call.argtypes = [number, text, number, text, ctypes.c_uint]
        call.restype = number
    return call

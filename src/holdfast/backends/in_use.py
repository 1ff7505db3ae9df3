"""Whether a store on this host is in use, asked without waiting for anybody.

Who only looks must not wait for who writes: a process that was stopped may have the lock for days.
Where a store is in use it is whole for a reader, who needs no lock. Where it is not, somebody may
have died in it, and the next one in recovers, under the lock.
"""

from __future__ import annotations

import os

from holdfast.names import SCHEME

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


def is_in_use(url: str) -> bool:
    """Returns whether another process has the store open; False also where looking never waits."""
    found = SCHEME.match(url)
    scheme = "" if found is None else found.group(1)
    path = url[len(scheme) + 1 if scheme else 0 :].removeprefix("//")
    if scheme in ("", "file", "files"):
        return _is_directory_in_use(path)
    return scheme == "sqlite" and os.path.exists(f"{path}-shm")


def _is_directory_in_use(path: str) -> bool:
    """Asks the two locks of `files/opening.py`, the second under the first, as is done there."""
    import fcntl  # not there on Windows, where nothing is kept in files

    try:
        lock_fd = os.open(os.path.join(path, "lock"), os.O_RDWR | _FLAGS)
    except (OSError, ValueError):  # such as a NUL in the path: opening it says what is wrong
        return False
    workers_fd = -1
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        workers_fd = os.open(os.path.join(path, "workers"), os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        fcntl.flock(workers_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        if workers_fd >= 0:
            os.close(workers_fd)
        os.close(lock_fd)
    return False

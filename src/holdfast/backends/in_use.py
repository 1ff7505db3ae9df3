"""Whether a store on this host is in use, asked without ever waiting.

A process that only looks must not wait for one that writes: a stopped process may keep the lock for
days. While a store is in use, a reader finds it whole and needs no lock. If it is not in use, its
last process may have died in the middle of a write, and the next one to open it recovers it, under
the lock.
"""

from __future__ import annotations

import os

from holdfast.names import SCHEME

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


def is_in_use(url: str) -> bool:
    """Returns whether a process has the store open; False for stores where looking never waits."""
    found = SCHEME.match(url)
    scheme = "" if found is None else found.group(1)
    path = url[len(scheme) + 1 if scheme else 0 :].removeprefix("//")
    if scheme in ("", "file", "files"):
        return _is_directory_in_use(path)
    return scheme == "sqlite" and os.path.exists(f"{path}-shm")


def _is_directory_in_use(path: str) -> bool:
    """Tries the two locks of `files/opening.py` in the order used there, without waiting."""
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

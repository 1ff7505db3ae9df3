"""Whether names still lead to the files that were opened: `rm`, `mv`, `git stash` under a store.

A descriptor still works when its file has lost its name. Every write through it succeeds, and all
that is written is gone when the last descriptor is closed. So a store looks, after a sync and
before it acknowledges, whether each name still leads to the file that it opened. A look before the
sync would miss a file that is taken in between.

The look is exact: it stats each name and compares device and inode. On Linux, inotify says when no
look is needed. The watches are on the files themselves and on the directories on the way to them,
for being moved, removed or replaced; writing a file, or making others beside it, causes no event.
An event means only that a look is due: a chmod or a new hard link causes one and does no harm.
Without inotify, or when its few instances per user are used up, a look is made each time.

inotify does not report that something was mounted over a name. That, and what happens while nobody
commits, is found by one thread of the process, which looks once a second at every open store.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import select
import stat
from collections.abc import Callable
from functools import cache
from threading import Lock, Thread
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from holdfast.backends.gates import open_gate, shut_gate, start_thread

_log = logging.getLogger("holdfast.backends")

_ATTRIB, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x4, 0x200, 0x400, 0x800
_CLOSE_WRITE, _CLOSE_NOWRITE, _OPEN = 0x8, 0x10, 0x20
_DONT_FOLLOW, _MASK_ADD = 0x02000000, 0x20000000
_EVENTS = _ATTRIB | _DELETE_SELF | _MOVE_SELF
_USES = _CLOSE_WRITE | _CLOSE_NOWRITE | _OPEN
_EVENT_BYTES = 4096
_LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

NOTIFY_AFTER = 200
"""How many looks are made before inotify is used.

Closing an inotify queue can take 20 ms, which the kernel spends waiting, when the store is closed
or the process ends. That is more than 1,000 looks take, so for a few commits looks are cheaper.
"""

_ASK_AGAIN_AFTER = 10_000


class _Watched(NamedTuple):
    """A name, and the file that it led to."""

    path: str
    at: int | None  # the directory that `path` begins at; None: it is absolute
    fd: int
    device: int
    inode: int
    is_folder: bool
    events: int


class FileWatch:
    """The names that one open store relies on.

    `is_due(0)` returns whether something may have happened since the last look, in half a
    microsecond and without a Python frame; then `look()` returns what. Both are for one thread at a
    time: the one that has the store's lock for commits. `keep` and `taken` are for any thread. A
    new watch is due.
    """

    def __init__(self, *, notify_after: int | None = None) -> None:
        self.is_due: Callable[[int], object] = _always
        self._left = NOTIFY_AFTER if notify_after is None else notify_after  # looks until inotify
        self._fd = -1
        self._watched: dict[str, _Watched] = {}
        self._needed: dict[str, _Watched] = {}  # those that are not implied by others
        self._numbers: dict[str, int] = {}  # of the inotify watches

    @property
    def is_notified(self) -> bool:
        """Whether inotify says when a look is due."""
        return self._fd >= 0

    def keep(
        self,
        what: str,
        path: str,
        fd: int,
        *,
        at: int | None = None,
        uses: bool = False,
        is_implied: bool = False,
    ) -> None:
        """Watches whether `path` leads to the file that is open as `fd`.

        `what` is the name of the file in messages; a watch with that name is replaced. `path`
        begins at the directory `at`, or is absolute. Both descriptors must stay open while they are
        watched. With `uses`, a look is also due when any process opened or closed the file. A
        directory on the way to another watched name `is_implied`: if it is taken, that name is too.
        """
        found = os.fstat(fd)
        is_folder = stat.S_ISDIR(found.st_mode)
        events = _EVENTS | _USES if uses else _EVENTS
        watched = _Watched(path, at, fd, found.st_dev, found.st_ino, is_folder, events)
        if watched == self._watched.get(what):
            return
        self.forget(what)
        self._watched[what] = watched
        if not is_implied:
            self._needed[what] = watched
        self.is_due = _always  # until the next look, which adds this file to inotify

    def forget(self, what: str) -> None:
        """Stops watching a file."""
        self._watched.pop(what, None)
        self._needed.pop(what, None)
        number = self._numbers.pop(what, None)
        if number is not None and number not in self._numbers.values():
            _inotify().remove(self._fd, number)

    def look(self) -> list[str]:
        """Returns the files, as `keep` named them, whose names no longer lead to them."""
        if self._left:
            self._left -= 1
        elif self.is_due is _always:
            self._ask_kernel()
        if self._fd >= 0:
            # First empty the queue, then look: an event in between makes the next look due. The
            # other way round it would be discarded unseen.
            with contextlib.suppress(BlockingIOError):
                while os.read(self._fd, _EVENT_BYTES):
                    pass
            # A link on the way may have been replaced by another one that leads to the same place:
            # that one must be watched from now on.
            if not self._watch_ways():
                self._give_up_notifying()
            return self.taken()
        for path, at, _, device, inode, *_ in list(self._needed.values()):
            try:
                found = os.stat(path, dir_fd=at, follow_symlinks=False)
            except OSError:
                return self.taken()
            if found.st_ino != inode or found.st_dev != device:
                return self.taken()
        return []

    def taken(self) -> list[str]:
        """Returns what `look` does, for any thread; leaves the events of inotify to `look`."""
        taken: list[str] = []
        for what, (path, at, _, device, inode, *_) in list(self._watched.items()):
            try:
                found = os.stat(path, dir_fd=at, follow_symlinks=False)
                if found.st_ino != inode or found.st_dev != device:
                    taken.append(what)
            except OSError as exc:
                if exc.errno in _LEADS_NOWHERE:
                    taken.append(what)
                else:
                    # A directory on the way can no longer be entered, or a disk fails. That does
                    # not show that the file was taken, and its next use raises its own error.
                    _log.warning("%s cannot be looked at: %s", what, exc)
        return taken

    def close(self) -> None:
        """Ends the watch; in a forked child this leaves the parent's watch in place."""
        self._watched.clear()
        self._needed.clear()
        self._give_up_notifying()

    def _ask_kernel(self) -> None:
        """Adds all files to inotify, or none: silence about some files would prove nothing."""
        inotify = _inotify()
        if self._fd < 0:
            self._fd = inotify.begin()
        for what, watched in list(self._watched.items()):
            if what not in self._numbers and self._fd >= 0:
                number = inotify.add(self._fd, f"/proc/self/fd/{watched.fd}", watched.events)
                if number >= 0 and watched.is_folder and watched.at is not None:
                    # Removing an empty folder that is open causes no event of the folder itself, so
                    # the one above it is watched for deletions.
                    above = f"/proc/self/fd/{watched.at}"
                    number = min(number, inotify.add(self._fd, above, _DELETE))
                if number < 0:
                    self._give_up_notifying()
                else:
                    self._numbers[what] = number
        if self._fd >= 0:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            self.is_due = poll.poll
        else:
            self._left = _ASK_AGAIN_AFTER

    def _watch_ways(self) -> bool:
        """Watches every directory and link on the way to an absolute path; returns False if not."""
        add, fd = _inotify().add, self._fd
        for watched in list(self._watched.values()):
            if watched.at is None:
                for path in _ways(watched.path):
                    if os.path.lexists(path) and add(fd, path, _EVENTS | _DONT_FOLLOW) < 0:
                        return False
        return True

    def _give_up_notifying(self) -> None:
        self._left = _ASK_AGAIN_AFTER
        self.is_due = _always
        self._numbers.clear()
        if self._fd >= 0:
            # Forgotten before it is closed: after an interrupt this may run again, and by then the
            # number may belong to another file.
            fd, self._fd = self._fd, -1
            os.close(fd)


def _always(timeout: int) -> bool:
    """Takes the place of `poll` where inotify is not used: a look is always due."""
    del timeout
    return True


def _ways(path: str) -> set[str]:
    """Returns every directory and link above `path`, the root excepted, which cannot be moved."""
    found: set[str] = set()
    for way in (path, os.path.realpath(path)):
        above = os.path.dirname(way)
        while above != os.path.dirname(above):
            found.add(above)
            above = os.path.dirname(above)
    return found


# --- inotify --------------------------------------------------------------------------------------


class _Inotify:
    """The three calls of the C library; each returns -1 if it fails or does not exist."""

    def __init__(self, library: Any) -> None:
        self._begin = getattr(library, "inotify_init1", None)
        self._add = getattr(library, "inotify_add_watch", None)
        self._remove = getattr(library, "inotify_rm_watch", None)

    def begin(self) -> int:
        return -1 if self._begin is None else self._begin(os.O_NONBLOCK | os.O_CLOEXEC)

    def add(self, fd: int, path: str, events: int) -> int:
        assert self._add is not None, "BUG: a watch of a queue that was never begun"
        # Added to the events already watched of this file: two names may lead to it.
        return self._add(fd, os.fsencode(path), ctypes.c_uint32(events | _MASK_ADD))

    def remove(self, fd: int, number: int) -> None:
        assert self._remove is not None, "BUG: a watch of a queue that was never begun"
        self._remove(fd, number)


@cache
def _inotify() -> _Inotify:
    return _Inotify(ctypes.CDLL(None))


# --- the look while nobody commits ----------------------------------------------------------------

LOOK_EVERY_S = 1.0


class Looked(Protocol):
    """An open store whose files are looked at while nobody commits."""

    def look_while_idle(self) -> None:
        """Looks, unless a commit is under way, which looks itself. It must not wait."""
        ...


class IdleLooks:
    """One thread of the process for all its open stores; there is none while no store is open."""

    def __init__(self, every_s: float = LOOK_EVERY_S) -> None:
        self._every_s = every_s
        self.after_fork()

    def begin(self, store: Looked) -> None:
        """Looks at `store` from now on, about once a second."""
        with self._mutex:
            self._stores.add(store)
            if self._thread is None:
                thread = Thread(target=self._run, name="holdfast-look", daemon=True)
                try:
                    start_thread(thread)
                except RuntimeError as exc:
                    # No more threads for this user. Commits look themselves.
                    _log.warning("idle stores are not looked at: %s", exc)
                else:
                    self._thread = thread

    def end(self, store: Looked) -> None:
        """Looks at `store` no more; a look that has begun still ends."""
        with self._mutex:
            self._stores.discard(store)
            if not self._stores:
                open_gate(self._ended)

    def after_fork(self) -> None:
        """Starts empty: a forked child has neither the thread nor the stores of its parent."""
        self._mutex = Lock()
        self._ended = shut_gate()  # opened when there is nothing left to look at
        self._stores: WeakSet[Looked] = WeakSet()
        self._thread: Thread | None = None

    def _run(self) -> None:
        while True:
            self._ended.acquire(timeout=self._every_s)
            with self._mutex:
                stores = list(self._stores)
                if not stores:
                    self._thread = None
                    return
            while stores:
                # Popped, so that a store that nothing else refers to can be freed.
                _look_at(stores.pop())


def _look_at(store: Looked) -> None:
    try:
        store.look_while_idle()
    except Exception:
        _log.exception("a look at the files of a store failed")


idle_looks = IdleLooks()
os.register_at_fork(after_in_child=idle_looks.after_fork)

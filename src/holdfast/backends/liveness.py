"""Which workers are alive on this host, known from the kernel: one locked file per worker.

A worker locks `workers/<first 32 hex digits of sha256(owner)>` for as long as it lives. However it
ends, the kernel releases the lock, so a file that can be locked belonged to a dead worker. This
needs no heartbeat, no time limit, and no process number, which could be used again.

`flock` belongs to the open file description. So it works between two handles of one process. And a
forked child, which shares the description, must close its copies: otherwise the child would make
its dead parent look alive. A hook closes them before any other code of the child runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from threading import RLock
from weakref import WeakSet

from holdfast.backends.file_watch import FileWatch
from holdfast.backends.gates import held_here, reentered
from holdfast.errors import CLOSE_SOME, NO_DESCRIPTORS, UnavailableError

_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_PROBE = "probe"


class Workers:
    """The worker files of one directory, which is made when the first worker is held."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        at: int | None = None,
        watch: FileWatch | None = None,
        read_only: bool = False,
    ) -> None:
        """`directory` begins at the open directory `at`, if that is given, wherever it is now.

        `watch` watches each file that is held: if the file is removed, its worker looks dead.
        """
        self._directory = os.fspath(directory)
        self._at = at
        self._watch = watch
        self._read_only = read_only
        self._directory_fd = -1
        self._held: dict[str, int] = {}
        self._mutex = RLock()
        self._is_held_here = held_here(self._mutex)
        _open_workers.add(self)

    def hold(self, owner: str) -> None:
        """Declares that `owner` lives in this process, until `close` or the process's end."""
        if owner in self._held:
            return
        self._check_reentered()
        with self._mutex:
            if owner not in self._held:
                name = _file_name(owner)
                self._held[owner] = fd = self._lock_file(name)
                if self._watch is not None:
                    if self._at is None:  # else whoever opened that directory watches this one
                        self._watch.keep("its workers", self._directory, self._directory_fd)
                    self._watch.keep(f"workers/{name}", name, fd, at=self._directory_fd)

    def is_alive(self, owner: str) -> bool:
        """Returns whether a process holds `owner`; False if it died, was closed or never existed.

        The file of a dead worker is removed, so that only files of living workers stay.
        """
        if owner in self._held:
            return True
        self._check_reentered()
        with self._mutex:
            try:
                return self._probe(_file_name(owner))
            except FileNotFoundError:
                return False
            except OSError as exc:
                raise self._unavailable(exc) from exc

    def close(self) -> None:
        """Ends every worker of this object, and removes their files."""
        with self._mutex:
            while self._held:
                owner, fd = self._held.popitem()
                # Another handle may hold the same owner: then the file stays.
                with contextlib.suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(_file_name(owner), dir_fd=self._directory_fd)
                os.close(fd)
            directory_fd, self._directory_fd = self._directory_fd, -1
            if directory_fd >= 0:
                os.close(directory_fd)

    def after_fork(self) -> None:
        """Runs in a forked child: closes its descriptors, which leaves the parent's locks alone."""
        self._mutex = RLock()
        self._is_held_here = held_here(self._mutex)
        for fd in (*self._held.values(), self._directory_fd):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._held.clear()
        self._directory_fd = -1

    def _check_reentered(self) -> None:
        """Raises in a signal handler that would wait for a call of its own thread."""
        if self._is_held_here():
            raise reentered("a look at workers")

    def _lock_file(self, name: str) -> int:
        # The lock is shared, so two handles may hold one owner. A probe may have opened the file
        # before this locked it, taken it for a dead worker's and removed it. Then this lock is on a
        # file without a name, which no probe will find, so a new file is made.
        try:
            while True:
                fd = os.open(name, _OPEN, 0o600, dir_fd=self._open_directory(create=True))
                try:
                    fcntl.flock(fd, fcntl.LOCK_SH)
                    if os.fstat(fd).st_nlink > 0:
                        return fd
                except BaseException:
                    os.close(fd)
                    raise
                os.close(fd)
        except OSError as exc:
            raise self._unavailable(exc) from exc

    def _probe(self, name: str) -> bool:
        directory_fd = self._open_directory(create=False)
        if self._read_only:
            return self._look(name, directory_fd)
        # Two probes of a dead worker at once would each take the other's lock for the worker's, so
        # probes take turns by a lock of their own.
        probe_fd = os.open(_PROBE, _OPEN, 0o600, dir_fd=directory_fd)
        try:
            fcntl.flock(probe_fd, fcntl.LOCK_EX)
            fd = os.open(name, _OPEN & ~os.O_CREAT, dir_fd=directory_fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=directory_fd)
                return False
            except BlockingIOError:
                return True
            finally:
                os.close(fd)
        finally:
            os.close(probe_fd)

    @staticmethod
    def _look(name: str, directory_fd: int) -> bool:
        """Probes without writing; takes another probe at the same moment for the worker."""
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def _open_directory(self, *, create: bool) -> int:
        if self._directory_fd < 0:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self._directory, 0o700, dir_fd=self._at)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._directory_fd = os.open(self._directory, flags, dir_fd=self._at)
        return self._directory_fd

    def _unavailable(self, exc: OSError) -> UnavailableError:
        return UnavailableError(
            f'the workers in "{self._directory}" cannot be examined: {exc.strerror}',
            hint=CLOSE_SOME if exc.errno in NO_DESCRIPTORS else None,
        )


def _file_name(owner: str) -> str:
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]


_open_workers: WeakSet[Workers] = WeakSet()


def _after_fork() -> None:
    for workers in list(_open_workers):
        workers.after_fork()


os.register_at_fork(after_in_child=_after_fork)

"""Every call to the system that a store makes, each of which can be made to fail.

A files store makes its calls through a `Disk`; a few go to `os`, `fcntl` and `mmap` directly, and
are reached by putting a stand-in for those modules into ours. SQLite (a store of its own, and the
index of a files store) is reached below its own file layer: the table of system calls of its unix
VFS is pointed at functions of ours, so that errors, interrupts and short transfers are exactly what
the kernel would answer. Syncs are not in that table; the methods of its files have them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import apsw

from holdfast.backends import liveness, local_path
from holdfast.backends.files import directory, index, journal, opening
from holdfast.backends.files import directory as shared
from holdfast.backends.files import inspection as verify
from holdfast.backends.files.disk import Disk
from holdfast.backends.sqlite import connection, inspection
from holdfast.backends.sqlite import opening as sqlite_opening
from holdfast.backends.sqlite import opening as wal

SHORT = -1
"""Half of the bytes are read or written."""

_NAMES = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS)
LASTING = (errno.EIO, errno.ENOSPC, errno.EMFILE)
"""What may also go on for good: a broken disk, a full one, a limit."""
KINDS: dict[str, tuple[int, ...]] = {
    "open": (*_NAMES, errno.EMFILE, errno.EINTR),
    "pread": (errno.EIO, errno.EINTR, SHORT),
    "pwrite": (errno.EIO, errno.ENOSPC, errno.EINTR, SHORT),
    "sync": (errno.EIO, errno.ENOSPC, errno.EINTR),
    "truncate": (errno.EIO, errno.EINTR, errno.EROFS),
    "rename": _NAMES,
    "unlink": _NAMES,
    "mkdir": _NAMES,
    "lock": (errno.EIO, errno.EINTR, errno.ENOLCK),
    "mmap": (errno.ENOMEM, errno.EMFILE, errno.EACCES),
    "stat": (errno.EIO,),
    "listdir": (errno.EIO, errno.EMFILE),
    "chmod": (errno.EIO, errno.EROFS),
    "reserve": (errno.EIO, errno.ENOSPC),
}
"""What can become of each kind of call. `close` and the release of a lock do not fail."""

_IN_A_ROW = 3


@dataclass(frozen=True)
class Fault:
    """The nth call of a kind, counted from 1, fails; if `lasts`, all that can fail so from then on.

    An interrupt comes three times in a row, but not for ever: who is interrupted tries again.
    """

    call: str
    nth: int
    kind: int
    lasts: bool = False

    def __str__(self) -> str:
        name = "short" if self.kind == SHORT else errno.errorcode[self.kind]
        return f"{name} at {self.call} {self.nth}" + (" and from then on" if self.lasts else "")


class Kernel(Protocol):
    """Who is told what was written and synced, and what a failed sync was about."""

    def wrote(self, fd: int, offset: int, size: int) -> None: ...
    def synced(self, fd: int) -> None: ...
    def failed(self, fd: int) -> None: ...
    def cut(self, fd: int, size: int) -> None: ...


@dataclass
class Faults:
    """Counts calls while it is armed, and says which of them fail."""

    plan: tuple[Fault, ...] = ()
    is_armed: bool = False
    calls: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    hits: list[str] = field(default_factory=list[str])
    """What failed: the call, and what it was about."""
    swallow: str = ""
    """A kind of call whose errors are not reported: a planted fault."""
    retries_syncs: bool = False
    """Whether a sync that failed is tried again at once: another planted fault."""
    kernel: Kernel | None = None
    _begun: set[Fault] = field(default_factory=set[Fault])

    def arm(self, *plan: Fault) -> None:
        self.plan, self.is_armed = plan, True
        self.calls, self.counts, self.hits, self._begun = [], Counter(), [], set()

    def disarm(self) -> None:
        self.is_armed = False

    def meet(self, call: str, subject: object) -> int:
        """Counts a call; returns what becomes of it, 0 if nothing does."""
        if not self.is_armed:
            return 0
        self.calls.append(call)
        self.counts[call] += 1
        for fault in self.plan:
            if self._is_hit(fault, call):
                if call == "sync" and self.kernel is not None and isinstance(subject, int):
                    self.kernel.failed(subject)
                if len(self.hits) < 30:
                    self.hits.append(f"{call} {_tell(subject)} ({fault})")
                return fault.kind
        return 0

    def _is_hit(self, fault: Fault, call: str) -> bool:
        behind = self.counts[call] - fault.nth
        if call == fault.call and behind == 0:
            self._begun.add(fault)
            return True
        if fault.kind == errno.EINTR:
            return call == fault.call and 0 < behind < _IN_A_ROW
        return fault.lasts and fault in self._begun and fault.kind in KINDS[call]

    def run(self, call: str, subject: object, real: Callable[..., Any], *arguments: Any) -> Any:
        kind = self.meet(call, subject)
        if kind > 0:
            if self.swallow == call or (self.retries_syncs and call == "sync"):
                return None
            raise OSError(kind, os.strerror(kind))
        answer = real(*arguments)
        if self.kernel is not None and isinstance(subject, int):
            if call == "sync":
                self.kernel.synced(subject)
            elif call == "truncate":
                self.kernel.cut(subject, arguments[-1])
        return answer

    def wrote(self, fd: int, offset: int, size: int) -> int:
        if self.kernel is not None and size > 0:
            self.kernel.wrote(fd, offset, size)
        return size


FAULTS = Faults()
"""Those of this process: what is planted into modules and SQLite is planted once."""


def _tell(subject: object) -> str:
    if isinstance(subject, int):
        try:
            return os.path.basename(os.readlink(f"/proc/self/fd/{subject}"))
        except OSError:
            return f"descriptor {subject}"
    return str(subject)


class FaultyDisk(Disk):
    """The disk of a files store; each call may fail."""

    def __init__(self, faults: Faults = FAULTS) -> None:
        self.faults = faults
        real = Disk()
        for name, call in (
            ("size", "stat"),
            ("truncate", "truncate"),
            ("listdir", "listdir"),
            ("sync", "sync"),
            ("sync_directory", "sync"),
            ("reserve", "reserve"),
        ):
            setattr(self, name, self._counted(call, getattr(real, name)))
        for name in ("stat", "unlink", "mkdir", "rename"):
            setattr(self, name, self._named(name, getattr(real, name)))

    def _counted(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda fd, *rest: self.faults.run(call, fd, real, fd, *rest)

    def _named(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda name, *rest, at: self.faults.run(
            call, name, lambda *given: real(*given, at=at), name, *rest
        )

    def open(self, name: str, flags: int, *, at: int, mode: int = 0o600) -> int:
        real = super().open
        return self.faults.run("open", name, lambda: real(name, flags, at=at, mode=mode))

    def pread(self, fd: int, size: int, offset: int) -> bytes:  # type: ignore[override]
        kind = self.faults.meet("pread", fd)
        if kind > 0:
            raise OSError(kind, os.strerror(kind))
        return os.pread(fd, (size + 1) // 2 if kind == SHORT else size, offset)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:  # type: ignore[override]
        kind = self.faults.meet("pwrite", fd)
        whole = len(data)
        if kind == SHORT:
            data = bytes(data)[: (whole + 1) // 2]
        if kind > 0:
            if self.faults.swallow == "pwrite":
                return len(data)
            # A disk that is full may take some of it first.
            if kind == errno.ENOSPC and len(data) > 1:
                self.faults.wrote(fd, offset, os.pwrite(fd, bytes(data)[: len(data) // 2], offset))
            raise OSError(kind, os.strerror(kind))
        size = self.faults.wrote(fd, offset, os.pwrite(fd, data, offset))
        return whole if self.faults.swallow == "short" else size

    def lock(self, fd: int, how: int) -> None:  # type: ignore[override]
        if how == fcntl.LOCK_UN:
            fcntl.flock(fd, how)
        else:
            self.faults.run("lock", fd, fcntl.flock, fd, how)


class _StandIn:
    """A module, some functions of which may fail."""

    def __init__(self, real: Any, calls: dict[str, str], faults: Faults) -> None:
        self._real = real
        for name, call in calls.items():
            if hasattr(real, name):
                setattr(self, name, self._faulty(call, getattr(real, name), faults))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @staticmethod
    def _faulty(call: str, real: Callable[..., Any], faults: Faults) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if call == "lock" and arguments[1] == fcntl.LOCK_UN:
                return real(*arguments)
            if call == "pwrite":
                return _short_or_real(faults, real, *arguments)
            return faults.run(call, arguments[0], lambda: real(*arguments, **named))

        return run


def _short_or_real(
    faults: Faults, real: Callable[..., int], fd: int, data: bytes, offset: int
) -> int:
    kind = faults.meet("pwrite", fd)
    if kind > 0:
        raise OSError(kind, os.strerror(kind))
    size = real(fd, data[: len(data) // 2] if kind == SHORT else data, offset)
    return faults.wrote(fd, offset, size)


_OS = {
    **{"open": "open", "pwrite": "pwrite", "fsync": "sync", "ftruncate": "truncate"},
    **{"unlink": "unlink", "link": "rename", "mkdir": "mkdir", "makedirs": "mkdir"},
    **{"stat": "stat", "lstat": "stat", "fstat": "stat", "listdir": "listdir", "chmod": "chmod"},
}
_MODULES = {
    "os": (
        _OS,
        (
            *(directory, index, journal, liveness, local_path, shared, verify),
            *(connection, inspection, sqlite_opening, wal),
        ),
    ),
    "fcntl": ({"flock": "lock"}, (liveness,)),
    "mmap": ({"mmap": "mmap"}, (shared,)),
}

# Names in SQLite's table of system calls, ours, and how they are called in C.
_INT, _PTR, _SIZE = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
_OFFSET, _SIGNED, _TEXT = ctypes.c_int64, ctypes.c_ssize_t, ctypes.c_char_p
_SYSTEM: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "ftruncate": ("truncate", _INT, (_INT, _OFFSET)),
    "pread": ("pread", _SIGNED, (_INT, _PTR, _SIZE, _OFFSET)),
    "pread64": ("pread", _SIGNED, (_INT, _PTR, _SIZE, _OFFSET)),
    "pwrite": ("pwrite", _SIGNED, (_INT, _PTR, _SIZE, _OFFSET)),
    "pwrite64": ("pwrite", _SIGNED, (_INT, _PTR, _SIZE, _OFFSET)),
    "unlink": ("unlink", _INT, (_TEXT,)),
    "mmap": ("mmap", _PTR, (_PTR, _SIZE, _INT, _INT, _INT, _OFFSET)),
    "stat": ("stat", _INT, (_TEXT, _PTR)),
    "lstat": ("stat", _INT, (_TEXT, _PTR)),
    "fstat": ("stat", _INT, (_INT, _PTR)),
}
if sys.platform == "linux":
    # They take arguments in a variable number, which other systems pass in another way.
    _SYSTEM["open"] = ("open", _INT, (_TEXT, _INT, _INT))
    _SYSTEM["fcntl"] = ("lock", _INT, (_INT, _INT, _PTR))

_kept: list[Any] = []


def _system_call(name: str, pointer: int, faults: Faults) -> Any:
    call, answer, parts = _SYSTEM[name]
    kind_of = ctypes.CFUNCTYPE(answer, *parts, use_errno=True)
    real = kind_of(pointer)
    failed = ctypes.c_void_p(-1).value if call == "mmap" else -1

    def run(*arguments: Any) -> Any:
        # A connection that is freed while an exception is on its way calls us with that exception
        # set, at which the first call from here would stumble: this one does.
        try:  # noqa: SIM105
            object()
        except SystemError:
            pass
        if call == "lock" and not _takes_a_lock(arguments):
            return real(*arguments)
        subject = arguments[4] if call == "mmap" else arguments[0]
        kind = faults.meet(
            call, os.path.basename(subject) if isinstance(subject, bytes) else subject
        )
        if kind > 0:
            ctypes.set_errno(kind)
            return failed
        if kind == SHORT:
            fd, buffer, size, offset = arguments
            arguments = fd, buffer, (size + 1) // 2, offset
        answer = real(*arguments)
        if faults.kernel is not None and answer != failed:
            if call == "pwrite":
                faults.kernel.wrote(arguments[0], arguments[3], answer)
            elif call == "truncate":
                faults.kernel.cut(*arguments)
        return answer

    return kind_of(run)


def _takes_a_lock(arguments: tuple[Any, ...]) -> bool:
    _, command, lock = arguments
    if command not in (fcntl.F_SETLK, fcntl.F_SETLKW) or not lock:
        return False
    return ctypes.c_short.from_address(lock).value != fcntl.F_UNLCK


_SYNC_PLACE = 5 * ctypes.sizeof(ctypes.c_void_p)  # xSync in the table of a file's methods
_FD_PLACE = 3 * ctypes.sizeof(ctypes.c_void_p)  # the descriptor in a file of the unix VFS
_VFS_PLACE = ctypes.sizeof(ctypes.c_void_p)  # the VFS in a file
_SLEEP_PLACE = 14 * ctypes.sizeof(ctypes.c_void_p)  # xSleep in a VFS
_SLEEP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_PAGE = mmap.PAGESIZE


def _hook_syncs(faults: Faults) -> None:
    """Puts our function into the two tables of methods that files of the unix VFS have.

    The tables are constants in memory that is not writable, until it is made so. A VFS of apsw's
    would do it by the book, but raises errors that SQLite itself has dealt with.
    """
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "probe")
        db: Any = apsw.Connection(path)
        db.pragma("journal_mode", "wal")
        db.execute("CREATE TABLE t (a)")
        for which in (apsw.SQLITE_FCNTL_FILE_POINTER, apsw.SQLITE_FCNTL_JOURNAL_POINTER):
            file = ctypes.c_void_p()
            assert db.file_control("main", which, ctypes.addressof(file))
            assert file.value
            fd = ctypes.c_int.from_address(file.value + _FD_PLACE).value
            assert os.readlink(f"/proc/self/fd/{fd}").startswith(path), "SQLite changed its layout"
            _shorten_sleep(ctypes.c_void_p.from_address(file.value + _VFS_PLACE).value or 0)
            methods: int = ctypes.c_void_p.from_address(file.value).value or 0
            _hook_sync(methods + _SYNC_PLACE, faults)
        db.close()


def _shorten_sleep(vfs: int) -> None:
    """SQLite waits up to ten seconds for a lock that is refused again and again: not here."""
    _kept.append(call := _SLEEP(lambda _, microseconds: microseconds))
    ctypes.c_void_p.from_address(vfs + _SLEEP_PLACE).value = ctypes.cast(
        call, ctypes.c_void_p
    ).value


def _hook_sync(slot: int, faults: Faults) -> None:
    start = slot // _PAGE * _PAGE
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    size = slot + ctypes.sizeof(ctypes.c_void_p) - start
    assert protect(ctypes.c_void_p(start), ctypes.c_size_t(size), 3) == 0
    real = _SYNC(ctypes.c_void_p.from_address(slot).value or 0)

    def sync(file: int, flags: int) -> int:
        fd = ctypes.c_int.from_address(file + _FD_PLACE).value
        if faults.meet("sync", fd) > 0:
            is_hidden = faults.swallow == "sync" or faults.retries_syncs
            return 0 if is_hidden else apsw.SQLITE_IOERR_FSYNC
        code = real(file, flags)
        if faults.kernel is not None:
            faults.kernel.synced(fd)
        return code

    _kept.append(call := _SYNC(sync))
    ctypes.c_void_p.from_address(slot).value = ctypes.cast(call, ctypes.c_void_p).value


def install() -> None:
    """Puts the stand-ins in place, once in a process; nothing fails until `FAULTS.arm`."""
    if _kept:
        return
    for name, (calls, modules) in _MODULES.items():
        real = {"os": os, "fcntl": fcntl, "mmap": mmap}[name]
        stand_in = _StandIn(real, calls, FAULTS)
        for module in modules:
            setattr(module, name, stand_in)
    layer = apsw.VFS("calls", "unix")
    _kept.append(layer)
    if sys.platform == "linux":
        _hook_syncs(FAULTS)
    for name in _SYSTEM:
        pointer = layer.xGetSystemCall(name)
        if pointer:
            call = _system_call(name, pointer, FAULTS)
            _kept.append(call)
            layer.xSetSystemCall(name, ctypes.cast(call, ctypes.c_void_p).value)
    # Who waits for a lock that is refused for good must not do so in real time.
    for module, setting in ((index, "_BUSY_MS"), (index, "_BUSY_UPDATE_MS")):
        setattr(module, setting, 1)
    setattr(sqlite_opening, "_ASKED_MAX", 5)  # noqa: B010


def make_small() -> None:
    """Makes everything happen early: rings wrap, segments rotate, indexes and snapshots come."""
    from holdfast.backends.files import catalog, text
    from holdfast.backends.files import journal as ring
    from holdfast.core import snapshot

    for module, setting, value in (
        (ring, "RING_BYTES", 8192),
        (text, "RESERVE_BYTES", 4096),
        (journal, "SEGMENT_BYTES", 6000),
        (catalog, "FLUSH_BYTES", 5000),
        (opening, "WORTH_INDEXING_BYTES", 1000),
        (snapshot, "GROWTH_BYTES_MIN", 2500),
        (snapshot, "CLOSE_BYTES_MIN", 1500),
        (sqlite_opening, "PAGE_BYTES", 1024),
        (sqlite_opening, "WAL_PAGES", 40),
    ):
        assert hasattr(module, setting), f"{setting} was renamed"
        setattr(module, setting, value)

"""Short forms of T1, T5 and T7: kill a store, fail its disk calls, fill its disk; then judge it.

Every trial runs in child processes. One works until the trouble comes, and reports what was
acknowledged; another opens the store again and judges it. The store passes if everything that was
acknowledged is there, once and in order; if nothing is there that nobody wrote; and if every byte
verifies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, Literal, cast

import apsw

from holdfast.backends.files import FilesBackend, journal
from holdfast.backends.files.disk import Disk
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import Clock
from holdfast.core import codec
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.opening import open_store
from holdfast.selftest.examinations import CheckResult
from holdfast.selftest.processes import Children, ForkedChild, Say, Silent
from holdfast.settings import Settings
from holdfast.store import Store

# --- trouble --------------------------------------------------------------------------------------
#
# Trouble at the nth call to the disk: the process is killed, the call fails, or space runs out.
#
# A store on plain files gets a `Disk` that makes it. SQLite gets it from a VFS of apsw, which every
# later connection of the process uses; so trouble is installed in a child only, and ends with it.


Kind = Literal["none", "kill", "torn", "EIO", "ENOSPC", "quota"]

_CHANGING = (
    *("truncate", "rename", "unlink", "mkdir", "sync", "sync_directory"),
    *("open", "reserve"),
)
# The name of SQLite's default VFS on Linux and macOS.
_SYSTEM = "unix"
_READING = ("size", "stat", "listdir", "pread")


class Trouble:
    """Counts calls to the disk, and makes trouble at the nth, counted from 1.

    For "quota", `at` is how many bytes files may grow by in all; after that every write fails.
    """

    def __init__(self, kind: Kind, at: int = 0) -> None:
        self.calls = 0
        self.kind: Kind = kind
        self.at = at

    def run(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self._count()
        return call(*arguments, **named)

    def write(
        self, call: Callable[[bytes, int], Any], data: bytes, offset: int, growth: Callable[[], int]
    ) -> Any:
        """Makes a write; a "torn" kill writes two thirds of it, then kills the process."""
        if self.kind == "torn" and self.calls + 1 == self.at:
            call(bytes(data[: len(data) * 2 // 3]), offset)
        self._count()
        if self.kind == "quota":
            self.at -= max(growth(), 0)
            if self.at < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(data, offset)

    def _count(self) -> None:
        self.calls += 1
        if self.kind in ("none", "quota") or self.calls != self.at:
            return
        if self.kind in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        number = errno.EIO if self.kind == "EIO" else errno.ENOSPC
        raise OSError(number, os.strerror(number))


class TroubledDisk(Disk):
    """The disk of a store on plain files, with trouble."""

    def __init__(self, real: Disk, trouble: Trouble) -> None:
        self._real = real
        self._trouble = trouble
        self.pwrite = self._pwrite  # type: ignore[method-assign]
        for name in (*_CHANGING, *_READING):
            setattr(self, name, self._troubled(getattr(real, name)))
        self.lock = real.lock  # type: ignore[method-assign]
        self.close = real.close

    def _troubled(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: self._trouble.run(call, *arguments, **named)

    def _pwrite(self, fd: int, data: bytes, offset: int) -> int:
        def growth() -> int:
            return offset + len(data) - os.fstat(fd).st_size

        return self._trouble.write(
            lambda part, at: self._real.pwrite(fd, part, at), data, offset, growth
        )


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: Any, trouble: Trouble) -> None:
        super().__init__(_SYSTEM, name, flags)
        self._trouble = trouble

    def xRead(self, amount: int, offset: int) -> bytes:
        return _as_sqlite(self._trouble.run, super().xRead, amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        def growth() -> int:
            return offset + len(data) - super(_File, self).xFileSize()

        write = cast("Callable[[bytes, int], None]", super().xWrite)  # pyright: ignore[reportUnknownMemberType]
        _as_sqlite(self._trouble.write, write, data, offset, growth)

    def xSync(self, flags: int) -> None:
        _as_sqlite(self._trouble.run, super().xSync, flags)

    def xTruncate(self, newsize: int) -> None:
        _as_sqlite(self._trouble.run, super().xTruncate, newsize)

    def xFileSize(self) -> int:
        return _as_sqlite(self._trouble.run, super().xFileSize)

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        """Prints nothing: the caller gets the error."""
        return True


class _Vfs(apsw.VFS):
    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble
        super().__init__("troubled", _SYSTEM, makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> _File:
        _as_sqlite(self._trouble.run, lambda: None)
        return _File(name, flags, self._trouble)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        _as_sqlite(self._trouble.run, super().xDelete, filename, syncdir)

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        """Prints nothing: the caller gets the error."""
        return True


def _as_sqlite(call: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a call, and raises an OSError of it as the error that SQLite knows."""
    try:
        return call(*arguments)
    except OSError as exc:
        kind = apsw.FullError if exc.errno == errno.ENOSPC else apsw.IOError
        raise kind(str(exc)) from exc


# Keeps each VFS alive: SQLite goes on calling it.
_kept: list[object] = []


def install(trouble: Trouble, disk: Disk, backend: str) -> dict[str, Any]:
    """Installs trouble in this process, and returns the options to open a store with.

    A store on plain files keeps its index in SQLite, so both backends get the VFS. The ring is made
    by one write here: in pieces it would take hundreds of calls, and few kills would come later.
    """
    journal.PIECE_BYTES = journal.RING_BYTES
    _kept.append(_Vfs(trouble))
    return {"disk": TroubledDisk(disk, trouble)} if backend == "files" else {}


# Imported here, by the parent of all trials, so that no child has to import them again.
BACKENDS = {"files": FilesBackend, "sqlite": SqliteBackend}
SCOPE = "selftest"
LOG = "log"
BLOB_EVERY = 8
KILLS_PER_STORE = 40
CALLS_PER_KILL = 120
WRITES_PER_FAULT = 4
SIZES_KIB = (1, 24, 96, 300, 1060, 1300, 1700)
ITEMS_MAX = 400


class TrialSetup:
    """What every trial needs: a place, a clock, a seed, a disk, and children to run in."""

    def __init__(
        self,
        place: str,
        clock: Clock,
        seed: int,
        make_disk: Callable[[], Disk],
        children: Children,
        tell: Callable[[str], None],
    ) -> None:
        self.place = place
        self.clock = clock
        self.seed = seed
        self.make_disk = make_disk
        self.children = children
        self.tell = tell
        codec.compress(b"")  # imports the compressor once, here, and not in every child

    def chance(self, below: int, *what: object) -> int:
        """Returns a number in range(below), which the seed and `what` alone decide."""
        digest = sha256(repr((self.seed, *what)).encode()).digest()
        return int.from_bytes(digest[:8], "big") % below

    def url(self, backend: str, name: str) -> str:
        path = os.path.join(self.place, f"{backend}-{name}")
        return path if backend == "files" else f"sqlite:{path}.db"

    def remove(self, url: str) -> None:
        """Removes the store of a trial, and the files beside it whose names begin like its own."""
        path = url.removeprefix("sqlite:")
        shutil.rmtree(path, ignore_errors=True)
        for name in os.listdir(self.place):
            if name.startswith(os.path.basename(path)):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.place, name))
                shutil.rmtree(os.path.join(self.place, name), ignore_errors=True)


def item(number: int) -> dict[str, Any]:
    """Returns the nth item to append; every eighth is large enough to become a blob."""
    return {"n": number, "text": f"{number} " * (20_000 if number % BLOB_EVERY == 7 else 30)}


def judge(url: str, acknowledged: int, unknown: int) -> tuple[str, int]:
    """Opens a store again; returns what is wrong with it ("" for nothing) and its number of items.

    Up to `unknown` items may be there beyond the acknowledged ones: nobody knows their outcome.
    """
    try:
        with open_store(url) as store:
            return _judge_open(store, acknowledged, unknown)
    except HoldfastError as error:
        return f"the store does not open: {type(error).__name__}: {error}", 0


def _judge_open(store: Store, acknowledged: int, unknown: int) -> tuple[str, int]:
    found = store.team(SCOPE).state.to_dict().get(LOG, [])
    count = len(found)
    problem = ""
    if count < acknowledged:
        problem = f"{acknowledged} writes were acknowledged, {count} are there"
    elif found != [item(number) for number in range(count)]:
        problem = f"what is there ({count} items) is not what was written"
    elif count > acknowledged + unknown:
        problem = f"{count} writes are there, of which {acknowledged} were acknowledged"
    elif not (report := store.check()).ok:
        problem = f"the check found {report.findings}"
    return problem, count


def _judge_apart(setup: TrialSetup, url: str, acknowledged: int, unknown: int) -> tuple[str, int]:
    """Judges in a child, because a store that crashes its reader is not sound either."""
    try:
        problem, count = setup.children.ask(lambda: judge(url, acknowledged, unknown))
    except Silent as exc:
        return f"the store could not be judged: {exc}", 0
    return problem, count


# --- processes that are killed (T1) ---------------------------------------------------------------


def kill(setup: TrialSetup, *, for_us: int) -> Iterator[CheckResult]:
    """Kills a writing process again and again, at a random moment or at a random disk call."""
    for backend in BACKENDS:
        end_us = setup.clock.boot_us() + for_us // len(BACKENDS)
        trial, total, problem = 0, 0, ""
        url, count = "", 0
        while not problem and (trial < 2 or setup.clock.boot_us() < end_us):
            if trial % KILLS_PER_STORE == 0:
                if url:
                    setup.remove(url)
                url, count = setup.url(backend, f"kill-{trial}"), 0
            setup.tell(f"{backend}: killed {trial} times")
            try:
                acknowledged = _kill_once(setup, backend, url, count, trial)
                total += acknowledged
                problem, count = _judge_apart(setup, url, count + acknowledged, 1)
            except Silent as exc:
                problem = str(exc)
            trial += 1
        if not problem:
            setup.remove(url)
        yield _result(
            f"kills on {backend}",
            problem and f"{problem} (kill {trial}, seed {setup.seed})",
            f"{trial} processes killed while writing, {total} acknowledged writes all there",
            {"trials": trial, "acknowledged": total},
        )


def _kill_once(setup: TrialSetup, backend: str, url: str, first: int, trial: int) -> int:
    """Lets a process write until it is killed; returns how many writes were acknowledged to it."""
    chance = setup.chance(4, backend, trial, "how")
    # "none" is a kill from here, at any moment; the other kinds are kills at a call to the disk.
    kinds: tuple[Kind, ...] = ("none", "none", "kill", "torn")
    kind = kinds[chance]
    at = 1 + setup.chance(CALLS_PER_KILL, backend, trial, "when")

    def write(say: Say, wait: Callable[[], None]) -> None:
        options = install(Trouble(kind, at), setup.make_disk(), backend)
        number = first
        while True:
            with open_store(url, settings=Settings(options=options)) as store:
                scope = store.team(SCOPE)
                for _ in range(BLOB_EVERY):
                    scope.append(LOG, item(number))
                    say(number)
                    number += 1

    child = setup.children.start(write)
    try:
        if kind == "none":
            outcome = _hear_some(child, 1 + chance + setup.chance(12, backend, trial, "acks"))
            setup.clock.sleep(setup.chance(3000, backend, trial, "us") / 1_000_000)
            child.kill()
            return len(outcome) + len(child.last_words())
        return len(child.last_words())
    finally:
        setup.children.end(child)


def _hear_some(child: ForkedChild, count: int) -> list[Any]:
    return [child.hear() for _ in range(count)]


# --- disk calls that fail (T5) --------------------------------------------------------------------


def fail(setup: TrialSetup, *, for_us: int) -> Iterator[CheckResult]:
    """Fails each disk call of a short session in turn, first with EIO and then with ENOSPC."""
    for backend in BACKENDS:
        end_us = setup.clock.boot_us() + for_us // len(BACKENDS)
        calls, problem = _count_calls(setup, backend)
        kinds: tuple[Kind, ...] = ("EIO", "ENOSPC")
        points: list[tuple[Kind, int]] = [(k, at) for k in kinds for at in range(1, calls + 1)]
        points.sort(key=lambda point: setup.chance(1 << 40, backend, point))
        tried = 0
        for kind, at in points:
            if problem or (tried >= 4 and setup.clock.boot_us() >= end_us):
                break
            setup.tell(f"{backend}: {tried} of {len(points)} disk errors")
            problem = _fail_once(setup, backend, kind, at)
            tried += 1
        yield _result(
            f"disk errors on {backend}",
            problem,
            f"{tried} of {len(points)} (every call of a session, EIO and ENOSPC): each one told, "
            "none of them lost or falsified a write",
            {"trials": tried, "points": len(points)},
        )


def _count_calls(setup: TrialSetup, backend: str) -> tuple[int, str]:
    """Returns how many disk calls a session makes to which nothing happens, and what is wrong."""
    url = setup.url(backend, "errors")
    try:
        calls: int = _session(setup, backend, url, "none", 0)["calls"]
    except Silent as exc:  # it hangs or ends on this disk, without any error that was planted
        return 0, f"a session without errors: {exc}"
    setup.remove(url)
    return calls, ""


def _fail_once(setup: TrialSetup, backend: str, kind: Kind, at: int) -> str:
    url = setup.url(backend, f"{kind}-{at}")
    try:
        outcome = _session(setup, backend, url, kind, at)
    except Silent as exc:
        return f"{kind} at call {at}: {exc}"
    problem = _settle(setup, url, outcome)
    setup.remove(url)
    return problem and f"{kind} at call {at}: {problem}"


def _session(setup: TrialSetup, backend: str, url: str, kind: Kind, at: int) -> dict[str, Any]:
    """Opens, writes and closes in a child with trouble; a child before it makes the store."""

    def prepare() -> bool:
        with open_store(url) as store:
            for number in range(2):
                store.team(SCOPE).append(LOG, item(number))
        return True

    def work() -> dict[str, Any]:
        trouble = Trouble(kind, at)
        options = install(trouble, setup.make_disk(), backend)
        outcome = _write(url, options, range(2, 2 + WRITES_PER_FAULT))
        return {**outcome, "calls": trouble.calls}

    setup.children.ask(prepare)
    return setup.children.ask(work)


def _write(url: str, options: dict[str, Any], numbers: range) -> dict[str, Any]:
    """Appends items until one is refused, and closes; returns what came of it."""
    outcome: dict[str, Any] = {
        "acknowledged": numbers.start,
        "unknown": 0,
        "refused": 0,
        "wrong": "",
    }
    try:
        with open_store(url, settings=Settings(options=options)) as store:
            scope = store.team(SCOPE)
            for number in numbers:
                scope.append(LOG, item(number))
                outcome["acknowledged"] = number + 1
    except UnavailableError as error:
        outcome["refused"] += 1
        outcome["unknown"] += not error.outcome_known
    except HoldfastError as error:
        outcome["wrong"] = f"{type(error).__name__} instead of UnavailableError: {error}"
    return outcome


def _settle(setup: TrialSetup, url: str, outcome: dict[str, Any]) -> str:
    """Judges a store after the trouble, writes once more, judges again; returns what is wrong."""
    if outcome["wrong"]:
        return outcome["wrong"]

    def look() -> str:
        problem, count = judge(url, outcome["acknowledged"], outcome["unknown"])
        if problem:
            return problem
        with open_store(url) as store:
            store.team(SCOPE).append(LOG, item(count))
        return judge(url, count + 1, 0)[0]

    try:
        return setup.children.ask(look)
    except Silent as exc:
        return f"the store does not work again: {exc}"


# --- a disk that is full (T7) ---------------------------------------------------------------------


def fill(setup: TrialSetup, *, for_us: int) -> Iterator[CheckResult]:
    """Lets space run out at several sizes; the disk itself is never filled."""
    for backend in BACKENDS:
        end_us = setup.clock.boot_us() + for_us // len(BACKENDS)
        points = [(how, kib) for kib in SIZES_KIB for how in ("limit", "quota")]
        points.sort(key=lambda point: setup.chance(1 << 40, backend, point))
        tried, refused, problem = 0, 0, ""
        for how, kib in points:
            if problem or (tried >= 2 and setup.clock.boot_us() >= end_us):
                break
            setup.tell(f"{backend}: {tried} of {len(points)} times out of space")
            problem, was_refused = _fill_once(setup, backend, how, kib << 10)
            refused += was_refused
            tried += 1
        yield _result(
            f"full disk on {backend}",
            problem,
            f"{tried} times out of space, {refused} refused: each one told, nothing lost, and it "
            "works again",
            {"trials": tried, "refused": refused},
        )


def _fill_once(setup: TrialSetup, backend: str, how: str, size: int) -> tuple[str, int]:
    url = setup.url(backend, f"{how}-{size}")

    def work() -> dict[str, Any]:
        options: dict[str, Any] = {}
        if how == "limit":
            # The kernel's limit for each file. Python ignores SIGXFSZ, so the write itself fails.
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        else:
            options = install(Trouble("quota", size), setup.make_disk(), backend)
        return _write(url, options, range(ITEMS_MAX))

    try:
        outcome = setup.children.ask(work)
    except Silent as exc:
        return f"out of space at {size} bytes ({how}): {exc}", 0
    problem = _settle(setup, url, outcome)
    setup.remove(url)
    return problem and f"out of space at {size} bytes ({how}): {problem}", outcome["refused"]


def _result(check: str, problem: str, found: str, numbers: dict[str, int]) -> CheckResult:
    if problem:
        fix = "do not keep anything there; report this with the line above"
        return CheckResult(check, "failed", problem, fix, numbers)
    return CheckResult(check, "ok", found, None, numbers)

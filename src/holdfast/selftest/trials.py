"""A short T1, T5 and T7: a store is killed, refused by its disk, and out of space; then judged.

Every trial runs in children: one that works until the trouble comes and says what was acknowledged,
one that opens the store again and judges. What counts is the same each time: everything that was
acknowledged is there, once, in order; nothing is there that nobody wrote; every byte verifies.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

from holdfast import codec
from holdfast.backends.files import FilesBackend
from holdfast.backends.files.disk import Disk
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.selftest.judged import Judged
from holdfast.selftest.processes import Child, Children, Say, Silent
from holdfast.selftest.trouble import Kind, Trouble, install
from holdfast.store import Store, open_store

# Imported by the parent of all trials, and not anew by every child.
BACKENDS = {"files": FilesBackend, "sqlite": SqliteBackend}
SCOPE = "selftest"
LOG = "log"
BLOB_EVERY = 8
KILLS_PER_STORE = 40
CALLS_PER_KILL = 120
WRITES_PER_FAULT = 4
SIZES_KIB = (1, 24, 96, 300, 1060, 1300, 1700)
ITEMS_MAX = 400


class Desk:
    """What every trial needs."""

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
        codec.compress(b"")  # which imports what it needs

    def chance(self, below: int, *what: object) -> int:
        """Returns a number from 0 on that depends on the seed and on what it is for, alone."""
        digest = sha256(repr((self.seed, *what)).encode()).digest()
        return int.from_bytes(digest[:8], "big") % below

    def url(self, backend: str, name: str) -> str:
        path = os.path.join(self.place, f"{backend}-{name}")
        return path if backend == "files" else f"sqlite:{path}.db"

    def remove(self, url: str) -> None:
        """Takes a store of a trial away, with all that lies beside it."""
        path = url.removeprefix("sqlite:")
        shutil.rmtree(path, ignore_errors=True)
        for name in os.listdir(self.place):
            if name.startswith(os.path.basename(path)):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.place, name))
                shutil.rmtree(os.path.join(self.place, name), ignore_errors=True)


def item(number: int) -> dict[str, Any]:
    """Returns what is appended as the nth: every eighth is large enough to become a blob."""
    return {"n": number, "text": f"{number} " * (20_000 if number % BLOB_EVERY == 7 else 30)}


def judge(url: str, acknowledged: int, unknown: int) -> tuple[str, int]:
    """Opens a store again; returns what is wrong with it ("": nothing), and how many items it has.

    Of the writes whose outcome is unknown, any may be there.
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


def _judged(desk: Desk, url: str, acknowledged: int, unknown: int) -> tuple[str, int]:
    """Judges in a child: a store that breaks its judge is not sound either."""
    try:
        problem, count = desk.children.ask(lambda: judge(url, acknowledged, unknown))
    except Silent as exc:
        return f"the store could not be judged: {exc}", 0
    return problem, count


# --- T1 -------------------------------------------------------------------------------------------


def kill(desk: Desk, *, for_us: int) -> Iterator[Judged]:
    """Kills a writing process again and again, at a random moment or at a random disk call."""
    for backend in BACKENDS:
        end_us = desk.clock.boot_us() + for_us // len(BACKENDS)
        trial, total, problem = 0, 0, ""
        url, count = "", 0
        while not problem and (trial < 2 or desk.clock.boot_us() < end_us):
            if trial % KILLS_PER_STORE == 0:
                if url:
                    desk.remove(url)
                url, count = desk.url(backend, f"kill-{trial}"), 0
            desk.tell(f"{backend}: killed {trial} times")
            try:
                told = _kill_once(desk, backend, url, count, trial)
                total += told
                problem, count = _judged(desk, url, count + told, 1)
            except Silent as exc:
                problem = str(exc)
            trial += 1
        if not problem:
            desk.remove(url)
        yield _told(
            f"kills on {backend}",
            problem and f"{problem} (kill {trial}, seed {desk.seed})",
            f"{trial} processes killed while writing, {total} acknowledged writes all there",
            {"trials": trial, "acknowledged": total},
        )


def _kill_once(desk: Desk, backend: str, url: str, first: int, trial: int) -> int:
    """Lets a process write until it is killed; returns how many writes it was told are durable."""
    chance = desk.chance(4, backend, trial, "how")
    kinds: tuple[Kind, ...] = ("none", "none", "kill", "torn")
    kind = kinds[chance]
    at = 1 + desk.chance(CALLS_PER_KILL, backend, trial, "when")

    def write(say: Say, wait: Callable[[], None]) -> None:
        options = install(Trouble(kind, at), desk.make_disk(), backend)
        number = first
        while True:
            with open_store(url, **options) as store:
                scope = store.team(SCOPE)
                for _ in range(BLOB_EVERY):
                    scope.append(LOG, item(number))
                    say(number)
                    number += 1

    child = desk.children.start(write)
    try:
        if kind == "none":
            said = _hear_some(child, 1 + chance + desk.chance(12, backend, trial, "acks"))
            desk.clock.sleep(desk.chance(3000, backend, trial, "us") / 1_000_000)
            child.kill()
            return len(said) + len(child.last_words())
        return len(child.last_words())
    finally:
        desk.children.end(child)


def _hear_some(child: Child, count: int) -> list[Any]:
    return [child.hear() for _ in range(count)]


# --- T5 -------------------------------------------------------------------------------------------


def fail(desk: Desk, *, for_us: int) -> Iterator[Judged]:
    """Fails each disk call of a short session in turn, first with EIO and then with ENOSPC."""
    for backend in BACKENDS:
        end_us = desk.clock.boot_us() + for_us // len(BACKENDS)
        seed_url = desk.url(backend, "errors")
        calls = _session(desk, backend, seed_url, "none", 0)["calls"]
        desk.remove(seed_url)
        kinds: tuple[Kind, ...] = ("EIO", "ENOSPC")
        points: list[tuple[Kind, int]] = [(k, at) for k in kinds for at in range(1, calls + 1)]
        points.sort(key=lambda point: desk.chance(1 << 40, backend, point))
        tried, problem = 0, ""
        for kind, at in points:
            if problem or (tried >= 4 and desk.clock.boot_us() >= end_us):
                break
            desk.tell(f"{backend}: {tried} of {len(points)} disk errors")
            problem = _fail_once(desk, backend, kind, at)
            tried += 1
        yield _told(
            f"disk errors on {backend}",
            problem,
            f"{tried} of {len(points)} (every call of a session, EIO and ENOSPC): each one told, "
            "none of them lost or falsified a write",
            {"trials": tried, "points": len(points)},
        )


def _fail_once(desk: Desk, backend: str, kind: Kind, at: int) -> str:
    url = desk.url(backend, f"{kind}-{at}")
    try:
        said = _session(desk, backend, url, kind, at)
    except Silent as exc:
        return f"{kind} at call {at}: {exc}"
    problem = _settle(desk, url, said)
    desk.remove(url)
    return problem and f"{kind} at call {at}: {problem}"


def _session(desk: Desk, backend: str, url: str, kind: Kind, at: int) -> dict[str, Any]:
    """Opens, writes and closes in a child; the store is made by another one, without trouble."""

    def prepare() -> bool:
        with open_store(url) as store:
            for number in range(2):
                store.team(SCOPE).append(LOG, item(number))
        return True

    def work() -> dict[str, Any]:
        trouble = Trouble(kind, at)
        options = install(trouble, desk.make_disk(), backend)
        said = _write(url, options, range(2, 2 + WRITES_PER_FAULT))
        return {**said, "calls": trouble.calls}

    desk.children.ask(prepare)
    return desk.children.ask(work)


def _write(url: str, options: dict[str, Any], numbers: range) -> dict[str, Any]:
    """Appends items until one is refused, and closes; says what came of it."""
    said: dict[str, Any] = {"acknowledged": numbers.start, "unknown": 0, "refused": 0, "wrong": ""}
    try:
        with open_store(url, **options) as store:
            scope = store.team(SCOPE)
            for number in numbers:
                scope.append(LOG, item(number))
                said["acknowledged"] = number + 1
    except UnavailableError as error:
        said["refused"] += 1
        said["unknown"] += not error.outcome_known
    except HoldfastError as error:
        said["wrong"] = f"{type(error).__name__} instead of UnavailableError: {error}"
    return said


def _settle(desk: Desk, url: str, said: dict[str, Any]) -> str:
    """Returns what is wrong after trouble that is over; writes once more, to see that it is."""
    if said["wrong"]:
        return said["wrong"]

    def look() -> str:
        problem, count = judge(url, said["acknowledged"], said["unknown"])
        if problem:
            return problem
        with open_store(url) as store:
            store.team(SCOPE).append(LOG, item(count))
        return judge(url, count + 1, 0)[0]

    try:
        return desk.children.ask(look)
    except Silent as exc:
        return f"the store does not work again: {exc}"


# --- T7 -------------------------------------------------------------------------------------------


def fill(desk: Desk, *, for_us: int) -> Iterator[Judged]:
    """Lets space run out at several sizes; the disk itself is never filled."""
    for backend in BACKENDS:
        end_us = desk.clock.boot_us() + for_us // len(BACKENDS)
        points = [(how, kib) for kib in SIZES_KIB for how in ("limit", "quota")]
        points.sort(key=lambda point: desk.chance(1 << 40, backend, point))
        tried, refused, problem = 0, 0, ""
        for how, kib in points:
            if problem or (tried >= 2 and desk.clock.boot_us() >= end_us):
                break
            desk.tell(f"{backend}: {tried} of {len(points)} times out of space")
            problem, was_refused = _fill_once(desk, backend, how, kib << 10)
            refused += was_refused
            tried += 1
        yield _told(
            f"full disk on {backend}",
            problem,
            f"{tried} times out of space, {refused} refused: each one told, nothing lost, and it "
            "works again",
            {"trials": tried, "refused": refused},
        )


def _fill_once(desk: Desk, backend: str, how: str, size: int) -> tuple[str, int]:
    url = desk.url(backend, f"{how}-{size}")

    def work() -> dict[str, Any]:
        options: dict[str, Any] = {}
        if how == "limit":
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        else:
            options = install(Trouble("quota", size), desk.make_disk(), backend)
        return _write(url, options, range(ITEMS_MAX))

    try:
        said = desk.children.ask(work)
    except Silent as exc:
        return f"out of space at {size} bytes ({how}): {exc}", 0
    problem = _settle(desk, url, said)
    desk.remove(url)
    return problem and f"out of space at {size} bytes ({how}): {problem}", said["refused"]


def _told(check: str, problem: str, found: str, numbers: dict[str, int]) -> Judged:
    if problem:
        fix = "do not keep anything there; report this with the line above"
        return Judged(check, "failed", problem, fix, numbers)
    return Judged(check, "ok", found, None, numbers)

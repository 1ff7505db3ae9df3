"""T18, kills: an erasure, a rotation and a rewrap, killed at every boundary there is.

One point is one boundary of one of them on one backend: a new store, and a process that does the
one thing and is killed with SIGKILL before its nth call that changes anything. Such calls are those
of the backend (commits, rewriting, purging, objects, leases, claims), and in the folder of keys
each write, sync, link and unlink of a file. The last points must survive: then every boundary was
tried. Afterwards the store is opened by another process. What was begun is finished by the same
call, or by `subjects.finish`; by turns somebody wrote for the subject in between.
"""

from __future__ import annotations

import os
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import holdfast
from holdfast import ErasedError, NotFoundError, Settings, Store
from holdfast.backends.protocol import START
from holdfast.core.encryption import EncryptedBackend
from holdfast.errors import HoldfastError, StoreKeyError
from holdfast.keys import FolderKeys
from tests.canaries import Canaries
from tests.servers.kinds import KEPT, url_of
from tests.torture.programme import Broken, Point, Programme
from tests.torture.t18_erasure import as_stored

PATIENCE_S = 120
KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
CALLS = ("commit", "rewrite", "purge")
OBJECTS = ("put", "delete")
FILE_CALLS = ("write", "fsync", "link", "unlink", "replace", "rename", "ftruncate")


class Mortal:
    """Counts boundaries, and ends the process at one of them."""

    def __init__(self, fatal: int) -> None:
        self.left = fatal
        self.in_keys = 0

    def before(self, sound: Callable[..., Any], *, of_files: bool = False) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            if not of_files or self.in_keys:
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                self.left -= 1
            return sound(*given, **more)

        return call

    def within(self, sound: Callable[..., Any]) -> Callable[..., Any]:
        """Has the calls of files count while this one runs."""

        def call(*given: Any, **more: Any) -> Any:
            self.in_keys += 1
            try:
                return sound(*given, **more)
            finally:
                self.in_keys -= 1

        return call

    def infect(self, hf: Store) -> None:
        backend: Any = hf._log._backend
        inner: Any = backend.inner if isinstance(backend, EncryptedBackend) else backend
        for name in CALLS:
            setattr(inner, name, self.before(getattr(inner, name)))
        for name in OBJECTS:
            setattr(inner.objects, name, self.before(getattr(inner.objects, name)))
        for name in FILE_CALLS:
            setattr(os, name, self.before(getattr(os, name), of_files=True))
        keys: Any = FolderKeys
        keys.destroy = self.within(keys.destroy)


class Act(ABC):
    """One of the three: what is written before, what is done, and what must hold in the end."""

    def __init__(self, kind: str, point: Point, boundary: int) -> None:
        self.kind, self.point, self.boundary = kind, point, boundary
        self.url = url_of(kind, point.place, "s")
        self.keys = point.place / "keys"
        self.canaries = Canaries(point.seed * 7919 + point.number)

    def open(self) -> Store:
        return holdfast.open(self.url, keys=self.keys, settings=Settings(clear_ids=True))

    @abstractmethod
    def prepare(self) -> None:
        """Writes what the store has before."""

    @abstractmethod
    def do(self, hf: Store) -> None:
        """Does it; the process may be killed meanwhile."""

    @abstractmethod
    def judge(self) -> None:
        """Finishes what was begun, and raises Broken unless all is as it must be."""


class Erases(Act):
    """A subject with a scope, a fork, values beside others, blobs and a snapshot is erased."""

    def prepare(self) -> None:
        new = self.canaries.new
        with self.open() as hf:
            own = hf.team("own", subject="ada")
            own.set("n", new("value"))
            own.set("large", new("large") + "x" * 70_000)
            own.facts.state(new("fact"), 1)
            own.fork("fork").say(new("said"))
            hf.team("red").set("mail", new("shared"), subject="ada")
            hf.team("red").set("plan", "ours")
            hf.team("bob", subject="bob").set("n", "bob's")
            log = hf._log
            log.snapshots._write("team/own", log.newest("team/own"), log.snapshots._begin("x"))

    def do(self, hf: Store) -> None:
        hf.subjects.erase("ada")

    def judge(self) -> None:
        with self.open() as hf:
            if self.boundary % 3 == 1:
                self._write_late(hf)
            if self.boundary % 2:
                hf.subjects.finish()
            with suppress(NotFoundError):  # the second time for who came back meanwhile
                hf.subjects.erase("ada")
                hf.subjects.erase("ada")
            found = self.canaries.found_in(as_stored(hf))
            read = repr([hf.team("red").state.to_dict(), list(hf.team("red").messages)])
            names = [one.name for one in hf.subjects.list()]
            rest = [hf.team("red").get("plan"), hf.team("bob").get("n")]
            streams = hf._log.streams(prefix="team/")
            left = [one for one in streams if hf._log.snapshots.revisions(one) and "red" not in one]
            blobs = [one for one in hf._log.blobs.names() if hf._log.blobs.subject(one)]
            if found or self.canaries.found_in(read.encode()) or names != ["bob"] or left or blobs:
                raise Broken(f"left after it: {found} {read} {names} {left} {blobs}")
            if rest != ["ours", "bob's"] or hf.check().findings or hf.subjects.finish():
                raise Broken(f"{rest}, {hf.check().findings[:3]}")

    def _write_late(self, hf: Store) -> None:
        """Somebody who writes for the subject is refused once it was begun; before, it counts."""
        begun = [one.key for one in hf._log.find_marks("subject.erasing")]
        try:
            hf.team("red").set("mail", self.canaries.new("late"), subject="ada")
        except ErasedError:
            if not begun and not hf.subjects.receipts():
                raise
            return
        if hf.subjects.get("ada").id in begun:
            raise Broken("a write for a subject that is being erased was accepted")


class Rewraps(Act):
    """An encrypted store gets another key, and with that everything is written anew."""

    opened_with = KEY

    def open(self) -> Store:
        return holdfast.open(
            self.url, keys=self.keys, store_key=self.opened_with, settings=Settings(clear_ids=True)
        )

    def prepare(self) -> None:
        with self.open() as hf:
            hf.team("red").set("n", self.canaries.new("value"))
            hf.team("red").set("large", self.canaries.new("large") + "x" * 70_000)

    def do(self, hf: Store) -> None:
        hf.keys.rewrap(OTHER)

    def judge(self) -> None:
        try:
            self.open().close()
        except StoreKeyError:
            self.opened_with = OTHER
        with self.open() as hf:
            self._readable(hf)
            self.finish(hf)
            self._readable(hf)
            if self.canaries.found_in(_inner(hf)) or hf.check().findings:
                raise Broken("in clear, or not sound")

    def finish(self, hf: Store) -> None:
        if not hf.keys.rewrap(OTHER).is_done or hf.keys.status().older:
            raise Broken("a rewrap that was killed is not finished by the next")

    def _readable(self, hf: Store) -> None:
        state = repr(hf.team("red").state.to_dict()).encode()
        if self.canaries.found_in(state) != {*self.canaries.fields.values()}:
            raise Broken("what was written before is not read after it")


class Rotates(Rewraps):
    """An encrypted store gets a new key for what is written from now on."""

    def do(self, hf: Store) -> None:
        hf.keys.rotate()

    def finish(self, hf: Store) -> None:
        hf.keys.rotate()
        hf.team("red").set("after", 1)


def _inner(hf: Store) -> bytes:
    """Returns what an encrypted store's own backend was given."""
    backend: Any = hf._log._backend
    records = backend.inner.read_all(after=START, limit=1_000_000)
    objects = backend.inner.objects
    parts = [one.payload for one in records]
    parts += [objects.get("blob", name) or b"" for name in objects.names("blob")]
    return b"\n".join(parts)


def trial(point: Point) -> int:
    kind, act = CASES[point.number % len(CASES)]
    boundary = point.number // len(CASES)
    one = act(kind, point, boundary)
    try:
        one.prepare()
        survived = _killed(one)
        one.judge()
    except HoldfastError as error:
        raise Broken(f"{act.__name__} on {kind}, boundary {boundary}: {error!r}") from error
    if boundary == BOUNDARIES - 1 and not survived:
        raise Broken(f"{act.__name__} on {kind} has more boundaries than are tried: {BOUNDARIES}")
    return 1


def _killed(one: Act) -> bool:
    """Does it in a process that is killed at the point's boundary; True if it came to the end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        signal.alarm(PATIENCE_S)
        try:
            with one.open() as hf:
                Mortal(one.boundary).infect(hf)
                one.do(hf)
            code = 0
        except BaseException:
            (one.point.place / "trouble").write_text(traceback.format_exc(limit=-6))
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    ended = os.waitstatus_to_exitcode(status)
    if ended not in (0, -signal.SIGKILL):
        trouble = one.point.place / "trouble"
        text = trouble.read_text() if trouble.exists() else ""
        raise Broken(f"it ended with {ended}\n{text}")
    return ended == 0


CASES = [(kind, act) for act in (Erases, Rewraps, Rotates) for kind in KEPT]
BOUNDARIES = 40
"""More than any of them has: the last one of each must come to its end."""
PROGRAMMES = (
    Programme(
        "t18-kills",
        "an erasure, rotation or rewrap that is killed anywhere is finished by the next call",
        trial,
        share=len(CASES) * BOUNDARIES,
        points=len(CASES) * BOUNDARIES,
        parts=4,
        turns=240,
    ),
)

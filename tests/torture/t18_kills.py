"""T18, kills: what lets go, moves or seals data anew, killed at every boundary there is.

One point is one boundary of one act (an erasure of a subject, a scope or a text; a rewrap, a
rotation, a retain, a restore, an archive) on one kind of store, two parts of a mixed one included:
a new store, and a process that does the one thing and is killed with SIGKILL before its nth call
that changes anything. Such calls are those of the backend (commits, rewriting, purging, objects),
and in the folder of keys each write, sync, link and unlink of a file. The last points must survive:
then every boundary was tried.

By turns, and by the seed, four processes write to the store meanwhile and one follows it; and on a
server it is the server that is killed at this boundary, with all its processes, and started again:
the act then goes on, or is told that its outcome is unknown. Afterwards the store is opened by
another process. What was begun is finished by the same call, or by `subjects.finish`; by turns
somebody wrote for the subject, or under the scope's name, in between.
"""

from __future__ import annotations

import os
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from typing import Any

import holdfast
from holdfast import ErasedError, NotFoundError, Settings, Store
from holdfast.archive import archive
from holdfast.backends.mixed import MixedBackend
from holdfast.backends.protocol import START
from holdfast.backup import backup, points, restore
from holdfast.core import retention
from holdfast.core.check import content_of
from holdfast.core.encryption import EncryptedBackend
from holdfast.errors import HoldfastError, StoreKeyError, UnavailableError
from holdfast.keys import FolderKeys
from tests.canaries import Canaries
from tests.servers.kinds import KEPT, SERVERS, url_of
from tests.torture.company import company, judge_writers
from tests.torture.programme import Broken, Point, Programme
from tests.torture.t2_servers import Server, server
from tests.torture.t18_erasure import as_stored

PATIENCE_S = 120
COMMITS = 12
"""How many each of those makes that write meanwhile."""
UNKNOWN = 3
KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
CALLS = ("commit", "rewrite", "purge")
OBJECTS = ("put", "delete")
FILE_CALLS = ("write", "fsync", "link", "unlink", "replace", "rename", "ftruncate")


class Mortal:
    """Counts boundaries, and ends the process at one of them."""

    def __init__(self, fatal: int, number: signal.Signals = signal.SIGKILL) -> None:
        self.left = fatal
        self.signal = number
        self.in_keys = 0

    def before(self, sound: Callable[..., Any], *, of_files: bool = False) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            if not of_files or self.in_keys:
                if self.left == 0:
                    os.kill(os.getpid(), self.signal)
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
        for part in inner.parts if isinstance(inner, MixedBackend) else [inner]:
            for name in CALLS:
                setattr(part, name, self.before(getattr(part, name)))
            for name in OBJECTS:
                setattr(part.objects, name, self.before(getattr(part.objects, name)))

    def infect_files(self) -> None:
        for name in FILE_CALLS:
            setattr(os, name, self.before(getattr(os, name), of_files=True))
        keys: Any = FolderKeys
        keys.destroy = self.within(keys.destroy)


class Act(ABC):
    """One of them: what is written before, what is done, and what must hold in the end."""

    def __init__(self, kind: str, point: Point, boundary: int) -> None:
        self.kind, self.point, self.boundary = kind, point, boundary
        turn = boundary + point.seed
        self.is_beside = turn % 2 == 1
        self.server: Server | None = None
        if kind in SERVERS and turn % 4 > 1:
            self.server = server(kind, 0, ())
        self.url = self.url_of("s")
        self.keys = point.place / "keys"
        self.canaries = Canaries(point.seed * 7919 + point.number)

    def url_of(self, name: str) -> Any:
        """Returns a store of the kind; a server that is to die is one of this row's own."""
        if self.kind == "mixed":
            parts = {"*": "files", "conversation": "sqlite"}
            return {one: url_of(kind, self.point.place, name) for one, kind in parts.items()}
        if self.server is None:
            return url_of(self.kind, self.point.place, name)
        application = sha256(f"{self.point.place}/{name}".encode()).hexdigest()[:20]
        return self.server.url(application=application)

    def open(self) -> Store:
        return holdfast.open(self.url, keys=self.keys, settings=Settings(clear_ids=True))

    def open_beside(self) -> Store:
        """Opens the store that others write to meanwhile."""
        return self.open()

    def live(self, mortal: Mortal) -> None:
        """Does it, as the process that dies."""
        mortal.infect_files()
        with self.open() as hf:
            mortal.infect(hf)
            self.do(hf)

    def expect(self, holds: object, otherwise: str) -> None:
        if not holds:
            raise Broken(f"{self}: {otherwise}")

    def __str__(self) -> str:
        company = ", beside others" * self.is_beside
        dies = ", of the server" * (self.server is not None)
        return f"{type(self).__name__} on {self.kind}{company}, boundary {self.boundary}{dies}"

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
            hf.conversation("own", subject="ada").say(new("talk"))
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
            left = [one for one in ("team/own", "team/fork") if hf._log.snapshots.revisions(one)]
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

    def open(self) -> Store:
        options = {"keys": self.keys, "settings": Settings(clear_ids=True)}
        try:
            return holdfast.open(self.url, store_key=KEY, **options)
        except StoreKeyError:
            return holdfast.open(self.url, store_key=OTHER, **options)

    def prepare(self) -> None:
        with self.open() as hf:
            hf.team("red").set("n", self.canaries.new("value"))
            hf.team("red").set("large", self.canaries.new("large") + "x" * 70_000)

    def do(self, hf: Store) -> None:
        hf.keys.rewrap(OTHER)

    def judge(self) -> None:
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


class ErasesScope(Act):
    """A scope that was never sealed is erased; by turns its name is used again meanwhile."""

    def prepare(self) -> None:
        with self.open() as hf:
            for number in range(3):
                hf.conversation("gone").set("n", [number, self.canaries.new(f"value {number}")])
            hf.conversation("gone").say(self.canaries.new("said"))
            hf.conversation("gone").set("large", self.canaries.new("large") + "x" * 70_000)
            hf.team("red").set("plan", "ours")

    def do(self, hf: Store) -> None:
        hf.subjects.erase(scope="conversation/gone")

    def judge(self) -> None:
        with self.open() as hf:
            again = self.boundary % 3 == 1 and hf._log.find_marks(retention.ERASING_SCOPES)
            if again:
                hf.conversation("gone").set("n", "a new life")
            done = hf.subjects.finish()
            one = done[0] if done else hf.subjects.erase(scope="conversation/gone")
            if again and not done[0].scopes[0].events > 5:
                self.expect(hf.conversation("gone").get("n") in ("a new life", None), "no new life")
            elif not again:
                self.expect(one.events == 5, f"the receipt is not whole: {one.scopes}")
            hf.subjects.erase(scope="conversation/gone")
            hf.retention.run(grace_s=0, whole=True)
            self.expect(not self.canaries.found_in(as_stored(hf)), "it is still stored")
            self.expect(hf.team("red").get("plan") == "ours", "what others have is not there")
            self.expect(hf.check().findings == [], f"{hf.check().findings[:3]}")
            self.expect(hf.subjects.finish() == [], "it is still pending")


class ErasesText(Act):
    """A text is cut out of everything; who is killed asks for it again."""

    def prepare(self) -> None:
        self.text = self.canaries.new("text")
        with self.open() as hf:
            for scope in (hf.team("red"), hf.conversation("c")):
                scope.set("n", {"who": self.text, "kept": "ours"})
                scope.say(f"{self.text} rang")
                scope.set("large", [f"{self.text} {'x' * 70_000}"])

    def do(self, hf: Store) -> None:
        hf.subjects.erase(match=self.text)

    def judge(self) -> None:
        with self.open() as hf:
            if self.boundary % 2:
                hf.subjects.finish()
            hf.subjects.erase(match=self.text)
            self.expect(not self.canaries.found_in(as_stored(hf)), "it is still stored")
            kept = [one.get(("n", "kept")) for one in (hf.team("red"), hf.conversation("c"))]
            self.expect(kept == ["ours", "ours"], f"what was around it is {kept}")
            self.expect(hf.check().findings == [], f"{hf.check().findings[:3]}")
            self.expect(hf.subjects.finish() == [], "it is still pending")


class Retains(Act):
    """What removed scopes held is let go of."""

    def prepare(self) -> None:
        with self.open() as hf:
            self.write_old(hf)
            for number in range(3):
                hf.conversation(f"old-{number}").remove()

    def write_old(self, hf: Store) -> None:
        for number in range(3):
            old = hf.conversation(f"old-{number}")
            old.set("n", self.canaries.new(f"value {number}"))
            old.say(self.canaries.new(f"said {number}"))
            old.set("large", self.canaries.new(f"large {number}") + "x" * 70_000)

    def do(self, hf: Store) -> None:
        hf.retention.run(grace_s=0, whole=self.boundary % 2 == 1, wait_s=PATIENCE_S)

    def judge(self) -> None:
        with self.open() as hf:
            hf.retention.run(grace_s=0, whole=True, wait_s=PATIENCE_S)
            self.expect(not self.canaries.found_in(as_stored(hf)), "it is still stored")
            told = {one.scope for one in hf.retention.past()}
            self.expect(len(told) == 3, f"what went is not told: {told}")
            self.expect(hf.retention.run(grace_s=0).scopes == [], "there is more to let go of")
            self.expect(hf.check().findings == [], f"{hf.check().findings[:3]}")


class Restores(Retains):
    """A backup is restored into a new store, while others write to its source."""

    def prepare(self) -> None:
        with holdfast.open(self.point.place / "source") as hf:
            self.write_old(hf)
            backup(hf, self.point.place / "backup")

    def open_beside(self) -> Store:
        return holdfast.open(self.point.place / "source")

    def do(self, hf: Store) -> None:
        restore(self.point.place / "backup", hf)

    def judge(self) -> None:
        [point] = points(self.point.place / "backup")
        with self.open() as hf:
            restore(self.point.place / "backup", hf)
            self.expect(content_of(hf._log).digest == point.digest, "another digest")
            self.expect(hf.check().findings == [], f"{hf.check().findings[:3]}")
            found = self.canaries.found_in(as_stored(hf))
            self.expect(found == {*self.canaries.fields.values()}, f"there is only {found}")


class Archives(Retains):
    """Old scopes are moved into another store of the same kind."""

    def prepare(self) -> None:
        with self.open() as hf:
            self.write_old(hf)

    def live(self, mortal: Mortal) -> None:
        with self.open() as hf, holdfast.open(self.url_of("archive")) as old:
            mortal.infect(hf)
            mortal.infect(old)
            archive(hf, old, "conversation/old-*", older_than=1e-6)

    def do(self, hf: Store) -> None:
        if [*hf.scopes("conversation")]:
            with holdfast.open(self.url_of("archive")) as old:
                archive(hf, old, "conversation/old-*", older_than=1e-6)

    def judge(self) -> None:
        with self.open() as hf, holdfast.open(self.url_of("archive")) as old:
            self.do(hf)
            self.expect([*hf.scopes("conversation")] == [], "a scope was not archived")
            found = self.canaries.found_in(as_stored(old))
            self.expect(found == {*self.canaries.fields.values()}, f"there is only {found}")
            for one in (hf, old):
                self.expect(one.check().findings == [], f"{one.check().findings[:3]}")


def _inner(hf: Store) -> bytes:
    """Returns what an encrypted store's own backend was given."""
    backend: Any = hf._log._backend
    records = backend.inner.read_all(after=START, limit=1_000_000)
    objects = backend.inner.objects
    parts = [one.payload for one in records]
    parts += [objects.get("blob", name) or b"" for name in objects.names("blob")]
    return b"\n".join(parts)


def trial(point: Point) -> int:
    # What is planted concerns one act only: its boundaries come one after the other then.
    cases = [("files", ErasesScope)] if point.plant else CASES
    kind, act = cases[point.number % len(cases)]
    boundary = point.number // len(cases)
    one = act(kind, point, boundary)
    with PLANTS[point.plant]():
        try:
            one.prepare()
            with company(one.open_beside, COMMITS) if one.is_beside else nullcontext():
                survived = _killed(one)
            one.judge()
            if one.is_beside:
                with one.open_beside() as hf:
                    judge_writers(hf, COMMITS, one)
        except HoldfastError as error:
            raise Broken(f"{one}: {error!r}") from error
        if boundary == BOUNDARIES - 1 and not survived and not one.is_beside:
            raise Broken(f"{one}: there are more boundaries than are tried, {BOUNDARIES}")
    return 1


def _killed(one: Act) -> bool:
    """Does it in a process that is killed at the point's boundary; True if it came to the end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        signal.alarm(PATIENCE_S)
        try:
            one.live(Mortal(one.boundary, signal.SIGSTOP if one.server else signal.SIGKILL))
            code = 0
        except UnavailableError:
            code = UNKNOWN if one.server else 1
        except BaseException:
            (one.point.place / "trouble").write_text(traceback.format_exc(limit=-6))
        os._exit(code)
    _, status = os.waitpid(pid, os.WUNTRACED)
    was_stopped = os.WIFSTOPPED(status)
    if was_stopped:
        assert one.server is not None
        one.server.kill()
        one.server.start()
        os.kill(pid, signal.SIGCONT)
        _, status = os.waitpid(pid, 0)
    ended = os.waitstatus_to_exitcode(status)
    if ended not in (0, -signal.SIGKILL, UNKNOWN):
        trouble = one.point.place / "trouble"
        text = trouble.read_text() if trouble.exists() else ""
        raise Broken(f"{one}: it ended with {ended}\n{text}")
    return ended == 0 and not was_stopped


@contextmanager
def _scopes_unmarked() -> Generator[None]:
    """Nothing says that the erasure of a scope has begun."""
    sound = retention.Retainer.begin_erasing
    retention.Retainer.begin_erasing = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        retention.Retainer.begin_erasing = sound  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], Any]] = {"": nullcontext, "scopes-unmarked": _scopes_unmarked}
ACTS = (Erases, ErasesScope, ErasesText, Retains, Restores, Archives, Rewraps, Rotates)
CASES = [
    *((kind, act) for act in ACTS for kind in KEPT),
    *(("mixed", act) for act in (Erases, ErasesScope, ErasesText, Retains)),
]
BOUNDARIES = 40
"""More than any of them has: the last one of each must come to its end."""
PROGRAMMES = (
    Programme(
        "t18-kills",
        "what lets go or moves data, killed anywhere beside others, is finished by the next call",
        trial,
        share=len(CASES) * BOUNDARIES,
        points=len(CASES) * BOUNDARIES,
        parts=8,
        turns=283,  # prime, so that a turn has other cases than the one before
        plants={"scopes-unmarked": 20},
    ),
)

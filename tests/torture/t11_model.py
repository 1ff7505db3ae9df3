"""T11: memory, files and SQLite in lock step, driven by Hypothesis.

A point is a batch of examples of a state machine; an example is up to 100 steps. Each step does
the same to a store in memory and to one on each durable backend, through the public API, and
compares what comes back: values, revisions, states, events with their links, marks, leases, and
errors by their type. Durable stores are closed and opened again, and crash: what is on disk is
copied as it is at that moment, and the copy is opened, as after SIGKILL. The seed of the point is
that of Hypothesis, so a point is always the same; a failure is shrunk, and printed as the calls
that lead to it.

Planted and found: a backend that forgets an idempotency key, one whose names mean one revision too
early (so that a restore goes back too far), one that keeps a mark that was cleared, one that
fences by the owner alone.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

import holdfast
from holdfast.backends.files.backend import FilesBackend
from holdfast.backends.files.disk import Disk
from holdfast.backends.files.leases import FileLeases
from holdfast.backends.protocol import START, Found, Lease, Mark
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.batch import SqliteBatch
from holdfast.backends.sqlite.leases import SqliteMarks
from holdfast.core import mark_ends
from holdfast.core.codec import Thawable
from holdfast.core.commit import ReadGuard
from holdfast.core.event import Change
from holdfast.core.key_ends import KeyEnds
from holdfast.errors import HoldfastError
from holdfast.store import Store
from holdfast.testing import FakeClock
from tests.opening import settled
from tests.torture.programme import Broken, Point, Programme
from tests.torture.schedule_judge import replaced

EXAMPLES = 25
"""Examples in a point."""
STEPS = 100
KINDS = ("memory", "files", "sqlite")

LARGE = "@large"
"""Stands for a value that is kept beside the log; in full it would hide a failure's calls."""

SCOPES = st.sampled_from(["team/a", "team/b", "conversation/c", "global"])
PATHS = st.sampled_from(["n", "s", "list", ("m", "x"), ("m", "y"), ("list", 0), ("m", "x", "z")])
VALUES = st.sampled_from(
    [
        0,
        1,
        -5,
        2.5,
        "",
        "text",
        None,
        True,
        [],
        [1, 2],
        {},
        {"x": 1},
        {"$float": 1},
        b"\0",
        "\ud800",
    ]
) | st.sampled_from([LARGE, [["deep"]], {"x": {"z": [1]}}])
KEYS = st.sampled_from([None, None, None, "k1", "k2"])
OFFSETS = st.sampled_from([None, None, None, 0, -1, 1])
CHECKPOINTS = st.sampled_from([None, None, "p", "q"])
OWNERS = st.sampled_from(["w1", "w2"])
VISITS = st.sampled_from(["v1", "v2", "v3"])
"""Scopes that end by themselves."""


class UnsyncedDisk(Disk):
    """Nothing here loses power."""

    @staticmethod
    def sync(fd: int) -> None:
        pass

    def sync_directory(self, fd: int) -> None:
        pass


class LockStep(RuleBasedStateMachine):
    """The rules."""

    place: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(dir=self.place))
        self.clock = FakeClock()
        self.opened = 0
        self.written = 0
        self.homes = {kind: self.home / kind for kind in KINDS}
        self.leases: list[dict[str, Lease]] = []
        for home in self.homes.values():
            home.mkdir()
        self.stores = {kind: self._open(kind) for kind in KINDS}

    def teardown(self) -> None:
        for store in self.stores.values():
            store.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _open(self, kind: str) -> Store:
        home = self.homes[kind]
        given: dict[str, Any] = {"clock": self.clock, "actor": "w"}
        if kind == "memory":
            return holdfast.open("memory:", **settled(given))
        if kind == "files":
            return holdfast.open(home / "store", **settled(given, options={"disk": UnsyncedDisk()}))
        return holdfast.open(f"sqlite:{home}/store.db", durability="none", **settled(given))

    def all(self, call: Callable[[Store], Any]) -> Any:
        """Does the same to every store and returns what all of them answered."""
        answers = {kind: _answer(partial(call, store)) for kind, store in self.stores.items()}
        model = answers["memory"]
        for kind, answer in answers.items():
            assert answer == model, f"{kind} answers {answer!r}, memory {model!r}"
        return model

    # --- writing -------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.all(lambda store: store.team("a").update({"n": 0, "list": [1], "m": {"x": {}}}))

    def _guards(self, scope: str, offset: int | None, key: str | None, name: str | None) -> Any:
        revision = self.stores["memory"].scope(scope).revision
        expected = None if offset is None else max(0, revision + offset)
        return {"expected": expected, "key": key, "checkpoint": name}

    @rule(scope=SCOPES, path=PATHS, value=VALUES, offset=OFFSETS, key=KEYS, name=CHECKPOINTS)
    def set(self, scope: str, path: Any, value: Any, **guards: Any) -> None:
        given = self._guards(scope, **guards)
        self.all(lambda store: store.scope(scope).set(path, _full(value), **given))

    @rule(scope=SCOPES, path=PATHS, offset=OFFSETS, key=KEYS, name=CHECKPOINTS)
    def delete(self, scope: str, path: Any, **guards: Any) -> None:
        given = self._guards(scope, **guards)
        self.all(lambda store: store.scope(scope).delete(path, **given))

    @rule(scope=SCOPES, path=PATHS, value=VALUES, offset=OFFSETS, key=KEYS, name=CHECKPOINTS)
    def append(self, scope: str, path: Any, value: Any, **guards: Any) -> None:
        given = self._guards(scope, **guards)
        self.all(lambda store: store.scope(scope).append(path, _full(value), **given))

    @rule(scope=SCOPES, path=PATHS, by=st.sampled_from([1, -2, 0.5]), offset=OFFSETS, key=KEYS)
    def increment(self, scope: str, path: Any, by: float, **guards: Any) -> None:
        given = self._guards(scope, name=None, **guards)
        self.all(lambda store: store.scope(scope).increment(path, by, **given))

    @rule(scope=SCOPES, path=PATHS, value=VALUES, how=st.sampled_from(["diff", "default"]))
    def set_less(self, scope: str, path: Any, value: Any, how: str) -> None:
        """Stores what differs from what is there, or only where nothing is there."""

        def do(store: Store) -> Any:
            found = store.scope(scope)
            if how == "diff":
                return found.set(path, _full(value), diff=True)
            return found.set(path, _full(value), if_absent=True)

        self.all(do)

    @rule(scopes=st.lists(SCOPES, min_size=1, max_size=3, unique=True), value=VALUES, key=KEYS)
    def commit(self, scopes: list[str], value: Any, key: str | None) -> None:
        """Several scopes at once; one of them may refuse the change, and then none has it."""

        def do(store: Store) -> Any:
            with store.commit(key=key) as tx:
                for scope in scopes:
                    tx.scope(store.scope(scope)).set(("m", "x"), value)
            return [store.scope(scope).revision for scope in scopes]

        self.all(do)

    @rule(scope=SCOPES, mine=st.sampled_from(["n", "s"]), theirs=st.sampled_from(["n", "s"]))
    def guarded(self, scope: str, mine: str, theirs: str) -> None:
        """What a commit has read is guarded, by its path: another path may change meanwhile."""
        self.written += 1
        fresh = f"fresh {self.written}"

        def do(store: Store) -> Any:
            store.scope(scope).update({"n": 0, "s": 0})  # an absent key guards its container
            with store.commit() as tx:
                tx.scope(store.scope(scope)).get(mine)
                store.scope(scope).set(theirs, fresh)
                tx.scope(store.scope(scope)).set("out", fresh)
            return "done"

        answer = self.all(do)
        if answer in ("done", "ConflictError"):
            expected = "ConflictError" if mine == theirs else "done"
            assert answer == expected, f"read {mine}, {theirs} was set meanwhile: {answer}"

    @rule(ids=st.lists(st.sampled_from(["f1", "f2", "f3"]), min_size=1, max_size=3, unique=True))
    def add_many(self, ids: list[str]) -> None:
        """Messages under a key each: those that are there already are left out, not the others."""
        items = [{"role": "user", "content": id, "id": f"m-{id}", "foreign_id": id} for id in ids]

        def do(store: Store) -> Any:
            chat = store.conversation("c")
            added = [one.content for one in chat.messages.add_many(items)]
            return added, [one.content for one in chat.messages]

        answer = self.all(do)
        if not isinstance(answer, str):
            added, there = answer
            assert added == ids
            assert sorted(set(there)) == sorted(there), f"a message is there twice: {there}"

    @rule(scope=SCOPES)
    def remove(self, scope: str) -> None:
        """The name begins again: nothing of the life before is read or known by its key."""
        answer = self.all(lambda store: store.scope(scope).remove())
        if not isinstance(answer, str):
            self.all(lambda store: store.scope(scope).state.to_dict())

    @rule(scope=SCOPES, name=st.sampled_from(["p", "q"]))
    def checkpoint(self, scope: str, name: str) -> None:
        self.all(lambda store: store.scope(scope).checkpoint(name))

    @rule(scope=SCOPES, to=st.integers(-3, 6) | st.sampled_from(["p", "q"]))
    def restore(self, scope: str, to: int | str) -> None:
        self.all(lambda store: store.scope(scope).restore(to))

    @rule(scope=SCOPES)
    def undo(self, scope: str) -> None:
        self.all(lambda store: store.scope(scope).undo())

    @rule(scope=SCOPES, id=st.sampled_from(["f1", "f2"]), at=st.integers(1, 5))
    def fork(self, scope: str, id: str, at: int) -> None:
        self.all(lambda store: store.scope(scope).fork(id, at=at).name)

    @rule(scope=st.sampled_from(["conversation/c", "conversation/f1"]), keep=st.booleans())
    def close_scope(self, scope: str, keep: bool) -> None:
        self.all(lambda store: store.scope(scope).close(keep=keep))

    # --- marks and leases ----------------------------------------------------------------------

    @rule(
        key=st.sampled_from(["m", "n"]),
        due=st.sampled_from([0, 5, None]),
        priority=st.integers(0, 1),
    )
    def mark(self, key: str, due: int | None, priority: int) -> None:
        """Sets a mark, due now or soon, or clears it."""
        at = self.clock.now_us() + (due or 0) * 1_000_000

        def do(store: Store) -> Any:
            with store.commit() as tx:
                if due is None:
                    tx.clear("i", key)
                else:
                    tx.mark("i", key, due=at, priority=priority)

        self.all(do)

    @rule(owner=OWNERS, n=st.integers(1, 2))
    def claim(self, owner: str, n: int) -> None:
        self.all(lambda store: store._log._backend.marks.claim("i", owner, n=n, ttl_s=10))

    @rule(owner=OWNERS, key=st.sampled_from(["m", "n"]))
    def unclaim(self, owner: str, key: str) -> None:
        self.all(lambda store: store._log._backend.marks.release("i", key, owner))

    @rule(owner=OWNERS, late=st.booleans())
    def acquire(self, owner: str, late: bool) -> None:
        """Takes the lease; late, so that it has ended, also this owner's own."""
        given: dict[str, Lease] = {}
        if late:
            self.clock.advance(11)

        def do(store: Store) -> bool:
            lease = store._log._backend.leases.acquire("l", owner, ttl_s=10)
            if lease is not None:
                given[next(kind for kind, one in self.stores.items() if one is store)] = lease
            return lease is not None

        if self.all(do) is True:
            self.leases.append(given)

    @precondition(lambda self: bool(self.leases))
    @rule(before=st.integers(0, 3), back=st.sampled_from([False, False, True]), scope=SCOPES)
    def use_lease(self, before: int, back: bool, scope: str) -> None:
        """Gives back, or writes under, one of the last leases; it may have been lost since."""
        leases = self.leases[-1 - before % len(self.leases)]
        by_store = {id(store): leases[kind] for kind, store in self.stores.items()}

        def do(store: Store) -> Any:
            lease = by_store[id(store)]
            if back:
                return store._log._backend.leases.release(lease)
            with store.commit(lease=lease) as tx:
                tx.scope(store.scope(scope)).set("by", lease.owner)
            return None

        self.all(do)

    # --- what ends by itself -------------------------------------------------------------------

    @rule(scope=SCOPES, path=PATHS, value=VALUES, ttl_s=st.sampled_from([0.5, 5, 20]), key=KEYS)
    def set_ending(self, scope: str, path: Any, value: Any, ttl_s: float, key: str | None) -> None:
        full = _full(value)
        self.all(lambda store: store.scope(scope).set(path, full, ttl_s=ttl_s, key=key))

    @rule(id=VISITS, slides=st.booleans(), key=KEYS)
    def visit(self, id: str, slides: bool, key: str | None) -> None:
        """Writes to a scope that ends, which may have begun otherwise, or have ended."""

        def do(store: Store) -> Any:
            chat = store.conversation(id, ttl_s=5, slides=slides)
            with store.commit() as tx:
                tx.scope(chat).increment("n")
                tx.mark("i", "of a visit")
            return chat.life.expires_at

        self.all(do)

    @rule(id=VISITS)
    def touch(self, id: str) -> None:
        self.all(lambda store: store.conversation(id).life.touch())

    @rule(id=VISITS)
    def read_visit(self, id: str) -> None:
        self.all(
            lambda store: (store.conversation(id).state.to_dict(), store.conversation(id).revision)
        )

    @rule(key=st.sampled_from(["m", "n"]), ttl_s=st.sampled_from([0.5, 5]))
    def mark_ending(self, key: str, ttl_s: float) -> None:
        def do(store: Store) -> None:
            with store.commit() as tx:
                tx.mark("i", key, ttl_s=ttl_s)

        self.all(do)

    @rule()
    def marks(self) -> None:
        self.all(lambda store: list(store.workers.marks("i")))

    @rule()
    def sweep(self) -> None:
        """Clears the marks that have ended, as a recovery does."""
        self.all(lambda store: (mark_ends.sweep(store._log), store._log.marks.list("i")))

    @rule(seconds=st.sampled_from([0.0, 1.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # --- ends ----------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(["files", "sqlite"]))
    def reopen(self, kind: str) -> None:
        """Leases and claims end with the handle that took them, so they are let run out."""
        self.clock.advance(11)
        self.stores[kind].close()
        self.stores[kind] = self._open(kind)

    @rule(kind=st.sampled_from(["files", "sqlite"]))
    def crash(self, kind: str) -> None:
        """The process is killed: what is on disk now is what is opened."""
        self.clock.advance(11)
        self.opened += 1
        left = self.home / f"{kind}-{self.opened}"
        shutil.copytree(self.homes[kind], left, ignore=shutil.ignore_patterns("*-shm"))
        self.stores[kind].close()
        shutil.rmtree(self.homes[kind])
        self.homes[kind] = left
        self.stores[kind] = self._open(kind)

    # --- reading -------------------------------------------------------------------------------

    @rule(scope=SCOPES)
    def read(self, scope: str) -> None:
        def do(store: Store) -> Any:
            found = store.scope(scope)
            return (
                ascii(found.state.to_dict()),
                found.revision,
                found.life.is_closed,
                found.life.updated_at,
            )

        self.all(do)

    @rule(scope=SCOPES, at=st.integers(-2, 7) | st.sampled_from(["p", "q"]))
    def read_then(self, scope: str, at: int | str) -> None:
        self.all(lambda store: ascii(store.scope(scope).at(at).to_dict()))

    @rule(scope=SCOPES, since=st.integers(0, 5))
    def differ(self, scope: str, since: int) -> None:
        self.all(lambda store: _plain(store.scope(scope).diff(since)))

    @rule()
    def compare(self) -> None:
        """Everything: every event with its link, every name, every mark."""

        def do(store: Store) -> Any:
            events = [
                (e.stream, e.revision, e.type, e.link, e.key)
                for e in store.follow(as_events=True, after=START, timeout_s=0)
            ]
            names = [found for scope in store.scopes() for found in scope.checkpoints()]
            return events, names, store.workers.marks()

        self.all(do)

    @rule(scope=SCOPES, backwards=st.booleans(), removed=st.booleans())
    def walk(self, scope: str, backwards: bool, removed: bool) -> None:
        """Every state from one fold, and each is what `at` says."""

        def do(store: Store) -> Any:
            found = store.scope(scope)
            walked = list(found.states(newest_first=backwards, removed=removed))
            for one in walked[:3]:
                assert one.state.to_dict() == found.at(one.revision).to_dict()
            return [(one.revision, ascii(one.state.to_dict())) for one in walked]

        self.all(do)

    @rule(limit=st.integers(1, 3), backwards=st.booleans(), prefix=st.sampled_from(["", "f", "c"]))
    def pages(self, limit: int, backwards: bool, prefix: str) -> None:
        """Page by page: scopes, and every event once."""

        def do(store: Store) -> Any:
            names: list[str] = []
            after: Any = None
            while True:
                page = store.scopes("conversation", prefix=prefix, after=after, limit=limit)
                names += [one.name for one in page]
                if not page.more:
                    break
                after = page.cursor
            links: list[bytes] = []
            place: Any = None
            while True:
                side = {"before" if backwards else "after": place} if place is not None else {}
                events = store.events(newest_first=backwards, limit=limit * 20, **side)
                links += [one.link for one in events]
                if not events.more:
                    break
                place = events.cursor
            assert sorted(links) == sorted(
                {one.link for one in store.follow(as_events=True, after=START, timeout_s=0)}
            )
            return names, links

        self.all(do)

    @rule(scope=SCOPES, after=st.integers(0, 3))
    def follow(self, scope: str, after: int) -> None:
        self.all(lambda store: _plain(store.follow(scope, after=after, timeout_s=0)))


def _plain(changes: Iterable[Change]) -> list[str]:
    """Returns changes by what they hold: shown, a large value differs until it was looked at."""

    def thawed(value: Any) -> Any:
        return value.thaw() if isinstance(value, Thawable) else value

    return [
        ascii((one.scope, one.revision, one.path, thawed(one.old), thawed(one.new)))
        for one in changes
    ]


def _full(value: Any) -> Any:
    return "large " * 20_000 if value == LARGE else value


def _answer(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except HoldfastError as error:
        return type(error).__name__


def trial(point: Point) -> int:
    class Machine(LockStep):
        place = point.place

    steady = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if not point.plant else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    number = point.seed * 1_000_003 + point.number
    with PLANTS.get(point.plant, contextlib.nullcontext)():
        try:
            run_state_machine_as_test(seed(number)(Machine), settings=steady)
        except AssertionError as error:
            notes = "\n".join(getattr(error, "__notes__", ()))
            raise Broken(f"{error}\n{notes}") from error
    return EXAMPLES


# --- faults --------------------------------------------------------------------------------------


def key_forgotten() -> AbstractContextManager[None]:
    """SQLite does not know again what was committed under one of the keys."""
    key_of, find = SqliteBatch._key_of, SqliteBackend.find

    def forgetful(batch: Any, name: str, key: str) -> int | None:
        return None if key == "k2" else key_of(batch, name, key)

    def blind(backend: Any, stream: str, **given: Any) -> Any:
        return [] if given.get("key") == "k2" else find(backend, stream, **given)

    return replaced((SqliteBatch, "_key_of", forgetful), (SqliteBackend, "find", blind))


def name_too_early() -> AbstractContextManager[None]:
    """On files, a checkpoint's name means the revision before."""
    find = FilesBackend.find

    def early(backend: Any, stream: str, **given: Any) -> list[Found]:
        found = find(backend, stream, **given)
        if given.get("checkpoint") is None:
            return found
        return [replace(one, revision=max(1, one.revision - 1)) for one in found]

    return replaced((FilesBackend, "find", early))


def mark_kept() -> AbstractContextManager[None]:
    """SQLite does not clear marks."""
    apply = SqliteMarks.apply

    def keeping(marks: Any, changes: Any) -> None:
        apply(marks, [change for change in changes if isinstance(change, Mark)])

    return replaced((SqliteMarks, "apply", keeping))


def fenced_by_owner() -> AbstractContextManager[None]:
    """On files, a lease that was lost and taken again by the same worker counts as never lost."""

    def holds(leases: Any, fence: Any) -> bool:
        leases.load()
        held = leases._held(fence.name)
        return held is not None and held.owner == fence.owner

    return replaced((FileLeases, "fence_holds", holds))


def judged_too_early() -> AbstractContextManager[None]:
    """On SQLite, ends are judged by a clock that is three seconds ahead: those that slide, too."""
    now_us = SqliteBackend.now_us

    def ahead(backend: Any, stream: str) -> int:
        return now_us(backend, stream) + 3_000_000

    return replaced((SqliteBackend, "now_us", ahead))


def values_for_ever() -> AbstractContextManager[None]:
    """On files, readers see values that have ended."""
    shown = KeyEnds.shown

    def lasting(key_ends: Any, state: Any, stream: str) -> Any:
        if isinstance(key_ends._backend, FilesBackend):
            return state
        return shown(key_ends, state, stream)

    return replaced((KeyEnds, "shown", lasting))


def marks_for_ever() -> AbstractContextManager[None]:
    """On SQLite, marks are found that have ended."""
    is_over = mark_ends._is_over

    def lasting(log: Any, end: Mark) -> bool:
        return not isinstance(log._backend, SqliteBackend) and is_over(log, end)

    return replaced((mark_ends, "_is_over", lasting))


def guards_ignored() -> AbstractContextManager[None]:
    """What a commit has read may change before it is written."""

    def nothing(guard: Any, state: Any) -> tuple[Any, ...]:
        return ()

    return replaced((ReadGuard, "changed_paths", nothing))


def key_of_the_first_only() -> AbstractContextManager[None]:
    """SQLite keeps the key of the first record of an append, and forgets those of the others."""
    key_of, find = SqliteBatch._key_of, SqliteBackend.find

    def forgetful(batch: Any, name: str, key: str) -> int | None:
        return None if key.endswith("f2") else key_of(batch, name, key)

    def blind(backend: Any, stream: str, **given: Any) -> Any:
        return [] if (given.get("key") or "").endswith("f2") else find(backend, stream, **given)

    return replaced((SqliteBatch, "_key_of", forgetful), (SqliteBackend, "find", blind))


PLANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "guards-ignored": guards_ignored,
    "judged-too-early": judged_too_early,
    "values-for-ever": values_for_ever,
    "marks-for-ever": marks_for_ever,
    "key-of-the-first-only": key_of_the_first_only,
    "key-forgotten": key_forgotten,
    "name-too-early": name_too_early,
    "mark-kept": mark_kept,
    "fenced-by-owner": fenced_by_owner,
}

PROGRAMMES = (
    Programme(
        "t11-lockstep",
        "memory, files and SQLite answer the same to the same calls, also after crashes",
        trial,
        share=10,
        points=800,
        parts=3,
        plants=dict.fromkeys(PLANTS, 4),
    ),
)

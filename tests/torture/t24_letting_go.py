"""T24: retain, compact, archive, back up and restore, killed at disk calls, beside others.

A point is one of the operations on one store; `retain-whole` is the one that writes it anew. A
process does it and is killed with SIGKILL before, within or behind a call that changes the disk. In
`t24-files` and `t24-sqlite` chance chooses the call, three processes die one after the other, four
others write all the while and one follows; in `…-every` it is each call in turn, and nobody is
beside. Then the operation is done once more, to its end. Nothing that was written is missing,
followers saw every event once and in order, `check` finds nothing, and what was asked for is done:
no byte is left of what was let go of, but where a plain `retain` says so each time that it is
asked, until a whole one has removed them; the base has every state that was named, each scope is in
the archive, and a restored store has the digest that the source had.

In `t24-backup-every` backups of stores of four kinds, the first one or one that goes on, are killed
at each call in turn that changes the folder, while four processes write. In `t24-backup` four
processes make 2,000 commits while backups are made and killed at random moments. Ten of the points,
chosen by chance, are restored. The digest of each is compared with what the source held at that
moment, which is worked out from the events of the source alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import holdfast
from holdfast import Store
from holdfast import archive as archives
from holdfast import backup as backups
from holdfast.backends.protocol import GONE, START, MarksAtMoment
from holdfast.backup import backup, points, restore
from holdfast.core import retention
from holdfast.core.check import content_of
from holdfast.errors import HoldfastError
from holdfast.retention import RetentionPolicy
from tests.canaries import Canaries
from tests.crash import scale
from tests.crash.children import Child
from tests.crash.killers import HOWS, Countdown, CountedOs, Kill, options_for
from tests.opening import settled
from tests.servers.kinds import KEPT, url_of
from tests.torture.company import WRITERS, company, judge_writers
from tests.torture.programme import Broken, Point, Programme

OPERATIONS = ("retain", "compact", "archive", "backup", "restore", "retain-whole")
COMMITS = 40
FEW_COMMITS = 12
FIRST_CALLS, NEXT_CALLS = 160, 110
"""How many calls change the folder in the first backup and in one that goes on, and a few more."""
DEATHS = 3
OLD = 5
AGED = "team/aged"
FEW = [RetentionPolicy("team/aged", types=["state"], count=2)]
NOW_S = 1e-6
PATIENCE_S = 120.0
CALLS = {
    "files": {
        "retain": 185,
        "compact": 165,
        "archive": 560,
        "backup": 230,
        "restore": 210,
        "retain-whole": 195,
    },
    "sqlite": {
        "retain": 150,
        "compact": 100,
        "archive": 480,
        "backup": 155,
        "restore": 60,
        "retain-whole": 160,
    },
}
"""How many calls change the disk in each operation, and a few more. They differ a little from run
to run, and a point must always be the same one: beyond the last call nobody is killed.
"""
STEP = 787  # prime, so that every place is met

Opens = Callable[[str], Store]


class World:
    """A store, what is beside it, and what an operation does and must have done."""

    def __init__(
        self, backend: str, operation: str, place: Path, *, is_begun: bool = False
    ) -> None:
        """With `is_begun` the backup has a point already."""
        self.counts_source = True
        self.is_begun = is_begun or operation == "restore"
        self.backend = backend
        self.operation = operation
        self.place = place
        self.url = url_of(backend, place, "store")
        self.other = url_of(backend, place, "other")
        self.folder = place / "backup"
        self.canaries = Canaries()
        self.wanted: dict[str, Any] = {}

    # --- before ---

    def prepare(self) -> None:
        """Writes a past: old scopes, one that is compacted, and a point to restore."""
        with holdfast.open(self.url) as hf:
            for number in range(OLD):
                self._write_old(hf, number)
            aged = hf.scope(AGED)
            for number in range(12):
                aged.set("note", [number, "x" * 200])
                aged.append("list", {"number": number})
                if number % 4 == 0:
                    aged.checkpoint(f"c{number}")
            self.wanted = _states(hf)
            if self.is_begun:
                backup(hf, self.folder)
            if self.operation in ("retain", "retain-whole"):
                for number in range(OLD):
                    hf.conversation(f"old-{number}").remove()

    def _write_old(self, hf: Store, number: int) -> None:
        old = hf.conversation(f"old-{number}")
        old.set("note", self.canaries.new(f"note {number}"))
        old.say(f"{self.canaries.new(f'message {number}')} {'and so on ' * 100}")
        old.set("large", f"{self.canaries.new(f'large {number}')} {'x' * 70_000}")

    # --- the operation ---

    def work(self, opens: Opens) -> None:
        with opens(self.url) as hf:
            match self.operation:
                case "retain" | "retain-whole":
                    is_whole = self.operation == "retain-whole"
                    hf.retention.run(grace_s=0, whole=is_whole, wait_s=PATIENCE_S)
                case "compact":
                    hf.retention.run(policies=FEW, grace_s=0, wait_s=PATIENCE_S)
                case "backup":
                    backup(hf, self.folder)
                case "archive":
                    if self._is_left(hf):
                        with opens(self.other) as old:
                            archives.archive(hf, old, "conversation/old-*", older_than=NOW_S)
                case _:
                    with opens(self.other) as target:
                        restore(self.folder, target)

    def _is_left(self, hf: Store) -> bool:
        return any(name.startswith("conversation/old-") for name in hf._scopes.names())

    def die(self, kill: Kill) -> None:
        """Does it in a child, which is killed at a call."""

        def live(_pipe: int, _stop: int) -> None:
            scale.make_small()
            countdown = Countdown(kill)
            to_folder = options_for("files", countdown)
            options = to_folder if self.backend == "files" and self.counts_source else {}
            counted: Any = CountedOs(countdown)
            backups.os = counted
            sound_open = backups.open_store

            def open_counted(url: Any, **given: Any) -> Store:
                return sound_open(url, **settled(given, **to_folder))

            backups.open_store = open_counted
            self.work(lambda url: holdfast.open(url, **settled(options)))

        child = Child(live)
        child.end()
        if child.trouble is not None:
            raise Broken(f"{self}: to be killed {kill}: {child.trouble}")

    # --- after ---

    def judge(self) -> None:
        """Does the operation to its end, and raises unless all is as it should be."""
        self.work(holdfast.open)
        with holdfast.open(self.url) as hf:
            getattr(self, f"_judge_{self.operation.replace('-', '_')}")(hf)
            self._check(hf, "the store")

    def _check(self, hf: Store, what: str) -> None:
        findings = [one for one in hf.check().findings if not one.harmless]
        self.expect(findings == [], f"{what} is damaged: {findings[:3]}")

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Broken(f"{self}: {otherwise}")

    def _judge_retain(self, hf: Store) -> None:
        """Raw bytes are only where the second call says so again, and a whole one removes them."""
        left = hf.retention.run(grace_s=0).left
        named = [Path(one.where) for one in left]
        found = self.canaries.found_below(self.place, besides=named)
        self.expect(found == {}, f"stored bytes still have {found}, and {left} is said to be left")
        again = hf.retention.run(grace_s=0, whole=True).left
        self.expect(again == [], f"a whole retain leaves {again}")
        self._judge_retain_whole(hf)

    def _judge_retain_whole(self, hf: Store) -> None:
        found = self.canaries.found_below(self.place)
        self.expect(found == {}, f"stored bytes still have {found}")
        self.expect(
            hf.retention.run(grace_s=0).scopes == [], "there is something left to let go of"
        )

    def _judge_compact(self, hf: Store) -> None:
        self.expect(_states(hf) == self.wanted, f"{_states(hf)} is not {self.wanted}"[:900])
        records = hf._log.read(AGED, after=0)
        gone = [one.revision for one in records if one.payload == GONE]
        self.expect(len(gone) >= 11, f"only {gone} of the old changes went")

    def _judge_archive(self, hf: Store) -> None:
        self.expect(not self._is_left(hf), "a scope was not archived")
        with holdfast.open(self.other) as old:
            there = _states(old)
            wanted = {name: one for name, one in self.wanted.items() if name in there}
            self.expect(len(there) == OLD and there == wanted, "an archived scope differs")
            self._check(old, "the archive")

    def _judge_backup(self, hf: Store) -> None:
        found = points(self.folder)
        content = content_of(hf._log)
        self.expect(found[-1].digest == content.digest, "the last point is not what is there")
        for point in found:
            self.expect(point.digest == digest_at(hf, point), f"{point.name} is no moment of it")
        with holdfast.open("memory:") as target:
            restore(self.folder, target)
            self.expect(_states(target) == _states(hf), "restored states differ")

    def judge_points(self) -> None:
        """Raises unless each point that a killed backup left is whole."""
        for point in points(self.folder) if (self.folder / "backup.json").exists() else ():
            with holdfast.open("memory:") as target:
                restore(self.folder, target, at=point.name)
                self._check(target, point.name)

    def _judge_restore(self, hf: Store) -> None:
        [point] = points(self.folder)
        with holdfast.open(self.other) as target:
            self.expect(content_of(target._log).digest == point.digest, "another digest")
            self.expect(_states(target) == self.wanted, "restored states differ")
            self._check(target, "the restored store")

    def __str__(self) -> str:
        return f"{self.operation} on {self.backend}"


def _states(hf: Store) -> dict[str, Any]:
    """Returns the state of each scope that is there, and of one at its checkpoints."""
    found: dict[str, Any] = {}
    for scope in hf.scopes(limit=None):
        if scope.name.startswith(("conversation/old-", AGED)):
            found[scope.name] = scope.state.to_dict()
    if AGED in found:
        named = [one.name for one in hf.scope(AGED).checkpoints()]
        found["at"] = {name: hf.scope(AGED).at(name).to_dict() for name in named}
    return found


def digest_at(hf: Store, point: backups.Point) -> str:
    """Returns the digest that the source had at a point, from its events alone."""
    heads: dict[str, tuple[int, bytes]] = {}
    after = START
    while page := hf._log.read_all(after=after, limit=500):
        for record in page:
            if record.position <= point.sources[0]:
                heads[record.stream] = record.revision, record.link
        after = page[-1].position
    digest = sha256()
    for name, (revision, link) in sorted(heads.items()):
        digest.update(f"{len(name)}:{name} {revision} {link.hex()}\n".encode())
    return digest.hexdigest()


# --- trials ---------------------------------------------------------------------------------------


def trial(backend: str, point: Point) -> int:
    """Three deaths at calls that chance chooses, beside writers and a follower."""
    with PLANTS[point.plant]():
        chance = point.random
        world = World(backend, OPERATIONS[point.number % len(OPERATIONS)], point.place)
        calls = CALLS[backend][world.operation]
        world.prepare()
        with judged(world):
            with company(partial(holdfast.open, world.url), COMMITS):
                for _ in range(DEATHS):
                    world.die(Kill(chance.randint(1, calls), chance.choice(HOWS)))
            world.judge()
            with holdfast.open(world.url) as hf:
                judge_writers(hf, COMMITS, world)
        return DEATHS


def trial_of_each(backend: str, point: Point) -> int:
    """The nth call of all operations, one after the other; 0 when there are no more."""
    with PLANTS[point.plant]():
        places = [(one, nth) for one, last in CALLS[backend].items() for nth in range(1, last + 1)]
        if point.number >= len(places):
            return 0
        # Neighbours are far apart: a share of them is spread over everything.
        operation, nth = places[point.number * STEP % len(places)]
        world = World(backend, operation, point.place)
        world.prepare()
        with judged(world):
            world.die(Kill(nth, HOWS[point.number % len(HOWS)]))
            world.judge()
        return 1


def trial_of_backups_beside(point: Point) -> int:
    """The nth call of a backup, while four processes write; 0 when there are no more."""
    with PLANTS[point.plant]():
        if point.number >= FIRST_CALLS + NEXT_CALLS:
            return 0
        place = point.number * STEP % (FIRST_CALLS + NEXT_CALLS)
        backend = KEPT[point.number % len(KEPT)]
        is_begun = place >= FIRST_CALLS
        world = World(backend, "backup", point.place, is_begun=is_begun)
        world.counts_source = False
        world.prepare()
        with judged(world):
            with company(partial(holdfast.open, world.url), FEW_COMMITS):
                nth = place - FIRST_CALLS if is_begun else place
                world.die(Kill(nth + 1, HOWS[point.number % len(HOWS)]))
                world.judge_points()
            world.judge()
            with holdfast.open(world.url) as hf:
                judge_writers(hf, FEW_COMMITS, world)
        return 1


@contextmanager
def judged(world: World) -> Generator[None]:
    try:
        yield
    except HoldfastError as error:
        raise Broken(f"{world}: {error!r}") from error


def back_up(url: str, folder: Path) -> None:
    with holdfast.open(url) as hf:
        while True:
            backup(hf, folder)


def trial_of_backups(point: Point) -> int:
    """2,000 commits by four processes, while backups are made and killed at random moments."""
    with PLANTS[point.plant]():
        chance = point.random
        backend = KEPT[point.number % len(KEPT)]
        count = 500 if backend in ("files", "sqlite") else 125
        url, folder = url_of(backend, point.place, "store"), point.place / "backup"
        holdfast.open(url).close()
        with company(partial(holdfast.open, url), count) as writers:
            while not all(writer.is_at_end for writer in writers):
                maker = Child(lambda _p, _s: back_up(url, folder))
                maker.hear_for(0.05 + chance.random() * 0.6)
                maker.kill()
                if maker.trouble:
                    raise Broken(f"a backup on {backend} failed: {maker.trouble}")
                for writer in writers:
                    writer.hear(0)
        with holdfast.open(url) as hf:
            backup(hf, folder)
            judge_writers(hf, count, backend)
            found = points(folder)
            for one in chance.sample(found[:-1], min(9, len(found) - 1)) + found[-1:]:
                _judge_point(hf, folder, one, backend, chance)
            return len(found)


def _judge_point(
    hf: Store, folder: Path, point: backups.Point, backend: str, chance: Random
) -> None:
    with holdfast.open("memory:") as target:
        digest = restore(folder, target, at=point.name).digest
        if backend != "postgresql" and digest != digest_at(hf, point):
            raise Broken(f"{point.name} on {backend} is not what the source held then")
        due = {mark.key: mark.due for mark in target.workers.marks("written")}
        logs = {name: list(target.team(name).get("log", [])) for name in WRITERS}
        lengths = {name: len(log) for name, log in logs.items() if log}
        if lengths != due or any(log != list(range(1, len(log) + 1)) for log in logs.values()):
            raise Broken(f"{point.name} on {backend} is of no one moment: {lengths}, {due}")


# --- faults ---------------------------------------------------------------------------------------


@contextmanager
def _replaced(where: Any, name: str, fault: Any) -> Generator[None]:
    sound = getattr(where, name)
    setattr(where, name, fault)
    try:
        yield
    finally:
        setattr(where, name, sound)


def rewritten_untold() -> Any:
    """What goes is rewritten before it is told."""
    commit = retention.Retainer._commit

    def late(self: Any, new_events: Any, marks: Any = (), lease: Any = None) -> Any:
        for one in new_events:
            if one.type == retention.LET_GO:
                said = retention.codec.decode_as(one.payload, retention._LetGo)
                records = self._log.read(said.scope, after=0)
                named = [record.revision for record in records if record.type == "changed"]
                self._log._backend.rewrite({said.scope: named[:1]})
        return commit(self, new_events, marks, lease)

    return _replaced(retention.Retainer, "_commit", late)


def marks_of_another_moment() -> Any:
    """Marks are read after the moment that they are said to be of."""

    def later(part: Any) -> MarksAtMoment:
        moment = part.moment()
        found = holdfast.backends.protocol.marks_at_moment(part)
        return MarksAtMoment(moment, moment.position, found.marks, exact=True)

    return _replaced(backups, "marks_at_moment", later)


def counted_first() -> Any:
    """A point is counted before it is in the list: a kill in between looks like a loss."""
    add = backups._Increment.add

    def late(self: Any, point: backups.Point) -> Any:
        about = backups.replace(self._about, points=len(self._known.found) + 1, sha256="")
        backups._write_about(self._place, about)
        return add(self, point)

    return _replaced(backups._Increment, "add", late)


@contextmanager
def _nothing() -> Generator[None]:
    yield


PLANTS: dict[str, Callable[[], Any]] = {
    "": _nothing,
    "rewritten-untold": rewritten_untold,
    "marks-of-another-moment": marks_of_another_moment,
    "counted-first": counted_first,
}

PROGRAMMES: tuple[Programme, ...] = (
    *(
        Programme(
            f"t24-{backend}",
            "letting go and backing up, killed beside writers, harms nothing and is finished",
            lambda point, backend=backend: trial(backend, point),
            share=40,
            points=1_000,
            parts=2,
            turns=40,
        )
        for backend in ("files", "sqlite")
    ),
    *(
        Programme(
            f"t24-{backend}-every",
            "the same, killed at every call that changes the disk",
            lambda point, backend=backend: trial_of_each(backend, point),
            share=300,
            parts=3,
            turns=75,
            plants={"rewritten-untold": 60},
        )
        for backend in ("files", "sqlite")
    ),
    Programme(
        "t24-backup-every",
        "a backup beside four writers, killed at every call that changes it, leaves whole points",
        trial_of_backups_beside,
        share=FIRST_CALLS + NEXT_CALLS,
        points=FIRST_CALLS + NEXT_CALLS,
        parts=2,
        turns=90,
        plants={"counted-first": 300},
    ),
    Programme(
        "t24-backup",
        "backups during 2,000 commits, killed and gone on with, are moments of the source",
        trial_of_backups,
        share=12,
        points=200,
        turns=12,
        plants={"marks-of-another-moment": 4},
    ),
)

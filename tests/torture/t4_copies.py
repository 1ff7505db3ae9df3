"""T4, of what is made of a store: power loss while it is backed up, restored, copied or exported.

One point is one kind of work, with a source in memory that power losses do not reach: backups that
go on and are pruned; a restore, a copy, an import, an archive or a salvage into a store on files or
SQLite; files of exports. Its calls are recorded, as those of `t4-files` are, and states of the disk
that a power loss may leave are taken from the weakest sensible model. In each of them all that was
answered before must be there and whole: points, which restore what the source held; a store that
was copied, restored or imported; the scopes whose removal from the source an archive has committed;
the file that an export has named. What was begun is whole or absent, and the same call, made again,
finishes it.

Planted, and found: `PLANTS`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import holdfast
from holdfast import Settings, Store
from holdfast import backup as backups
from holdfast import exchange as exchanges
from holdfast.archive import archive
from holdfast.backup import backup, points, prune, restore
from holdfast.core.check import content_of
from holdfast.core.event import REMOVED
from holdfast.errors import HoldfastError
from holdfast.exchange import new_file
from holdfast.interchange import export_scopes, import_scopes
from holdfast.testing import FakeClock
from holdfast.transfer import sink as sinks
from holdfast.transfer.copy import copy_log
from holdfast.transfer.salvage import salvage_log
from tests.opening import settled
from tests.torture import crash_trace, crash_vfs
from tests.torture.crash_judge import clock_after
from tests.torture.crash_states import Picked, lay_out, moments, pick
from tests.torture.crash_trace import CrashDisk, Trace, unsynced
from tests.torture.crash_work import make_tiny
from tests.torture.programme import Broken, Point, Programme

MEMORY = Path("/dev/shm")
STATES = 20
KINDS = ("backup", "restore", "copy", "import", "archive", "salvage", "file", "prune")
TARGETS = ("files", "sqlite")

UNTOLD = "has no data, and nobody has said that it was let go of"

Seen = tuple[str, list[Any]]


def look(hf: Store) -> Seen:
    marks = hf._log.marks.list(limit=1 << 40)
    return content_of(hf._log).digest, sorted(marks, key=lambda mark: (mark.index, mark.key))


class Scene:
    """One kind of work, what it has answered, and what must be there for it."""

    def __init__(self, point: Point, place: Path) -> None:
        self.kind = KINDS[point.number % len(KINDS)]
        self.target = TARGETS[point.number // len(KINDS) % len(TARGETS)]
        self.chance = point.random
        self.place = place
        self.clock = FakeClock(seed=7)
        self.source = self._open("memory:")
        self.wanted: dict[str, Any] = {}
        """What must be there, by the name of what was answered."""
        self.last_began = 0
        self._count = 0

    def _open(self, url: str) -> Store:
        return holdfast.open(url, actor="w", settings=Settings(clock=self.clock))

    def write(self) -> None:
        """Writes small and large values, marks, names, a fork, and a scope that is let go of."""
        self._count += 1
        n, hf = self._count, self.source
        red = hf.team("red")
        red.update({"n": n, "bulk": self.chance.randbytes(1200).hex()}, checkpoint=f"c{n}")
        red.set("blob", self.chance.randbytes(3000).hex())
        hf.conversation(f"old-{n}").set("blob", self.chance.randbytes(2500).hex())
        hf.conversation(f"old-{n}").set("n", n)
        red.fork(f"fork {n}").set("n", n)
        with hf.commit() as tx:
            tx.scope(hf.team("blue")).append("log", n)
            tx.mark("todo", f"m{n % 2}", due=n)
        if n > 1 and self.kind != "archive":
            hf.conversation(f"old-{n - 1}").remove()
            hf.retention.run(grace_s=0)

    # --- the work, recorded ---

    def run(self, trace: Trace) -> None:
        rounds = self.chance.randint(1, 3)
        self.write()
        for round in range(rounds):
            if self.kind in ("restore", "import"):
                # What is read has to be there: it is made before, where no power is lost.
                self._make_beside()
            self.last_began = len(trace.events)
            self.clock.advance(1)
            with crash_trace.recording(trace), crash_vfs.recording(trace):
                self.step(trace, round == rounds - 1)
            self.write()

    def step(self, trace: Trace, is_last: bool) -> None:
        name = f"{self.kind} {self._count}"
        trace.begun(name)
        if self.kind == "file":
            with new_file(self.path(f"export-{self._count}")) as file:
                export_scopes(self.source, (), file)
            self.wanted[name] = (f"export-{self._count}", look(self.source))
        elif self.kind in ("backup", "prune"):
            point = backup(self.source, self.path("backup"))
            self.wanted[name] = (point.name, look(self.source))
            if self.kind == "prune" and is_last:
                trace.done(name)
                prune(self.path("backup"))
        else:
            with self.open_target(self.place) as target:
                self.bring(target, trace)
            self.wanted[name] = self._look(self.source)
        trace.done(name)

    def bring(self, target: Store, trace: Trace | None = None) -> None:
        beside = self.place.with_name(self.place.name + "-beside")
        match self.kind:
            case "restore":
                restore(beside / "backup", target)
            case "import":
                import_scopes(target, beside / "export")
            case "copy":
                copy_log(self.source._log, target._log)
            case "salvage":
                salvage_log(self.source._log, target._log)
            case _:
                assert trace is not None
                with self._telling_removals(trace):
                    archive(self.source, target, "conversation/old-*", older_than=1e-6)

    @contextmanager
    def _telling_removals(self, trace: Trace) -> Generator[None]:
        """Says to the trace which scopes the source has no more, when it commits that."""
        backend: Any = self.source._log._backend
        commit = backend.commit
        before = {name: content(self.source, name) for name in self.source._log.streams()}

        def told(commits: Any) -> Any:
            answer = commit(commits)
            for one in commits:
                for append in one.appends:
                    if any(record.type == REMOVED for record in append.records):
                        self.wanted[f"removed {append.stream}"] = before[append.stream]
                        trace.done(f"removed {append.stream}")
            return answer

        backend.commit = told
        try:
            yield
        finally:
            backend.commit = commit

    def _make_beside(self) -> None:
        beside = self.place.with_name(self.place.name + "-beside")
        beside.mkdir(exist_ok=True)
        if self.kind == "restore":
            backup(self.source, beside / "backup")
        else:
            with (beside / "export").open("wb") as file:
                export_scopes(self.source, (), file)

    def path(self, name: str) -> Path:
        return self.place / name

    def open_target(self, place: Path, clock: FakeClock | None = None) -> Store:
        url = f"sqlite:{place / 'target.db'}" if self.target == "sqlite" else place / "target"
        options = {} if self.target == "sqlite" else {"disk": CrashDisk()}
        return holdfast.open(
            url, actor="w", settings=Settings(clock=clock or self.clock, options=options)
        )

    # --- judging a state ---

    def judge(self, place: Path, done: frozenset[str]) -> None:
        owed = {name: one for name, one in self.wanted.items() if name in done}
        if self.kind == "file":
            self._judge_files(place, owed)
        elif self.kind in ("backup", "prune"):
            self._judge_backup(place, owed)
        else:
            self._judge_target(place, owed)

    def _judge_files(self, place: Path, owed: dict[str, Any]) -> None:
        for path in place.iterdir():
            if path.name.endswith(".new"):
                continue
            with holdfast.open("memory:", settings=Settings(clock=clock_after())) as target:
                import_scopes(target, path)
        for name, (file, seen) in owed.items():
            expect((place / file).exists(), f"{name} was answered, and its file is not there")
            with holdfast.open("memory:", settings=Settings(clock=clock_after())) as target:
                import_scopes(target, place / file)
                expect(look(target) == seen, f"{name} is not what the source held")

    def _judge_backup(self, place: Path, owed: dict[str, Any]) -> None:
        folder, made = place / "backup", dict(self.wanted.values())
        if owed:
            names = {one.name for one in points(folder)}
            expect({name for name, _ in owed.values()} <= names, f"points are lost: {names}")
        self._judge_points(folder, made)
        last = backup(self.source, folder)
        self._judge_points(folder, {**made, last.name: look(self.source)})

    def _judge_points(self, folder: Path, made: dict[str, Seen]) -> None:
        if not (folder / "backup.json").exists():
            return
        for point in points(folder):
            with holdfast.open("memory:", settings=Settings(clock=clock_after())) as target:
                digest = restore(folder, target, at=point.name).digest
                if point.name in made:
                    # Not the digest now: what was pruned is told in the restored store itself.
                    found = digest, look(target)[1]
                    expect(found == made[point.name], f"{point.name} restores otherwise")
                check(target, point.name)

    def _look(self, hf: Store) -> Seen:
        digest, marks = look(hf)
        # An import leaves marks of no scope as they are.
        return digest, [one for one in marks if one.group or self.kind != "import"]

    def _is_whole(self, owed: dict[str, Any]) -> bool:
        """Returns whether nothing was begun that has not been answered."""
        return len(owed) == len(self.wanted)

    def _judge_target(self, place: Path, owed: dict[str, Any]) -> None:
        with self.open_target(place, clock_after()) as target:
            # Until all is taken over, the event that tells what was let go of may be missing.
            check(target, "the target", besides="" if self._is_whole(owed) else UNTOLD)
            for name, seen in owed.items():
                if name.startswith("removed "):
                    stream = name.partition(" ")[2]
                    expect(content(target, stream) == seen, f"{stream} is in no place any more")
            whole = [seen for name, seen in owed.items() if not name.startswith("removed ")]
            if self.kind == "archive":
                return
            if whole:
                seen = self._look(target)
                is_later = seen not in whole and not self._is_whole(owed)
                expect(seen == whole[-1] or is_later, "what was answered is not there")
            self.bring(target)
            if self.kind in ("copy", "salvage"):
                expect(look(target) == look(self.source), "done again, it is another")
            check(target, "the target, done again,")


def content(hf: Store, stream: str) -> list[tuple[int, bytes, bytes]]:
    """Returns what a stream holds, its large values too."""
    return [
        (one.revision, one.link, one.payload) for one in hf._log.stored(stream, after=0, until=99)
    ]


def check(hf: Store, what: str, besides: str = "") -> None:
    findings = [
        one
        for one in hf.check().findings
        if not (one.harmless or (besides and besides in one.problem))
    ]
    expect(findings == [], f"{what} is damaged: {findings[:3]}")


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


# --- trials ---------------------------------------------------------------------------------------


def trial(point: Point) -> int:
    make_tiny()
    crash_vfs.install()
    sinks.COMMITS_PER_BATCH = point.random.randint(1, 6)
    sound_open = backups.open_store
    backups.open_store = lambda url, **given: sound_open(url, **settled(given, disk=CrashDisk()))
    try:
        with _scratch(point) as place:
            return _tried(point, place)
    finally:
        backups.open_store = sound_open


@contextmanager
def _scratch(point: Point) -> Generator[Path]:
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        yield point.place
        return
    with TemporaryDirectory(dir=MEMORY, prefix="holdfast-t4-") as place:
        yield Path(place)


def _tried(point: Point, scratch: Path) -> int:
    place = scratch / "recorded"
    place.mkdir()
    scene = Scene(point, place)
    trace = Trace(place)
    with PLANTS[point.plant](trace):
        scene.run(trace)
    chosen = pick(moments(trace, scene.last_began), point.random, STATES)
    for number, picked in enumerate(chosen):
        state = scratch / f"state-{number}"
        state.mkdir()
        lay_out(picked.state, state)
        _judge(scene, picked, state, point)
        shutil.rmtree(state)
    scene.source.close()
    return len(chosen)


def _judge(scene: Scene, picked: Picked, state: Path, point: Point) -> None:
    told = f"{scene.kind} into {scene.target}, {scene._count} rounds\n{picked}"
    try:
        with unsynced():
            scene.judge(state, picked.moment.done)
    except (HoldfastError, Broken, OSError, ValueError, LookupError) as error:
        kept = point.place / "state"
        kept.mkdir()
        lay_out(picked.state, kept)
        raise Broken(f"{type(error).__name__}: {error}\n{told}") from error


# --- faults ---------------------------------------------------------------------------------------


@contextmanager
def _nothing(_: Trace) -> Generator[None]:
    yield


@contextmanager
def _replaced(where: Any, name: str, fault: Any) -> Generator[None]:
    sound = getattr(where, name)
    setattr(where, name, fault)
    try:
        yield
    finally:
        setattr(where, name, sound)


def loses(*names: str) -> Callable[[Trace], Any]:
    """Loses the syncs of files and directories whose name begins so."""

    @contextmanager
    def planted(trace: Trace) -> Generator[None]:
        trace.loses = lambda event, trace: (
            event.kind == "sync" and trace.names[event.node].startswith(names)
        )
        yield

    return planted


@contextmanager
def blobs_unsynced(trace: Trace) -> Generator[None]:
    """A large value is synced by nobody, nor the folder that it is in."""
    from holdfast.backends.files.objects import TEMP

    with loses(TEMP)(trace):
        yield


@contextmanager
def named_first(_: Trace) -> Generator[None]:
    """A file of an export has its name before it is written."""

    @contextmanager
    def early(path: Any, **_: Any) -> Generator[Any]:
        with open(path, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    with _replaced(exchanges, "new_file", early):
        global new_file
        sound, new_file = new_file, early
        try:
            yield
        finally:
            new_file = sound


PLANTS: dict[str, Callable[[Trace], Any]] = {
    "": _nothing,
    "points-unsynced": loses("points.jsonl"),
    "marks-unsynced": loses("p1.jsonl", "p2.jsonl", "p3.jsonl"),
    "manifest-unsynced": loses("backup.json"),
    "folder-unsynced": loses("backup", "marks"),
    "blobs-unsynced": blobs_unsynced,
    "ring-unsynced": loses("ring"),
    "named-first": named_first,
}
WITHIN = {name: 60 for name in PLANTS if name}

PROGRAMMES = (
    Programme(
        "t4-copies",
        "a backup, restore, copy, import, archive or export keeps what it answered, power or not",
        trial,
        share=64,
        points=2_000,
        parts=2,
        turns=32,
        plants=WITHIN,
    ),
)

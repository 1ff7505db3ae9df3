"""T4: power loss, by enumerated states of the disk.

A point is one sequence of operations on a new store: all of up to three, and longer ones by chance.
Its calls are recorded (crash_trace.py, crash_vfs.py), states that a power loss may leave are taken
from the weakest sensible model (crash_states.py), and each is opened and judged (crash_judge.py).
Some are struck a second time, while they recover. A short sequence is struck within its last
operation or behind it; what may happen before that, a shorter one shows.

Planted and found (crash_plants.py), on files: syncs left out of the ring, of a blob, of the index,
of a large commit, of the text before ring space is used again, before the ring is removed at a
close, and at the end of a recovery; names not synced of segments, of what is put into the store's
directory, of the directories on the way to it, and of folders that a snapshot made and a blob is
put into; a rename before the sync. On SQLite: synchronous NORMAL and OFF, a checkpoint that does
not sync the database, a new database not synced, or its name, and a WAL whose name is not synced.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.testing import FakeClock
from tests.crash.verdict import Said
from tests.torture import crash_vfs
from tests.torture.crash_judge import Case, clock_after, judge
from tests.torture.crash_plants import planted
from tests.torture.crash_states import Picked, lay_out, moments, pick
from tests.torture.crash_trace import Trace
from tests.torture.crash_work import OPERATIONS, Work, make_tiny
from tests.torture.programme import Broken, Point, Programme

MEMORY = Path("/dev/shm")
STATES = 24
STATES_SECOND = 8
POINTS = 3400
"""Every short sequence once, some twice with other states, and 425 long ones: 88,000 states."""
SECOND = ("", "s", "l", "u", "x")
"""What is done after a recovery that is struck too."""
SEQUENCES = [
    "".join(letters) for n in range(4) for letters in itertools.product(OPERATIONS, repeat=n)
]


def trial(backend: str) -> Callable[[Point], int]:
    def one(point: Point) -> int:
        make_tiny()
        crash_vfs.install()
        with _scratch(point) as place:
            return _Trial(backend, point, place).run()

    return one


@contextmanager
def _scratch(point: Point) -> Generator[Path]:
    """Gives a directory in memory where there is one: nothing here needs a disk."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        yield point.place
        return
    with TemporaryDirectory(dir=MEMORY, prefix="holdfast-t4-") as place:
        yield Path(place)


def sequence_of(point: Point) -> str:
    """Every eighth point is long, by chance; the others take all short ones in a seeded order."""
    if point.number % 8 == 7:
        return "".join(point.random.choices(list(OPERATIONS), k=point.random.randint(4, 12)))
    order = list(range(len(SEQUENCES)))
    random.Random(point.seed).shuffle(order)
    return SEQUENCES[order[(point.number - point.number // 8) % len(order)]]


class _Trial:
    def __init__(self, backend: str, point: Point, place: Path) -> None:
        self._backend = backend
        self._point = point
        self._place = place
        self._sequence = sequence_of(point)
        self._cases = 0
        self._places = 0

    def run(self) -> int:
        trace, work = self._record(self._new_place(), FakeClock(seed=7), Said(), self._sequence)
        is_long = len(self._sequence) > 3
        found = moments(trace, 0 if is_long else work.last_began)
        chosen = pick(found, self._point.random, STATES)
        told = "after: create " + " ".join(OPERATIONS[one].__name__ for one in self._sequence)
        for picked in chosen:
            case = Case(work.said, work.epochs, picked.moment.begun, picked.moment.done)
            self._judge(picked, case, told, boots=1)
        if self._point.number % 4 == 1:
            self._strike_again(self._point.random.choice(chosen), work, told)
        return self._cases

    def _strike_again(self, picked: Picked, before: Work, told: str) -> None:
        """Loses the power a second time, while the store recovers or right behind that."""
        place = self._new_place()
        lay_out(picked.state, place)
        case = Case(before.said, before.epochs, picked.moment.begun, picked.moment.done)
        sequence = self._point.random.choice(SECOND)
        trace, work = self._record(place, clock_after(1), case.said, sequence, who="2")
        told = f"{told}\n{picked}\nthen: open {sequence}"
        for second in pick(moments(trace, trace.began), self._point.random, STATES_SECOND):
            begun = picked.moment.begun | second.moment.begun
            done = picked.moment.done | second.moment.done
            epochs = {**before.epochs, **work.epochs}
            self._judge(second, Case(work.said, epochs, begun, done), told, boots=2)

    def _record(
        self, place: Path, clock: FakeClock, said: Said, sequence: str, who: str = "1"
    ) -> tuple[Trace, Work]:
        trace = Trace(place)
        is_prepared = who == "1" and self._point.number % 3 == 2
        work = Work(self._backend, trace, clock, said=said, who=who, is_prepared=is_prepared)
        with planted(self._point.plant, trace):
            work.run(sequence)
        return trace, work

    def _judge(self, picked: Picked, case: Case, told: str, *, boots: int) -> None:
        place = self._new_place()
        lay_out(picked.state, place)
        try:
            judge(self._backend, place, case, boots=boots, twice=self._cases % 3 == 0)
        except Broken as exc:
            kept = self._point.place / "state"
            kept.mkdir()
            lay_out(picked.state, kept)
            raise Broken(f"{exc}\n{told}\n{picked}") from exc
        shutil.rmtree(place)
        self._cases += 1

    def _new_place(self) -> Path:
        self._places += 1
        place = self._place / str(self._places)
        place.mkdir()
        return place


PLANTS = {
    "files": {
        "ring-unsynced": 5,
        "blob-unsynced": 10,
        "index-unsynced": 150,
        "large-unsynced": 10,
        "slot-reused": 80,
        "close-unsynced": 20,
        "recovery-unsynced": 20,
        "segment-unnamed": 10,
        "directory-unsynced": 5,
        "way-unsynced": 5,
        "folders-trusted": 20,
        "rename-first": 30,
    },
    "sqlite": {
        "synchronous-normal": 5,
        "synchronous-off": 5,
        "checkpoint-unsynced": 10,
        "creation-unsynced": 10,
        "creation-unnamed": 30,
        "wal-unnamed": 5,
    },
}
PROGRAMMES = tuple(
    Programme(
        name=f"t4-{backend}",
        promise="every state that a power loss may leave recovers to what was acknowledged",
        trial=trial(backend),
        share=200,
        points=POINTS,
        parts=3,
        turns=16,
        plants=plants,
    )
    for backend, plants in PLANTS.items()
)

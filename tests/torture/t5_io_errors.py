"""T5: an error at every call to the system, in everything that a store is used for.

Every scene is played once without a fault, which numbers its calls. Then each call fails, with each
error that it can have, once and from then on; then the store is opened again and judged:
nothing acknowledged is missing, nothing that was refused with a known outcome is there, what was
there before is unchanged, every error was one of ours, no descriptor was left open.

The calls are those of the files backend and of SQLite's own file layer, which is the SQLite
backend's and the index's. The programmes `-pairs` let two calls of a scene fail.

Planted, and found: see `PLANTS`.
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from holdfast import UnavailableError
from tests.descriptors import descriptors
from tests.torture.faulty_calls import FAULTS, KINDS, LASTING, Fault
from tests.torture.faulty_judge import calls_of, is_killed, judge, play, rehearse, stage
from tests.torture.faulty_life import Scene, no_hang
from tests.torture.faulty_scenes import SCENES
from tests.torture.programme import Broken, Point, Programme


@cache
def ready(backend: str, plant: str) -> None:
    rehearse(backend)
    if plant:
        PLANTS[plant]()


def case(backend: str, name: str, *plan: Fault) -> bool:
    """Plays a scene with these faults and judges; returns whether any call failed."""
    with stage(backend, was_killed=is_killed(name)) as place, no_hang(f"{name} with {plan}"):
        open_before = len(descriptors(place))
        scene = Scene(backend, place)
        told = f"{name} with {' and '.join(map(str, plan))}"
        try:
            play(scene, name, *plan)
            hits = list(FAULTS.hits)
            if len(descriptors(place)) > open_before:
                gc.collect()
                if len(descriptors(place)) > open_before:
                    raise Broken(
                        f"{len(descriptors(place)) - open_before} descriptors were left open"
                    )
            judge(scene, name)
        except Broken as broken:
            failed = ", ".join(FAULTS.hits[:4])
            raise Broken(f"{told}: {broken}; failed calls: {failed}") from broken
    return bool(hits)


@cache
def sites(backend: str) -> list[tuple[str, str, int]]:
    """Returns every call of every scene: the kind of call, and its number of that kind."""
    found: list[tuple[str, str, int]] = []
    for name in SCENES:
        counts: Counter[str] = Counter()
        for call in calls_of(backend, name):
            counts[call] += 1
            found.append((name, call, counts[call]))
    # The first few are of all scenes: what a plant is looked for in, and parts of equal size.
    random.Random(1).shuffle(found)
    return found


def faults_at(call: str, nth: int) -> list[Fault]:
    """Returns every fault that a call can have, the plainest first."""
    kinds = KINDS[call]
    faults = [Fault(call, nth, kind) for kind in kinds]
    return faults + [Fault(call, nth, kind, True) for kind in kinds if kind in LASTING]


def every_call(backend: str, point: Point) -> int:
    """One call of one scene fails once, and then in another way that chance chooses."""
    ready(backend, point.plant)
    if point.number >= len(sites(backend)):
        return 0
    name, call, nth = sites(backend)[point.number]
    plain, *others = faults_at(call, nth)
    case(backend, name, plain)
    if len(others) < 2:  # a look at a file: there are many, and `-errors` has the rest
        return 1
    case(backend, name, point.random.choice(others))
    return 2


def every_error(backend: str, point: Point) -> int:
    """One call of one scene fails in every way that it can."""
    ready(backend, point.plant)
    if point.number >= len(sites(backend)):
        return 0
    name, call, nth = sites(backend)[point.number]
    faults = faults_at(call, nth)
    for fault in faults:
        case(backend, name, fault)
    return len(faults)


def every_pair(backend: str, point: Point) -> int:
    """Two calls of one scene fail."""
    ready(backend, point.plant)
    chance = point.random
    name, first, nth = chance.choice(sites(backend))
    second, later = chance.choice([site[1:] for site in sites(backend) if site[0] == name])
    case(
        backend,
        name,
        chance.choice(faults_at(first, nth)),
        chance.choice(faults_at(second, later + chance.randrange(4))),
    )
    return 1


# --- faults that are planted ----------------------------------------------------------------------


def swallow_write() -> None:
    """A write that failed is taken for done."""
    FAULTS.swallow = "pwrite"


def write_once() -> None:
    """A write is taken to have written everything."""
    FAULTS.swallow = "short"


def read_once() -> None:
    """A short read is taken for the end of the file."""
    from holdfast.backends.files import disk, journal
    from holdfast.backends.files import text as segments

    def once(disk: Any, fd: int, size: int, offset: int = 0) -> bytes:
        return disk.pread(fd, size, offset)

    for module in (disk, journal, segments):
        setattr(module, "read_all", once)  # noqa: B010


def full_is_fine() -> None:
    """A text that could not be appended is passed over, and the commit acknowledged."""
    from holdfast.backends.files.text import Segments

    real = Segments.append

    def append(self: Segments, offset: int, text: bytes) -> None:
        with suppress(OSError):
            real(self, offset, text)

    Segments.append = append


def known_for_sure() -> None:
    """Every commit that failed is said not to be there."""
    real = UnavailableError.__init__

    def init(self: UnavailableError, message: str, **named: Any) -> None:
        real(self, message, hint=named.get("hint"))

    UnavailableError.__init__ = init
    setattr(  # noqa: B010
        UnavailableError,
        "outcome_known",
        property(lambda self: True, lambda self, value: None),
    )


def index_is_truth() -> None:
    """An error of the index is taken to mean that there is nothing."""
    import apsw

    from holdfast.backends.files.catalog import Catalog

    def ask(self: Any, question: Callable[..., Any]) -> Any:
        try:
            return self._ask_once(question)
        except apsw.Error:
            return []

    setattr(Catalog, "_ask", ask)  # noqa: B010


def bare_errors() -> None:
    """SQLite's errors reach the caller as they are."""
    from holdfast.backends.sqlite import connection

    setattr(connection, "translate", lambda exc, path: None)  # noqa: B010


def leak_a_directory() -> None:
    """Descriptors of folders are never closed."""
    from holdfast.backends.files.directory import Directory

    Directory.close = lambda self: None


def index_fails_commits() -> None:
    """An error of the index makes a commit that is durable look refused."""
    from holdfast.backends.files.catalog import Catalog
    from holdfast.backends.files.index import Index

    def flush(self: Any) -> None:
        with self.mutex:
            if self._index is None:
                self._index = Index(self._path, self._store)
            self._index.update(self.tail)
            self.tail = self.tail.after(self.tail.cursor)

    Catalog.flush = flush


PLANTS: dict[str, Callable[[], None]] = {
    "swallow-write": swallow_write,
    "write-once": write_once,
    "read-once": read_once,
    "full-is-fine": full_is_fine,
    "known-for-sure": known_for_sure,
    "index-is-truth": index_is_truth,
    "index-fails-commits": index_fails_commits,
    "bare-errors": bare_errors,
    "leak": leak_a_directory,
}

_OF_FILES = {
    **{"swallow-write": 400, "read-once": 800, "full-is-fine": 600, "leak": 20},
    **{"known-for-sure": 200, "index-is-truth": 200, "index-fails-commits": 200},
}
_OF_SQLITE = {"bare-errors": 50}


def _programmes(backend: str, plants: dict[str, int]) -> tuple[Programme, ...]:
    promise = "whatever call fails: nothing told is lost, nothing refused is there, errors are ours"
    return (
        Programme(
            name=f"t5-{backend}",
            promise=promise,
            trial=lambda point: every_call(backend, point),
            share=None,
            parts=3,
            turns=16,
            plants=plants,
        ),
        Programme(
            name=f"t5-{backend}-errors",
            promise=f"every error of every call: {promise}",
            trial=lambda point: every_error(backend, point),
            share=40,
            plants={"write-once": 300} if backend == "files" else {},
        ),
        Programme(
            name=f"t5-{backend}-pairs",
            promise=f"two calls fail: {promise}",
            trial=lambda point: every_pair(backend, point),
            share=100,
            points=5000,
        ),
    )


PROGRAMMES: tuple[Programme, ...] = (
    *_programmes("files", _OF_FILES),
    *_programmes("sqlite", _OF_SQLITE),
)

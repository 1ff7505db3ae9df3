"""T7: the disk is full, at a place that chance chooses; then there is space again.

Where it may be mounted, each point has a file system of its own in memory, of 256 KiB to 8 MiB or
with few files left, and a filler that leaves a chosen rest of it. Elsewhere calls fail with ENOSPC
from tests.opening import settled
from a chosen one on. A store is filled until it refuses. It must say so with one of our errors, say
truly whether the commit is there, stay readable, hold everything acknowledged; and when the filler
is gone the same handle goes on, unless it said that it cannot, and a new one does in any case.

Planted, and found: `PLANTS`.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

import holdfast
from holdfast import HoldfastError, Store, UnavailableError
from holdfast.backends.files import journal
from holdfast.backends.files import journal as ring
from holdfast.testing import FakeClock
from tests.faults.mounts import may_mount, mounted
from tests.opening import settled
from tests.torture.faulty_calls import FAULTS, Fault, FaultyDisk, install
from tests.torture.faulty_life import no_hang
from tests.torture.programme import Broken, Point, Programme

REFUSALS = 3
ITEMS_MAX = 600


@cache
def ready(plant: str) -> None:
    if plant or not may_mount():
        install()
    if plant:
        PLANTS[plant]()


@dataclass
class Filling:
    """A store that is filled, and what it said."""

    backend: str
    place: Path
    chance: Random
    clock: FakeClock = field(default_factory=lambda: FakeClock(seed=3))
    told: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])
    errors: list[UnavailableError] = field(default_factory=list[UnavailableError])
    store: Store | None = None

    def open(self, **options: object) -> Store:
        url = f"{self.place}/store"
        if self.backend == "files" and not may_mount():
            options["disk"] = FaultyDisk()
        url = url if self.backend == "files" else f"sqlite:{url}.db"
        return holdfast.open(url, **settled(options, clock=self.clock))  # type: ignore[arg-type]

    def fill(self) -> None:
        """Writes until there were a few refusals."""
        for number in range(ITEMS_MAX):
            if len(self.errors) >= REFUSALS:
                return
            self.put(f"item {number:04}", self.chance.choice((60, 900, 900, 4000, 30_000, 80_000)))

    def put(self, token: str, size: int) -> None:
        try:
            store = self.store = self.store or self.open()
            # What cannot be compressed takes the space that it says.
            noise = self.chance.randbytes(size // 2).hex()
            store.team("full").set(token, f"{token} {noise}", key=token)
            self.told.append(token)
        except UnavailableError as error:
            self.errors.append(error)
            if not error.message or not error.hint:
                raise Broken(f"no remedy: {error}") from error
            if not error.outcome_known:
                self.unknown.append(token)
                self.close()

    def close(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            store.close()

    def check_read(self) -> None:
        """What was acknowledged can be read while the disk is full."""
        if self.store is not None:
            self._compare(self.store, "the handle that was refused")
        if self.backend == "files" and self.told and may_mount():
            with self.open(read_only=True) as other:
                # What a crash left in the ring alone is not shown to who may not recover it.
                if not any("ring alone" in report for report in other.status()["reports"]):
                    self._compare(other, "a handle that only reads")

    def _compare(self, store: Store, who: str) -> None:
        there = set(store.team("full").state)
        if missing := set(self.told) - there:
            raise Broken(f"{who} does not find {sorted(missing)[:3]} of {len(self.told)}")
        if extra := there - set(self.told) - set(self.unknown):
            raise Broken(f"{who} finds {sorted(extra)[:3]}, which were refused")

    def check_free(self) -> None:
        """There is space again."""
        before = len(self.told)
        self.put("later", 900)
        if len(self.told) == before:
            self.put("later again", 900)
        if len(self.told) == before:
            raise Broken(f"there is space, and still: {self.errors[-1]}")
        assert self.store is not None
        self._compare(self.store, "the handle that went on")
        self.close()
        for _ in range(2):
            with self.open(create=False) as store:
                self._compare(store, "a new handle")
                if not (report := store.check()).ok:
                    raise Broken(f"check: {report.findings[:3]}")
                store.team("full").set("last", 1)
            self.told.append("last")


@contextmanager
def narrow(point: Point, chance: Random) -> Generator[tuple[Path, Callable[[], None]]]:
    """A place that will be full, and what frees it again."""
    if not may_mount():
        nth = chance.randrange(1, 400)
        FAULTS.arm(Fault("pwrite", nth, errno.ENOSPC, lasts=True))
        try:
            yield point.place, FAULTS.disarm
        finally:
            FAULTS.disarm()
        return
    if point.number % 5 == 4:
        inodes = chance.randrange(30, 60)
        with mounted(point.place / "disk", f"size=8m,nr_inodes={inodes}") as disk:
            filler = disk / "filler"
            filler.mkdir()
            for number in range(inodes - 3 - chance.randrange(1, 24)):
                (filler / str(number)).touch()
            yield disk, lambda: shutil.rmtree(filler)
        return
    kib = int(256 * 2 ** (chance.random() * 5))
    with mounted(point.place / "disk", f"size={kib}k") as disk:
        filler = disk / "filler"
        left_kib = min(kib - 60, chance.randrange(40, 1800))
        with suppress(OSError):
            filler.write_bytes(bytes(kib - left_kib << 10))
        yield disk, filler.unlink


def trial(backend: str, point: Point) -> int:
    ready(point.plant)
    chance = point.random
    ring.RING_BYTES = chance.choice((8192, 8192, 65536, 1 << 20))
    journal.SEGMENT_BYTES = chance.choice((20_000, 64 << 20))
    with narrow(point, chance) as (place, free), no_hang("a full disk"):
        filling = Filling(backend, place, chance)
        try:
            filling.fill()
            filling.check_read()
            free()
            need = ring.RING_BYTES + (300 << 10) if backend == "files" else 700 << 10
            if may_mount() and _free_bytes(place) < need:
                return 1  # too small for a store even when nothing else is there: it said so
            filling.check_free()
        except HoldfastError as error:
            raise Broken(f"{type(error).__name__}: {error}; {_tell(filling)}") from error
        except Broken as error:
            raise Broken(f"{error}; {_tell(filling)}") from error
    return 1


def _free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def _tell(filling: Filling) -> str:
    return f"{len(filling.told)} told, unknown {filling.unknown}, errors {filling.errors[:3]}"


# --- faults that are planted ----------------------------------------------------------------------


def no_reserve() -> None:
    """Room for the text is not asked for, and text that does not fit is passed over."""
    from holdfast.backends.files.text import Segments

    real = Segments.append

    def append(self: Segments, offset: int, text: bytes) -> None:
        with suppress(OSError):
            real(self, offset, text)

    Segments.append = append
    Segments.reserve = lambda self, offset, length: None


def full_is_done() -> None:
    """A transaction that the disk had no room for is taken for done."""
    import apsw

    from holdfast.backends.sqlite.connection import SqliteWriter

    real = SqliteWriter.transact

    def transact(self: SqliteWriter, work: Callable[[], object], publish: object = None) -> object:
        kept: list[object] = []

        def keep() -> object:
            kept.append(work())
            return kept[0]

        try:
            return real(self, keep, publish)  # type: ignore[arg-type]
        except apsw.FullError:
            if not kept:
                raise
            return kept[0]

    SqliteWriter.transact = transact  # type: ignore[method-assign,assignment]


PLANTS: dict[str, Callable[[], None]] = {"no-reserve": no_reserve, "full-is-done": full_is_done}

PROGRAMMES: tuple[Programme, ...] = tuple(
    Programme(
        name=f"t7-{backend}",
        promise="a full disk is told, harms nothing, and is over when there is space",
        trial=lambda point, backend=backend: trial(backend, point),
        share=50,
        points=500,
        plants=plants,
    )
    for backend, plants in (("files", {"no-reserve": 50}), ("sqlite", {"full-is-done": 50}))
)

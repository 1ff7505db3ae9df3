"""T6: every sync fails once, while the kernel drops what was to be synced; later ones succeed.

A store that retries, or goes on as if the cache were the disk, acknowledges what a power loss takes
away. Every sync of every scene (see faulty_scenes) fails once, and there are three endings: the
dropped pages are shown as the disk has them; or the store is opened again while the cache still
shows them, takes another commit, and loses power; or its process is killed first. Each time all
that was acknowledged is there, and a handle that does not know what is on the disk takes no more.

Planted, and found: `PLANTS`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from holdfast import HoldfastError, Store
from holdfast.testing import FakeClock
from tests.torture.faulty_calls import FAULTS, Fault
from tests.torture.faulty_judge import calls_of, is_killed, judge, play, rehearse, stage
from tests.torture.faulty_kernel import Cache
from tests.torture.faulty_life import Act, Scene, no_hang
from tests.torture.faulty_scenes import SCENES
from tests.torture.programme import Broken, Point, Programme

ENDINGS = ("evicted", "opened", "killed")


@cache
def ready(backend: str, plant: str) -> None:
    rehearse(backend)
    if plant:
        PLANTS[plant]()


@cache
def sites(backend: str) -> list[tuple[str, int]]:
    """Returns every sync of every scene."""
    counts = {name: calls_of(backend, name).count("sync") for name in SCENES}
    return [(name, nth) for name, count in counts.items() for nth in range(1, count + 1)]


class Ordeal:
    """One scene with one sync that fails, and one ending."""

    def __init__(self, backend: str, name: str, place: Path) -> None:
        self.name = name
        self.scene = Scene(backend, place, after_unknown=self.probe)
        self.cache = Cache(place)
        self.killed: tuple[Cache, list[Act]] | None = None
        FAULTS.kernel = self.cache

    def probe(self, scene: Scene, store: Store) -> None:
        """A handle that does not know what is on the disk must not go on."""
        self.kill()
        if self.name in ("handles", "copy"):
            return  # it was the other handle's sync
        syncs = FAULTS.counts["sync"]
        try:
            store.team("probe").append("x", "probe")
        except HoldfastError:
            if FAULTS.counts["sync"] != syncs:
                raise Broken("a handle that could not sync has synced again") from None
        else:
            raise Broken("a handle that could not sync has taken another commit")

    def kill(self) -> None:
        if self.killed is None:
            self.killed = (
                self.cache.crash(self.cache.place.with_name("killed")),
                deepcopy(self.scene.acts),
            )

    def end(self, ending: str) -> None:
        if ending == "evicted":
            self.cache.evict()
            judge(self.scene, self.name)
            return
        if ending == "killed":
            self.kill()
            assert self.killed is not None
            self.cache, acts = self.killed
            self.scene = Scene(self.scene.backend, self.cache.place, acts=acts)
            FAULTS.kernel = self.cache
        self.go_on()

    def go_on(self) -> None:
        """Opens the store as the cache shows it, commits, and loses power."""
        later = Scene(self.scene.backend, self.cache.place, clock=FakeClock(seed=8))
        later.write("later", lambda store: store.team("later").append("x", "later"))
        if later.acts[0].outcome != "told":
            raise Broken(f"it cannot be used again: {later.errors}")
        for act in self.scene.acts:
            if act.token.startswith("weak"):
                act.outcome = "unknown"  # it was promised to survive its process, not the power
        lost = self.cache.crash(self.cache.place.with_name("lost"))
        FAULTS.kernel = None
        later.close()
        lost.lose_power()
        self.scene.place = lost.place
        judge(self.scene, self.name, {"later": 1})


def case(backend: str, name: str, nth: int, ending: str) -> None:
    with stage(backend, was_killed=is_killed(name)) as place, no_hang(name):
        ordeal = Ordeal(backend, name, place)
        try:
            play(ordeal.scene, name, Fault("sync", nth, errno.EIO), before_close=ordeal.kill)
            ordeal.end(ending)
        except Broken as broken:
            told = f"{name}, {', '.join(FAULTS.hits)}, then {ending}"
            raise Broken(f"{told}: {broken}") from broken
        finally:
            FAULTS.kernel = None


def trial(backend: str, point: Point) -> int:
    ready(backend, point.plant)
    if point.number >= len(sites(backend)):
        return 0
    name, nth = sites(backend)[point.number]
    for ending in ENDINGS:
        case(backend, name, nth, ending)
    return len(ENDINGS)


# --- faults that are planted ----------------------------------------------------------------------


def retry_sync() -> None:
    """A sync that failed is tried again, and what it then says is believed."""
    FAULTS.retries_syncs = True


def go_on_after_failure() -> None:
    """A handle forgets that a write of its own failed in the middle."""
    from holdfast.backends.files.backend import FilesBackend
    from holdfast.backends.handle import Handle
    from holdfast.backends.sqlite.connection import SqliteCheckout

    def forget(self: Any) -> None:
        self._poison = None
        if hasattr(self, "opened"):
            self.opened.journal.is_poisoned = False
            self.opened.page.words[3] = 0
        Handle.check_open(self)

    FilesBackend.check_open = forget
    SqliteCheckout.check_open = forget


def trust_the_cache() -> None:
    """Recovery syncs the text, and does not write again what a failed sync has dropped."""
    from holdfast.backends.files import recovery

    setattr(recovery, "_write_again", lambda *_: None)  # noqa: B010


def trust_the_wal() -> None:
    """A WAL that was left is gone on with as it is."""
    from holdfast.backends.sqlite import backend

    setattr(backend, "rewrite_wal", lambda *_: None)  # noqa: B010


PLANTS: dict[str, Callable[[], None]] = {
    "retry-sync": retry_sync,
    "go-on-after-failure": go_on_after_failure,
    "trust-the-cache": trust_the_cache,
    "trust-the-wal": trust_the_wal,
}


def programme(backend: str, plants: dict[str, int]) -> Programme:
    return Programme(
        name=f"t6-{backend}",
        promise="a failed sync ends the handle, and nothing told is lost when power is",
        trial=lambda point: trial(backend, point),
        share=None,
        plants=plants,
    )


PROGRAMMES: tuple[Programme, ...] = (
    programme("files", {"retry-sync": 120, "go-on-after-failure": 120, "trust-the-cache": 160}),
    programme("sqlite", {"retry-sync": 120, "go-on-after-failure": 120, "trust-the-wal": 120}),
)

"""Plays scenes, and judges what is left of the store.

Everything that was acknowledged is there once, nothing that was refused with a known outcome is,
and everything from before is as it was.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from holdfast import CorruptError, HoldfastError, Store
from holdfast.backends.protocol import Record
from holdfast.testing import FakeClock
from tests.torture.faulty_calls import FAULTS, Fault, install, make_small
from tests.torture.faulty_life import EVER, Act, Scene, in_child, scratch
from tests.torture.faulty_scenes import SCENES
from tests.torture.programme import Broken

# --- the store that scenes begin with ---------------------------------------------------------


def furnish(store: Store) -> None:
    """Writes some of everything."""
    team = store.team("red")
    chat = store.conversation("c", parent=team)
    for n in range(9):
        chat.append("log", {"n": n, "text": f"message {n} " * 20}, checkpoint=f"turn {n}")
    chat.set("document", "long text " * 7000)
    team.update({"a": 1, "b": [1, 2, {"c": b"bytes"}]}, key="first")
    fork = chat.fork("f", at="turn 7")
    fork.append("log", "another way")
    with store.commit(key="both") as tx:
        tx.scope(team).set("n", 1)
        tx.scope(store.global_()).set("n", 1)
        tx.mark("todo", "one", priority=2)


@cache
def made(backend: str, *, was_killed: bool) -> dict[str, bytes | None]:
    """Returns all of a store that was closed, or was left by a kill; a folder is None."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-made-", dir=scratch()))

    def make() -> None:
        scene = Scene(backend, place, clock=FakeClock(seed=1))
        with scene.open() as store:
            furnish(store)

    def leave() -> None:
        steps: list[str] = []

        def reach(point: str) -> None:
            steps.append(point)
            if point == "files.ring.synced" and len(steps) > EVER:
                os._exit(0)

        scene = Scene(backend, place, clock=FakeClock(seed=1))
        store = scene.open(reach=reach)
        furnish(store)
        for n in range(5):
            store.team("red").append("late", f"{n} " * 100)
        steps.extend([""] * EVER)
        store.team("red").append("late", "cut off")
        os._exit(0)

    try:
        in_child(leave if was_killed else make)
        return {
            str(path.relative_to(place)): None if path.is_dir() else path.read_bytes()
            for path in sorted(place.rglob("*"))
        }
    finally:
        shutil.rmtree(place)


@cache
def before(backend: str, *, was_killed: bool) -> list[Record]:
    """Returns what is in the store that scenes begin with, as a store without faults reads it."""
    with stage(backend, was_killed=was_killed) as place, Scene(backend, place).open() as store:
        return store._log._backend.read_all(limit=EVER)


@contextmanager
def stage(backend: str, *, was_killed: bool = False) -> Generator[Path]:
    """A fresh copy of the store that scenes begin with."""
    with tempfile.TemporaryDirectory(prefix="holdfast-stage-", dir=scratch()) as name:
        place = Path(name) / "at"
        place.mkdir()
        for path, data in made(backend, was_killed=was_killed).items():
            if data is None:
                (place / path).mkdir(mode=0o700)
            else:
                os.close(os.open(place / path, os.O_CREAT, 0o600))
                (place / path).write_bytes(data)
        yield place


OPENING = ("create", "open", "recover", "read-only")
"""Scenes in which the first opening may fail too; it makes the same calls in all others."""


def is_killed(name: str) -> bool:
    return name.startswith("recover")


def play(
    scene: Scene, name: str, *plan: Fault, before_close: Callable[[], None] | None = None
) -> list[str]:
    """Plays a scene with faults; returns the calls that were made."""
    scene.before_close = before_close
    if name == "create":
        for path in scene.place.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if name not in OPENING:
        scene.begin(durability="process" if name == "weaker" else "full")
    FAULTS.arm(*plan)
    try:
        SCENES[name](scene)
    except (HoldfastError, OSError) as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
    finally:
        FAULTS.disarm()
        scene.close()
    return FAULTS.calls


# --- what must be true afterwards -------------------------------------------------------------


@cache
def copies(backend: str, name: str) -> dict[str, int]:
    """Returns how many events have each token when nothing fails."""
    with stage(backend, was_killed=is_killed(name)) as place:
        scene = Scene(backend, place)
        play(scene, name)
        told = [act.token for act in scene.acts]
        assert not scene.errors, f"{name} fails by itself: {scene.errors}"
        with Scene(backend, place).open() as store:
            records = store._log._backend.read_all(limit=EVER)
        return {token: _count(records, token) for token in told}


def _count(records: list[Record], token: str) -> int:
    raw = token.encode()
    return sum(
        raw in record.payload or token in (record.key, record.checkpoint) or token in record.stream
        for record in records
    )


def rehearse(backend: str) -> None:
    """Plays every scene without faults: what is compared with is made before one is planted."""
    install()
    make_small()
    for name in SCENES:
        copies(backend, name)
        calls_of(backend, name)


def judge(scene: Scene, name: str, later_acts: dict[str, int] | None = None) -> None:
    """Opens the store without faults, and compares it with what was said to its users.

    `later_acts` were acknowledged behind the scene, with so many events each.
    """
    later = Scene(scene.backend, scene.place, clock=FakeClock(seed=9))
    later.clock.advance(1000)
    is_blank = name == "create" and not any(act.outcome != "refused" for act in scene.acts)
    if is_blank and not later_acts:
        with later.open() as store:
            store.team("after").set("a", 1)
        return
    expected = {**copies(scene.backend, name), **(later_acts or {})}
    acts = [*scene.acts, *map(Act, later_acts or ())]
    for attempt in range(2):
        try:
            with later.open(create=False) as store:
                if attempt == 0:
                    _judge_open(store, scene, name, acts, expected)
                    store.team("after").set("a", 1)
                elif store.team("after").state.get("a") != 1:
                    raise CorruptError("a later commit is not there")
        except (HoldfastError, OSError, AssertionError) as error:
            raise Broken(f"afterwards: {type(error).__name__}: {error}; {_tell(scene)}") from error


def _judge_open(
    store: Store, scene: Scene, name: str, acts: list[Act], expected: dict[str, int]
) -> None:
    records = store._log._backend.read_all(limit=EVER)
    known = [] if name == "create" else before(scene.backend, was_killed=is_killed(name))
    if records[: len(known)] != known:
        raise CorruptError("what was there before has changed")
    for act in acts:
        found, whole = _count(records, act.token), expected[act.token]
        allowed = {"told": (whole,), "refused": (0,), "unknown": (0, whole)}[act.outcome]
        if found not in allowed:
            raise CorruptError(f'"{act.token}" was {act.outcome} and is there {found} times')
    if not (report := store.check()).ok:
        raise CorruptError(f"check: {report.findings}")


def _tell(scene: Scene) -> str:
    acts = ", ".join(f"{act.token!r} {act.outcome}" for act in scene.acts)
    errors = "; ".join(str(error) for error in scene.errors[:2])
    return f"failed calls: {', '.join(FAULTS.hits[:4])}; acts: {acts}; errors told: {errors}"


@cache
def calls_of(backend: str, name: str) -> list[str]:
    """Returns the calls that a scene makes when nothing fails."""
    with stage(backend, was_killed=is_killed(name)) as place:
        return list(play(Scene(backend, place), name))

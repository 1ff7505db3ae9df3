"""Short scenes, each killed at every call that changes the disk: before it, and in the middle of it
if it writes. (After one call is before the next.)

A dry run takes down the calls of a scene; they are the sites. So the list is whole by itself: a
call that is added to the code is a site from then on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import holdfast
from holdfast.testing.faults import CrashPoints
from tests.crash.children import tell
from tests.crash.killers import Call, Countdown, Kill, options_for
from tests.crash.trial import JOB, Trial
from tests.crash.workload import Plan, Worker
from tests.opening import settled
from tests.torture.programme import Point

SEED = 1
"""What a scene does is the same in every run; only so a site has a number."""


class Stage:
    """What a scene is played on, in a child."""

    def __init__(
        self, backend: str, plan: Plan, pipe: int, kill: Kill | None, *, forgets: bool
    ) -> None:
        self._countdown = Countdown()
        self._countdown.forgets = forgets
        self._options = options_for(backend, self._countdown)
        self._plan = plan
        self._pipe = pipe
        self._kill = kill
        self.reach: Callable[[str], None] | None = None

    def open(self) -> Worker:
        """Opens the store and returns a worker on it."""
        store = holdfast.open(
            self._plan.url, **settled(self._options, options={"reach": self.reach})
        )
        return Worker(store, self._plan, 0, self._pipe, None)

    def begin(self) -> None:
        """From here on calls are counted."""
        self._countdown.begin(self._kill)

    def calls(self) -> list[Call]:
        return self._countdown.calls


Act = Callable[[Stage], None]


class Scene(NamedTuple):
    """An act in a child, and the kills that went before it."""

    name: str
    act: Act
    after: tuple[tuple[Act, Kill], ...] = ()


class Site(NamedTuple):
    """A place to die at."""

    scene: Scene
    call: Call
    kill: Kill

    def __str__(self) -> str:
        return f"{self.scene.name} killed {self.kill}, {self.call}"


# --- the scenes ----------------------------------------------------------------------------------


def _creating(stage: Stage) -> None:
    stage.begin()
    worker = stage.open()
    worker.append(worker.next_id())


def _opened(stage: Stage, *, bulk: int = 0) -> Worker:
    worker = stage.open()
    for _ in range(2):
        worker.together(worker.next_id())
    for _ in range(bulk):
        worker.bulk(worker.next_id())
    return worker


def _committing(stage: Stage) -> None:
    worker = _opened(stage)
    stage.begin()
    worker.append(worker.next_id())


def _committing_to_several(stage: Stage) -> None:
    """Also with a mark, and with a key."""
    worker = _opened(stage)
    stage.begin()
    worker.together(worker.next_id())
    worker.together(worker.next_id())
    worker.keyed_together(worker.next_id())
    worker.keyed(worker.next_id())


def _committing_much(stage: Stage) -> None:
    """More than half of the ring: it goes to the text first."""
    worker = _opened(stage)
    stage.begin()
    worker.large(worker.next_id())


def _turning_over(stage: Stage) -> None:
    """The ring wraps, a segment is full, the index is written; or the WAL is checkpointed."""
    worker = _opened(stage, bulk=3)
    stage.begin()
    for _ in range(7):
        worker.bulk(worker.next_id())


def _putting_objects(stage: Stage) -> None:
    """A blob, a checkpoint, and a snapshot, which is due when a stream has grown enough."""
    worker = _opened(stage)
    stage.begin()
    worker.blob(worker.next_id())
    worker.checkpoint(worker.next_id())
    worker.grow(worker.next_id())


def _forking(stage: Stage) -> None:
    worker = _opened(stage)
    worker.append_to("conversation/a", worker.next_id())
    worker.append_to("conversation/b", worker.next_id())
    stage.begin()
    worker.fork(worker.next_id())
    worker.in_fork(worker.next_id())
    worker.undo(worker.next_id())


def _leasing(stage: Stage) -> None:
    worker = _opened(stage)
    store = worker.store
    stage.begin()
    lease = store.workers.lease(JOB)
    store.workers.renew(lease)
    store.workers.claim("todo")
    store.workers.release(lease)


def _closing(stage: Stage) -> None:
    worker = _opened(stage, bulk=2)
    stage.begin()
    worker.store.close()


def _recovering(stage: Stage) -> None:
    stage.begin()
    worker = stage.open()
    worker.append(worker.next_id())


_AT_COMMIT = (_committing_to_several, Kill(3, "before"))
_TORN = {
    "files": (_committing_much, Kill(1, "within", least=200_000)),
    "sqlite": (_committing_much, Kill(20, "within")),
}
_TURNED = (_turning_over, Kill(15, "before"))


def _plain_scenes(backend: str) -> list[Scene]:
    return [
        Scene("creating", _creating),
        Scene("committing", _committing),
        Scene("committing to several streams", _committing_to_several),
        Scene("committing much", _committing_much),
        Scene("turning over", _turning_over),
        Scene("putting objects", _putting_objects),
        Scene("forking", _forking),
        Scene("leasing", _leasing),
        Scene("closing", _closing),
        Scene("recovering", _recovering, (_AT_COMMIT,)),
        Scene("recovering a torn commit", _recovering, (_TORN[backend],)),
        Scene("recovering while turning over", _recovering, (_TURNED,)),
    ]


@cache
def sites(backend: str) -> tuple[Site, ...]:
    """Returns every place to die at."""
    return tuple(site for scene in _plain_scenes(backend) for site in _sites_of(backend, scene))


@cache
def sites_twice(backend: str) -> tuple[Site, ...]:
    """Returns the pairs: before each call of a recovery, then before each of the one behind it.

    In an order that is mixed, and always the same: the first few are a fair sample of all.
    """
    found: list[Site] = []
    torn = _TORN[backend]
    for first in _sites_of(backend, Scene("recovering", _recovering, (torn,))):
        if first.kill.how == "before":
            scene = Scene("recovering twice", _recovering, (torn, (_recovering, first.kill)))
            found += [one for one in _sites_of(backend, scene) if one.kill.how == "before"]
    Random(SEED).shuffle(found)
    return tuple(found)


def _sites_of(backend: str, scene: Scene) -> list[Site]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-survey-") as place,
        Trial(backend, Point(SEED, 0, Path(place)), in_memory=True) as trial,
    ):
        calls = _play(trial, scene, None)
    found: list[Site] = []
    for nth, call in enumerate(calls, 1):
        found.append(Site(scene, call, Kill(nth, "before")))
        if call.size > 1:
            found.append(Site(scene, call, Kill(nth, "within")))
    return found


def _play(trial: Trial, scene: Scene, kill: Kill | None) -> list[Call]:
    """Plays a scene; returns its calls, unless it was killed."""
    for act, earlier in scene.after:
        _play_act(trial, act, earlier)
    return _play_act(trial, scene.act, kill)


def _play_act(trial: Trial, act: Act, kill: Kill | None) -> list[Call]:
    plan = Plan(trial.url, SEED, trial.next_who())
    forgets = trial.plant == "forgetful"
    backend = trial.backend
    trial.note(f"{act.__name__.strip('_')}, killed {kill}" if kill else act.__name__.strip("_"))

    def work(pipe: int, stop: int) -> None:
        stage = Stage(backend, plan, pipe, kill, forgets=forgets)
        stage.reach = CrashPoints().reach
        act(stage)
        tell(pipe, calls=stage.calls())

    child = trial.spawn(work)
    child.end()
    was_killed = trial.finish(child, "call")
    if kill is not None and not was_killed and not trial.plant:
        raise trial.broken(f"it has no such call: {kill}")
    return [Call(*call) for line in child.lines for call in line.get("calls", ())]


def try_site(known_of: Callable[[str], tuple[Site, ...]], backend: str, point: Point) -> int:
    """Kills at the site of that number; returns 0 if there are no more, else the kills."""
    known = known_of(backend)
    if point.number >= len(known):
        return 0
    site = known[point.number]
    with Trial(backend, Point(SEED, 0, point.place, point.plant), in_memory=True) as trial:
        trial.note(f"site {point.number} of {len(known)}: {site}")
        _play(trial, site.scene, site.kill)
        trial.verify()
    return max(trial.kills.total(), 1)

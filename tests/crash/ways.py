"""Ways to die, chosen by chance: at a moment, a named point, a disk call, opening, closing, in a
crowd. A trial is one to three rounds of them on one store.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import holdfast
from holdfast.testing.faults import CrashPoints
from tests.crash import scale, workload
from tests.crash.children import Child, Hang, tell
from tests.crash.killers import HOWS, Countdown, Kill, options_for
from tests.crash.trial import Orders, Trial
from tests.crash.workload import Plan
from tests.opening import settled
from tests.torture.programme import Broken, Point

NTHS = (1, 2, 5)
DRY_OPERATIONS = 60
SURVIVOR_OPERATIONS = 5
ENDLESS = 1_000_000


class Terrain(NamedTuple):
    """What the workload passes: every named point and how often, and how many disk calls."""

    passages: tuple[tuple[str, int], ...]
    calls: int


@cache
def survey(backend: str, seed: int) -> Terrain:
    """Runs the workload once to its end, without a kill, and says what it passes."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-survey-"))
    url = f"sqlite:{place / 'store.db'}" if backend == "sqlite" else str(place / "store")
    plan = Plan(url, seed, "0", operations=DRY_OPERATIONS)

    def work(pipe: int, stop: int) -> None:
        scale.make_small()
        points, countdown = CrashPoints(), Countdown()
        options = options_for(backend, countdown)
        with holdfast.open(plan.url, **settled(options, options={"reach": points.reach})) as store:
            workload.run(store, plan, pipe)
        tell(pipe, points=dict(Counter(points.names)), calls=len(countdown.calls))

    child = Child(work)
    child.end()
    shutil.rmtree(place)
    if child.trouble:
        raise Broken(f"the workload fails without a kill:\n{child.trouble}")
    [last] = [line for line in child.lines if "points" in line]
    counts = last["points"].items()
    passages = tuple((name, nth) for nth in NTHS for name, count in counts if nth <= count)
    return Terrain(passages, last["calls"])


def try_some(backend: str, point: Point) -> int:
    """One trial; returns how many processes were killed."""
    with Trial(backend, point, in_memory=point.number % 4 > 0) as trial:
        Ways(trial, survey(backend, point.seed)).run()
    return max(trial.kills.total(), 1)


class Ways:
    """The rounds of one trial."""

    def __init__(self, trial: Trial, terrain: Terrain) -> None:
        self._trial = trial
        self._terrain = terrain
        self._random = trial.random
        trial.is_small = self._random.random() < 0.6

    def run(self) -> None:
        trial, chance = self._trial, self._random
        rounds = chance.randint(1, 3)
        if trial.number < len(self._terrain.passages):
            # The first trials are the enumeration of all named points.
            trial.is_small = True
            self._point(*self._terrain.passages[trial.number])
            rounds -= 1
            trial.look()
        for _ in range(rounds):
            kinds = [self._moment, self._call, self._any_point, self._closing, self._crowd]
            weights = [4, 5, 3, 2, 2]
            if trial.rounds:
                kinds.append(self._opening)
                weights.append(5)
            [kind] = chance.choices(kinds, weights)
            kind()
            trial.look()
            if chance.random() < 0.3:
                trial.verify()
        trial.verify()

    def _moment(self) -> None:
        """Kill after some acknowledgements and a random while; after none, it is in the opening."""
        threads = self._random.choice((1, 1, 3))
        acks = self._random.choice((0, 1, 3, 8, 20))
        pause = self._random.random() * (0.03 if acks == 0 else 0.004)
        self._trial.note(
            f"{threads} threads killed {pause * 1000:.1f} ms after {acks} acknowledgements"
        )
        child = self._trial.start(Orders(threads=threads))
        child.hear_until(lambda: _acks(child) >= acks)
        child.hear_for(pause)
        self._trial.finish(child, "moment")

    def _point(self, name: str, nth: int) -> None:
        self._trial.note(f"killed at {name} for the {nth}. time")
        self._ordered(Orders(point=(name, nth), operations=4 * DRY_OPERATIONS), "point")

    def _any_point(self) -> None:
        self._point(*self._random.choice(self._terrain.passages))

    def _call(self) -> None:
        """Kill at any call that changes the disk: before it, within it, or after it."""
        kill = Kill(self._random.randint(1, self._terrain.calls), self._random.choice(HOWS))
        self._trial.note(f"killed {kill}")
        self._ordered(Orders(call=kill), "call")

    def _opening(self) -> None:
        """Kill in the middle of opening what a kill left behind: a double crash."""
        if self._random.random() < 0.5:
            kill = Kill(self._random.randint(1, 12), self._random.choice(HOWS))
            self._trial.note(f"opening killed {kill}")
            self._ordered(Orders(operations=0, call=kill), "opening")
            return
        pause = self._random.random() * 0.02
        self._trial.note(f"opening killed after {pause * 1000:.1f} ms")
        child = self._trial.start(Orders(operations=0))
        child.hear_for(pause)
        self._trial.finish(child, "opening")

    def _closing(self) -> None:
        """Kill in the middle of a clean close."""
        operations = self._random.randint(0, 20)
        kill = Kill(self._random.randint(1, 15), self._random.choice(HOWS))
        self._trial.note(f"closing after {operations} operations killed {kill}")
        self._ordered(Orders(operations=operations, closing=kill), "closing")

    def _ordered(self, orders: Orders, kind: str) -> None:
        child = self._trial.start(orders)
        child.end()
        self._trial.finish(child, kind)

    def _crowd(self) -> None:
        """One of three is killed; the others must go on, and are then killed or left to close."""
        trial, chance = self._trial, self._random
        point = None
        acks = chance.choice((0, 2, 8, 20))
        if chance.random() < 0.5:
            point = chance.choice(self._terrain.passages)
        trial.note(f"one of three killed at {point or f'{acks} acknowledgements'}")
        threads = 1 if point else chance.choice((1, 3))
        orders = Orders(point=point, threads=threads, operations=2 * DRY_OPERATIONS)
        victim = trial.start(orders)
        others = [trial.start(Orders(ENDLESS, chance.choice((1, 2)))) for _ in range(2)]
        try:
            _hear_all(
                [victim, *others],
                lambda: victim.is_at_end or (not point and _acks(victim) >= acks),
            )
            victim.kill()
            goals = [(other, _acks(other) + SURVIVOR_OPERATIONS) for other in others]
            _hear_all(
                others, lambda: all(one.is_at_end or _acks(one) >= goal for one, goal in goals)
            )
            for other in others:
                if chance.random() < 0.5:
                    other.tell_to_stop()
                    other.end()
                else:
                    other.kill()
        except Hang as exc:
            raise trial.broken(f"survivors do not go on: {exc}") from exc
        for child in (victim, *others):
            trial.finish(child, "crowd")


def _acks(child: Child) -> int:
    return sum("done" in line for line in child.lines)


def _hear_all(children: list[Child], enough: Callable[[], bool]) -> None:
    """Listens to all of them, so that none waits for a full pipe, until it is enough."""
    while not enough() and not all([child.is_at_end for child in children]):
        for child in children:
            child.hear(0.002)
            child.check_patience()

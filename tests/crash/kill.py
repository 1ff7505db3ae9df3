"""Kills real processes with SIGKILL and looks at what is left. One command replays one trial.

    python -m tests.crash.kill files --seed 7 --kills 150
    python -m tests.crash.kill files --seed 7 --trial 42
    python -m tests.crash.kill files --every closing [--nth 3 --how within]

A trial is a few rounds on one store. In a round children work and one of them, or all, are killed:
at a random moment, at a named crash point, at the nth call that changes the disk (before it, in the
middle of it, after it), while opening and recovering, while closing, or beside others that go on.
After each round an outside reader tells what is there; then, at the latest after the last round, a
fresh process opens the store, and both must agree. `--every` is exhaustive: the first call that
changes the disk, the second, and so on until a run has no kill in it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import holdfast
from holdfast.testing.faults import CrashPoints
from tests.crash import scale, workload
from tests.crash.children import Child, Hang, tell
from tests.crash.killers import Countdown, How, options_for
from tests.crash.verdict import Said, judge, logs_of, read_closed, read_killed
from tests.crash.workload import Plan
from tests.outside.chains import Damage, Event

BACKENDS = ("files", "sqlite")
NTHS = (1, 2, 5)
DRY_OPERATIONS = 60
SURVIVOR_OPERATIONS = 5
INSERTED = "sqlite.inserted"
SCENES = ("creating", "closing", "recovering")
Hows = tuple[How, ...]
HOWS: Hows = ("before", "within", "after")
PLANTS = ("early", "forgetful")
"""Faults to prove the harness by: acknowledged before it is written; a disk that forgets writes."""
COMMAND = "python -m tests.crash.kill"


class Failed(AssertionError):
    """A promise was broken."""


class Terrain:
    """What a dry run of the workload passes: points and how often, and how many disk calls."""

    def __init__(self, points: dict[str, int], calls: int) -> None:
        self.calls = calls
        self.plant = ""
        self.commit_point = "files.ring.synced" if "files.ring.synced" in points else INSERTED
        self.passages = [
            (name, nth) for nth in NTHS for name, count in points.items() if nth <= count
        ]


class Tally:
    """What was done, for the closing line."""

    def __init__(self) -> None:
        self.kills: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kills.items()))
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"{self.kills.total()} kills ({kinds}) at {len(self.points)} named points; {counts}"


def survey(backend: str, seed: int, place: Path) -> Terrain:
    """Runs the workload once to its end, without a kill, and says what it passes."""
    plan = Plan(_url(backend, place), seed, "0", operations=DRY_OPERATIONS)

    def work(pipe: int, stop: int) -> None:
        scale.make_small()
        points, countdown = CrashPoints(), Countdown()
        options = options_for(backend, countdown)
        with holdfast.open(plan.url, reach=points.reach, **options) as store:
            workload.run(store, plan, pipe)
        tell(pipe, points=dict(Counter(points.names)), calls=countdown.calls)

    child = Child(work)
    child.end()
    if child.trouble:
        raise Failed(f"the dry run failed:\n{child.trouble}")
    [last] = [line for line in child.lines if "points" in line]
    return Terrain(last["points"], last["calls"])


class Trial:
    """A few rounds on one store."""

    def __init__(
        self, backend: str, number: int, *, seed: int, place: Path, terrain: Terrain, tally: Tally
    ) -> None:
        self.backend = backend
        self.number = number
        self.place = place / f"{number}.db" if backend == "sqlite" else place / str(number)
        self.random = random.Random(f"{seed} {backend} {number}")
        self.seed = seed
        self.terrain = terrain
        self.tally = tally
        self.said = Said()
        self.is_small = self.random.random() < 0.6
        self.rounds = 0
        self.steps: list[str] = []

    def run(self) -> None:
        """Raises Failed if a promise is broken."""
        passages = self.terrain.passages
        rounds = self.random.randint(1, 3)
        if self.number < len(passages):
            # The first trials are the enumeration of all named points.
            self.is_small = True
            self._point(*passages[self.number])
            rounds -= 1
            self._look()
        for _ in range(rounds):
            kinds = [self._moment, self._call, self._any_point, self._closing, self._crowd]
            weights = [4, 5, 3, 2, 2]
            if self.rounds:
                kinds.append(self._opening)
                weights.append(5)
            [kind] = self.random.choices(kinds, weights)
            kind()
            self._look()
            if self.random.random() < 0.4:
                self._verify()
        self._verify()

    def every(self, scene: str, nth: int, how: How) -> bool:
        """Kills at the nth disk call of a scene; False if the scene has fewer calls."""
        self.is_small = True
        if scene == "creating":
            self._note(f"creating and 3 operations killed {how} disk call {nth}")
            child = self._start(operations=3, call=(nth, how), closes=False)
        elif scene == "closing":
            self._note(f"closing killed {how} disk call {nth}")
            child = self._start(operations=8, closing=(nth - 1, how))
        else:
            self._point(self.terrain.commit_point, 6)
            self._note(f"recovering killed {how} disk call {nth}")
            child = self._start(operations=1, call=(nth, how))
        child.end()
        was_killed = self._finish(child, scene)
        self._verify()
        return was_killed

    # --- ways to die -----------------------------------------------------------------------------

    def _moment(self) -> None:
        """Kill after some acknowledgements and a random while; after none, it is in the opening."""
        threads = self.random.choice((1, 1, 3))
        acks = self.random.choice((0, 1, 3, 8, 20))
        pause = self.random.random() * (0.03 if acks == 0 else 0.004)
        self._note(f"{threads} threads killed {pause * 1000:.1f} ms after {acks} acknowledgements")
        child = self._start(threads=threads)
        child.hear_until(lambda: _acks(child) >= acks)
        child.hear_for(pause)
        self._finish(child, "moment")

    def _point(self, name: str, nth: int) -> None:
        self._note(f"killed at {name} for the {nth}. time")
        child = self._start(point=(name, nth), operations=4 * DRY_OPERATIONS)
        child.end()
        self.tally.points[name] += self._finish(child, "point")

    def _any_point(self) -> None:
        self._point(*self.random.choice(self.terrain.passages))

    def _call(self) -> None:
        """Kill at any call that changes the disk: before it, within it, or after it."""
        nth = self.random.randint(1, self.terrain.calls)
        how = self.random.choice(HOWS)
        self._note(f"killed {how} disk call {nth}")
        child = self._start(call=(nth, how))
        child.end()
        self._finish(child, "call")

    def _opening(self) -> None:
        """Kill in the middle of opening what a kill left behind: a double crash."""
        if self.random.random() < 0.5:
            call = self.random.randint(1, 12), self.random.choice(HOWS)
            self._note(f"opening killed {call[1]} disk call {call[0]}")
            child = self._start(operations=0, call=call)
            child.end()
        else:
            pause = self.random.random() * 0.02
            self._note(f"opening killed after {pause * 1000:.1f} ms")
            child = self._start(operations=0)
            child.hear_for(pause)
        self._finish(child, "opening")

    def _closing(self) -> None:
        """Kill in the middle of a clean close."""
        operations = self.random.randint(0, 20)
        after = self.random.randint(0, 14)
        how = self.random.choice(HOWS)
        self._note(f"closing after {operations} operations killed {how} disk call {after}")
        child = self._start(operations=operations, closing=(after, how))
        child.end()
        self._finish(child, "closing")

    def _crowd(self) -> None:
        """One of three is killed; the others must go on, and are then killed or left to close."""
        point = None
        acks = self.random.choice((0, 2, 8, 20))
        if self.random.random() < 0.5:
            point = self.random.choice(self.terrain.passages)
        self._note(f"one of three killed at {point or f'{acks} acknowledgements'}")
        threads = 1 if point else self.random.choice((1, 3))
        victim = self._start(point=point, threads=threads, operations=2 * DRY_OPERATIONS)
        endless = 1_000_000
        others = [
            self._start(threads=self.random.choice((1, 2)), operations=endless) for _ in range(2)
        ]
        children = [victim, *others]
        try:
            if point:
                _hear_all(children, lambda: victim.is_at_end)
            else:
                _hear_all(children, lambda: victim.is_at_end or _acks(victim) >= acks)
            victim.kill()
            goals = {other: _acks(other) + SURVIVOR_OPERATIONS for other in others}
            _hear_all(
                others,
                lambda: all(one.is_at_end or _acks(one) >= goal for one, goal in goals.items()),
            )
        except Hang as exc:
            raise self._failed(f"survivors do not go on: {exc}") from exc
        finally:
            for other in others:
                if self.random.random() < 0.5:
                    other.tell_to_stop()
                    other.end()
                else:
                    other.kill()
        for child in children:
            self._finish(child, "crowd")

    # --- children --------------------------------------------------------------------------------

    def _start(
        self,
        *,
        operations: int = 1000,
        threads: int = 1,
        point: tuple[str, int] | None = None,
        call: tuple[int, How] | None = None,
        closing: tuple[int, How] | None = None,
        closes: bool = True,
    ) -> Child:
        self.rounds += 1
        who = f"{self.number}.{self.rounds}"
        plan = Plan(_url(self.backend, self.place), self.seed, who, threads, operations)
        backend, is_small, plant = self.backend, self.is_small, self.terrain.plant

        def work(pipe: int, stop: int) -> None:
            if is_small:
                scale.make_small()
            options: dict[str, Any] = {}
            countdown = Countdown(*call) if call else Countdown()
            countdown.forgets = plant == "forgetful"
            workload.is_early = plant == "early"
            if call or closing or plant:
                options = options_for(backend, countdown)
            if point:
                points = CrashPoints()
                points.kill_at(*point)
                options["reach"] = points.reach
            store = holdfast.open(plan.url, **options)
            workload.run(store, plan, pipe, stop)
            if closing:
                countdown.set(*closing)
            if closes:
                store.close()

        return Child(work)

    def _finish(self, child: Child, kind: str) -> bool:
        """Takes down what a child said; True if it was killed and did not end by itself."""
        if child.status is None:
            child.kill()
        if child.trouble:
            raise self._failed(f"a child failed:\n{child.trouble}")
        self.said.take(child.lines)
        self.tally.kills[kind] += child.was_killed
        self.tally.counts["ended before their kill"] += not child.was_killed
        return child.was_killed

    # --- looking at what is left -----------------------------------------------------------------

    def _look(self) -> tuple[list[Event], set[str]]:
        """Lets the outside reader tell what is there, nobody having the store open."""
        try:
            events, marks = read_killed(self.place)
        except Damage as exc:
            raise self._failed(f"the outside reader finds damage: {exc}") from exc
        self._judge(events, marks)
        return events, marks

    def _verify(self) -> None:
        """Opens the store in a fresh process, which writes and closes; compares what both say."""
        before, _ = self._look()
        said, url, number = self.said, _url(self.backend, self.place), self.rounds
        retried = [one for one in said.unanswered if one.key]

        def work(pipe: int, stop: int) -> None:
            with holdfast.open(url) as store:
                tell(pipe, **_inspect(store))
                for one in retried:
                    with store.commit(key=one.id) as tx:
                        for name in one.streams:
                            tx.scope(store.scope(name)).append("log", one.id)
                store.scope("team/probe").set("round", number)
                tell(pipe, probe=store.scope("team/probe").get("round"))

        child = Child(work)
        child.end()
        if child.trouble:
            raise self._failed(f"the store cannot be used any more:\n{child.trouble}")
        found, probe = child.lines
        for one in retried:
            said.done.add(one.id)
        try:
            events, marks = read_closed(self.place)
        except Damage as exc:
            raise self._failed(f"after recovery the outside reader finds damage: {exc}") from exc
        self._judge(events, marks)
        if events[: len(before)] != before:
            raise self._failed("recovery changed events that were there before it")
        self._compare(found, before)
        if probe != {"probe": number}:
            raise self._failed(f"a new write is not there: {probe}")
        self.tally.counts["reopened"] += 1
        self.tally.counts["retried by key"] += len(retried)
        self.tally.counts["recoveries that cut a torn piece"] += bool(found["reports"])

    def _compare(self, found: dict[str, Any], before: list[Event]) -> None:
        if found["findings"]:
            raise self._failed(f"check finds {found['findings']}")
        expected = {event.stream: event.revision for event in before}
        if found["revisions"] != expected:
            raise self._failed(f"revisions {found['revisions']}, expected {expected}")
        logs = logs_of(before)
        for name, log in found["logs"].items():
            if log != logs[name]:
                raise self._failed(f"the state of {name!r} has {log}, expected {logs[name]}")

    def _judge(self, events: list[Event], marks: set[str]) -> None:
        problems = judge(self.said, events, marks)
        if problems:
            raise self._failed("\n".join(problems))

    # --- telling ---------------------------------------------------------------------------------

    def _note(self, step: str) -> None:
        self.steps.append(step)

    def _failed(self, problem: str) -> Failed:
        steps = "\n".join(f"  {step}" for step in self.steps)
        return Failed(f"{problem}\nThis was done:\n{steps}\nThe store is kept in {self.place}")


def _inspect(store: holdfast.Store) -> dict[str, Any]:
    """Returns what holdfast itself says about a store that was just recovered."""
    report = store.check()
    names = store.log.backend.streams(limit=100_000)
    scopes = [store.scope(name) for name in names]
    return {
        "findings": [str(finding) for finding in report.findings if not finding.harmless],
        "revisions": {scope.name: scope.revision for scope in scopes},
        "logs": {scope.name: list(scope.state.get("log", [])) for scope in scopes},
        "reports": store.status()["reports"],
    }


def _acks(child: Child) -> int:
    return sum("done" in line for line in child.lines)


def _hear_all(children: list[Child], enough: Any) -> None:
    """Listens to all of them, so that none waits for a full pipe, until it is enough."""
    while not enough() and not all([child.is_at_end for child in children]):
        for child in children:
            child.hear(0.005)
            child.check_patience()


def _url(backend: str, place: Path) -> str:
    return f"sqlite:{place}" if backend == "sqlite" else str(place)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    for left in place.parent.glob(f"{place.name}*"):
        left.unlink()


def _terrain(backend: str, seed: int, place: Path) -> Terrain:
    return survey(backend, seed, place / ("survey.db" if backend == "sqlite" else "survey"))


def run(backend: str, *, seed: int, kills: int, only: int | None, plant: str, place: Path) -> Tally:
    """Runs trials until there were enough kills, or only one of them."""
    tally = Tally()
    terrain = _terrain(backend, seed, place)
    terrain.plant = plant
    number = only or 0
    while True:
        trial = Trial(backend, number, seed=seed, place=place, terrain=terrain, tally=tally)
        try:
            trial.run()
        except Failed as exc:
            raise Failed(
                f"{exc}\nReplay it: {COMMAND} {backend} --seed {seed} --trial {number}"
            ) from exc
        tally.counts["trials"] += 1
        tally.counts["operations acknowledged"] += len(trial.said.done)
        _remove(trial.place)
        number += 1
        if only is not None or tally.kills.total() >= kills:
            return tally


def run_every(backend: str, scene: str, *, seed: int, nth: int, hows: Hows, place: Path) -> Tally:
    """Kills at every call of a scene in every way; with `nth`, at that one only."""
    tally = Tally()
    terrain = _terrain(backend, seed, place)
    for how in hows:
        n = nth or 1
        while True:
            trial = Trial(backend, 0, seed=seed, place=place, terrain=terrain, tally=tally)
            try:
                was_killed = trial.every(scene, n, how)
            except Failed as exc:
                one = f"--seed {seed} --every {scene} --nth {n} --how {how}"
                raise Failed(f"{exc}\nReplay it: {COMMAND} {backend} {one}") from exc
            tally.counts["operations acknowledged"] += len(trial.said.done)
            _remove(trial.place)
            n += 1
            if nth or not was_killed:
                break
    return tally


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=150)
    parser.add_argument("--trial", type=int)
    parser.add_argument("--plant", choices=PLANTS, default="")
    parser.add_argument("--every", choices=SCENES)
    parser.add_argument("--nth", type=int, default=0)
    parser.add_argument("--how", choices=HOWS)
    given = parser.parse_args(arguments)
    place = Path(tempfile.mkdtemp(prefix="holdfast-kill-"))
    backend, seed = given.backend, given.seed
    try:
        if given.every:
            # After one call is before the next: two ways are enough.
            hows = (given.how,) if given.how else HOWS[:2]
            tally = run_every(
                backend, given.every, seed=seed, nth=given.nth, hows=hows, place=place
            )
        else:
            tally = run(
                backend,
                seed=seed,
                kills=given.kills,
                only=given.trial,
                plant=given.plant,
                place=place,
            )
    except Failed as exc:
        print(f"FAILED {backend}, seed {seed}: {exc}", flush=True)
        return 1
    shutil.rmtree(place)
    print(f"{backend}, seed {seed}: {tally}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

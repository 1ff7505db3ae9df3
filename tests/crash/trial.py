"""One store, children that work on it and are killed, and looks at what they left.

After a kill an outside reader tells what is there; then a fresh process opens the store, and both
must agree. Everything that was done is noted, and told with a failure.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast.testing.faults import CrashPoints
from tests.crash import plants, scale, workload
from tests.crash.children import Child, tell
from tests.crash.killers import Countdown, Kill, options_for
from tests.crash.verdict import Said, judge, logs_of, read_closed, read_killed
from tests.crash.workload import Plan
from tests.opening import settled
from tests.outside.chains import Damage, Event
from tests.torture.programme import Broken, Point

MEMORY = Path("/dev/shm")
JOB = "job"
LEASE = f"lease/{JOB}"
UNREADABLE = (Damage, ValueError, LookupError, OSError)
"""What an outside reader says to a store that is none."""


class Orders(NamedTuple):
    """What a child does, and where it is killed."""

    operations: int = 1000
    threads: int = 1
    point: tuple[str, int] | None = None
    """A named point, and which passage of it."""
    call: Kill | None = None
    """A disk call, counted from the opening on."""
    closing: Kill | None = None
    """A disk call of its close."""


class Trial:
    """A few rounds on one store; a context that leaves no process behind.

    What a killed process gave to the kernel stays there, so a store in memory shows the same as one
    on a disk, which would only be waited for: `in_memory` is for most trials. What is left of a
    failed one is put into the point's place.
    """

    def __init__(self, backend: str, point: Point, *, in_memory: bool) -> None:
        self.backend = backend
        self._kept = self._ground = point.place
        if in_memory and os.access(MEMORY, os.W_OK):
            self._ground = Path(tempfile.mkdtemp(prefix="holdfast-t1-", dir=MEMORY))
        self.place = self._ground / ("store.db" if backend == "sqlite" else "store")
        self.url = f"sqlite:{self.place}" if backend == "sqlite" else str(self.place)
        self.random = point.random
        self.seed = point.seed
        self.number = point.number
        self.plant = point.plant
        self.said = Said()
        self.is_small = True
        self.rounds = 0
        self.kills: Counter[str] = Counter()
        self._steps: list[str] = []
        self._children: list[Child] = []

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        for child in self._children:
            if child.status is None:
                child.kill()
        if self._ground != self._kept:
            if error is not None:
                shutil.copytree(self._ground, self._kept, dirs_exist_ok=True)
            shutil.rmtree(self._ground)

    # --- children --------------------------------------------------------------------------------

    def spawn(self, work: Callable[[int, int], None]) -> Child:
        """Forks a child that has the planted fault in it."""
        backend, plant, is_small = self.backend, self.plant, self.is_small

        def planted(pipe: int, stop: int) -> None:
            if is_small:
                scale.make_small()
            plants.plant(plant, backend)
            work(pipe, stop)

        child = Child(planted)
        self._children.append(child)
        return child

    def start(self, orders: Orders) -> Child:
        """Forks a child that follows orders."""
        backend, plant = self.backend, self.plant
        plan = Plan(self.url, self.seed, self.next_who(), orders.threads, orders.operations)

        def work(pipe: int, stop: int) -> None:
            options: dict[str, Any] = {}
            countdown = Countdown(orders.call)
            countdown.forgets = plant == "forgetful"
            if orders.call or orders.closing or plant:
                options = options_for(backend, countdown)
            if orders.point:
                points = CrashPoints()
                points.kill_at(*orders.point)
                options["reach"] = points.reach
            store = holdfast.open(plan.url, **settled(options))
            workload.run(store, plan, pipe, stop)
            if orders.closing:
                countdown.begin(orders.closing)
            store.close()

        return self.spawn(work)

    def next_who(self) -> str:
        """Returns the beginning of a child's ids, unique in the trial."""
        self.rounds += 1
        return f"{self.number}.{self.rounds}"

    def finish(self, child: Child, kind: str) -> bool:
        """Takes down what a child said; True if it was killed and did not end by itself."""
        if child.status is None:
            child.kill()
        if child.trouble:
            raise self.broken(f"a child failed:\n{child.trouble}")
        self.said.take(child.lines)
        self.kills[kind] += child.was_killed
        return child.was_killed

    # --- looking at what is left -----------------------------------------------------------------

    def look(self) -> list[Event]:
        """Lets the outside reader tell what is there, nobody having the store open."""
        try:
            events, marks = read_killed(self.place)
        except UNREADABLE as exc:
            raise self.broken(f"the outside reader finds damage: {exc!r}") from exc
        self._judge(events, marks)
        return events

    def verify(self) -> None:
        """Opens the store in a fresh process, which writes and closes; compares what both say."""
        before = self.look()
        said, url, number = self.said, self.url, self.rounds
        retried = [one for one in said.unanswered if one.key]

        def work(pipe: int, stop: int) -> None:
            with holdfast.open(url) as store:
                tell(pipe, **_inspect(store))
                for one in retried:
                    with store.commit(key=one.id) as tx:
                        for name in one.streams:
                            tx.scope(store.scope(name)).append("log", one.id)
                store.workers.lease(JOB)  # whoever had it is dead
                store.scope("team/probe").set("round", number)
                tell(pipe, probe=store.scope("team/probe").get("round"))

        child = self.spawn(work)
        child.end()
        if child.trouble:
            raise self.broken(f"the store cannot be used any more:\n{child.trouble}")
        found, probe = child.lines
        for one in retried:
            said.done.add(one.id)
        try:
            events, marks = read_closed(self.place)
        except UNREADABLE as exc:
            raise self.broken(f"after recovery the outside reader finds damage: {exc!r}") from exc
        self._judge(events, marks)
        if events[: len(before)] != before:
            raise self.broken("recovery changed events that were there before it")
        self._compare(found, before)
        if probe != {"probe": number}:
            raise self.broken(f"a new write is not there: {probe}")

    def _compare(self, found: dict[str, Any], before: list[Event]) -> None:
        if found["findings"]:
            raise self.broken(f"check finds {found['findings']}")
        expected = {one.stream: one.revision for one in before if one.stream != LEASE}
        if found["revisions"] != expected:
            raise self.broken(f"revisions {found['revisions']}, expected {expected}")
        logs = logs_of(before)
        for name, log in found["logs"].items():
            if log != logs[name]:
                raise self.broken(f"the state of {name!r} has {log}, expected {logs[name]}")

    def _judge(self, events: list[Event], marks: set[str]) -> None:
        problems = judge(self.said, events, marks)
        if problems:
            raise self.broken("\n".join(problems))

    # --- telling ---------------------------------------------------------------------------------

    def note(self, step: str) -> None:
        self._steps.append(step)

    def broken(self, problem: str) -> Broken:
        steps = "\n".join(f"  {step}" for step in self._steps)
        return Broken(f"{problem}\nThis was done:\n{steps}")


def _inspect(store: holdfast.Store) -> dict[str, Any]:
    """Returns what holdfast itself says about a store that was just recovered."""
    report = store.check()
    names = store._log._backend.streams(limit=100_000)
    scopes = [store.scope(name) for name in names if name != LEASE]
    return {
        "findings": [str(finding) for finding in report.findings if not finding.harmless],
        "revisions": {scope.name: scope.revision for scope in scopes},
        "logs": {scope.name: list(scope.state.get("log", [])) for scope in scopes},
    }

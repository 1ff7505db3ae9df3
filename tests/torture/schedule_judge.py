"""Runs one schedule of a program on a backend, and judges it against every serial order."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import holdfast
from holdfast import Settings
from holdfast.backends.memory import MemoryBackend
from holdfast.core.log import Log
from holdfast.store import Store
from holdfast.testing import FakeClock
from tests.opening import store_of_log
from tests.torture.programme import Broken
from tests.torture.schedule_programs import (
    ONE_HANDLE,
    SHARED,
    TWO_HANDLES,
    Call,
    Program,
    World,
    content,
    prepare,
)
from tests.torture.schedule_seams import TurnDisk, seams
from tests.torture.schedule_threads import Chooser, Hang, Scheduler

DEPTH = {2: (6, 12), 3: (4, 8), 4: (3, 6)}
"""By how many threads: choices that are fixed by a point, choices that are tried exhaustively."""

TWICE = tuple(replace(one, name=f"{one.name}-2", handles=2, serial={}) for one in SHARED)
PROGRAMS = {
    "memory": (*TWICE, *ONE_HANDLE, *SHARED),
    "files": (*TWICE, *TWO_HANDLES, *ONE_HANDLE, *SHARED),
    "sqlite": (*TWICE, *TWO_HANDLES, *ONE_HANDLE, *SHARED),
}


@dataclass
class Done:
    """One call as it was made."""

    thread: int
    index: int
    call: Call
    began: int
    ended: int = 0
    answer: Any = None


class Trial:
    """One program on one backend in one place; each schedule has a store of its own."""

    def __init__(self, kind: str, program: Program, place: Path) -> None:
        self.kind = kind
        self.program = program
        self._place = place
        self._count = 0
        self._template: Path | None = None
        self._memory: MemoryBackend | None = None

    def run(self, choose: Chooser, *, fine: bool) -> list[tuple[int, int]]:
        """Runs one schedule and returns its choices; raises Broken."""
        self._count += 1
        place = self._place / str(self._count)
        if self._template is None:
            self._template = self._place / "empty"
            self._template.mkdir()
            if self.kind == "sqlite" and not self.program.opens:
                holdfast.open(f"sqlite:{self._template}/store.db", durability="none").close()
        shutil.copytree(self._template, place)
        self._memory = None
        scheduler = Scheduler(lambda count: 0, fine=fine)
        done: list[Done] = []
        try:
            self._run(scheduler, choose, place, done)
        except (AssertionError, Exception) as error:
            kind = "hang" if isinstance(error, Hang) else type(error).__name__
            raise Broken(f"{kind}: {error}\n{self._story(scheduler, done)}") from error
        shutil.rmtree(place)
        return scheduler.choices

    def _run(self, scheduler: Scheduler, choose: Chooser, place: Path, done: list[Done]) -> None:
        clock = FakeClock()
        world = World(clock, lambda: self._open(place, clock, scheduler))
        with seams(scheduler):
            prepare(self.program, world)
            scheduler.choose = choose
            scheduler.run(
                [
                    (f"thread {thread}", self._body(thread, world, scheduler, done))
                    for thread in range(len(self.program.threads))
                ]
            )
            scheduler.choose = lambda count: 0
            alive = [store for store in world.stores.values() if _is_open(store)]
            found = [content(store) for store in alive]
            scheduler.run([("end", lambda: [store.close() for store in alive])])
        if self.program.no_timeout and self.kind == "memory" and scheduler.timeouts:
            raise Broken("a wait ended by time-out, though there was news: a wake-up was lost")
        if self.kind != "memory":
            found.append(self._left(place, clock))
        for other in found[1:]:
            if other != found[0]:
                raise Broken(f"handles differ:\n  {found[0]}\n  {other}")
        self._judge(done, found[0] if found else None)

    def _body(
        self, thread: int, world: World, scheduler: Scheduler, done: list[Done]
    ) -> Callable[[], None]:
        def body() -> None:
            for index, call in enumerate(self.program.threads[thread]):
                one = Done(thread, index, call, scheduler.tick())
                done.append(one)
                one.answer = call.answer(world, thread % self.program.handles)
                one.ended = scheduler.tick()

        return body

    def _open(self, place: Path, clock: FakeClock, scheduler: Scheduler) -> Store:
        if self.kind == "memory":
            # Two handles in memory are two logs, each with its queue, on one backend.
            if self._memory is None:
                self._memory = MemoryBackend(clock=clock)
            return store_of_log(
                Log(self._memory, clock=clock, actor="w"), url="memory:", worker="w"
            )
        if self.kind == "files":
            disk = TurnDisk(scheduler)
            return holdfast.open(
                place / "store",
                actor="w",
                settings=Settings(clock=clock, options={"disk": disk, "reach": scheduler.step}),
            )
        url = f"sqlite:{place}/store.db"
        return holdfast.open(
            url,
            actor="w",
            durability="none",
            settings=Settings(clock=clock, options={"reach": scheduler.step}),
        )

    def _left(self, place: Path, clock: FakeClock) -> tuple[Any, ...]:
        """Opens what was left, as a later process would, and verifies it."""
        url = place / "store" if self.kind == "files" else f"sqlite:{place}/store.db"
        with holdfast.open(
            url, create=False, durability="none", settings=Settings(clock=clock)
        ) as store:
            report = store.check()
            if not report.ok:
                raise Broken(f"check finds {report.findings}")
            return content(store)

    def _judge(self, done: list[Done], found: tuple[Any, ...] | None) -> None:
        answers: list[list[Any]] = [[] for _ in self.program.threads]
        for one in sorted(done, key=lambda one: one.index):
            answers[one.thread].append(one.answer)
        given = tuple(tuple(of_thread) for of_thread in answers)
        outcomes = self.program.outcomes()
        same = [order for order, outcome in outcomes.items() if outcome[0] == given]
        if not same:
            raise Broken("no serial order gives these answers")
        same = [order for order in same if found is None or outcomes[order][1] == found]
        if not same:
            raise Broken(f"no serial order gives these answers and leaves {found}")
        if not any(_agrees(order, done) for order in same):
            raise Broken("only serial orders that contradict what had ended before give this")

    def _story(self, scheduler: Scheduler, done: list[Done]) -> str:
        lines = [f"program {self.program.name} on {self.kind}, {self.program.handles} handles"]
        lines += [
            f"  {one.began:>4} to {one.ended or '...':>4} thread {one.thread}: {one.call.name}"
            f" -> {one.answer!r}"
            for one in sorted(done, key=lambda one: one.began)
        ]
        chosen = "".join(str(choice) for choice, _ in scheduler.choices)
        return "\n".join([*lines, f"  choices {chosen}{' fine' if scheduler.fine else ''}"])


def _is_open(store: Store) -> bool:
    try:
        store._log._backend.heads(["team/a"])
    except holdfast.UsageError:
        return False
    return True


def _agrees(order: tuple[int, ...], done: list[Done]) -> bool:
    """Returns whether no call comes before one that had ended when it began."""
    seen = [0] * (max(order) + 1)
    by_place = {(one.thread, one.index): one for one in done}
    latest = 0
    for thread in order:
        one = by_place[thread, seen[thread]]
        seen[thread] += 1
        if one.ended < latest:
            return False
        latest = max(latest, one.began)
    return True


# --- choosing ----------------------------------------------------------------------------------


class _Script:
    """Chooses as the script says, then always the one whose turn it is."""

    def __init__(self, script: list[int]) -> None:
        self._script = iter(script)
        self.is_possible = True

    def __call__(self, count: int) -> int:
        choice = next(self._script, 0)
        if choice >= count:
            self.is_possible = False
            return 0
        return choice


def prefixes(program: Program) -> int:
    """Returns into how many parts the exhaustive search of a program is cut."""
    threads = len(program.threads) + program.background
    return threads ** DEPTH[threads][0]


def exhaust(trial: Trial, number: int) -> int:
    """Tries every schedule that begins with the given part's choices; returns how many."""
    threads = len(trial.program.threads) + trial.program.background
    fixed, depth = DEPTH[threads]
    prefix = [number // threads**place % threads for place in range(fixed)]
    script, count = prefix, 0
    while True:
        chooser = _Script(script)
        choices = trial.run(chooser, fine=False)
        # A run with fewer choices is the same for every prefix that goes on differently: it
        # belongs to the one that goes on with zeros.
        is_ours = chooser.is_possible and not any(prefix[len(choices) :])
        count += is_ours
        if not is_ours and script is prefix:
            return count
        tried = choices[:depth]
        while len(tried) > fixed and tried[-1][0] + 1 >= tried[-1][1]:
            tried.pop()
        if len(tried) <= fixed:
            return count
        script = [choice for choice, _ in tried]
        script[-1] += 1


def wander(trial: Trial, chance: Random, count: int) -> int:
    """Tries random schedules: evenly random ones, ones with few switches, and fine ones."""
    for _ in range(count):
        stay = chance.choice((0.0, 0.5, 0.9, 0.97))
        own = Random(chance.getrandbits(64))

        def choose(options: int, own: Random = own, stay: float = stay) -> int:
            return 0 if own.random() < stay else own.randrange(options)

        trial.run(choose, fine=chance.random() < 0.5)
    return count


@contextlib.contextmanager
def replaced(*places: tuple[Any, str, Any]) -> Iterator[None]:
    """Plants a fault: puts something else in the place of attributes."""
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in places]
    try:
        for owner, name, put in places:
            setattr(owner, name, put)
        yield
    finally:
        for owner, name, was in before:
            setattr(owner, name, was)

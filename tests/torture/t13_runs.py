"""T13: owners of runs killed anywhere, or stopped and woken too late; every act once, or reported.

A point is one program of the corpus (tests/runs/corpus.py) on a new store. Five points of six kill:
the owner gets SIGKILL before or behind one of its commits, inside a step before or behind its act,
at a named point inside a commit, or at a moment that chance chooses; sometimes the next one, too.
Then an owner sees the program to its end. Every sixth point pauses: the owner stops itself with
SIGSTOP at such a place, another takes the run over and ends it, and the first wakes up.

In the end result, states and acts are what the corpus says of an uncut run; the acts are counted in
a ledger outside the store. An act that nobody can be asked about may be reported as uncertain,
once for each death, and is settled by who looks at the ledger. No event of the journal is by
anybody but the owner who claimed the run last. Cases are the signals that were sent.

One place is left out, because no engine can help there: an owner that is stopped inside an
`effect`'s own code, before the act reaches the provider, does the act when it wakes up. Only a
provider that heeds the key refuses it; so there, paused owners are those of idempotent steps, and
of programs that do one thing at a time.

`t13-…-cuts` cuts each program in process at every boundary of its journal, as tests/runs/cuts.py
says: a point is one program. On memory, files and SQLite tests/runs/test_cuts.py does the same.

Planted faults: the engines of tests/broken/engines.py, each on the programs named there.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from itertools import count
from random import Random
from typing import Literal

from tests.broken.engines import ENGINES, engines_of, put
from tests.crash.children import Child
from tests.runs.corpus import BY_NAME, PROGRAMS
from tests.runs.corpus_children import CHILDREN
from tests.runs.corpus_steps import Program
from tests.runs.cuts import Place, cut_everywhere
from tests.torture.programme import Point, Programme
from tests.torture.runs_world import SERVERS, UNHARMED, Orders, World
from tests.torture.t2_servers import server
from tests.torture.t9_lost_updates import CRASH_POINTS

PROMISE = "every act once or reported, result and states as if uncut; a late owner is refused"
WHENS: tuple[Literal["before", "after"], ...] = ("before", "after")
DEATHS_MAX = 3
MOMENT_S = 0.08
STILL_S = 10.0

SEQUENTIAL = [one for one in PROGRAMS if one.order == "journal" and one not in CHILDREN]
"""Programs that do one thing at a time: a stop of the process stops no act beside the place."""


def choose(point: Point, able: list[Program]) -> Program:
    """Returns the program of a point: each of those that are able to has its turn."""
    if point.plant:
        names = ENGINES[point.plant].programs
        return BY_NAME[names[point.number % len(names)]]
    shuffled = Random(f"t13 {point.seed}").sample(able, len(able))
    return shuffled[point.number % len(shuffled)]


def pauses(point: Point) -> bool:
    """Says whether the owner of a point is paused, not killed."""
    if point.plant:
        return ENGINES[point.plant].needs_two_owners
    return point.number % 6 == 5


def trial(kind: str, point: Point) -> int:
    """Tries one point."""
    if pauses(point):
        with World(point, kind, choose(point, SEQUENTIAL)) as world:
            return pause(world)
    with World(point, kind, choose(point, PROGRAMS)) as world:
        return kill(world)


# --- killed --------------------------------------------------------------------------------------


def kill(world: World) -> int:
    """Kills one owner, and perhaps its successors; returns how many died."""
    random = world.point.random
    first = live(world, some_place(world, random))
    if not first.was_killed:
        # It had ended before: now it is known how far it goes, so it dies there, in a new store.
        last = first.lines[-1]["commits"]
        world.begin()
        live(world, Orders(Place("commit", random.randint(1, last), random.choice(WHENS))))
    while 0 < world.deaths < DEATHS_MAX and random.random() < 0.3:
        if not live(world, some_place(world, random)).was_killed:
            break
    world.last()
    return world.deaths


def some_place(world: World, random: Random) -> Orders | None:
    """Returns where the next owner dies; None at a moment that chance chooses."""
    chance, acts = random.random(), sum(world.program.acts.values())
    when = random.choice(WHENS)
    if chance < 0.35 or (world.program.states and chance < 0.65):
        commits = acts + 4 + 2 * len(world.program.states)
        return Orders(Place("commit", random.randint(1, commits), when))
    if chance < 0.65 and acts:
        return Orders(Place("act", random.randint(1, acts), when))
    if chance < 0.8:
        point = random.choice(CRASH_POINTS[world.kind])
        return Orders(point=(point, random.randint(1, acts + 4)))
    return None


def live(world: World, orders: Orders | None) -> Child:
    """Lets an owner live until it is killed, or has ended before."""
    child = world.spawn(orders or UNHARMED)
    if orders is None:
        child.hear_until(lambda: bool(child.lines))
        child.hear_for(world.point.random.random() * MOMENT_S)
        child.kill()
    else:
        child.end()
    world.check(child)
    if child.was_killed:
        world.deaths += 1
    else:
        world.judge(child)
    return child


# --- paused --------------------------------------------------------------------------------------


def pause(world: World) -> int:
    """Stops one owner, lets another take over and end the run, and wakes the first."""
    random = world.point.random
    acts = sum(world.program.acts.values())
    place = Place("commit", random.randint(2, acts + 3), random.choice(WHENS))
    if acts and random.random() < 0.5:
        place = Place("act", random.randint(1, acts), random.choice(WHENS))
    first = world.spawn(Orders(place, signal=signal.SIGSTOP))
    if not first.await_stop():
        world.judge(first)  # it does not come to that place
        return 1
    world.deaths = 1
    second = world.spawn(UNHARMED)
    # One that was stopped inside the lock of its store is woken, or nobody would get on.
    second.hear_for(STILL_S)
    os.kill(first.pid, signal.SIGCONT)
    first.end()
    second.end()
    world.judge(second)
    world.judge(first)
    world.last()
    return 1


# --- cut in process ------------------------------------------------------------------------------


def cut(kind: str, point: Point) -> int:
    """Cuts one program at every boundary of its journal, on a server; 0 if there are no more."""
    if point.number >= len(PROGRAMS):
        return 0
    if point.plant:
        ENGINES[point.plant].plant(put)
    program = choose(point, PROGRAMS)
    numbers = count(1)

    def new_url() -> str:
        one = f"t13-{point.seed}-{point.number}-{os.getpid()}-{next(numbers)}"
        return server(kind, 0, ()).url(application=one, timeout=60)

    return cut_everywhere(program, kind, new_url)


def _programmes(kind: str, parts: int, plants: dict[str, int]) -> list[Programme]:
    found = [
        Programme(
            f"t13-{kind}",
            PROMISE,
            partial(trial, kind),
            share=120,
            points=3000,
            parts=parts,
            turns=16 if kind == "postgresql" else 8,
            plants=plants,
        )
    ]
    if kind in SERVERS:
        found.append(
            Programme(
                f"t13-{kind}-cuts",
                "cut at any boundary of its journal a run ends as if uncut",
                partial(cut, kind),
                share=16,
                plants=engines_of("no-intent"),
            )
        )
    return found


PROGRAMMES = [
    *_programmes("files", 1, engines_of()),
    *_programmes("sqlite", 1, engines_of("no-fence", "no-intent", "txn-apart")),
    *_programmes("postgresql", 2, engines_of("no-fence", "acts-early")),
    *_programmes("redis", 2, engines_of("no-fence", "acts-early")),
]

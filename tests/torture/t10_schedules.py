"""T10: short programs of two or three threads under schedules, exhaustive and random.

Real threads run one at a time and switch at yield points: crash points (`reach=`), calls of the
disk, SQLite statements, locks, the hand-over of the commit queue. A point is one program and either
every schedule that begins with the same few choices (all points together: every schedule to
depth 12 of two threads, 8 of three) or a number of random ones. Threads share a handle,
or have handles of their own of one place. The answers and what is left must be those of some serial
order that agrees with what had ended before what began; links must verify; nobody may hang.

Planted and found: the queue's hand-over lost, commits checked before the lock, a wake-up lost, a
mark claimed by two (memory); no lock, the lock let go before the sync, old heads after waiting for
the lock, the fence checked before the lock, claims of other handles not seen (files); a deferred
transaction, heads remembered over others' commits, the fence and the claims looked up outside the
transaction (SQLite).
"""

from __future__ import annotations

import contextlib
from functools import partial
from random import Random

from tests.torture.programme import Point, Programme
from tests.torture.schedule_judge import PROGRAMS, Trial, exhaust, prefixes, wander
from tests.torture.schedule_plants import PLANTS

WANDERS = 12
"""Random schedules in a point."""
TURNS = 2 * 81
"""How often `make torture` comes to each program: 81 parts at most are exhaustive."""


def trial(kind: str, point: Point) -> int:
    programs = PROGRAMS[kind]
    turn, which = divmod(point.number, len(programs))
    program = programs[which]
    one = Trial(kind, program, point.place)
    parts = list(range(prefixes(program)))
    # Shuffled, so that the share of `make test` is another one each time.
    Random(f"{point.seed} {program.name}").shuffle(parts)
    plant = PLANTS[kind].get(point.plant, contextlib.nullcontext)
    with plant():
        if turn % 2 == 0 and turn // 2 < len(parts):
            return exhaust(one, parts[turn // 2])
        return wander(one, point.random, WANDERS)


PROGRAMMES = tuple(
    Programme(
        f"t10-{kind}",
        "whatever the schedule, the outcome is that of some serial order",
        partial(trial, kind),
        share=len(PROGRAMS[kind]) * turns,
        points=len(PROGRAMS[kind]) * TURNS,
        parts=parts,
        plants={plant: len(PROGRAMS[kind]) * 4 for plant in PLANTS[kind]},
    )
    for kind, turns, parts in (("memory", 4, 1), ("files", 2, 2), ("sqlite", 2, 2))
)

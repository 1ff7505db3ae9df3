"""The tasks that can be begun: kept in order while events come, and the same as a look at all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import holdfast
from holdfast import HoldfastError
from holdfast.record.ready_tasks import rank


def plain(scope: Any) -> list[str]:
    """What a look at every task says."""
    found = [
        one
        for one in scope.tasks.list(limit=None)
        if not one.waits_for and (one.status == "open" or one.suspect)
    ]
    return [one.id for one in sorted(found, key=rank)]


def test_it_is_what_a_look_at_every_task_says_whatever_happens(tmp_path: Path):
    """RALPH-16: hundreds of random changes, with restores, forks and a table that begins anew."""
    chance = random.Random(3)
    place = str(tmp_path / "s")
    with holdfast.open(place) as hf, holdfast.open(place) as other:
        scope, there = hf.team("t"), other.team("t")
        for number in range(600):
            ids = [one.id for one in scope.tasks.list(limit=None)]
            one = chance.choice(ids) if ids else "t1"
            tasks = chance.choice((scope, there)).tasks
            try:
                match chance.randrange(9):
                    case 0 | 1:
                        needs = chance.sample(ids, min(len(ids), chance.randrange(3)))
                        tasks.add(f"n{number}", priority=chance.randrange(3), depends_on=needs)
                    case 2:
                        tasks.claim(one, owner="ann", lasts=0.000001)
                    case 3:
                        tasks.claim(one, owner="ann")
                    case 4:
                        tasks.close(one, "done", owner="ann")
                    case 5:
                        tasks.amend(one, priority=chance.randrange(4))
                    case 6:
                        tasks.block(one, why="no key", owner="ann")
                    case 7:
                        tasks.unblock(one)
                    case _ if number % 7 == 0:
                        scope.restore(max(1, scope.revision - 5))
                    case _:
                        tasks.reopen(one, why="again")
            except HoldfastError:
                continue
            assert [one.id for one in scope.tasks.ready(limit=None)] == plain(scope)
        assert len(plain(scope)) > 3
        assert [one.id for one in scope.tasks.ready(limit=2)] == plain(scope)[:2]
        fork = scope.fork("f")
        assert [one.id for one in fork.tasks.ready(limit=None)] == plain(fork)
        brief = hf.team("brief")
        brief.tasks.add("a")
        assert len(brief.tasks.ready()) == 1
        brief.remove()
        assert brief.tasks.ready() == []


def test_a_claim_takes_the_first_that_is_ready_and_free():
    with holdfast.open("memory:") as hf:
        scope = hf.team("t")
        scope.tasks.add("meant for bob", priority="high", id="b")
        scope.tasks.update("b", owner="bob")
        scope.tasks.add("later", id="l", depends_on=["b"])
        scope.tasks.add("now", id="n", tags=["red"])
        assert scope.tasks.claim(owner="ann", tag="red").id == "n"
        assert scope.tasks.claim(owner="bob").id == "b"

"""Kills any operation before and after each of its commits, on any backend.

The operation runs in a forked child on a store whose backend counts commits. A first run, without a
kill, tells how many there are. Then the child is killed with SIGKILL right before and right after
each of them, every time on a new store. The test says what must hold afterwards.

The process that forks must have no store open (see `tests/crash/children.py`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from msgspec import Struct

import holdfast
import holdfast.store
from holdfast import Store
from holdfast.core.leases import RETURNED
from tests.crash.children import Child, tell
from tests.selection import this_turn

HEARTBEAT_S = 0.2
"""Of a child: on a server its death is known after three of these."""
WATCHED_S = 0.7
"""Of a child that must be seen alive first: it must not miss three of these on a busy machine."""
PATIENCE_S = 120.0
TURNS = 4
"""In how many commits of the history `make test` has been to every place, on a server."""

Work = Callable[[str], object]


class Kill(Struct, frozen=True):
    """One trial: the store that it left, and where the child was killed."""

    url: str
    nth: int
    when: Literal["before", "after"]
    commits: int


class _Counting:
    """Wraps a backend, counts commits, and kills the process at one of them."""

    def __init__(self, inner: Any, kill: tuple[int, str] | None) -> None:
        self._inner = inner
        self._kill = kill
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, commits: Any) -> Any:
        if _is_of_lease_keeper(commits):
            return self._inner.commit(commits)
        self.commits += 1
        if self._kill == (self.commits, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        answers = self._inner.commit(commits)
        if self._kill == (self.commits, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return answers


def _is_of_lease_keeper(commits: Any) -> bool:
    """Says whether a batch comes from the lease keeper, not from the work.

    On a busy machine a lease keeper that was late records that it is back. Such commits are not
    counted, because the places of kills must be the same each time.
    """
    types = [record.type for one in commits for append in one.appends for record in append.records]
    return types == [RETURNED]


def run_child(work: Work, url: str, kill: tuple[int, str] | None = None) -> int:
    """Runs work(url) in a child; returns how many commits it made. A killed one returns 0."""

    def live(pipe: int, _stop: int) -> None:
        counting: list[_Counting] = []
        genuine = holdfast.store.open_backend

        def opened(*args: Any, **named: Any) -> Any:
            backend, shown = genuine(*args, **named)
            counting.append(_Counting(backend, kill))
            return counting[-1], shown

        holdfast.store.open_backend = opened
        work(url)
        tell(pipe, commits=sum(each.commits for each in counting))

    child = Child(live)
    child.end()
    assert child.trouble is None, child.trouble
    assert child.was_killed == (kill is not None), "expected the child to be killed, if planned"
    return 0 if kill else child.lines[-1]["commits"]


def kill_everywhere(
    work: Work, fresh: Callable[[], str], *, in_turns: bool = False
) -> Iterator[Kill]:
    """Yields a store for each place that the work was killed at; `fresh` makes and prepares one.

    `in_turns`: on servers `make test` takes some of the places, and others after the next commit.
    """
    first = fresh()
    commits = run_child(work, first)
    assert commits, "expected an operation that commits"
    whens: tuple[Literal["before", "after"], ...] = ("before", "after")
    places = [(nth, when) for nth in range(1, commits + 1) for when in whens]
    if in_turns and first.startswith(("postgresql:", "redis:")):
        places = this_turn(places, min(TURNS, len(places)))
    for nth, when in places:
        url = fresh()
        run_child(work, url, (nth, when))
        yield Kill(url, nth, when, commits)


def open_dying(url: str) -> Store:
    """Opens a store in a child whose death others must notice soon."""
    return holdfast.open(url, heartbeat_s=HEARTBEAT_S)


def open_watched(url: str) -> Store:
    """Opens a store in a child that others must see alive, and whose death they must notice."""
    return holdfast.open(url, heartbeat_s=WATCHED_S)


def await_deaths(store: Store) -> None:
    """Returns when every worker but this one is known to be dead."""
    ends = time.monotonic() + PATIENCE_S
    while any(worker.alive and worker.id != store.worker for worker in store.workers()):
        assert time.monotonic() < ends, "a worker that was killed still counts as alive"
        time.sleep(0.02)

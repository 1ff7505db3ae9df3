"""Kills any operation before and after each of its commits, on any backend.

The operation runs in a forked child on a store whose backend counts commits. A first run, without a
kill, tells how many there are. Then the child is killed with SIGKILL right before and right after
each of them, every time on a new store. The test says what must hold afterwards.

The process that forks must have no store open (see `tests/crash/children.py`).
"""

from __future__ import annotations

import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from msgspec import Struct

import holdfast
import holdfast.store
from holdfast import Settings, Store, opening
from holdfast.core.leases import RETURNED
from tests.crash.children import Child, tell
from tests.selection import this_turn

HEARTBEAT_S = 0.2
"""Of a child: on a server its death is known after three of these."""
WATCHED_S = 0.7
"""Of a child that must be seen alive first: it must not miss three of these on a busy machine."""
PATIENCE_S = 120.0
TURNS = 5
"""In how many commits of the history `make test` has been to every place, on a server.

It shares no factor with a number of `selection.IN_TURNS`: a test that has its turn at every second
commit would meet every second place alone.
"""
SERVER_URLS = ("postgresql:", "redis:", "unix:")
EVERY_CALL_TURNS = 11
"""The same for places between any two calls, on any backend."""

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


class _CountingCalls:
    """Wraps a backend or a part of one, counts every call, and kills the process at one of them.

    Not counted: what the thread of the lease keeper asks, which comes when it comes.
    """

    def __init__(self, inner: Any, kill: tuple[int, str] | None, calls: list[str]) -> None:
        self._inner = inner
        self._kill = kill
        self._calls = calls

    @property
    def commits(self) -> int:
        return len(self._calls)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("leases", "marks", "objects"):
            return _CountingCalls(found, self._kill, self._calls)
        if not inspect.ismethod(found) or name in ("now_us", "wait", "close"):
            return found

        def call(*given: Any, **named: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return found(*given, **named)
            self._calls.append(name)
            at = len(self._calls)
            if self._kill == (at, "before"):
                os.kill(os.getpid(), signal.SIGKILL)
            answer = found(*given, **named)
            if self._kill == (at, "after"):
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call


def _is_of_lease_keeper(commits: Any) -> bool:
    """Says whether a batch comes from the lease keeper, not from the work.

    On a busy machine a lease keeper that was late records that it is back. Such commits are not
    counted, because the places of kills must be the same each time.
    """
    types = [record.type for one in commits for append in one.appends for record in append.records]
    return types == [RETURNED]


def run_child(
    work: Work, url: str, kill: tuple[int, str] | None = None, *, every_call: bool = False
) -> int:
    """Runs work(url) in a child; returns how many commits it made. A killed one returns 0.

    `every_call`: all calls of the backend are counted, not commits alone.
    """

    def live(pipe: int, _stop: int) -> None:
        counting: list[_Counting | _CountingCalls] = []
        genuine = opening.open_backend

        def opened(*args: Any, **named: Any) -> Any:
            backend, shown = genuine(*args, **named)
            if every_call:
                counting.append(_CountingCalls(backend, kill, []))
            else:
                counting.append(_Counting(backend, kill))
            return counting[-1], shown

        opening.open_backend = opened
        work(url)
        tell(pipe, commits=sum(each.commits for each in counting))

    child = Child(live)
    child.end()
    assert child.trouble is None, child.trouble
    assert child.was_killed == (kill is not None), "expected the child to be killed, if planned"
    return 0 if kill else child.lines[-1]["commits"]


def kill_everywhere(
    work: Work, fresh: Callable[[], str], *, in_turns: bool = False, every_call: bool = False
) -> Iterator[Kill]:
    """Yields a store for each place that the work was killed at; `fresh` makes and prepares one.

    `in_turns`: on servers `make test` takes some of the places, and others after the next commit.
    `every_call`: between any two calls of the backend, so everywhere some of the places at a turn.
    """
    first = fresh()
    commits = run_child(work, first, every_call=every_call)
    assert commits, "expected an operation that commits"
    whens: tuple[Literal["before", "after"], ...] = ("before", "after")
    places = [(nth, when) for nth in range(1, commits + 1) for when in whens]
    if every_call:
        # After one call is before the next one, but for the last.
        places = [(nth, "before") for nth in range(1, commits + 1)] + [(commits, "after")]
        places = this_turn(places, EVERY_CALL_TURNS)
    elif in_turns and first.startswith(SERVER_URLS):
        places = this_turn(places, min(TURNS, len(places)))
    for nth, when in places:
        url = fresh()
        run_child(work, url, (nth, when), every_call=every_call)
        yield Kill(url, nth, when, commits)


def open_dying(url: str) -> Store:
    """Opens a store in a child whose death others must notice soon."""
    return holdfast.open(url, settings=Settings(heartbeat_s=HEARTBEAT_S))


def open_watched(url: str) -> Store:
    """Opens a store in a child that others must see alive, and whose death they must notice."""
    return holdfast.open(url, settings=Settings(heartbeat_s=WATCHED_S))


def await_deaths(store: Store) -> None:
    """Returns when every worker but this one is known to be dead."""
    ends = time.monotonic() + PATIENCE_S
    while any(worker.alive and worker.id != store.workers.own for worker in store.workers.list()):
        assert time.monotonic() < ends, "a worker that was killed still counts as alive"
        time.sleep(0.02)

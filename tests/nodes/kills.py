"""Walks that are killed at a boundary: before or after a commit, a lease, the call of a node.

Each child finishes the walk that the one before it died in, says what it finds stored, and begins
the next walk, in which it dies. A ledger outside of the store has a line for every computation and
for every result that a child found: a result that was found is never computed again.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Graph, Store, node
from tests.crash.children import Child

SCOPE = "conversation/c"


class Ledger:
    """A file with a line for each act; a line is written as a whole."""

    def __init__(self) -> None:
        self.path = Path(os.devnull)

    def add(self, *words: object) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(handle, (" ".join(map(str, words)) + "\n").encode())
        os.close(handle)


class Boundary:
    """Counts what a walk passes, and kills the process at one of them."""

    def __init__(self) -> None:
        self.passed = 0
        self.fatal = 0

    def reach(self) -> None:
        self.passed += 1
        if self.passed == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)


ledger, boundary = Ledger(), Boundary()


@node
def base(ctx, x):
    boundary.reach()
    ledger.add("compute", "base", x)
    ctx.message("system", "b" * 50)
    boundary.reach()
    return {"x": x, "pad": "p" * 200}


@node
def reads(ctx, x):
    ledger.add("compute", "reads", x)
    boundary.reach()
    return ctx.read("global", "seen", 0) + x


@node
def blob(ctx, base, x):
    ledger.add("compute", "blob", x)
    return ["y" * 70_000, x]


@node
def last(ctx, base, reads, blob, x):
    ledger.add("compute", "last", x)
    boundary.reach()
    return [base["x"], reads, len(blob[0])]


GRAPH = Graph("killed", [base, reads, blob, last])


def watched(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        boundary.reach()
        answer = function(*args, **kwargs)
        boundary.reach()
        return answer

    return call


def open_watched(url: str) -> Store:
    """Opens a store whose commits, leases and blobs are boundaries."""
    # A killed process takes nothing with it that the system was given: a sync would prove nothing.
    store = holdfast.open(url, durability="process")
    backend: Any = store._log._backend
    backend.commit = watched(backend.commit)
    for part, names in ((backend.leases, ("acquire", "release")), (backend.objects, ("put",))):
        for name in names:
            setattr(part, name, watched(getattr(part, name)))
    return store


def stored(store: Store, x: int) -> dict[str, int]:
    """Returns how many whole results each node has for an input."""
    found: dict[str, int] = {}
    for record in store._log.records(f"node/{GRAPH.name}/{SCOPE}"):
        data = holdfast.Event(record).data
        if record.type == "node.computed" and data["inputs"]["x"][1] == str(x):
            found[data["node"]] = found.get(data["node"], 0) + 1
    return found


def live(url: str, place: Path, x: int, fatal: int) -> None:
    """The life of one child: finishes walk x - 1, and dies in walk x."""
    ledger.path = place
    store = open_watched(url)
    for name in stored(store, x - 1) if x else ():
        ledger.add("found", name, x - 1)
    if x:
        walk = store.nodes.process(GRAPH, SCOPE, x=x - 1)
        assert walk.value("last") == [x - 1, x - 1, 70_000]
        assert all(state.artifacts is not None for state in walk.states.values())
        assert set(stored(store, x - 1).values()) == {1}
    ledger.add("begun", x)
    boundary.passed, boundary.fatal = 0, fatal
    store.nodes.process(GRAPH, SCOPE, x=x)
    ledger.add("passed", boundary.passed)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_walks(url: str, place: Path, count: int) -> int:
    """Kills walks at one boundary after another; returns how many boundaries a walk has."""
    fatal, boundaries = 1, 0
    for x in range(count):
        child = Child(lambda pipe, stop, x=x, fatal=fatal: live(url, place, x, fatal))
        status = child.end()
        assert child.trouble is None, child.trouble
        assert os.WTERMSIG(status) == signal.SIGKILL, f"child {x} ended by itself"
        newest = place.read_text().splitlines()[-1].split()
        if newest[0] == "passed":
            boundaries, fatal = int(newest[1]), 0
        fatal += 1
    return boundaries


def judge(place: Path) -> list[str]:
    """Returns the lines that tell of a result that was computed although it was stored."""
    found: set[tuple[str, ...]] = set()
    wrong: list[str] = []
    for line in place.read_text().splitlines():
        kind, *what = line.split()
        if kind == "found":
            found.add(tuple(what))
        elif kind == "compute" and tuple(what) in found:
            wrong.append(line)
    return wrong

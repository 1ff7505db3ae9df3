"""One program of the corpus on one store: owners that are killed, or stopped and woken too late.

Owners are forked processes. What they do to the world outside is in the witness's ledger, a file
that is no part of the store. After the deaths a last owner sees the program to its end, looks at
the journal, and checks the whole store.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

import holdfast
from holdfast import LeaseLostError, Settings, Store
from holdfast.runs import engine, waits
from holdfast.runs.engine import Engine
from holdfast.runs.execution import Execution
from holdfast.testing.faults import CrashPoints
from tests.broken.engines import ENGINES, put
from tests.crash.children import Child, tell
from tests.runs.corpus_steps import Program
from tests.runs.cuts import (
    ID,
    NOWHERE,
    Cutting,
    Ended,
    Place,
    cutting,
    differences,
    finish,
    outcome,
)
from tests.runs.witness import fresh
from tests.torture.programme import Broken, Point
from tests.torture.t2_servers import server

MEMORY = Path("/dev/shm")
LEASE_S = 0.3
"""How long an owner's lease lasts: what a takeover from a dead or silent one waits on a server."""
CHILD_LOOK_US = 100_000
SERVERS = ("postgresql", "redis")
BY_OTHERS = ("run.settled", "run.adopted")
"""What a person adds to the journal of a run that nobody executes."""


class Orders(Struct, frozen=True):
    """What becomes of an owner."""

    place: Place = NOWHERE
    point: tuple[str, int] | None = None
    """A named point of the backend, and which passage of it."""
    signal: int = signal.SIGKILL

    def __str__(self) -> str:
        name = signal.Signals(self.signal).name
        if self.point is not None:
            return f"{name} at {self.point[0]}, passage {self.point[1]}"
        return "unharmed" if self.place == NOWHERE else f"{name} {self.place}"


UNHARMED = Orders()


class World:
    """A context that leaves no process behind; what is left of a failure is put into the place."""

    def __init__(self, point: Point, kind: str, program: Program) -> None:
        self.kind = kind
        self.program = program
        self.point = point
        self.deaths = 0
        self._steps: list[str] = []
        self._children: list[Child] = []
        self._stores = 0
        self._ground = point.place
        if kind not in SERVERS and os.access(MEMORY, os.W_OK):
            # What a killed process gave to the kernel stays there: a disk would only be waited for.
            self._ground = Path(tempfile.mkdtemp(prefix="holdfast-t13-", dir=MEMORY))
        self.begin()

    def begin(self) -> None:
        """Takes a new store, and a new world outside."""
        self._stores += 1
        name = f"{self._stores}"
        self.ledger = self.point.place / f"ledger-{name}"
        self.deaths = 0
        if self.kind in SERVERS:
            one = f"t13-{self.point.seed}-{self.point.number}-{os.getpid()}-{name}"
            running = server(self.kind, self.point.number % 2, ())
            self.url = running.url(application=one, timeout=60)
        elif self.kind == "sqlite":
            self.url = f"sqlite:{self._ground / name}.db"
        else:
            self.url = str(self._ground / name)

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        for child in self._children:
            if child.status is None:
                child.kill()
        if self._ground != self.point.place:
            if error is not None:
                shutil.copytree(self._ground, self.point.place, dirs_exist_ok=True)
            shutil.rmtree(self._ground, ignore_errors=True)

    # --- owners ----------------------------------------------------------------------------------

    def spawn(self, orders: Orders) -> Child:
        """Forks an owner: it starts the program, or goes on with it, and says how it ended."""
        self._steps.append(str(orders))

        def work(pipe: int, stop: int) -> None:
            self._own(orders, pipe)

        child = Child(work)
        self._children.append(child)
        return child

    def _own(self, orders: Orders, pipe: int) -> None:
        if self.point.plant:
            ENGINES[self.point.plant].plant(put)
        engine.LEASE_S, waits.CHILD_LOOK_US = LEASE_S, CHILD_LOOK_US
        lapsed = _lapses()
        witness = fresh(self.ledger)
        points = CrashPoints()
        if orders.point is not None:
            points.kill_at(*orders.point)
        store = holdfast.open(self.url, settings=Settings(options={"reach": points.reach}))
        pauses = orders.signal == signal.SIGSTOP
        still = _gate(store)

        def die(place: str) -> None:
            is_still = pauses and still.acquire(timeout=0.2)
            # To this very thread: it stops here, not when another one has taken the signal.
            signal.pthread_kill(threading.get_ident(), orders.signal)
            if is_still:
                still.release()

        backend = Cutting(store._log._backend, orders.place, die, spares_acts=pauses)
        cutting(store, backend)
        tell(pipe, opened=True)
        refused = 0
        while True:
            try:
                ended = finish(store, self.program)
                break
            except LeaseLostError:
                refused += 1
        seen = outcome(store, self.program, ended, witness)
        problems = [] if pauses else look(store)
        tell(
            pipe,
            result=seen.result,
            states=seen.states,
            uncertain=seen.uncertain,
            refused=refused,
            lapsed=len(lapsed),
            problems=problems,
            commits=backend.commits,
            acts=backend.acts,
            reached=points.names,
        )
        store.close()

    def last(self) -> dict[str, Any]:
        """Lets an owner go on to the end, and judges what it found."""
        child = self.spawn(UNHARMED)
        child.end()
        self.judge(child)
        return child.lines[-1]

    # --- judging ---------------------------------------------------------------------------------

    def judge(self, child: Child) -> None:
        """Raises if what an owner saw is not what the corpus says, or its journal is not sound."""
        self.check(child)
        said = child.lines[-1]
        acts = dict(fresh(self.ledger).acts)
        deaths = self.deaths + said["lapsed"]
        ended = Ended(
            said["result"], said["states"], acts, uncertain=said["uncertain"], deaths=deaths
        )
        if found := said["problems"] + differences(self.program, ended):
            raise self.broken("\n".join(found))

    def check(self, child: Child) -> None:
        """Raises if a child failed."""
        if child.trouble:
            raise self.broken(child.trouble)

    def broken(self, text: str) -> Broken:
        done = "; ".join(self._steps)
        return Broken(f"{self.program.name} on {self.kind}, owners: {done}\n{text}")


def _lapses() -> list[Execution]:
    """Returns the passes of this process that lost their lease, one by one as they do.

    A lease is short here: on a busy machine its owner may get no processor for longer. What it was
    doing then is as uncertain as if it had died.
    """
    lapsed: list[Execution] = []
    real = Execution.lost

    def lost(run: Execution, error: BaseException) -> Any:
        if isinstance(error, LeaseLostError) and run not in lapsed:
            lapsed.append(run)
        return real(run, error)

    put(Execution, "lost", lost)
    return lapsed


def _gate(store: Store) -> threading.Lock:
    """Returns what is held while a thread beside the run's own is at work in the backend.

    An owner that is stopped inside the lock of a store of files holds up everybody else, whatever
    its lease: that would show nothing.
    """
    gate = threading.Lock()
    keeper, supervisor = store._kernel.leases, store._kernel.part(Engine).supervisor
    keeper.tend = _gated(gate, keeper.tend)  # type: ignore[method-assign]
    supervisor.work = _gated(gate, supervisor.work)  # type: ignore[method-assign]
    return gate


def _gated(gate: threading.Lock, call: Callable[[], Any]) -> Callable[[], Any]:
    def gated() -> Any:
        with gate:
            return call()

    return gated


def look(store: Store) -> list[str]:
    """Returns what is wrong with the journal and the store of a program that has ended."""
    found: list[str] = []
    owner = ""
    records = store._log.records(f"run/{ID}")
    for record in records:
        if record.type == "run.claimed":
            owner = record.actor
        elif owner and record.actor != owner and record.type not in BY_OTHERS:
            found.append(
                f"revision {record.revision}, {record.type}, is by {record.actor}, and {owner} "
                "had taken the run"
            )
    if records[-1].type != "run.ended" or [r.type for r in records].count("run.ended") != 1:
        found.append("the journal does not end once, with run.ended")
    report = store.check()
    if not report.ok:
        found.append(f"check says {report}")
    return found

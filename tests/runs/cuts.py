"""Cuts a program at a commit or in an act, in process, and resumes it.

A cut is a BaseException out of the backend's `commit`, before or after it took effect, or out of an
act, before or after the witness counted it; from then on every commit of that handle fails, as if
the process were gone. The program is resumed on a new handle (on memory, which has one handle, on
the same one brought back), and must end as its entry in the corpus says: the same result, the same
states, the same acts as the witness counted. An act that nobody can be asked about may be reported
as uncertain; then a person looks at the witness's ledger, and says.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Literal

from msgspec import Struct

import holdfast
from holdfast import Store
from holdfast.aio import AsyncStore
from holdfast.errors import (
    NeedsAttentionError,
    RunCancelledError,
    RunFailedError,
    StillRunningError,
    UnavailableError,
)
from holdfast.runs.engine import Engine
from tests.opening import settled
from tests.runs import corpus_steps
from tests.runs.corpus_steps import Program
from tests.runs.witness import WITNESS, Witness, fresh, verdict_on

ID = "p"
PATIENCE_S = 120.0
"""After how long a test gives up: on a busy machine a step may take many seconds."""
SLICE_S = 0.05


class Cut(BaseException):
    """The process is gone."""


class Place(Struct, frozen=True):
    """Where a program is cut: before or after its nth commit or act, counted from 1."""

    what: Literal["commit", "act"]
    nth: int
    when: Literal["before", "after", "never"]

    def __str__(self) -> str:
        return f"{self.when} {self.what} {self.nth}"


NOWHERE = Place("commit", 0, "never")


class Cutting:
    """A backend around a backend that dies at one commit; acts that are watched kill it too."""

    def __init__(
        self,
        inner: Any,
        place: Place = NOWHERE,
        die: Callable[[str], None] | None = None,
        *,
        spares_acts: bool = False,
    ) -> None:
        self._inner = inner
        self._place = place
        self._die = die
        self._spares_acts = spares_acts
        self._mutex = threading.Lock()
        self.commits = 0
        self.acts = 0
        self.is_dead = False
        WITNESS.watch = self.watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, commits: Any) -> Any:
        self.check_alive()
        with self._mutex:
            self.commits += 1
            number = self.commits
        self._reach(Place("commit", number, "before"))
        answers = self._inner.commit(commits)
        self._reach(Place("commit", number, "after"))
        return answers

    def watch(self, moment: Literal["before", "after"], once: bool) -> None:
        """Called by the witness around each act; `once`: a repetition would do no harm."""
        self.check_alive()
        with self._mutex:
            self.acts += moment == "before"
            number = self.acts
        if once or moment == "after" or not self._spares_acts:
            self._reach(Place("act", number, moment))

    def check_alive(self) -> None:
        """Raises if the process is gone."""
        if self.is_dead:
            raise Cut("dead already")

    def _reach(self, place: Place) -> None:
        if place != self._place:
            return
        if self._die is not None:
            self._die(str(place))
            return
        self.is_dead = True
        raise Cut(str(place))

    def revive(self) -> None:
        self.is_dead, self._place = False, NOWHERE


class Ended(Struct):
    """How a program ended, as the outside sees it."""

    result: Any
    states: dict[str, Any]
    acts: dict[str, int]
    commits: int = 0
    act_count: int = 0
    uncertain: list[str] = []
    deaths: int = 0


# --- opening -------------------------------------------------------------------------------------


def opened(url: str, place: Place = NOWHERE) -> tuple[Store, Cutting]:
    """Opens a store that is cut at a place; nothing is written but by the program itself."""
    # Cut in this process: nothing is lost that the system was given, so no sync is needed. A server
    # is as durable as it is set up to be.
    weaker = {} if "://" in url else {"durability": "process"}
    store = holdfast.open(url, **settled(weaker))  # type: ignore[arg-type]
    store._kernel.part(Engine).supervisor.flush_s = None
    return store, cutting(store, Cutting(store._log._backend, place))


def cutting(store: Store, backend: Cutting) -> Cutting:
    """Puts a backend around that of a store, and lets async runs live beside it."""
    store._log._backend = backend  # type: ignore[assignment]
    asyncio.run_coroutine_threadsafe(_at_home(store), _loop()).result()
    return backend


async def _at_home(store: Store) -> AsyncStore:
    return AsyncStore(store, ThreadPoolExecutor(2))


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of async programs, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="corpus-loop", daemon=True).start()
    return loop


# --- running -------------------------------------------------------------------------------------


def finish(store: Store, program: Program) -> tuple[Any, list[str]]:
    """Starts the program, or goes on with it, and sees it to its end; what was uncertain, too."""
    backend: Any = store._log._backend
    corpus_steps.STORES["here"] = store
    uncertain: list[str] = []
    run = store.runs.start(program.run, *program.args, id=ID, if_exists="attach")
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            return run.result(timeout=SLICE_S), uncertain
        except RunFailedError as error:
            return [error.kind, error.text], uncertain
        except RunCancelledError:
            return "cancelled", uncertain
        except NeedsAttentionError:
            if not program.is_unverified:
                raise
            uncertain += attend(store)
        except StillRunningError:
            backend.check_alive()  # it may have died in a thread that nobody waits for
            if program.person is not None:
                program.person(store, ID)
    raise AssertionError(f"{program.name} did not end: {run.progress}")


def attend(store: Store) -> list[str]:
    """Does what a person does for a parked run: asks the provider, settles, resumes."""
    settled: list[str] = []
    for entry in store.runs.get(ID).journal.uncertain():
        store.runs.settle(ID, entry.path, verdict_on(entry.key or ""))
        settled.append(entry.path)
    assert settled, "parked, and nothing is uncertain"
    store.runs.resume(ID)
    return settled


def outcome(
    store: Store,
    program: Program,
    ended: tuple[Any, list[str]],
    witness: Witness,
    *,
    deaths: int = 0,
) -> Ended:
    """Returns what the outside sees of a program that has ended."""
    states = {name: store.scope(name).state.to_dict() for name in program.states}
    acts = dict(Counter(witness.look().acts))
    return Ended(ended[0], states, acts, uncertain=ended[1], deaths=deaths)


def uncut(program: Program, url: str) -> Ended:
    """Runs a program to its end, unharmed."""
    witness = fresh()
    store, backend = opened(url)
    with store:
        ended = outcome(store, program, finish(store, program), witness)
        ended.commits, ended.act_count = backend.commits, backend.acts
        return ended


def cut(program: Program, url: str, place: Place) -> Ended:
    """Runs a program, cuts it at one place, and resumes it until it ends."""
    witness = fresh()
    store, backend = opened(url, place)
    try:
        ended = finish(store, program)
    except (Cut, UnavailableError):
        assert backend.is_dead
        settle(store)
        if url == "memory:":
            backend.revive()
        else:
            store.close()
            store, _ = opened(url)
        ended = finish(store, program)
    with store:
        return outcome(store, program, ended, witness, deaths=1)


def places(kind: str, whole: Ended) -> list[Place]:
    """Returns where to cut on a kind of backend: every boundary of the journal.

    After one commit and before the next the journal is the same: what lies between is an act, done
    or not. Memory is cut at both, and around every act; the others at one of the two, by turns.
    """
    numbers = range(1, whole.commits + 1)
    if kind != "memory":
        return [Place("commit", n, "before" if n % 2 else "after") for n in numbers]
    found = [Place("commit", n, when) for n in numbers for when in ("before", "after")]
    acts = range(1, whole.act_count + 1)
    return found + [Place("act", n, when) for n in acts for when in ("before", "after")]


def cut_everywhere(program: Program, kind: str, new_url: Callable[[], str]) -> int:
    """Cuts a program at every boundary, each in a new store; returns how many there were."""
    whole = uncut(program, new_url())
    wrong = differences(program, whole)
    assert wrong == [], f"{program.name} uncut on {kind}: {wrong}"
    found = places(kind, whole)
    for where in found:
        wrong = differences(program, cut(program, new_url(), where))
        assert wrong == [], f"{program.name} cut {where} of {whole.commits} on {kind}: {wrong}"
    return len(found)


def differences(program: Program, ended: Ended) -> list[str]:
    """Returns what is not as the corpus says."""
    found: list[str] = []
    for what, expected, actual in (
        ("result", program.gives, ended.result),
        ("states", program.states, ended.states),
        ("acts", program.acts, ended.acts),
    ):
        if expected != actual:
            found.append(f"{what}: expected {expected}, found {actual}")
    if len(ended.uncertain) > ended.deaths or (ended.uncertain and not program.is_unverified):
        found.append(f"uncertain: {ended.uncertain}, after {ended.deaths} deaths")
    return found


def until(run: Any, status: str) -> None:
    """Waits until a run has a status, and its thread has let it go."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if run.status == status and run.id not in run._engine.active:
            return
        try:
            run.result(timeout=0.05)
        except (StillRunningError, NeedsAttentionError, RunCancelledError):
            continue
        break  # it has ended, and no other status will come
    assert run.status == status, f"expected {status}, found {run.progress}"


def settle(store: Store) -> None:
    """Waits until no thread of the cut run is at work any more."""
    for run in list(store._kernel.part(Engine).active.values()):
        assert run.over.wait(PATIENCE_S), f"run {run.id} does not notice that it is cut"

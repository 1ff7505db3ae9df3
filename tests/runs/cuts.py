"""Cuts a program at every commit, in process, and resumes it.

A cut is a BaseException out of the backend's `commit`, before or after it took effect; from then on
every commit of that handle fails, as if the process were gone. The program is resumed on a new
handle (on memory, which has one handle, on the same one brought back), and must end as it does
uncut: the same result, the same states, the same acts as the witness counted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from msgspec import Struct

import holdfast
from holdfast import Store
from holdfast.errors import (
    NeedsAttentionError,
    RunCancelledError,
    RunFailedError,
    StillRunningError,
    UnavailableError,
)
from tests.runs import corpus
from tests.runs.corpus import Program
from tests.runs.witness import fresh

ID = "p"
PATIENCE = 400


class Cut(BaseException):
    """The process is gone."""


class Cutting:
    """A backend around a backend that dies at one commit."""

    def __init__(self, inner: Any, nth: int, when: Literal["before", "after", "never"]) -> None:
        self._inner = inner
        self._nth = nth
        self._when = when
        self.commits = 0
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, commits: Any) -> Any:
        if self.is_dead:
            raise Cut("dead already")
        self.commits += 1
        self.is_dead = self.commits == self._nth and self._when != "never"
        if self.is_dead and self._when == "before":
            raise Cut(f"before commit {self._nth}")
        answers = self._inner.commit(commits)
        if self.is_dead:
            raise Cut(f"after commit {self._nth}")
        return answers

    def revive(self) -> None:
        self.is_dead, self._when = False, "never"


class Ended(Struct):
    """How a program ended, as the outside sees it."""

    result: Any
    states: dict[str, Any]
    acts: Counter[str]
    commits: int = 0


def opened(url: str, nth: int = 0, when: Any = "never") -> tuple[Store, Cutting]:
    """Opens a store that is cut at a commit; nothing is written but by the program itself."""
    store = holdfast.open(url)
    store.engine.tending.flush_s = None
    cutting = Cutting(store.log.backend, nth, when)
    store.log.backend = cutting  # type: ignore[assignment]
    return store, cutting


def finish(store: Store, program: Program) -> Any:
    """Starts the program, or goes on with it, and sees it to its end."""
    corpus.STORES["here"] = store
    run = store.start(program.run, *program.args, id=ID, if_exists="attach")
    for _ in range(PATIENCE):
        try:
            return run.result(timeout=0.1)
        except RunFailedError as error:
            return [error.kind, error.text]
        except StillRunningError:
            if program.person is not None:
                program.person(store, ID)
    raise AssertionError(f"{program.name} did not end: {run.progress}")


def outcome(store: Store, program: Program, result: Any, witness: Any) -> Ended:
    states = {name: store.scope(name).to_dict() for name in program.scopes}
    return Ended(result, states, Counter(witness.acts))


def uncut(program: Program, url: str) -> Ended:
    """Runs a program to its end, unharmed."""
    witness = fresh()
    store, cutting = opened(url)
    with store:
        ended = outcome(store, program, finish(store, program), witness)
        ended.commits = cutting.commits
        return ended


def cut(program: Program, url: str, nth: int, when: str) -> Ended:
    """Runs a program, cuts it at one commit, and resumes it until it ends."""
    witness = fresh()
    store, cutting = opened(url, nth, when)
    try:
        result = finish(store, program)
    except (Cut, UnavailableError):
        assert cutting.is_dead
        settle(store)
        if url == "memory:":
            cutting.revive()
        else:
            store.close()
            store, _ = opened(url)
        result = finish(store, program)
    with store:
        return outcome(store, program, result, witness)


def until(run: Any, status: str) -> None:
    """Waits until a run has a status, and its thread has let it go."""
    for _ in range(PATIENCE):
        if run.status == status and run.id not in run._keeper.active:
            return
        try:
            run.result(timeout=0.05)
        except (StillRunningError, NeedsAttentionError, RunCancelledError):
            continue
    raise AssertionError(f"expected {status}, found {run.progress}")


def settle(store: Store) -> None:
    """Waits until no thread of the cut run is at work any more."""
    for run in list(store.engine.active.values()):
        assert run.over.wait(30), f"run {run.id} does not notice that it is cut"

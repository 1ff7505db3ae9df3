"""Cuts a program at a commit or in a session, in process or by SIGKILL, and resumes it.

What is asked for: the same result, the same memory, and that no session is asked again whose answer
was in the journal when the program died.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import holdfast
from holdfast import Store
from holdfast.agents import Answer, Call, Question, Scripted
from holdfast.errors import NotFoundError, RunFailedError, StillRunningError, UnavailableError
from holdfast.prose.program import prose, start
from holdfast.prose.settings import Settings
from holdfast.runs.engine import Engine
from tests.prose.samples import BY_NAME, Sample
from tests.runs.cuts import NOWHERE, Cut, Cutting, Place, cutting, settle

ID = "p"
PATIENCE_S = 120.0
SLICE_S = 0.02
assert prose.name == "prose"


class Watched:
    """A script that tells a backend when it is asked, and remembers by which call."""

    def __init__(self, sample: Sample, backend: Cutting) -> None:
        self._script = Scripted(sample.script)
        self._backend = backend
        self.asked: list[str] = []

    def answer(self, call: Call, /) -> Answer:
        return self._watched(call.place, self._script.answer, call)

    def decide(self, question: Question, /) -> str:
        return self._watched(question.place, self._script.decide, question)

    def summarise(self, text: str, limit: int, /) -> str:
        return self._script.summarise(text, limit)

    def _watched(self, place: str, ask: Any, asked: Any) -> Any:
        self.asked.append(place)
        self._backend.watch("before", True)
        try:
            return ask(asked)
        finally:
            self._backend.watch("after", True)


def opened(url: str, sample: Sample, place: Place = NOWHERE, die: Any = None) -> Any:
    """Opens a store whose backend dies at a place, with the sample's script."""
    store = holdfast.open(url)
    store._kernel.part(Engine).supervisor.flush_s = None
    backend = cutting(store, Cutting(store._log._backend, place, die))
    watched = Watched(sample, backend)
    store.runs.use_executor(watched)
    return store, backend, watched


def finish(store: Store, sample: Sample) -> Any:
    """Starts a program, or goes on with it, and returns what it gives."""
    backend: Any = store._log._backend
    try:
        store.runs.get(ID)
        run = store.runs.resume(ID)
    except NotFoundError:
        settings = Settings(backoff_scale=0.0)
        run = start(store, sample.program, sample.inputs, id=ID, settings=settings)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            return run.result(timeout=SLICE_S)
        except RunFailedError as error:
            return [error.kind, error.text]
        except StillRunningError:
            backend.check_alive()
    raise AssertionError(f"{sample.name} did not end: {run.progress}")


def uncut(sample: Sample, url: str) -> tuple[int, int]:
    """Runs a program to its end; returns how many commits it made and sessions it asked."""
    store, backend, _ = opened(url, sample)
    with store:
        assert_ends(store, sample, finish(store, sample))
        return backend.commits, backend.acts


def assert_ends(store: Store, sample: Sample, given: Any) -> None:
    assert given == sample.gives, f"{sample.name}: {given}"
    agents = store.global_().get("agents")
    remembered = {} if agents is None else agents.to_dict()
    assert remembered == sample.memory, f"{sample.name}: {remembered}"


def answered(store: Store) -> set[str]:
    """Returns the sessions and decisions whose answers are in the journal."""
    try:
        journal = store.runs.get(ID).journal
    except NotFoundError:
        return set()
    return {path for path, entry in journal.entries.items() if entry.state == "done"}


def cut(sample: Sample, url: str, place: Place) -> None:
    """Runs a program, cuts it at one place, resumes it, and looks at what came of it."""
    store, backend, _ = opened(url, sample, place)
    given: Any = None
    try:
        given = finish(store, sample)
    except (Cut, UnavailableError):
        assert backend.is_dead
        settle(store)
        if url == "memory:":
            backend.revive()
            watched = Watched(sample, backend)
            store.runs.use_executor(watched)
        else:
            store.close()
            store, _, watched = opened(url, sample)
        given = go_on(store, sample, watched)
    with store:
        assert_ends(store, sample, given)


def go_on(store: Store, sample: Sample, watched: Watched) -> Any:
    """Resumes a program that was cut, and refuses a session that is asked for again."""
    known = answered(store)
    given = finish(store, sample)
    again = known & set(watched.asked)
    assert not again, f"{sample.name}: asked again: {again}"
    return given


def places(kind: str, commits: int, acts: int) -> list[Place]:
    """Returns where to cut: on memory everywhere, elsewhere at each commit, by turns."""
    numbers = range(1, commits + 1)
    if kind != "memory":
        return [Place("commit", n, "before" if n % 2 else "after") for n in numbers]
    found = [Place("commit", n, when) for n in numbers for when in ("before", "after")]
    return found + [
        Place("act", n, when) for n in range(1, acts + 1) for when in ("before", "after")
    ]


def die(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_with_views(url: str, sample: Sample, views: str, nth: int, when: str) -> None:
    """Runs a program that is killed around the nth time that the file of a view is replaced."""
    replace, left = Path.replace, [nth]

    def counted(self: Path, target: Path) -> Any:
        left[0] -= 1
        if left[0] == 0 and when == "before":
            die("")
        found = replace(self, target)
        if left[0] == 0:
            die("")
        return found

    store, _, _ = opened(url, sample)
    with store, patch.object(Path, "replace", counted):
        settings = Settings(backoff_scale=0.0, views=views)
        start(store, sample.program, sample.inputs, id=ID, settings=settings).result()


def main() -> None:
    """The process that is killed: URL, sample, what, nth, when; for a view its directory."""
    url, name, what, nth, when, *views = sys.argv[1:]
    if views:
        run_with_views(url, BY_NAME[name], views[0], int(nth), when)
        return
    place = Place(what, int(nth), when)  # type: ignore[arg-type]
    sample = BY_NAME[name]
    store, _, _ = opened(url, sample, place, die)
    with store:
        finish(store, sample)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main()

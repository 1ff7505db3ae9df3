"""Holdfast's runs: 1 KB effect steps with their intents written, one run an operation.

python -m bench.workers.holdfast_runs make URL STEPS       is killed behind so many steps
python -m bench.workers.holdfast_runs recover URL          prints when the next step began
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import holdfast
from bench.messages import messages

LEFT = "left"
_said = messages()
_begun = threading.Event()
_at = 0
_dies = False


@holdfast.step(effect="effect")
def act(number: int) -> dict[str, str]:
    return next(_said)


@holdfast.step(effect="read")
def last() -> int:
    """The step in which the process is killed; after a recovery, the first that is new."""
    global _at
    if _dies:
        # What is buffered is written within 20 ms: the act before this one is to be done, so that
        # what is measured is a recovery, and not a verifier.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    _at = time.monotonic_ns()
    _begun.set()
    return 0


@holdfast.run(name="chain")
def chain(ctx: Any, steps: int) -> int:
    for number in range(steps):
        ctx.step(act, number)
    return steps


@holdfast.run(name="left")
def left(ctx: Any, steps: int) -> int:
    for number in range(steps):
        ctx.step(act, number)
    return ctx.step(last)


@holdfast.run(name="later")
async def later(ctx: Any, steps: int) -> int:
    for number in range(steps):
        await ctx.step(act_soon, number)
    return steps


@holdfast.step(effect="effect")
async def act_soon(number: int) -> dict[str, str]:
    return next(_said)


class Runs:
    """Whole runs, one an operation."""

    runner = None

    def __init__(self, path: str, *, steps: int, kind: str = "", first: int = 0) -> None:
        self.release = f"holdfast {holdfast.__version__}"
        if kind:
            Path(path).mkdir(parents=True, exist_ok=True)
            path = f"sqlite:{path}/state.db" if kind == "sqlite" else f"{path}/store"
        self._store = holdfast.open(path)
        self._numbers = count(first)
        self.close: Callable[[], None] = self._store.close
        self.operations: dict[str, Callable[[], Any]] = {"run": lambda: self.run(steps)}

    def run(self, steps: int) -> None:
        """One run of so many steps."""
        run = self._store.runs.start(chain, steps, id=f"run {next(self._numbers)}")
        assert run.result() == steps


def main(what: str, url: str, *rest: str) -> None:
    global _dies
    if what == "make":
        _dies = True
        holdfast.open(url).runs.start(left, int(rest[0]), id=LEFT).result()
    start = time.monotonic_ns()
    store = holdfast.open(url)
    opened = time.monotonic_ns()
    while store._log._backend.leases.holder(f"run/{LEFT}") is not None:
        time.sleep(0.01)  # a server gives a dead owner's lease away when it has run out
    free = time.monotonic_ns()
    store.runs.resume(LEFT)
    assert _begun.wait(120), "the run was not resumed"
    found = {"open_ms": (opened - start) / 1e6, "to_next_step_ms": (_at - free) / 1e6}
    print(json.dumps({**found, "at": _at, "waited_s": (free - opened) / 1e9}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Counts how much of the library's code an operation passes through on a warm handle.

    python tools/frames.py [--json] [--trace PATH]

For each of five paths it prints two numbers: how many calls of our own functions one operation
makes, and in how many files they are. Only functions below `src/holdfast` count, and only in the
thread that performs the operation, which on a warm handle does all of the work. Each call counts
once: a generator is one call however often it is resumed. Calls into C code do not count.

The store is a files store in a temporary directory. Each operation is performed several times to
warm up; after that the median of several counts is taken, so that rare work (a snapshot, a new
segment) does not show. A step is measured from its call in the body of a run to its return: an
effect step commits its own intent together with the outcome of the step before it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast

SOURCE = str(Path(holdfast.__file__).parent) + "/"
WARM_UP = 220  # more than the commits after which an embedded store lets the kernel watch its files
COUNTED = 9


@dataclass(frozen=True)
class Frames:
    """What one operation passes through."""

    frames: int
    files: int
    calls: tuple[str, ...] = field(default=(), repr=False)
    """Each call, as "file:function", in order."""


def count(operation: Callable[[], Any]) -> Frames:
    """Performs an operation in this thread and returns what it passed through."""
    calls: list[str] = []
    files: set[str] = set()
    generators: set[FrameType] = set()  # keeps them alive: a frame is known by its identity

    def profile(frame: FrameType, kind: str, _: object) -> None:
        code = frame.f_code
        if kind != "call" or not code.co_filename.startswith(SOURCE):
            return
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
            if frame in generators:
                return
            generators.add(frame)
        file = code.co_filename.removeprefix(SOURCE)
        files.add(file)
        calls.append(f"{file}:{code.co_qualname}")

    sys.setprofile(profile)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return Frames(len(calls), len(files), tuple(calls))


def typical(operation: Callable[[], Any]) -> Frames:
    """Returns the median count of an operation on a warm handle."""
    for _ in range(WARM_UP):
        operation()
    found = sorted((count(operation) for _ in range(COUNTED)), key=lambda one: one.frames)
    return found[COUNTED // 2]


@holdfast.step(effect="pure")
def pure_step(number: int) -> int:
    """Touches nothing."""
    return number + 1


@holdfast.step(effect="effect")
def effect_step(number: int) -> int:
    """Stands for an act on the outside world."""
    return number + 1


_found: dict[str, Frames] = {}


@holdfast.run(name="tools.frames")
def steps() -> None:
    """Counts both kinds of step from inside a run."""
    _found["pure step"] = typical(lambda: pure_step(1))
    _found["effect step"] = typical(lambda: effect_step(1))


def measure() -> dict[str, Frames]:
    """Returns the counts of the five paths by name, in a store of their own."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-frames-") as place,
        holdfast.open(f"{place}/store") as store,
    ):
        chat = store.conversation("frames")
        found = {
            "scope.set": typical(lambda: chat.set("key", 1)),
            "scope.get": typical(lambda: chat.get("key")),
            "message": typical(lambda: chat.say("hello")),
        }
        store.runs.start(steps).result(timeout=60)
        return found | {name: _found.pop(name) for name in ("pure step", "effect step")}


def main() -> None:
    """Prints the counts of the five paths, or every call of one of them."""
    parser = argparse.ArgumentParser(description="count our frames and files of five paths")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--trace", metavar="PATH", help="list the calls of one path, with counts")
    options = parser.parse_args()
    found = measure()
    if options.trace:
        for call, times in Counter(found[options.trace].calls).items():
            print(f"{times:4}  {call}")
    elif options.json:
        rows = {name: {"frames": one.frames, "files": one.files} for name, one in found.items()}
        print(json.dumps(rows, indent=2))
    else:
        print(f"{'path':<12} {'frames':>6} {'files':>5}")
        for name, one in found.items():
            print(f"{name:<12} {one.frames:>6} {one.files:>5}")


if __name__ == "__main__":
    main()

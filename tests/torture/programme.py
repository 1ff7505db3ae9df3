"""What a part of the torture programme is: points that can be tried one by one, and replayed.

A module `tests/torture/t*.py` lists its parts as `PROGRAMMES`. One point is one trial: it depends
on nothing but the seed, its number and the planted fault, so that one command does it again.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

COMMAND = "python -m tests.torture"


class Broken(AssertionError):
    """A promise was broken; the text says which, and what was done before."""


@dataclass(frozen=True)
class Point:
    """One trial of a programme."""

    seed: int
    number: int
    """Counted from 0."""
    place: Path
    """An empty directory of its own."""
    plant: str = ""
    """The fault that is planted to see whether it is found; "" in earnest."""

    @cached_property
    def random(self) -> random.Random:
        """Chance that is the same each time this point is tried."""
        return random.Random(f"{self.seed} {self.number}")


@dataclass(frozen=True)
class Programme:
    """A row of the test programme on one backend."""

    name: str
    """Row and backend: `t4-files`."""
    promise: str
    """What must hold, in one line."""
    trial: Callable[[Point], int]
    """Tries one point and returns how many cases that were; raises if a promise is broken.

    Where `points` is None, 0 says that there is no such point any more, nor any after it.
    """
    share: int | None
    """How many points `make test-all` tries; None: all that there are."""
    points: int | None = None
    """How many points `make torture` tries; None: all that there are, until a trial returns 0."""
    parts: int = 1
    """Into how many tests `make test-all` cuts its share: they run side by side."""
    turns: int = 12
    """In how many turns `make test` tries the share: every nth point, and the next ones after the
    next commit."""
    plants: Mapping[str, int] = field(default_factory=dict[str, int])
    """Faults that can be planted, and within how many points of seed 1 each must be found."""
    needs_root: bool = False
    """Left out of `make test` where the user is not root; said, not skipped silently."""

    def replay(self, point: Point) -> str:
        """Returns the one command that does it again."""
        plant = f" --plant {point.plant}" if point.plant else ""
        return f"{COMMAND} {self.name} --seed {point.seed} --point {point.number}{plant}"


def programmes(rows: Collection[str] = ()) -> dict[str, Programme]:
    """Returns every part there is, or every part of these rows, by name."""
    package = importlib.import_module("tests.torture")
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__))
    wanted = [name for name in names if is_row(name) and (not rows or row_of(name) in rows)]
    modules = [importlib.import_module(f"tests.torture.{name}") for name in wanted]
    return {one.name: one for module in modules for one in module.PROGRAMMES}


def is_row(name: str) -> bool:
    """Says whether this is the name of a row's module, or of a part of it."""
    return name[0] == "t" and name[1:2].isdigit()


def row_of(name: str) -> str:
    """Returns the row that a module or a part belongs to, such as "t4"."""
    return name.replace("_", "-").partition("-")[0]

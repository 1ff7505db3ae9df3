"""What users may lean on: every type that a public call returns has a public name."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import typing
from collections.abc import Iterator
from functools import cached_property
from types import FunctionType
from typing import Any

import holdfast
from holdfast.renamed import NAMES

# Looked at by the command line; a run's handle shows it for those who know its events.
INTERNAL = {"Entry", "Journal", "Op", "Read", "StreamState", "StreamWrite", "Vector"}
LAYERS = ("core", "record", "runs", "nodes", "projections", "query", "views", "git", "projects")
PACKAGES = ("holdfast", *(f"holdfast.{layer}" for layer in LAYERS))


def all_names() -> dict[str, Any]:
    """Returns every class by its name: a hint may name what only type checkers import."""
    found: dict[str, Any] = {}
    for package in PACKAGES:
        place = importlib.import_module(package)
        for one in pkgutil.iter_modules(place.__path__, f"{package}."):
            if not one.name.endswith("__main__"):
                module = importlib.import_module(one.name)
                for name, value in vars(module).items():
                    if not name.startswith("_"):
                        found.setdefault(name, value)
    return found


EVERY = all_names()


def classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type):
        yield hint
    for argument in typing.get_args(hint):
        yield from classes_in(argument)


def returned_by(cls: type) -> Iterator[type]:
    for name, member in vars(cls).items():
        function = member
        if isinstance(member, property):
            function = member.fget
        elif isinstance(member, cached_property):
            function = member.func
        if not name.startswith("_") and isinstance(function, FunctionType):
            # Where it was written: a method may be that of another class, wrapped.
            module = getattr(function, "__module__", cls.__module__)
            names = {**EVERY, **vars(sys.modules[module])}
            yield from classes_in(typing.get_type_hints(function, names).get("return"))


def public_classes() -> tuple[set[type], set[type]]:
    """Returns the classes of the front door, and those of the modules that it leads to."""
    names = [("holdfast", name) for name in holdfast.__all__]
    names += [(home, name) for name, home in NAMES.items()]
    homes = {*NAMES.values(), "holdfast.git", "holdfast.projects", "holdfast.views"}
    more = [
        (home, name)
        for home in homes
        for name in getattr(importlib.import_module(home), "__all__", ())
    ]
    first, second = (
        {found for found in (getattr(importlib.import_module(home), name) for home, name in some)
         if isinstance(found, type)}
        for some in (names, more)
    )  # fmt: skip
    return first, second


def test_every_type_that_a_public_call_returns_is_public() -> None:
    front, beside = public_classes()
    rooms = {one for one in returned_by(holdfast.Store) if one.__name__.endswith("Room")}
    missing = {
        f"{found.__name__}, which {cls.__name__} returns"
        for cls in front | rooms
        for found in returned_by(cls)
        if found.__module__.startswith("holdfast")
        and found not in front | beside | rooms
        and found.__name__ not in INTERNAL
    }
    assert len(rooms) >= 14
    assert not missing, "\n".join(sorted(missing))

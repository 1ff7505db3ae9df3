"""Imports the names of a package at their first use, so that small programs load little."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec


def lazily(package: str, home: str | Mapping[str, str]) -> Callable[[str], object]:
    """Returns a `__getattr__` for a package whose names are defined in other modules.

    `home` is the module of all names, or a mapping from each name to its module (to `module:name`
    if it has another name there). A name that was found is set in the package, so the next use
    costs nothing.
    """

    def find(name: str) -> object:
        place = home if isinstance(home, str) else home.get(name)
        if place is None or (name.startswith("__") and name != "__all__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if isinstance(home, str) and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")  # a submodule of the package
        place, _, real = place.partition(":")
        try:
            found = getattr(import_module(place), real or name)
        except AttributeError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        setattr(sys.modules[package], name, found)
        return found

    return find

"""Names of a package that are imported when they are first used: who uses little loads little."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec


def lazily(package: str, home: str | Mapping[str, str]) -> Callable[[str], object]:
    """Returns the `__getattr__` of a package whose names live in another module, or in several.

    A home is a module, or a module and the name there (`module:name`). A name that was asked for
    once is set in the package, so the next look costs nothing.
    """

    def find(name: str) -> object:
        place = home if isinstance(home, str) else home.get(name)
        if place is None or (name.startswith("__") and name != "__all__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if isinstance(home, str) and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")  # a module of the package, not a name of it
        place, _, real = place.partition(":")
        try:
            found = getattr(import_module(place), real or name)
        except AttributeError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        setattr(sys.modules[package], name, found)
        return found

    return find

"""Imports the names of a package at their first use, so that small programs load little."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self, TypeVar, overload

T = TypeVar("T")


class Loading:
    """A block that may import what is imported at its first use; names what keeps it from that.

    A process that has used all its file descriptors cannot read a module. Its error is then one of
    ours, and the same call succeeds once some were closed.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            from holdfast.errors import NO_DESCRIPTORS, unloaded

            if error.errno in NO_DESCRIPTORS:
                raise unloaded(self._what, error) from error


class loaded_property(cached_property[T]):
    """A property that imports what it needs when it is first read."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | T:
        with Loading(self.attrname or "a module"):
            return super().__get__(instance, owner)


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

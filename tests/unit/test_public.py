"""What users may lean on: every type that a public call returns has a public name."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from typing import Any

import holdfast
import holdfast.git
import holdfast.projects
import holdfast.views

# Looked at by the command line; a run's handle shows it for those who know its events.
INTERNAL = {"Entry", "Journal", "Op", "Read", "StreamState", "StreamWrite", "Vector"}


def classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type):
        yield hint
    for argument in typing.get_args(hint):
        yield from classes_in(argument)


def returned_by(cls: type) -> Iterator[type]:
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and callable(function):
            # Where it was written: a method may be that of another class, wrapped.
            module = getattr(function, "__module__", cls.__module__)
            names = {**vars(sys.modules[module]), **vars(holdfast)}
            yield from classes_in(typing.get_type_hints(function, names).get("return"))


def test_every_type_that_a_public_call_returns_is_public() -> None:
    exported = {getattr(holdfast, name) for name in holdfast.__all__}
    public = exported | {
        getattr(module, name)
        for module in (holdfast.git, holdfast.projects, holdfast.views)
        for name in module.__all__
    }
    missing = {
        f"{found.__name__}, which {cls.__name__} returns"
        for cls in exported
        if isinstance(cls, type)
        for found in returned_by(cls)
        if found.__module__.startswith("holdfast")
        and found not in public
        and found.__name__ not in INTERNAL
    }
    assert not missing

"""Every public name is on the page of public names, and says what it is."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache, cached_property
from types import FunctionType
from typing import Any, get_origin

import pytest

import holdfast
from holdfast.renamed import NAMES, SCOPE, SETTINGS, STORE
from tests.docs.test_references import ROOT

ROOMS = (
    "holdfast.tasks",
    "holdfast.decisions",
    "holdfast.facts",
    "holdfast.sessions",
    "holdfast.search",
    "holdfast.retention",
    "holdfast.subjects",
    "holdfast.keys",
    "holdfast.secrets",
    "holdfast.schemas",
    "holdfast.workers",
)
MODULES = (
    "holdfast",
    *ROOMS,
    "holdfast.store",
    "holdfast.record",
    "holdfast.context",
    "holdfast.agents",
    "holdfast.aio",
    "holdfast.testing",
    "holdfast.backends.protocol",
    "holdfast.archive",
    "holdfast.backup",
    "holdfast.git",
    "holdfast.interchange",
    "holdfast.projects",
    "holdfast.git_recovery",
    "holdfast.copy",
    "holdfast.advise",
    "holdfast.prose",
    "holdfast.views",
    "holdfast.compat",
)
PARTLY = (
    "holdfast.runs",
    "holdfast.nodes",
    "holdfast.projections",
    "holdfast.scope",
    "holdfast.undo",
    "holdfast.tenants",
    "holdfast.thumbprint",
    "holdfast.contrib.task_lifetimes",
    "holdfast.errors",
)
"""Modules that have more names than those on the page, for other layers."""
LISTED = (*MODULES, *PARTLY)


@cache
def listed(module: str) -> set[str]:
    """Returns the names in the tables of a module's section."""
    page = (ROOT / "docs/api.md").read_text("utf-8")
    section = page.split(f"\n## `{module}`\n")[1].split("\n## ")[0]
    first = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in first for name in re.findall(r"`(\w+)`", cell)}


def public(module: str) -> set[str]:
    """Returns what a module exports; without `__all__`, what it defines and does not hide."""
    found = importlib.import_module(module)
    exported = getattr(found, "__all__", None)
    if exported is not None:
        return set(exported)
    return {
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", module) == module
    } - {"annotations"}


def is_listed(module: str, name: str) -> bool:
    """Returns whether a name is in the section of its module, or the same thing is in another."""
    value = getattr(importlib.import_module(module), name)
    return any(
        name in listed(other) and getattr(importlib.import_module(other), name) is value
        for other in LISTED
    )


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_listed(module: str):
    assert not {name for name in public(module) if not is_listed(module, name)}


def test_every_room_of_a_store_is_listed():
    rooms = {name: value for name, value in vars(holdfast.Store).items() if is_room(value)}
    assert len(rooms) == 14
    assert not {name for name in rooms if f"{name.title()}Room" not in listed(f"holdfast.{name}")}


def is_room(value: object) -> bool:
    return isinstance(value, cached_property)


def test_every_name_that_moved_is_listed_where_it_is():
    assert not {name for name, module in NAMES.items() if not is_listed(module, name)}


def test_every_old_name_is_in_the_record_of_the_names():
    record = (ROOT / "docs/decisions/0080-a-small-front-door.md").read_text("utf-8")
    told = set(re.findall(r"`(\w+)[^`]*`", record))
    assert not {*STORE, *SCOPE, *SETTINGS, *NAMES} - told


def test_no_module_has_two_sections():
    page = (ROOT / "docs/api.md").read_text("utf-8")
    sections = re.findall(r"^## `([\w.]+)`$", page, re.M)
    assert sorted(sections) == sorted(LISTED)


@pytest.mark.parametrize("module", LISTED)
def test_every_listed_name_is_public(module: str):
    found = importlib.import_module(module)
    assert not {name for name in listed(module) if not hasattr(found, name)}


def is_data(value: object) -> bool:
    """A constant, a type alias and a literal cannot have a docstring of their own at run time."""
    return get_origin(value) is not None or not callable(value)


def methods(owner: type) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties of a class, those that only refuse left out."""
    for name in dir(owner):
        value = inspect.getattr_static(owner, name)
        is_ours = any(
            base.__module__.startswith("holdfast") for base in owner.__mro__ if name in vars(base)
        )
        if name.startswith("_") or not is_ours:
            continue
        if isinstance(value, property | classmethod | staticmethod | FunctionType):
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if getattr(function, "__annotations__", {}).get("return") != "NoReturn":
                yield name, getattr(owner, name)


def said_of(owner: type, name: str, value: object) -> str | None:
    """Returns a method's docstring; one for asyncio may have that of its synchronous twin."""
    own, twin = inspect.getdoc(value), twin_of(owner)
    return own or (inspect.getdoc(getattr(twin, name, None)) if twin is not owner else None)


def twin_of(owner: type) -> type | None:
    """Returns the class that one for asyncio is like."""
    name = owner.__name__.removeprefix("Async")
    homes = (module for module in LISTED if name in listed(module))
    return next((getattr(importlib.import_module(module), name) for module in homes), None)


@pytest.mark.parametrize("module", LISTED)
def test_every_public_name_says_what_it_is(module: str):
    found = importlib.import_module(module)
    names = public(module) if module in MODULES else listed(module)
    values = {name: getattr(found, name) for name in names}
    silent = [name for name, value in values.items() if not is_data(value) and not value.__doc__]
    assert not silent


@pytest.mark.parametrize("module", LISTED)
def test_every_public_method_says_what_it_does(module: str):
    found = importlib.import_module(module)
    classes = [getattr(found, name) for name in listed(module)]
    silent = [
        f"{owner.__name__}.{name}"
        for owner in classes
        if isinstance(owner, type)
        for name, value in methods(owner)
        if not said_of(owner, name, value)
    ]
    assert not sorted(silent)

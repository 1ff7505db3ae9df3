"""Every public name is on the page of public names."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.docs.test_references import ROOT

MODULES = (
    "holdfast",
    "holdfast.agents",
    "holdfast.aio",
    "holdfast.testing",
    "holdfast.backends.protocol",
)


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


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_listed(module: str):
    assert not public(module) - listed(module)


@pytest.mark.parametrize("module", MODULES)
def test_every_listed_name_is_public(module: str):
    found = importlib.import_module(module)
    assert not {name for name in listed(module) if not hasattr(found, name)}

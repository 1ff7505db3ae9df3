"""Faults that T22 must find, planted one at a time: each takes away what protects a store."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def no_look() -> None:
    """Nobody looks whether names still lead to the files that were opened."""
    watch = import_module("holdfast.backends.file_watch").FileWatch
    watch.look = watch.taken = _nothing
    journal = import_module("holdfast.backends.files.journal").RingJournal
    journal.has_lost_a_name = _none
    database: Any = import_module("holdfast.backends.sqlite.database_files")
    database.DatabaseFiles.find_problem = _none
    database.DatabaseFiles.is_suspect = _none
    database.lacks_frames = _none


def _no_witness() -> None:
    """Nobody compares a database with what was acknowledged."""
    for name in ("backend", "inspection"):
        module = import_module(f"holdfast.backends.sqlite.{name}")
        assert hasattr(module, "find_loss"), "find_loss was renamed"
        setattr(module, "find_loss", _none)  # noqa: B010


def blind() -> None:
    """Nobody looks, and nobody compares."""
    no_look()
    _no_witness()


def cries() -> None:
    """The twentieth look finds that something was taken, and nothing was."""
    watch = import_module("holdfast.backends.file_watch").FileWatch
    looks = [0]

    def look(self: Any) -> list[str]:
        looks[0] += 1
        return ["the lock"] if looks[0] == 20 else []

    watch.look = look


def _nothing(self: Any) -> list[str]:
    return []


def _none(*given: Any, **named: Any) -> None:
    del given, named


PLANTS: dict[str, Callable[[], None]] = {
    "no-look": no_look,
    "blind": blind,
    "cries": cries,
}

"""Interpreters that are broken on purpose, each in one way: the tests must catch every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from holdfast.prose import narration
from holdfast.prose.interpreter import Interpreter
from holdfast.prose.view_files import Shown, ViewDirectory
from holdfast.prose.views import Damage, read_const

Plant = Callable[[], Any]


def const_guard_off() -> Any:
    """The file of a const is written over, whatever somebody made of it."""
    sync = ViewDirectory.sync

    def careless(self: Any, shown: list[Shown], others: Any) -> Any:
        for one in shown:
            if one.updated is None:
                self.write(one.path, one.data)
        return sync(self, shown, others)

    return patch.object(ViewDirectory, "sync", careless)


def const_guard_by_digest() -> Any:
    """A const is believed if its own digest fits, and not compared with the store."""
    sync = ViewDirectory.sync

    def trusting(self: Any, shown: list[Shown], others: Any) -> Any:
        kept: list[Shown] = []
        for one in shown:
            path = self._root / one.path
            is_const = one.updated is None and path.exists()
            if not is_const or isinstance(read_const(one.name, path.read_bytes()), Damage):
                kept.append(one)
        return sync(self, kept, others)

    return patch.object(ViewDirectory, "sync", trusting)


def narration_without_digests() -> Any:
    """A line is believed for its form."""
    return patch.object(narration, "compare_digest", lambda a, b: True)


def arms_in_wrong_order() -> Any:
    """What arms assigned is applied as they ended, here the last one first."""
    joined = Interpreter._joined

    def reversed_(self: Any, frame: Any, node: Any, arms: Any, *how: Any) -> Any:
        found = joined(self, frame, node, arms, *how)
        changes = [doc.pop("changes", []) for doc in found.values()]
        for doc, late in zip(found.values(), reversed(changes), strict=True):
            doc["changes"] = late
        return found

    return patch.object(Interpreter, "_joined", reversed_)

"""Many events folded into one state: what nobody will look at is not made.

Most of a long log appends to lists of the state. Such items are gathered and appended together,
when the state is asked for or another op looks at their list; every other op is applied at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.tree.change import apply_op
from holdfast.tree.frozen import Blobs, List, Map, enter
from holdfast.tree.ops import Op


class Run:
    """A state on its way through the ops of many events."""

    def __init__(self, root: Map) -> None:
        self._root = root
        self._items: dict[str, list[Any]] = {}

    def apply(self, ops: Iterable[Op], *, revision: int, blobs: Blobs | None) -> None:
        """Does what `tree.apply` does. After an exception the run is of no more use."""
        for index, op in enumerate(ops):
            source = revision, index
            key = op.path
            if op.kind == "append" and type(key) is str:
                items = self._items.get(key)
                if items is None and type(self._root.peek(key)) is List:
                    items = self._items[key] = []
                if items is not None:
                    items.append(enter(op.value, source, blobs))
                    continue
            if self._items:
                self._settle(key)
            self._root = apply_op(self._root, op, source, blobs)

    def root(self) -> Map:
        """Returns the state as it is now."""
        for key in self._items:
            self._append(key)
        self._items = {}
        return self._root

    def _settle(self, path: str | tuple[str | int, ...]) -> None:
        """Appends what the op at this path may look at."""
        key = path if isinstance(path, str) else path[0] if path else None
        if key is None:
            self.root()
        elif key in self._items:
            self._append(str(key))
            del self._items[str(key)]

    def _append(self, key: str) -> None:
        kept = self._root.peek(key)
        assert type(kept) is List, f"BUG: {key!r} was a list, and is {type(kept).__name__}"
        self._root = self._root.with_key(key, kept.with_items(self._items[key]))

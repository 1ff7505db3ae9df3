"""Folds many events into one state without making the states in between.

Most events of a long log append to lists of the state. Such items are gathered, and appended
together when the state is needed or another op may look at their list. Every other op is applied
at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.tree.ends import Ends, fold_ends
from holdfast.core.tree.frozen import SHORT, Blobs, Lazy, List, Map, enter
from holdfast.core.tree.ops import UNTIL, Op, apply_op, checked_ops, unchecked_ops


class OpBatch:
    """A state on its way through the ops of many events."""

    def __init__(self, root: Map, ends: Ends | None = None) -> None:
        self._root = root
        self.ends = ends
        """When values of the state end."""
        self._items: dict[str, list[Any]] = {}

    def apply(self, ops: Sequence[Op], *, revision: int, blobs: Blobs | None) -> None:
        """Applies the ops of one event, as `tree.apply` does.

        After an exception the batch must not be used any more: some of the ops may be applied.
        """
        for index, op in enumerate(ops):
            source = revision, index
            key = op.path
            if op.kind == "append" and type(key) is str:
                items = self._items.get(key)
                if items is None and type(self._root._peek(key)) is List:
                    items = self._items[key] = []
                if items is not None:
                    items.append(enter(op.value, source, blobs))
                    continue
            if self._items:
                self._settle(key)
            self._root = apply_op(self._root, op, source, blobs)
        if self.ends is not None or (ops and ops[-1].kind == UNTIL):
            self.ends = fold_ends(self.ends, ops, blobs)

    def apply_payload(self, payload: bytes, revision: int, blobs: Blobs | None) -> None:
        """Applies the ops in the payload of a `changed` event."""
        ops = unchecked_ops(payload)
        if len(ops) == 1:
            # Nearly every event of a long log is like this: it appends one item that is not short.
            op = ops[0]
            if op.kind == "append" and len(op.value) > SHORT and type(op.path) is str:
                items = self._items.get(op.path)
                if items is not None:
                    items.append(Lazy(op.value, (revision, 0), None, blobs))
                    return
        self.apply(checked_ops(ops, payload), revision=revision, blobs=blobs)

    def root(self) -> Map:
        """Returns the state after everything that was applied."""
        for key in self._items:
            self._append(key)
        self._items = {}
        return self._root

    def _settle(self, path: str | tuple[str | int, ...]) -> None:
        """Appends the gathered items that an op at this path may look at."""
        key = path if isinstance(path, str) else path[0] if path else None
        if key is None:
            self.root()
        elif key in self._items:
            self._append(str(key))
            del self._items[str(key)]

    def _append(self, key: str) -> None:
        kept = self._root._peek(key)
        assert type(kept) is List, f"BUG: {key!r} was a list, and is {type(kept).__name__}"
        self._root = self._root._with_key(key, kept._with_items(self._items[key]))

"""The mutable draft of a state that `edit()` returns: it records ops and reads its own writes.

    with scope.edit() as draft:
        draft["budget"] -= 10
        draft["messages"].append({"role": "user", "content": "hi"})
        draft["customer"]["name"] = "Ada"

Nested mappings and lists are drafts too, each bound to its path. If another value has moved to that
path since, the draft shows and changes that value. Every step is applied at once to the draft's own
state, so an error is raised at the line that causes it. A value is encoded when it is put in, so
later changes to the caller's object are not seen. A `pop` returns a frozen value.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, SupportsIndex, overload

from holdfast.core import codec
from holdfast.core.codec import Path, Thawable
from holdfast.core.tree import (
    Blobs,
    Lazy,
    List,
    Map,
    Op,
    append_op,
    apply,
    delete_op,
    get,
    keep_seals,
    merge_op,
    put,
    raw_op,
    set_op,
    truncate_op,
)
from holdfast.core.tree.frozen import enter
from holdfast.core.tree.ops import describe
from holdfast.core.tree.vector import from_items
from holdfast.errors import UsageError

_RAISE: Any = object()


class _Recorder:
    """The ops so far, and the state that they lead to."""

    __slots__ = ("blobs", "ops", "root")

    def __init__(self, root: Map, blobs: Blobs | None) -> None:
        self.root = root
        self.blobs = blobs
        self.ops: list[Op] = []

    def record(self, op: Op) -> None:
        # As the log will store it: what is read of the draft may be written elsewhere in it.
        (op,) = keep_seals(self.root, (op,), self.blobs)
        self.root = apply(self.root, (op,), revision=None, blobs=self.blobs)
        self.ops.append(op)

    def replace(self, path: Path, kept: list[Any]) -> None:
        """Records that a whole list now has these items, as kept in the tree."""
        items = List(from_items(kept))
        self.root = put(self.root, path, items)
        self.ops.append(raw_op("set", path, items))


class _Face(Thawable):
    """A place of the draft's state."""

    __slots__ = ("_path", "_recorder")

    def __init__(self, recorder: _Recorder, path: Path) -> None:
        self._recorder = recorder
        self._path = path

    def _frozen(self, kind: type[Any], name: str) -> Any:
        value = get(self._recorder.root, self._path)
        if type(value) is not kind:
            raise UsageError(
                f"{describe(self._path)} is no longer a {name}: the draft has replaced it",
                hint="take it out of the draft again",
            )
        return value

    def closed(self) -> Any:
        """Returns it as it is stored: sealed values in it stay sealed."""
        return self._node().closed()

    @abstractmethod
    def _node(self) -> Map | List:
        """Returns what stands at the place now."""

    def _wrap(self, value: Any, step: str | int) -> Any:
        if type(value) is Map:
            return DraftMap(self._recorder, (*self._path, step))
        if type(value) is List:
            return DraftList(self._recorder, (*self._path, step))
        return value

    def _set(self, step: str | int, value: Any) -> None:
        path = (*self._path, step)
        if isinstance(value, _Face) and value._path == path:  # noqa: SIM102
            # `draft["items"] += […]` has changed the list already, then assigns it to itself.
            if value._recorder is self._recorder:
                return
        self._recorder.record(set_op(path, value))

    def __repr__(self) -> str:
        return f"<draft of {get(self._recorder.root, self._path)!r}>"


def _thawed(other: object) -> object:
    return other.thaw() if isinstance(other, _Face) else other


class DraftMap(_Face, MutableMapping[str, Any]):
    """A mapping of the draft, to be used like a dict."""

    __slots__ = ()

    def _node(self) -> Map:
        return self._frozen(Map, "mapping")

    def __getitem__(self, key: str) -> Any:
        return self._wrap(self._node()[key], key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self._node():
            raise KeyError(key)
        self._recorder.record(delete_op((*self._path, key)))

    def __contains__(self, key: object) -> bool:
        return key in self._node()

    def __iter__(self) -> Iterator[str]:
        return iter(self._node())

    def __len__(self) -> int:
        return len(self._node())

    def __eq__(self, other: object) -> bool:
        return bool(self._node() == _thawed(other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __ior__(self, other: Mapping[str, Any]) -> DraftMap:
        self.update(other)
        return self

    def pop(self, key: str, default: Any = _RAISE) -> Any:
        node = self._node()
        if key not in node and default is not _RAISE:
            return default
        value = node[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Removes the newest key and returns it with its value, as a dict does."""
        keys = list(self)
        if not keys:
            raise KeyError("popitem(): the mapping is empty")
        return keys[-1], self.pop(keys[-1])

    def clear(self) -> None:
        self._recorder.record(set_op(self._path, {}))

    def update(self, other: Any = (), /, **values: Any) -> None:  # pyright: ignore
        given = codec.closed_items(other) if isinstance(other, Thawable) else other
        merged: dict[str, Any] = {**dict(given), **values}
        if merged:
            self._recorder.record(merge_op(self._path, merged))

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def to_dict(self) -> dict[str, Any]:
        """Returns a deep, plain copy."""
        return self._node().to_dict()

    def thaw(self) -> dict[str, Any]:
        return self.to_dict()


class DraftList(_Face, MutableSequence[Any]):
    """A list of the draft, to be used like a list.

    Appending, replacing or deleting an item records only that. Other changes that move items, such
    as `insert` or `sort`, record the whole list.
    """

    __slots__ = ()

    def _node(self) -> List:
        return self._frozen(List, "list")

    def _place(self, index: SupportsIndex) -> int:
        place = operator.index(index)
        count = len(self._node())
        if not -count <= place < count:
            raise IndexError(f"list index {place} is out of range: the list has {count}")
        return place % count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        node = self._node()
        if isinstance(index, slice):
            return [self._wrap(node[i], i) for i in range(*index.indices(len(node)))]
        place = self._place(index)
        return self._wrap(node[place], place)

    def __setitem__(self, index: int | slice, value: Any) -> None:
        if not isinstance(index, slice):
            self._set(self._place(index), value)
            return
        kept = self._kept()
        kept[index] = [self._enter(item) for item in list(value)]
        self._recorder.replace(self._path, kept)

    def __delitem__(self, index: int | slice) -> None:
        count = len(self._node())
        if not isinstance(index, slice):
            place = self._place(index)
            if place == count - 1:
                self._recorder.record(truncate_op(self._path, place))
            else:
                self._recorder.record(delete_op((*self._path, place)))
            return
        gone = range(*index.indices(count))
        if len(gone) and gone.step == 1 and gone.stop == count:
            self._recorder.record(truncate_op(self._path, gone.start))
        elif len(gone):
            kept = self._kept()
            del kept[index]
            self._recorder.replace(self._path, kept)

    def __len__(self) -> int:
        return len(self._node())

    def __eq__(self, other: object) -> bool:
        return bool(self._node() == _thawed(other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def append(self, value: Any) -> None:
        self._node()
        self._recorder.record(append_op(self._path, value))

    def extend(self, values: Iterable[Any]) -> None:
        for value in list(values):
            self.append(value)

    def insert(self, index: int, value: Any) -> None:
        if index >= len(self):
            self.append(value)
            return
        kept = self._kept()
        kept.insert(index, self._enter(value))
        self._recorder.replace(self._path, kept)

    def pop(self, index: int = -1) -> Any:
        value = self._node()[self._place(index)]
        del self[index]
        return value

    def clear(self) -> None:
        self._node()
        self._recorder.record(truncate_op(self._path, 0))

    def reverse(self) -> None:
        self._recorder.replace(self._path, self._kept()[::-1])

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        kept = self._kept()
        kept.sort(key=lambda item: _sort_key(item, key), reverse=reverse)
        self._recorder.replace(self._path, kept)

    def to_list(self) -> list[Any]:
        """Returns a deep, plain copy."""
        return self._node().to_list()

    def thaw(self) -> list[Any]:
        return self.to_list()

    def _kept(self) -> list[Any]:
        items = self._node().vector()
        return items.slice(0, items.count)

    def _enter(self, value: Any) -> Any:
        raw = codec.encode(value, path=(*self._path, 0))
        return enter(raw, None, self._recorder.blobs)


def _sort_key(item: Any, key: Callable[[Any], Any] | None) -> Any:
    value = item.force() if type(item) is Lazy else item
    return value if key is None else key(value)


class Draft(DraftMap):
    """A mutable draft of a whole state; `ops` are the changes made to it."""

    __slots__ = ()

    def __init__(self, root: Map, blobs: Blobs | None = None) -> None:
        """`blobs` opens sealed values that are put in, when they are read again."""
        super().__init__(_Recorder(root, blobs), ())

    @property
    def ops(self) -> list[Op]:
        """The recorded steps, in order."""
        return self._recorder.ops

    @property
    def state(self) -> Map:
        """The state after the recorded steps. Its new values do not belong to an event yet."""
        return self._recorder.root

"""Finds what differs between two states: as places for people, and as ops from one to the other.

Subtrees that both states share are skipped by identity, so the cost grows with the change, not with
the state. Encoded values are compared as bytes first, and decoded only if a look inside is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from holdfast.core import codec
from holdfast.core.codec import Path
from holdfast.core.tree import trie, vector
from holdfast.core.tree.frozen import (
    MISSING,
    WIDE,
    Lazy,
    List,
    Map,
    dump,
    enter,
    enter_level,
    is_sealed,
)
from holdfast.core.tree.ops import Op, delete_op, encode_ops, locate, raw_op, truncate_op
from holdfast.core.tree.vector import Vector


class Difference:
    """One place that differs. If it was added or removed, the absent side is MISSING.

    `old` and `new` are decoded, and their blobs loaded, on access.
    """

    __slots__ = ("_new", "_old", "path")

    def __init__(self, path: Path, old: Any, new: Any) -> None:
        self.path = path
        self._old = old
        self._new = new

    @property
    def old(self) -> Any:
        return _force(self._old)

    @property
    def new(self) -> Any:
        return _force(self._new)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Difference):
            return NotImplemented
        return (self.path, self.old, self.new) == (other.path, other.old, other.new)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"Change({self.path!r}, {self.old!r}, {self.new!r})"


def diff(old: Map, new: Map, *, is_same_stream: bool = False) -> list[Difference]:
    """Returns the places that differ: the deepest mapping keys and list indexes that do.

    Within a mapping, changed and removed keys come in the old order, then added keys in the new
    order. In wide mappings (more than 128 keys) all come sorted by key. Another order of keys is
    not a difference, another type of number is. With `is_same_stream`, two values from the same op
    of the same revision count as equal without being read.
    """
    return list(_Comparison(is_same_stream).changes(old, new, ()))


def diff_ops(old: Map, new: Map, *, is_same_stream: bool = False) -> list[Op]:
    """Returns ops that turn `old` into `new`, with its order of keys and types of numbers."""
    ops: list[Op] = []
    _Comparison(is_same_stream).map_ops(old, new, (), ops)
    return ops


def set_difference(root: Map, op: Op) -> list[Op]:
    """Returns ops that have the effect of a `set` on this state, but store only what differs.

    An empty list if nothing differs; the `set` itself if the path has no value yet, or if the other
    ops would take no fewer bytes.
    """
    old = locate(root, op.keys)
    if old is MISSING:
        return [op]
    ops: list[Op] = []
    _Comparison(False)._value_ops(old, enter(op.value, None, _unread), op.keys, ops)
    return ops if len(encode_ops(ops)) < len(encode_ops([op])) else [op]


def _unread(name: str, size: int) -> bytes:
    """Stands for the reader of blobs: a sealed value that is compared is never opened."""
    raise AssertionError("BUG: a value was opened to be compared")


def changed_places(old: Map, new: Map, path: Path) -> list[Path]:
    """Returns the places at or below a path that differ between two states of one stream.

    An empty list means that a reader of the path sees the same, even the same order of keys. If
    only that order differs, the path itself is returned.
    """
    a, b = locate(old, path), locate(new, path)
    compare = _Comparison(True)
    if a is MISSING or b is MISSING:
        return [] if a is b else [path]
    ops: list[Op] = []
    compare._value_ops(a, b, path, ops)
    if not ops:
        return []
    return [change.path for change in compare.changes(a, b, path)] or [path]


def touched(ops: Sequence[Op], old: Map, new: Map) -> list[Difference]:
    """Returns the changes that ops made between two states, each place once.

    The places are those of the ops. A value that an op put there is one change, but the items of a
    list that grew or shrank are changes of their own. Without ops it returns what differs, as for a
    state that was dropped as a whole.
    """
    if not ops:
        return diff(old, new)
    found: dict[Path, Difference] = {}
    for op in ops:
        for change in _touched_by(op, old, new):
            found.setdefault(change.path, change)
    return list(found.values())


def _touched_by(op: Op, old: Map, new: Map) -> Iterator[Difference]:
    path = op.keys
    compare = _Comparison(False)
    if op.kind == "merge" and locate(old, path) is MISSING:
        yield from compare.place(old, new, path)
    elif op.kind == "merge" and codec.parse_blob_ref(op.value) is None:
        for key in enter_level(op.value, None):
            yield from compare.place(old, new, (*path, key))
    elif not path or op.kind in ("append", "truncate", "merge"):
        yield from compare.changes(locate(old, path), locate(new, path), path)
    elif op.kind == "delete" and type(path[-1]) is int:
        yield from compare.changes(locate(old, path[:-1]), locate(new, path[:-1]), path[:-1])
    else:
        yield from compare.place(old, new, path)


class _Comparison:
    """One walk over two states."""

    def __init__(self, is_same_stream: bool) -> None:
        self._is_same_stream = is_same_stream

    def place(self, old: Map, new: Map, path: Path) -> Iterator[Difference]:
        a, b = locate(old, path), locate(new, path)
        if not self._is_known_same(a, b):
            yield Difference(path, a, b)

    def changes(self, old: Any, new: Any, path: Path) -> Iterator[Difference]:
        if self._is_known_same(old, new):
            return
        if old is MISSING or new is MISSING or is_sealed(old) or is_sealed(new):
            if not _is_same_seal(old, new):
                yield Difference(path, old, new)
            return
        a, b = _force(old), _force(new)
        if type(a) is Map and type(b) is Map:
            for key in _changed_keys(a, b):
                yield from self.changes(a._peek(key), b._peek(key), (*path, key))
        elif type(a) is List and type(b) is List:
            x, y = a.vector(), b.vector()
            for index in self._changed_indexes(x, y):
                yield from self.changes(x.get(index), y.get(index), (*path, index))
            for index in range(len(a), len(b)):
                yield Difference((*path, index), MISSING, y.get(index))
            for index in range(len(b), len(a)):
                yield Difference((*path, index), x.get(index), MISSING)
        elif not _is_same_scalar(a, b):
            yield Difference(path, old, new)

    def map_ops(self, a: Map, b: Map, path: Path, ops: list[Op]) -> None:
        """Adds the ops that turn mapping a into mapping b."""
        plan = _plan_wide(a, b) or _plan(a, b)
        if plan is None:
            ops.append(raw_op("set", path, b))
            return
        deleted, changed, added = plan
        ops.extend(delete_op((*path, key)) for key in deleted)
        for key in changed:
            self._value_ops(a._peek(key), b._peek(key), (*path, key), ops)
        ops.extend(raw_op("set", (*path, key), b._peek(key)) for key in added)

    def _list_ops(self, a: List, b: List, path: Path, ops: list[Op]) -> None:
        x, y = a.vector(), b.vector()
        shared = min(len(a), len(b))
        changed = [
            index
            for index in self._changed_indexes(x, y)
            if not self._is_identical(x.get(index), y.get(index))
        ]
        # Many items differ if some were inserted or deleted before the end. Then the items before
        # the first difference are kept, and the rest is appended anew.
        if len(changed) > max(_FEW, shared // 4):
            shared = changed[0]
            changed = []
        for index in changed:
            self._value_ops(x.get(index), y.get(index), (*path, index), ops)
        if shared < len(a):
            ops.append(truncate_op(path, shared))
        ops.extend(raw_op("append", path, item) for item in y.slice(shared, len(b)))

    def _value_ops(self, old: Any, new: Any, path: Path, ops: list[Op]) -> None:
        if self._is_known_same(old, new):
            return
        if is_sealed(old) or is_sealed(new):
            if _is_same_seal(old, new):
                return
            if is_sealed(old) and dump(new) == codec.CLOSED_TEXT:
                return  # the text that stands for it in a view file came back unchanged
            ops.append(raw_op("set", path, new))
            return
        a, b = _force(old), _force(new)
        if type(a) is Map and type(b) is Map:
            self.map_ops(a, b, path, ops)
        elif type(a) is List and type(b) is List:
            self._list_ops(a, b, path, ops)
        elif not _is_same_scalar(a, b):
            ops.append(raw_op("set", path, new))

    def _is_known_same(self, old: Any, new: Any) -> bool:
        """Returns whether two kept values are known to be equal without decoding them."""
        if old is new:
            return True
        if type(old) is not Lazy or type(new) is not Lazy:
            return False
        if old.raw is not None and old.raw == new.raw:
            return True
        return self._is_same_stream and old.source is not None and old.source == new.source

    def _changed_indexes(self, old: Vector, new: Vector) -> Iterator[int]:
        return vector.changed_indexes(old, new, is_same_stream=self._is_same_stream)

    def _is_identical(self, old: Any, new: Any) -> bool:
        return self._is_known_same(old, new) or bytes(dump(old)) == bytes(dump(new))


_FEW = 4
Plan = tuple[list[str], list[str], list[str]]


def _plan_wide(a: Map, b: Map) -> Plan | None:
    """Returns keys to delete, to compare, and to set at the end; the cost is that of the change.

    None if these are not two versions of one wide level.
    """
    x, y = a._wide(), b._wide()
    if x is None or y is None or x.order.count > y.order.count:
        return None
    if any(True for _ in vector.changed_indexes(x.order, y.order)):
        return None
    changed = trie.changed_keys(x, y)
    # Keys that were added, or deleted and set again, have new places at the end of the order.
    places = y.order.slice(x.order.count, y.order.count)
    added = [key for key in reversed(dict.fromkeys(reversed(places))) if key in b]
    moved = set(added)
    if any(key in b and key not in a and key not in moved for key in changed):
        return None  # b is the older one: ops cannot put a key back at a place before the end
    deleted = [
        key for key in sorted(changed | moved) if key in a and (key in moved or key not in b)
    ]
    compared = [key for key in sorted(changed) if key in a and key in b and key not in moved]
    return deleted, compared, added


def _plan(a: Map, b: Map) -> Plan | None:
    """Returns keys to delete, to compare, and to set at the end; None to set the whole mapping."""
    keys = list(b)
    stay = [key for key in a if key in b]
    steady = 0
    for key, other in zip(stay, keys, strict=False):
        if key != other:
            break
        steady += 1
    if stay and not steady:
        return None
    deleted = [key for key in a if key not in b]
    return deleted + stay[steady:], stay[:steady], keys[steady:]


def _changed_keys(a: Map, b: Map) -> list[str]:
    x, y = a._wide(), b._wide()
    if x is not None and y is not None:
        return sorted(trie.changed_keys(x, y))
    keys = [key for key, kept in a._kept() if b._peek(key) is not kept]
    keys.extend(key for key in b if a._peek(key) is MISSING)
    return sorted(keys) if max(len(a), len(b)) > WIDE else keys


def _is_same_seal(a: Any, b: Any) -> bool:
    # As they are stored: that needs no key. One may be read from its event, the other from a base.
    return is_sealed(a) and is_sealed(b) and bytes(a.stored()) == bytes(b.stored())


def _is_same_scalar(a: Any, b: Any) -> bool:
    # True == 1 == 1.0 and 0.0 == -0.0 in Python, but these have different encodings. nan != nan,
    # but has one encoding.
    if type(a) is not type(b):
        return False
    if a != b:
        return a != a and b != b
    return type(a) not in (float, datetime) or repr(a) == repr(b)


def _force(kept: Any) -> Any:
    return kept.force() if type(kept) is Lazy else kept

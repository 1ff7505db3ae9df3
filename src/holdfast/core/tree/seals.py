"""Keeps sealed values sealed when what contains them is written back (0084).

A reader gets a sealed value open. So a container that was read, changed and written again has it in
clear, at the place where it is sealed. There the writer's value is compared with what was read: an
equal one stays the sealed one, none is a deletion, and any other is refused. To compare it here, on
the state that the write will follow, is right whoever sealed the value, and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from holdfast.core import codec
from holdfast.core.codec import Path
from holdfast.core.tree.frozen import (
    MISSING,
    Blobs,
    Lazy,
    List,
    Map,
    dump,
    enter,
    is_sealed,
    thaw,
)
from holdfast.core.tree.ops import (
    SETS,
    Op,
    apply_op,
    describe,
    has_seals,
    level_of,
    locate,
    may_cover_seals,
)
from holdfast.errors import UsageError

_ERASED_WORD = codec.encode_plain(str(codec.ERASED))


def keep_seals(root: Map, ops: Sequence[Op], blobs: Blobs | None) -> Sequence[Op]:
    """Returns ops that leave sealed values sealed; the very same ops if none stands there.

    Raises UsageError if a value that is not sealed would take the place of one that is.
    """
    if not may_cover_seals(root, ops):
        return ops
    kept_ops: list[Op] = []
    with codec.kept_open():
        for op in ops:
            kept_ops.append(_kept(root, op, blobs))
            root = apply_op(root, kept_ops[-1], None, blobs)
    return kept_ops


def _kept(root: Map, op: Op, blobs: Blobs | None) -> Op:
    """Returns one op with the seals of what it replaces."""
    old = locate(root, op.keys)
    if op.kind not in SETS or old is MISSING or not has_seals(old):
        return op
    reference = codec.parse_blob_ref(op.value)
    raw = bytes(op.value)
    if reference is not None and blobs is not None:
        raw = blobs(*reference)
    if op.kind == "merge":
        level = level_of(Op("merge", op.path, Raw(raw)), blobs)
        value = _with_seals(_forced(old), Map(level), op.keys, is_merge=True)
    else:
        value = _with_seals(old, enter(raw, None, blobs), op.keys)
    stored = bytes(dump(value))
    if stored == raw:
        return op
    if reference is not None:
        raise UsageError(
            f"{describe(op.keys)} was sealed for a subject while it was written", hint="try again"
        )
    return Op(op.kind, op.path, Raw(stored))


def _with_seals(old: Any, new: Any, path: Path, *, is_merge: bool = False) -> Any:
    """Returns a new kept value with the seals of the old one in their places."""
    if old is MISSING or not has_seals(old) or is_sealed(new):
        return new
    if is_sealed(old):
        if _is_same(old, new):
            return old
        raise UsageError(
            f"cannot set {describe(path)}: what is there is sealed for a subject, and this is not",
            hint="give it subject=…, or delete it first",
        )
    before, after = _forced(old), _forced(new)
    if type(before) is Map and type(after) is Map:
        entries: dict[str, Any] = {}
        for key, item in after._kept():
            entries[key] = _with_seals(before._peek(key), item, (*path, key))
        return Map(entries)
    if type(before) is List and type(after) is List:
        return _items_with_seals(before, after, path)
    return new


def _items_with_seals(old: List, new: List, path: Path) -> List:
    """Returns the items of a list with their seals, also where they have moved.

    An item that is equal to a sealed one is that one. Another value at the place of a sealed one
    that is gone was written over it, and is refused.
    """
    before = [item for chunk in old.vector().chunks() for item in chunk]
    after = [item for chunk in new.vector().chunks() for item in chunk]
    sealed = [item for item in before if has_seals(item)]
    found: dict[int, Any] = {}
    for index, item in enumerate(after):
        same = next((one for one in sealed if _is_same(one, item)), None)
        if same is not None:
            found[index] = same
    gone = [one for one in sealed if not any(one is kept for kept in found.values())]
    items: list[Any] = []
    for index, item in enumerate(after):
        was = before[index] if index < len(before) else MISSING
        is_over = index not in found and any(was is one for one in gone)
        place = (*path, index)
        items.append(_with_seals(was, item, place) if is_over else found.get(index, item))
    return List(List().vector().extend(items))


def _is_same(old: Any, new: Any) -> bool:
    """Returns whether a value is what a reader got of one with seals, or what stood for it."""
    raw = bytes(dump(new))
    if raw == bytes(dump(old)):
        return True
    if is_sealed(old) and raw == codec.CLOSED_TEXT:
        return True  # the text that stands for it in a file came back unchanged
    was = thaw(old)
    if was is codec.ERASED:
        return raw in (codec.ERASED_TEXT, _ERASED_WORD)
    return codec.encode_sorted(was) == codec.encode_sorted(thaw(new))


def _forced(kept: Any) -> Any:
    return kept.force() if type(kept) is Lazy else kept

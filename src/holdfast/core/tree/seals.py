"""Keeps sealed values sealed when what contains them is written back (0084).

A reader gets a sealed value open. So a container that was read, changed and written again has it in
clear, at the place where it is sealed. There the writer's value is compared with what was read: an
equal one stays the sealed one, none is a deletion, and any other is refused. To compare it here, on
the state that the write will follow, is right whoever sealed the value, and when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
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
    covers_seals,
    describe,
    has_seals,
    level_of,
    locate,
    may_cover_seals,
)
from holdfast.errors import UsageError

IS_LOOKING = ContextVar("holdfast_is_looking", default=False)
"""Whether a state is looked at for its seals, which nobody who counts reads means."""
_ERASED_WORD = codec.encode_plain(str(codec.ERASED))


def keep_seals(root: Map, ops: Sequence[Op], blobs: Blobs | None) -> Sequence[Op]:
    """Returns ops that leave sealed values sealed; the very same ops if none stands there.

    Raises UsageError if a value that is not sealed would take the place of one that is.
    """
    looking = IS_LOOKING.set(True)
    try:
        if not may_cover_seals(root, ops):
            return ops
        kept_ops: list[Op] = []
        with codec.kept_open():
            for op in ops:
                kept_ops.append(_kept(root, op, blobs))
                root = apply_op(root, kept_ops[-1], None, blobs)
        return kept_ops
    finally:
        IS_LOOKING.reset(looking)


def _kept(root: Map, op: Op, blobs: Blobs | None) -> Op:
    """Returns one op with the seals of what it replaces."""
    old = locate(root, op.keys)
    if op.kind not in SETS or old is MISSING or not covers_seals(old, op):
        return op
    reference = codec.parse_blob_ref(op.value)
    raw = bytes(op.value)
    if reference is not None and blobs is not None:
        raw = blobs(*reference)
    if op.kind == "merge":
        level = Map(level_of(Op("merge", op.path, Raw(raw)), blobs))
        before = _forced(old)
        value = _keys_with_seals(before, level, op.keys) if type(before) is Map else level
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


def _with_seals(old: Any, new: Any, path: Path) -> Any:
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
        return _keys_with_seals(before, after, path)
    if type(before) is List and type(after) is List:
        return _items_with_seals(before, after, path)
    return new


def _keys_with_seals(old: Map, new: Map, path: Path) -> Map:
    entries: dict[str, Any] = {}
    for key, item in new._kept():
        entries[key] = _with_seals(old._peek(key), item, (*path, key))
    return Map(entries)


def _items_with_seals(old: List, new: List, path: Path) -> List:
    """Returns the items of a list with their seals, also where they have moved.

    Another value at the place of a sealed one that is gone was written over it, and is refused.
    """
    before, after = _items(old), _items(new)
    found = _found_again(before, after)
    stay = set(found.values())
    items: list[Any] = []
    for index, item in enumerate(after):
        if index in found:
            items.append(before[found[index]])
        elif index < len(before) and index not in stay:
            items.append(_with_seals(before[index], item, (*path, index)))
        else:
            items.append(item)
    return List(List().vector().extend(items))


def _found_again(before: list[Any], after: list[Any]) -> dict[int, int]:
    """Returns the places where items of a list were before, by their places now.

    A sealed item is used once: an equal one of another subject is not it. One that came back as
    it is stored is known by its bytes. Only for the others are items opened, each of them once.
    """
    places: dict[bytes, list[int]] = {}
    for place, item in enumerate(before):
        if has_seals(item):
            places.setdefault(bytes(dump(item)), []).append(place)
    now: dict[bytes, list[int]] = {}
    for index, item in enumerate(after):
        if (raw := bytes(dump(item))) in places or raw == codec.CLOSED_TEXT:
            now.setdefault(raw, []).append(index)
    found: dict[int, int] = {}
    for raw in places.keys() & now.keys():
        found.update(_paired(places[raw], now[raw]))
    if closed := now.get(codec.CLOSED_TEXT):
        # The text that stands for a sealed value in a file came back unchanged.
        taken = set(found.values())
        leaves = [place for place, item in enumerate(before) if is_sealed(item)]
        found.update(_paired([place for place in leaves if place not in taken], closed))
    taken = set(found.values())
    left = [place for kept in places.values() for place in kept if place not in taken]
    others = [i for i, item in enumerate(after) if i not in found and not is_sealed(item)]
    if left and others:
        _find_opened(before, after, sorted(left), others, found)
    return found


def _find_opened(
    before: list[Any], after: list[Any], left: list[int], others: list[int], found: dict[int, int]
) -> None:
    """Adds the items that are equal to what a reader got of one with seals."""
    places: dict[bytes, list[int]] = {}
    for place in left:
        places.setdefault(_opened(before[place]), []).append(place)
    plain: dict[bytes, list[int]] = {}
    for index in others:
        if (kept := places.get(raw := _opened(after[index]))) is None:
            continue
        if not has_seals(after[index]):
            plain.setdefault(raw, []).append(index)
            continue
        # Opened only in part, as a copy of one level is: what is still sealed in it says which.
        mine = [place for place in kept if _agrees(before[place], after[index])]
        if mine:
            found[index] = index if index in mine else mine[0]
            kept.remove(found[index])
    for raw, indexes in plain.items():
        found.update(_paired(places[raw], indexes))


def _paired(places: list[int], indexes: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs the places of equal items now and before: index and place.

    If there are as many as before they are in the same order. Else those at the same place are the
    same, and the rest follow in order.
    """
    if len(places) != len(indexes):
        same = {*places} & {*indexes}
        yield from ((index, index) for index in same)
        places = [place for place in places if place not in same]
        indexes = [index for index in indexes if index not in same]
    yield from zip(indexes, places, strict=False)


def _agrees(old: Any, new: Any) -> bool:
    """Returns whether what is still sealed in a value that was opened in part is sealed there.

    Both are equal when they are opened.
    """
    if not has_seals(new):
        return True
    if is_sealed(new) or is_sealed(old):
        return bytes(dump(old)) == bytes(dump(new))
    before, after = _forced(old), _forced(new)
    if type(after) is Map:
        return all(_agrees(before._peek(key), item) for key, item in after._kept())
    return all(map(_agrees, _items(before), _items(after)))


def _is_same(old: Any, new: Any) -> bool:
    """Returns whether a value is what a reader got of a sealed one, or what stood for it."""
    # The text that stands for it in a file may come back unchanged.
    return bytes(dump(new)) == codec.CLOSED_TEXT or _opened(old) == _opened(new)


def _opened(kept: Any) -> bytes:
    """Returns what a value and one that a reader got of it have in common."""
    raw = codec.encode_sorted(thaw(kept))
    return codec.ERASED_TEXT if raw == _ERASED_WORD else raw


def _items(kept: List) -> list[Any]:
    return [item for chunk in kept.vector().chunks() for item in chunk]


def _forced(kept: Any) -> Any:
    return kept.force() if type(kept) is Lazy else kept

"""How ops change a state: `apply`, and `get`.

`apply` is all or nothing: it returns another state, or raises and nothing has happened. An op that
does not fit the state is a UsageError that names the place: appending to what is no list, a path
that leads through a scalar or past the end of a list, deleting what is not there, adding to what is
no number (a bool is none). Missing mappings on the way to a `set`, `append`, `increment` or `merge`
are made, as `mkdir -p` does; missing list items never are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, cast

from holdfast import codec
from holdfast.codec import DEPTH_MAX, Encoded, Path
from holdfast.errors import CorruptError, UsageError
from holdfast.tree.frozen import (
    EMPTY,
    Blobs,
    Lazy,
    List,
    Map,
    enter,
    enter_level,
)
from holdfast.tree.missing import MISSING
from holdfast.tree.ops import Op, describe

_INT_END = 10**4000


def get(root: Map, path: str | Path, default: Any = None) -> Any:
    """Returns the value at a path, or the default where there is none."""
    if isinstance(path, str):
        return root.get(path, default)
    kept = locate(root, path)
    return default if kept is MISSING else _force(kept)


def locate(root: Map, path: Path) -> Any:
    """Returns what is kept at a path, perhaps a Lazy, or MISSING."""
    kept: Any = root
    for step in path:
        node = _force(kept)
        if not isinstance(node, Map if type(step) is str else List):
            return MISSING
        kept = _peek(node, step)
    return kept


def put(root: Map, path: Path, kept: Any) -> Map:
    """Returns the state with a value that is in a tree already at a path that is there."""
    return _put(root, path, kept)


def _put(node: Any, path: Path, kept: Any) -> Any:
    if not path:
        return kept
    return _with(node, path[0], _put(_force(_peek(node, path[0])), path[1:], kept))


def apply(root: Map, ops: Iterable[Op], *, revision: int | None, blobs: Blobs | None = None) -> Map:
    """Returns the state after the ops of one event; values stay encoded until they are read.

    `revision` is that of the event. Values remember it and their op's index, so that a snapshot can
    name the event in place of the value; None is for changes that are not, or not yet, an event.
    `blobs` loads what the state keeps as a reference to a blob, when it is read.
    """
    for index, op in enumerate(ops):
        source = None if revision is None else (revision, index)
        root = apply_op(root, op, source, blobs)
    return root


def apply_op(root: Map, op: Op, source: tuple[int, int] | None, blobs: Blobs | None) -> Map:
    """Returns the state after one op, whose value is the whole of what `source` names."""
    key = op.path
    # Nearly every op is one of these two, on a key of the state itself.
    if type(key) is str:
        kind = op.kind
        if kind == "set":
            return root.with_key(key, enter(op.value, source, blobs))
        if kind == "append" and type(kept := root.peek(key)) is List:
            return root.with_key(key, kept.with_item(enter(op.value, source, blobs)))
    path = op.keys
    if not path:
        return _apply_to_root(root, op, blobs)
    if len(path) > DEPTH_MAX:
        raise UsageError(f"cannot {op.kind} {describe(path)}: at most {DEPTH_MAX} steps fit")
    return _descend(root, 0, path, op, source, blobs)


def _descend(
    node: Any, depth: int, path: Path, op: Op, source: tuple[int, int] | None, blobs: Blobs | None
) -> Any:
    """Returns the node with the op carried out below it."""
    key = path[depth]
    if not isinstance(node, Map if type(key) is str else List):
        found = f"{describe(path[:depth])} is {_name(node)}, which has no {key!r:.80}"
        _refuse(op, found, hint="name another path, or set the value above it as a whole")
    kept = _peek(node, key)
    kind = op.kind
    if kept is MISSING and (kind in _NEED_PLACE or type(node) is List):
        _refuse(op, f"{describe(path[: depth + 1])} is not there")
    if depth + 1 < len(path):
        child = EMPTY if kept is MISSING else _force(kept)
        changed = _descend(child, depth + 1, path, op, source, blobs)
    elif kind == "delete":
        return _without(node, key)
    else:
        changed = _COMPUTE[kind](op, kept, source, blobs)
    return _with(node, key, changed)


def _apply_to_root(root: Map, op: Op, blobs: Blobs | None) -> Map:
    if op.kind == "delete":
        return EMPTY
    if op.kind == "merge":
        return _merged(op, root, None, blobs)
    if op.kind == "set":
        return Map(_level(op, blobs))
    _refuse(op, f"the state is {_name(root)}")


def _set(op: Op, kept: Any, source: tuple[int, int] | None, blobs: Blobs | None) -> Any:
    return enter(op.value, source, blobs)


def _appended(op: Op, kept: Any, source: tuple[int, int] | None, blobs: Blobs | None) -> List:
    items = _NO_ITEMS if kept is MISSING else _force(kept)
    if type(items) is not List:
        _refuse(op, f"it is {_name(items)}, not a list")
    return items.with_item(enter(op.value, source, blobs))


def _incremented(op: Op, kept: Any, source: tuple[int, int] | None, blobs: Blobs | None) -> Any:
    old = 0 if kept is MISSING else _force(kept)
    by = codec.decode(op.value)
    if type(old) not in _NUMBERS or type(by) not in _NUMBERS:
        wrong = by if type(old) in _NUMBERS else old
        _refuse(op, f"{_name(wrong)} is not a number")
    try:
        new = old + by
    except OverflowError:
        _refuse(op, "the number is too large for a float")
    if type(new) is int and not -_INT_END < new < _INT_END:
        _refuse(op, "the number would have more than 4000 digits")
    return new


def _merged(op: Op, kept: Any, source: tuple[int, int] | None, blobs: Blobs | None) -> Map:
    target = EMPTY if kept is MISSING else _force(kept)
    if type(target) is not Map:
        _refuse(op, f"it is {_name(target)}, not a mapping")
    return target.with_keys(_level(op, blobs))


def _truncated(op: Op, kept: Any, source: tuple[int, int] | None, blobs: Blobs | None) -> List:
    items = _force(kept)
    count = codec.decode(op.value)
    if type(items) is not List:
        _refuse(op, f"it is {_name(items)}, not a list")
    if type(count) is not int or not 0 <= count <= len(items):
        _refuse(op, f"it has {len(items)} items, {count!r:.80} cannot be kept")
    return List(items.vector().truncate(count))


_COMPUTE: dict[str, Callable[[Op, Any, tuple[int, int] | None, Blobs | None], Any]] = {
    "set": _set,
    "append": _appended,
    "increment": _incremented,
    "merge": _merged,
    "truncate": _truncated,
}
_NEED_PLACE = frozenset({"delete", "truncate"})
_NUMBERS = (int, float)
_NO_ITEMS = List()


def _level(op: Op, blobs: Blobs | None) -> dict[str, Any]:
    raw: Encoded = op.value
    reference = codec.parse_blob_ref(raw)
    if reference is not None and blobs is not None:
        raw = blobs(*reference)
    try:
        return enter_level(raw, blobs)
    except CorruptError as error:
        raise UsageError(f"cannot {op.kind} {describe(op.keys)}: {error.message}") from error


def _force(kept: Any) -> Any:
    return kept.force() if type(kept) is Lazy else kept


def _peek(node: Any, step: Any) -> Any:
    if type(node) is Map:
        return node.peek(step)
    items = node.vector()
    return items.get(step) if 0 <= step < items.count else MISSING


def _with(node: Any, step: Any, value: Any) -> Any:
    if type(node) is Map:
        return node.with_key(step, value)
    return List(node.vector().set(step, value))


def _without(node: Any, step: Any) -> Any:
    if type(node) is Map:
        return node.without_key(step)
    items = node.vector()
    kept = items.truncate(step)
    for item in items.slice(step + 1, items.count):
        kept = kept.append(item)
    return List(kept)


def _name(value: Any) -> str:
    names = {Map: "a mapping", List: "a list", type(None): "None"}
    kind = cast("type[Any]", type(value))
    return names.get(kind, f"of type {kind.__name__}")


def _refuse(op: Op, problem: str, hint: str | None = None) -> NoReturn:
    raise UsageError(f"cannot {op.kind} {describe(op.keys)}: {problem}", hint=hint)

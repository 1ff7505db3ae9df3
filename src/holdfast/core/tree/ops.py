"""Ops: the steps that a `changed` event records, and their form in its payload.

A payload is an array of ops, `[[kind,path,value],…]`:

    ["set","stage","triage"]              the key or index gets this value; missing maps are made
    ["set",["customer","name"],"Ada"]
    ["delete","stage"]                    it must be there; list items after it move down by one
    ["append","messages",{…}]             one more item; a missing list is made
    ["increment","budget",-10]            a missing number counts as 0
    ["merge","customer",{"name":"Ada"}]   each key is set, the others stay; a missing map is made
    ["truncate","messages",3]             the first three items stay
    ["until","token",1893456000000000]    the value ends then (microseconds); 0: it lasts

A path of one key is that string; any other path is an array of keys and list indexes. A key with
lone surrogates is an object `{"$text":…}` in such an array. `[]` is the whole state. Values have
the encoding of `codec` and are never decoded on the way: an op carries the bytes that it came with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from holdfast.core import codec
from holdfast.core.codec import DEPTH_MAX, Encoded, Path, show_path
from holdfast.core.tree.frozen import (
    EMPTY,
    MALFORMED,
    MISSING,
    Blobs,
    Lazy,
    List,
    Map,
    dump,
    enter,
    enter_level,
    is_sealed,
)
from holdfast.errors import CorruptError, UsageError, ValueDomainError, show_value

Kind = Literal["set", "delete", "append", "increment", "merge", "truncate", "until"]

UNTIL: Final = "until"
"""The kind of op that gives a value an end. It changes no value (`ends.py`)."""

NO_VALUE = Raw(b"")
"""The value of a delete."""

# With several ops in a payload, each value gets its own bytes: one small value must not keep a
# large neighbour in memory after that was overwritten.
_SHARED_BYTES_MAX = 1024


class Op(Struct, array_like=True, frozen=True):
    """One step of a change. `path` is a key, or a tuple of keys and indexes."""

    kind: Kind
    path: str | tuple[str | int, ...]
    value: Raw = NO_VALUE

    @property
    def keys(self) -> Path:
        """The path, always as a tuple."""
        path = self.path
        return (path,) if isinstance(path, str) else path


_TaggedStep = str | int | dict[str, str | list[str]]


class _TaggedOp(Struct, array_like=True):
    """An op whose path may have a key that JSON text cannot hold, as a tag."""

    kind: Kind
    path: str | list[_TaggedStep]
    value: Raw = NO_VALUE


class _PlainOp(Struct, array_like=True, gc=False):
    """An op whose value is decoded with it."""

    kind: Kind
    path: str | tuple[str | int, ...]
    value: Any = None


_decoder = msgspec.json.Decoder(tuple[Op, ...])
_plain_decoder = msgspec.json.Decoder(list[_PlainOp])
_tagged_decoder = msgspec.json.Decoder(list[_TaggedOp])

UserPath = str | tuple[str | int, ...]


_PLAIN = frozenset({bool, type(None)})
_SHORT_TEXT = 1 << 20
_SMALL_INT = 1 << 62


def set_op(path: UserPath, value: Any) -> Op:
    """Returns the op that puts a value at a path; at `()` it must be a mapping."""
    if type(path) is str:
        # Nearly every write sets a key at the top of the state. A short scalar needs no checks.
        kind = cast("type[Any]", type(value))
        if (
            kind in _PLAIN
            or (kind is str and len(value) < _SHORT_TEXT)
            or (kind is int and -_SMALL_INT < value < _SMALL_INT)
        ):
            try:
                return Op("set", path, Raw(codec.encode_plain(value)))
            except UnicodeEncodeError:
                pass  # a lone surrogate: `encode` knows how to keep it
        return Op("set", path, Raw(codec.encode(value, path=(path,))))
    place = _check_path(path)
    if not place:
        value = _check_mapping(value, "the whole state")
    return _op("set", place, codec.encode(value, path=place))


def delete_op(path: UserPath) -> Op:
    """Returns the op that deletes a key or list item; at `()` it empties the state."""
    return _op("delete", _check_path(path), b"")


def append_op(path: UserPath, item: Any) -> Op:
    """Returns the op that appends one item to the list at a path."""
    place = _check_path(path)
    return _op("append", place, codec.encode(item, path=(*place, 0)))


def increment_op(path: UserPath, by: float) -> Op:
    """Returns the op that adds a number to the number at a path."""
    place = _check_path(path)
    if isinstance(by, bool) or not isinstance(by, int | float):  # pyright: ignore
        raise UsageError(
            f"increment of {describe(place)} takes a number, found {type(by).__name__}"
        )
    return _op("increment", place, codec.encode(by, path=place))


def merge_op(path: UserPath, values: Mapping[str, Any]) -> Op:
    """Returns the op that sets each key of a mapping in the mapping at a path."""
    place = _check_path(path)
    return _op("merge", place, codec.encode(_check_mapping(values, "merge"), path=place))


def truncate_op(path: UserPath, count: int) -> Op:
    """Returns the op that keeps the first `count` items of the list at a path."""
    place = _check_path(path)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:  # pyright: ignore
        raise UsageError(f"truncate of {describe(place)} takes a length, found {count!r}")
    return _op("truncate", place, b"%d" % count)


def until_op(path: Path, end_us: int) -> Op:
    """Returns the op that gives the value at a path an end; 0: it lasts."""
    return _op(UNTIL, path, b"%d" % end_us)


def raw_op(kind: Kind, path: Path, kept: Any) -> Op:
    """Returns an op with the encoded form of a value that is in a tree already."""
    return _op(kind, path, dump(kept))


def describe(path: Path) -> str:
    """Returns a path as messages show it."""
    return f"state{show_path(path)}" if path else "the state"


def _op(kind: Kind, path: Path, raw: Encoded) -> Op:
    value = raw if type(raw) is Raw else Raw(raw)
    if len(path) == 1 and type(path[0]) is str:
        return Op(kind, path[0], value)
    return Op(kind, path, value)


def _check_mapping(value: Any, what: str) -> Any:
    if not isinstance(value, Mapping):
        raise UsageError(f"{what} takes a mapping, found {type(value).__name__}")
    mapping = cast("Mapping[str, Any]", value)
    return mapping if isinstance(mapping, dict | codec.Thawable) else dict(mapping)


def _check_path(path: UserPath) -> Path:
    if isinstance(path, str):
        return (path if type(path) is str else str.__str__(path),)
    if not isinstance(path, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a path is text (one key) or a tuple, found {type(path).__name__}")
    if len(path) > codec.DEPTH_MAX:
        raise ValueDomainError(
            f"path {show_path(path)} has {len(path)} steps: at most {codec.DEPTH_MAX} fit",
            path=path,
        )
    return tuple(map(_check_step, path))


def _check_step(step: str | int) -> str | int:
    if isinstance(step, str):
        return str.__str__(step)
    if isinstance(step, bool) or not isinstance(step, int):  # pyright: ignore
        raise UsageError(
            f"a path holds keys (text) and list indexes (int), found {show_value(step)}"
        )
    if not 0 <= step < 1 << 63:
        raise UsageError(
            f"list index {show_value(step)} in a path counts from the start: expected 0 or more",
            hint="a draft takes negative indexes: with scope.edit() as draft: …",
        )
    return int(step)


def encode_ops(ops: Sequence[Op]) -> bytes:
    """Returns the payload of the ops, with the bytes of their values unchanged."""
    if len(ops) == 1 and (op := ops[0]).kind == "set" and type(op.path) is str:
        try:
            return b'[["set",%s,%s]]' % (codec.encode_plain(op.path), bytes(op.value))
        except UnicodeEncodeError:
            pass  # a key with a lone surrogate: `_encode_op` knows how to keep it
    return b"[" + b",".join(map(_encode_op, ops)) + b"]"


def _encode_op(op: Op) -> bytes:
    try:
        path = codec.encode_plain(op.path)
    except UnicodeEncodeError:
        path = codec.encode(list(op.keys))
    if op.kind == "delete":
        return b'["delete",%s]' % path
    return b'["%s",%s,%s]' % (op.kind.encode(), path, bytes(op.value))


def decode_ops(payload: Encoded) -> tuple[Op, ...]:
    """Returns the ops of a payload, their values still encoded, or raises CorruptError."""
    return checked_ops(unchecked_ops(payload), payload)


def unchecked_ops(payload: Encoded) -> tuple[Op, ...]:
    """Returns the ops of a payload; the caller must pass them to `checked_ops`."""
    try:
        return _decoder.decode(payload)
    except MALFORMED as error:
        return _decode_tagged(payload, error)


def checked_ops(ops: tuple[Op, ...], payload: Encoded) -> tuple[Op, ...]:
    """Returns the ops of a payload, or raises CorruptError if one is malformed."""
    if len(ops) == 1:
        op = ops[0]
        if type(op.path) is not str or not op.value or op.kind == "delete":
            _check_op(op)
        return ops
    is_shared = len(payload) > _SHARED_BYTES_MAX
    for op in ops:
        _check_op(op)
    return tuple(Op(op.kind, op.path, op.value.copy()) for op in ops) if is_shared else ops


def decode_values(payload: bytes) -> list[Any] | None:
    """Returns the plain values of a payload's ops; None if JSON alone cannot decode them.

    That is so if the bytes have tags, or are not what `encode_ops` writes: then use `decode_ops`.
    """
    if codec.may_have_tags(payload):
        return None
    try:
        return [op.value for op in _plain_decoder.decode(payload)]
    except MALFORMED:
        return None


def _check_op(op: Op) -> None:
    if (op.kind == "delete") == bool(len(op.value)):
        raise CorruptError(f"stored change has a {op.kind!r} with a wrong number of fields")
    if type(op.path) is tuple and any(type(step) is int and step < 0 for step in op.path):
        raise CorruptError(f"stored change has a path with a negative index: {op.path!r:.80}")


def _decode_tagged(payload: Encoded, cause: BaseException) -> tuple[Op, ...]:
    try:
        tagged = _tagged_decoder.decode(payload)
        return tuple(Op(op.kind, _revive_path(op.path), op.value) for op in tagged)
    except MALFORMED:
        raise CorruptError(f"stored change is not a list of ops: {cause}") from cause


def _revive_path(path: str | list[_TaggedStep]) -> str | Path:
    if isinstance(path, str):
        return path
    steps = codec.decode(codec.encode_plain(path))
    if not all(type(step) in (str, int) for step in steps):
        raise CorruptError(f"stored change has a malformed path: {path!r:.80}")
    return steps[0] if len(steps) == 1 and type(steps[0]) is str else tuple(steps)


# --- change ---------------------------------------------------------------------------------------
#
# How ops change a state: `apply`, and `get`.
#
# `apply` is all or nothing: it returns another state, or raises and has changed nothing. An op
# that does not fit the state raises a UsageError that names the place: appending to something that
# is not a list, a path that leads through a scalar or past the end of a list, deleting something
# absent, incrementing something that is not a number (a bool is not one). Missing mappings on the
# way to a `set`, `append`, `increment` or `merge` are made, as `mkdir -p` does; missing list items
# never are.


_INT_END = 10**4000


def get(root: Map, path: str | Path, default: Any = None) -> Any:
    """Returns the value at a path, or the default if there is none."""
    if isinstance(path, str):
        return root.get(path, default)
    kept = locate(root, path)
    return default if kept is MISSING else _force(kept)


def locate(root: Map, path: Path) -> Any:
    """Returns what is kept at a path, perhaps a Lazy, or MISSING."""
    kept: Any = root
    for step in path:
        if type(kept) is Lazy and kept.is_sealed:
            return MISSING
        node = _force(kept)
        if not isinstance(node, Map if type(step) is str else List):
            return MISSING
        kept = _peek(node, step)
    return kept


def reach(root: Map, path: Path) -> Path:
    """Returns the longest beginning of a path that leads to a value."""
    for length in range(len(path), 0, -1):
        if locate(root, path[:length]) is not MISSING:
            return path[:length]
    return ()


def may_cover_seals(root: Map, ops: Sequence[Op]) -> bool:
    """Returns whether ops may put something in the place of a sealed value (`seals.py`).

    Every write asks. Nearly each is to a place with a scalar, or with nothing.
    """
    for op in ops:
        path = op.path
        kept = root._entries.get(path, MISSING) if type(path) is str else locate(root, op.keys)
        if type(kept) in _WITH_PARTS and op.kind in SETS and covers_seals(kept, op):
            return True
        if len(ops) > 1 and codec.SEALED_VALUE in bytes(op.value):
            return True  # a later op of the same write may replace it
    return False


SETS = frozenset(("set", "merge"))
"""Kinds that replace what is there."""
_WITH_PARTS = frozenset((Lazy, Map, List))


def covers_seals(kept: Any, op: Op) -> bool:
    """Returns whether an op of SETS reaches a sealed value in what is kept at its path.

    A merge reaches only the keys that it names: the others may be many.
    """
    if op.kind == "merge" and not is_sealed(kept) and codec.parse_blob_ref(op.value) is None:
        node = _force(kept)
        if type(node) is Map:
            return any(has_seals(node._peek(key)) for key in level_of(op, None))
    return has_seals(kept)


def has_seals(kept: Any) -> bool:
    """Returns whether a kept value is a sealed one, or contains one."""
    if type(kept) is Lazy:
        if kept.value is UNSET or kept.raw is not None:
            return codec.SEALED_VALUE in bytes(kept.stored())
        kept = kept.value
    if type(kept) is Map:
        return any(has_seals(item) for _, item in kept._kept())
    if type(kept) is List:
        return any(has_seals(item) for chunk in kept.vector().chunks() for item in chunk)
    return False


def missing_ops(root: Map, ops: Iterable[Op], blobs: Blobs | None = None) -> tuple[Op, ...]:
    """Returns the `set` ops that find nothing at their path; each is applied before the next."""
    kept: list[Op] = []
    for op in ops:
        if locate(root, op.keys) is MISSING:
            root = apply_op(root, op, None, blobs)
            kept.append(op)
    return tuple(kept)


def put(root: Map, path: Path, kept: Any) -> Map:
    """Returns the state with a kept value, perhaps a Lazy, put at an existing path."""
    return _put(root, path, kept)


def _put(node: Any, path: Path, kept: Any) -> Any:
    if not path:
        return kept
    return _with(node, path[0], _put(_force(_peek(node, path[0])), path[1:], kept))


def apply(root: Map, ops: Iterable[Op], *, revision: int | None, blobs: Blobs | None = None) -> Map:
    """Returns the state after the ops of one event; values stay encoded until they are read.

    `revision` is that of the event; None is for changes that are not an event, or not yet. Values
    remember the revision and the index of their op, so that a snapshot can name the event instead
    of holding the value. `blobs` reads the values that are stored as blobs, on access.
    """
    for index, op in enumerate(ops):
        source = None if revision is None else (revision, index)
        root = apply_op(root, op, source, blobs)
    return root


def apply_op(root: Map, op: Op, source: tuple[int, int] | None, blobs: Blobs | None) -> Map:
    """Returns the state after one op; `source` is its revision and index, where it has them."""
    key = op.path
    # Nearly every op is one of these two, on a key at the top of the state.
    if type(key) is str:
        kind = op.kind
        if kind == "set":
            return root._with_key(key, enter(op.value, source, blobs))
        if kind == "append" and type(kept := root._peek(key)) is List:
            return root._with_key(key, kept._with_item(enter(op.value, source, blobs)))
    path = op.keys
    if op.kind == UNTIL:
        if locate(root, path) is MISSING:
            _refuse(op, "it is not there")
        return root
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
    if is_sealed(kept) and (kind not in ("set", "delete") or depth + 1 < len(path)):
        found = f"{describe(path[: depth + 1])} is a subject's: it is sealed as a whole"
        _refuse(op, found, hint="set it as a whole, with subject=…")
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
        return Map(level_of(op, blobs))
    _refuse(op, f"the state is {_name(root)}")


def _set(op: Op, kept: Any, source: tuple[int, int] | None, blobs: Blobs | None) -> Any:
    return enter(op.value, source, blobs)


def _appended(op: Op, kept: Any, source: tuple[int, int] | None, blobs: Blobs | None) -> List:
    items = _NO_ITEMS if kept is MISSING else _force(kept)
    if type(items) is not List:
        _refuse(op, f"it is {_name(items)}, not a list")
    return items._with_item(enter(op.value, source, blobs))


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
    return target._with_keys(level_of(op, blobs))


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


def level_of(op: Op, blobs: Blobs | None) -> dict[str, Any]:
    """Returns the keys and values of an op whose value is a mapping, or raises UsageError."""
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
        return node._peek(step)
    items = node.vector()
    return items.get(step) if 0 <= step < items.count else MISSING


def _with(node: Any, step: Any, value: Any) -> Any:
    if type(node) is Map:
        return node._with_key(step, value)
    return List(node.vector().set(step, value))


def _without(node: Any, step: Any) -> Any:
    if type(node) is Map:
        return node._without_key(step)
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

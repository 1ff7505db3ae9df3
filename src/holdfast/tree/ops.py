"""Ops: the steps that a `changed` event records, and their form in its payload.

A payload is an array of ops, `[[kind,path,value],…]`:

    ["set","stage","triage"]              the key or index is this value; missing maps are made
    ["set",["customer","name"],"Ada"]
    ["delete","stage"]                    it must be there; list items behind it move up
    ["append","messages",{…}]             one more item; a missing list is made
    ["increment","budget",-10]            a missing number counts as 0
    ["merge","customer",{"name":"Ada"}]   each key is set, the others stay; a missing map is made
    ["truncate","messages",3]             the first three items stay

A path of one key is that string, any other an array of keys and list indexes; a key with lone
surrogates is an object `{"$text":…}` in such an array. `[]` is the whole state. Values are encoded
as `codec` has it and are never decoded on the way: an op carries the bytes that it came with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec import Raw, Struct

from holdfast import codec
from holdfast.codec import Encoded, Path, show_path
from holdfast.errors import CorruptError, UsageError, ValueDomainError, show_value
from holdfast.tree.frozen import MALFORMED, dump

Kind = Literal["set", "delete", "append", "increment", "merge", "truncate"]

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
        """The path as a tuple, always."""
        path = self.path
        return (path,) if isinstance(path, str) else path


_TaggedStep = str | int | dict[str, str | list[str]]


class _TaggedOp(Struct, array_like=True):
    """An op whose path has a key that JSON text cannot hold as it is."""

    kind: Kind
    path: str | list[_TaggedStep]
    value: Raw = NO_VALUE


_decoder = msgspec.json.Decoder(tuple[Op, ...])
_tagged_decoder = msgspec.json.Decoder(list[_TaggedOp])

UserPath = str | tuple[str | int, ...]


def set_op(path: UserPath, value: Any) -> Op:
    """Returns the op that puts a value at a path; at `()` it must be a mapping."""
    place = _check_path(path)
    if not place:
        value = _check_mapping(value, "the whole state")
    return _op("set", place, codec.encode(value, path=place))


def delete_op(path: UserPath) -> Op:
    """Returns the op that takes a key or list item away; at `()` it empties the state."""
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


def raw_op(kind: Kind, path: Path, kept: Any) -> Op:
    """Returns an op for a value that is in a tree already, copying its bytes."""
    return _op(kind, path, dump(kept))


def describe(path: Path) -> str:
    """Returns a path for a message."""
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


def encode_ops(ops: Iterable[Op]) -> bytes:
    """Returns the payload of the ops; their values stand in it verbatim."""
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
    try:
        ops = _decoder.decode(payload)
    except MALFORMED as error:
        ops = _decode_tagged(payload, error)
    if len(ops) == 1:
        op = ops[0]
        if type(op.path) is not str or not op.value or op.kind == "delete":
            _check_op(op)
        return ops
    is_shared = len(payload) > _SHARED_BYTES_MAX
    for op in ops:
        _check_op(op)
    return tuple(Op(op.kind, op.path, op.value.copy()) for op in ops) if is_shared else ops


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

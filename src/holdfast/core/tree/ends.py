"""When values of a state end: folded with the ops, whatever the time is.

An `until` op gives the value at a path an end, in microseconds since 1970; 0 takes it away. A value
that is set anew, deleted, or goes with what holds it, loses its end. What is changed below it, or
appended to it, keeps it. Whoever shows a state leaves out what has ended (`core/key_ends.py`): the
fold itself never asks for the time.

The empty path stands for values that are in the state no more: it has the earliest of their ends.
Their bytes may still be in older events, and `retain` looks for them from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Raw

from holdfast.core import codec
from holdfast.core.codec import Path
from holdfast.core.tree.frozen import Blobs, Map
from holdfast.core.tree.ops import (
    UNTIL,
    Op,
    apply,
    delete_op,
    get,
    level_of,
    locate,
    put,
    until_op,
)
from holdfast.errors import CorruptError

Ends = Mapping[Path, int]
"""By path, when the value there ends; by the empty path, when what was superseded does."""

_end_of = msgspec.json.Decoder(int)


def fold_ends(ends: Ends | None, ops: Iterable[Op], blobs: Blobs | None) -> Ends | None:
    """Returns the ends after the ops of one event; None if there is none."""
    found = dict(ends or {})
    for op in ops:
        path, kind = op.keys, op.kind
        if kind == UNTIL:
            end_us = decoded_end(op)
            if not path:
                found.pop((), None)
            else:
                _supersede(found, [path] if path in found else [])
            if end_us:
                found[path] = end_us
        elif not found:
            continue
        elif kind in ("set", "delete"):
            _supersede(found, [one for one in found if one and one[: len(path)] == path])
        elif kind == "merge":
            for key in level_of(op, blobs):
                place = (*path, key)
                _supersede(found, [one for one in found if one and one[: len(place)] == place])
    return found or None


def _supersede(found: dict[Path, int], paths: Sequence[Path]) -> None:
    """Notes that the values at some paths are there no more, or have another end."""
    for path in paths:
        end_us = found.pop(path)
        found[()] = min(end_us, found.get((), end_us))


def decoded_end(op: Op) -> int:
    """Returns the end that an `until` op gives, or raises CorruptError."""
    try:
        end_us = _end_of.decode(op.value)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"stored change has a malformed end: {error}") from error
    if not 0 <= end_us < 1 << 63:
        raise CorruptError(f"stored change has an end that is no time: {end_us}")
    return end_us


def ended(ends: Ends, now_us: int) -> list[Path]:
    """Returns the paths whose values have ended, without those below another of them."""
    found = [path for path, end_us in ends.items() if path and end_us <= now_us]
    found.sort(key=len)
    return outermost(found)


def outermost(paths: Iterable[Path]) -> list[Path]:
    """Returns the paths, shorter ones first, without those that lie below another of them."""
    kept: list[Path] = []
    for path in paths:
        if not any(one == path[: len(one)] for one in kept):
            kept.append(path)
    return kept


def without(root: Map, paths: Sequence[Path]) -> Map:
    """Returns a state without the values at some paths, none of which lies below another."""
    return apply(root, [delete_op(path) for path in paths], revision=None)


def lasting(root: Map, ends: Ends | None) -> Map:
    """Returns a state without every value that has an end."""
    return without(root, outermost(sorted(filter(None, ends), key=len))) if ends else root


def held_over(target: Map, ends: Ends | None, root: Map, now: Ends | None) -> Map:
    """Returns an old state as a restore brings it back: what has an end there is not brought back.

    Its end is about its bytes, and these would be written once more. What has an end at the same
    path now stays as it is.
    """
    target = lasting(target, ends)
    for path in outermost(sorted(filter(None, ends or ()), key=len)):
        if path in (now or ()) and isinstance(get(target, path[:-1]), Map):
            target = apply(target, [Op("set", path, Raw(b"null"))], revision=None)
            target = put(target, path, locate(root, path))
    return target


def ends_ops(ops: Sequence[Op], have: Ends | None, want: Ends | None) -> list[Op]:
    """Returns `until` ops by which the ends after some ops are the wanted ones.

    Only those of values: what was superseded stays noted.
    """
    after = fold_ends(have, ops, None) or {}
    found: list[Op] = []
    for path in {**after, **(want or {})}:
        end_us = (want or {}).get(path, 0)
        if path and after.get(path, 0) != end_us:
            found.append(until_op(path, end_us))
    return found


def encode_ends(ends: Ends) -> bytes:
    """Returns ends as a snapshot has them."""
    return codec.encode([[list(path), end_us] for path, end_us in ends.items()])


def decode_ends(text: bytes) -> Ends:
    """Returns the ends that a snapshot has."""
    return {tuple(path): end_us for path, end_us in codec.decode(text)}

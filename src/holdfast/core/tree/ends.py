"""When values of a state end: folded with the ops, independent of the time.

An `until` op gives the value at a path an end, in microseconds since 1970; 0 takes the end away. A
value loses its end when it is set anew or deleted, alone or with its container. It keeps its end
when something below it is changed or appended. The fold never asks for the time: values that have
ended are left out when a state is shown (`core/key_ends.py`).

The empty path stands for values that are no longer in the state; it has the earliest of their ends.
Their bytes may still be in older events, and from that time on `retain` looks for them.
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
"""Maps a path to the end of the value there; the empty path to that of superseded values."""

_end_of = msgspec.json.Decoder(int)


def fold_ends(ends: Ends | None, ops: Iterable[Op], blobs: Blobs | None) -> Ends | None:
    """Returns the ends after the ops of one event; None if there are none."""
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
    """Notes that the values at some paths are gone or have another end now."""
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
    """Returns an old state in the form in which a restore brings it back.

    `ends` belong to the old state, `root` and `now` are the present state and its ends. A value
    with an end is not brought back: the end limits how long its bytes stay in the store, and a
    restore would write them once more. If the present state has a value with an end at the same
    path, that value stays.
    """
    target = lasting(target, ends)
    for path in outermost(sorted(filter(None, ends or ()), key=len)):
        if path in (now or ()) and isinstance(get(target, path[:-1]), Map):
            target = apply(target, [Op("set", path, Raw(b"null"))], revision=None)
            target = put(target, path, locate(root, path))
    return target


def ends_ops(ops: Sequence[Op], have: Ends | None, want: Ends | None) -> list[Op]:
    """Returns the `until` ops that are needed after some ops to get the wanted ends.

    The note of superseded values, at the empty path, is not changed.
    """
    after = fold_ends(have, ops, None) or {}
    found: list[Op] = []
    for path in {**after, **(want or {})}:
        end_us = (want or {}).get(path, 0)
        if path and after.get(path, 0) != end_us:
            found.append(until_op(path, end_us))
    return found


def encode_ends(ends: Ends) -> bytes:
    """Returns the form that ends have in a snapshot."""
    return codec.encode([[list(path), end_us] for path, end_us in ends.items()])


def decode_ends(text: bytes) -> Ends:
    """Returns the ends from their form in a snapshot."""
    return {tuple(path): end_us for path, end_us in codec.decode(text)}

"""Causes: how one result says why it was computed, and the tree that `why` makes of that.

The cause of a dependency names the other node's result by its revision in the same stream, and
holds nothing of what that result says itself. So a stored result is as long as the node has edges,
however much is before it. Results that were stored before hold the causes of their inputs, and
theirs, within their own: `unnested` reads those that are nested deeper than Python decodes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

CauseKind = Literal["code", "input", "dependency", "time", "missing", "forced", "accepted"]

SHOWN = 100
"""How many causes `why` returns if nothing else is said, those that are nearest first."""
DEEP = 48
"""How many causes a tree has below each other: as JSON it is nested less than 100 deep, as any
value is that a store holds."""
LOOKED_AT = 100_000
"""How many results are looked at to count what is not shown, and to find what changed first."""
ROOTS = 10
NESTED_MAX = 2 * DEEP + 2
"""How deep the brackets of old nested causes are read; Python's limit is about 1,000."""
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}:]')


class Cause(Struct, frozen=True, omit_defaults=True, gc=False):
    """Why a node was computed.

    A dependency that was computed again since has the revision of its result in `result`; that
    says why. `why` puts what it says into `causes`. `more` counts the causes below this one that
    are not shown.
    """

    kind: CauseKind
    name: str = ""
    old: str = ""
    new: str = ""
    text: str = ""
    causes: tuple[Cause, ...] = ()
    result: int = 0
    more: int = 0


def shallow(cause: Cause) -> Cause:
    """Returns a cause with those directly below it, without what an old result nests in them."""
    if not any(one.causes for one in cause.causes):
        return cause
    return replace(cause, causes=tuple([replace(one, causes=()) for one in cause.causes]))


class Told(Struct, frozen=True):
    """A tree of causes: what is left out of it, and what the causes began with."""

    cause: Cause
    more: int
    is_counted: bool
    roots: tuple[Cause, ...]


Saying = Callable[[Cause], "tuple[Cause | None, str]"]
"""Returns the cause that a cause's `result` says, or None, and a remark on that result."""


class _Place:
    """A cause on its way into a tree."""

    __slots__ = ("below", "cause", "depth")

    def __init__(self, cause: Cause, depth: int) -> None:
        self.cause = cause
        self.depth = depth
        self.below: list[_Place] = []


def told(first: Cause, say: Saying, most: int) -> Told:
    """Returns the causes below a cause as a tree of at most `most`, the nearest first.

    Each result is told once: in a graph of diamonds the ways to one result are as many as you like.
    What is beyond `most` is only counted, and that too has a bound.
    """
    top = _Place(first, 0)
    places, waiting = [top], deque([top])
    seen: set[int] = set()
    roots: dict[Cause, None] = {}
    more, is_counted = 0, True
    while waiting:
        place = waiting.popleft()
        cause = place.cause
        below = cause.causes
        if cause.result in seen:
            place.cause = replace(cause, text=_joined(cause.text, "as said already"))
        elif cause.result and len(seen) >= LOOKED_AT:
            is_counted = False
        elif cause.result:
            seen.add(cause.result)
            said, remark = say(cause)
            below = (said,) if said is not None else ()
            place.cause = replace(cause, text=_joined(cause.text, remark))
        elif not below and place is not top and len(roots) < ROOTS and not cause.more:
            roots[cause] = None
        more += cause.more
        for one in below:
            under = _Place(one, place.depth + 1)
            if len(places) <= most and under.depth <= DEEP:
                places.append(under)
                place.below.append(under)
            else:
                more += 1
                under.depth = DEEP  # nothing below it is shown
            waiting.append(under)
    return Told(_built(places), more, is_counted, tuple(roots))


def _joined(text: str, remark: str) -> str:
    return f"{text}; {remark}" if text and remark else text or remark


def _built(places: list[_Place]) -> Cause:
    """Returns the tree of places, of which each stands before those below it."""
    made: dict[int, Cause] = {}
    for place in reversed(places):
        below = tuple([made.pop(id(one)) for one in place.below])
        made[id(place)] = replace(place.cause, causes=below)
    return made[id(places[0])]


def unnested(payload: bytes) -> bytes:
    """Returns the payload of an old result with its deepest causes cut off, and counted.

    It looks at brackets only, without recursion: what Python decodes by recursion may be nested as
    deep as a chain of nodes was long.
    """
    kept: list[bytes] = []
    depth = cut_at = objects = 0
    begin = inside = 0
    key = last = b""
    for token in _TOKENS.finditer(payload):
        word = token.group()
        if word == b":":
            key = last if depth == 1 else key
        elif word in (b"{", b"["):
            depth += 1
            inside = inside or (depth if depth == 2 and key == b'"cause"' else 0)
            if cut_at:
                objects += word == b"{"
            elif inside and depth > NESTED_MAX and word == b"[":
                kept.append(payload[begin : token.end()])
                cut_at, objects = depth, 0
        elif word in (b"}", b"]"):
            if cut_at == depth:
                kept.append(b'],"more":%d' % objects)
                begin, cut_at = token.end(), 0
            depth -= 1
            inside = inside if depth >= inside else 0
        else:
            last = word
    return b"".join([*kept, payload[begin:]])

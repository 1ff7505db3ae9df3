"""Functions of many kinds of syntax, whose thumbprints must be equal on every Python."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass

LIMIT = 3
NAMES = ["a", "b"]
WORD = re.compile(r"\w+", re.ASCII)


def helper(x, *, scale=2):
    """Doubles."""
    return x * scale + LIMIT


@functools.cache
def cached(x):
    return helper(x)


@dataclass(frozen=True)
class Point:
    x: int
    y: int = LIMIT

    def size(self) -> int:
        return abs(self.x) + helper(self.y)

    @staticmethod
    def origin() -> Point:
        return Point(0, 0)


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def texts(x, y=1.5, z="ü\ud800", b=b"\x00"):
    return f"ab{x!r:>{y}}{x=}c" + json.dumps([z, None, True, ..., 1j, b.hex()])


def flow(items, **rest):
    found = {key: value for key, value in rest.items() if value is not None}
    try:
        with open("x") as one, open("y") as two:
            found |= {"n": one.read() + two.read()}
    except* ValueError as group:
        raise group from None
    match items:
        case [first, *_] if first:
            return first
        case {"k": 1, **others}:
            return others
        case Point(x=0) | None:
            return NAMES[1:LIMIT]
    return [*items, lambda a, /, b=2, *c, d: (a, b, c, d), (yielded := found), yielded]


async def waits(source):
    async for item in source:
        await item
    return [x async for x in source if WORD.match(x)]


def closes(n):
    inner = [n]

    def add(x):
        return x + inner[0] + helper(x)

    return add


def uses_all(x):
    return cached(x), Point.origin().size(), even(x), texts(x), flow, waits


CORPUS = {
    "helper": helper,
    "cached": cached,
    "Point.size": Point.size,
    "even": even,
    "texts": texts,
    "flow": flow,
    "waits": waits,
    "closes": closes,
    "closure": closes(5),
    "lambda": lambda x: x + LIMIT,
    "uses_all": uses_all,
}

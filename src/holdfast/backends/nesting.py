"""JSON that is nested deeper than Python decodes, looked at without recursion.

No value of a caller is so deep, but results of nodes were once (decision 0090), and are sound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_PIECE_DEEP = 400
"""How deep a piece is that is checked alone: deeper than any value of a caller, tags included."""
_VALUE_DEEP = 100
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def pieces(data: bytes) -> Iterator[bytes]:
    """Yields a JSON text in pieces that Python can decode; it is sound if each of them is.

    Every `_PIECE_DEEP` levels a container is a piece, and a 0 stands for it outside. A piece of
    text that ends within a container ends there too.
    """
    begun: list[list[bytes]] = [[]]
    depth = at = 0
    for token in _BRACKETS.finditer(data):
        word = token.group()
        if word in (b"{", b"["):
            depth += 1
            if depth % _PIECE_DEEP == 0:
                begun[-1].append(data[at : token.start()])
                begun.append([])
                at = token.start()
        elif word in (b"}", b"]"):
            if depth % _PIECE_DEEP == 0 and len(begun) > 1:
                yield b"".join([*begun.pop(), data[at : token.end()]])
                begun[-1].append(b"0")
                at = token.end()
            depth -= 1
    yield b"".join([*begun[-1], data[at:]])


def deep_containers(data: bytes, depth: int) -> Iterator[tuple[int, int]]:
    """Yields where lists and objects begin and end that lie so deep in a JSON text, and nest far.

    Left out are those that no deeper one is in than a value of a caller may be.
    """
    now = begin = deepest = 0
    for token in _BRACKETS.finditer(data):
        word = token.group()
        if word in (b"{", b"["):
            now += 1
            if now == depth:
                begin = token.start()
                deepest = now
            deepest = max(deepest, now)
        elif word in (b"}", b"]"):
            if now == depth and deepest - depth > _VALUE_DEEP:
                yield begin, token.end()
            now -= 1

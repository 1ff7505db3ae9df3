"""The messages that are said: seeded prose of an exact size, the same for every contender."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import cycle

SAID = 1_000
"""Bytes of one message as compact JSON, unless a benchmark says otherwise."""
KEYS = 1_000
"""Keys of a key-value benchmark, written in turn."""
DISTINCT = 500
"""Messages made beforehand; making one costs more than storing it."""

_SYLLABLES = ["ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo"]


def messages(size: int = SAID, *, seed: int = 7) -> Iterator[dict[str, str]]:
    """Yields messages without end that each encode to exactly `size` bytes of compact JSON."""
    return cycle(_made(size, seed))


@cache
def _made(size: int, seed: int) -> list[dict[str, str]]:
    source = _words(seed)
    frame = len(json.dumps({"role": "user", "content": ""}, separators=(",", ":")))
    made: list[dict[str, str]] = []
    for _ in range(DISTINCT):
        text = next(source)
        while len(text) < size - frame:
            text += " " + next(source)
        made.append({"role": "user", "content": text[: size - frame]})
    return made


def _words(seed: int) -> Iterator[str]:
    """Yields made-up words without end; they compress about as well as a language does."""
    chance = random.Random(seed)
    lexicon = ["".join(chance.choices(_SYLLABLES, k=chance.randint(1, 4))) for _ in range(3_000)]
    weights = [1 / rank for rank in range(1, len(lexicon) + 1)]
    while True:
        yield from chance.choices(lexicon, weights, k=1_000)

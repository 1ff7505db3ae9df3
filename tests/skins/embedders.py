"""An embedder for the command line: how often a text has each letter."""

from __future__ import annotations

from collections.abc import Sequence


class Letters:
    name = "letters"
    dimension = 26

    def embed(self, texts: Sequence[str], /) -> list[list[float]]:
        letters = "abcdefghijklmnopqrstuvwxyz"
        return [[float(text.lower().count(one)) for one in letters] for text in texts]


letters = Letters()

"""Programs made at random from grammar.txt.

They have the form of programs; that names are bound in them is not their concern.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import holdfast.prose

GRAMMAR = Path(holdfast.prose.__file__).with_name("grammar.txt").read_text("utf-8")
_PIECE = re.compile(r'"(?:[^"]*)"|[A-Za-z_]+|[\[\]{}()|]')
DEPTH_MAX = 7
"""How deep rules nest before only the shortest way out is taken."""

Tree = tuple[str, object]


def rules() -> dict[str, Tree]:
    """Returns the grammar: each rule as a tree of choices, sequences, options and repetitions."""
    lines = [line for line in GRAMMAR.split("\n") if not line.startswith("#")]
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        defined = re.match(r"([a-z_]+)\s*= (.*)", line)
        if defined:
            name = defined[1]
            found[name] = [defined[2]]
        elif line.strip():
            found[name].append(line)
    return {name: _Reading(" ".join(parts)).choice() for name, parts in found.items()}


class _Reading:
    """One rule while it is read."""

    def __init__(self, text: str) -> None:
        self._pieces = _PIECE.findall(text)
        self._at = 0

    def choice(self) -> Tree:
        """Reads alternatives up to a closing bracket or the end."""
        options = [self._sequence()]
        while self._at < len(self._pieces) and self._pieces[self._at] == "|":
            self._at += 1
            options.append(self._sequence())
        return ("choice", options)

    def _sequence(self) -> Tree:
        items: list[Tree] = []
        while self._at < len(self._pieces) and self._pieces[self._at] not in ("|", "]", "}", ")"):
            piece = self._pieces[self._at]
            self._at += 1
            if piece in "[{(":
                inner = self.choice()
                self._at += 1
                items.append(({"[": "option", "{": "repeat", "(": "group"}[piece], inner))
            else:
                items.append(("piece", piece))
        return ("sequence", items)


RULES = rules()
WORDS = {
    "NAME": ["a", "b", "long-name", "x_1", "map", "item"],
    "NUMBER": ["0", "7", "2.5"],
    "WHOLE": ["1", "3", "12"],
    "TEXT": ['"t"', '"{a} and more"', '"""long"""', '""'],
    "COND": ["**it is so**", "***wide***"],
    "BACKOFF": ["none", "linear", "exponential", "250"],
    "MODEL": ["sonnet", "opus", "haiku"],
    "JOIN": ['"all"', '"first"', '"any", count: 1'],
    "ON_FAIL": ['"fail-fast"', '"continue"', '"ignore"'],
}
"""What the kinds of tokens are replaced with."""


class Maker:
    """Makes one program."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._words: list[str] = []
        self._lines: list[str] = []
        self._indent = 0

    def program(self) -> str:
        """Returns a program of a few statements."""
        for _ in range(self._chance.randint(1, 4)):
            self._make(("piece", "statement"), 0)
        return "\n".join(self._lines) + "\n"

    def _make(self, tree: Tree, depth: int) -> None:
        kind, value = tree
        if kind == "piece":
            self._make_piece(str(value), depth)
        elif kind == "choice":
            options: list[Tree] = value  # type: ignore[assignment]
            self._make(self._pick(options, depth), depth)
        elif kind == "sequence":
            for item in value:  # type: ignore[attr-defined]
                self._make(item, depth)
        elif kind == "group":
            self._make(value, depth)  # type: ignore[arg-type]
        else:
            most = 1 if kind == "option" else 2
            for _ in range(self._chance.randint(0, most) if depth < DEPTH_MAX else 0):
                self._make(value, depth)  # type: ignore[arg-type]

    def _pick(self, options: list[Tree], depth: int) -> Tree:
        if depth < DEPTH_MAX:
            return self._chance.choice(options)
        lowest = min(HEIGHTS.of(option) for option in options)
        near = [option for option in options if HEIGHTS.of(option) <= lowest + 1]
        return self._chance.choice(near)

    def _make_piece(self, piece: str, depth: int) -> None:
        if piece.startswith('"'):
            self._words.append(piece[1:-1])
        elif piece == "LINE":
            self._end_line()
        elif piece in ("INDENT", "DEDENT"):
            self._indent += 2 if piece == "INDENT" else -2
        elif piece in WORDS:
            self._words.append(self._chance.choice(WORDS[piece]))
        else:
            self._make(RULES[piece], depth + 1)

    def _end_line(self) -> None:
        if self._words:
            self._lines.append(" " * self._indent + " ".join(self._words))
        self._words.clear()


class _Heights:
    """How many rules deep the shortest way through each rule is."""

    def __init__(self) -> None:
        self._rules = dict.fromkeys(RULES, 99)
        for _ in RULES:
            for name, tree in RULES.items():
                self._rules[name] = min(self._rules[name], 1 + self.of(tree))

    def of(self, tree: Tree) -> int:
        """Returns the height of the lowest tree of words that this can become."""
        kind, value = tree
        if kind == "piece":
            return self._rules.get(str(value), 0)
        if kind == "choice":
            return min(self.of(one) for one in value)  # type: ignore[attr-defined]
        if kind == "sequence":
            return max((self.of(one) for one in value), default=0)  # type: ignore[attr-defined]
        return self.of(value) if kind == "group" else 0  # type: ignore[arg-type]


HEIGHTS = _Heights()

"""Graphs made by chance, and what a plain recomputation says of them: values, who, and why.

The same description becomes real nodes, and is interpreted here without digests, stores or events:
results are compared by their values, and numbered as they are made.
"""

from __future__ import annotations

from random import Random
from typing import Any

from holdfast import Graph, node
from holdfast.nodes import Node

SCOPE = "conversation/c"
STATE = "team/t"
KEYS = ("k0", "k1", "k2")
INPUTS = ("x", "y")

Seen = tuple[str, int | None]
"""What was read, and what was found; None if it was not there."""
Why = tuple[str, str, int]
"""The kind and the name of a cause, and the number of the result that it refers to, or 0."""


class Spec:
    """One node: its parameters, the keys and the nodes that it reads, and how it counts."""

    def __init__(self, random: Random, number: int, before: list[str]) -> None:
        self.name = f"n{number}"
        shape = random.choice(("chain", "pair", "wide"))
        near = before[-1:] if shape == "chain" else before[-2:] if shape == "pair" else before
        edges = random.sample(near, random.randint(min(1, len(near)), min(len(near), 6)))
        given = [one for one in INPUTS if random.random() < (0.1 if before else 1)]
        self.parameters = [*given, *sorted(edges)]
        others = [one for one in before if one not in edges]
        self.keys = random.sample(KEYS, random.choice((0, 0, 0, 1, 2)))
        self.reads = random.sample(others, min(len(others), random.choice((0, 0, 1, 2))))
        self.keep = random.choice((1, 2, 8))
        self.modulus = random.choice((2, 7, 1000))  # a small one cuts changes off

    def made(self) -> Node:
        """Returns the real node."""
        keys = "".join(f" + ctx.read({STATE!r}, {key!r}, 0)" for key in self.keys)
        nodes = "".join(f" + ctx.read(known[{name!r}])" for name in self.reads)
        given = " + ".join(self.parameters) or "0"
        head = ", ".join(["ctx", *self.parameters])
        source = f"def {self.name}({head}):\n"
        source += f"    return ({given}{keys}{nodes} + 1) % {self.modulus}\n"
        table: dict[str, Any] = {"known": _Known()}
        exec(source, table)
        made = node(version="1", keep=self.keep)(table[self.name])
        table["known"].nodes = self.known
        self.known[self.name] = made
        return made

    known: dict[str, Node]


class _Known:
    """Finds a node by its name when it is read."""

    nodes: dict[str, Node]

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]


def specs_of(random: Random, count: int) -> list[Spec]:
    """Returns the description of a graph."""
    found: list[Spec] = []
    known: dict[str, Node] = {}
    for number in range(count):
        spec = Spec(random, number, [one.name for one in found])
        spec.known = known
        found.append(spec)
    return found


def graph_of(specs: list[Spec]) -> Graph:
    """Returns the real graph."""
    graph = Graph("plain", [one.made() for one in specs])
    taken = set(INPUTS) - graph.takes
    assert not taken, taken  # the first node takes them all
    return graph


class Kept:
    """A result, with all that it was made from."""

    def __init__(self, number: int, given: dict[str, int], seen: list[Seen]) -> None:
        self.number = number
        self.given = given
        self.seen = seen
        self.value = 0


class Plain:
    """The plain recomputation: every result so far, in the order in which they were made."""

    def __init__(self, specs: list[Spec]) -> None:
        self.specs = specs
        self.kept: dict[str, list[Kept]] = {one.name: [] for one in specs}
        self.made: list[tuple[str, int, list[Why]]] = []

    def walk(self, inputs: dict[str, int], state: dict[str, int]) -> dict[str, int]:
        """Returns the values of all nodes; what had to be computed is added to `made`."""
        now: dict[str, Kept] = {}
        for spec in self.specs:
            given = {one: now[one].value if one in now else inputs[one] for one in spec.parameters}
            looked: list[Seen] = [(f"state {STATE} {key}", state.get(key)) for key in spec.keys]
            looked += [(name, now[name].value) for name in spec.reads]
            found, causes = self._judge(spec, given, looked, now)
            if found is None:
                found = Kept(len(self.made) + 1, given, looked)
                total = sum(given.values()) + sum(value or 0 for _, value in looked)
                found.value = (total + 1) % spec.modulus
                self.kept[spec.name].insert(0, found)
                self.made.append((spec.name, found.value, causes))
            now[spec.name] = found
        return {name: one.value for name, one in now.items()}

    def _judge(
        self, spec: Spec, given: dict[str, int], looked: list[Seen], now: dict[str, Kept]
    ) -> tuple[Kept | None, list[Why]]:
        kept = self.kept[spec.name]
        causes: list[Why] = []
        for one in kept[: spec.keep]:
            if one.given != given:
                continue
            changed = [new for old, new in zip(one.seen, looked, strict=True) if old != new]
            if not changed:
                return one, []
            causes = causes or [_cause(changed[0][0], one, now)]
        if not kept:
            return None, [("missing", spec.name, 0)]
        differences = [
            _cause(name, kept[0], now) for name in given if kept[0].given[name] != given[name]
        ]
        return None, causes or differences or [("missing", spec.name, 0)]

    def roots(self, number: int) -> set[tuple[str, str]]:
        """Returns what the causes of a result began with, by following every reference."""
        waiting, seen, found = [number], {number}, set[tuple[str, str]]()
        while waiting:
            for kind, name, refers in self.made[waiting.pop() - 1][2]:
                if not refers:
                    found.add((kind, name))
                elif refers not in seen:
                    seen.add(refers)
                    waiting.append(refers)
        return found


def _cause(name: str, before: Kept, now: dict[str, Kept]) -> Why:
    if name not in now:
        return "input", name, 0
    number = now[name].number
    return "dependency", name, number if number > before.number else 0

"""Graphs of any size and shape: chains, lattices, random ones; and nodes that read each other."""

from __future__ import annotations

from random import Random
from typing import Any

from holdfast import Graph, node
from holdfast.nodes import Node
from tests.fixtures.content_nodes import chain, lattice, link

__all__ = ["chain", "lattice", "link", "random_graph", "reading", "reading_chain"]


def random_graph(name: str, count: int, edges: int, seed: int) -> Graph:
    """Returns a graph of `count` nodes, of which each takes up to `edges` of those before it."""
    random = Random(seed)
    nodes = [link("n0", "x")]
    for n in range(1, count):
        before = sorted(random.sample(range(n), min(n, edges)))
        nodes.append(link(f"n{n}", *(f"n{one}" for one in before)))
    return Graph(name, nodes)


def reading(name: str, before: Node | None, scope: str) -> Node:
    """Returns a node that reads another one while it is computed; the first reads the state."""

    def one(ctx: Any) -> int:
        return 1 + (ctx.read(before) if before is not None else ctx.read(scope, "k", 0))

    return node(name=name, version="1")(one)


def reading_chain(count: int, scope: str) -> list[Node]:
    """Returns nodes of which each reads the one before it."""
    nodes: list[Node] = []
    for n in range(count):
        nodes.append(reading(f"n{n}", nodes[-1] if nodes else None, scope))
    return nodes

"""Nodes: recompute what changed, and say why.

define    nodes, graphs and rules, as users write them
results   what is stored of nodes, and found again; the states that callers are given
trace     what nodes read, recorded and checked
context   what the function of a node gets as its `ctx`
walk      one walk over a graph: judge each node, compute once
process   the walk that callers are given, and the walk that need not be made
resolve   rules, settings and constraints, on demand
explain   why, plan, accept, invalidate
run       a walk as a run, each node a step
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from holdfast.core.arguments import check_flag
from holdfast.nodes.context import NodeContext
from holdfast.nodes.define import Graph, Node, node, rule
from holdfast.nodes.explain import Plan, StoredNode, Why
from holdfast.nodes.process import Walk
from holdfast.nodes.process import process_node as _process_node
from holdfast.nodes.resolve import Applied, Conflict, Resolved
from holdfast.nodes.results import Artifact, Cause, NodeState
from holdfast.nodes.walk import Nodes, Planned

__all__ = [
    "Applied",
    "Artifact",
    "Cause",
    "Conflict",
    "Graph",
    "Node",
    "NodeContext",
    "NodeState",
    "Nodes",
    "Plan",
    "Planned",
    "Resolved",
    "StoredNode",
    "Walk",
    "Why",
    "node",
    "process_node",
    "rule",
]


class _WithNodes(Protocol):
    _nodes: Nodes


def process_node(
    store: _WithNodes,
    graph: Graph,
    name: str,
    scope: object,
    *,
    inputs: Mapping[str, Any] | None = None,
    cache: bool = True,
    force: bool = False,
) -> NodeState:
    """Returns the state of one node of a graph for a scope.

    Fetches the stored state, looks at what it was made from, compares thumbprints, and returns it;
    if anything changed, the node is computed and its artifacts are replaced. What it depends on is
    processed first. With `cache=False` nothing stored is looked at, and nothing is stored.
    """
    check_flag(cache, "cache")
    check_flag(force, "force")
    return _process_node(store._nodes, graph, name, scope, inputs or {}, cache=cache, force=force)

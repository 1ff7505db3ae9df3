"""Nodes: recompute what changed, and say why.

define    nodes, graphs and rules, as users write them
results   what is stored of nodes, and found again; the states that callers are given
causes    why a node was computed: by reference to results, and as a tree
trace     what nodes read, recorded and checked
context   what the function of a node gets as its `ctx`
walk      one walk over a graph: judge each node, compute once
process   the walk that callers are given, and the walk that need not be made
resolve   rules, settings and constraints, on demand
explain   why, plan, accept, invalidate
run       a walk as a run, each node a step
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazily

if TYPE_CHECKING:
    from holdfast.nodes.api import *
else:
    __getattr__ = lazily(__name__, "holdfast.nodes.api")

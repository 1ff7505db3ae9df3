"""The names of `holdfast.nodes`, imported together when the first is asked for."""

from holdfast.nodes.causes import Cause
from holdfast.nodes.context import NodeContext
from holdfast.nodes.define import Graph, Node, node, rule
from holdfast.nodes.explain import Plan, StoredNode, Why
from holdfast.nodes.process import Walk
from holdfast.nodes.resolve import Applied, Conflict, Resolved
from holdfast.nodes.results import Artifact, NodeState
from holdfast.nodes.room import NodesRoom, process_node
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
    "NodesRoom",
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

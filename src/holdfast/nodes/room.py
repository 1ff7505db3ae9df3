"""The nodes of a store: `hf.nodes`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.core.arguments import check_flag
from holdfast.core.kernel import Kernel, kernel_of
from holdfast.core.page import PAGE_SIZE, Page
from holdfast.errors import UsageError
from holdfast.nodes import explain
from holdfast.nodes.causes import SHOWN
from holdfast.nodes.define import Graph
from holdfast.nodes.explain import Plan, StoredNode, Why
from holdfast.nodes.process import Walk, process
from holdfast.nodes.process import process_node as walk_to_node
from holdfast.nodes.results import NodeState
from holdfast.nodes.run import process_as_run
from holdfast.nodes.walk import Nodes
from holdfast.renamed import NotCalled
from holdfast.runs.engine import Engine
from holdfast.scope import Scope


class NodesRoom(NotCalled):
    """Graphs of nodes and their results, as `hf.nodes`: walks, explanations, invalidation."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._nodes = kernel.part(Nodes)

    def __repr__(self) -> str:
        return "<NodesRoom>"

    def process(
        self,
        graph: Graph,
        scope: Scope | str,
        /,
        *,
        cache: bool = True,
        force: bool | Collection[str] = False,
        run: str | None = None,
        **inputs: Any,
    ) -> Walk:
        """Walks a graph for a scope: each node's stored result is reused if it still counts.

        Other nodes are computed. `force` computes all nodes, or those that it names. With
        `cache=False` no result is read or stored. With `run`, the walk is the run of that id and
        each node is a step of it, so it can go on after a crash. `inputs` are the inputs of the
        graph, by name.
        """
        if run is not None:
            if not check_flag(cache, "cache"):
                raise UsageError("a walk that is a run keeps what it computes: cache stays True")
            return process_as_run(
                self._nodes, self._kernel.part(Engine), graph, scope, inputs, id=run, force=force
            )
        return process(self._nodes, graph, scope, inputs, cache=cache, force=force)

    def list(
        self,
        graph: str | None = None,
        scope: Scope | str | None = None,
        *,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[StoredNode]:
        """Returns the newest stored result of every node, of one graph or scope if given.

        `after` takes the cursor of a page, and returns the next page.
        """
        return explain.stored_nodes(self._nodes, graph, scope, after=after, limit=limit)

    def why(
        self, graph: Graph | str, name: str, scope: Scope | str, *, limit: int | None = SHOWN
    ) -> Why:
        """Returns why a node's newest result was computed, as recorded with that result.

        Its tree has up to `limit` causes, those that are nearest; `more` counts the others, and
        `roots` says what they began with. Raises NotFoundError if the node has no result for the
        scope.
        """
        return explain.why(self._nodes, graph, name, scope, limit=limit)

    def plan(self, graph: Graph, target: str | None, scope: Scope | str, /, **inputs: Any) -> Plan:
        """Returns what a walk would do, to the node `target` or to all nodes; writes nothing."""
        return explain.plan(self._nodes, graph, target, scope, inputs)

    def accept(
        self,
        graph: Graph,
        name: str,
        scope: Scope | str,
        /,
        *,
        author: str | None = None,
        because: str = "",
        **inputs: Any,
    ) -> NodeState:
        """Declares that the changes since a node's newest result do not matter to it.

        That result then counts again for what it depends on now. Raises UsageError if it is expired
        or was invalidated, and NotFoundError if there is none.
        """
        return explain.accept(
            self._nodes, graph, name, scope, inputs, author=author, because=because
        )

    def invalidate(
        self,
        graph: Graph | str,
        scope: Scope | str,
        name: str | None = None,
        *,
        author: str | None = None,
        because: str = "",
    ) -> None:
        """Declares that the results so far no longer count, of one node or of a whole graph."""
        explain.invalidate(self._nodes, graph, scope, name, author=author, because=because)

    def forget(self, graph: Graph | str, scope: Scope | str) -> None:
        """Removes the results of a graph for a scope, as if it had never been walked.

        Removing a scope does that for every graph. Raises NotFoundError if there are no results.
        """
        explain.forget(self._nodes, graph, scope)


def process_node(
    store: object,
    graph: Graph,
    name: str,
    scope: object,
    *,
    inputs: Mapping[str, Any] | None = None,
    cache: bool = True,
    force: bool = False,
) -> NodeState:
    """Returns the state of one node of a graph for a scope.

    Reads the stored result, compares the thumbprints of what it was made from, and returns it; if
    anything changed, the node is computed and its artifacts are replaced. Its dependencies are
    processed first. With `cache=False` no result is read or stored.
    """
    check_flag(cache, "cache")
    check_flag(force, "force")
    return walk_to_node(
        kernel_of(store).part(Nodes), graph, name, scope, inputs or {}, cache=cache, force=force
    )

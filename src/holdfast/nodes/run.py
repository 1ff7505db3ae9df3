"""A walk as a run: each node is a step with the effect class that the node declares.

The record of a finished step counts more than the stored result of the node, even after the code
has changed: a run goes on from where it was. A hit is recorded as a step too, and adds nothing to
the node's stream. What a node reads goes into its trace, not into the journal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.errors import ExistsError, UsageError
from holdfast.nodes.define import Graph, Node, check_graph, check_inputs, find_graph
from holdfast.nodes.process import Walk, check_scope, states_of
from holdfast.nodes.results import NodeState, state_document, state_from
from holdfast.nodes.walk import Level, Nodes, Walker, check_processable
from holdfast.runs.context import Context, engine_of
from holdfast.runs.define import ONCE, Step, run
from holdfast.runs.engine import Engine


@run(name="holdfast.walk")
def walk_in_run(
    ctx: Context, graph: str, scope: str, inputs: dict[str, Any], force: Any
) -> dict[str, Any]:
    """Walks a graph inside a run: one step for each node, in the order of the walk."""
    nodes: Nodes = engine_of(ctx).kernel.part(Nodes)
    walker = Walker(nodes, find_graph(graph), scope, inputs, force=force)

    def step(level: Level, node: Node) -> NodeState:
        def perform() -> str:
            return state_document(walker.in_step(level, node))

        name = level.name_of(node.name)
        one: Step[..., str] = Step(
            perform,
            effect=node.effect,
            name=name,
            verify=None,
            retry=ONCE,
            not_done=(),
            ignore=(),
        )
        return state_from(ctx.step(one), walker.blobs)

    walker.around = step
    top = walker.run()
    return {
        "graph": graph,
        "scope": scope,
        "states": [state_document(state) for state in states_of(top)],
        "exhausted": walker.exhausted,
    }


def process_as_run(
    nodes: Nodes,
    engine: Engine,
    graph: Graph,
    scope: object,
    inputs: Mapping[str, Any],
    *,
    id: str,
    force: bool | Collection[str] = False,
) -> Walk:
    """Walks a graph as the run `id`, which is started, resumed, or read if it has ended."""
    check_processable()
    check_graph(graph)
    given = check_inputs(graph, inputs)
    if find_graph(graph.name) is not graph:
        raise UsageError(
            f'another graph "{graph.name}" was made since: a run finds its graph by name',
            hint="give each graph a name of its own",
        )
    name = check_scope(nodes, scope)
    forced = (
        force if isinstance(force, bool) else sorted([force] if isinstance(force, str) else force)
    )
    running = engine.start(
        walk_in_run, (graph.name, name, given, forced), {}, id=id, if_exists="attach"
    )
    found: dict[str, Any] = running.result()
    if _walked(found) != (graph.name, name):
        raise ExistsError(
            f'run "{id}" is another one: it did not walk graph "{graph.name}" for "{name}"',
            hint="give the walk an id of its own",
        )
    states = [state_from(document, nodes.log.blobs.read) for document in found["states"]]
    return Walk(nodes, graph, name, states, found["exhausted"])


def _walked(found: Any) -> Any:
    """Returns the graph and scope of a walk, or the answer of the run if it was no walk."""
    return (found.get("graph"), found.get("scope")) if isinstance(found, dict) else found  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

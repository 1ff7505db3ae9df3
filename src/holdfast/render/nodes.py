"""Documents of nodes and walks; graphs as mermaid and DOT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import asdict

from holdfast.nodes.causes import Cause
from holdfast.nodes.define import Graph, Node
from holdfast.nodes.explain import Plan, StoredNode, Why
from holdfast.nodes.process import Walk
from holdfast.nodes.results import Artifact, NodeState
from holdfast.render.text import encode_value, time_text

COLOURS = {"hit": "#9be29b", "may compute": "#f4e08a", "compute": "#f3a6a0", "skipped": "#d0d0d0"}


def cause_document(cause: Cause | None) -> Any:
    """Returns a cause with those below it."""
    if cause is None:
        return None
    top: dict[str, Any] = {}
    waiting = [(cause, top)]
    while waiting:
        one, document = waiting.pop()
        below: list[dict[str, Any]] = [{} for _ in one.causes]
        document.update({**asdict(one), "causes": below})
        waiting += zip(one.causes, below, strict=True)
    return top


def cause_lines(cause: Cause, depth: int = 0) -> Iterator[str]:
    """Yields a tree of causes as lines."""
    waiting = [(cause, depth)]
    while waiting:
        one, depth = waiting.pop()
        change = f": {one.old or 'nothing'} -> {one.new or 'nothing'}" if one.old or one.new else ""
        text = f" ({one.text})" if one.text else ""
        yield f"{'  ' * depth}{one.kind} {one.name}{change}{text}"
        if one.more:
            yield f"{'  ' * (depth + 1)}and {one.more:,} more"
        waiting += [(below, depth + 1) for below in reversed(one.causes)]


def why_lines(why: Why) -> Iterator[str]:
    """Yields the causes of a result as lines: the tree, what it leaves out, and its beginning."""
    for one in why.cause.causes:
        yield from cause_lines(one, 1)
    left_out = why.more - sum(one.more for one in _all(why.cause))
    if left_out or not why.more_is_exact:
        yield f"  and {'' if why.more_is_exact else 'at least '}{left_out:,} more"
    if why.more:
        for one in why.roots:
            yield from (f"  it began with {line}" for line in cause_lines(one))


def _all(cause: Cause) -> Iterator[Cause]:
    waiting = [cause]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += one.causes


def artifact_document(artifact: Artifact) -> dict[str, Any]:
    """Returns an artifact."""
    return {
        "kind": artifact.kind,
        "node": artifact.node,
        "name": artifact.name,
        "priority": artifact.priority,
        "reads": artifact.reads,
        "value": encode_value(artifact.value),
    }


def state_document(state: NodeState) -> dict[str, Any]:
    """Returns the state of a node."""
    return {
        "node": state.node,
        "status": state.status,
        "in_thumb": state.in_thumb,
        "out_thumb": state.out_thumb,
        "toggles": state.toggles,
        "value": encode_value(state.value),
        "artifacts": [artifact_document(one) for one in state.artifacts],
        "cause": cause_document(state.cause),
        "computed_at": None if state.computed_at is None else time_text(state.computed_at),
        "valid_until": None if state.valid_until is None else time_text(state.valid_until),
        "cost": state.cost,
        "untracked": state.untracked,
    }


def stored_nodes_document(found: list[StoredNode]) -> dict[str, Any]:
    """Returns the newest results of nodes."""
    return {
        "nodes": [
            {
                "graph": one.graph,
                "scope": one.scope,
                "node": one.state.node,
                "computed_at": None
                if one.state.computed_at is None
                else time_text(one.state.computed_at),
                "cause": None if one.state.cause is None else one.state.cause.kind,
                "out_thumb": one.state.out_thumb,
                "invalidated": one.invalidated,
                **_counts(one),
            }
            for one in found
        ]
    }


def _counts(one: StoredNode) -> dict[str, Any]:
    rate = None if one.hit_rate is None else round(one.hit_rate, 4)
    counts = {"computed": one.computed, "hits": one.hits, "evicted": one.evicted}
    return {**counts, "hit_rate": rate}


def stored_node_document(found: StoredNode) -> dict[str, Any]:
    """Returns one node with its newest result."""
    document = {"graph": found.graph, "scope": found.scope, "invalidated": found.invalidated}
    return {**document, **_counts(found), **state_document(found.state)}


def walk_document(walk: Walk) -> dict[str, Any]:
    """Returns a walk: every state, and what the nodes made in order."""
    return {
        "graph": walk.graph,
        "scope": walk.scope,
        "counts": walk.counts,
        "exhausted": walk.exhausted,
        "states": [state_document(state) for state in walk.states.values()],
        "sequence": [artifact_document(one) for one in walk.sequence],
    }


def plan_document(plan: Plan) -> dict[str, Any]:
    """Returns what a walk would do."""
    return {
        "graph": plan.graph,
        "scope": plan.scope,
        "nodes": [
            {**asdict(one), "causes": [cause_document(cause) for cause in one.causes]}
            for one in plan.nodes
        ],
        "computes": plan.computes,
        "may_compute": plan.may_compute,
        "at_least": plan.at_least,
        "at_most": plan.at_most,
        "cost": plan.cost,
        "cost_at_most": plan.cost_at_most,
    }


def why_document(why: Why) -> dict[str, Any]:
    """Returns why a node was computed."""
    document = asdict(why)
    document["computed_at"] = time_text(why.computed_at)
    document["cause"] = cause_document(why.cause)
    document["roots"] = [cause_document(one) for one in why.roots]
    return document


def forgotten_document(graph: str, scope: str) -> dict[str, Any]:
    """Returns what was forgotten."""
    return {"graph": graph, "scope": scope, "forgotten": True}


def invalidated_document(graph: str, scope: str, node: str | None) -> dict[str, Any]:
    """Returns that results no longer count."""
    return {"graph": graph, "scope": scope, "node": node, "invalidated": True}


def graph_document(graph: Graph, text: str, form: str) -> dict[str, Any]:
    """Returns a graph as a drawing, and its edges."""
    names = [name for name, _ in graph.nodes()]
    return {"graph": graph.name, "form": form, "nodes": names, "edges": _edges(graph), "text": text}


# --- drawings -------------------------------------------------------------------------------------


def _edges(graph: Graph, prefix: str = "", above: Mapping[str, str] | None = None) -> list[Any]:
    """Returns pairs of whole names: what a node depends on, and the node."""
    known = {**(above or {}), **{name: f"{prefix}{name}" for name in graph.members}}
    pairs: list[Any] = []
    for name in graph.order:
        member = graph.members[name]
        if isinstance(member, Node):
            pairs += [[known[one], f"{prefix}{name}"] for one in member.parameters if one in known]
        else:
            pairs += _edges(member, f"{prefix}{name}/", known)
    return pairs


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def mermaid(graph: Graph, verdicts: Mapping[str, str]) -> str:
    """Returns the graph as a mermaid flowchart, coloured by what a walk would do."""
    numbers: dict[str, str] = {}
    lines = ["flowchart TD"]

    def draw(one: Graph, prefix: str, indent: str) -> None:
        for name in one.order:
            whole = f"{prefix}{name}"
            numbers[whole] = f"n{len(numbers)}"
            member = one.members[name]
            if isinstance(member, Node):
                lines.append(f'{indent}{numbers[whole]}["{_quoted(name)}"]')
                continue
            bound = f" (until {member.repeat.node}, {member.repeat.most})" if member.repeat else ""
            lines.append(f'{indent}subgraph {numbers[whole]}["{_quoted(name + bound)}"]')
            draw(member, f"{whole}/", f"{indent}  ")
            lines.append(f"{indent}end")

    draw(graph, "", "  ")
    lines += [f"  {numbers[start]} --> {numbers[end]}" for start, end in _edges(graph)]
    for verdict, colour in COLOURS.items():
        found = [
            numbers[name] for name, one in verdicts.items() if one == verdict and name in numbers
        ]
        if found:
            word = verdict.replace(" ", "")
            lines += [f"  classDef {word} fill:{colour}", f"  class {','.join(found)} {word}"]
    return "\n".join(lines)


def dot(graph: Graph, verdicts: Mapping[str, str]) -> str:
    """Returns the graph in the language of Graphviz."""
    lines = ["digraph {", "  node [shape=box, style=filled, fillcolor=white]"]

    def word(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def draw(one: Graph, prefix: str, indent: str) -> None:
        for name in one.order:
            whole = f"{prefix}{name}"
            member = one.members[name]
            if isinstance(member, Node):
                colour = COLOURS.get(verdicts.get(whole, ""), "white")
                lines.append(f'{indent}{word(whole)} [label={word(name)}, fillcolor="{colour}"]')
                continue
            lines.append(f"{indent}subgraph {word('cluster_' + whole)} {{")
            lines.append(f"{indent}  label={word(name)}")
            lines.append(f"{indent}  {word(whole)} [shape=point]")
            draw(member, f"{whole}/", f"{indent}  ")
            lines.append(f"{indent}}}")

    draw(graph, "", "  ")
    lines += [f"  {word(start)} -> {word(end)}" for start, end in _edges(graph)]
    return "\n".join([*lines, "}"])

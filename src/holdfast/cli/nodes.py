"""Verbs for nodes: look at what is kept, ask why, plan, process, accept, invalidate, draw."""

from __future__ import annotations

from holdfast.cli.completion import ScopeName
from holdfast.cli.options import DEFAULTS, Flag, Options, Words, open_reading, open_writing
from holdfast.cli.parsing import parse_named
from holdfast.cli.printing import print_facts, print_json, print_line, print_table
from holdfast.cli.user_code import load_graph
from holdfast.errors import NotFoundError
from holdfast.nodes.causes import SHOWN
from holdfast.nodes.define import Graph
from holdfast.nodes.walk import without_rounds
from holdfast.render.nodes import (
    cause_lines,
    dot,
    forgotten_document,
    graph_document,
    invalidated_document,
    mermaid,
    plan_document,
    state_document,
    stored_node_document,
    stored_nodes_document,
    walk_document,
    why_document,
    why_lines,
)
from holdfast.render.text import clean, preview, show_time


def list_nodes(
    graph: str | None = None, /, *, scope: ScopeName | None = None, options: Options = DEFAULTS
) -> None:
    """List the nodes that have results: when and why each was computed last, and its hits.

    Parameters
    ----------
    graph
        Only those of this graph: its name, or CODE:GRAPH.
    scope
        Only those of this scope.
    """
    name = None if graph is None else graph_name(graph)
    with open_reading(options) as store:
        found = store.nodes.list(name, scope, limit=None)
    if options.json:
        print_json(stored_nodes_document(found))
        return
    rows = [
        (
            one.graph,
            one.scope,
            one.state.node,
            "" if one.state.computed_at is None else show_time(one.state.computed_at),
            "invalidated" if one.invalidated else one.state.cause.kind if one.state.cause else "",
            "" if one.hit_rate is None else f"{one.hit_rate:.0%}",
            f"{one.evicted:,}",
        )
        for one in found
    ]
    print_table(("graph", "scope", "node", "computed", "cause", "hits", "evicted"), rows)


def show(graph: str, node: str, scope: ScopeName, /, *, options: Options = DEFAULTS) -> None:
    """Show the newest result of a node: its value, its artifacts, what affects it.

    Parameters
    ----------
    graph
        The graph's name, or CODE:GRAPH.
    node
        The node, such as flags or review/author@2.
    scope
        The scope that the graph was walked for.
    """
    name = graph_name(graph)
    with open_reading(options) as store:
        for one in store.nodes.list(name, scope, limit=None):
            if one.state.node == node:
                found, state = one, one.state
                break
        else:
            raise NotFoundError(
                f'node "{node}" of graph "{name}" has no result for "{scope}"',
                hint="holdfast nodes list",
            )
        value = preview(state.value)
        if options.json:
            print_json(stored_node_document(found))
            return
    facts = {
        "node": state.node,
        "value": value,
        "computed": "" if state.computed_at is None else show_time(state.computed_at),
        "affected by": ", ".join(state.toggles),
        "in_thumb": state.in_thumb,
        "out_thumb": state.out_thumb,
        "not followed": ", ".join(state.untracked) or "nothing",
    }
    print_facts([*facts.items()])
    for artifact in state.artifacts:
        print_line(clean(f"{artifact.kind} {artifact.name}: {preview(artifact.value)}"))


def why(
    graph: str,
    node: str,
    scope: ScopeName,
    /,
    *,
    limit: int = SHOWN,
    options: Options = DEFAULTS,
) -> None:
    """Say why a node was computed last: the tree of causes that was stored with the results.

    Parameters
    ----------
    graph
        The graph's name, or CODE:GRAPH.
    node
        The node.
    scope
        The scope that the graph was walked for.
    limit
        How many causes to print, those that are nearest; the others are counted.
    """
    name = graph_name(graph)
    with open_reading(options) as store:
        found = store.nodes.why(name, node, scope, limit=limit)
    if options.json:
        print_json(why_document(found))
        return
    print_line(clean(f"{node} was computed at {show_time(found.computed_at)}"))
    for line in why_lines(found):
        print_line(clean(line))
    for one in found.untracked:
        print_line(clean(f"  not followed: {one}"))


def plan(
    code: str,
    scope: ScopeName,
    /,
    *,
    target: str | None = None,
    input: Words = None,
    module: Words = None,
    exit_code: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Say what a walk would do: which results count, what is computed, what may be. Writes nothing.

    Parameters
    ----------
    code
        The graph: FILE.py:graph, or package.module:graph.
    scope
        The scope to walk it for.
    target
        Only this node, and what it depends on.
    input
        An input by its name, as NAME=VALUE; may be given again.
    module
        Another FILE.py or module to load first; may be given again.
    exit_code
        End with 1 if anything would or may be computed.
    """
    graph = load_graph(code, module)
    with open_reading(options) as store:
        found = store.nodes.plan(graph, target, scope, **parse_named(input, "an input"))
    if options.json:
        print_json(plan_document(found))
    else:
        rows = [
            (one.node, one.verdict, "; ".join(line for c in one.causes for line in cause_lines(c)))
            for one in found.nodes
        ]
        print_table(("node", "would be", "because"), rows)
        least, most = found.at_least, found.at_most
        count = f"{most:,}" if least == most else f"at least {least:,}, at most {most:,}"
        costs = [found.cost] if least == most else [found.cost, found.cost_at_most]
        words = [", ".join(f"{amount:g} {name}" for name, amount in one.items()) for one in costs]
        cost = " to ".join(word for word in words if word)
        print_line(f"{count} to compute{f', about {cost}' if cost else ''}")
    return 1 if exit_code and found.at_most else 0


def process(
    code: str,
    scope: ScopeName,
    /,
    *,
    input: Words = None,
    force: Words = None,
    run: str | None = None,
    module: Words = None,
    options: Options = DEFAULTS,
) -> None:
    """Walk a graph for a scope: compute what changed, and print what the nodes made.

    Parameters
    ----------
    code
        The graph: FILE.py:graph, or package.module:graph.
    scope
        The scope to walk it for.
    input
        An input by its name, as NAME=VALUE; may be given again.
    force
        Compute this node whatever is stored; may be given again.
    run
        Make the walk the run of this id, which can be resumed.
    module
        Another FILE.py or module to load first; may be given again.
    """
    graph = load_graph(code, module)
    with open_writing(options) as store:
        walk = store.nodes.process(
            graph, scope, force=force or False, run=run, **parse_named(input, "an input")
        )
        if options.json:
            print_json(walk_document(walk))
            return
        rows = [(state.node, state.status, preview(state.value)) for state in walk.states.values()]
        print_table(("node", "status", "value"), rows)
        for artifact in walk.sequence:
            print_line(clean(f"{artifact.kind} {artifact.name}: {preview(artifact.value)}"))
        for name in walk.exhausted:
            print_line(clean(f"{name} is exhausted: it was not good enough at its bound"))


def accept(
    code: str,
    node: str,
    scope: ScopeName,
    /,
    *,
    because: str = "",
    author: str | None = None,
    input: Words = None,
    module: Words = None,
    options: Options = DEFAULTS,
) -> None:
    """Declare that what changed since a node's newest result does not matter to it.

    Parameters
    ----------
    code
        The graph: FILE.py:graph, or package.module:graph.
    node
        The node whose result still counts.
    scope
        The scope that the graph is walked for.
    because
        Why it does not matter.
    author
        Who says so. Without it the actor.
    input
        An input by its name, as NAME=VALUE; may be given again.
    module
        Another FILE.py or module to load first; may be given again.
    """
    graph = load_graph(code, module)
    with open_writing(options) as store:
        state = store.nodes.accept(
            graph, node, scope, author=author, because=because, **parse_named(input, "an input")
        )
        if options.json:
            print_json(state_document(state))
        else:
            print_line(clean(f"{node} stays as it is: {preview(state.value)}"))


def invalidate(
    graph: str,
    scope: ScopeName,
    /,
    *,
    node: str | None = None,
    because: str = "",
    options: Options = DEFAULTS,
) -> None:
    """Say that results no longer count: of one node, or of a whole graph.

    Parameters
    ----------
    graph
        The graph's name, or CODE:GRAPH.
    scope
        The scope that it was walked for.
    node
        Only the results of this node.
    because
        Why they no longer count, in your words.
    """
    name = graph_name(graph)
    with open_writing(options) as store:
        known = {one.state.node for one in store.nodes.list(name, scope, limit=None)}
        if not known or (node is not None and node not in known):
            what = f'node "{node}" of graph "{name}"' if node else f'graph "{name}"'
            raise NotFoundError(f'{what} has no result for "{scope}"', hint="holdfast nodes list")
        store.nodes.invalidate(name, scope, node, because=because)
    if options.json:
        print_json(invalidated_document(name, scope, node))
    else:
        print_line(clean(f"the results of {node or name} no longer count"))


def forget(graph: str, scope: ScopeName, /, *, options: Options = DEFAULTS) -> None:
    """Forget the results of a graph for a scope, as if it had never been walked.

    Parameters
    ----------
    graph
        The graph's name, or CODE:GRAPH.
    scope
        The scope that it was walked for.
    """
    name = graph_name(graph)
    with open_writing(options) as store:
        store.nodes.forget(name, scope)
    if options.json:
        print_json(forgotten_document(name, scope))
    else:
        print_line(clean(f"the results of {name} for {scope} are forgotten"))


def graph(
    code: str,
    /,
    *,
    scope: ScopeName | None = None,
    input: Words = None,
    module: Words = None,
    dot: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Draw a graph as mermaid or DOT; with a scope, coloured by what a walk would do.

    Parameters
    ----------
    code
        The graph: FILE.py:graph, or package.module:graph.
    scope
        Colour hits green, what would be computed red, what may be computed yellow.
    input
        An input by its name, as NAME=VALUE; may be given again.
    module
        Another FILE.py or module to load first; may be given again.
    dot
        Write the language of Graphviz instead of mermaid.
    """
    found = load_graph(code, module)
    verdicts: dict[str, str] = {}
    if scope is not None:
        with open_reading(options) as store:
            planned = store.nodes.plan(found, None, scope, **parse_named(input, "an input")).nodes
        verdicts = {without_rounds(one.node): one.verdict for one in planned}
    text = _drawn(found, verdicts, is_dot=dot)
    if options.json:
        print_json(graph_document(found, text, "dot" if dot else "mermaid"))
    else:
        print_line(clean(text, keep="\n"))


def _drawn(found: Graph, verdicts: dict[str, str], *, is_dot: bool) -> str:
    return dot(found, verdicts) if is_dot else mermaid(found, verdicts)


def graph_name(word: str) -> str:
    """Returns the name of a graph that was typed as its name or as CODE:GRAPH."""
    return load_graph(word).name if ":" in word or word.endswith(".py") else word

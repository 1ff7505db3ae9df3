"""The verdict on a history: every anomaly, by type, with a witness in words.

    lost-append, duplicate-append, unknown-value, wrong-stream, not-a-prefix, half-commit,
    before-begun, fork-base, revision-reused, revision-order     a list is wrong in itself
    G1a, G1b                    a refused value, or half of what one commit added, was read
    G0, G1c, G-single, G2       a circle of writes; with reads; with one anti-dependency; with more
    …-session, …-realtime       a circle that needs the order within a client, or of real time
    not-linearisable            a register or a lease

A circle is reported by its strongest type: G-single covers lost update and read skew, G2 write
skew, G-single-realtime the stale read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.checker.graph import RW, SESSION, TIME, WR, WW, Graph
from tests.checker.history import History, parse
from tests.checker.order import Finding, Order
from tests.checker.register import check_object

ORDERS = (("", ()), ("-session", (SESSION,)), ("-realtime", (SESSION, TIME)))
TRIES = 500
"""How many anti-dependencies of one component are tried for a circle with no other."""


def check_lines(lines: Iterable[str]) -> list[Finding]:
    """Returns the anomalies of a history, given as JSON lines."""
    return check(parse(lines))


def check(history: History) -> list[Finding]:
    """Returns the anomalies of a history; none: it is strictly serialisable."""
    order = Order(history)
    found = list(order.findings())
    graph = Graph(order)
    everything = range(len(graph.edges))
    for component in graph.circles(everything, (WW, WR, RW, SESSION, TIME)):
        found += _circles(graph, component)
    for (kind, name), steps in history.objects.items():
        found += check_object(kind, name, steps)
    return found


def _circles(graph: Graph, component: list[int]) -> Iterator[Finding]:
    known: set[str] = set()
    for suffix, orders in ORDERS:
        for kind, circle in _kinds(graph, component, orders):
            if kind not in known:
                known.add(kind)
                yield Finding(kind + suffix, _tell(graph, kind, circle))


Circle = list[tuple[int, int]]
"""Pairs (kind, node): the edge that leads to the node. The first node is the last one again."""


def _kinds(
    graph: Graph, component: list[int], orders: tuple[int, ...]
) -> Iterator[tuple[str, Circle]]:
    writes = (WW, *orders)
    flows = (WW, WR, *orders)
    if circle := _through(graph, component, writes, WW):
        yield "G0", circle
    if circle := _through(graph, component, flows, WR):
        yield "G1c", circle
    every = (*flows, RW)
    has_single = False
    for nodes in map(set, graph.circles(component, every)):
        for before, after in graph.edges_of(nodes, RW)[:TRIES]:
            way = graph.path(after, before, nodes, flows)
            if way is not None:
                has_single = True
                yield "G-single", [*way, (RW, after)]
                break
    if not has_single and (circle := _through(graph, component, every, RW)):
        yield "G2", circle


def _through(
    graph: Graph, component: list[int], kinds: tuple[int, ...], needed: int
) -> Circle | None:
    """Returns a circle of those kinds of edges with one of the needed kind in it."""
    for nodes in map(set, graph.circles(component, kinds)):
        for before, after in graph.edges_of(nodes, needed):
            way = graph.path(after, before, nodes, kinds)
            assert way is not None, "BUG: an edge of a component is on a circle"
            return [*way, (needed, after)]
    return None


def _tell(graph: Graph, kind: str, circle: Circle) -> str:
    operations = graph.operations
    numbers = [node for _, node in circle if node < len(operations)]
    places = {node: n for n, node in enumerate(numbers, 1)}
    lines = [f"{_common_name(graph, kind, circle)}, a circle of {len(numbers)}"]
    lines += [f"  T{n} = {operations[node]}" for node, n in places.items()]
    before, skipped = numbers[-1], False
    for edge, node in circle:
        if node >= len(operations):
            skipped = True  # a moment: told with the operation behind it
            continue
        told = _edge(graph, before, node, TIME if skipped else edge)
        lines.append(f"  T{places[before]} before T{places[node]}: {told}")
        before, skipped = node, False
    return "\n".join(lines)


def _edge(graph: Graph, one: int, two: int, kind: int) -> str:
    order = graph.order
    first, second = graph.operations[one], graph.operations[two]
    if kind == TIME:
        return "it had ended when the other began"
    if kind == SESSION:
        return f"client {second.client} did it first"
    chains = order.chains.values()
    if kind == WW:
        streams = [c.stream for c in chains if one in (*c.writers, c.maker) and two in c.writers]
        return f"its value stands before the other's in {', '.join(streams)}"
    if kind == WR:
        own = [r.stream for r in second.reads if one in _known(graph, r.stream)]
        return f"the other read what it left in {', '.join(own) or second.fork}"
    streams = [r.stream for r in first.reads if two in _known(graph, r.stream)]
    return f"it read {', '.join(streams)} without what the other added"


def _known(graph: Graph, stream: str) -> list[int]:
    chain = graph.order.chains.get(stream)
    return [] if chain is None else [*chain.writers, chain.maker]


def _common_name(graph: Graph, kind: str, circle: Circle) -> str:
    """Returns the name that people have for it."""
    readers = [
        graph.operations[node]
        for (edge, _), (_, node) in zip([*circle[1:], circle[0]], circle, strict=True)
        if edge == RW and node < len(graph.operations)
    ]
    if kind == "G-single" and readers:
        reader = readers[0]
        read, wrote = {r.stream for r in reader.reads}, {a.stream for a in reader.adds}
        if read & wrote:
            return "a lost update"
        return "a stale read" if len(read) < 2 else "a read skew"
    return {
        "G0": "writes in two orders at once",
        "G1c": "each read what the other wrote",
        "G2": "a write skew, or one of more operations",
    }.get(kind, "reads that no order explains")

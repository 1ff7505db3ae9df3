"""T28: graphs of nodes made by chance, walked and killed, beside a plain recomputation.

A point is a graph of up to 40 nodes: chains, diamonds and wide ones, nodes that read the state and
each other. Its inputs and its state change. Each time a plan is made, and the walk is killed before
or behind some of its commits, up to three times, by SIGKILL; the next process goes on. Every value
is that of `tests/nodes/plain.py`, which knows no digests, stores or events, and what was computed
is within the bounds of the plan. In the end the store has exactly the results that the plain
recomputation made, in its order, and each says the same causes and refers to the same results;
`why` finds what the causes began with. On memory nobody is killed.

`t28-long` walks chains, lattices and random graphs that are larger than any stack: the first points
with 2,000 nodes, the others with 100,000, 10,000, and 100,000 edges. Their time is not judged; the
bytes that a change adds are.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import holdfast
from holdfast import Graph, Store
from holdfast.nodes import process_node
from holdfast.nodes import walk as walks
from holdfast.nodes.walk import Walker
from tests.crash.children import Child
from tests.nodes.graphs import chain, lattice, random_graph
from tests.nodes.plain import INPUTS, KEYS, SCOPE, Plain, Spec, graph_of, specs_of
from tests.servers.kinds import SERVERS, url_of
from tests.torture.programme import Broken, Point, Programme

PROMISE = "values, results and causes are those of a plain recomputation, killed or not"
CHANGES = 6
DEATHS = 3
LEASE_S = 0.5
"""A server cannot tell that the owner of a lease is dead before the lease has ended."""
STREAM = f"node/plain/{SCOPE}"


def trial(kind: str, point: Point) -> int:
    """Walks one graph after each of some changes; returns how many walks that were."""
    random = point.random
    plant(point.plant)
    specs = specs_of(random, random.randint(2, 40))
    graph, plain = graph_of(specs), Plain(specs)
    url = url_of(kind, point.place, f"t28-{point.seed}-{point.number}-{os.getpid()}")
    one = holdfast.open(url) if kind == "memory" else None
    inputs, state = dict.fromkeys(INPUTS, 0), dict[str, int]()
    for _ in range(random.randint(2, CHANGES)):
        change(random, inputs, state)
        before = len(plain.made)
        values = plain.walk(inputs, state)
        if one is not None:
            walk(one, graph, inputs, state, values)
            continue
        commits = 1 + len(plain.made) - before
        for _ in range(random.randint(0, DEATHS)):
            fatal = random.randint(1, 2 * commits)
            if not live(url, graph, inputs, state, values, fatal):
                break
        live(url, graph, inputs, state, values, 0)
    with one or holdfast.open(url) as store:
        compare(store, graph, plain, specs)
    return len(plain.made)


def change(random: Any, inputs: dict[str, int], state: dict[str, int]) -> None:
    """Changes inputs or the state, sometimes back to what they were; or nothing."""
    for table, names in ((inputs, INPUTS), (state, KEYS)):
        for name in names:
            if random.random() < 0.35:
                table[name] = random.randint(0, 3)


def walk(
    store: Store, graph: Graph, inputs: dict[str, int], state: dict[str, int], values: Any
) -> None:
    """Walks a graph, and compares its values."""
    scope = store.team("t")
    for key, value in state.items():
        if scope.get(key) != value:
            scope.set(key, value)
    plan = store.nodes.plan(graph, None, SCOPE, **inputs)
    found = store.nodes.process(graph, SCOPE, **inputs)
    computed = {name for name, one in found.states.items() if one.status == "computed"}
    if not {*plan.computes} <= computed <= {*plan.computes, *plan.may_compute}:
        raise Broken(f"the plan was {plan.nodes}, and {computed} were computed")
    said = {name: one.value for name, one in found.states.items()}
    if said != values:
        raise Broken(f"values {said}, expected {values}")


def live(
    url: str,
    graph: Graph,
    inputs: dict[str, int],
    state: dict[str, int],
    values: Any,
    fatal: int,
) -> bool:
    """The life of one process, which walks and dies at a commit; returns whether it died."""

    def work(pipe: int, stop: int) -> None:
        walks.LEASE_S = LEASE_S
        how: dict[str, Any] = {} if "://" in url else {"durability": "process"}
        with holdfast.open(url, **how) as store:
            passed = 0

            def reach() -> None:
                nonlocal passed
                passed += 1
                if passed == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)

            backend: Any = store._log._backend
            commit = backend.commit

            def watched(*args: Any, **kwargs: Any) -> Any:
                reach()
                answer = commit(*args, **kwargs)
                reach()
                return answer

            backend.commit = watched
            walk(store, graph, inputs, state, values)

    child = Child(work)
    status = child.end()
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if child.trouble is not None:
        raise Broken(child.trouble)
    return False


def compare(store: Store, graph: Graph, plain: Plain, specs: list[Spec]) -> None:
    """Compares every stored result, its causes, and what they began with."""
    stored: list[tuple[str, Any, list[tuple[str, str, int]]]] = []
    for record in store._log.records(STREAM):
        data = holdfast.Event(record).data
        causes = [
            (one["kind"], one.get("name", ""), one.get("result", 0))
            for one in data["cause"]["causes"]
        ]
        stored.append((data["node"], data["value"], causes))
    for number, (found, made) in enumerate(zip(stored, plain.made, strict=False), 1):
        if found != made:
            raise Broken(f"result {number} is {found}, expected {made}")
    if len(stored) != len(plain.made):
        raise Broken(f"{len(stored)} results are stored, expected {len(plain.made)}")
    for spec in specs:
        number = plain.kept[spec.name][0].number
        why = store.nodes.why(graph, spec.name, SCOPE, limit=None)
        roots = {(one.kind, one.name) for one in why.roots}
        expected = plain.roots(number)
        if len(why.roots) < 10 and roots != expected:
            raise Broken(f'the causes of "{spec.name}" began with {roots}, expected {expected}')
    report = store.check()
    if not report.ok:
        raise Broken(f"check found {report.findings}")


def plant(name: str) -> None:
    """Plants a fault: causes that refer to nothing, or to what this walk has computed only."""
    said_by = Walker._said_by

    def planted(self: Walker, member: Any, before: Any) -> int:
        if name == "this-walk-only" and member is not None and member.status != "computed":
            return 0
        return 0 if name == "no-reference" else said_by(self, member, before)

    if name:
        Walker._said_by = planted  # type: ignore[method-assign]


# --- long -----------------------------------------------------------------------------------------


def walk_long(point: Point) -> int:
    """Walks one large graph; 0 if there are no more."""
    if point.number >= 6:
        return 0
    is_small, kind = point.number < 3, point.number % 3
    if kind == 0:
        graph = chain("long", 2_000 if is_small else 100_000)
    elif kind == 1:
        graph = lattice("long", 1_000 if is_small else 5_000)
    else:
        graph = random_graph("long", 500 if is_small else 10_000, 10, point.seed)
    last = graph.order[-1]
    with holdfast.open("memory:") as store:
        counts = [store.nodes.process(graph, SCOPE, x=x).counts for x in (1, 2, 2)]
        if [one["computed"] for one in counts] != [len(graph.order), len(graph.order), 0]:
            raise Broken(f"the walks were {counts}")
        sizes = [len(one.payload) for one in store._log.records(f"node/long/{SCOPE}")]
        first, second = sum(sizes[: len(graph.order)]), sum(sizes[len(graph.order) :])
        if second > 3 * first:
            raise Broken(f"a change added {second} bytes to {first}")
        why = store.nodes.why(graph, last, SCOPE)
        if [one.name for one in why.roots] != ["x"]:
            raise Broken(f"the causes began with {why.roots}")
        if process_node(store, graph, last, "team/t", inputs={"x": 1}).status != "computed":
            raise Broken("nothing was computed for another scope")
    return len(sizes)


PLANTS = {"memory": {"no-reference": 10}, "files": {"this-walk-only": 20}}

PROGRAMMES = [
    *(
        Programme(
            f"t28-{kind}",
            PROMISE,
            partial(trial, kind),
            share=share,
            points=3000,
            turns=min(share, 8),
            plants=PLANTS.get(kind, {}),
        )
        for kind, share in (
            ("memory", 80),
            ("files", 8),
            ("sqlite", 8),
            *((kind, 4) for kind in SERVERS),
        )
    ),
    Programme(
        "t28-long",
        "a graph that is larger than any stack is walked in time and bytes of what is computed",
        walk_long,
        share=3,
        turns=3,
    ),
]

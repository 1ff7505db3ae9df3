"""What nodes cost: hits against diskcache and joblib.Memory, large graphs, one changed leaf.

`python -m bench.nodes [NODES]` prints a table and every bar. Peers need the environment
`.venvs/peers`; without it their rows are left out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import holdfast
from holdfast.core import codec
from holdfast.nodes import Node, process_node
from tests.nodes.graphs import chain, lattice

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venvs/peers/bin/python"
PAD = "x" * 1000
BLOCKS = 15
COUNT = 400
WORK_S = 0.005
SCOPE = "conversation/c"


@holdfast.node(keep=64)
def small(ctx, n):
    return {"n": n, "pad": PAD}


SMALL = holdfast.Graph("small", [small])


def hits_of(store: Any) -> Callable[[int], float]:
    """Returns what times a block of hits of results of 1 KB."""

    def call(number: int) -> Any:
        return process_node(store, SMALL, "small", SCOPE, inputs={"n": number % 50}).value

    for number in range(50):
        call(number)

    def block(count: int) -> float:
        began = perf_counter()
        for number in range(count):
            call(number)
        return perf_counter() - began

    return block


def reads_of(store: Any) -> Callable[[int], float]:
    scope = store.conversation("bare")
    scope["pad"] = PAD

    def block(count: int) -> float:
        began = perf_counter()
        for _ in range(count):
            scope.get("pad")
        return perf_counter() - began

    return block


def peers(folder: str) -> dict[str, Callable[[int], float]]:
    python = PEERS if len(sys.argv) < 3 else Path(sys.argv[2])
    if not python.exists():
        return {}
    script = ROOT / "bench/workers/caches.py"
    child = subprocess.Popen(
        [python, script, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    stdin, stdout = child.stdin, child.stdout

    def block(name: str, count: int) -> float:
        stdin.write(f"{name} {count}\n")
        stdin.flush()
        return float(stdout.readline())

    return {name: lambda count, name=name: block(name, count) for name in ("diskcache", "joblib")}


def measure_hits(folder: str) -> None:
    """Hits of 1 KB, interleaved in blocks; a ratio is the median over neighbouring blocks."""
    with (
        holdfast.open(f"{folder}/files") as files,
        holdfast.open(f"sqlite:{folder}/state.db") as sqlite,
    ):
        contenders = {
            "files": hits_of(files),
            "sqlite": hits_of(sqlite),
            "bare read, files": reads_of(files),
            "bare read, sqlite": reads_of(sqlite),
            **peers(folder),
        }
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(BLOCKS):
            order = [*contenders] if number % 2 else [*reversed(contenders)]
            for name in order:
                times[name].append(contenders[name](COUNT))
    for name, found in times.items():
        print(f"{name:20} {COUNT / median(found):10,.0f} a second")
    for ours in ("files", "sqlite"):
        for peer, bar in (("diskcache", 2.5), ("joblib", 16.0)):
            if peer in times:
                ratio = median(b / a for a, b in zip(times[ours], times[peer], strict=True))
                print(f"{ours} against {peer}: {ratio:.1f} times (bar: {bar})")


def graph_of(count: int) -> holdfast.Graph:
    def make(number: int) -> Node:
        @holdfast.node(name=f"n{number}", keep=1)
        def one(ctx):
            return len(ctx.read("team/t", f"k{number}"))

        return one

    return holdfast.Graph("many", [make(number) for number in range(count)])


def measure_many(folder: str, count: int) -> None:
    """Many nodes with inputs of 10 KB each, nothing changed: warm, and in a new handle."""
    url, graph = f"sqlite:{folder}/many.db", graph_of(count)
    texts = {f"k{number}": f"{number:05}" * 2000 for number in range(count)}
    with holdfast.open(url, durability="none") as store:
        names = [*texts]
        for start in range(0, count, 100):
            store.team("t").update({name: texts[name] for name in names[start : start + 100]})
        store.nodes.process(graph, SCOPE)
        store.nodes.process(graph, SCOPE)
        warm = median(timed(lambda: store.nodes.process(graph, SCOPE)) for _ in range(5))
        digest = median(
            timed(lambda: [sha256(codec.encode_sorted(text)).digest() for text in texts.values()])
            for _ in range(5)
        )
    cold, records = [], []
    for _ in range(3):
        with holdfast.open(url) as store:
            records.append(timed(lambda: store._log.records(f"node/many/{SCOPE}")))
        with holdfast.open(url) as store:
            cold.append(timed(lambda: store.nodes.process(graph, SCOPE)))
    print(f"{count} nodes, warm: {warm * 1e3:.1f} ms, digesting {digest * 1e3:.1f} ms: ", end="")
    print(f"{warm / digest:.2f} (bar: 0.5)")
    print(f"cold: {median(cold) * 1e3:.0f} ms, reading {median(records) * 1e3:.0f} ms: ", end="")
    print(f"{median(cold) / median(records):.1f} (bar: 2)")


def measure_leaf(folder: str) -> None:
    """One leaf of a tree changes: the walk against the bare calls of what it reaches."""

    @holdfast.node
    def leaf(ctx):
        sleep(WORK_S)
        return ctx.read("team/t", "leaf", 0)

    def link(number: int, before: str) -> Node:
        table: dict[str, Any] = {"sleep": sleep, "WORK_S": WORK_S, "node": holdfast.node}
        source = f"def n{number}(ctx, {before}):\n    sleep(WORK_S)\n    return {before} + 1\n"
        exec(source, table)
        return holdfast.node(version="1")(table[f"n{number}"])

    chain = [leaf, *(link(n, "leaf" if n == 0 else f"n{n - 1}") for n in range(9))]
    others = [link(100 + n, "other") for n in range(50)]
    graph = holdfast.Graph("leaf", [*chain, *others])
    for kind, url in (("files", f"{folder}/leaf"), ("sqlite", f"sqlite:{folder}/leaf.db")):
        with holdfast.open(url) as store:
            store.nodes.process(graph, SCOPE, other=1)
            walks, bare = [], []
            for number in range(10):
                store.team("t")["leaf"] = number + 1
                walks.append(timed(lambda: store.nodes.process(graph, SCOPE, other=1)))
                bare.append(timed(lambda: [sleep(WORK_S) for _ in range(10)]))
            ratio = median(a / b for a, b in zip(walks, bare, strict=True))
            text = f"10 of 60 nodes of {WORK_S * 1e3:.0f} ms each"
            print(f"one leaf changed, {kind}, {text}: {ratio:.2f} times the bare calls (bar: 2)")


def measure_long(folder: str) -> None:
    """Chains and lattices whose input changes: time and bytes for each node that is computed."""
    for shape, make in (("chain", chain), ("lattice", lattice)):
        costs = [change_of(folder, make(f"{shape}{count}", count)) for count in (1_000, 10_000)]
        (time_1, size_1), (time_2, size_2) = costs
        print(f"{shape}, ten times as many nodes: {time_2 / time_1:.2f} times the time ", end="")
        print(f"and {size_2 / size_1:.2f} times the bytes for each (bar: 1.5)")


def change_of(folder: str, graph: holdfast.Graph) -> tuple[float, float]:
    """Returns the seconds and bytes for each node of a graph whose input changes."""
    count = len(graph.order)
    with holdfast.open(f"sqlite:{folder}/{graph.name}.db", durability="none") as store:
        store.nodes.process(graph, SCOPE, x=1)
        plan = timed(lambda: store.nodes.plan(graph, None, SCOPE, x=2))
        took = timed(lambda: store.nodes.process(graph, SCOPE, x=2))
        records = store._log.records(f"node/{graph.name}/{SCOPE}")[count:]
        size = sum(len(one.payload) for one in records) / count
        why = timed(lambda: store.nodes.why(graph, graph.order[-1], SCOPE))
    text = f"{graph.name} of {count} nodes, one input changed: {took / count * 1e6:.0f} us and "
    text += (
        f"{size:.0f} bytes a node, why {why * 1e3:.0f} ms, plan {plan / took:.2f} times the walk"
    )
    print(f"{text} (bar: 0.3)")
    return took / count, size


def timed(call: Callable[[], Any]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


if __name__ == "__main__":
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    place = ROOT / "bench/out"
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        measure_hits(folder)
        measure_many(folder, nodes)
        measure_leaf(folder)
        measure_long(folder)

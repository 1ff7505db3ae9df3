"""Graphs for processes that start from nothing: every computation is a line in a witness file.

`python -m tests.nodes.cold URL WITNESS NODES` walks a graph; `hang` computes one node for ever.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import holdfast
from holdfast import Graph, node


class Ledger:
    """A file outside of the store, one line for each computation."""

    def __init__(self) -> None:
        self.path = Path(os.environ.get("HF_WITNESS", os.devnull))

    def add(self, line: str) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(f"{line}\n".encode())

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


ledger = Ledger()


def numbered(number: int):
    """Returns a node that depends on some of those before it."""
    if number < 3:

        @node(name=f"n{number}")
        def first(ctx, x):
            ledger.add(ctx.node)
            return x + number

        return first
    scope = {"node": node, "ledger": ledger}
    before = [f"n{number - 1}", f"n{number // 2}"]
    source = f"""
@node(name="n{number}", version="1")
def one(ctx, {", ".join(dict.fromkeys(before))}):
    ledger.add(ctx.node)
    return n{number - 1} % 1000 + {number}
"""
    exec(source, scope)
    return scope["one"]


def cold_graph(count: int) -> Graph:
    return Graph("cold", [numbered(number) for number in range(count)])


@node
def hanging(ctx):
    ledger.add("begun")
    if os.environ.get("HF_HANG"):
        time.sleep(600)
    return "done"


@node(effect="effect")
def paid(ctx, hanging):
    ledger.add("paid")
    return hanging


@node
def fast(ctx):
    ledger.add("fast")
    return 1


RUN_GRAPH = Graph("hanging run", [fast, hanging, paid])


if __name__ == "__main__":
    url, what = sys.argv[1:3]
    with holdfast.open(url) as store:
        if what == "hang":
            store.nodes.process(Graph("hang", [hanging, paid]), "conversation/c")
        elif what == "run":
            store.nodes.process(RUN_GRAPH, "conversation/c", run="r")
        else:
            walk = store.nodes.process(cold_graph(int(what)), "conversation/c", x=1)
            print(walk.value(f"n{int(what) - 1}"))

"""Explains results: their causes, what a walk would do, and what a person decided about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain, islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.arguments import check_text
from holdfast.core.commit import ProposedCommit
from holdfast.core.page import Key, Page, check_limit, is_after, read_cursor, write_cursor
from holdfast.errors import ConflictError, NotFoundError, UsageError
from holdfast.nodes import results, trace
from holdfast.nodes.causes import SHOWN, Cause, told
from holdfast.nodes.define import Graph, check_graph, check_node_name
from holdfast.nodes.manifest import PREFIX, has_results
from holdfast.nodes.process import check_scope, find_known, process_target
from holdfast.nodes.results import (
    LEAST,
    Accepted,
    Computed,
    Entry,
    Input,
    Invalidated,
    NodeState,
)
from holdfast.nodes.walk import (
    Known,
    Nodes,
    Planned,
    Walker,
    check_processable,
    edge_thumb,
    without_rounds,
)
from holdfast.record.removal import removed

ATTEMPTS = 100
CAUSES_MAX = 100_000
"""How many causes `why` returns without a limit."""


class Why(Struct, frozen=True):
    """Why a node's newest result was computed, as it was recorded with the result.

    `cause` is a tree: below a dependency stands why that one was computed. It ends at a number of
    causes, and `more` counts those that it leaves out. `roots` are what the causes began with.
    """

    node: str
    cause: Cause
    computed_at: datetime
    in_thumb: str
    out_thumb: str
    toggles: tuple[str, ...]
    untracked: tuple[str, ...]
    cost: dict[str, float]
    invalidated: bool
    more: int = 0
    more_is_exact: bool = True
    """False if so many results are below this one that not all were counted."""
    roots: tuple[Cause, ...] = ()


class Plan(Struct, frozen=True):
    """What a walk would do now, node by node: at least `at_least` nodes are computed."""

    graph: str
    scope: str
    nodes: tuple[Planned, ...]

    @property
    def computes(self) -> tuple[str, ...]:
        """The nodes that would be computed for certain."""
        return tuple(one.node for one in self.nodes if one.verdict == "compute")

    @property
    def may_compute(self) -> tuple[str, ...]:
        """The nodes that would be computed or not, depending on what those before them yield."""
        return tuple(one.node for one in self.nodes if one.verdict == "may compute")

    @property
    def at_least(self) -> int:
        """How many nodes would be computed for certain."""
        return len(self.computes)

    @property
    def at_most(self) -> int:
        """How many nodes would be computed if every value changes."""
        return len(self.computes) + len(self.may_compute)

    @property
    def cost(self) -> dict[str, float]:
        """The expected cost: the sum of past averages of the nodes that would be computed."""
        return _total(self.nodes, ("compute",))

    @property
    def cost_at_most(self) -> dict[str, float]:
        """The expected cost if every node is computed that may be."""
        return _total(self.nodes, ("compute", "may compute"))


def _total(nodes: Iterable[Planned], verdicts: Collection[str]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in nodes:
        if one.verdict in verdicts:
            for name, amount in one.cost.items():
                total[name] = total.get(name, 0) + amount
    return total


def why(
    nodes: Nodes, graph: Graph | str, name: str, scope: object, *, limit: int | None = SHOWN
) -> Why:
    """Returns why a node's newest result was computed; the graph may be given by its name."""
    shown = check_node_name(graph, "a graph's name") if isinstance(graph, str) else graph.name
    most = check_limit(limit)
    table = nodes.table(shown, check_scope(nodes, scope))
    table.refresh()
    nodes.log.tell_reader_of(table.stream)
    entry = _newest(table.entries(name))
    if entry is None:
        raise NotFoundError(
            f'node "{name}" of graph "{shown}" has no result for this scope',
            hint="process the graph first",
        )
    state = entry.state("hit", nodes.log.blobs.read)
    content = entry.content()
    assert isinstance(content, Computed), "BUG: a failure says why"
    assert state.computed_at is not None, "BUG: a result without a time"
    kept = {} if isinstance(graph, str) else {one: node.keep for one, node in graph.nodes()}

    def say(cause: Cause) -> tuple[Cause | None, str]:
        said, of, remark = table.cause_at(cause.result)
        if said is None:
            return None, remark
        keep = kept.get(without_rounds(of), LEAST)
        newest = table.results(of, keep).kept(keep)
        is_kept = any(one.record.revision == cause.result for one in newest)
        return said, "" if is_kept else "its result is no longer kept"

    found = told(content.cause, say, CAUSES_MAX if most is None else most)
    return Why(
        name,
        found.cause,
        state.computed_at,
        state.in_thumb,
        state.out_thumb,
        state.toggles,
        state.untracked,
        state.cost,
        entry.record.revision <= table.invalidated_at(name),
        found.more,
        found.is_counted,
        found.roots,
    )


class StoredNode(Struct, frozen=True):
    """The newest stored result of a node, and how often its results were hits, or were let go of.

    `evicted` counts the results that had to be computed again because `keep` had let go of them.
    """

    graph: str
    scope: str
    state: NodeState
    invalidated: bool
    computed: int = 0
    hits: int = 0
    evicted: int = 0
    hit_rate: float | None = None


def stored_nodes(
    nodes: Nodes, graph: str | None, scope: object, *, after: str | None, limit: int | None
) -> Page[StoredNode]:
    """Returns a page of the newest results of nodes, by graph, scope and name.

    It reads only one result more than the page, to know whether there is more.
    """
    most = check_limit(limit)
    passed = None if after is None else read_cursor("nodes", after)
    found = list(islice(_stored(nodes, graph, scope, passed), None if most is None else most + 1))
    page = found[:most]
    for stream in {str(place[0]) for place, _ in page}:
        nodes.log.tell_reader_of(stream)
    cursor = write_cursor("nodes", *page[-1][0]) if page else after
    return Page([one for _, one in page], more=len(page) < len(found), cursor=cursor)


def _stored(
    nodes: Nodes, graph: str | None, scope: object, passed: Key | None
) -> Iterator[tuple[Key, StoredNode]]:
    """Yields the newest result of every node after a key, with its own key."""
    wanted = None if scope is None else check_scope(nodes, scope)
    prefix = f"{PREFIX}/" if graph is None else f"{PREFIX}/{graph}/"
    before = [] if passed is None else [str(passed[0])]
    streams = nodes.log.streams(prefix=prefix, after=before[0] if before else "")
    for stream in chain(before, streams):
        _, name, place = stream.split("/", 2)
        if wanted not in (None, place):
            continue
        table = nodes.table(name, place)
        table.refresh()
        for one in sorted(table.names()):
            entry = _newest(table.entries(one))
            if entry is None or (passed is not None and not is_after((stream, one), passed)):
                continue
            state = entry.state("hit", nodes.log.blobs.read)
            is_old = entry.record.revision <= table.invalidated_at(one)
            count = table.tally(one)
            yield (
                (stream, one),
                StoredNode(
                    name,
                    place,
                    state,
                    is_old,
                    count.computed,
                    count.hits,
                    count.evicted,
                    count.hit_rate,
                ),
            )


def _newest(entries: list[Entry]) -> Entry | None:
    for entry in entries:
        if isinstance(entry.content(), Computed):
            return entry
    return None


def plan(
    nodes: Nodes, graph: Graph, target: str | None, scope: object, inputs: Mapping[str, Any]
) -> Plan:
    """Returns what a walk would do, by making the same walk without computing or writing."""
    walker = Walker(nodes, check_graph(graph), check_scope(nodes, scope), inputs)
    nodes.log.tell_reader_of(walker.table.stream)
    walker.planned = {}
    if target is None:
        walker.run()
    else:
        process_target(walker, target)
    return Plan(graph.name, walker.scope, tuple(walker.planned.values()))


def accept(
    nodes: Nodes,
    graph: Graph,
    name: str,
    scope: object,
    inputs: Mapping[str, Any],
    *,
    author: str | None = None,
    because: str = "",
) -> NodeState:
    """Declares that what changed since a node's newest result does not matter to it."""
    check_processable()
    author = nodes.log.actor if author is None else check_text(author, "an author")
    for _ in range(ATTEMPTS):
        walker = Walker(nodes, check_graph(graph), check_scope(nodes, scope), inputs)
        walker.planned = {}
        known = find_known(walker, name)
        verdict = walker.judge(known)
        if verdict.entry is not None and isinstance(verdict.entry.content(), Computed):
            return verdict.entry.state("hit", walker.blobs)
        base = _newest(walker.table.entries(known.name))
        if base is None:
            raise NotFoundError(f'node "{name}" has no result that could be accepted')
        accepted = _accepted(walker, known, base, author or "", because)
        number = walker.table.next_number(known.name, known.in_thumb)
        key = f"{known.name}:{known.in_thumb}:{number}"
        try:
            nodes.append(walker.table, known.name, results.ACCEPTED, accepted, key)
        except UsageError:
            if not nodes.log.find(walker.table.stream, key=key):
                raise
            # Another worker used this number for the same `in_thumb` meanwhile. Its event may be
            # a result or an acceptance that counts, so judge again.
            continue
        return walker.table.entry_of(known.name, key).state("hit", walker.blobs)
    raise ConflictError(
        f'node "{name}" is being computed again and again',
        stream=f"{PREFIX}/{graph.name}",
        expected=0,
        actual=0,
    )


def _accepted(walker: Walker, known: Known, base: Entry, author: str, because: str) -> Accepted:
    content = base.content()
    assert isinstance(content, Computed), "BUG: a failure cannot be accepted"
    if content.valid_until and content.valid_until <= walker.sources.now_us:
        raise UsageError(
            f'the result of node "{known.name}" is too old: accepting a change does not make it '
            "younger",
            hint="process the graph",
        )
    if base.record.revision <= walker.table.invalidated_at(known.name):
        raise UsageError(
            f'the result of node "{known.name}" was invalidated', hint="process the graph"
        )
    result = walker.table.result_of(base)
    reads: list[results.Read] = []
    for read in content.reads:
        if read.kind == "node":
            seen = walker.observe(known.level, read.name, read.path)
            reads.append(replace(read, thumb=seen.thumb, shown=seen.shown))
            continue
        checked = trace.check(read, None, walker.sources, known.code.references)
        if checked.seen is None:
            reads.append(read)
        else:
            now, stamp = checked.seen, checked.stamp
            reads.append(replace(read, thumb=now.thumb, stamp=stamp, shown=now.shown))
    return Accepted(
        node=known.name,
        in_thumb=known.in_thumb,
        full_thumb=results.full_thumb(known.in_thumb, tuple(reads)),
        result=result,
        after=base.record.revision if base.record.revision != result else 0,
        author=author,
        because=because,
        code=known.code.thumb,
        parts=known.code.parts,
        inputs={name: Input(one.thumb, one.shown) for name, one in known.inputs.items()},
        edges={name: edge_thumb(edge) for name, edge in known.edges.items()},
        reads=tuple(reads),
    )


def invalidate(
    nodes: Nodes,
    graph: Graph | str,
    scope: object,
    name: str | None = None,
    *,
    author: str | None = None,
    because: str = "",
) -> None:
    """Declares that the results so far no longer count, of one node or of a whole graph."""
    check_processable()
    shown = check_node_name(graph, "a graph's name") if isinstance(graph, str) else graph.name
    table = nodes.table(shown, check_scope(nodes, scope))
    table.refresh()
    if name is not None and isinstance(graph, Graph) and not table.entries(name):
        known = dict(graph.nodes())
        if name not in known:
            raise NotFoundError(f'graph "{shown}" has no node "{name}"')
    content = Invalidated(name, author or nodes.log.actor, because)
    nodes.append(table, name or results.EVERY, results.INVALIDATED, content, None)


def forget(nodes: Nodes, graph: Graph | str, scope: object) -> None:
    """Removes the results of a graph for a scope, in the way a scope is removed (0025)."""
    check_processable()
    shown = check_node_name(graph, "a graph's name") if isinstance(graph, str) else graph.name
    table = nodes.table(shown, check_scope(nodes, scope))
    if not has_results(nodes.log, table.stream):
        raise NotFoundError(
            f'graph "{shown}" has no result for "{check_scope(nodes, scope)}"',
            hint="store.nodes.list() lists those there are",
        )
    nodes.log.commit(ProposedCommit((removed(table.stream),)))
    table.refresh()

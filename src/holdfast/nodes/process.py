"""Processing a graph: the walk that callers are given, and the walk that need not be made.

A walk in which nothing was computed is remembered with all that it looked at: the end of the
stream of results, the revision of every scope, the stamps of files, the code. While all of that
stands still, the next walk with the same inputs is the same one, and no node is visited.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from holdfast.core.arguments import check_flag, name_of
from holdfast.errors import NotFoundError, UsageError, ValueDomainError
from holdfast.nodes import trace
from holdfast.nodes.define import Graph, Node, check_graph, find_rule, settings_of
from holdfast.nodes.resolve import Resolved, resolve
from holdfast.nodes.results import Artifact, NodeState, Read
from holdfast.nodes.trace import Sources
from holdfast.nodes.walk import (
    Group,
    Known,
    Level,
    Nodes,
    Walker,
    check_processable,
    without_rounds,
)
from holdfast.thumbprint import Code

IDLE_MAX = 1024
COUNTED: tuple[str, ...] = ("hit", "cut off", "computed", "stale", "skipped")


class Walk:
    """A walk over a graph: the state of every node, and what the nodes made, in order."""

    def __init__(
        self,
        nodes: Nodes,
        graph: Graph,
        scope: str,
        states: Sequence[NodeState],
        exhausted: Sequence[str],
        *,
        cache: bool = True,
    ) -> None:
        self._nodes = nodes
        self._graph = graph
        self._cache = cache
        self._order = tuple(states)
        self.scope = scope
        self.states: Mapping[str, NodeState] = MappingProxyType(
            {state.node: state for state in states}
        )
        """The state of every node, by its whole name: `flags`, `review/author@2`."""
        self.exhausted = tuple(exhausted)
        """The repeated parts that reached their bound before they were good enough."""

    @property
    def graph(self) -> str:
        """The name of the graph."""
        return self._graph.name

    @property
    def sequence(self) -> list[Artifact]:
        """What the nodes made, in the order of the nodes."""
        return [artifact for state in self._order for artifact in state.artifacts]

    @property
    def counts(self) -> dict[str, int]:
        """How many nodes were found, cut off, computed, served as they were, and skipped."""
        counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        for state in self._order:
            counts[state.status] += 1
        return counts

    def __getitem__(self, name: str) -> NodeState:
        """Returns the state of a node; of a repeated one, that of the last round."""
        found = self.states.get(name) or self._last_rounds.get(name)
        if found is None:
            raise NotFoundError(f'graph "{self.graph}" has no node "{name}"')
        return found

    @cached_property
    def _last_rounds(self) -> dict[str, NodeState]:
        return {without_rounds(state.node): state for state in self._order}

    def value(self, name: str) -> Any:
        """Returns the value of a node, or of an inner graph: those of its nodes, by name."""
        graph = self._graph
        for step in name.split("/"):
            member = graph.members.get(without_rounds(step))
            if member is None:
                raise NotFoundError(f'graph "{self.graph}" has no node "{name}"')
            if isinstance(member, Node):
                return self[name].value
            graph = member
        inside = [one for one in self._last_rounds if one.startswith(f"{without_rounds(name)}/")]
        return {one: self.value(f"{name}/{one}") for one in graph.order} if inside else None

    def resolve(self) -> Resolved:
        """Applies rules and settings: what a model is called with. Nothing is applied before."""
        return resolve(self.sequence, self._call_rule)

    def _call_rule(self, artifact: Artifact) -> dict[str, Any]:
        """Returns what a rule answers; one whose values stand is not called again."""
        rule = find_rule(artifact.name)
        given: dict[str, Any] = {**artifact.value}
        for name in artifact.reads:
            given[name] = self.value(name)
        graph = Graph.of_rule(self.graph, rule)
        walker = Walker(self._nodes, graph, self.scope, given, cache=self._cache)
        level = Level(walker.graph, None, "", 1, Group(rule.name, is_skipped=False))
        state = walker.process(level, rule.name)
        return settings_of(artifact.name, state.value)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items() if count)
        return f"<Walk of {self.graph} for {self.scope}: {counts}>"


def states_of(group: Group) -> Iterator[NodeState]:
    """Yields the states of all nodes in the order of the graph, round by round."""
    for level in group.rounds:
        for name in level.graph.order:
            member = level.members[name]
            if isinstance(member, NodeState):
                yield member
            else:
                yield from states_of(member)


def process(
    nodes: Nodes,
    graph: Graph,
    scope: object,
    inputs: Mapping[str, Any],
    *,
    cache: bool = True,
    force: bool | Collection[str] = False,
) -> Walk:
    """Walks a graph for a scope: `process_node` for every node of the path, in order."""
    check_processable()
    check_graph(graph)
    name = check_scope(nodes, scope)
    check_flag(cache, "cache")
    walker = Walker(nodes, graph, name, inputs, cache=cache, force=force)
    place = _idle_place(walker) if cache and not force else None
    if place is not None:
        idle: Idle | None = nodes.idle.get(place)
        if idle is not None and idle.stands(walker):
            return idle.walk
    states = [*states_of(walker.run())]
    walk = Walk(nodes, graph, name, states, walker.exhausted, cache=cache)
    if place is not None and all(state.status == "hit" for state in walk.states.values()):
        if len(nodes.idle) >= IDLE_MAX:
            nodes.idle.pop(next(iter(nodes.idle)), None)
        nodes.idle[place] = Idle(walk, walker)
    return walk


def process_node(
    nodes: Nodes,
    graph: Graph,
    name: str,
    scope: object,
    inputs: Mapping[str, Any],
    *,
    cache: bool = True,
    force: bool = False,
) -> NodeState:
    """Returns the state of one node: the stored one if it still counts, else a new one.

    What it depends on is processed first. Inner nodes are named `part/node`.
    """
    check_processable()
    walker = Walker(nodes, check_graph(graph), check_scope(nodes, scope), inputs, cache=cache)
    return process_target(walker, name, force=force)


def process_target(walker: Walker, name: str, *, force: bool = False) -> NodeState:
    """Processes one node of a graph, and before it what it depends on."""
    level, node = _place_of(walker, name)
    if force:
        walker.force = frozenset([level.name_of(node.name)])
    state = walker.process(level, node.name)
    assert isinstance(state, NodeState), "BUG: a node that is a graph"
    return state


def find_known(walker: Walker, name: str) -> Known:
    """Returns all that is known of one node before it is called."""
    return walker.know(*_place_of(walker, name))


def _place_of(walker: Walker, name: str) -> tuple[Level, Node]:
    """Returns a node by its whole name, and the level that it stands in."""
    level = Level(walker.graph, None, "", 1, Group(walker.graph.name, is_skipped=False))
    *parts, last = name.split("/")
    for part in parts:
        member = level.graph.members.get(part)
        if not isinstance(member, Graph):
            raise NotFoundError(f'graph "{walker.graph.name}" has no node "{name}"')
        level = Level(member, level, f"{level.prefix}{part}/", 1, Group(part, is_skipped=False))
    node = level.graph.members.get(last)
    if not isinstance(node, Node):
        raise NotFoundError(f'graph "{walker.graph.name}" has no node "{name}"')
    if any(one.graph.repeat is not None for one in _outwards(level)):
        raise UsageError(f'node "{name}" is in a repeated part', hint="process the whole graph")
    return level, node


def _outwards(level: Level | None) -> Iterator[Level]:
    while level is not None:
        yield level
        level = level.outer


def check_scope(nodes: Nodes, scope: object) -> str:
    """Returns the name of a scope that may exist, or raises UsageError."""
    return nodes.store.scope(name_of(scope)).name


# --- walks that need not be made ------------------------------------------------------------------


class _Outside(Struct):
    """Something outside of the store that a walk looked at."""

    read: Read
    stamp: Any
    code: Code


class Idle:
    """A walk that found everything as it was, and what must stand still for it to be so again."""

    def __init__(self, walk: Walk, walker: Walker) -> None:
        self.walk = walk
        self._results = walker.table.revision, walker.table.link
        nodes = dict(walker.graph.nodes())
        self._codes: dict[int, tuple[Node, Code]] = {}
        self._revisions: dict[str, int] = {}
        self._outside: list[_Outside] = []
        self._files: list[str] = []
        self._until_us = 0
        self._is_sound = True
        for name, node in nodes.items():
            code = node._thumbed()
            self._codes[id(node)] = node, code
            self._files += node.writes
            self._add(walk.states[name], walker, name, code)

    def _add(self, state: NodeState, walker: Walker, name: str, code: Code) -> None:
        computed = state._computed
        if computed is None:
            return
        entry = next(
            (one for one in walker.table.entries(name) if one.record.revision == state.revision),
            None,
        )
        for place, read in enumerate(computed.reads):
            stamp = read.stamp if entry is None else entry.stamps.get(place, read.stamp)
            if read.kind in ("state", "messages"):
                # Every read of a scope was checked in this walk against this revision.
                self._is_sound &= stamp == self._revisions.setdefault(read.name, stamp)
            elif read.kind != "node":
                self._outside.append(_Outside(read, stamp, code))
        if computed.valid_until:
            self._until_us = min(self._until_us or computed.valid_until, computed.valid_until)

    def stands(self, walker: Walker) -> bool:
        """Says whether everything that the walk depends on is as it was."""
        if not self._is_sound or self._results != (walker.table.revision, walker.table.link):
            return False
        if self._until_us and self._until_us <= walker.sources.now_us:
            return False
        if self._revisions:
            heads = walker.log.heads([*self._revisions])
            for head, revision in zip(heads, self._revisions.values(), strict=True):
                if (0 if head is None else head.revision) != revision:
                    return False
        return self._code_stands() and self._outside_stands(walker.sources)

    def _code_stands(self) -> bool:
        return all(node._thumbed() is code for node, code in self._codes.values())

    def _outside_stands(self, sources: Sources) -> bool:
        for one in self._outside:
            checked = trace.check(one.read, one.stamp, sources, one.code.references)
            if not checked.is_same:
                return False
            if checked.seen is not None:
                one.stamp = checked.stamp
        return all(os.path.exists(path) for path in self._files)


def _idle_place(walker: Walker) -> Any:
    """Returns what names a walk that may be remembered; None if it must be made each time."""
    if not _may_be_idle(walker.graph):
        return None
    try:
        thumbs = tuple((name, one.thumb) for name, one in walker.inputs.items())
    except ValueDomainError:
        return None  # an input that is ignored and cannot be digested
    return walker.graph, walker.scope, thumbs


def _may_be_idle(graph: Graph) -> bool:
    """Says whether all that decides a walk is known: no path that is asked, no repetition."""
    if graph.path is not None or graph.repeat is not None:
        return False
    return all(
        not one.always if isinstance(one, Node) else _may_be_idle(one)
        for one in graph.members.values()
    )

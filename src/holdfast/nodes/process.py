"""Processes a graph, and skips a walk whose answer is already known.

A walk in which nothing was computed is remembered with everything it depended on: the end of the
stream of results, the revision of every scope, the stamps of files, the code. While all of that is
unchanged, the next walk with the same inputs returns the same answer without visiting a node.
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
from holdfast.nodes.results import Artifact, NodeState, Read, ResultTable
from holdfast.nodes.trace import Sources
from holdfast.nodes.walk import (
    Group,
    InputValue,
    Known,
    Level,
    Nodes,
    Walker,
    check_processable,
    without_rounds,
)
from holdfast.scope import Scope
from holdfast.thumbprint import Code

IDLE_MAX = 1024
COUNTED: tuple[str, ...] = ("hit", "cut off", "computed", "stale", "skipped")


class Walk:
    """The result of a walk: the state of every node, and the artifacts that they made."""

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
        """The state of every node by its full name, such as `flags` or `review/author@2`."""
        self.exhausted = tuple(exhausted)
        """The repeated graphs that reached their limit of rounds before they were good enough."""

    @property
    def graph(self) -> str:
        """The name of the graph."""
        return self._graph.name

    @property
    def sequence(self) -> list[Artifact]:
        """All artifacts, in the order of the nodes."""
        return [artifact for state in self._order for artifact in state.artifacts]

    @property
    def counts(self) -> dict[str, int]:
        """The number of nodes by status: hit, cut off, computed, stale and skipped."""
        counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        for state in self._order:
            counts[state.status] += 1
        return counts

    def __getitem__(self, name: str) -> NodeState:
        """Returns the state of a node; for a repeated node without a round, that of the last."""
        found = self.states.get(name) or self._last_rounds.get(name)
        if found is None:
            raise NotFoundError(f'graph "{self.graph}" has no node "{name}"')
        return found

    @cached_property
    def _last_rounds(self) -> dict[str, NodeState]:
        return {without_rounds(state.node): state for state in self._order}

    def value(self, name: str) -> Any:
        """Returns the value of a node, or the values of an inner graph's nodes by name."""
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
        """Applies the artifacts in order, calling the rules; returns what a model is called with.

        Until this is called, rules and settings have no effect.
        """
        return resolve(self.sequence, self._call_rule)

    def _call_rule(self, artifact: Artifact) -> dict[str, Any]:
        """Returns the settings of a rule; it is not called again while its values are unchanged."""
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
    """Walks a graph for a scope: takes or computes every node of the path, in order."""
    check_processable()
    check_graph(graph)
    name = check_scope(nodes, scope)
    check_flag(cache, "cache")
    place = None
    if cache and not force and graph.may_be_idle and (thumbs := _thumbs(inputs)) is not None:
        place = graph, None, name, thumbs
        idle: Idle | None = nodes.idle.get(place)
        if idle is not None:
            table = nodes.table(graph.name, name)
            table.refresh()
            if idle.stands(nodes, table):
                nodes.log.tell_reader_of(table.stream)
                table.count_walk()
                return idle.answer
    walker = Walker(nodes, graph, name, inputs, cache=cache, force=force)
    states = [*states_of(walker.run())]
    walk = Walk(nodes, graph, name, states, walker.exhausted, cache=cache)
    if place is not None and all(state.status == "hit" for state in states):
        known = dict(graph.nodes())
        if known.keys() == walk.states.keys() and _is_seen_again(nodes, place):
            nodes.idle[place] = Idle(walk, walk.states, known, walker.table)
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

    Its dependencies are processed first. A node of an inner graph is named `graph/node`.
    """
    check_processable()
    check_graph(graph)
    where = check_scope(nodes, scope)
    place = None
    if cache and not force and graph.may_be_idle and (thumbs := _thumbs(inputs)) is not None:
        place = graph, name, where, thumbs
        idle: Idle | None = nodes.idle.get(place)
        if idle is not None:
            table = nodes.table(graph.name, where)
            table.refresh()
            if idle.stands(nodes, table):
                nodes.log.tell_reader_of(table.stream)
                table.count_hit(name)
                return idle.answer
    walker = Walker(nodes, graph, where, inputs, cache=cache)
    level, node = _place_of(walker, name)
    if force:
        walker.force = frozenset([level.name_of(node.name)])
    state = walker.process(level, node.name)
    assert isinstance(state, NodeState), "BUG: a node that is a graph"
    found = {name: one for name, one in level.members.items() if isinstance(one, NodeState)}
    is_flat = level.outer is None and len(found) == len(level.members)
    if place is not None and is_flat and all(one.status == "hit" for one in found.values()):
        known = {name: one for name, one in graph.members.items() if isinstance(one, Node)}
        if _is_seen_again(nodes, place):
            nodes.idle[place] = Idle(state, found, known, walker.table)
    return state


def process_target(walker: Walker, name: str) -> None:
    """Processes one node of a graph after its dependencies."""
    level, node = _place_of(walker, name)
    walker.process(level, node.name)


def find_known(walker: Walker, name: str) -> Known:
    """Returns all that is known of one node before it is called."""
    return walker.know(*_place_of(walker, name))


def _place_of(walker: Walker, name: str) -> tuple[Level, Node]:
    """Returns the level of a node and the node, by its full name."""
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
    """Returns the name of a scope; raises UsageError if no scope can have it."""
    if isinstance(scope, Scope):
        return scope.name
    if isinstance(scope, str) and scope in nodes.known_scopes:
        return scope
    name = nodes.scopes.scope(name_of(scope)).name  # raises if there can be no such scope
    nodes.known_scopes.add(name)
    return name


# --- walks that need not be made ------------------------------------------------------------------


class _Outside(Struct):
    """Something outside of the store that a walk has read."""

    read: Read
    stamp: Any
    code: Code


class Idle:
    """The answer of a walk of hits, and everything that must be unchanged for it to hold again."""

    def __init__(
        self,
        answer: Any,
        states: Mapping[str, NodeState],
        nodes: Mapping[str, Node],
        table: ResultTable,
    ) -> None:
        self.answer = answer
        self._results = table.revision, table.link
        self._codes: dict[int, tuple[Node, Code]] = {}
        self._revisions: dict[str, int] = {}
        self._outside: list[_Outside] = []
        self._files: list[str] = []
        self._until_us = 0
        self._is_sound = True
        for name, state in states.items():
            node = nodes[name]
            code = node._thumbed()
            self._codes[id(node)] = node, code
            self._files += node.writes
            self._add(state, table, name, code)

    def _add(self, state: NodeState, table: ResultTable, name: str, code: Code) -> None:
        computed = state._computed
        assert computed is not None, "BUG: a hit without a result"
        entry = next(
            (one for one in table.entries(name) if one.record.revision == state.revision), None
        )
        for place, read in enumerate(computed.reads):
            stamp = read.stamp if entry is None else entry.stamp(place, read)
            if read.kind in ("state", "messages"):
                # This walk checked every read of the scope at this one revision. If the stamps
                # differ, no single revision stands for all of them, and the answer is not reused.
                self._is_sound &= stamp == self._revisions.setdefault(read.name, stamp)
            elif read.kind != "node":
                self._outside.append(_Outside(read, stamp, code))
        if computed.valid_until:
            self._until_us = min(self._until_us or computed.valid_until, computed.valid_until)

    def stands(self, nodes: Nodes, table: ResultTable) -> bool:
        """Returns whether everything that the answer depends on is unchanged."""
        if not self._is_sound or self._results != (table.revision, table.link):
            return False
        for node, code in self._codes.values():
            if node._thumbed() is not code:
                return False
        if not (self._until_us or self._revisions or self._outside or self._files):
            return True
        sources = Sources(nodes.scopes, nodes.log.clock.now_us(), nodes.known_values)
        if self._until_us and self._until_us <= sources.now_us:
            return False
        try:
            for scope, revision in self._revisions.items():
                if sources.revision(scope) != revision:
                    return False
        except NotFoundError:
            return False  # it has expired
        return self._outside_stands(sources)

    def _outside_stands(self, sources: Sources) -> bool:
        for one in self._outside:
            checked = trace.check(one.read, one.stamp, sources, one.code.references)
            if not checked.is_same:
                return False
            if checked.seen is not None:
                one.stamp = checked.stamp
        return all(os.path.exists(path) for path in self._files)


def _is_seen_again(nodes: Nodes, place: Any) -> bool:
    """Returns whether this walk consisted of hits before: only then is its answer remembered.

    A process that walks once should not pay for what only helps a next walk.
    """
    if place in nodes.idle:
        return True
    if len(nodes.idle) >= IDLE_MAX:
        nodes.idle.pop(next(iter(nodes.idle)), None)
    nodes.idle[place] = None
    return False


def _thumbs(inputs: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """Returns the digests of inputs; None if an ignored input has no digest."""
    try:
        return tuple([(name, InputValue(value).thumb) for name, value in inputs.items()])
    except ValueDomainError:
        return None

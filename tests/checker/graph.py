"""Which operation must come before which, and the circles in that."""

from __future__ import annotations

from collections.abc import Container, Sequence

from tests.checker.order import Order

WW, WR, RW, SESSION, TIME = range(5)
_BITS = 3
_KIND = (1 << _BITS) - 1


class Graph:
    """Nodes are operations and, behind them, moments; an edge is a target and a kind in one int.

    A moment stands for everything that had ended by then, so real time needs three edges for an
    operation and not one for every pair.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.operations = order.operations
        self.counts = [order.took_effect(operation) for operation in self.operations]
        self.edges: list[list[int]] = [[] for _ in self.operations]
        self._add_lists()
        self._add_sessions()
        self._add_time()

    def _add(self, before: int, after: int, kind: int) -> None:
        if before >= 0 and after >= 0 and before != after:
            self.edges[before].append(after << _BITS | kind)

    def _add_lists(self) -> None:
        order, counts = self.order, self.counts
        for chain in order.chains.values():
            last = chain.maker
            for writer in chain.writers[chain.begin :]:
                if writer >= 0 and counts[writer]:
                    self._add(last, writer, WW)
                    last = writer
        for index, operation in enumerate(self.operations):
            if not counts[index]:
                continue
            for read in operation.reads:
                if read.length >= 0 and read.stream in order.chains:
                    chain = order.chains[read.stream]
                    self._add(chain.writer(read.length), index, WR)
                    self._add(index, chain.next_writer(read.length), RW)
            fork = operation.fork
            if fork is not None and fork.parent in order.chains:
                self._add(order.chains[fork.parent].writer(fork.length), index, WR)

    def _add_sessions(self) -> None:
        """Orders each client's operations; nothing comes behind one whose outcome is unknown."""
        last: dict[object, int] = {}
        numbers = range(len(self.operations))
        for index in sorted(numbers, key=lambda n: (self.operations[n].start or 0, n)):
            client = self.operations[index].client
            if self.counts[index] and client is not None:
                if client in last:
                    self._add(last[client], index, SESSION)
                if self.operations[index].ok:
                    last[client] = index

    def _add_time(self) -> None:
        moments: list[tuple[int, int, int]] = []
        for index, operation in enumerate(self.operations):
            if self.counts[index]:
                if operation.start is not None:
                    moments.append((operation.start, 0, index))
                if operation.end is not None and operation.ok:
                    moments.append((operation.end, 1, index))
        moments.sort()  # at the same time, starts come first: those two are not ordered
        barrier, is_used = -1, True
        for _, is_end, index in moments:
            if is_end:
                if is_used:
                    before, barrier, is_used = barrier, len(self.edges), False
                    self.edges.append([])
                    self._add(before, barrier, TIME)
                self._add(index, barrier, TIME)
            elif barrier >= 0:
                self._add(barrier, index, TIME)
                is_used = True

    def circles(self, nodes: Sequence[int], kinds: Container[int]) -> list[list[int]]:
        """Returns the strongly connected components of more than one node (Tarjan, iterative)."""
        inside = None if len(nodes) == len(self.edges) else set(nodes)
        index: dict[int, int] = {}
        low: dict[int, int] = {}
        stack: list[int] = []
        on_stack: set[int] = set()
        found: list[list[int]] = []
        for root in nodes:
            if root in index:
                continue
            work = [(root, iter(self.edges[root]))]
            index[root] = low[root] = len(index)
            stack.append(root)
            on_stack.add(root)
            while work:
                node, edges = work[-1]
                for edge in edges:
                    target = edge >> _BITS
                    if edge & _KIND not in kinds or (inside is not None and target not in inside):
                        continue
                    if target not in index:
                        index[target] = low[target] = len(index)
                        stack.append(target)
                        on_stack.add(target)
                        work.append((target, iter(self.edges[target])))
                        break
                    if target in on_stack:
                        low[node] = min(low[node], index[target])
                else:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[node])
                    if low[node] == index[node]:
                        component = [stack.pop()]
                        while component[-1] != node:
                            component.append(stack.pop())
                        on_stack.difference_update(component)
                        if len(component) > 1:
                            found.append(component)
        return found

    def edges_of(self, nodes: set[int], kind: int) -> list[tuple[int, int]]:
        """Returns the edges of a kind that stay within the nodes."""
        return [
            (node, edge >> _BITS)
            for node in sorted(nodes)
            for edge in self.edges[node]
            if edge & _KIND == kind and edge >> _BITS in nodes
        ]

    def path(
        self, start: int, goal: int, nodes: set[int], kinds: Container[int]
    ) -> list[tuple[int, int]] | None:
        """Returns a shortest way as (kind, node) pairs behind `start`, None if there is none."""
        came: dict[int, tuple[int, int]] = {start: (-1, -1)}
        level = [start]
        while level and goal not in came:
            following: list[int] = []
            for node in level:
                for edge in self.edges[node]:
                    target = edge >> _BITS
                    if edge & _KIND in kinds and target in nodes and target not in came:
                        came[target] = edge & _KIND, node
                        following.append(target)
            level = following
        if goal not in came:
            return None
        way: list[tuple[int, int]] = []
        node = goal
        while node != start:
            kind, before = came[node]
            way.append((kind, node))
            node = before
        return way[::-1]

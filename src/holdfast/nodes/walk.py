"""Walks a graph: each node's stored result is reused while it still counts, else computed again.

`in_thumb` is the digest of all that is known before a node is called: its code, its inputs, and the
`out_thumb` of every edge. A result with the same `in_thumb` counts while everything that it read is
unchanged. Reads are checked in order, up to the first change, because a later read may have been
made only because of an earlier one. Dependents see only `out_thumb`, so a change stops at a node
that is computed again and yields the same value.

A result is computed by one worker at a time, under a lease on (node, in_thumb). It is written in
one commit that is fenced by that lease, so it is stored completely or not at all.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from hashlib import sha256
from time import perf_counter
from typing import Any, Literal, TypeVar

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.backends.protocol import Fence, Lease
from holdfast.core import codec
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.kernel import Kernel
from holdfast.core.log import WRITER
from holdfast.core.sealing import READER, Sealing, tell_reader
from holdfast.core.tree import MISSING
from holdfast.errors import (
    CorruptError,
    HoldfastError,
    LeaseLostError,
    NodeError,
    NotFoundError,
    UsageError,
    ValueDomainError,
)
from holdfast.nodes import results, trace
from holdfast.nodes.causes import Cause
from holdfast.nodes.context import NodeContext, part_of
from holdfast.nodes.define import ROUND, Graph, Node, check_inputs, is_node, may_skip
from holdfast.nodes.manifest import PREFIX
from holdfast.nodes.results import (
    Computed,
    Entry,
    Failed,
    Input,
    NodeState,
    Read,
    ResultTable,
    Tally,
    skipped_state,
)
from holdfast.nodes.trace import ABSENT, Observed, Sources, shown
from holdfast.record.in_run import refuse_in_body
from holdfast.runs import values
from holdfast.runs.execution import stored
from holdfast.scope import Scopes
from holdfast.thumbprint import Code, thumb

T = TypeVar("T")
FORMAT = 1
LEASE_S = 30.0
SLICE_S = 0.25
"""How long to wait for another worker's result before trying to take its lease again."""
TABLES_MAX = 256
DEMANDED_MIN = 16
"""With fewer nodes that wait for each other, a function that recurses too deep does so itself."""
_logger = logging.getLogger("holdfast.nodes")

_OPEN = frozenset({"computed", "cut off"})
"""In a plan, the states of nodes whose values are not known, or that may be left out."""
THRASHED_MIN = 16
"""So many results, and more than were hits, are computed again before it is said."""
AVERAGED = 8
"""How many results of a node its expected cost is the average of."""
PROGRESS_S = 2.0
"""How often a long walk says in the log how far it is."""

Call = Callable[[Node, tuple[Any, ...], dict[str, Any]], Any]
"""Calls the function of a node; `holdfast.aio` awaits it on the event loop."""


def call_plainly(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the function of a node in this thread."""
    if node.is_async:
        raise UsageError(
            f'node "{node.name}" is async', hint="process the graph from a store of holdfast.aio"
        )
    return node.function(*args, **kwargs)


class Nodes:
    """The nodes of one store in this process: cached results, and what is being computed."""

    def __init__(self, kernel: Kernel) -> None:
        self.scopes = kernel.part(Scopes)
        self.leases = kernel.leases
        self.log = kernel.log
        self.call: Call = call_plainly
        self.known_values: dict[Any, tuple[Any, str]] = {}
        self.idle: dict[Any, Any] = {}
        """Walks in which nothing changed, with all that must be unchanged to skip the next one."""
        self.known_scopes: set[str] = set()
        self._tables: dict[str, ResultTable] = {}
        self._mutex = threading.Lock()
        self._free = threading.Condition()
        self._busy: set[tuple[str, str, str]] = set()

    def table(self, graph: str, scope: str) -> ResultTable:
        """Returns the results of a graph for a scope."""
        stream = f"{PREFIX}/{graph}/{scope}"
        table = self._tables.get(stream)
        if table is None:
            with self._mutex:
                table = self._tables.setdefault(stream, ResultTable(self.log, stream))
                if len(self._tables) > TABLES_MAX:
                    self._tables.pop(next(iter(self._tables)), None)
        return table

    @contextmanager
    def only_one(self, what: tuple[str, str, str], *, waits: bool) -> Generator[bool]:
        """Lets one thread of this process at a time compute something; yields whether it is this.

        A lease alone is not enough: it belongs to a worker, and the threads of a process are one
        worker, so the backend would grant the same lease to both.
        """
        with self._free:
            while what in self._busy and waits:
                self._free.wait()
            is_first = what not in self._busy
            self._busy.add(what)
        try:
            yield is_first
        finally:
            if is_first:
                with self._free:
                    self._busy.discard(what)
                    self._free.notify_all()

    def hold(self, table: ResultTable, name: str, in_thumb: str) -> Lease | None:
        """Takes the lease on computing a node; returns None if another worker has it."""
        self._give(table)
        about = sha256(codec.encode_plain([table.stream, name, in_thumb])).hexdigest()
        return self.leases.hold(f"{PREFIX}/{about}", ttl_s=LEASE_S)

    def _give(self, table: ResultTable) -> None:
        """Makes the results for a subject's scope belong to the subject, as they copy its data.

        This is done before anything is computed. A large value becomes a blob before the event that
        names it is written, and that blob must already be sealed.
        """
        if not table.revision:
            self.log.give_as(table.stream, table.stream.split("/", 2)[2])

    def release(self, lease: Lease) -> None:
        """Gives the lease back."""
        self.leases.drop(lease)
        self.log.leases.release(lease)

    def append(
        self, table: ResultTable, name: str, type: str, content: Struct, key: str | None, **how: Any
    ) -> None:
        """Commits one event of a node; `key` is its idempotency key."""
        self._give(table)
        event = NewEvent(type, results.encode_event(content))
        write = StreamWrite(table.stream, (event,), key=key, checkpoint=name)
        # A step of a run would make this commit the run's. But a result is guarded by its own
        # lease and its own idempotency key, so the run's writer is set aside.
        writer = WRITER.set(None)
        try:
            self.log.commit(ProposedCommit((write,), **how))
        finally:
            WRITER.reset(writer)
        table.refresh()


# --- one place in a walk --------------------------------------------------------------------------


class Group:
    """A graph walked as a node of another one. Its value is a dict of its nodes' values by name."""

    def __init__(self, name: str, is_skipped: bool) -> None:
        self.name = name
        self.rounds: list[Level] = []
        self.is_exhausted = False
        self.is_skipped = is_skipped

    @cached_property
    def status(self) -> str:
        if self.is_skipped:
            return "skipped"
        found = {one.status for one in self.rounds[-1].members.values()}
        return next((one for one in ("computed", "cut off") if one in found), "hit")

    @cached_property
    def out_thumb(self) -> str:
        last = self.rounds[-1]
        seen = [[name, last.members[name].out_thumb] for name in last.graph.order]
        return sha256(codec.encode_plain(seen)).hexdigest()

    @property
    def value(self) -> Any:
        if self.is_skipped:
            return None
        last = self.rounds[-1]
        return {name: last.members[name].value for name in last.graph.order}


Member = NodeState | Group


class Level:
    """One pass over one graph: one for the walk, and one per round of each inner graph."""

    def __init__(
        self, graph: Graph, outer: Level | None, prefix: str, round: int, group: Group
    ) -> None:
        self.graph = graph
        self.outer = outer
        self.prefix = prefix
        self.round = round
        self.group = group
        self.members: dict[str, Member] = {}
        self.skipped: set[str] = set()
        self.errors: dict[str, CorruptError] = {}
        self.active: dict[str, None] = {}
        self.before: Group | None = None
        self.has_open = False
        """In a plan: whether a member may yield another value than it did."""
        self.is_unsure = outer is not None and outer.is_unsure
        """In a plan: whether members may be left out, by what is not computed yet."""

    def name_of(self, member: str) -> str:
        """Returns the full name of a member in this walk, such as `review/author@2`."""
        return f"{self.prefix}{member}" + (f"@{self.round}" if self.graph.repeat else "")


class InputValue:
    """An input of a walk: digested once, and given to each node as a separate copy.

    The copy is decoded from the sorted bytes that were digested, so inputs with equal digests also
    have their keys in the same order.
    """

    __slots__ = ("_encoded", "_thumb", "_value")

    def __init__(self, value: Any) -> None:
        self._value = value
        self._thumb: str | None = None
        self._encoded: bytes | None = None

    @property
    def thumb(self) -> str:
        if self._thumb is None:
            try:
                self._encoded = codec.encode_sorted(self._value)
                self._thumb = sha256(self._encoded).hexdigest()
            except ValueDomainError:
                self._thumb = thumb(self._value)
        return self._thumb

    @property
    def shown(self) -> str:
        return shown(self._value)

    def copy(self) -> Any:
        """Returns a copy, or the object itself if it cannot be stored. Needs `thumb` first."""
        return self._value if self._encoded is None else codec.decode(self._encoded)

    @property
    def itself(self) -> Any:
        return self._value

    def given(self) -> Any:
        """Returns a copy if the value can be stored, else the object itself."""
        try:
            return self.copy() if self.thumb else None
        except ValueDomainError:
            return self._value


class Known(Struct):
    """All that is known of a node before it is called."""

    node: Node
    name: str
    level: Any
    code: Code
    inputs: dict[str, InputValue]
    edges: dict[str, Member]
    ignored: dict[str, InputValue]
    in_thumb: str


class Verdict(Struct):
    """Whether a node has a result that counts, or the causes why it has none."""

    entry: Entry | None = None
    causes: tuple[Cause, ...] = ()
    expired: Entry | None = None
    """A result that would count if it were not too old."""


class Planned(Struct, frozen=True):
    """What a walk would do with one node.

    `hit` and `compute` are certain. A node that `may compute` depends on nodes that would be
    computed: its stored result is reused if those yield the same values as before. Or they decide
    whether the node is on the path, or whether there is another round.
    """

    node: str
    verdict: Literal["hit", "compute", "may compute", "skipped"]
    causes: tuple[Cause, ...] = ()
    cost: dict[str, float] = {}


class Computation:
    """What the context of a node that is being computed may ask of the walk around it."""

    def __init__(self, walker: Walker, known: Known) -> None:
        self._walker = walker
        self._known = known
        self.name = known.name
        self.scope = walker.scope
        self.sources = walker.sources
        self.functions = known.code.references

    def demand(self, name: str, path: tuple[str | int, ...] | None) -> Observed:
        """Returns the value of another node of the graph, which is processed first if needed."""
        self._walker.demanded.append(name)
        try:
            return self._walker.observe(self._known.level, name, path)
        finally:
            self._walker.demanded.pop()

    def check_known(self, name: str) -> None:
        """Raises UsageError unless a rule can read a node of that name."""
        self._walker.find(self._known.level, name)

    def check_skipped(self, name: str) -> None:
        """Raises UsageError unless a node of that name comes later in the walk."""
        level: Level = self._known.level
        if name not in level.graph.members:
            raise UsageError(
                f'node "{self.name}" skips "{name}", which graph "{level.graph.name}" has not'
            )
        if name in level.members or name in level.active:
            raise UsageError(f'node "{self.name}" skips "{name}", which does not come after it')


# --- the walk -------------------------------------------------------------------------------------

Asked = tuple[Level, str]
Steps = Generator[Asked, Member, T]
"""Some work that yields the members it needs, and is sent their states."""


def _drive(walker: Walker, first: Steps[T]) -> T:
    """Does some work, and before that, whatever it needs.

    The works that wait are in a list, and not on Python's stack: a node may have as many nodes
    before it as there are, whether its parameters name them or its stored result has read them.
    """
    waiting: list[Generator[Asked, Any, Any]] = [first]
    answer: Any = None
    error: BaseException | None = None
    while True:
        work = waiting[-1]
        try:
            level, name = work.send(answer) if error is None else work.throw(error)
        except StopIteration as done:
            answer, error = done.value, None
        except BaseException as raised:
            if len(waiting) == 1:
                raise
            answer, error = None, raised
        else:
            answer, error = walker.known(level, name), None
            if answer is None:
                waiting.append(walker.steps(level, name))
            continue
        waiting.pop()
        if not waiting:
            return answer


class Walker:
    """One walk over a graph for one scope."""

    def __init__(
        self,
        nodes: Nodes,
        graph: Graph,
        scope: str,
        inputs: Mapping[str, Any],
        *,
        cache: bool = True,
        force: bool | Collection[str] = False,
    ) -> None:
        self.nodes = nodes
        self.log = nodes.log
        self.graph = graph
        self.scope = scope
        self.given = check_inputs(graph, inputs)
        self.inputs = {name: InputValue(value) for name, value in self.given.items()}
        self.cache = cache
        self.force = _check_force(graph, force)
        self.table = nodes.table(graph.name, scope)
        now_us = self.log.clock.now_us()
        self.sources = Sources(nodes.scopes, now_us, nodes.known_values, scope)
        self.exhausted: list[str] = []
        self.computed = 0
        self._tell_at_s = perf_counter() + PROGRESS_S
        self.demanded: list[str] = []
        """The nodes that functions wait for which are being called, each within the one before."""
        self.planned: dict[str, Planned] | None = None
        """What would be done with each node, if this walk only plans; else None."""
        self.around: Callable[[Level, Node], NodeState] | None = None
        """Processes a node as a step of a run; None outside of runs."""
        self._in_step: dict[tuple[int, str], Member] | None = None
        self.blobs = self.log.blobs.read
        if cache:
            self.table.refresh()

    def run(self) -> Group:
        """Processes every node of the path, in order.

        A damaged result does not stop the other nodes; it is raised when they are done.
        """
        if self.cache:
            self.table.expect(len(self.graph.order))
        return _drive(self, self._rounds(self.graph, None, self.graph.name, ""))

    def _walk(self, level: Level) -> Steps[None]:
        """Processes every member of a graph, and notes damaged results in `level.errors`."""
        for number, name in enumerate(level.graph.order):
            self._tell_progress(level, number)
            try:
                yield level, name
            except CorruptError as error:
                if error.stream != self.table.stream:
                    raise
                _logger.warning("%s", error)
                level.errors[name] = error

    def _tell_progress(self, level: Level, number: int) -> None:
        """Says in the log how far a long walk is."""
        now_s = perf_counter()
        if now_s < self._tell_at_s:
            return
        self._tell_at_s = now_s + PROGRESS_S
        _logger.info(
            'graph "%s": %s of %s nodes are done, %s were computed',
            level.group.name,
            f"{number:,}",
            f"{len(level.graph.order):,}",
            f"{self.computed:,}",
        )

    def process(self, level: Level, name: str) -> Member:
        """Returns the state of a member. It is processed once per walk, after its dependencies."""
        known = self.known(level, name)
        return _drive(self, self.steps(level, name)) if known is None else known

    def known(self, level: Level, name: str) -> Member | None:
        """Returns the state of a member if it was processed already."""
        known = level.members.get(name)
        if known is None and self._in_step is not None:
            known = self._in_step.get((id(level), name))
        return known

    def steps(self, level: Level, name: str) -> Steps[Member]:
        """Processes a member, and yields what has to be processed before."""
        if name in level.errors:
            raise level.errors[name]
        if name in level.active:
            above = [*level.active]
            cycle = " -> ".join([*above[above.index(name) :], name])
            raise UsageError(f'graph "{level.graph.name}" has a cycle: {cycle}')
        member = level.graph.members[name]
        level.active[name] = None
        try:
            if not self._is_on_path(level, name):
                state: Member = self._skip(level, name, member)
            elif isinstance(member, Node):
                for edge in self._edges(level, member):
                    if self.known(*edge) is None:
                        yield edge
                if self.around is not None and self._in_step is None:
                    state = self.around(level, member)
                else:
                    state = yield from self._process_node(self.know(level, member))
            else:
                whole = level.name_of(name)
                state = yield from self._rounds(member, level, whole, f"{whole}/")
        finally:
            del level.active[name]
        if self._in_step is not None:
            # A step of a run demanded it. A replay takes that step from the journal and does not
            # demand it again, so it must not change the members of the level either.
            self._in_step[id(level), name] = state
            return state
        level.members[name] = state
        level.has_open |= state.status in _OPEN
        if isinstance(state, NodeState):
            level.skipped.update(state.skips)
        return state

    def in_step(self, level: Level, node: Node) -> NodeState:
        """Processes a node inside a step of a run, from the newest state of everything it reads."""
        self._in_step = {}
        try:
            self.table.refresh()
            self.sources.forget()
            return _drive(self, self._process_node(self.know(level, node)))
        finally:
            self._in_step = None

    def _is_on_path(self, level: Level, name: str) -> bool:
        path = level.graph.path
        if self.planned is not None:
            level.is_unsure |= path is not None and level.has_open
            if level.is_unsure:
                return True
        if name in level.skipped:
            return False
        if path is None:
            return True
        inputs = {key: one.given() for key, one in self.inputs.items()}
        so_far = {key: one.value for key, one in level.members.items()}
        names = {*path(inputs, so_far)}
        if unknown := sorted(names - level.graph.members.keys()):
            raise UsageError(f'the path of graph "{level.graph.name}" names "{unknown[0]}"')
        return name in names

    def _skip(self, level: Level, name: str, member: Node | Graph) -> Member:
        if is_node(member):
            whole = level.name_of(name)
            if self.planned is not None:
                self.planned[whole] = Planned(whole, "skipped")
            return skipped_state(whole, self.blobs)
        return Group(level.name_of(name), is_skipped=True)

    def _rounds(self, graph: Graph, outer: Level | None, name: str, prefix: str) -> Steps[Group]:
        """Walks a graph once, or in rounds until its `repeat` says that it is good enough."""
        group = Group(name, is_skipped=False)
        repeat = graph.repeat
        for round in range(1, (repeat.most if repeat else 1) + 1):
            level = Level(graph, outer, prefix, round, group)
            yield from self._walk(level)
            if level.errors:
                raise next(iter(level.errors.values()))
            group.rounds.append(level)
            if repeat is None:
                return group
            if self.planned is not None and level.has_open:
                self._plan_rounds(level, round + 1, repeat.most, self.planned)
                return group
            if repeat.enough(level.members[repeat.node].value):
                return group
        group.is_exhausted = True
        self.exhausted.append(name)
        return group

    def _plan_rounds(
        self, level: Level, first: int, last: int, planned: dict[str, Planned]
    ) -> None:
        """Notes the nodes of rounds that follow if one with unknown values is not enough."""
        for round in range(first, last + 1):
            further = Level(level.graph, level.outer, level.prefix, round, level.group)
            for name in _names_in(further):
                planned[name] = Planned(name, "may compute", cost=self._cost_of(name))

    def _cost_of(self, name: str) -> dict[str, float]:
        """Returns the average cost of a node's newest results."""
        contents = (entry.content() for entry in self.table.entries(name)[:AVERAGED])
        return _average([one.cost for one in contents if isinstance(one, Computed)])

    # --- what a node depends on ------------------------------------------------------------------

    def find(self, level: Level, name: str) -> tuple[Level, str]:
        """Returns the innermost level around this one with a member of that name.

        Raises UsageError if there is none.
        """
        inner: Level | None = level
        while inner is not None:
            if name in inner.graph.members:
                return inner, name
            inner = inner.outer
        raise UsageError(f'graph "{level.graph.name}" has no node "{name}"')

    def observe(self, level: Level, name: str, path: tuple[str | int, ...] | None) -> Observed:
        """Returns the value of a node, or a part of it, with its digest."""
        place, found = self.find(level, name)
        member = self.process(place, found)
        if member.status == "skipped":
            return Observed(None, ABSENT)
        value = _sorted_copy(member.value)
        if path is None:
            return Observed(value, member.out_thumb, shown=shown(value))
        part = part_of(value, path)
        digest = ABSENT if part is MISSING else thumb(part)
        return Observed(part, digest, shown="" if part is MISSING else shown(part))

    def know(self, level: Level, node: Node) -> Known:
        """Returns all that is known of a node before it is called, after processing its edges."""
        code = node._thumbed()
        inputs: dict[str, InputValue] = {}
        ignored: dict[str, InputValue] = {}
        edges: dict[str, Member] = {}
        thumbs: list[Any] = [FORMAT, code.thumb]
        for name in node.parameters:
            found = self._resolve(level, name)
            if found is None:
                continue
            if isinstance(found, InputValue):
                if name in node.ignore:
                    ignored[name] = found
                else:
                    inputs[name] = found
                    thumbs.append([name, found.thumb])
            else:
                edges[name] = found
                if name not in node.ignore:
                    thumbs.append([name, edge_thumb(found)])
        in_thumb = sha256(codec.encode_plain(thumbs)).hexdigest()
        return Known(node, level.name_of(node.name), level, code, inputs, edges, ignored, in_thumb)

    def _place_of(self, level: Level, name: str) -> Level | None:
        """Returns the innermost level in which a parameter names a member, `previous` or `round`.

        None if it names an input of the walk, or nothing.
        """
        inner: Level | None = level
        while inner is not None:
            if name in inner.graph.members or (inner.graph.repeat is not None and name in ROUND):
                return inner
            inner = inner.outer
        return None

    def _edges(self, level: Level, node: Node) -> Iterator[Asked]:
        """Yields the members that a node's parameters name."""
        for name in node.parameters:
            place = self._place_of(level, name)
            if place is not None and name in place.graph.members:
                yield place, name

    def _resolve(self, level: Level, name: str) -> InputValue | Member | None:
        """Returns what a parameter stands for; None if it keeps its default."""
        place = self._place_of(level, name)
        if place is None:
            return self.inputs.get(name)
        if name in place.graph.members:
            return self.process(place, name)
        if name == "round":
            return InputValue(place.round)
        return InputValue(None) if place.round == 1 else _round_before(place)

    # --- one node --------------------------------------------------------------------------------

    def _process_node(self, known: Known) -> Steps[NodeState]:
        """Returns the stored state of a node if it still counts, else computes and stores it."""
        if not self.cache:
            return self._unstored(known)
        verdict = yield from self._judge(known)
        if self.planned is not None:
            return (yield from self._plan(known, verdict, self.planned))
        if verdict.entry is not None:
            return self._hit(known, verdict.entry)
        return self._compute_once(known, verdict)

    def _plan(
        self, known: Known, verdict: Verdict, planned: dict[str, Planned]
    ) -> Steps[NodeState]:
        """Notes what would be done with a node, and returns its newest stored state meanwhile."""
        entries = self.table.results(known.name, known.node.keep).entries
        cost = self._cost_of(known.name)
        level: Level = known.level
        was_unsure = level.is_unsure
        if verdict.entry is None:
            is_unsure = was_unsure or (yield from self._may_hold(known, verdict))
            word = "may compute" if is_unsure else "compute"
            planned[known.name] = Planned(known.name, word, verdict.causes, cost)
            level.is_unsure = was_unsure or may_skip(known.node)
            for entry in entries:
                if isinstance(entry.content(), Computed):
                    return entry.state("computed", self.blobs)
            return replace(skipped_state(known.name, self.blobs), status="computed")
        content = verdict.entry.content()
        edges = [edge.status for edge in known.edges.values()]
        edges += [
            place.members[name].status
            for read in content.reads
            if read.kind == "node"
            for place, name in [self.find(known.level, read.name)]
        ]
        is_open = not _OPEN.isdisjoint(edges)
        planned[known.name] = Planned(known.name, "may compute" if is_open else "hit", (), cost)
        level.is_unsure = was_unsure or (is_open and may_skip(known.node))
        if isinstance(content, Failed):
            return replace(skipped_state(known.name, self.blobs), status="computed")
        return verdict.entry.state("cut off" if is_open or was_unsure else "hit", self.blobs)

    def _may_hold(self, known: Known, verdict: Verdict) -> Steps[bool]:
        """Returns whether a kept result may count, depending on what open nodes will yield."""
        is_forced = verdict.causes[0].kind == "forced"
        is_open = any(edge.status in _OPEN for edge in known.edges.values())
        if is_forced or not is_open:
            return False
        inputs = {name: one.thumb for name, one in known.inputs.items()}
        closed = {n: edge_thumb(e) for n, e in known.edges.items() if e.status not in _OPEN}
        for entry in self.table.results(known.name, known.node.keep).kept(known.node.keep):
            one = entry.content()
            if (
                isinstance(one, Computed)
                and one.code == known.code.thumb
                and {name: given.thumb for name, given in one.inputs.items()} == inputs
                and {name: one.edges.get(name) for name in closed} == closed
                and (yield from self._check(known, entry))[0] is None
            ):
                return True
        return False

    def is_forced(self, known: Known) -> bool:
        """Returns whether a node must be computed, whatever is stored."""
        if self.force is True:
            return True
        if not self.force:
            return False
        return known.name in self.force or without_rounds(known.name) in self.force

    def judge(self, known: Known) -> Verdict:
        """Returns whether a stored result counts; it may be a kept failure, which counts too."""
        return _drive(self, self._judge(known))

    def _judge(self, known: Known) -> Steps[Verdict]:
        if self.is_forced(known):
            self._log_damage(known)
            return Verdict(causes=(Cause("forced", known.name),))
        if known.node.always:
            return Verdict(causes=(Cause("forced", known.name, text="always"),))
        results = self.table.results(known.name, known.node.keep)
        since = self.table.invalidated_at(known.name)
        causes: tuple[Cause, ...] = ()
        expired: Entry | None = None
        for entry in results.kept(known.node.keep, known.in_thumb):
            if entry.record.revision <= since:
                causes = causes or (Cause("forced", known.name, text="invalidated"),)
                break
            cause, is_old = yield from self._check(known, entry)
            if cause is None:
                return Verdict(entry)
            causes = causes or (cause,)
            expired = expired or (entry if is_old else None)
        return Verdict(None, causes or self._differences(known, results.entries), expired)

    def _log_damage(self, known: Known) -> None:
        for entry in self.table.entries(known.name)[:1]:
            try:
                entry.content()
            except CorruptError as error:
                _logger.warning("it is replaced: %s", error.message)

    def _check(self, known: Known, entry: Entry) -> Steps[tuple[Cause | None, bool]]:
        """Returns why a result does not count (None if it does), and whether it is only too old."""
        content = entry.content()
        for place, read in enumerate(content.reads):
            cause = yield from self._check_read(known, entry, place, read)
            if cause is not None:
                return cause, False
        if isinstance(content, Computed):
            for path in known.node.writes:
                if not os.path.exists(path):
                    return Cause("missing", path, text="a file that the node writes"), False
        if content.valid_until and content.valid_until <= self.sources.now_us:
            until = results.to_datetime(content.valid_until).isoformat()
            return Cause("time", known.name, old=until, text="it counted until then"), isinstance(
                content, Computed
            )
        return None, False

    def _check_read(
        self, known: Known, entry: Entry, place: int, read: Read
    ) -> Steps[Cause | None]:
        if read.kind == "node":
            try:
                place_of, found = self.find(known.level, read.name)
            except UsageError:
                return Cause("dependency", read.name, read.shown, "it is not in the graph")
            member = self.known(place_of, found) or (yield place_of, found)
            if read.path is None and edge_thumb(member) == read.thumb:
                return None
            if self.planned is not None and member.status in _OPEN:
                return None  # in a plan, it may turn out to yield the same value
            seen = self.observe(known.level, read.name, read.path)
            if seen.thumb == read.thumb:
                return None
            result = self._said_by(member, entry)
            return Cause("dependency", read.name, read.shown, seen.shown, result=result)
        stamp = entry.stamp(place, read)
        checked = trace.check(read, stamp, self.sources, known.code.references)
        if checked.is_same:
            if checked.seen is not None:
                entry.set_stamp(place, checked.stamp)
            return None
        new = "" if checked.seen is None else checked.seen.shown
        kind = "time" if read.kind == "clock" else "input"
        return Cause(kind, results.toggle_name(read), read.shown, new)

    def _said_by(self, member: Member | None, before: Entry) -> int:
        """Returns the result that says why a dependency changed since a node's own result.

        0 if it says nothing of that: the dependency went back to an older result, or is a graph.
        Revisions decide, and not what this walk has done. So the cause is the same if a walk that
        was killed has computed the dependency, and another one goes on.
        """
        if not isinstance(member, NodeState) or member.revision <= before.record.revision:
            return 0
        return 0 if self.planned is not None and member.status in _OPEN else member.revision

    def _differences(self, known: Known, entries: list[Entry]) -> tuple[Cause, ...]:
        """Returns how a node differs from its newest result; `missing` if it has none."""
        for entry in entries:
            try:
                before = entry.content()
            except CorruptError:
                continue  # it was for other inputs, and is only read here to explain a change
            if isinstance(before, Computed):
                return self._differences_from(known, entry, before)
        return (Cause("missing", known.name, text="it has no result yet"),)

    def _differences_from(self, known: Known, entry: Entry, before: Computed) -> tuple[Cause, ...]:
        causes: list[Cause] = []
        if before.code != known.code.thumb:
            causes.append(_code_cause(before.parts, known.code))
        for name in {**before.inputs, **known.inputs}:
            old, new = before.inputs.get(name), known.inputs.get(name)
            if (None if old is None else old.thumb) != (None if new is None else new.thumb):
                new_shown = "" if new is None else new.shown
                causes.append(Cause("input", name, "" if old is None else old.shown, new_shown))
        for name in {**before.edges, **known.edges}:
            edge = known.edges.get(name)
            thumb_now = None if edge is None else edge_thumb(edge)
            if before.edges.get(name) != thumb_now or (edge is None and name in before.edges):
                old_shown = _edge_shown(before.edges.get(name))
                result = self._said_by(edge, entry)
                cause = Cause("dependency", name, old_shown, _edge_shown(thumb_now), result=result)
                causes.append(cause)
        # No difference: an older result fits, but it is no longer kept, or was invalidated.
        return tuple(causes) or (Cause("missing", known.name, text="its result is not kept"),)

    def _hit(self, known: Known, entry: Entry) -> NodeState:
        content = entry.content()
        if READER.get() is not None and entry.record.subject is not None:
            tell_reader(self.log.sealing, entry.record.subject)
        if isinstance(content, Failed):
            raise _kept_failure(known, content)
        self.table.count_hit(known.name)
        # An older result counts because a dependency went back: nothing was cut off there.
        newest = self.table.entries(known.name)[0].record.revision
        is_cut_off = newest == entry.record.revision and any(
            edge.status == "computed" for edge in known.edges.values()
        )
        return entry.state("cut off" if is_cut_off else "hit", self.blobs)

    # --- computing -------------------------------------------------------------------------------

    def _compute_once(self, known: Known, verdict: Verdict) -> NodeState:
        """Computes a node, or waits for the result if another thread or worker computes it.

        With `stale="serve"`, an expired result is returned instead of waiting.
        """
        what = self.table.stream, known.name, known.in_thumb
        may_serve = known.node.stale == "serve"
        while True:
            old = verdict.expired if may_serve else None
            with self.nodes.only_one(what, waits=old is None) as is_first:
                position = self.log.position()
                lease = (
                    self.nodes.hold(self.table, known.name, known.in_thumb) if is_first else None
                )
                if lease is not None:
                    try:
                        # The last owner of the lease wrote its result before it released it. Now
                        # that we have the lease, that result is visible, so look for it again.
                        self.table.refresh()
                        verdict = self.judge(known)
                        if verdict.entry is not None:
                            return self._hit(known, verdict.entry)
                        return self._compute(known, verdict, lease)
                    except LeaseLostError as lost:
                        if lost.lease != lease.name:
                            raise
                        _logger.warning("%s: it is looked up again", lost)
                    finally:
                        self.nodes.release(lease)
            if old is not None:
                _logger.debug('node "%s" is served as it was: another worker computes', known.name)
                return old.state("stale", self.blobs)
            # Look before waiting: the result may have been committed before `position` was taken,
            # and then nothing after that position would wake this thread.
            self.table.refresh()
            self.sources.forget()
            verdict = self.judge(known)
            if verdict.entry is not None:
                return self._hit(known, verdict.entry)
            if lease is None:
                self.log.wait_after(position, SLICE_S)

    def _compute(self, known: Known, verdict: Verdict, lease: Lease) -> NodeState:
        """Calls the node, and stores its result in one commit that is fenced by the lease.

        The idempotency key contains a number that grows per (node, in_thumb). A result that is
        computed again must be a new event, not the repetition of an older write.
        """
        fence = Fence(lease.name, lease.owner, lease.epoch)
        number = self.table.next_number(known.name, known.in_thumb)
        key = f"{known.name}:{known.in_thumb}:{number}"
        context, began_us = NodeContext(Computation(self, known)), self.log.clock.now_us()
        try:
            value, took_s = self._call(known, context)
        except HoldfastError:
            raise
        except Exception as error:
            self._check_demanded(error)
            if known.node.keep_failures_s is not None:
                until = began_us + round(known.node.keep_failures_s * 1e6)
                fault = values.fault_of(error)
                reads = tuple(context.reads)
                failed = Failed(known.name, known.in_thumb, fault, reads, until)
                self.nodes.append(self.table, known.name, results.FAILED, failed, key, fence=fence)
            raise _failure(known, error) from error
        computed = self._computed(known, context, verdict.causes, value, took_s, began_us)
        tally = self._tally(known, number)
        computed = replace(computed, tally=tally)
        self.nodes.append(self.table, known.name, results.COMPUTED, computed, key, fence=fence)
        self.table.hits(known.name, takes=True)
        return self.table.entry_of(known.name, key).state("computed", self.blobs)

    def _tally(self, known: Known, number: int) -> Tally:
        """Returns what to note with a result; says once if the node keeps too few results.

        An earlier result for the same `in_thumb`, of which none is kept, was let go of by `keep`.
        """
        keep = known.node.keep
        before = self.table.tally(known.name)
        is_again = number > 1 and not self.table.results(known.name, keep).kept(
            keep, known.in_thumb
        )
        evicted = before.evicted + is_again
        thrashes = evicted >= THRASHED_MIN and evicted > before.hits
        if thrashes and not before.is_said:
            _logger.warning(
                'node "%s" of "%s" keeps %s, which is too few: %s results were computed again that '
                "it had let go of, and %s were hits; give it a larger keep",
                known.name,
                self.table.stream,
                keep,
                f"{evicted:,}",
                f"{before.hits:,}",
            )
        return Tally(before.computed + 1, before.hits, evicted, before.is_said or thrashes)

    def _unstored(self, known: Known) -> NodeState:
        """Computes a node without reading or writing stored results."""
        context, now_us = NodeContext(Computation(self, known)), self.log.clock.now_us()
        try:
            value, took_s = self._call(known, context)
        except HoldfastError:
            raise
        except Exception as error:
            self._check_demanded(error)
            raise _failure(known, error) from error
        causes = (Cause("forced", known.name, text="the cache is off"),)
        computed = self._computed(known, context, causes, value, took_s, now_us, spills=False)
        return results.state_of(computed, "computed", now_us, 0, self.blobs)

    def _check_demanded(self, error: Exception) -> None:
        """Raises UsageError if functions that wait for each other have used up Python's stack.

        A function that reads another node is in the middle of its work, and stays on the stack. So
        this is the one way of depending on a node that has a bound.
        """
        if isinstance(error, RecursionError) and len(self.demanded) >= DEMANDED_MIN:
            names = self.demanded
            raise UsageError(
                f'nodes of graph "{self.graph.name}" read each other {len(names)} deep while they '
                f'are computed, from "{names[0]}" to "{names[-1]}": Python\'s stack ends there',
                hint="name what a node reads as its parameter, or put the nodes that are read "
                "before those that read them into the graph",
            ) from error

    def _call(self, known: Known, context: NodeContext) -> tuple[bytes, float]:
        """Calls the function of a node; returns the encoded value, and the seconds it took."""
        arguments: dict[str, Any] = {name: one.copy() for name, one in known.inputs.items()}
        arguments |= {name: one.itself for name, one in known.ignored.items()}
        arguments |= {name: _sorted_copy(edge.value) for name, edge in known.edges.items()}
        args = (context,) if known.node.takes_context else ()
        began, reader = perf_counter(), READER.get()
        reading = READER.set(partial(self._reads, known.name, reader))
        try:
            value = self.nodes.call(known.node, args, arguments)
        finally:
            READER.reset(reading)
            context.is_over = True
            self.sources.forget()
        took_s = perf_counter() - began
        self.computed += 1
        return values.encode(value), took_s

    def _reads(
        self, name: str, around: Callable[[Sealing, str], None] | None, sealing: Sealing, id: str
    ) -> None:
        """Notes that a node reads a subject's data: what is stored from here on is the subject's.

        The run around it, if there is one, reads it too. Raises UsageError for a second subject.
        """
        if around is not None:
            around(sealing, id)
        log, stream = self.log, self.table.stream
        if not self.cache or (sealing is not log.sealing and not log.sealing.keys.has(id)):
            return
        owner = log.subject_of(stream)
        if owner == id or log.sealing.keys.is_erased(id):
            return
        if owner is None:
            log.become(stream, id)
        else:
            raise UsageError(
                f'node "{name}" was about to read data of subject {id}, and the results of its '
                f"graph for this scope are subject {owner}'s: one key seals them",
                hint="process it for a scope of its own, or with cache=False",
            )

    def _computed(
        self,
        known: Known,
        context: NodeContext,
        causes: tuple[Cause, ...],
        encoded: bytes,
        took_s: float,
        began_us: int,
        *,
        spills: bool = True,
    ) -> Computed:
        """Returns a result in the form that is stored; large values become blobs if `spills`."""
        node, reads = known.node, tuple(context.reads)
        out_thumb = sha256(codec.encode_sorted(codec.decode(encoded))).hexdigest()
        if node.equal is not None and self.cache:
            out_thumb = self._backdated(known, encoded, out_thumb)
        until = context.until
        if node.ttl_s is not None:
            ends = began_us + round(node.ttl_s * 1e6)
            until = min(until or ends, ends)
        artifacts = results.encode_artifacts(context.artifacts)
        stream = self.table.stream
        return Computed(
            node=known.name,
            in_thumb=known.in_thumb,
            full_thumb=results.full_thumb(known.in_thumb, reads),
            out_thumb=out_thumb,
            code=known.code.thumb,
            value=stored(self.log, stream, encoded) if spills else Raw(encoded),
            cause=Cause(causes[0].kind, known.name, causes=causes),
            parts=known.code.parts,
            untracked=known.code.untracked,
            inputs={name: Input(one.thumb, one.shown) for name, one in known.inputs.items()},
            edges={name: edge_thumb(edge) for name, edge in known.edges.items()},
            reads=reads,
            artifacts=stored(self.log, stream, artifacts) if spills else Raw(artifacts),
            skips=tuple(dict.fromkeys(context.skips)),
            valid_until=until,
            cost={"seconds": round(took_s, 6), **context.costs},
        )

    def _backdated(self, known: Known, encoded: bytes, out_thumb: str) -> str:
        """Returns the newest result's digest if the node's `equal` accepts the new value.

        Dependents compare digests only, so they are then not computed again.
        """
        assert known.node.equal is not None, "BUG: nothing says what is equal"
        for entry in self.table.entries(known.name):
            try:
                content = entry.content()
            except CorruptError:
                return out_thumb
            if isinstance(content, Computed):
                old = values.decode(content.value, self.blobs)
                same = content.out_thumb == out_thumb or known.node.equal(
                    old, codec.decode(encoded)
                )
                return content.out_thumb if same else out_thumb
        return out_thumb


def _names_in(level: Level) -> Iterator[str]:
    """Yields the full names of all nodes of a level, with all rounds of the graphs in it."""
    waiting = [level]
    while waiting:
        inner = waiting.pop()
        for name, member in inner.graph.members.items():
            whole = inner.name_of(name)
            if isinstance(member, Node):
                yield whole
                continue
            for round in range(1, (member.repeat.most if member.repeat else 1) + 1):
                waiting.append(Level(member, inner, f"{whole}/", round, inner.group))


def _check_force(graph: Graph, force: bool | Collection[str]) -> bool | frozenset[str]:
    if isinstance(force, bool):
        return force
    names = frozenset([force] if isinstance(force, str) else force)
    unknown = sorted(name for name in map(without_rounds, names) if name not in dict(graph.nodes()))
    if unknown:
        raise NotFoundError(f'graph "{graph.name}" has no node "{unknown[0]}"')
    return names


def without_rounds(name: str) -> str:
    return "/".join(part.partition("@")[0] for part in name.split("/"))


def _round_before(level: Level) -> Group:
    """Returns a group that ends with the round before: the value of the parameter `previous`."""
    if level.before is None:
        level.before = Group(level.group.name, is_skipped=False)
        level.before.rounds = level.group.rounds[: level.round - 1]
    return level.before


def edge_thumb(edge: Member) -> str | None:
    return None if edge.status == "skipped" else edge.out_thumb


def _edge_shown(thumb: str | None) -> str:
    return "skipped" if thumb is None else thumb[:12]


def _sorted_copy(value: Any) -> Any:
    """Returns a copy with its keys sorted, so values with equal digests have the same order."""
    return codec.decode(codec.encode_sorted(value))


def _average(costs: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for cost in costs for name in cost)
    return {name: sum(cost.get(name, 0) for cost in costs) / len(costs) for name in names}


def _code_cause(before: dict[str, str], code: Code) -> Cause:
    changed = [
        name
        for name in sorted({**before, **code.parts})
        if before.get(name) != code.parts.get(name)
    ]
    old = ", ".join(f"{name} {before[name]}" for name in changed if name in before)
    new = ", ".join(f"{name} {code.parts[name]}" for name in changed if name in code.parts)
    return Cause("code", ", ".join(changed), old, new)


def _failure(known: Known, error: Exception) -> NodeError:
    fault = values.fault_of(error)
    data = codec.decode(fault.data) if fault.data else None
    return NodeError(known.level.graph.name, known.name, fault.kind, fault.message, data)


def _kept_failure(known: Known, failed: Failed) -> NodeError:
    fault = failed.fault
    data = codec.decode(fault.data) if fault.data else None
    return NodeError(known.level.graph.name, known.name, fault.kind, fault.message, data)


def check_processable() -> None:
    """Raises UsageError in the body of a run, which is entered again after a crash."""
    refuse_in_body("processing a graph")

"""Declares nodes and rules from functions, and graphs from nodes.

A parameter of a node is an edge: it names another node of the graph, or an input of the walk. A
graph is checked when it is made, so that a walk never meets a cycle or a duplicate name.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from types import CodeType
from typing import Any, Literal, TypeGuard, TypeVar, cast, overload

from msgspec import Struct

from holdfast.core.arguments import check_call, check_duration, check_flag, check_whole
from holdfast.core.intent import Registry
from holdfast.core.limits import check_size
from holdfast.errors import NotFoundError, UsageError, show_value
from holdfast.runs.events import Effect
from holdfast.runs.values import check_name_text
from holdfast.thumbprint import TRACKS, Code, Track, code_of

KEEP = 8
KEEP_MAX = 64
"""How many results of each node stay in memory at least, to explain what has changed."""
EFFECTS: tuple[Effect, ...] = ("pure", "read", "idempotent", "effect")
"""The effect classes of nodes. A `txn` commits together with a run's journal; a node has none."""
DEPTH_MAX = 64
"""How deep graphs nest. What is done with inner graphs stays within Python's own stack by that."""
SETTINGS = frozenset({"cache", "force", "run", "author", "because"})
"""The keyword arguments of `process` and `accept` themselves; no input can have such a name."""
ROUND = frozenset({"previous", "round"})
"""Parameters of a node in a repeated graph: the values of the round before, and the round."""

_OF_VARIABLES = frozenset({*dis.haslocal, *dis.hasfree})

Stale = Literal["recompute", "serve"]


class Keep(Struct, frozen=True):
    """How many of a node's newest results are tried: a number, or as many as have a size."""

    count: int = 1 << 62
    size: int | None = None

    def __str__(self) -> str:
        return f"{self.count:,} results" if self.size is None else f"{self.size:,} bytes of results"


def check_keep(keep: object) -> Keep:
    """Returns what `keep` says: a number of results, or a size as text."""
    if isinstance(keep, str):
        return Keep(size=check_size(keep, "keep"))
    return Keep(check_whole(keep, "keep", least=1))


Path = Callable[[Mapping[str, Any], Mapping[str, Any]], Iterable[str]]
F = TypeVar("F", bound=Callable[..., Any])


class Node:
    """A function whose results are stored. It runs again only if something that counts changed."""

    counts_by_name = True  # in the code of another node

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        ttl_s: float | None = None,
        equal: Callable[[Any, Any], bool] | None = None,
        effect: Effect = "pure",
        track: Track = "closure",
        version: str | None = None,
        keep: Keep,
        writes: tuple[str, ...] = (),
        always: bool = False,
        stale: Stale = "recompute",
        keep_failures_s: float | None = None,
        ignore: tuple[str, ...] = (),
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.ttl_s = ttl_s
        self.equal = equal
        self.effect: Effect = effect
        self.track: Track = track
        self.version = version
        self.keep = keep
        self.writes = writes
        self.always = always
        self.stale: Stale = stale
        self.keep_failures_s = keep_failures_s
        self.ignore = frozenset(ignore)
        self.is_async = inspect.iscoroutinefunction(function)
        self.takes_context, self.parameters, self.optional = _parameters(function, name)
        if unknown := self.ignore - {*self.parameters}:
            raise UsageError(
                f'ignore names parameters of node "{name}", found {", ".join(sorted(unknown))}'
            )
        self._code: Code | None = None

    def _thumbed(self) -> Code:
        """Returns the thumbprint of the current code; it is cached until the code changes."""
        code = self._code
        if code is None or not code.holds():
            code = self._code = code_of(self.function, track=self.track, version=self.version)
        return code

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the plain function: no result is looked up or stored."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Node {self.name}>"


def _parameters(
    function: Callable[..., Any], name: str
) -> tuple[bool, tuple[str, ...], frozenset[str]]:
    """Returns whether a function takes a context, its other parameters, and those with defaults."""
    found = list(inspect.signature(function).parameters.values())
    takes_context = bool(found) and found[0].name == "ctx"
    found = found[takes_context:]
    for one in found:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise UsageError(
                f'node "{name}" has the parameter {one}: each parameter names a node or an input'
            )
    optional = frozenset(one.name for one in found if one.default is not one.empty)
    return takes_context, tuple(one.name for one in found), optional


def is_node(value: object) -> TypeGuard[Node]:
    """Returns whether something is a node."""
    return isinstance(value, Node)


def may_skip(node: Node) -> bool:
    """Returns whether a node may call `ctx.skip`: it names `skip`, or hands its context on.

    Without a context it cannot. Code that cannot be read, or that others wrap, may.
    """
    if not node.takes_context:
        return False
    code = getattr(node.function, "__code__", None)
    if code is None or inspect.unwrap(node.function) is not node.function:
        return True
    parts = [code]
    while parts:
        part = parts.pop()
        if "skip" in part.co_names or _hands_on(part, "ctx"):
            return True
        parts += [found for found in part.co_consts if inspect.iscode(found)]
    return False


def _hands_on(code: CodeType, name: str) -> bool:
    """Returns whether code does more with a variable than to look up its attributes.

    An inner function may have it as well: its own code is looked at too.
    """
    found = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
    for one, after in zip(found, [*found[1:], None], strict=True):
        if one.opcode not in _OF_VARIABLES or one.opname in ("MAKE_CELL", "LOAD_CLOSURE"):
            continue
        named = cast("str | tuple[str, ...]", one.argval)  # newer Pythons have pairs of variables
        *first, last = named if isinstance(named, tuple) else (named,)
        is_asked = after is not None and after.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if name in first or (last == name and not is_asked):
            return True
    return False


def check_node_name(name: object, what: str) -> str:
    """Returns the name of a node or graph; raises UsageError if it has a separator of names."""
    name = check_name_text(name, what)
    if bad := {"/", "@", ":", "*"} & {*name}:
        raise UsageError(f'{what} "{name}" has the character {min(bad)}, which separates names')
    return name


def _check_settings(
    effect: object,
    track: object,
    version: object,
    always: object,
    stale: object,
    equal: object,
) -> None:
    """Raises UsageError for an invalid setting of a node."""
    if effect not in EFFECTS:
        raise UsageError(
            f"effect of a node is one of {', '.join(EFFECTS)}, found {show_value(effect)}"
        )
    if track is not None and track not in TRACKS:
        raise UsageError(f"track is one of {', '.join(TRACKS)}, found {show_value(track)}")
    if stale not in ("recompute", "serve"):
        raise UsageError(f'stale is "recompute" or "serve", found {show_value(stale)}')
    if version is not None and not isinstance(version, str):
        raise UsageError(f"version is text, found {show_value(version)}")
    check_flag(always, "always")
    if equal is not None:
        check_call(equal, "equal")


@overload
def node(function: Callable[..., Any], /) -> Node: ...
@overload
def node(
    *,
    name: str | None = ...,
    ttl: object = ...,
    equal: Callable[[Any, Any], bool] | None = ...,
    effect: Effect = ...,
    track: Track | None = ...,
    version: str | None = ...,
    keep: int | str = ...,
    writes: str | PathLike[str] | Sequence[str | PathLike[str]] = ...,
    always: bool = ...,
    stale: Stale = ...,
    keep_failures: object = ...,
    ignore: Sequence[str] = ...,
) -> Callable[[Callable[..., Any]], Node]: ...
def node(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    ttl: object = None,
    equal: Callable[[Any, Any], bool] | None = None,
    effect: Effect = "pure",
    track: Track | None = None,
    version: str | None = None,
    keep: int | str = KEEP,
    writes: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
    always: bool = False,
    stale: Stale = "recompute",
    keep_failures: object = None,
    ignore: Sequence[str] = (),
) -> Any:
    """Makes a function a node of graphs. Used as `@node` or as `@node(…)` with settings.

    A result counts for `ttl`; with `stale="serve"` an expired one is returned while another worker
    computes. If `equal(old, new)` is true, dependents are not computed again. The `keep` newest
    results are tried, or as many as have that size, such as "10MB"; `always` computes the node each
    time. `track` says how far changes of the code are followed; `version` replaces that. The node
    is computed again if a file of `writes` is missing. Failures are kept for `keep_failures`.
    Changes of the parameters named in `ignore` do not count.
    """
    _check_settings(effect, track, version, always, stale, equal)
    kept = check_keep(keep)
    paths = [writes] if isinstance(writes, str | PathLike) else writes
    ttl_s = None if ttl is None else check_duration(ttl, "ttl")
    failures_s = None if keep_failures is None else check_duration(keep_failures, "keep_failures")

    def define(function: Any) -> Node:
        if not callable(function) or isinstance(function, Node | type):
            raise UsageError(f"a node is a function, found {show_value(function)}")
        known_as = getattr(function, "__name__", "") if name is None else name
        return Node(
            function,
            name=check_node_name(known_as, "a node's name"),
            ttl_s=ttl_s,
            equal=equal,
            effect=effect,
            track=track or ("closure" if version is None else "none"),
            version=version,
            keep=kept,
            writes=tuple(fspath(path) for path in paths),
            always=always,
            stale=stale,
            keep_failures_s=failures_s,
            ignore=tuple(ignore),
        )

    return define if function is None else define(function)


# --- graphs ---------------------------------------------------------------------------------------


class Until:
    """When a repeated graph ends: a test on the value of one node, and a limit of rounds."""

    def __init__(self, node: str, enough: Callable[[Any], bool], most: int) -> None:
        self.node = node
        self.enough = enough
        self.most = most


class Graph:
    """Nodes by name, ordered so that each comes after its dependencies.

    A graph can be a node of another graph; its value is a dict of its nodes' values by name.
    `path(inputs, values)` returns the names of the nodes to run, given the values so far; other
    nodes are skipped.
    """

    counts_by_name = True

    def __init__(
        self, name: str, nodes: Iterable[Node | Graph], *, path: Path | None = None
    ) -> None:
        self.name = check_node_name(name, "a graph's name")
        self.path = path
        self.repeat: Until | None = None
        self.members: dict[str, Node | Graph] = {}
        if path is not None:
            check_call(path, "path")
        for one in nodes:
            if not isinstance(one, Node | Graph):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(
                    f'graph "{name}" is made of nodes and graphs, found {show_value(one)}',
                    hint="put @holdfast.node above the function",
                )
            if one.name in self.members:
                raise UsageError(f'graph "{name}" has two nodes of the name "{one.name}"')
            self.members[one.name] = one
        if not self.members:
            raise UsageError(f'graph "{name}" has no nodes')
        inner = [one.depth for one in self.members.values() if isinstance(one, Graph)]
        self.depth: int = 1 + max(inner, default=0)
        if self.depth > DEPTH_MAX:
            raise UsageError(
                f'graph "{name}" is nested {self.depth} deep: graphs nest at most {DEPTH_MAX} deep',
                hint="put the nodes of the inner graphs into fewer graphs",
            )
        self.order = self._sorted()
        self.needs, self.takes = self._outside()
        if taken := SETTINGS & self.takes:
            raise UsageError(
                f'graph "{name}" takes an input "{min(taken)}", which is a setting of process',
                hint="give the parameter another name",
            )
        self.may_be_idle = path is None and all(
            not one.always if isinstance(one, Node) else one.may_be_idle
            for one in self.members.values()
        )
        """Whether only recorded things decide a walk: no `path`, no `always`, no repetition."""
        _graphs[self.name] = self

    @classmethod
    def of_rule(cls, name: str, rule: Node) -> Graph:
        """Returns a graph of one rule, whose results are stored with those of the named graph."""
        alone = object.__new__(cls)
        alone.name = name
        alone.depth = 1
        alone.path = alone.repeat = None
        alone.may_be_idle = False
        alone.members = {rule.name: rule}
        alone.order = (rule.name,)
        alone.needs, alone.takes = alone._outside()
        return alone

    def until(self, node: str, enough: Callable[[Any], bool], *, most: int | None = None) -> Graph:
        """Returns this graph, repeated until `enough(value of the node)`, at most `most` times.

        A node may take the parameters `previous`, the values of the round before by name (None in
        the first), and `round`. The results of each round are stored. If the limit is reached, the
        graph is listed in the walk's `exhausted`.
        """
        if node not in self.members:
            raise UsageError(f'graph "{self.name}" has no node "{node}" to wait for')
        check_call(enough, "enough")
        if most is None:
            raise UsageError(
                f'the repetition of graph "{self.name}" has no bound', hint="give most=5"
            )
        if taken := ROUND & self.members.keys():
            raise UsageError(f'a node of a repeated graph cannot be called "{min(taken)}"')
        repeated = Graph(self.name, self.members.values(), path=self.path)
        repeated.may_be_idle = False
        repeated.repeat = Until(node, enough, check_whole(most, "most", least=1))
        repeated.needs -= ROUND
        repeated.takes -= ROUND
        return repeated

    def _sorted(self) -> tuple[str, ...]:
        """Returns the names, dependencies first, else as given; raises UsageError for a cycle.

        It keeps a stack of its own: a chain of nodes may be longer than Python's is deep.
        """
        done: dict[str, None] = {}
        for first in self.members:
            # The names that wait for what they depend on, each with the rest of its edges.
            above: dict[str, Iterator[str]] = {}
            name: str | None = first if first not in done else None
            while name is not None:
                if name not in above:
                    above[name] = iter(self.edges(name))
                below = next((one for one in above[name] if one not in done), None)
                if below is None:
                    done[name] = None
                    del above[name]
                    name = next(reversed(above), None)
                elif below in above:
                    waiting = [*above]
                    cycle = " -> ".join([*waiting[waiting.index(below) :], below])
                    raise UsageError(f'graph "{self.name}" has a cycle: {cycle}')
                else:
                    name = below
        return tuple(done)

    def edges(self, name: str) -> list[str]:
        """Returns the members of this graph that a member depends on, by its parameters."""
        member = self.members[name]
        takes = member.parameters if isinstance(member, Node) else sorted(member.takes)
        return [one for one in takes if one in self.members and (one != name or is_node(member))]

    def _outside(self) -> tuple[set[str], set[str]]:
        """Returns the inputs that the graph needs, and all that it takes."""
        needs: set[str] = set()
        takes: set[str] = set()
        for member in self.members.values():
            if isinstance(member, Node):
                takes |= {*member.parameters}
                needs |= {*member.parameters} - member.optional
            else:
                takes |= member.takes
                needs |= member.needs
        return needs - self.members.keys(), takes - self.members.keys()

    def nodes(self, prefix: str = "") -> Iterable[tuple[str, Node]]:
        """Yields every node with its full name, in order, including those of inner graphs."""
        for name in self.order:
            member = self.members[name]
            if isinstance(member, Node):
                yield f"{prefix}{name}", member
            else:
                yield from member.nodes(f"{prefix}{name}/")

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {', '.join(self.order)}>"


def is_graph(value: object) -> TypeGuard[Graph]:
    """Returns whether something is a graph."""
    return isinstance(value, Graph)


def check_graph(graph: object) -> Graph:
    """Returns the argument if it is a graph, else raises UsageError."""
    if not is_graph(graph):
        raise UsageError(f"a graph is a holdfast.Graph, found {show_value(graph)}")
    return graph


def check_inputs(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inputs of a walk; raises UsageError if one is missing or unknown."""
    if {*inputs} == graph.takes:
        return dict(inputs)
    missing = sorted(graph.needs - inputs.keys())
    if missing:
        takers = [name for name, one in graph.nodes() if missing[0] in one.parameters]
        raise UsageError(
            f'node "{takers[0]}" of graph "{graph.name}" takes "{missing[0]}", which is neither a '
            "node nor an input",
            hint=f"give {missing[0]}= to the walk, or add the node",
        )
    unknown = sorted(inputs.keys() - graph.takes)
    if unknown:
        raise UsageError(f'graph "{graph.name}" takes no input "{unknown[0]}"')
    return dict(inputs)


_graphs: dict[str, Graph] = {}


def find_graph(name: str) -> Graph:
    """Returns the graph of that name; raises NotFoundError if no loaded module has made it.

    It never imports a module: a name from a store must not cause code to run.
    """
    found = _graphs.get(name)
    if found is None:
        raise NotFoundError(
            f'this process has no graph "{name}"', hint="import the module that makes it"
        )
    return found


# --- rules ----------------------------------------------------------------------------------------


rules = Registry("rule")


@overload
def rule(function: F, /) -> F: ...
@overload
def rule(*, name: str | None = ..., version: str | None = ...) -> Callable[[F], F]: ...
def rule(function: Any = None, /, *, name: str | None = None, version: str | None = None) -> Any:
    """Registers a function that returns a mapping of settings, computed from values of nodes.

    A node adds the rule to a walk with `ctx.rule(function, …)`, and `walk.resolve()` calls it.
    """

    def define(function: Any) -> Any:
        if not callable(function):
            raise UsageError(f"a rule is a function, found {show_value(function)}")
        known_as = rules.add(function, name)
        track: Track = "closure" if version is None else "none"
        # No node has such a name, so a rule's results are never taken for those of a node.
        _rules[known_as] = Node(
            function, name=f"rule:{known_as}", track=track, version=version, keep=Keep(KEEP_MAX)
        )
        return function

    return define if function is None else define(function)


_rules: dict[str, Node] = {}


def rule_name(function: object) -> str:
    """Returns the name of a registered rule, or raises UsageError."""
    try:
        return rules.name(function)
    except NotFoundError as unknown:
        raise UsageError(unknown.message, hint=unknown.hint) from unknown


def find_rule(name: str) -> Node:
    """Returns the rule with a stored name; raises UsageError if it is not registered."""
    return _rules[rule_name(name)]


def settings_of(name: str, answer: object) -> dict[str, Any]:
    """Returns the settings that a rule returned; raises UsageError if it is not a mapping."""
    if not isinstance(answer, Mapping):
        raise UsageError(
            f'rule "{name}" returns a mapping from settings to values, found {show_value(answer)}'
        )
    return {str(key): value for key, value in cast("Mapping[Any, Any]", answer).items()}

"""What the function of a node gets as its `ctx`: reads that are traced, and artifacts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from holdfast.core import codec
from holdfast.core.arguments import check_path, check_whole, name_of
from holdfast.core.event import from_datetime
from holdfast.core.tree import MISSING
from holdfast.errors import UsageError, show_value
from holdfast.nodes.define import Node, is_node, rule_name
from holdfast.nodes.results import Read, StoredArtifact
from holdfast.nodes.trace import Observed, source_read
from holdfast.record.message_events import Message
from holdfast.runs.values import check_name_text, encode

if TYPE_CHECKING:
    from holdfast.nodes.walk import Computation


class NodeContext:
    """The `ctx` of a node: it reads through this, and adds artifacts, while it is computed.

    Every read through it is traced: the result is reused only while all that was read is unchanged.
    Anything that the node reads in another way is not checked.
    """

    def __init__(self, computation: Computation) -> None:
        self._computation = computation
        self._sources = computation.sources
        self.reads: list[Read] = []
        self.artifacts: list[StoredArtifact] = []
        self.skips: list[str] = []
        self.costs: dict[str, float] = {}
        self.until: int = 0
        self.is_over = False

    # --- reading ---------------------------------------------------------------------------------

    @property
    def node(self) -> str:
        """The full name of the node."""
        return self._computation.name

    @property
    def scope(self) -> str:
        """The name of the scope that the graph is walked for."""
        return self._computation.scope

    def read(self, scope: Any, path: Any = None, default: Any = None) -> Any:
        """Returns the value at a path of a scope's state, or the whole state.

        Given another node of the graph, it returns that node's value or a part of it. The result
        then depends on that node only if it has read it.
        """
        self._check_open()
        steps = None if path is None else check_path(path)
        if is_node(scope):
            return self._read_node(scope, steps, default)
        name = name_of(scope)
        seen = self._sources.state(name, steps)
        self._record("state", name, seen, steps)
        return default if seen.value is MISSING else seen.value

    def _read_node(self, node: Node, path: tuple[str | int, ...] | None, default: Any) -> Any:
        seen = self._computation.demand(node.name, path)
        self._record("node", node.name, seen, path)
        return default if seen.value is MISSING else seen.value

    def messages(self, scope: Any, last: int | None = None) -> list[Message]:
        """Returns the messages of a conversation, or the last few of them."""
        self._check_open()
        name = name_of(scope)
        path = None if last is None else (check_whole(last, "last", least=1),)
        seen = self._sources.messages(name, last)
        self._record("messages", name, seen, path)
        return seen.value

    def file(self, path: str | os.PathLike[str], *, encoding: str | None = "utf-8") -> Any:
        """Returns the text of a file, or its bytes if `encoding` is None; None if it is missing.

        A relative path is resolved against the current directory, and recorded as absolute.
        """
        self._check_open()
        place: str = os.path.abspath(os.fspath(path))
        seen = self._sources.file(place)
        self._record("file", place, seen)
        content: bytes | None = seen.value
        return content if content is None or encoding is None else content.decode(encoding)

    def env(self, name: str, default: str | None = None) -> str | None:
        """Returns an environment variable; only its digest is stored."""
        self._check_open()
        seen = self._sources.env(check_name_text(name, "the name of a variable"))
        self._record("env", name, seen)
        return default if seen.value is None else seen.value

    def clock(self, length: str) -> datetime:
        """Returns the time, rounded down to a multiple of `length`, such as "1h" or "1d".

        The result counts until the next multiple.
        """
        self._check_open()
        seen = self._sources.clock(length)
        self._record("clock", length, seen)
        return seen.value

    def source(
        self,
        name: str,
        *,
        read: Callable[..., Any],
        stamp: Callable[..., Any] | None = None,
        args: Sequence[Any] = (),
    ) -> Any:
        """Returns `read(*args)`, for anything outside; `stamp(*args)` tells cheaply if it changed.

        The node's code must use both functions by name, so that a later walk can find and call
        them.
        """
        self._check_open()
        names = [self._function_name(one) for one in (stamp, read)]
        given = codec.decode(codec.encode([*args]))
        seen = self._sources.source(stamp, read, given)
        check_name_text(name, "the name of a source")
        self.reads.append(source_read(name, names[0], names[1], given, seen))
        return seen.value

    def _function_name(self, function: Callable[..., Any] | None) -> str:
        if function is None:
            return ""
        for name, known in self._computation.functions.items():
            if known is function:
                return name
        raise UsageError(
            f'node "{self.node}" reads a source through {show_value(function)}, which its code '
            "does not name: nobody could ask it again later",
            hint="define the function in a module, and use it by its name",
        )

    def _record(
        self, kind: Any, name: str, seen: Observed, path: tuple[str | int, ...] | None = None
    ) -> None:
        self.reads.append(
            Read(kind, name, seen.thumb, path=path, stamp=seen.stamp, shown=seen.shown)
        )

    # --- artifacts -------------------------------------------------------------------------------

    def message(self, role: str, content: Any, **fields: Any) -> None:
        """Adds a message to the walk."""
        self._add("message", role, {"role": role, "content": content, **fields})

    def setting(self, name: str, value: Any, *, priority: int = 0) -> None:
        """Proposes a value for a setting, such as model; the highest priority wins."""
        self._add("setting", name, value, priority=priority)

    def tool(self, name: str, **spec: Any) -> None:
        """Adds a tool; a later tool of the same name replaces it."""
        self._add("tool", name, {"name": name, **spec})

    def constrain(self, setting: str, *, one_of: Iterable[Any]) -> None:
        """Limits a setting to the given values."""
        values = list(one_of)
        if not values:
            raise UsageError(f'setting "{setting}" is limited to nothing')
        self._add("constraint", setting, values)

    def rule(
        self, function: Any, *, priority: int = 0, reads: Sequence[str] = (), **values: Any
    ) -> None:
        """Adds a rule, which is called only when the walk is resolved.

        It gets `values` and the values of the nodes in `reads` as keyword arguments.
        """
        name = rule_name(function)
        for one in reads:
            self._computation.check_known(one)
        self._add("rule", name, values, priority=priority, reads=tuple(reads))

    def _add(
        self,
        kind: str,
        name: str,
        value: Any,
        *,
        priority: int = 0,
        reads: tuple[str, ...] = (),
    ) -> None:
        self._check_open()
        check_name_text(name, f"the name of a {kind}")
        if isinstance(priority, bool) or not isinstance(priority, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a priority is a whole number, found {show_value(priority)}")
        # Encoded now, so that later changes to the object by the node do not change the artifact.
        self.artifacts.append(StoredArtifact(kind, name, Raw(encode(value)), priority, reads))

    # --- the walk --------------------------------------------------------------------------------

    def skip(self, *names: str) -> None:
        """Skips later nodes in this walk; nodes that depend on them get None."""
        self._check_open()
        for name in names:
            self._computation.check_skipped(name)
            self.skips.append(name)

    def valid_until(self, moment: datetime) -> None:
        """Says until when the result counts; the earliest of several wins."""
        self._check_open()
        if not isinstance(moment, datetime) or moment.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"valid_until takes a datetime with a time zone, found {show_value(moment)}"
            )
        until = from_datetime(moment)
        self.until = min(self.until or until, until)

    def cost(self, **amounts: float) -> None:
        """Adds to the cost of the computation, such as tokens=350; `plan` estimates from it."""
        self._check_open()
        for name, amount in amounts.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"a cost is a number, found {show_value(amount)}")
            self.costs[name] = self.costs.get(name, 0) + amount

    def _check_open(self) -> None:
        if self.is_over:
            raise UsageError(
                f'node "{self.node}" has ended: its context can no longer be used',
                hint="wait for threads and tasks before the function returns",
            )


def part_of(value: Any, path: tuple[str | int, ...] | None) -> Any:
    """Returns the part of a value at a path; MISSING if there is none."""
    if path is None:
        return value
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return value

"""What clients saw, read from JSON lines (docs/decisions/0004-history.md says what they mean)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Value = int | str


class BadHistory(ValueError):
    """Lines that are no history: the test that wrote them is wrong, not the store."""


@dataclass(slots=True)
class Read:
    """A list as it was read, or the part of it behind the first `after` values."""

    stream: str
    values: list[Value]
    after: int = 0
    revision: int | None = None
    length: int = -1
    """How long the list was, told by `Order`; -1 if what was read is not part of the list."""


@dataclass(slots=True)
class Added:
    """A value at the end of a list."""

    stream: str
    value: Value
    revision: int | None = None


@dataclass(slots=True)
class Fork:
    """A new list that begins with the first `length` values of another."""

    stream: str
    parent: str
    length: int
    revision: int | None = None


@dataclass(slots=True)
class Operation:
    """One line. `ok`: True acknowledged, False refused, None unknown."""

    number: int
    client: Any
    kind: str
    start: int | None
    end: int | None
    ok: bool | None
    reads: list[Read] = field(default_factory=list[Read])
    adds: list[Added] = field(default_factory=list[Added])
    fork: Fork | None = None

    def __str__(self) -> str:
        parts = [f"read {len(read.values) + read.after} of {read.stream}" for read in self.reads]
        parts += [f"appended {added.value} to {added.stream}" for added in self.adds]
        if self.fork is not None:
            fork = self.fork
            parts.append(f"forked {fork.stream} from {fork.parent} at {fork.length}")
        how = {True: "", False: ", refused", None: ", outcome unknown"}[self.ok]
        return f"line {self.number} (client {self.client} {' and '.join(parts)}{how})"


@dataclass(slots=True)
class Step:
    """One operation on a register or a lease; `told` is the whole line."""

    number: int
    kind: str
    start: int
    end: int | None
    ok: bool | None
    told: dict[str, Any]

    def __str__(self) -> str:
        left_out = {"op", "client", "start", "end", "register", "lease"}
        said = " ".join(f"{k}={v}" for k, v in self.told.items() if k not in left_out)
        return f"line {self.number} (client {self.told.get('client')}: {self.kind} {said})"


@dataclass
class History:
    """Everything that was seen. `finals` are the lists as a fresh process read them at the end."""

    operations: list[Operation] = field(default_factory=list[Operation])
    finals: dict[str, Read] = field(default_factory=dict[str, Read])
    objects: dict[tuple[str, str], list[Step]] = field(
        default_factory=dict[tuple[str, str], list[Step]]
    )
    """Steps by kind of object, "register" or "lease", and its name."""

    def __len__(self) -> int:
        return len(self.operations) + sum(map(len, self.objects.values()))


def parse(lines: Iterable[str]) -> History:
    """Returns the history that the lines tell; raises BadHistory if they tell none."""
    history = History()
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                _add(history, number, json.loads(line))
            except (KeyError, TypeError, ValueError) as exc:
                raise BadHistory(f"line {number} is no line of a history: {exc!r}: {line}") from exc
    return history


def _add(history: History, number: int, told: dict[str, Any]) -> None:
    kind = told["op"]
    if kind == "final":
        if told["stream"] in history.finals:
            raise BadHistory(f"a second final read of {told['stream']}")
        history.finals[told["stream"]] = _read(told)
        return
    client, start, end, ok = told.get("client"), told.get("start"), told.get("end"), told["ok"]
    if start is not None and end is not None and end < start:
        raise BadHistory("it ends before it starts")
    for thing in ("register", "lease"):
        if thing in told:
            step = Step(number, kind, start or 0, end, ok, told)
            history.objects.setdefault((thing, told[thing]), []).append(step)
            return
    operation = Operation(number, client, kind, start, end, ok)
    if kind == "read":
        if ok:
            operation.reads.append(_read(told))
    elif kind == "append":
        operation.adds.append(Added(told["stream"], told["value"], told.get("revision")))
    elif kind == "fork":
        length = told.get("length", told["revision"])
        operation.fork = Fork(told["stream"], told["from"], length, told["revision"])
    elif kind == "txn":
        for what, stream, value, revision in told["do"]:
            if what == "r":
                operation.reads.append(Read(stream, value, revision=revision))
            else:
                operation.adds.append(Added(stream, value, revision))
    else:
        raise BadHistory(f"an unknown operation {kind!r}")
    history.operations.append(operation)


def _read(told: dict[str, Any]) -> Read:
    return Read(told["stream"], told["values"], told.get("from", 0), told.get("revision"))

"""Variables of a run: every value they had is in the journal, and replay passes through them."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from msgspec import Struct

from holdfast.errors import UsageError, show_value
from holdfast.runs import blocks, values
from holdfast.runs.control import Control, calling_line
from holdfast.runs.define import CURRENT
from holdfast.runs.execution import Execution
from holdfast.runs.journal import Answer, Block, Entry


class Place(Protocol):
    """The context that a variable is used in."""

    execution: Execution
    block: Block

    def enter(self) -> None: ...
    def poisoned(self, control: Control) -> Control: ...


class Naming(Struct, frozen=True):
    """What a caller says of an operation that only records."""

    key: str | None
    label: str | None
    source: str | None

    def ask(self, block: Block, kind: str, name: str, digest: str | None = None) -> Answer:
        """Gives the operation its place in its block."""
        return block.ask(
            kind, name, "pure", digest, key=self.key, label=self.label, source=self.source
        )


class Variable:
    """What `ctx.let` returns. In a replay `.value` is what it was at that point."""

    __slots__ = ("_is_const", "_place", "_value", "name")

    def __init__(self, place: Place, name: str, is_const: bool) -> None:
        self.name = name
        self._place = place
        self._is_const = is_const
        self._value: Any = None

    @property
    def value(self) -> Any:
        """The value now: change it with `set`, not in place."""
        return self._value

    def set(
        self,
        value: Any,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Gives it another value, which is returned as it was stored."""
        if self._is_const:
            raise UsageError(f'"{self.name}" is a const: it has one value for ever')
        if CURRENT.get() not in (None, self._place):
            raise UsageError(
                f'a branch cannot set "{self.name}", which is declared around it',
                hint="return the value from the branch, and set it behind the parallel block",
            )
        self._place.enter()
        self.assign("set", value, Naming(key, label, source))
        return self._value

    def assign(self, kind: str, value: Any, naming: Naming) -> None:
        """Records a value under the next path of its block, or takes the one recorded there."""
        place, run = self._place, self._place.execution
        encoded = values.encode(value)
        digest = values.digest(encoded)
        answer = naming.ask(place.block, kind, self.name, digest)
        before = answer.entry
        if answer.verdict == "diverged":
            raise place.poisoned(run.diverge(answer))
        if kind == "const" and answer.verdict == "execute" and before is not None:
            if (answer.path, "inputs") not in run.journal.adopted:
                raise place.poisoned(self._differs(answer, before, value))
            self._value = run.load(before.value)
            return
        if answer.verdict == "execute":
            stored = run.store(encoded)
            run.record(blocks.done_of(answer, kind, self.name, "pure", stored, digest))
        self._value = values.decode(encoded, run.log.blobs.read)

    def _differs(self, answer: Answer, before: Entry, value: Any) -> Control:
        run = self._place.execution
        return run.park_diverged(
            answer.path,
            "inputs",
            f"const {self.name} = {show_value(run.load(before.value))}",
            f"const {self.name} = {show_value(value)}",
            answer.source or calling_line(sys._getframe(1)),  # pyright: ignore[reportPrivateUsage]
        )

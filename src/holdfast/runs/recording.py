"""Operations that only record: variables, the time, chance, what was read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from holdfast.errors import UsageError
from holdfast.event import to_datetime
from holdfast.runs import blocks, values
from holdfast.runs.entering import Entering
from holdfast.runs.execution import Execution
from holdfast.runs.journal import Block, block_of
from holdfast.runs.variables import Naming, Variable


class Recording(Entering):
    """What a run can do without waiting: plain calls in both colours."""

    def __init__(self, execution: Execution, block: Block, parent: Any, engine: Any) -> None:
        super().__init__(execution, block, parent, engine)
        self.variables: dict[tuple[str, str], Variable] = {}

    def let(
        self,
        name: str,
        value: Any = None,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Variable:
        """Declares a variable of this block; `.value` reads it and `.set(value)` writes it."""
        return self._declare("let", name, value, Naming(key, label, source))

    def const(
        self,
        name: str,
        value: Any,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Any:
        """Declares a value that never changes, and returns it; another one is a divergence."""
        return self._declare("const", name, value, Naming(key, label, source)).value

    def _declare(self, kind: str, name: str, value: Any, naming: Naming) -> Variable:
        self.enter()
        values.check_name_text(name, "a variable's name")
        place = self.block.path, name
        if place in self.variables:
            raise UsageError(f'variable "{name}" is declared twice in one block')
        variable = Variable(self, name, kind == "const")
        variable.assign(kind, value, naming)
        self.variables[place] = variable
        return variable

    def variable(self, name: str) -> Variable:
        """Returns a variable of this block, or of the nearest block around it."""
        context: Recording | None = self
        while context is not None:
            place = context.block.path
            while (place, name) not in context.variables and place != context.base:
                place = block_of(place)
            if (place, name) in context.variables:
                return context.variables[place, name]
            context = context.parent
        raise UsageError(f'no variable "{name}" is declared here', hint="ctx.let declares one")

    def now(
        self, *, key: str | None = None, label: str | None = None, source: str | None = None
    ) -> datetime:
        """Returns the time, the same one when the run is replayed."""
        clock = self.execution.log.clock
        return self.value(
            "now", "", lambda: to_datetime(clock.now_us()), Naming(key, label, source)
        )

    def random(
        self, *, key: str | None = None, label: str | None = None, source: str | None = None
    ) -> float:
        """Returns a number from 0 up to 1, the same one when the run is replayed."""
        clock = self.execution.log.clock
        return self.value(
            "random",
            "",
            lambda: (int.from_bytes(clock.random_bytes(7), "big") >> 3) / (1 << 53),
            Naming(key, label, source),
        )

    def uuid(
        self, *, key: str | None = None, label: str | None = None, source: str | None = None
    ) -> str:
        """Returns a random UUID as text, the same one when the run is replayed."""

        def make() -> str:
            number = int.from_bytes(self.execution.log.clock.random_bytes(16), "big")
            number = number & ~(0xF000 << 64) | 0x4000 << 64
            text = f"{number & ~(0xC000 << 48) | 0x8000 << 48:032x}"
            return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

        return self.value("uuid", "", make, Naming(key, label, source))

    def value(self, kind: str, name: str, make: Callable[[], Any], naming: Naming) -> Any:
        """Returns a recorded value, or makes and records it."""
        self.enter()
        answer = naming.ask(self.block, kind, name)
        if answer.verdict == "diverged":
            raise self.poisoned(self.execution.diverge(answer))
        if answer.verdict == "replay":
            assert answer.entry is not None, "BUG: a replay of nothing"
            return self.execution.load(answer.entry.value)
        encoded = values.encode(make())
        self.execution.record(
            blocks.done_of(answer, kind, name, "pure", self.execution.store(encoded))
        )
        return values.decode(encoded, self.execution.log.blobs.read)

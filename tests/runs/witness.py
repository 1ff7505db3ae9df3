"""The outside world of the corpus: counts what was done, and survives every cut."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.intent import Done, NotDone, Unknown, verifier


class Witness:
    """Acts by idempotency key, counted; what a provider with a ledger would know."""

    def __init__(self) -> None:
        self.acts: Counter[str] = Counter()
        self.outputs: dict[str, Any] = {}
        self.calls: Counter[str] = Counter()
        self.failing: Counter[str] = Counter()
        self.is_blind = False

    def act(self, key: str, what: str, output: Any = None) -> Any:
        """Does something that cannot be undone."""
        self.acts[what] += 1
        self.outputs[key] = output
        return output

    def call(self, name: str) -> None:
        """Counts a call that may be repeated."""
        self.calls[name] += 1


WITNESS = Witness()


def fresh() -> Witness:
    """Begins a new world."""
    WITNESS.__init__()
    return WITNESS


@verifier(name="tests.runs:was_done")
def was_done(begun: Any) -> Any:
    """Asks the witness."""
    if WITNESS.is_blind:
        return Unknown("the witness is blind")
    if begun.key in WITNESS.outputs:
        return Done(WITNESS.outputs[begun.key])
    return NotDone()

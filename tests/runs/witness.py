"""The outside world of the corpus: counts what was done, and survives every cut.

In one process it is a few dictionaries. For processes that are killed it is a ledger: a file
outside the store, one line for each act, appended under a lock of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from holdfast.core.intent import Done, NotDone, Unknown, verifier

Moment = Literal["before", "after"]


class Witness:
    """Acts by idempotency key, counted; what a provider with a ledger would know."""

    def __init__(self, ledger: Path | None = None) -> None:
        self.acts: Counter[str] = Counter()
        self.outputs: dict[str, Any] = {}
        self.calls: Counter[str] = Counter()
        self.failing: Counter[str] = Counter()
        self.is_blind = False
        self.ledger = ledger
        self.watch: Callable[[Moment, bool], None] = lambda moment, once: None
        """Called right before and right after an act, in the step that does it."""
        self.look()

    def look(self) -> Witness:
        """Reads what other processes did."""
        if self.ledger is not None:
            try:
                text = self.ledger.read_text()
            except FileNotFoundError:  # nothing was done yet
                return self
            lines = [json.loads(line) for line in text.splitlines()]
            self.acts = Counter(line["what"] for line in lines)
            self.outputs = {line["key"]: line["output"] for line in lines}
        return self

    def act(self, key: str, what: str, output: Any = None) -> Any:
        """Does something that cannot be undone, as often as it is called."""
        return self._act(key, what, output, once=False)

    def act_once(self, key: str, what: str, output: Any = None) -> Any:
        """Does something that cannot be undone, once for each key: others get the first answer."""
        return self._act(key, what, output, once=True)

    def _act(self, key: str, what: str, output: Any, *, once: bool) -> Any:
        self.watch("before", once)
        if self.ledger is not None:
            self._write({"key": key, "what": what, "output": output}, once=once)
            self.look()
        elif not (once and key in self.outputs):
            self.acts[what] += 1
            self.outputs[key] = output
        self.watch("after", once)
        return self.outputs[key]

    def _write(self, line: dict[str, Any], *, once: bool) -> None:
        file = os.open(str(self.ledger), os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not (once and line["key"] in self.look().outputs):
                os.write(file, json.dumps(line).encode() + b"\n")
        finally:
            os.close(file)

    def call(self, name: str) -> None:
        """Counts a call that may be repeated."""
        self.calls[name] += 1


WITNESS = Witness()


def fresh(ledger: Path | None = None) -> Witness:
    """Begins a new world, or goes on with that of a ledger."""
    WITNESS.__init__(ledger)
    return WITNESS


@verifier(name="tests.runs:was_done")
def was_done(begun: Any) -> Any:
    """Asks the witness."""
    if WITNESS.is_blind:
        return Unknown("the witness is blind")
    return verdict_on(begun.key)


def verdict_on(key: str) -> Done | NotDone:
    """Returns what a person who asks the provider is told of a key."""
    outputs = WITNESS.look().outputs
    return Done(outputs[key]) if key in outputs else NotDone()

"""The handle of a decision that this worker answers for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import ExistsError, HoldfastError, UsageError
from holdfast.record.decision import NO_OUTCOME, Decision
from holdfast.record.within import is_within

if TYPE_CHECKING:
    from holdfast.record.decisions import Decisions


FOUND_OUT = ("verified", "done again")
"""How recovery closes a decision."""


class OpenDecision:
    """A decision that this worker answers for: the block of `with scope.decide(…) as d:`.

    It is durable already. `outcome` closes it; leaving the block without one closes it as "no
    outcome stated"; an exception that leaves the block is recorded, and the decision stays open.
    """

    def __init__(self, decisions: Decisions, entry: Decision) -> None:
        self._decisions = decisions
        self.stored = entry
        self.id = entry.id
        self.key = entry.key
        self._was_closed = entry.status == "closed"

    def outcome(self, text: str, *, output: Any = None) -> Decision:
        """Closes it: what came of it, and what it gave. Returns the decision as it is now.

        A handle that was attached to a closed decision may say the same once more: a program that
        is run again from its start does. What recovery found out meanwhile stands.
        """
        if self._was_closed and (text == self.stored.outcome or self.stored.how in FOUND_OUT):
            return self.stored
        self.stored = self._decisions.close_entry(self.stored, text, output=output)
        return self.stored

    def prioritise(self, priority: int | str) -> Decision:
        """Gives it another priority: a whole number, or low, normal or high."""
        self.stored = self._decisions.prioritise(self.id, priority)
        return self.stored

    def enter(self) -> None:
        """Says that what runs in this context from here on is covered by this decision."""
        if self.stored.status == "standing":
            raise UsageError(
                "a standing order has no block: it counts until it is superseded",
                hint="keep what decide() returns, or leave standing out",
            )
        deciding = self._decisions.book.deciding
        self._token = deciding.set((*deciding.get(), self.id))

    def leave(self) -> None:
        """Ends what `enter` began."""
        self._decisions.book.deciding.reset(self._token)

    def settle(self, error: BaseException | None) -> None:
        """Records how the block ended. Never hides the error that ended it."""
        if not self.stored.is_open:
            return
        if error is not None and not isinstance(error, Exception) and is_within():
            return  # a run that waits, or is stopped: it comes back to this block
        try:
            if error is None:
                stated = NO_OUTCOME
                self.stored = self._decisions.close_entry(self.stored, stated, how="unstated")
            else:
                self.stored = self._decisions.fail(self.stored, error)
        except ExistsError:
            # By its id, or by a decision that supersedes it: whoever did was in the block too.
            self.stored = self._decisions.get(self.id)
        except HoldfastError as trouble:
            if error is None:
                raise
            error.add_note(f'decision "{self.id}" is open, without this error: {trouble}')

    def __enter__(self) -> OpenDecision:
        self.enter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> Literal[False]:
        self.leave()
        self.settle(error)
        return False

    def __repr__(self) -> str:
        return f"<OpenDecision {self.id} {self.stored.status}>"

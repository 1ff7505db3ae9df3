"""The decisions of all scopes, the policy about them, and what was caught: `hf.decisions`."""

from __future__ import annotations

from holdfast.core.kernel import Kernel
from holdfast.core.page import PAGE_SIZE, Page
from holdfast.query.questions import Questions
from holdfast.record import catches
from holdfast.record.catches import Catch
from holdfast.record.context import RecordContext
from holdfast.record.decisions import (
    Decision,
    Decisions,
    Link,
    OpenDecision,
    Policy,
    PolicyMode,
    UndecidedWarning,
)
from holdfast.renamed import NotCalled
from holdfast.scope import Recalled, Scope, ScopeDecisions

__all__ = [
    "Catch",
    "Decision",
    "DecisionsRoom",
    "Link",
    "OpenDecision",
    "Policy",
    "PolicyMode",
    "Recalled",
    "ScopeDecisions",
    "UndecidedWarning",
]


class DecisionsRoom(NotCalled):
    """The decisions of all scopes; `scope.decisions` has those of one."""

    def __init__(self, kernel: Kernel) -> None:
        self._context = kernel.part(RecordContext)
        self._questions = kernel.part(Questions)

    def __repr__(self) -> str:
        return "<DecisionsRoom>"

    def list(
        self,
        *,
        incomplete: bool = False,
        scope: Scope | str | None = None,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
        before: int | None = None,
        older_than: object = None,
    ) -> Page[Decision]:
        """Returns a page of decisions of one scope or of all scopes, newest first.

        Pass the cursor of a page as `after` to get the next page. `before` is a revision of the
        scope: only earlier decisions are returned. `older_than` is a length of time since the last
        change.

        `incomplete` returns only open decisions, the highest priority first, and of those the
        oldest. They are found by their marks, without reading any stream. Other decisions of a long
        conversation or a large store are found by the index of `hf.query`, once it has followed the
        log that far.
        """
        return Decisions(self._context).list(
            incomplete=incomplete,
            scope=scope,
            after=after,
            limit=limit,
            before=before,
            older_than=older_than,
        )

    def get(self, id: str) -> Decision:
        """Returns a decision by its id, in its present form."""
        return Decisions(self._context).get(id)

    def close(self, id: str, text: str) -> Decision:
        """Closes an open decision of this worker, or one whose worker is dead, with an outcome."""
        return Decisions(self._context).close(id, text)

    def prioritise(self, id: str, priority: int | str) -> Decision:
        """Changes the priority of an open decision or a standing order."""
        return Decisions(self._context).prioritise(id, priority)

    def policy(self, mode: PolicyMode) -> Policy:
        """Sets what happens to an effect without an open decision: off, warn or refuse.

        The policy is stored, and applies to every handle and process of the store; a run that is
        under way elsewhere follows it within five seconds. Used as a block, the former policy
        returns at its end. With warn and refuse, each such effect is recorded in its scope.
        """
        return Policy(self._context, mode)

    def catches(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Catch]:
        """Returns a page of the catches of all scopes, newest first.

        Pass the cursor of a page as `after` to get the next page.
        """
        hits = self._questions.ask(kind="log", type=catches.TYPES, limit=limit, after=after)
        found = [
            catches.read_catch(self._context.log.record(hit.scope, hit.revision)) for hit in hits
        ]
        return Page(found, more=hits.more, cursor=hits.cursor)

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
    """What was decided in any scope; `scope.decisions` has what was decided in one."""

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
        """Returns decisions of one scope or of all, newest first, or those `before` a revision.

        The cursor of a page, given as `after`, leads to the next one.

        With `incomplete` only the open ones, highest priority first, then oldest: found by their
        marks, without reading any stream. `older_than` is a length of time since the last change.
        The others of a long conversation, or of a large store, are found by the index for questions
        (`hf.query`), as soon as that has followed the log.
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
        """Returns the decision with that id, as it is now."""
        return Decisions(self._context).get(id)

    def close(self, id: str, text: str) -> Decision:
        """Closes an open decision by its id: one of this worker, or one whose worker is dead."""
        return Decisions(self._context).close(id, text)

    def prioritise(self, id: str, priority: int | str) -> Decision:
        """Gives an open decision or a standing order another priority."""
        return Decisions(self._context).prioritise(id, priority)

    def policy(self, mode: PolicyMode) -> Policy:
        """Says what happens to an effect without an open decision: off, warn or refuse.

        It is stored, and counts for every handle and process of the store from now on; a run that
        is under way elsewhere heeds it after five seconds at most. Used as a block, it is as before
        when the block ends. Each such effect is recorded in its scope.
        """
        return Policy(self._context, mode)

    def catches(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Catch]:
        """Returns what was caught in all scopes, newest first.

        The cursor of a page, given as `after`, leads to the next one.
        """
        hits = self._questions.ask(kind="log", type=catches.TYPES, limit=limit, after=after)
        found = [
            catches.read_catch(self._context.log.record(hit.scope, hit.revision)) for hit in hits
        ]
        return Page(found, more=hits.more, cursor=hits.cursor)

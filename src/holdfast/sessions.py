"""The sessions of all conversations: `hf.sessions`."""

from __future__ import annotations

from holdfast.core.kernel import Kernel
from holdfast.core.page import PAGE_SIZE, Page, cut
from holdfast.record import sessions
from holdfast.record.context import RecordContext
from holdfast.record.sessions import OpenTurn, Session
from holdfast.renamed import NotCalled
from holdfast.scope import ScopeSession

__all__ = ["OpenTurn", "ScopeSession", "Session", "SessionsRoom"]


class SessionsRoom(NotCalled):
    """The sessions of all conversations; `scope.session` is the session of one."""

    def __init__(self, kernel: Kernel) -> None:
        self._context = kernel.part(RecordContext)

    def __repr__(self) -> str:
        return "<SessionsRoom>"

    def list(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Session]:
        """Returns a page of the sessions that have not ended, active or crashed, oldest first.

        Pass the cursor of a page as `after` to get the next page.
        """
        found = sessions.unended_sessions(self._context)
        return cut("sessions", found, sessions.begun_first, after=after, limit=limit)

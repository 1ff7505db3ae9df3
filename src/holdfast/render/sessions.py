"""Documents of sessions: those that have not ended, and that one was exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.record.sessions import Session
from holdfast.render.text import time_text


def sessions_document(sessions: Sequence[Session]) -> dict[str, Any]:
    """Returns sessions that have not ended, oldest first."""
    return {
        "sessions": [
            {
                "scope": one.scope,
                "status": one.status,
                "worker": one.worker,
                "begun_at": time_text(one.begun_at),
                "keep": one.keep,
            }
            for one in sessions
        ]
    }


def session_document(session: dict[str, Any]) -> dict[str, Any]:
    """Returns a session as `record/session_export.py` has it."""
    return dict(session)


def exported_document(document: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns where a session was written to, and how much it has."""
    return {
        "scope": document["scope"],
        "file": path,
        "revision": document["revision"],
        "messages": len(document["messages"]),
        "decisions": len(document["decisions"]),
        "tool_results": len(document["tool_results"]),
    }

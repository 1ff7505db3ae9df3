"""A session as one document of plain JSON, to keep after the session itself is let go (0042).

    session_id     the id of its scope
    scope          the scope's whole name
    status         active, completed or crashed
    started_at     when its first event was written
    persisted_at   when its newest event was: the document has everything up to that
    revision       of that event
    messages       as `Message.to_dict` has them, oldest first
    decisions      id, timestamp, decision, rationale, planned_action, outcome, completed_at, status
                   and message_index: how many messages there were when it was decided
    tool_results   tool_call_id, content and message_index of each result of a tool
    files_read     the names of the files in its working memory
    state          its state

Times are ISO 8601. Values that JSON cannot express are in their stored form (`{"$bytes": …}`).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from holdfast.core import codec
from holdfast.core.log import scope_stream
from holdfast.errors import NotFoundError, UnavailableError, UsageError
from holdfast.exchange import new_file

if TYPE_CHECKING:
    from holdfast.record.decisions import Decision
    from holdfast.scope import Scope


def session_document(scope: Scope, decisions: list[Decision], status: str) -> dict[str, Any]:
    """Returns the document of a scope's session; `decisions` are all of its own, oldest first.

    `status` is the one to write: a session that is about to be closed is completed.
    Raises NotFoundError if the scope has no events, and ClosedError if its state was dropped.
    """
    first = next(scope.history(), None)
    newest = scope.revision
    if first is None:
        raise NotFoundError(f'scope "{scope.name}" has no events: there is no session to export')
    last = next(scope.history(after=newest - 1, until=newest))
    messages = scope.messages.at(newest)
    document: dict[str, Any] = {
        "session_id": scope.id,
        "scope": scope.name,
        "status": status,
        "started_at": first.time.isoformat(),
        "persisted_at": last.time.isoformat(),
        "revision": newest,
        "messages": [message.to_dict() for message in messages],
        "decisions": [_decision(scope, one) for one in decisions if one.revision <= newest],
        "tool_results": [
            {
                "tool_call_id": message.tool_call_id,
                "content": message.text,
                "message_index": index,
            }
            for index, message in enumerate(messages)
            if message.tool_call_id is not None
        ],
        "files_read": [item.name for item in scope.memory.files.list()],
        "state": scope_stream(scope).now_at(newest).to_dict(),
    }
    return json.loads(codec.encode(document, size_max=1 << 62))


def _decision(scope: Scope, one: Decision) -> dict[str, Any]:
    return {
        "id": one.id,
        "timestamp": one.timestamp.isoformat(),
        "decision": one.decision,
        "rationale": one.rationale,
        "planned_action": one.planned_action,
        "outcome": one.outcome,
        "completed_at": None if one.completed_at is None else one.completed_at.isoformat(),
        "status": one.status,
        "message_index": len(scope.messages.at(one.revision)),
    }


def write_session(document: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes the document to a file, atomically: a reader sees the old file or the new one.

    It is written and synced under another name, and then renamed. The sync of the directory makes
    the rename durable. Raises UnavailableError if it cannot be written.
    """
    target = os.fspath(path)
    if not isinstance(target, str) or not os.path.basename(target):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a session is exported to the path of a file, found {target!r}")
    try:
        with new_file(target, replaces=True) as file:
            file.write(json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        raise UnavailableError(
            f'the session cannot be written to "{target}": {error.strerror}'
        ) from error

"""Documents of what a scope holds and how it came to be: events, changes, checkpoints, states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Raw

from holdfast.core import codec
from holdfast.core.arguments import Path
from holdfast.core.event import Change, Checkpoint, Event
from holdfast.core.page import Page
from holdfast.core.tree import MISSING, Map
from holdfast.errors import CorruptError
from holdfast.record.audit import AuditItem
from holdfast.record.difference import Difference, Restored
from holdfast.render.record import (
    decision_document,
    fact_document,
    message_document,
    task_document,
)
from holdfast.render.text import encode_value, page_document, time_text

T = TypeVar("T")


def event_document(event: Event) -> dict[str, Any]:
    """Returns an event; `data` is its payload as stored, large values as references to blobs.

    `meta` is as stored too, so it keeps keys that this version does not know.
    """
    # Raw is written unread: damage must raise here, and not in the reader of the document.
    if not event.is_let_go:
        try:
            codec.decode(event.record.payload)
        except CorruptError as error:
            if not isinstance(error.__cause__, RecursionError):
                raise
            codec.check(event.record.payload)  # in pieces: a result of a node may be so deep
    event.meta  # noqa: B018
    return {
        "scope": event.stream,
        "revision": event.revision,
        "position": int(event.position),
        "time": time_text(event.time),
        "type": event.type,
        "actor": event.actor,
        "checkpoint": event.checkpoint,
        "key": event.key,
        "link": event.link,
        "meta": None if event.record.meta is None else Raw(event.record.meta.encode()),
        "data": None if event.is_let_go else Raw(event.record.payload),
        **({"let_go": True} if event.is_let_go else {}),
    }


def events_document(scope: str | None, events: Page[Event]) -> dict[str, Any]:
    """Returns a page of events, newest first; its cursor is what to give as `before` to go on."""
    documents = [event_document(event) for event in events]
    return {"scope": scope, "events": documents, **page_document(events)}


def change_document(change: Change) -> dict[str, Any]:
    """Returns a change; a side that was absent is left out."""
    document: dict[str, Any] = {
        "scope": change.scope,
        "revision": change.revision,
        "path": list(change.path),
    }
    for name, value in (("old", change.old), ("new", change.new)):
        if value is not MISSING:
            document[name] = encode_value(value)
    return document


def diff_document(scope: str, difference: Difference) -> dict[str, Any]:
    """Returns what differs between two revisions of a scope."""
    return {
        "scope": scope,
        "from": difference.since,
        "to": difference.until,
        **_differing(difference),
    }


def restored_document(scope: str, restored: Restored) -> dict[str, Any]:
    """Returns what the return to an earlier revision changed, and what it left as it is."""
    return {
        "scope": scope,
        "revision": int(restored),
        "to": restored.to,
        **_differing(restored.changes),
        "kept": {
            "decisions": [decision_document(each) for each in restored.decisions],
            "facts": [fact_document(each) for each in restored.facts],
        },
    }


def _differing(difference: Difference) -> dict[str, Any]:
    """Returns changes, messages and tasks that differ; a side that was absent is left out."""
    messages = [(each.old, each.new) for each in difference.messages]
    tasks = [(each.old, each.new) for each in difference.tasks]
    return {
        "changes": [change_document(change) for change in difference],
        "messages": [_sides(message_document, *each) for each in messages],
        "tasks": [_sides(task_document, *each) for each in tasks],
    }


def _sides(document_of: Callable[[T], dict[str, Any]], old: T | None, new: T | None) -> Any:
    sides = (("old", old), ("new", new))
    return {name: document_of(side) for name, side in sides if side is not None}


def fork_document(scope: str, revision: int, origin: str, at: int) -> dict[str, Any]:
    """Returns a new scope, and where in its origin it begins."""
    return {"scope": scope, "revision": revision, "from": origin, "at": at}


def removed_document(scope: str, revision: int) -> dict[str, Any]:
    """Returns a scope that was removed, and the revision of that event."""
    return {"scope": scope, "revision": revision, "removed": True}


def checkpoint_document(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns a checkpoint."""
    return {
        "scope": checkpoint.stream,
        "name": checkpoint.name,
        "revision": checkpoint.revision,
        "time": time_text(checkpoint.time),
    }


def checkpoints_document(scope: str, checkpoints: Page[Checkpoint]) -> dict[str, Any]:
    """Returns a page of the checkpoints of a scope."""
    documents = [checkpoint_document(each) for each in checkpoints]
    return {"scope": scope, "checkpoints": documents, **page_document(checkpoints)}


def state_document(scope: str, revision: int, state: Map) -> dict[str, Any]:
    """Returns the whole state of a scope at a revision."""
    return {"scope": scope, "revision": revision, "state": encode_value(state)}


def value_document(scope: str, revision: int, path: Path, value: Any) -> dict[str, Any]:
    """Returns one value of a scope's state."""
    return {**write_document(scope, revision, path), "value": encode_value(value)}


def write_document(
    scope: str, revision: int, path: Path, ends_at: datetime | None = None
) -> dict[str, Any]:
    """Returns the place of a write, the revision that it made, and when the value ends."""
    found: dict[str, Any] = {"scope": scope, "revision": revision, "path": list(path)}
    return found if ends_at is None else found | {"ends_at": time_text(ends_at)}


def audit_document(scope: str, revision: int, items: Sequence[AuditItem]) -> dict[str, Any]:
    """Returns the keys of a scope's state, with their sizes and changes."""
    documents = [
        {
            "path": list(item.path),
            "size": item.size,
            "changes": item.changes,
            "changed_at": None if item.changed_at is None else time_text(item.changed_at),
        }
        for item in items
    ]
    return {"scope": scope, "revision": revision, "items": documents}

"""The documents that --json prints; `docs/cli.md` describes each. Pure.

A stored value stands in a document in the form of the value domain: bytes, datetimes and the like
are the tagged objects of decision 0003, so that what is printed can be given to `set` again.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from msgspec import Raw

import holdfast
from holdfast import codec
from holdfast.cli.printing import clean, escape_json, shorten
from holdfast.errors import HoldfastError
from holdfast.event import Change, Checkpoint, Event
from holdfast.tree import List, Map

PREVIEW_ITEMS_MAX = 20


def encode_value(value: Any) -> Raw:
    """Returns any stored value as JSON; whatever its size, because it is stored already."""
    return Raw(codec.encode(value, size_max=sys.maxsize))


def preview(value: Any) -> str:
    """Returns a value as one line of JSON for people; large ones by their size."""
    if isinstance(value, Map) and len(value) > PREVIEW_ITEMS_MAX:
        return f"{{{len(value)} keys}}"
    if isinstance(value, List) and len(value) > PREVIEW_ITEMS_MAX:
        return f"[{len(value)} items]"
    if isinstance(value, str) and len(value) > 1000:
        return clean(codec.encode(value[:1000]).decode())
    return clean(escape_json(codec.encode(value, size_max=sys.maxsize).decode()))


def show_time(moment: datetime) -> str:
    """Returns a time for people: UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def time_text(moment: datetime) -> str:
    """Returns a time for programs: UTC, ISO 8601, to the microsecond."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def event_shape(event: Event) -> dict[str, Any]:
    """Returns an event; `data` is its payload as stored, large values as references to blobs."""
    event.data  # noqa: B018  a payload that cannot be decoded raises here, not at the reader's
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
        "data": Raw(event.record.payload),
    }


def change_shape(change: Change) -> dict[str, Any]:
    """Returns a change; a side that was absent is left out."""
    shape: dict[str, Any] = {
        "scope": change.scope,
        "revision": change.revision,
        "path": list(change.path),
    }
    for name, value in (("old", change.old), ("new", change.new)):
        if value is not holdfast.MISSING:
            shape[name] = encode_value(value)
    return shape


def checkpoint_shape(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "scope": checkpoint.stream,
        "name": checkpoint.name,
        "revision": checkpoint.revision,
        "time": time_text(checkpoint.time),
    }


def error_shape(error: HoldfastError) -> dict[str, Any]:
    """Returns an error with its ids, such as `expected` and `actual` of a conflict."""
    ids = {
        name: value if isinstance(value, str | int | bool | None) else list(value)
        for name, value in vars(error).items()
        if name not in ("message", "hint") and not name.startswith("_")
    }
    return {
        "error": {
            "class": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
            **ids,
        }
    }


def show_summary(event: Event) -> str:
    """Returns what an event did, in a few words; unknown types show their data."""
    try:
        return _summary(event)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # Not what we write under that type: whoever laid it there, it is shown as it is.
        return preview(event.data)


def _summary(event: Event) -> str:
    data = event.data
    if event.type == "changed":
        return show_ops(data)
    if event.type == "restored":
        return f"to revision {data['to']}"
    if event.type == "forked":
        return f"from {data['from']} at revision {data['at']}"
    if event.type == "opened":
        return f"parent {data['parent']}"
    if event.type == "closed":
        return "state kept" if data["keep"] else "state let go"
    return "" if data is None else preview(data)


def show_ops(ops: list[Any]) -> str:
    """Returns the first op and how many follow."""
    from holdfast.cli.words import show_path

    if not ops:
        return "nothing"
    kind, path, *value = ops[0]
    place = show_path((path,) if isinstance(path, str) else tuple(path))
    first = f"{kind} {place}"
    if value:
        first += f" {shorten(preview(value[0]))}"
    return first if len(ops) == 1 else f"{first} (and {len(ops) - 1} more)"

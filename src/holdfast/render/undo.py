"""Documents of what was taken back."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from holdfast.render.history import change_document
from holdfast.undo import Undone


def undone_document(undone: Undone) -> dict[str, Any]:
    """Returns what was taken back or would be, what stays, and what depends on it."""
    return {
        "preview": undone.is_preview,
        "taken_back": [
            {
                "scope": one.scope,
                "revision": one.revision,
                "changes": [change_document(change) for change in one.changes],
            }
            for one in undone.taken_back
        ],
        "stays": [{**asdict(one), "path": list(one.path)} for one in undone.not_taken_back],
        "dependents": [asdict(one) for one in undone.dependents],
    }

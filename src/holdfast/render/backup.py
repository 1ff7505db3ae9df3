"""Backups, exports and imports as JSON documents."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from holdfast.backup import Point, Pruned, Restored
from holdfast.interchange import Exported, Imported
from holdfast.render.text import time_text


def point_document(point: Point) -> dict[str, Any]:
    """Returns a point of a backup."""
    return {
        "name": point.name,
        "label": point.label,
        "at": time_text(point.at),
        "streams": point.streams,
        "events": point.events,
        "new_events": point.new_events,
        "marks": point.marks,
        "marks_exact": point.marks_exact,
        "digest": point.digest,
        "damaged": point.damaged,
        "let_go": point.let_go,
        "proved": point.is_proved,
    }


def points_document(points: list[Point]) -> dict[str, Any]:
    """Returns the points of a backup, oldest first."""
    return {"points": [point_document(point) for point in points]}


def restored_document(restored: Restored) -> dict[str, Any]:
    """Returns what was restored, and the digest of the store that it became."""
    copied: dict[str, Any] = to_builtins(restored.copied)
    del copied["is_behind"]
    return {"point": point_document(restored.point), **copied, "digest": restored.digest}


def pruned_document(pruned: Pruned) -> dict[str, Any]:
    """Returns what went from a backup, and what may be left of it."""
    return to_builtins(pruned)


def export_document(exported: Exported) -> dict[str, Any]:
    """Returns what an export wrote."""
    return to_builtins(exported)


def import_document(imported: Imported) -> dict[str, Any]:
    """Returns what an import wrote."""
    return to_builtins(imported)

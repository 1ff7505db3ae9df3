"""The document of an audit export."""

from __future__ import annotations

from typing import Any

from holdfast.audit_export import AuditExport


def export_document(made: AuditExport) -> dict[str, Any]:
    """Returns what an export says of itself, and who signed it."""
    return {
        "file": made.path,
        "digest": made.digest,
        "signed_by": made.key,
        "number": made.number,
        "previous": made.previous,
        "streams": made.streams,
        "events": made.events,
        "anchored": made.is_anchored,
    }

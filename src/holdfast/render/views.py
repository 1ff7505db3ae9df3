"""Documents of view files: what was found in them, and how they stand to the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.render.text import time_text
from holdfast.views.directory import ViewStatus
from holdfast.views.item import Finding


def findings_document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns what a sync found in files, and what became of it."""
    return {"findings": [finding_document(one) for one in findings]}


def finding_document(finding: Finding) -> dict[str, Any]:
    """Returns one thing that was found."""
    return {
        "file": finding.file,
        "kind": finding.kind,
        "item": finding.item,
        "message": finding.message,
        "diff": finding.diff,
    }


def view_statuses_document(statuses: Sequence[ViewStatus]) -> dict[str, Any]:
    """Returns how each file stands to the log."""
    return {
        "files": [
            {
                "file": one.file,
                "status": one.status,
                "scope": one.scope,
                "changed_at": None if one.changed_at is None else time_text(one.changed_at),
                "message": one.message,
                "diff": one.diff,
            }
            for one in statuses
        ]
    }

"""Documents of letting go: what went or would go, what is held, and the log of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.archive import Archived
from holdfast.core.retention import Binned, Hold, LetGo, Retention
from holdfast.render.text import time_text


def retention_document(done: Retention) -> dict[str, Any]:
    """Returns what a retain did, or would do."""
    return {
        "dry_run": done.dry_run,
        "scopes": [
            {
                "scope": one.scope,
                "why": one.why,
                "since": time_text(one.since),
                "until": one.until,
                "events": one.events,
                "bytes": one.bytes,
            }
            for one in done.scopes
        ],
        "events": done.events,
        "bytes": done.bytes,
        "blobs": done.blobs,
        "binned": [_binned(one) for one in done.binned],
        "refused": done.refused,
        "held": done.held,
        "warnings": done.warnings,
        "left": [{"where": left.where, "remedy": left.remedy} for left in done.left],
    }


def _binned(one: Binned) -> dict[str, Any]:
    return {
        "scope": one.scope,
        "policy": one.policy,
        "since": time_text(one.since),
        "events": one.events,
    }


def binned_document(binned: Sequence[Binned]) -> dict[str, Any]:
    """Returns the scopes that policies have removed and that can be brought back."""
    return {"binned": [_binned(one) for one in binned]}


def archived_document(done: Archived) -> dict[str, Any]:
    """Returns what was moved into an archive, or would be."""
    return {
        "dry_run": done.dry_run,
        "scopes": [_binned(one) for one in done.scopes],
        "events": done.events,
        "held": done.held,
        "refused": done.refused,
    }


def unretained_document(scope: str, revision: int) -> dict[str, Any]:
    """Returns a scope that was brought back."""
    return {"scope": scope, "revision": revision}


def let_go_document(told: Sequence[LetGo]) -> dict[str, Any]:
    """Returns every letting-go, oldest first."""
    return {
        "let_go": [
            {
                "scope": one.scope,
                "why": one.why,
                "first": one.first,
                "last": one.last,
                "events": one.events,
                "time": time_text(one.time),
                "actor": one.actor,
            }
            for one in told
        ]
    }


def held_document(scope: str, reason: str | None) -> dict[str, Any]:
    """Returns a scope that is held from now on."""
    return {"scope": scope, "held": True, "reason": reason}


def unheld_document(scope: str) -> dict[str, Any]:
    """Returns a scope that is held no more."""
    return {"scope": scope, "held": False}


def holds_document(holds: Sequence[Hold]) -> dict[str, Any]:
    """Returns the scopes that are held, by name."""
    return {
        "holds": [
            {
                "scope": one.scope,
                "since": time_text(one.since),
                "actor": one.actor,
                "reason": one.reason,
            }
            for one in holds
        ]
    }

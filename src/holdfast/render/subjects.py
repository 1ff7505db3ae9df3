"""Documents of subjects: who there is, what is held of them, what was erased."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.erasure import ErasureReceipt, HeldEvent, Subject
from holdfast.render.text import encode_value, time_text


def subject_document(subject: Subject) -> dict[str, Any]:
    """Returns a subject with the names of its scopes."""
    return {
        "subject": subject.name,
        "id": subject.id,
        "scopes": subject.scopes,
        "hold": subject.hold,
        "key_missing": subject.is_key_missing,
    }


def subjects_document(subjects: Sequence[Subject], keys: str) -> dict[str, Any]:
    """Returns the subjects of a store, by name, and where their keys are."""
    return {"subjects": [subject_document(one) for one in subjects], "keys": keys}


def export_document(subject: Subject, held: Sequence[HeldEvent]) -> dict[str, Any]:
    """Returns everything that a store has of a subject, in clear, and nothing of anybody else."""
    return {**subject_document(subject), "events": [_held_document(one) for one in held]}


def _held_document(held: HeldEvent) -> dict[str, Any]:
    event = held.event
    place = {
        "scope": event.stream,
        "revision": event.revision,
        "time": time_text(event.time),
        "type": event.type,
    }
    if not held.is_own:
        return {**place, "values": [encode_value(value) for value in held.values]}
    [data] = held.values
    return {
        **place,
        "actor": event.actor,
        "key": event.key,
        "checkpoint": event.checkpoint,
        "data": None if event.is_let_go else encode_value(data),
    }


def erasure_document(receipts: Sequence[ErasureReceipt]) -> dict[str, Any]:
    """Returns the receipts of erasures."""
    return {
        "erased": [
            {
                "subject": one.subject,
                "at": time_text(one.erased_at),
                "scopes": [
                    {
                        "scope": scope.scope,
                        "outcome": scope.outcome,
                        "events": scope.events,
                        "bytes": scope.bytes,
                        "revisions": scope.revisions,
                        "reason": scope.reason,
                    }
                    for scope in one.scopes
                ],
                "blobs": one.blobs,
                "left": [{"where": left.where, "remedy": left.remedy} for left in one.left],
                "beyond": list(one.beyond),
                "position": one.position,
                "dry_run": one.is_dry_run,
            }
            for one in receipts
        ]
    }


def hold_document(name: str, reason: str | None, *, is_held: bool) -> dict[str, Any]:
    """Returns a subject that is held from now on, or no more."""
    return {"subject": name, "held": is_held, "reason": reason}


def readmitted_document(name: str) -> dict[str, Any]:
    """Returns a subject who was erased, and may be written for again."""
    return {"subject": name, "readmitted": True}

"""Documents of the keys of an encrypted store: ids, never keys."""

from __future__ import annotations

from typing import Any

from holdfast.core.encryption import KeyStatus


def new_key_document(key: str) -> dict[str, Any]:
    """Returns a key that was made: it is kept nowhere else."""
    return {"key": key}


def key_document(found: KeyStatus) -> dict[str, Any]:
    """Returns the ids of the keys that a store is encrypted with."""
    return {
        "encrypted": found.is_encrypted,
        "store_key": found.store_key or None,
        "data_key": found.data_key or None,
        "data_keys": found.data_keys,
        "wrapped_by": found.wrapped_by,
        "older": found.older,
        "done": found.is_done,
        "left": [{"where": one.where, "remedy": one.remedy} for one in found.left],
    }

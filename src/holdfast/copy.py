"""Copies one store to another, on any pair of backends: `copy(source, target)`."""

from __future__ import annotations

from holdfast.core.copy import Copied, Progress, copy_log
from holdfast.store import Store

__all__ = ["Copied", "Progress", "copy"]


def copy(source: Store, target: Store, *, progress: Progress | None = None) -> Copied:
    """Copies what the target lacks, and verifies that every stream ends the same in both.

    It can be stopped at any point and run again. `progress` is called with the number of events
    passed so far, and how many there are.
    """
    return copy_log(source._log, target._log, progress=progress)

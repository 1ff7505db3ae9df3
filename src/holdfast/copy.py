"""Copies one store to another, on any pair of backends: `copy(source, target)`.

`salvage(source, target)` does so with a damaged store: what verifies is taken over.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.event import Event
from holdfast.core.kernel import kernel_of
from holdfast.core.verify import CutStream
from holdfast.store import Store
from holdfast.transfer.copy import copy_log
from holdfast.transfer.salvage import Salvaged, salvage_log
from holdfast.transfer.sink import Copied, Progress

__all__ = ["Copied", "CutStream", "Progress", "Salvaged", "copy", "salvage"]


def copy(source: Store, target: Store, *, progress: Progress | None = None) -> Copied:
    """Copies what the target lacks, and verifies that every stream ends the same in both.

    It can be stopped at any point and run again. `progress` is called with the number of events
    processed so far and their total.
    """
    return copy_log(kernel_of(source).log, kernel_of(target).log, progress=progress)


def salvage(
    source: Store,
    target: Store,
    *,
    progress: Progress | None = None,
    rest: Callable[[Event], None] | None = None,
) -> Salvaged:
    """Takes over what verifies of a damaged store; returns what is lost or in doubt.

    Open the source with `read_only=True`, so that it is never changed. The target must be empty, or
    hold what an interrupted salvage took over. `rest` is called with each event that can be read
    but not taken over, because an earlier event of its stream is lost.
    """
    log, other = kernel_of(source).log, kernel_of(target).log
    if rest is None:
        return salvage_log(log, other, progress=progress)
    return salvage_log(log, other, progress=progress, rest=lambda record: rest(log.event(record)))

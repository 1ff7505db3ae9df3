"""Copies a store into another, on any backends, with equal links in every stream.

Before anything is written, the target's streams are compared with the source's. A target with
anything but a prefix of them is refused. A copy can be killed at any point and run again.

The source may be written to meanwhile. Then what it had when the copy began is copied, and the
answer says that there is more: run it again to catch up. Marks have no history, so they are right
only after a run during which nothing was written.
"""

from __future__ import annotations

from holdfast.core.check import all_heads
from holdfast.core.erased_ledger import Ledger
from holdfast.core.log import NO_LIMIT, Log
from holdfast.transfer.compare import check_beginning, check_equal
from holdfast.transfer.sink import Copied, Progress, Sink
from holdfast.transfer.source import Source, count_events


def copy_log(source: Log, target: Log, *, progress: Progress | None = None) -> Copied:
    """Copies what the target lacks, and then verifies every head; raises ConflictError."""
    check_beginning(source, target)
    began = source.position()
    total = count_events(all_heads(source))
    sink = Sink(target, ledger=Ledger(source, target), progress=progress, total=total)
    sink.take(Source(source))
    is_behind = check_equal(source, target, began)
    sink.set_marks(source.marks.list(limit=NO_LIMIT))
    sink.tell_erased()
    return sink.copied(is_behind=is_behind or source.position() != began)

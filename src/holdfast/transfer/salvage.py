"""Takes over from a damaged store what verifies, into a new one, and says what it could not.

A stream is taken over from its beginning up to the first event that is missing or does not verify.
What comes after cannot be appended, because the link of the event before it is not there, and an
event with another link would be another event. Those later events are handed to the caller, one by
one, to be kept as text.

The source is only read. The target must be empty, or hold a beginning of the very same: a salvage
that was killed goes on where it stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from msgspec import Struct

from holdfast.backends.protocol import Finding, Record
from holdfast.core.check import all_heads
from holdfast.core.erased_ledger import Ledger
from holdfast.core.log import Log
from holdfast.core.verify import CutStream, remnants
from holdfast.errors import CorruptError
from holdfast.transfer.sink import Copied, Progress, Sink, differs
from holdfast.transfer.source import OVER, DamagedSource, heads_of


class Salvaged(Struct, frozen=True):
    """What a salvage took over, and what it could not."""

    copied: Copied
    streams: int
    cut: list[CutStream]
    doubtful: list[str]  # taken over as far as they are found: newer events may be lost
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """True if nothing is known to be lost, and nothing is in doubt."""
        return not self.cut and not self.doubtful and all(one.harmless for one in self.findings)


def salvage_log(
    source: Log,
    target: Log,
    *,
    progress: Progress | None = None,
    rest: Callable[[Record], None] | None = None,
) -> Salvaged:
    """Takes over what verifies; `rest` is called with each event that is found and cannot be."""
    _check_beginning(source, target)
    sink = Sink(target, ledger=Ledger(source, target), progress=progress)
    with contextlib.suppress(CorruptError):  # then nobody knows how much there is
        sink.total = int(source.position())
    left = DamagedSource(source, link_at=sink.link_at, rest=rest)
    sink.take(left)
    _check_equal(left, target)
    sink.set_marks(left.marks)
    sink.tell_erased()
    found = left.verification
    cut = sorted(found.cut.values(), key=lambda cut: cut.stream)
    return Salvaged(sink.copied(), len(found.ends), cut, found.doubtful(), found.findings)


def _check_beginning(source: Log, target: Log) -> None:
    """Raises ConflictError unless every stream of the target is a beginning of the source's.

    A damaged store cannot be asked for an event: all that is left of it is looked through.
    """
    missing = {name: head for name, head in all_heads(target) if head is not None}
    for remnant in remnants(source) if missing else ():
        for record in remnant if isinstance(remnant, list) else ():
            head = missing.get(record.stream)
            if head is not None and (head.revision, head.link) == (record.revision, record.link):
                del missing[record.stream]
    for name, head in missing.items():
        raise differs(name, head.revision, head.revision)


def _check_equal(left: DamagedSource, target: Log) -> None:
    """Raises ConflictError unless the target ends where what was taken over does."""
    ends = left.verification.ends
    for name, head in heads_of(target, sorted(ends)):
        is_equal = head is not None and (head.revision, head.link) == ends[name]
        if not is_equal and left.ends([name])[name] != OVER:
            raise differs(name, ends[name][0], head.revision if head else 0)

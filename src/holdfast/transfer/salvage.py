"""Takes over what verifies of a damaged store into a new one, and reports what it could not.

A stream is taken over from its beginning up to the first event that is missing or does not verify.
Later events cannot be appended: the link of the event before them is not there, and an event with
another link would be another event. They are passed to the caller one by one, to be kept as text.

The source is only read. The target must be empty, or hold a prefix of the same streams: so a
salvage that was killed can be run again, and goes on where it stopped.
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
    """What a salvage took over, and what it could not take over."""

    copied: Copied
    streams: int
    cut: list[CutStream]
    doubtful: list[str]  # taken over as far as found, but newer events may be lost
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether nothing is known to be lost and nothing is in doubt."""
        return not self.cut and not self.doubtful and all(one.harmless for one in self.findings)


def salvage_log(
    source: Log,
    target: Log,
    *,
    progress: Progress | None = None,
    rest: Callable[[Record], None] | None = None,
) -> Salvaged:
    """Takes over what verifies; `rest` is called with each event found that cannot be taken."""
    _check_beginning(source, target)
    sink = Sink(target, ledger=Ledger(source, target), progress=progress)
    with contextlib.suppress(CorruptError):  # then progress has no total
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
    """Raises ConflictError unless each stream of the target is a prefix of the source's.

    A damaged store cannot be asked for a single event, so all that is left of it is read through.
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
    """Raises ConflictError unless each stream of the target ends where the salvage ended."""
    ends = left.verification.ends
    for name, head in heads_of(target, sorted(ends)):
        is_equal = head is not None and (head.revision, head.link) == ends[name]
        if not is_equal and left.ends([name])[name] != OVER:
            raise differs(name, ends[name][0], head.revision if head else 0)

"""Takes scopes into a store that may hold other scopes, and may have newer events of these.

What the target has is left unchanged. A scope that went on differently there is refused before
anything is written, and so is one with a secret that the target does not accept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.backends.protocol import Head, Mark
from holdfast.core import codec
from holdfast.core.erased_ledger import Ledger
from holdfast.core.log import Log
from holdfast.core.retention import Told, ledger
from holdfast.errors import ConflictError
from holdfast.transfer.compare import have_one_past
from holdfast.transfer.sink import Copied, Progress, Sink
from holdfast.transfer.source import Source, count_events, heads_of


def take_scopes(
    source: Source,
    target: Log,
    marks: Iterable[Mark],
    streams: Sequence[str],
    progress: Progress | None = None,
    told: Mapping[tuple[str, int], Told] | None = None,
) -> Copied:
    """Takes the events and marks of a source that the target lacks.

    `told` is what is known of events that were let go of, beside what the source's log records.
    """
    log = source.log
    _check_target(log, target, streams)
    _check_secrets(source, target)
    total = count_events(heads_of(log, streams))
    before = dict(heads_of(target, streams))
    sink = Sink(target, ledger=Ledger(log, target), progress=progress, total=total)
    sink.take(source)
    # A scope that went on in the target has newer marks of its own, which must not be replaced. One
    # that got events now has its marks of before: they become those of the source.
    heads = zip(streams, log.heads(streams), target.heads(streams), strict=True)
    same = {
        name: ours for name, ours, theirs in heads if ours and theirs and ours.link == theirs.link
    }
    further = {name for name, ours in same.items() if _is_behind(before[name], ours)}
    sink.add_marks([mark for mark in marks if not mark.group or mark.group in same], further)
    taken = set(streams)
    known = {**(told or {}), **ledger(log)}
    sink.tell_erased({name: one for name, one in known.items() if name[0] in taken})
    return sink.copied()


def _is_behind(theirs: Head | None, ours: Head) -> bool:
    return theirs is not None and theirs.revision < ours.revision


def _check_target(log: Log, target: Log, streams: Iterable[str]) -> None:
    """Raises ConflictError unless each stream is equal in both, or a prefix in one of them."""
    for name in streams:
        if not have_one_past(log, target, name):
            [ours], [theirs] = log.heads([name]), target.heads([name])
            raise ConflictError(
                f'"{name}" is there already, and went on differently; nothing was written',
                stream=name,
                expected=ours.revision if ours else 0,
                actual=theirs.revision if theirs else 0,
                hint="import into another store, or fork the scope that is there",
            )


def _check_secrets(source: Source, target: Log) -> None:
    """Raises SecretError if a source has secrets in scopes where the target redacts or refuses.

    Sealed data was checked when it was written, and cannot be read now.
    """
    redactor, blobs = target.redactor, source.log.blobs
    if redactor is None:
        return
    for commit in source.commits():
        for record in commit:
            if record.subject is not None or redactor.mode_of(record.stream) == "off":
                continue
            redactor.check_foreign(record.payload, record.stream)
            for name, size in codec.blobs_in(record.payload):
                if blobs.subject(name) is None:
                    redactor.check_foreign(blobs.read(name, size), record.stream)

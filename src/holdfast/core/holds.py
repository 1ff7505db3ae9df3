"""Holds on scopes in a backend that lets go of expired scopes by itself (clause 30).

A hold is a mark and an event of `retention/log`. In a backend where only `retain` lets go of data,
that is all. A server that deletes a scope at its end must also be asked to keep the scope's keys
and the blobs that it names. It is asked before the hold is written, and once more after it. So when
a caller learns that a scope is held, the scope is complete, whatever was written meanwhile. A
process that is killed in between leaves a scope that is kept but not held; the next `retain`
corrects that (`keep_held`).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.backends.protocol import Backend, KeepsEnded
from holdfast.core import codec
from holdfast.core.log import READ_CHUNK, Log
from holdfast.errors import ExpiredError, UsageError


def keep(log: Log, stream: str) -> None:
    """Makes the backend keep a stream past its end, if the stream has one.

    Raises UsageError if the backend cannot, and ExpiredError if the stream is gone already.
    """
    [head] = log.heads([stream])
    if head is None or not head.expires_us:
        return
    backend = _part_of(log, stream)
    if not isinstance(backend, KeepsEnded):
        raise UsageError(
            f'{backend.inspect.describe()["kind"]} lets go of "{stream}" by itself, and has no '
            "keep: it cannot be held",
            hint="copy the store to a backend that can hold it",
        )
    if not backend.keep(stream, True):
        raise ExpiredError(stream, expires_us=head.expires_us)


def keep_blobs(log: Log, stream: str) -> set[str]:
    """Stores the large values of a stream that expires again, without an end; returns their names.

    A stream that lasts has nothing to keep: then the set is empty.
    """
    [head] = log.heads([stream])
    names: set[str] = set()
    if head is None or not head.expires_us:
        return names
    objects, after = log.routes.objects_of(stream), head.first - 1
    while page := log.backend.read(stream, after=after, until=head.revision, limit=READ_CHUNK):
        for record in page:
            for name, size in codec.blobs_in(record.payload):
                if name not in names:
                    objects.put("blob", name, log.blobs.stored(name, size))
                names.add(name)
        after = page[-1].revision
    return names


def let_end(log: Log, stream: str) -> None:
    """Lets the backend delete a stream at its end again."""
    backend = _part_of(log, stream)
    if isinstance(backend, KeepsEnded):
        backend.keep(stream, False)


def keep_held(log: Log, held: Iterable[str]) -> list[str]:
    """Makes the backends keep exactly the held scopes past their ends; returns which are gone."""
    wanted, gone = set(held), list[str]()
    for part in log.parts():
        if isinstance(part, KeepsEnded):
            for stream in part.kept():
                if stream not in wanted:
                    part.keep(stream, False)
    for stream in sorted(wanted):
        try:
            keep(log, stream)
            keep_blobs(log, stream)
        except ExpiredError:
            gone.append(stream)  # before it was held: its mark may have come without the scope
    return gone


def _part_of(log: Log, stream: str) -> Backend:
    return log.parts()[log.routes.place_of(stream)]

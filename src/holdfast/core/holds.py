"""Scopes that are held, in a backend that lets go of them by itself (clause 30).

A hold is a mark and an event of `retention/log`. Where nothing goes but by `retain`, that is all.
A server that lets go of a scope at its end has to be told, too: its keys, and the blobs that the
scope names. It is told before the hold is there, and once more after it: whoever is answered that a
scope is held finds it whole, whatever else went on meanwhile. A process that is killed in between
leaves a scope that is kept and not held; the next `retain` sees to it (`keep_held`).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.backends.protocol import Backend, KeepsEnded
from holdfast.core import codec
from holdfast.core.log import READ_CHUNK, Log
from holdfast.errors import ExpiredError, UsageError


def keep(log: Log, stream: str) -> None:
    """Has the backend keep a stream past its end, if it would let go of it by itself.

    Raises ExpiredError if it has done so already.
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
    """Has the large values of a stream that ends by itself kept for good; returns their names."""
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
    """Has the backend let go of a stream at its end again."""
    backend = _part_of(log, stream)
    if isinstance(backend, KeepsEnded):
        backend.keep(stream, False)


def keep_held(log: Log, held: Iterable[str]) -> None:
    """Makes what backends keep past its end the same as what is held."""
    wanted = set(held)
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
            continue  # gone before it was held: a copy may have the mark of such a one


def _part_of(log: Log, stream: str) -> Backend:
    return log.parts()[log.routes.place_of(stream)]

"""Compares a target with its source, before anything is written to it and after everything was.

Links are chained: if one link is equal in two stores, everything before it is equal, whatever the
backends are. So it is enough to compare, per stream, the heads and one event.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.backends.protocol import Head, Position
from holdfast.core.log import Log
from holdfast.core.retention import STREAM
from holdfast.errors import ConflictError
from holdfast.transfer.sink import differs

_HINT_ERASED = (
    "the target tells of data that was erased or let go of since the source was made: go on from "
    "the newer store, or copy the source into an empty one, which leaves out what was erased again"
)


def check_beginning(source: Log, target: Log, *, besides: str | None = None) -> None:
    """Raises ConflictError unless each stream of the target is a prefix of the source's.

    `besides` is a stream that is the target's own.
    """
    for name, theirs, ours in _pairs(target, source, names_of=target):
        if name == besides or theirs is None:
            continue
        if ours is None:
            raise ConflictError(
                f'the target has a stream "{name}" that the source has not',
                stream=name,
                expected=0,
                actual=theirs.revision,
                hint=_HINT_ERASED if name == STREAM else "copy into an empty store",
            )
        if not _is_beginning(source, name, theirs, ours):
            raise differs(name, ours.revision, theirs.revision)


def check_equal(source: Log, target: Log, began: Position) -> bool:
    """Raises ConflictError unless the target has what the source had when the copy began.

    Returns whether the source has more by now. Either it was written to meanwhile, or another
    client's open transaction on a server holds back the final position: then an event is in its
    stream already, but no follower can see it.
    """
    is_behind = False
    for name, theirs, ours in _pairs(target, source, names_of=source):
        if ours is None:
            continue
        if theirs is not None and (ours.revision, ours.link) == (theirs.revision, theirs.link):
            continue
        # What a hold keeps past its end has no right to be left out.
        is_ended = source.expiry.has_ended(name, ours)
        is_later = not ours.position <= began
        if not (is_ended or is_later) or not (
            theirs is None or _is_beginning(source, name, theirs, ours)
        ):
            raise differs(name, ours.revision, theirs.revision if theirs else 0)
        is_behind = is_behind or is_later
    return is_behind


def have_one_past(one: Log, other: Log, stream: str) -> bool:
    """Returns whether a stream in one store continues the same stream in the other.

    Either may be ahead. A stream that one of them does not have, or no longer has, is no conflict.
    """
    [first], [second] = one.heads([stream]), other.heads([stream])
    if first is None or second is None:
        return True
    revision = min(first.revision, second.revision)
    links = {one.link_at(stream, revision), other.link_at(stream, revision)}
    return None in links or len(links) == 1


def _is_beginning(source: Log, name: str, theirs: Head, ours: Head) -> bool:
    """Returns whether the source's stream continues where the target's ends."""
    if theirs.revision >= ours.revision:
        return (theirs.revision, theirs.link) == (ours.revision, ours.link)
    if source.expiry.is_due(name, ours):
        return True  # it has expired, so there are no events to compare
    there = source.backend.read(name, after=theirs.revision - 1, until=theirs.revision)
    return bool(there) and there[0].link == theirs.link


def _pairs(
    target: Log, source: Log, *, names_of: Log
) -> Iterator[tuple[str, Head | None, Head | None]]:
    """Yields every stream of one of two stores, with its heads in the target and in the source.

    The target is asked first: another copy may write to it meanwhile what is new in the source, and
    must not seem to be ahead.
    """
    after = ""
    while names := names_of.stream_page(after=after):
        yield from zip(names, target.heads(names), source.heads(names), strict=True)
        after = names[-1]

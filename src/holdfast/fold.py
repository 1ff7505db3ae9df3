"""From events to state: the one left fold that everything else is a cache of. Pure."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from holdfast import codec, event
from holdfast.backends.protocol import Record
from holdfast.errors import ClosedError, CorruptError, UsageError
from holdfast.tree import Map, Op, Run, apply, decode_ops

BlobReader = Callable[[str, int], bytes]

NOTHING = Map()


class Folded(Struct, frozen=True):
    """What a stream's events fold to at one revision."""

    revision: int
    link: bytes
    time: int
    root: Map
    parent: str | None = None
    closed_at: int = 0  # the revision that closed the scope, 0 while it is open
    dropped: bool = False  # the state was let go when the scope was closed
    expires_us: int = 0  # when the stream ends by itself, on the backend's clock; 0: it lasts


class Tip(Folded, frozen=True):
    """The end of a stream that was not folded: all that an event needs which changes no state.

    `root` is nobody's state, and `parent` is None where nobody looked for it. A tip is never kept
    or handed out as a fold.
    """


EMPTY = Folded(revision=0, link=event.ORIGIN, time=0, root=NOTHING)


def state_of(folded: Folded, name: str) -> Map:
    """Returns the state, or raises ClosedError if it was let go: never empty by accident."""
    if folded.dropped:
        raise ClosedError(
            f'the state of scope "{name}" was let go when it was closed at revision '
            f"{folded.closed_at}",
            stream=name,
            hint=f"at({folded.closed_at - 1}) still reads what it was",
        )
    return folded.root


class _Restored(Struct):
    to: int
    ops: Raw
    undo: bool = False


class _Forked(Struct):
    at: int
    origin: str = field(name="from")


class _Closed(Struct):
    keep: bool = True


def ops_of(record: Record) -> tuple[Op, ...]:
    """Returns the ops that a record applies to the state; none for types that leave it alone."""
    if record.type == event.CHANGED:
        return decode_ops(record.payload)
    if record.type == event.RESTORED:
        return decode_ops(bytes(codec.decode_as(record.payload, _Restored).ops))
    return ()


def tip_of(record: Record, expires_us: int) -> Tip:
    """Returns the end of a stream whose newest record this is.

    Nothing is ever written behind `closed`, so the newest record alone says whether it is closed.
    """
    closed_at, dropped = 0, False
    if record.type == event.CLOSED:
        closed_at = record.revision
        dropped = not codec.decode_as(record.payload, _Closed).keep
    return Tip(
        record.revision, record.link, record.time, NOTHING, None, closed_at, dropped, expires_us
    )


def parent_of(record: Record) -> str | None:
    """Returns the parent that a record gives its scope, None if it gives none."""
    if record.type != event.OPENED:
        return None
    return event.opened_of(record.payload)[0]


def origin_of(record: Record) -> tuple[str, int]:
    """Returns the stream and revision that a fork's first record says it began at."""
    forked = codec.decode_as(record.payload, _Forked)
    return forked.origin, forked.at


def restored_payload(to: int, ops_payload: bytes, *, undo: bool) -> bytes:
    """Returns the payload of a `restored` event; ops stand in it as `changed` writes them."""
    return b'{"to":%d,"ops":%b%b}' % (to, ops_payload, b',"undo":true' * undo)


def is_undo(record: Record) -> bool:
    """Says whether a `restored` event took back one change of the state, and nothing else."""
    return codec.decode_as(record.payload, _Restored).undo


def advance(
    folded: Folded,
    link: bytes,
    time: int,
    type: str,
    payload: bytes,
    ops: tuple[Op, ...],
    blobs: BlobReader,
) -> Folded:
    """Returns the fold one event later. Raises UsageError if an op does not fit the state."""
    revision = folded.revision + 1
    if ops:
        root = apply(folded.root, ops, revision=revision, blobs=blobs)
        return replace(folded, revision=revision, link=link, time=time, root=root)
    root, parent = folded.root, folded.parent
    closed_at, dropped, expires_us = folded.closed_at, folded.dropped, folded.expires_us
    if type == event.OPENED:
        said, ends = event.opened_of(payload)
        parent = said or parent
        if revision == 1:
            expires_us = ends
    elif type == event.CLOSED:
        closed_at = revision
        if not codec.decode_as(payload, _Closed).keep:
            root, dropped = NOTHING, True
    elif type == event.FORKED:
        closed_at, dropped, expires_us = 0, False, 0
    kind = folded.__class__  # a tip stays one: its root is no state
    return kind(revision, link, time, root, parent, closed_at, dropped, expires_us)


def fold(folded: Folded, records: list[Record], blobs: BlobReader) -> Folded:
    """Returns the fold after the records, having verified order and links (guarantees 6 and 7)."""
    revision, link, time, run = folded.revision, folded.link, folded.time, Run(folded.root)
    for record in records:
        revision += 1
        if record.revision != revision:
            raise CorruptError(
                f'stream "{record.stream}" skips from revision {revision - 1} '
                f"to {record.revision}: an event is missing",
                stream=record.stream,
                revision=revision,
            )
        link = event.record_link(link, record)
        if link != record.link:
            raise CorruptError(
                f'event {revision} of "{record.stream}" does not match its link: '
                "its bytes, or those of an event before it, have changed",
                stream=record.stream,
                revision=revision,
            )
        try:
            if record.type == event.CHANGED:
                # Nearly every event. No Folded is made for it: nobody would look at that.
                run.apply(decode_ops(record.payload), revision=revision, blobs=blobs)
            else:
                folded = replace(folded, revision=revision - 1, root=run.root())
                ops = ops_of(record)
                folded = advance(folded, link, record.time, record.type, record.payload, ops, blobs)
                run = Run(folded.root)
        except UsageError as misfit:
            raise CorruptError(
                f'event {revision} of "{record.stream}" does not fit the state '
                f"before it: {misfit.message}",
                stream=record.stream,
                revision=revision,
            ) from misfit
        time = record.time
    return replace(folded, revision=revision, link=link, time=time, root=run.root())

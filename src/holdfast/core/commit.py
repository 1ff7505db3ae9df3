"""What callers want committed, and how it is laid on the folds that it will follow. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.backends.protocol import Append, Cleared, Commit, Fence, Lease, Mark, Position, Record
from holdfast.core import event
from holdfast.core.commit_queue import Request
from holdfast.core.event import BlobReader, StreamState, advance
from holdfast.core.expiry import EXPIRING
from holdfast.core.tree import Op, encode_ops
from holdfast.errors import ConflictError, ExistsError, HoldfastError, UsageError, show_value

EndOf = Callable[[str], int]


class NewEvent(Struct, frozen=True):
    """One event that somebody wants; the log gives it revision, time and link."""

    type: str
    payload: bytes
    ops: tuple[Op, ...] = ()


class StreamWrite(Struct, frozen=True):
    """What a request wants in one stream. `expected` None: at whatever revision it is."""

    stream: str
    new_events: tuple[NewEvent, ...]
    expected: int | None = None
    key: str | None = None
    checkpoint: str | None = None
    parent: str | None = None  # recorded by an `opened` event if it is not yet
    origin: tuple[str, int] | None = None  # the stream is a fork of that one at that revision
    expires: bool = False  # the stream must be one that ends by itself, or be begun as one

    @property
    def keeps_state(self) -> bool:
        """Says whether no event of it changes the state: then nothing need be folded for it."""
        for new_event in self.new_events:  # noqa: SIM110 -- a generator costs more than all of this
            if new_event.ops:
                return False
        return True


class ProposedCommit(Struct, frozen=True):
    """One commit as its caller wants it.

    `abort_if` is asked right before it is sent: an error is the answer, and nothing is written.
    `failed` is told why it was not written before anything behind it in the line is sent.
    """

    writes: tuple[StreamWrite, ...]
    reads: tuple[tuple[str, int], ...] = ()
    fence: Fence | None = None
    marks: tuple[Mark | Cleared, ...] = ()
    watch: tuple[str, ...] = ()
    abort_if: Callable[[], HoldfastError | None] | None = None
    failed: Callable[[BaseException], object] | None = None


class CommitResult(Struct, frozen=True):
    """The answer to a request: where it stands, and each stream's state before and after."""

    position: Position
    before: tuple[StreamState, ...]
    after: tuple[StreamState, ...]
    news: dict[str, int] = {}
    repeated: bool = False  # an earlier commit with the same key is the answer; nothing was written

    @property
    def revision(self) -> int:
        """The new revision of the first stream."""
        return self.after[0].revision


class PreparedCommit(Struct):
    """A request with the commit that it became, and the folds on both sides of it."""

    request: Request
    commit: Commit
    before: tuple[StreamState, ...]
    after: tuple[StreamState, ...]


def changed(ops: Sequence[Op]) -> NewEvent:
    """Returns the event for ops."""
    ops = tuple(ops)
    return NewEvent(event.CHANGED, encode_ops(ops), ops)


def prepare(
    request: Request,
    before: tuple[StreamState, ...],
    *,
    now: int,
    actor: str,
    blobs: BlobReader,
    end_of: EndOf,
) -> PreparedCommit:
    """Returns the request as a commit behind the folds `before`, one for each of its parts.

    `end_of` tells when a stream that begins now will end by itself, by the backend's clock.

    Raises UsageError if a change does not fit: so no event is stored that cannot be folded. Time
    is moved up to the newest of every stream, so it never falls within one.
    """
    wanted: ProposedCommit = request.work
    time = now
    for base in before:
        if base.time > time:
            time = base.time
    laid = [
        _lay_part(part, base, time, actor, blobs, end_of)
        for part, base in zip(wanted.writes, before, strict=True)
    ]
    marks = wanted.marks
    if len(laid) > 1:
        _check_together(laid)
    for append, _ in laid:
        if append.expires_us and append.expected == 0:
            marks = (*marks, Mark(EXPIRING, append.stream, append.expires_us))
    commit = Commit(
        time,
        actor,
        tuple([append for append, _ in laid]),
        wanted.reads,
        wanted.fence,
        marks,
        wanted.watch,
    )
    return PreparedCommit(request, commit, before, tuple([folded for _, folded in laid]))


def live(laid: list[PreparedCommit]) -> list[PreparedCommit]:
    """Returns what is to be sent, and answers the rest.

    Asked when it is sent and not when it was laid: what it depends on may have failed since, a
    moment ago, in the same batch.
    """
    is_whole = True
    for one in laid:
        abort_if = one.request.work.abort_if
        if abort_if is not None and (error := abort_if()) is not None:
            one.request.fail(error)
            is_whole = False
    return laid if is_whole else [one for one in laid if not one.request.answered]


def _lay_part(
    part: StreamWrite, base: StreamState, time: int, actor: str, blobs: BlobReader, end_of: EndOf
) -> tuple[Append, StreamState]:
    new_events = part.new_events
    expires_us = base.expires_us
    if base.revision == 0:
        expires_us = end_of(part.stream)
    elif part.expires and not expires_us:
        raise _lasts(part.stream)
    begins = expires_us > 0 and base.revision == 0
    if begins or (part.parent is not None and base.parent != part.parent):
        said = event.opened_payload(part.parent, expires_us if begins else 0)
        new_events = (NewEvent(event.OPENED, said), *new_events)
    stream, key = part.stream, part.key
    folded = base
    records: list[Record] = []
    last = new_events[-1]
    for new_event in new_events:
        type, payload, ops = new_event.type, new_event.payload, new_event.ops
        checkpoint = part.checkpoint if new_event is last else None
        revision = folded.revision + 1
        link = event.next_link(
            folded.link, payload, [stream, revision, time, type, actor, key, checkpoint, None]
        )
        folded = advance(folded, link, time, type, payload, ops, blobs)
        records.append(Record(stream, revision, time, type, actor, payload, link, key, checkpoint))
        key = None
    fork = part.origin is not None
    return Append(stream, base.revision, tuple(records), fork, base.link, expires_us), folded


def _check_together(laid: list[tuple[Append, StreamState]]) -> None:
    """Raises UsageError if a commit is over streams of which some expire and some last.

    Half of it would be gone one day, and what is left would tell of what nobody can read.
    """
    expiring = [append.stream for append, _ in laid if append.expires_us]
    lasting = [append.stream for append, _ in laid if not append.expires_us]
    if expiring and lasting:
        raise UsageError(
            f'scope "{expiring[0]}" expires by itself and "{lasting[0]}" lasts: they cannot be '
            "written by one commit",
            hint="commit to them one after the other, or begin both with ttl_s",
        )


def expires(stream: str) -> UsageError:
    """Returns the error for a fork of what will be gone one day."""
    return UsageError(
        f'scope "{stream}" expires by itself: a fork of it would lose the past that it refers to',
        hint="copy what is needed into a scope of its own: update(scope.to_dict())",
    )


def _lasts(stream: str) -> UsageError:
    return UsageError(
        f'scope "{stream}" lasts: it was begun without ttl_s, and cannot be given one now',
        hint="begin a scope with another id, or close this one with keep=False",
    )


def conflict(stream: str, expected: int, actual: int) -> ConflictError:
    """Returns the error for a stale expectation."""
    return ConflictError(
        f'scope "{stream}" changed: expected revision {expected}, found {actual}',
        stream=stream,
        expected=expected,
        actual=actual,
    )


def exists(stream: str) -> ExistsError:
    """Returns the error for a name that is taken."""
    return ExistsError(f'scope "{stream}" exists already', hint="choose another id for the fork")


def check_lease(lease: object) -> Lease:
    """Returns what `store.lease` returned, or raises UsageError."""
    if not isinstance(lease, Lease):
        raise UsageError(f"a lease is what store.lease() returns, found {show_value(lease)}")
    return lease

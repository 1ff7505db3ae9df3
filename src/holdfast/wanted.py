"""What callers want committed, and how it is laid on the folds that it will follow. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from holdfast import codec, event
from holdfast.backends.protocol import (
    Append,
    Cleared,
    Commit,
    Fence,
    Lease,
    Mark,
    Position,
    Record,
)
from holdfast.batch import Request
from holdfast.errors import ConflictError, ExistsError, UsageError, show_value
from holdfast.fold import BlobReader, Folded, advance
from holdfast.tree import Op, encode_ops


class Proposal(Struct, frozen=True):
    """One event that somebody wants; the log gives it revision, time and link."""

    type: str
    payload: bytes
    ops: tuple[Op, ...] = ()


class Part(Struct, frozen=True):
    """What a request wants in one stream. `expected` None: at whatever revision it is."""

    stream: str
    proposals: tuple[Proposal, ...]
    expected: int | None = None
    key: str | None = None
    checkpoint: str | None = None
    parent: str | None = None  # recorded by an `opened` event if it is not yet
    origin: tuple[str, int] | None = None  # the stream is a fork of that one at that revision

    @property
    def keeps_state(self) -> bool:
        """Says whether no event of it changes the state: then nothing need be folded for it."""
        for proposal in self.proposals:  # noqa: SIM110 -- a generator costs more than all of this
            if proposal.ops:
                return False
        return True


class Wanted(Struct, frozen=True):
    """One commit as its caller wants it."""

    parts: tuple[Part, ...]
    reads: tuple[tuple[str, int], ...] = ()
    fence: Fence | None = None
    marks: tuple[Mark | Cleared, ...] = ()
    watch: tuple[str, ...] = ()


class Written(Struct, frozen=True):
    """The answer to a request: where it stands, and each stream's state before and after."""

    position: Position
    before: tuple[Folded, ...]
    after: tuple[Folded, ...]
    news: dict[str, int] = {}
    repeated: bool = False  # an earlier commit with the same key is the answer; nothing was written

    @property
    def revision(self) -> int:
        """The new revision of the first stream."""
        return self.after[0].revision


class Laid(Struct):
    """A request with the commit that it became, and the folds on both sides of it."""

    request: Request
    commit: Commit
    before: tuple[Folded, ...]
    after: tuple[Folded, ...]


def changed(ops: Sequence[Op]) -> Proposal:
    """Returns the event for ops."""
    ops = tuple(ops)
    return Proposal(event.CHANGED, encode_ops(ops), ops)


def lay(
    request: Request, before: tuple[Folded, ...], *, now: int, actor: str, blobs: BlobReader
) -> Laid:
    """Returns the request as a commit behind the folds `before`, one for each of its parts.

    Raises UsageError if a change does not fit: so no event is stored that cannot be folded. Time
    is moved up to the newest of every stream, so it never falls within one.
    """
    wanted: Wanted = request.work
    time = now
    for base in before:
        if base.time > time:
            time = base.time
    laid = [
        _lay_part(part, base, time, actor, blobs)
        for part, base in zip(wanted.parts, before, strict=True)
    ]
    commit = Commit(
        time,
        actor,
        tuple([append for append, _ in laid]),
        wanted.reads,
        wanted.fence,
        wanted.marks,
        wanted.watch,
    )
    return Laid(request, commit, before, tuple([folded for _, folded in laid]))


def _lay_part(
    part: Part, base: Folded, time: int, actor: str, blobs: BlobReader
) -> tuple[Append, Folded]:
    proposals = part.proposals
    if part.parent is not None and base.parent != part.parent:
        opened = Proposal(event.OPENED, codec.encode_plain({"parent": part.parent}))
        proposals = (opened, *proposals)
    stream, key = part.stream, part.key
    folded = base
    records: list[Record] = []
    last = proposals[-1]
    for proposal in proposals:
        type, payload, ops = proposal.type, proposal.payload, proposal.ops
        checkpoint = part.checkpoint if proposal is last else None
        revision = folded.revision + 1
        link = event.next_link(
            folded.link, payload, [stream, revision, time, type, actor, key, checkpoint, None]
        )
        folded = advance(folded, link, time, type, payload, ops, blobs)
        records.append(Record(stream, revision, time, type, actor, payload, link, key, checkpoint))
        key = None
    fork = part.origin is not None
    return Append(stream, base.revision, tuple(records), fork, base.link), folded


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

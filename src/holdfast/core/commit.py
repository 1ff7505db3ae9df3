"""What callers want committed, what it becomes, and how it can be refused. Pure data.

The layers above the log take the types that they share with backends (records, marks, leases) from
here: this is the one module through which they travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

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
from holdfast.core import tree
from holdfast.core.codec import Path
from holdfast.core.commit_queue import Request
from holdfast.core.event import CHANGED, RESTORED, StreamState, to_datetime
from holdfast.core.tree import Op, encode_ops
from holdfast.core.tree.ops import describe
from holdfast.errors import (
    ConflictError,
    ExistsError,
    HoldfastError,
    UsageError,
    show_us,
    show_value,
)

__all__ = [
    "Append",
    "Cleared",
    "Commit",
    "CommitResult",
    "Fence",
    "Lease",
    "Mark",
    "NewEvent",
    "Position",
    "PreparedCommit",
    "ProposedCommit",
    "ReadGuard",
    "Record",
    "StreamWrite",
    "Ttls",
    "ahead",
    "changed",
    "check_expire_together",
    "check_lease",
    "conflict",
    "exists",
    "expires",
    "import_ahead",
    "import_goes_back",
    "import_too_late",
    "key_of_removed",
    "lasts",
    "meta_not_kept",
    "taken",
    "unnamed",
    "untouchable",
]


_SHOWN_MAX = 4


Ttls = tuple[tuple[Path, int], ...]
"""Values that end: the path of each, and how long it lasts in microseconds."""


class NewEvent(Struct, frozen=True):
    """One event that somebody wants; the log gives it revision, time and link."""

    type: str
    payload: bytes
    ops: tuple[Op, ...] = ()
    defaults: tuple[Op, ...] = ()  # done first, each only where there is nothing yet
    meta: str | None = None  # what is known of this one; see `meta.encode_meta`
    key: str | None = None  # its own, besides the write's, which is on the first event (clause 26)
    sealed_for: tuple[str, ...] = ()  # the subjects of values that were sealed for it, by their ids
    ttls: Ttls = ()  # values that end, and how long they last


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
    follows: int = 0  # what it is about is of this revision: a conflict if removed since then
    id: str | None = None  # the whole id if the name has a digest of it; "" if it is not known
    is_joint: bool = False  # what several recorders wrote: a repetition has other ids and times

    @property
    def keeps_state(self) -> bool:
        """Says whether no event of it changes the state: then nothing need be folded for it."""
        for new_event in self.new_events:  # noqa: SIM110 -- a generator costs more than all of this
            if new_event.ops or new_event.defaults:
                return False
        return True

    @property
    def fits_any_state(self) -> bool:
        """Says whether its events can follow whatever state is there: they set keys of it, or
        change nothing. Then the end of the stream is all that must be known."""
        for new_event in self.new_events:
            if new_event.defaults or new_event.ttls or new_event.type == RESTORED:
                return False
            for op in new_event.ops:
                if op.kind != "set" or type(op.path) is not str:
                    return False
        return True


class ReadGuard(Struct, frozen=True):
    """What a commit has read of a stream: these paths must still be what they were then.

    The revision may be another one. It is the log that compares, on the state that the commit will
    follow; the backend is told that very revision. So the contract knows of revisions only.
    """

    stream: str
    state: StreamState
    paths: tuple[Path, ...]

    def changed_paths(self, now: StreamState) -> list[Path]:
        """Returns the places that are no longer what was read; none if all of them are.

        A scope that was closed or removed meanwhile is another one as a whole.
        """
        if now.link == self.state.link and self.state.ends is None:
            return []
        if now.closed_at != self.state.closed_at or now.removed_at != self.state.removed_at:
            return [()]
        old, new = self.state.root, now.root
        return [place for path in self.paths for place in tree.changed_places(old, new, path)]


class ProposedCommit(Struct, frozen=True):
    """One commit as its caller wants it.

    `abort_if` is asked right before it is sent: an error is the answer, and nothing is written.
    `failed` is told why it was not written before anything after it in the queue is sent.
    """

    writes: tuple[StreamWrite, ...]
    reads: tuple[tuple[str, int], ...] = ()
    fence: Fence | None = None
    marks: tuple[Mark | Cleared, ...] = ()
    watch: tuple[str, ...] = ()
    abort_if: Callable[[], HoldfastError | None] | None = None
    failed: Callable[[BaseException], object] | None = None
    guards: tuple[ReadGuard, ...] = ()
    meta: str | None = None  # of every event of it; what an event says of itself counts before it
    time: int | None = None  # of an import: when its events happened; None: now
    actor: str | None = None  # who writes it; None: whoever the store was opened for
    is_redacted: bool = False  # secrets were taken out of what the caller wanted


class CommitResult(Struct, frozen=True):
    """The answer to a request: where it stands, and each stream's state before and after."""

    position: Position
    before: tuple[StreamState, ...]
    after: tuple[StreamState, ...]
    news: dict[str, int] = {}
    repeated: bool = False  # an earlier commit with the same key is the answer; nothing was written
    redacted: tuple[StreamWrite, ...] = ()  # what was written, if secrets were taken out of it

    def written(self, write: StreamWrite) -> StreamWrite:
        """Returns a write of the caller's as it was written: without secrets."""
        return next((one for one in self.redacted if one.stream == write.stream), write)

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
    """Returns the event that applies ops."""
    return NewEvent(CHANGED, encode_ops(ops), tuple(ops))


def check_expire_together(appends: Sequence[Append]) -> None:
    """Raises UsageError if a commit is over streams of which some expire and some last.

    Half of it would be gone one day, and the other half would refer to what cannot be read.
    """
    expiring = [append.stream for append in appends if append.expires_us]
    lasting = [append.stream for append in appends if not append.expires_us]
    if expiring and lasting:
        raise UsageError(
            f'scope "{expiring[0]}" expires by itself and "{lasting[0]}" lasts: they cannot be '
            "written by one commit",
            hint="commit to them one after the other, or begin both with ttl_s",
        )


def ahead(stream: str, ahead_us: int) -> UsageError:
    """Returns the error for a time that would go on to other streams and stay with them."""
    return UsageError(
        f'scope "{stream}" has a time that is {show_us(ahead_us)} ahead of the server\'s clock: '
        "no other stream can be written together with it, or be begun as its fork",
        hint="write to it alone; or fork it at a revision before its time went wrong, which "
        '"holdfast doctor" names, and go on there',
    )


def import_ahead(time: int, ahead_us: int) -> UsageError:
    """Returns the error for an import of what has not happened yet."""
    return UsageError(
        f"an import has the time {to_datetime(time).isoformat()}, which is {show_us(ahead_us)} "
        "ahead of the clock: expected a time that has passed",
        hint="see whether the time zone is right, and the clock of this host",
    )


def import_goes_back(stream: str, time: int, newest: int) -> UsageError:
    """Returns the error for an import of something older than what is there."""
    return UsageError(
        f'an import into "{stream}" has the time {to_datetime(time).isoformat()}, and its newest '
        f"event has {to_datetime(newest).isoformat()}: times never go back within a scope",
        hint="import in the order of the times, or into a scope of its own",
    )


def import_too_late(stream: str) -> UsageError:
    """Returns the error for an import into a stream that has times by the clock."""
    return UsageError(
        f'scope "{stream}" has events that were not imported: only a new scope can be given times',
        hint="import into a new scope; or add without times, and say when it happened in "
        "said_at or Meta(original_time=…)",
    )


def expires(stream: str) -> UsageError:
    """Returns the error for a fork of what will be gone one day."""
    return UsageError(
        f'scope "{stream}" expires by itself: a fork of it would lose the past that it refers to',
        hint="copy what is needed into a scope of its own: update(scope.state.to_dict())",
    )


def unnamed(stream: str) -> UsageError:
    """Returns the error for a scope that begins where only the digest of its id is known."""
    return UsageError(
        f'scope "{stream}" is not there, and its name has a digest in place of its id: '
        "nothing was written",
        hint="begin it with its level and its whole id",
    )


def lasts(stream: str) -> UsageError:
    return UsageError(
        f'scope "{stream}" lasts: it was begun without ttl_s, and cannot be given one now',
        hint="begin a scope with another id, or close this one with keep=False",
    )


def untouchable(stream: str, *, lasts: bool) -> UsageError:
    """Returns the error for a touch of what has no end that slides."""
    found = "lasts" if lasts else "has an end that is fixed"
    return UsageError(
        f'scope "{stream}" {found}: only one whose end slides can be touched',
        hint="begin a scope with another id, with ttl_s and slides=True",
    )


def key_of_removed(key: str, stream: str) -> UsageError:
    """Returns the error for a key that some scopes of a commit know, and a removed one does not.

    A key belongs to a life: in the scope that was removed it is free, in the others it is not.
    """
    return UsageError(
        f'key "{key}" was used for a change to other scopes of this commit, and scope "{stream}", '
        "which was removed, has none of it: nothing was written",
        hint="what it changed in the other scopes is still there; to change all of them again, "
        "use a new key",
    )


def meta_not_kept(stream: str) -> UsageError:
    """Returns the error for an event with meta where the backend would lose it (clause 27)."""
    return UsageError(
        f'scope "{stream}" is in a backend that does not keep meta: nothing was written',
        hint="commit without meta, or keep this level in a backend that has it",
    )


def conflict(stream: str, expected: int, actual: int, paths: Sequence[Path] = ()) -> ConflictError:
    """Returns the error for a stale expectation, of a revision or of what is at some paths."""
    shown = ", ".join(map(describe, paths[:_SHOWN_MAX]))
    if len(paths) > _SHOWN_MAX:
        shown += f" and {len(paths) - _SHOWN_MAX} more places"
    return ConflictError(
        f'scope "{stream}" changed{shown and f" at {shown}"}: '
        f"expected revision {expected}, found {actual}",
        stream=stream,
        expected=expected,
        actual=actual,
        paths=paths,
    )


def taken(stream: str, expected: int, actual: int) -> ConflictError:
    """Returns the error for an item that another writer added, or changed, a moment ago.

    Its key says so, whatever else was written to the stream meanwhile.
    """
    return ConflictError(
        f'event {actual} of "{stream}" has a key that this commit has too: another writer was '
        "faster, and nothing was written",
        stream=stream,
        expected=expected,
        actual=actual,
        hint="read again what the commit is about, and make it anew",
    )


def exists(stream: str) -> ExistsError:
    """Returns the error for a name that is taken."""
    return ExistsError(f'scope "{stream}" exists already', hint="choose another id for the fork")


def check_lease(lease: object) -> Lease:
    """Returns what `hf.workers.lease` returned, or raises UsageError."""
    if not isinstance(lease, Lease):
        raise UsageError(f"a lease is what hf.workers.lease() returns, found {show_value(lease)}")
    return lease

"""What callers ask to commit, what it becomes, and the errors that refuse it. Pure data.

The layers above the log import the types that they share with backends (records, marks, leases)
from this module only.
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
    """One event that a caller wants to append; the log gives it revision, time and link."""

    type: str
    payload: bytes
    ops: tuple[Op, ...] = ()
    defaults: tuple[Op, ...] = ()  # applied first, each only if there is nothing at its path yet
    meta: str | None = None  # the event's own meta; see `meta.encode_meta`
    key: str | None = None  # a key of this event; that of the write is on its first one (clause 26)
    sealed_for: tuple[str, ...] = ()  # the ids of subjects for whom values of it were sealed
    ttls: Ttls = ()  # values that end, and how long they last


class StreamWrite(Struct, frozen=True):
    """What a request appends to one stream, if that is at revision `expected`; None: at any."""

    stream: str
    new_events: tuple[NewEvent, ...]
    expected: int | None = None
    key: str | None = None
    checkpoint: str | None = None
    parent: str | None = None  # recorded by an `opened` event if it is not yet
    origin: tuple[str, int] | None = None  # the stream is a fork of that one at that revision
    expires: bool = False  # the stream must be one that ends by itself, or be begun as one
    follows: int = 0  # the revision that the caller read: a conflict if removed since then
    id: str | None = None  # the whole id if the name has a digest of it; "" if it is not known
    is_joint: bool = False  # written by several recorders: a repetition has other ids and times

    @property
    def keeps_state(self) -> bool:
        """Whether none of its events changes the state: then nothing must be folded for it."""
        for new_event in self.new_events:  # noqa: SIM110 -- a generator costs more than all of this
            if new_event.ops or new_event.defaults:
                return False
        return True

    @property
    def fits_any_state(self) -> bool:
        """Whether its events fit any state: they only set keys at the top of it, or nothing.

        Then only the end of the stream must be known.
        """
        for new_event in self.new_events:
            if new_event.defaults or new_event.ttls or new_event.type == RESTORED:
                return False
            for op in new_event.ops:
                if op.kind != "set" or type(op.path) is not str:
                    return False
        return True


class ReadGuard(Struct, frozen=True):
    """What a commit has read of a stream: the values at these paths must not have changed since.

    The revision may have changed. The log compares the paths, on the state that the commit will
    follow, and passes that state's revision to the backend as the expected one. So the contract of
    backends has expected revisions only.
    """

    stream: str
    state: StreamState
    paths: tuple[Path, ...]

    def changed_paths(self, now: StreamState) -> list[Path]:
        """Returns the places whose values are no longer what was read.

        A scope that was closed or removed meanwhile has changed as a whole: its path is ().
        """
        if now.link == self.state.link and self.state.ends is None:
            return []
        if now.closed_at != self.state.closed_at or now.removed_at != self.state.removed_at:
            return [()]
        old, new = self.state.root, now.root
        return [place for path in self.paths for place in tree.changed_places(old, new, path)]


class ProposedCommit(Struct, frozen=True):
    """One commit as its caller asks for it.

    `abort_if` is called right before the commit is sent: if it returns an error, that is the answer
    and nothing is written. `failed` is called with the reason of a failure, before anything behind
    it in the queue is sent.
    """

    writes: tuple[StreamWrite, ...]
    reads: tuple[tuple[str, int], ...] = ()
    fence: Fence | None = None
    marks: tuple[Mark | Cleared, ...] = ()
    watch: tuple[str, ...] = ()
    abort_if: Callable[[], HoldfastError | None] | None = None
    failed: Callable[[BaseException], object] | None = None
    guards: tuple[ReadGuard, ...] = ()
    meta: str | None = None  # for all its events; the meta of an event itself comes before it
    time: int | None = None  # of an import: when its events happened; None: now
    actor: str | None = None  # who writes it; None: the actor that the store was opened with
    is_redacted: bool = False  # secrets were taken out of what the caller wanted to write


class CommitResult(Struct, frozen=True):
    """The answer to a request: its position, and each stream's state before and after."""

    position: Position
    before: tuple[StreamState, ...]
    after: tuple[StreamState, ...]
    news: dict[str, int] = {}
    repeated: bool = False  # an earlier commit with the same key is the answer; nothing was written
    redacted: tuple[StreamWrite, ...] = ()  # what was written, if secrets were taken out of it

    def written(self, write: StreamWrite) -> StreamWrite:
        """Returns a caller's write in the form that was stored: without secrets."""
        return next((one for one in self.redacted if one.stream == write.stream), write)

    @property
    def revision(self) -> int:
        """The new revision of the first stream."""
        return self.after[0].revision


class PreparedCommit(Struct):
    """A request with the commit that it became, and its streams' states before and after."""

    request: Request
    commit: Commit
    before: tuple[StreamState, ...]
    after: tuple[StreamState, ...]


def changed(ops: Sequence[Op]) -> NewEvent:
    """Returns the event that applies ops."""
    return NewEvent(CHANGED, encode_ops(ops), tuple(ops))


def check_expire_together(appends: Sequence[Append]) -> None:
    """Raises UsageError if some streams of a commit expire and others last.

    One part of the commit would be gone one day, and the rest would refer to it in vain.
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
    """Returns the error for a wrong time in one stream that would spread to other streams."""
    return UsageError(
        f'scope "{stream}" has a time that is {show_us(ahead_us)} ahead of the server\'s clock: '
        "no other stream can be written together with it, or be begun as its fork",
        hint="write to it alone; or fork it at a revision before its time went wrong, which "
        '"holdfast doctor" names, and go on there',
    )


def import_ahead(time: int, ahead_us: int) -> UsageError:
    """Returns the error for an import with a time that has not come yet."""
    return UsageError(
        f"an import has the time {to_datetime(time).isoformat()}, which is {show_us(ahead_us)} "
        "ahead of the clock: expected a time that has passed",
        hint="see whether the time zone is right, and the clock of this host",
    )


def import_goes_back(stream: str, time: int, newest: int) -> UsageError:
    """Returns the error for an import that is older than the newest event of its stream."""
    return UsageError(
        f'an import into "{stream}" has the time {to_datetime(time).isoformat()}, and its newest '
        f"event has {to_datetime(newest).isoformat()}: times never go back within a scope",
        hint="import in the order of the times, or into a scope of its own",
    )


def import_too_late(stream: str) -> UsageError:
    """Returns the error for an import into a stream that has events with times of the clock."""
    return UsageError(
        f'scope "{stream}" has events that were not imported: only a new scope can be given times',
        hint="import into a new scope; or add without times, and say when it happened in "
        "said_at or Meta(original_time=…)",
    )


def expires(stream: str) -> UsageError:
    """Returns the error for a fork of a stream that will expire."""
    return UsageError(
        f'scope "{stream}" expires by itself: a fork of it would lose the past that it refers to',
        hint="copy what is needed into a scope of its own: update(scope.state)",
    )


def unnamed(stream: str) -> UsageError:
    """Returns the error for beginning a scope when only the digest of its id is known."""
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
    """Returns the error for a touch of a scope that has no sliding end."""
    found = "lasts" if lasts else "has an end that is fixed"
    return UsageError(
        f'scope "{stream}" {found}: only one whose end slides can be touched',
        hint="begin a scope with another id, with ttl_s and slides=True",
    )


def key_of_removed(key: str, stream: str) -> UsageError:
    """Returns the error for a key that is used in some scopes of a commit and free in another.

    A key belongs to a life of a scope: it is free again in a scope that was removed since.
    """
    return UsageError(
        f'key "{key}" was used for a change to other scopes of this commit, and scope "{stream}", '
        "which was removed, has none of it: nothing was written",
        hint="what it changed in the other scopes is still there; to change all of them again, "
        "use a new key",
    )


def meta_not_kept(stream: str) -> UsageError:
    """Returns the error for an event with meta in a backend that would lose it (clause 27)."""
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
    """Returns the error for an item that another writer has just added or changed.

    An event with the same key shows that, whatever else was written to the stream meanwhile.
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

"""Letting go: which payloads may go, the record that they went, and what is left to do (0049).

Nothing goes that anybody can still ask for. These may go: what a scope held before it was removed;
the state and the messages that were dropped when a scope was closed (its decisions, tasks and facts
can still be read, and stay); and what a scope held when its lifetime was over. A scope with a hold
keeps everything. What a living fork began from stays too. Policies
(`record/retention_policies.py`) say what else goes of scopes that live.

One letting-go has this order, so that a process that is killed anywhere leaves nothing half done
that the next run does not finish:

    (1) an event in `retention/log` says which records go and why, with the digest of each payload,
        by which its link can still be verified afterwards; marks say that the rest is pending
    (2) the backend rewrites the records (clause 28)
    (3) snapshots and all else that was derived from them are deleted, the index of questions too
    (4) blobs that only they named are deleted, after a look at every event of the store
    (5) the marks are cleared, except one
    (6) the backend purges its bytes (clause 29), and an event says what is left; the same commit
        clears the last mark, which has said since (1) that bytes may be left

The next run repeats what a mark still says, and has the backend purge again as long as the newest
such event names something. Only one run at a time works, under the lease `retention`.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.protocol import (
    GONE,
    START,
    Cleared,
    Fence,
    Head,
    Lease,
    Leftover,
    Mark,
    Position,
    Record,
    Rewrites,
    Shortens,
)
from holdfast.core import codec, ended_values, erased_ledger, holds
from holdfast.core.commit import CommitResult, NewEvent, ProposedCommit, StreamWrite
from holdfast.core.ended_values import Ended
from holdfast.core.event import (
    BASED,
    CHANGED,
    CHECKPOINTED,
    CLOSED,
    FORKED,
    JOINED,
    LEASE,
    MIGRATED,
    OPENED,
    REMOVED,
    RESTORED,
    end_of,
    to_datetime,
)
from holdfast.core.expiry import HOLDS
from holdfast.core.layers import Layer, lasting_prefixes, register_layer
from holdfast.core.leases import acquire_within
from holdfast.core.log import COLLECTED, NO_LIMIT, READ_CHUNK, Log
from holdfast.core.matching import Shortening, done_again
from holdfast.errors import (
    ClosedError,
    ConflictError,
    ExpiredError,
    HeldError,
    LeaseLostError,
    LetGoError,
    NotFoundError,
    SchemaError,
    UsageError,
)

if TYPE_CHECKING:
    from holdfast.core.kernel import Kernel

_logger = logging.getLogger("holdfast.retention")

R = TypeVar("R")
STREAM = "retention/log"
LET_GO = "retention.let_go"
HELD = "retention.held"
RELEASED = "retention.released"
PURGED = "retention.purged"
SHORTENED = "retention.shortened"
ERASED = "retention.erased"
BINNED = "retention.binned"
BEGUN = "retention.erasing"

PENDING = "retention.pending"
"""The index that has a mark for each scope whose letting-go has begun and is not done."""
BLOBS = "retention.blob"
"""The index that has a mark for each blob that may be without a name, due when it may go."""
SHORTENING = "retention.shortening"
"""The index that has a mark for each stream whose payloads are to be cut, as an event says."""
UNPURGED = "retention.unpurged"
"""The index that has a mark from the word that data goes until the backend has purged it."""
_TO_PURGE = Mark(UNPURGED, "bytes")
ERASING_SCOPES = "retention.erasing"
"""The index that has a mark for each scope whose erasure has begun and has no receipt yet."""
register_layer(
    Layer(
        name="retention",
        prefixes=("retention",),
        indexes=(HOLDS, PENDING, BLOBS, COLLECTED, SHORTENING, UNPURGED, ERASING_SCOPES),
    )
)

GRACE_S = 7 * 24 * 3600.0
"""How long data stays after its scope was removed, closed or has expired, by default."""
ORPHANS_STAY_S = 24 * 3600.0
"""How long a blob that no event names stays: the commit that names it may be on the way."""
LEASE_NAME = "retention"
LEASE_TTL_S = 30.0
RECORDS_AT_ONCE = 500_000
"""How many records are rewritten at once.

The records of scopes lie mixed, so each rewrite may read a whole log: few large ones are cheaper.
"""
DIGESTS_PER_EVENT = 500
DIGESTS_PER_COMMIT = 2_000
MARKS_PER_COMMIT = 500
_STRUCTURE = frozenset({OPENED, FORKED, CLOSED, REMOVED, CHECKPOINTED, JOINED, LEASE})
"""Types whose payloads say how streams are connected; they hold nothing that people wrote."""
_STATE = frozenset({CHANGED, MIGRATED, BASED})
"""Types that hold nothing but state; a `restored` event also says what was rewound."""
_MESSAGES = ("message.", "messages.compacted", "messages.summarised")
"""How the types of messages and summaries begin: they are dropped with the state."""

Why = Literal["removed", "closed", "expired", "policy", "compacted", "erased"]


class Retained(Struct, frozen=True):
    """What one scope lost, or would lose: events up to a revision, and the bytes they held."""

    scope: str
    why: Why
    since: datetime
    until: int
    events: int
    bytes: int


class Binned(Struct, frozen=True):
    """A scope that a policy has removed, or would remove: its bytes go when its grace is over."""

    scope: str
    policy: str
    since: datetime
    events: int


class Retention(Struct, frozen=True):
    """What a run of `retain` did, or would do, and what is still in the stored bytes."""

    scopes: list[Retained]
    blobs: int
    held: list[str]  # scopes that a hold has kept
    left: list[Leftover]
    dry_run: bool
    binned: list[Binned] = []
    refused: dict[str, str] = {}  # scopes where something stays that would go, and why
    purged: int = 0  # the revision of `retention/log` that says what is left
    warnings: list[str] = []  # of policies for which there was no scope yet

    @property
    def events(self) -> int:
        """How many events lost their data, or would."""
        return sum(one.events for one in self.scopes)

    @property
    def bytes(self) -> int:
        """How many bytes of data they held."""
        return sum(one.bytes for one in self.scopes)


class Shorter(Struct, frozen=True):
    """What cutting parts out of payloads did: bytes by stream, blobs deleted, and what is left."""

    streams: dict[str, int]
    blobs: int
    left: list[Leftover]
    purged: int = 0  # as of Retention


class LetGo(Struct, frozen=True):
    """One letting-go as `retention/log` records it."""

    scope: str
    why: Why
    first: int
    last: int
    events: int
    time: datetime
    actor: str


class Hold(Struct, frozen=True):
    """A hold: the scope that keeps everything, why, since when, and who set it."""

    scope: str
    reason: str
    since: datetime
    actor: str


class _LetGo(Struct):
    scope: str
    why: Why
    runs: list[tuple[int, str]]  # the first revision of each run, and base64 of its digests
    blobs: list[str] = []
    bytes: int = 0  # how many the payloads had; 0 if an older holdfast wrote this


class _Shortened(Struct):
    scope: str
    events: list[Shortening]


class _Binned(Struct):
    scope: str
    revision: int
    policy: str


class _Held(Struct):
    scope: str
    reason: str = ""


class _Begun(Struct):
    scope: str
    revision: int


class _Purged(Struct):
    left: list[tuple[str, str]]
    whole: bool = False
    outside: list[str] = []  # the places of `left` that nothing waits for; not told by an older one


class Purge(Struct, frozen=True):
    """What a backend said is left in its bytes of the data that went before.

    With `whole` the backend had done all that it can: any place that is not named here is clean.
    """

    revision: int = 0
    time: int = 0
    left: tuple[Leftover, ...] = ()
    whole: bool = False


class Begun(Struct, frozen=True):
    """An erasure of a scope that has begun: where `retention/log` says so, and what the scope had.

    A removal after `scope_revision` was made by this erasure.
    """

    told: int
    scope_revision: int


class Condemned(Struct, frozen=True):
    """Records of a scope that may go: after < revision <= until, and of these types, if any."""

    stream: str
    why: Why
    since_us: int
    after: int
    until: int
    types: tuple[str, ...] = ()  # as they are stored; one that ends in * is a prefix
    kept: frozenset[int] = frozenset()  # revisions that stay
    only: frozenset[int] | None = None  # if given, no other revisions go


class Policies(Protocol):
    """What also goes, of scopes that live (`record/retention_policies.py`)."""

    def plan(self, held: set[str]) -> Retention:
        """Returns which scopes would be removed, and what would keep one; changes nothing."""
        ...

    def apply(self, held: set[str]) -> Retention:
        """Removes the scopes that the policies name, and returns what `plan` would."""
        ...

    def condemned(self, *, dry_run: bool) -> Iterator[Condemned]:
        """Yields what may go of scopes that stay; first writes a base that stands for it."""
        ...


# --- what may go ----------------------------------------------------------------------------------


def condemned(log: Log, *, now_us: int, grace_us: int) -> Iterator[Condemned]:
    """Yields what may go of each scope that has ended, by name; holds are not looked at."""
    kept = kept_for_forks(log)
    lasting = lasting_prefixes()
    for name, head in _heads(log):
        if name.partition("/")[0] in lasting:
            continue
        found = _ended(log, name, head)
        if found is None or found[1] > now_us - grace_us:
            continue
        why, since_us, until = found
        after = max(kept.get(name, 0), head.first - 1)
        if until > after:
            yield Condemned(name, why, since_us, after, until)


def _ended(log: Log, stream: str, head: Head) -> tuple[Why, int, int] | None:
    """Returns why and since when a stream's data may go, and up to which revision; None if not."""
    if head.expires_us:
        return None  # the backend lets go of it by itself
    ends_us = log.expiry.end(stream, head)
    if ends_us and log.expiry.is_due(stream, head):
        return "expired", ends_us, head.revision
    [newest] = log.stored(stream, after=head.revision - 1, until=head.revision)
    if newest.type == RESTORED:
        newest = log.record(stream, head.revision)  # it may say what it brought back
    end = end_of(newest) if newest.payload != GONE else None
    if end is not None and end.dropped:
        return "closed", newest.time, end.closed_at - 1
    removed_at = log.life(stream, head.revision)
    if removed_at:
        return "removed", log.record(stream, removed_at).time, removed_at - 1
    return None


def _let_go_until(log: Log, stream: str, head: Head) -> int:
    """Returns the last revision of a stream that has ended if it was let go of, 0 if it was not."""
    found = _ended(log, stream, head)
    if found is None:
        return 0
    why, _, until = found
    if why == "removed" and head.revision > until + 1:
        return 0  # it was begun anew
    began = log.life(stream, until)
    gone = sorted(
        revision
        for (name, revision), told in ledger(log).items()
        if name == stream and told.why == why and told.is_gone and began < revision <= until
    )
    # What was recorded and not rewritten, because the run was killed in between, is still there.
    is_gone = any(
        record.payload == GONE
        for revision in gone
        for record in log.stored(stream, after=revision - 1, until=revision)
    )
    return until if is_gone else 0


def kept_for_forks(log: Log) -> dict[str, int]:
    """Returns, by stream, the revision up to which it is the past of a living fork."""
    kept: dict[str, int] = {}
    for _, above in forked_from(log):
        for name, until in above.items():
            kept[name] = max(kept.get(name, 0), until)
    return kept


def forked_from(log: Log) -> Iterator[tuple[str, dict[str, int]]]:
    """Yields each living fork, with the streams it began from and the last revision in each."""
    for name, head in _heads(log):
        if head.first == 1 or log.life(name, head.revision) >= head.first:
            continue  # no fork; or one that was removed, and so no longer shows its origin
        yield (
            name,
            {above: until for above, until in log.ancestry(name, head.revision) if above != name},
        )


def _heads(log: Log) -> Iterator[tuple[str, Head]]:
    after = ""
    while names := log.stream_page(after=after):
        for name, head in zip(names, log.heads(names), strict=True):
            if head is not None:
                yield name, head
        after = names[-1]


def _records(log: Log, one: Condemned) -> Iterator[Record]:
    """Yields those records of a scope that still have a payload which may go."""
    after = one.after
    while after < one.until:
        page = log.stored(one.stream, after=after, until=one.until)
        if not page:
            return  # the ledger of a copy may name a stream that was not taken over
        for record in page:
            is_gone = record.payload == GONE or len(record.payload) < len(GONE)
            if not is_gone and _may_go(record, one):
                yield record
        after = page[-1].revision


def _may_go(record: Record, one: Condemned) -> bool:
    type, revision = record.type, record.revision
    if revision in one.kept or (one.only is not None and revision not in one.only):
        return False
    if one.types:
        return is_named(type, one.types)
    if one.why == "closed":
        return type in _STATE or type.startswith(_MESSAGES)
    if one.why == "erased" and type == CHECKPOINTED:
        return True  # in a sealed scope the name of the checkpoint is in the payload
    return type not in _STRUCTURE


def is_named(type: str, types: Sequence[str]) -> bool:
    """Returns whether a stored type is one of some types; one that ends in * is a prefix."""
    return any(type == one or (one[-1:] == "*" and type.startswith(one[:-1])) for one in types)


def _ended_values(log: Log, grace_us: int, held: set[str]) -> Iterator[Ended]:
    """Yields, for each stream that may hold ended values, what may go of them."""
    due = ended_values.due_streams(log, log.key_ends.now_us(STREAM) - grace_us)
    streams = [name for name in due if name not in held]
    kept = kept_for_forks(log) if streams else {}
    for stream in streams:
        limit_us = log.key_ends.now_us(stream) - grace_us
        try:
            yield ended_values.find(log, stream, kept.get(stream, 0), limit_us)
        except ExpiredError as error:
            _logger.debug("all of it goes: %s", error)
            yield Ended(stream, limit_us, 0, frozenset())


def _condemned(found: Ended) -> Condemned:
    revisions = found.revisions
    first = min(revisions, default=1) - 1
    return Condemned(
        found.stream, "expired", found.since_us, first, found.until, (), only=revisions
    )


# --- letting go -----------------------------------------------------------------------------------


class Retainer:
    """Holds, erasures and letting go, for one store."""

    def __init__(self, kernel: Kernel) -> None:
        self._log = kernel.log
        self.forget_copies = kernel.forget_copies
        self._lease_keeper = kernel.leases
        self._lock = Lock()

    def hold(self, scope: str, reason: str) -> None:
        """Keeps everything of a scope until `release`, even if the scope is removed or ends.

        Raises LetGoError if it has ended and there is nothing to keep any more.
        """
        [head] = self._log.heads([scope])
        if head is None:
            raise NotFoundError(
                f'there is no scope "{scope}" to hold',
                hint="holdfast scopes lists the names that there are",
            )
        if until := _let_go_until(self._log, scope, head):
            raise LetGoError(scope, until)
        holds.keep(self._log, scope)
        payload = codec.encode_plain(_Held(scope, reason))
        self._commit([NewEvent(HELD, payload)], marks=[Mark(HOLDS, scope)])
        # Once more after the commit: a retain in another process may have found the scope kept and
        # not held yet. Large values that are spilled from here on are kept for good anyway.
        holds.keep(self._log, scope)
        holds.keep_blobs(self._log, scope)

    def release(self, scope: str) -> None:
        """Ends a hold."""
        if all(hold.scope != scope for hold in self.holds()):
            raise NotFoundError(f'scope "{scope}" is not held', hint="holds() lists what is held")
        payload = codec.encode_plain(_Held(scope))
        # The hold kept blobs for good. Marks have them looked at again, after the scope's end.
        [head] = self._log.heads([scope])
        ends_us = 0 if head is None else head.expires_us
        due_us = max(ends_us, self._log.clock.now_us()) + round(GRACE_S * 1_000_000)
        names = sorted(holds.keep_blobs(self._log, scope)) if ends_us else []
        marks = [Cleared(HOLDS, scope), *(Mark(BLOBS, name, due_us) for name in names)]
        self._commit([NewEvent(RELEASED, payload)], marks=marks)
        holds.let_end(self._log, scope)

    def tell_erased(self, receipt: Mapping[str, Any], ends: Sequence[str] = ()) -> None:
        """Records the receipt of an erasure that was not of a subject, and ends those of scopes."""
        marks = [Cleared(ERASING_SCOPES, scope) for scope in ends]
        self._commit([NewEvent(ERASED, codec.encode_plain(receipt))], marks)

    def begin_erasing(self, scope: str, revision: int) -> None:
        """Records that the erasure of a scope begins, so that `finish` knows of it."""
        payload = codec.encode_plain(_Begun(scope, revision))
        self._commit([NewEvent(BEGUN, payload)], [Mark(ERASING_SCOPES, scope)])

    def give_up_erasing(self, scope: str) -> None:
        """Takes that back, if the scope could not be removed and nothing of it was erased."""
        self._commit([], [Cleared(ERASING_SCOPES, scope)])

    def erasing(self) -> dict[str, Begun]:
        """Returns the erasures of scopes that have begun and are not done."""
        names = {mark.key for mark in self._log.marks.list(ERASING_SCOPES, limit=NO_LIMIT)}
        found: dict[str, Begun] = {}
        for record in _told(self._log, BEGUN) if names else ():
            said = codec.decode_as(record.payload, _Begun)
            if said.scope in names:
                found[said.scope] = Begun(record.revision, said.revision)
        return found

    def erased_since(self, scopes: Collection[str], told: int = 0) -> dict[str, Retained]:
        """Returns what erasures took of some scopes, as `retention/log` says from a revision on.

        An erasure that a kill has cut in parts has all of them in one receipt by this.
        """
        seen: dict[str, set[int]] = {}
        sizes: dict[str, int] = {}
        for record in _told(self._log, LET_GO, after=told):
            said = codec.decode_as(record.payload, _LetGo)
            if said.why != "erased" or said.scope not in scopes:
                continue
            known = seen.setdefault(said.scope, set())
            before = len(known)
            for first, digests in said.runs:
                known.update(range(first, first + len(b64decode(digests)) // 32))
            if len(known) > before:  # else told before, by who was killed before it was rewritten
                sizes[said.scope] = sizes.get(said.scope, 0) + said.bytes
        names = sorted(seen)
        found: dict[str, Retained] = {}
        for name, head in zip(names, self._log.heads(names), strict=True):
            assert head is not None, "BUG: events of it were told of"
            one = _all_of(self._log, name, head)
            found[name] = _retained(one, len(seen[name]), sizes.get(name, 0))
        return found

    def still_holds(self, streams: Sequence[str]) -> bool:
        """Returns whether records of these streams have a payload that an erasure would take."""
        heads = zip(streams, self._log.heads(streams), strict=True)
        return any(
            head is not None and any(_records(self._log, _all_of(self._log, stream, head)))
            for stream, head in heads
        )

    def erased(self) -> list[dict[str, Any]]:
        """Returns those receipts, oldest first, each with its revision if it has no `purged`."""
        return [
            {"purged": record.revision, **codec.decode(record.payload)}
            for record in _told(self._log, ERASED)
        ]

    def purges(self) -> list[Purge]:
        """Returns what was left after each step that removed bytes, oldest first."""
        return [_purge_of(record) for record in _told(self._log, PURGED)]

    def tell_binned(self, scope: str, revision: int, policy: str) -> None:
        """Records which policy is about to remove a scope, and at which revision."""
        payload = codec.encode_plain({"scope": scope, "revision": revision, "policy": policy})
        self._commit([NewEvent(BINNED, payload)])

    def binned(self) -> dict[str, tuple[int, str]]:
        """Returns what policies have removed: by scope, the revision it had and the policy."""
        found: dict[str, tuple[int, str]] = {}
        for record in _told(self._log, BINNED):
            said = codec.decode_as(record.payload, _Binned)
            found[said.scope] = said.revision, said.policy
        return found

    def holds(self) -> list[Hold]:
        """Returns the scopes that are held, by name."""
        names = self.held()
        if not names:
            return []
        found: dict[str, Hold] = {}
        for record in _told(self._log, HELD):
            said = codec.decode_as(record.payload, _Held)
            found[said.scope] = Hold(
                said.scope, said.reason, to_datetime(record.time), record.actor
            )
        return [found[name] for name in sorted(names) if name in found]

    def let_go(self) -> list[LetGo]:
        """Returns every letting-go, oldest first."""
        found: list[LetGo] = []
        for record in _told(self._log, LET_GO, SHORTENED):
            if record.type == SHORTENED:
                cut = codec.decode_as(record.payload, _Shortened)
                said = _LetGo(cut.scope, "erased", [])
                runs = [(step.revision, 1) for step in cut.events]
            else:
                said = codec.decode_as(record.payload, _LetGo)
                runs = [(first, len(b64decode(digests)) // 32) for first, digests in said.runs]
            first, (last, count) = runs[0][0], runs[-1]
            events = sum(count for _, count in runs)
            time = to_datetime(record.time)
            found.append(
                LetGo(said.scope, said.why, first, last + count - 1, events, time, record.actor)
            )
        return found

    def plan(self, *, grace_s: float, policies: Policies | None = None) -> Retention:
        """Returns what would go, and why; changes no byte."""
        grace_us = round(grace_s * 1_000_000)
        held, scopes, kept = self.held(), list[Retained](), list[str]()
        planned = NO_POLICIES if policies is None else policies.plan(held)
        ended = condemned(self._log, now_us=self._log.clock.now_us(), grace_us=grace_us)
        values = _ended_values(self._log, grace_us, held)
        for one in chain(ended, map(_condemned, values), _by_policies(policies, dry_run=True)):
            if one.stream in held:
                kept.append(one.stream)
                continue
            sizes = [len(record.payload) for record in _records(self._log, one)]
            if sizes:
                scopes.append(_retained(one, len(sizes), sum(sizes)))
        kept = sorted({*kept, *planned.held})
        left = list(newest_purge(self._log).left)
        if self._log.marks.list(UNPURGED, limit=1):
            left = [Leftover("the stored bytes", "a run was ended before it purged them: retain")]
        return replace(planned, scopes=scopes, held=kept, left=left, dry_run=True)

    def check_rewrites(self) -> None:
        """Raises UsageError if a backend of the store cannot let go of what it stores."""
        for part in self._log.parts():
            if not isinstance(part, Rewrites):
                raise UsageError(
                    f"{part.inspect.describe()['kind']} cannot let go of what it stores",
                    hint="copy the store to a backend that can",
                )

    def run(
        self, *, grace_s: float, whole: bool, wait_s: float, policies: Policies | None = None
    ) -> Retention:
        """Lets go of what may go; raises LeaseLostError if another run does not end in time."""
        self.check_rewrites()
        return self._under_lease(
            wait_s, lambda lease: _Run(self, self._log, lease, grace_s, policies).run(whole=whole)
        )

    def _under_lease(self, wait_s: float, work: Callable[[Lease], R]) -> R:
        """Does work that lets go of data while no other thread or process does such work."""
        if not self._lock.acquire(timeout=wait_s):
            raise _at_work(self._lease_keeper.worker)
        try:
            try:
                lease = acquire_within(
                    self._log.clock,
                    lambda: self._lease_keeper.take(LEASE_NAME, ttl_s=LEASE_TTL_S),
                    wait_s,
                )
            except LeaseLostError as error:
                holder = self._log.leases.holder(LEASE_NAME)
                raise _at_work("somebody" if holder is None else holder.owner) from error
            try:
                return work(lease)
            finally:
                self._lease_keeper.give_back(lease)
        finally:
            self._lock.release()

    def erase(
        self, subject: str, streams: Sequence[str], others: Sequence[str], *, wait_s: float
    ) -> Retention:
        """Lets go of all that a subject's streams hold, without grace; raises as `run` does.

        The streams are sealed: nothing was derived from them in clear, and only the `others`, which
        have single values of the subject, can name their blobs. So no other data is looked at.
        """
        return self._under_lease(
            wait_s,
            lambda lease: _Run(self, self._log, lease, 0, None).erase(subject, streams, others),
        )

    def check_no_fork(self, stream: str) -> None:
        """Raises UsageError if a living fork began from a scope: the scope is the fork's past."""
        if kept_for_forks(self._log).get(stream):
            raise UsageError(
                f'scope "{stream}" is the past of a fork that is there: nothing was erased',
                hint="erase the fork first",
            )

    def erase_scopes(self, streams: Sequence[str], *, wait_s: float) -> Retention:
        """Lets go of all that removed scopes held, without grace, of data that was never sealed."""
        return self._under_lease(
            wait_s, lambda lease: _Run(self, self._log, lease, 0, None).erase_scopes(streams)
        )

    def check_shortens(self) -> None:
        """Raises UsageError if a backend of the store cannot take out a part of what it stores."""
        self.check_rewrites()
        for part in self._log.parts():
            if not isinstance(part, Shortens):
                raise UsageError(
                    f"{part.inspect.describe()['kind']} cannot take out a part of what it stores",
                    hint="erase scopes as a whole, or copy the store to a backend that can",
                )

    def shorten(
        self, steps: Mapping[str, Sequence[Shortening]], blobs: Sequence[str], *, wait_s: float
    ) -> Shorter:
        """Cuts parts out of payloads, and finishes what an earlier call recorded but did not do."""
        return self._under_lease(
            wait_s, lambda lease: _Run(self, self._log, lease, 0, None).shorten(steps, blobs)
        )

    def held(self) -> set[str]:
        """Returns the names of the scopes that are held."""
        return {mark.key for mark in self._log.marks.list(HOLDS, limit=NO_LIMIT)}

    def _commit(
        self,
        new_events: list[NewEvent],
        marks: Iterable[Mark | Cleared] = (),
        lease: Lease | None = None,
    ) -> CommitResult:
        writes = (StreamWrite(STREAM, tuple(new_events)),) if new_events else ()
        fence = None if lease is None else Fence(lease.name, lease.owner, lease.epoch)
        return self._log.commit(ProposedCommit(writes, marks=tuple(marks), fence=fence))


class _Run:
    """One run, under the lease."""

    def __init__(
        self,
        retainer: Retainer,
        log: Log,
        lease: Lease,
        grace_s: float,
        policies: Policies | None,
    ) -> None:
        self._retainer = retainer
        self._policies = policies
        self._log = log
        self._lease = lease
        self._grace_us = round(grace_s * 1_000_000)
        self._scopes: list[Retained] = []
        self._kept: list[str] = []
        self._telling: list[tuple[Condemned, list[Record]]] = []
        self._batch: dict[str, list[int]] = {}
        self._waiting = 0
        self._snapshots: dict[str, int] = {}
        self._whole: set[str] = set()  # those of which more goes than single values
        self._unnoted: dict[str, Leftover] = {}
        self._settled: list[str] = []
        self._refused: dict[str, str] = {}

    def run(self, *, whole: bool) -> Retention:
        log = self._log
        holds.keep_held(log, self._retainer.held())
        pending = {mark.key for mark in log.marks.list(PENDING, limit=NO_LIMIT)}
        self._finish_compacted(pending)
        policies = self._policies
        done = NO_POLICIES if policies is None else policies.apply(self._retainer.held())
        self._kept += done.held
        ended = condemned(log, now_us=log.clock.now_us(), grace_us=self._grace_us)
        for one in chain(ended, self._of_values(), _by_policies(policies, dry_run=False)):
            if one.stream in self._retainer.held():  # asked each time: a hold may be set meanwhile
                self._kept.append(one.stream)
                continue
            self._let_go(one)
            if one.stream in pending:
                self._snapshots[one.stream] = _snapshots_until(one)
            if one.only is None:
                self._whole.add(one.stream)
        self._flush()
        for stream in self._settled:
            ended_values.settle(log, stream)
        blobs = self._collect_blobs(whole=whole)
        purge = newest_purge(log)
        is_left = any(not one.is_outside for one in purge.left)
        is_due = bool(pending or whole or is_left or log.marks.list(UNPURGED, limit=1))
        if self._scopes or blobs or is_due:
            purge = self._purge(whole=whole)
        kept = sorted(set(self._kept))
        refused = done.refused | self._refused
        return replace(
            done, scopes=self._scopes, blobs=blobs, held=kept, left=list(purge.left),
            refused=refused, purged=purge.revision, dry_run=False,
        )  # fmt: skip

    def _of_values(self) -> Iterator[Condemned]:
        """Yields what may go of values that have ended, after writing a base of all the rest."""
        log, held = self._log, self._retainer.held()
        for found in _ended_values(log, self._grace_us, held):
            limit_us = log.key_ends.now_us(found.stream) - self._grace_us
            self._settled.append(found.stream)
            if found.kept:
                self._refused[found.stream] = "values that have ended stay: a fork began after them"
            if not found.revisions:
                continue
            try:
                ready = ended_values.prepare(log, found, limit_us)
            except (ClosedError, ConflictError, SchemaError) as error:
                self._refused[found.stream] = f"values that have ended stay: {error.message}"
                continue
            if len(ready.revisions) < len(found.revisions):
                self._refused[found.stream] = "some values that have ended stay: they are sealed"
            yield _condemned(ready)

    def erase(self, subject: str, streams: Sequence[str], others: Sequence[str]) -> Retention:
        log = self._log
        # A run that was killed may have recorded blobs without deleting them.
        told = [mark.key for mark in log.marks.list(BLOBS, limit=NO_LIMIT)]
        blobs = {name for name in told if log.blobs.subject(name) == subject}
        for stream, head in zip(streams, log.heads(streams), strict=True):
            if head is None or head.expires_us:
                continue  # the backend lets go of it by itself
            now_us = log.clock.now_us()
            one = Condemned(stream, "erased", now_us, head.first - 1, head.revision)
            for record in _records(log, one):
                blobs.update(name for name, _ in codec.blobs_in(record.payload))
            self._let_go(one)
            self._snapshots[stream] = head.revision  # also if the events went before a kill
        self._flush(is_sealed=True)
        if blobs:  # equal values of one subject are one blob, in whichever streams they are
            blobs -= {name for stream in others for name in _blobs_of(log, stream)}
        for name in sorted(blobs):
            log.blobs.delete(name)
        for some in _chunks([Cleared(BLOBS, name) for name in sorted(blobs)], MARKS_PER_COMMIT):
            self._retainer._commit([], some, self._lease)
        return self._erased(len(blobs))

    def erase_scopes(self, streams: Sequence[str]) -> Retention:
        for stream, head in zip(streams, self._log.heads(streams), strict=True):
            if head is not None and not head.expires_us:
                one = _all_of(self._log, stream, head)
                self._let_go(one)
                self._snapshots[stream] = one.until
        self._flush()
        return self._erased(self._collect_blobs(whole=False))

    def _erased(self, blobs: int) -> Retention:
        """Does step 6 of an erasure, and returns what the erasure did."""
        purge = self._purge(whole=False)
        left = [*purge.left, *self._unnoted.values()]
        return Retention(self._scopes, blobs, [], left, False, purged=purge.revision)

    def shorten(self, steps: Mapping[str, Sequence[Shortening]], blobs: Sequence[str]) -> Shorter:
        log = self._log
        sizes: dict[str, int] = {}
        for stream, mine in steps.items():
            self._tell_shorter(stream, mine, blobs)
            sizes[stream] = sum(one.length for step in mine for one in step.cuts)
        pending = {mark.key for mark in log.marks.list(SHORTENING, limit=NO_LIMIT)}
        self._check_lease()
        shorten_again(log, pending, before=self._note)
        log.folds.trim()
        derived = {name for name, above in forked_from(log) if above.keys() & pending}
        for stream in pending | derived:
            log.snapshots.forget(stream, 1 << 62)
        for stream in {log.routes.place_of(stream): stream for stream in pending}.values():
            log.snapshots.forget_derived(stream)
        self._retainer.forget_copies()
        deleted = self._collect_blobs(whole=False)
        purge = self._purge(whole=False) if pending else Purge()
        cleared = [Cleared(SHORTENING, stream) for stream in sorted(pending)]
        for some in _chunks(cleared, MARKS_PER_COMMIT):
            self._retainer._commit([], some, self._lease)
        left = [*purge.left, *self._unnoted.values()]
        return Shorter(sizes, deleted, left, purge.revision)

    def _tell_shorter(self, stream: str, steps: Sequence[Shortening], blobs: Sequence[str]) -> None:
        """Records where payloads of a stream are cut, before any of them is."""
        self._check_lease()
        if stream in self._retainer.held():
            raise HeldError(f'scope "{stream}" is held: nothing more was erased')
        now_us = self._log.clock.now_us()
        marks = [Mark(SHORTENING, stream), *(Mark(BLOBS, name, now_us) for name in blobs)]
        new_events = shortened_events(stream, steps)
        self._retainer._commit(new_events, [*marks, _TO_PURGE], self._lease)

    def _note(
        self,
        _stream: str,
        records: Iterable[Record],
        steps: Mapping[int, Shortening] | None = None,
    ) -> None:
        unnoted = erased_ledger.note(self._log, records, steps)
        if unnoted is not None:
            self._unnoted[unnoted.where] = unnoted

    # --- records ---

    def _let_go(self, one: Condemned) -> None:
        """Does steps 1 and 2 for one scope; small scopes are done together."""
        events = size = 0
        chunk: list[Record] = []
        for record in _records(self._log, one):
            events += 1
            size += len(record.payload)
            chunk.append(record)
            if len(chunk) == DIGESTS_PER_EVENT:
                self._tell(one, chunk)
                chunk = []
        if chunk:
            self._tell(one, chunk)
        if events:
            self._scopes.append(_retained(one, events, size))
        # Not before all of a scope is recorded: what stays for lists is found by a replay of the
        # old changes, so a run that is killed must have recorded all or rewritten none (0074).
        if self._waiting >= RECORDS_AT_ONCE:
            self._flush()

    def _finish_compacted(self, pending: set[str]) -> None:
        """Rewrites changes that a base stands for, if an earlier run recorded them and was killed.

        What may go of scopes that have ended is found again each time. But which changes a base
        stands for, and which stay for lists, only the run that wrote the base knew. So exactly what
        it recorded goes.
        """
        told: dict[str, set[int]] = {}
        if pending := pending - self._retainer.held():
            kept = kept_for_forks(self._log)
            for (stream, revision), said in ledger(self._log).items():
                is_free = stream in pending and revision > kept.get(stream, 0)
                if said.why == "compacted" and is_free:
                    told.setdefault(stream, set()).add(revision)
        for stream, revisions in told.items():
            left = _still_there(self._log, stream, revisions)
            self._batch[stream] = [record.revision for record in left]
            self._snapshots[stream] = 1 << 62
        if told:
            self._flush()

    def _tell(self, one: Condemned, chunk: list[Record]) -> None:
        self._telling.append((one, chunk))
        if sum(len(records) for _, records in self._telling) >= DIGESTS_PER_COMMIT:
            self._tell_all()

    def _tell_all(self) -> None:
        """Does step 1 for what has gathered, in one commit; leaves out scopes held by now."""
        self._check_lease()
        held = self._retainer.held()
        gathered, self._telling = self._telling, []
        kept = {one.stream for one, _ in gathered if one.stream in held and one.why != "erased"}
        if kept:
            self._kept += kept
            self._scopes = [one for one in self._scopes if one.scope not in kept]
        due_us = self._log.clock.now_us() + self._grace_us
        new_events: list[NewEvent] = []
        marks: dict[tuple[str, str], Mark] = {}
        for one, chunk in gathered:
            if one.stream in kept:
                continue
            names = sorted({name for record in chunk for name, _ in codec.blobs_in(record.payload)})
            size = sum(len(record.payload) for record in chunk)
            said = _LetGo(one.stream, one.why, _runs(chunk), names, size)
            new_events.append(NewEvent(LET_GO, codec.encode_plain(said)))
            marks[PENDING, one.stream] = Mark(PENDING, one.stream)
            marks.update(((BLOBS, name), Mark(BLOBS, name, due_us)) for name in names)
            self._batch.setdefault(one.stream, []).extend(record.revision for record in chunk)
            if one.why == "erased":
                self._note(one.stream, chunk)
            self._waiting += len(chunk)
            self._snapshots[one.stream] = _snapshots_until(one)
        if new_events:
            self._retainer._commit(new_events, [*marks.values(), _TO_PURGE], self._lease)

    def _flush(self, *, is_sealed: bool = False) -> None:
        """Does steps 2, 3 and 5 for what was recorded so far; nothing is derived from sealed data.

        The marks are cleared last: after a kill anywhere before, the next run does these steps
        again, and to rewrite a record that is gone changes nothing.
        """
        self._tell_all()
        self._check_lease()
        batch, self._batch, self._waiting = self._batch, {}, 0
        snapshots, self._snapshots = self._snapshots, {}
        if batch:
            backend = self._log.backend
            assert isinstance(backend, Rewrites), "BUG: asked before"
            backend.rewrite(batch)
        for stream, until in snapshots.items():
            self._log.snapshots.forget(stream, until)
            if stream in self._whole:  # its state in memory is of data that is gone
                self._log.folds.forget(stream)
        if snapshots and not is_sealed:
            places = {self._log.routes.place_of(stream): stream for stream in snapshots}
            for stream in places.values():
                self._log.snapshots.forget_derived(stream)
            self._retainer.forget_copies()
        for some in _chunks([Cleared(PENDING, stream) for stream in snapshots], MARKS_PER_COMMIT):
            self._retainer._commit([], some, self._lease)

    def _check_lease(self) -> None:
        """Raises LeaseLostError if another process may be doing this work by now."""
        holder = self._log.leases.holder(LEASE_NAME)
        if holder is None or (holder.owner, holder.epoch) != (self._lease.owner, self._lease.epoch):
            raise _at_work(holder.owner if holder is not None else "nobody any more")

    # --- blobs ---

    def _collect_blobs(self, *, whole: bool) -> int:
        """Does step 4: deletes the blobs that are due and that no event names; returns how many.

        An event may name a blob between the look and the deletion. So a writer that spills a value
        again first looks at the mark that is set here, and writes the blob anew if it was collected
        since. And a blob that was named meanwhile is put back from the bytes still at hand.
        """
        log, now_us = self._log, self._log.clock.now_us()
        marked = {mark.key: mark.due for mark in log.marks.list(BLOBS, limit=NO_LIMIT)}
        due = {name for name, due_us in marked.items() if due_us <= now_us}
        if not due and not whole:
            return 0
        to_purge = [_TO_PURGE] if due else []
        self._retainer._commit([], [Mark(COLLECTED, "blobs", now_us), *to_purge], self._lease)
        named, position = _named_blobs(log, START)
        gone: dict[str, bytes] = {}
        for name in sorted(due - named):
            self._check_lease()
            data = log.blobs.delete(name)
            if data is not None:
                gone[name] = data
        named_since, _ = _named_blobs(log, position)
        for name in named_since & gone.keys():
            log.blobs.put_back(name, gone.pop(name))
        marks: list[Mark | Cleared] = [Cleared(BLOBS, name) for name in sorted(due)]
        if whole:
            due_us = now_us + max(self._grace_us, round(ORPHANS_STAY_S * 1_000_000))
            orphans = log.blobs.names() - named - named_since - marked.keys()
            marks += [Mark(BLOBS, name, due_us) for name in sorted(orphans)]
        for some in _chunks(marks, MARKS_PER_COMMIT):
            self._retainer._commit([], some, self._lease)
        return len(gone)

    # --- bytes ---

    def _purge(self, *, whole: bool) -> Purge:
        """Does step 6: has the backend purge its bytes, and records what is left.

        A place that a whole purge has cleaned is not named again until something more goes.
        """
        log, backend = self._log, self._log.backend
        assert isinstance(backend, Rewrites), "BUG: asked before"
        before, has_told = newest_purge(log), bool(log.marks.list(UNPURGED, limit=1))
        left = backend.purge(whole=whole)
        stays_whole = before.whole and not has_told
        if stays_whole and not whole:
            named = {one.where for one in before.left}
            left = [one for one in left if one.where in named]
        purge = Purge(before.revision, 0, tuple(left), whole or stays_whole)
        if has_told or before.revision == 0 or replace(purge, time=before.time) != before:
            outside = [one.where for one in left if one.is_outside]
            said = _Purged([(one.where, one.remedy) for one in left], purge.whole, outside)
            payload = codec.encode_plain(said)
            marks = [Cleared(UNPURGED, _TO_PURGE.key)] if has_told else []
            done = self._retainer._commit([NewEvent(PURGED, payload)], marks, self._lease)
            purge = replace(purge, revision=done.revision)
        return purge


NO_POLICIES = Retention([], 0, [], [], True)


def _by_policies(policies: Policies | None, *, dry_run: bool) -> Iterator[Condemned]:
    return iter(()) if policies is None else policies.condemned(dry_run=dry_run)


def _snapshots_until(one: Condemned) -> int:
    """Returns the revision up to which snapshots may hold, or refer to, what goes."""
    return 1 << 62 if one.why == "compacted" else one.until


def _all_of(log: Log, stream: str, head: Head) -> Condemned:
    """Returns all that a removed stream held, not what somebody began under its name since."""
    until = log.life(stream, head.revision) or head.revision
    return Condemned(stream, "erased", log.clock.now_us(), head.first - 1, until)


def _retained(one: Condemned, events: int, size: int) -> Retained:
    return Retained(one.stream, one.why, to_datetime(one.since_us), one.until, events, size)


def _runs(chunk: list[Record]) -> list[tuple[int, str]]:
    """Returns the digests of payloads, those of neighbouring revisions together."""
    return _together((record.revision, sha256(record.payload).digest()) for record in chunk)


def _together(digests: Iterable[tuple[int, bytes]]) -> list[tuple[int, str]]:
    runs: list[tuple[int, bytearray]] = []
    last = 0
    for revision, digest in digests:
        if runs and revision == last + 1:
            runs[-1][1].extend(digest)
        else:
            runs.append((revision, bytearray(digest)))
        last = revision
    return [(first, b64encode(run).decode()) for first, run in runs]


class Told(Struct, frozen=True):
    """What is recorded of one event that was let go of: the digest of its payload, why, and where.

    With `steps` parts of it were cut out, one after the other; `is_gone` says that all of it went.
    """

    digest: bytes
    why: Why
    position: Position
    steps: tuple[Shortening, ...] = ()
    is_gone: bool = True

    def after(self, before: Told | None) -> Told:
        """Returns this with what was recorded of the same event before."""
        if before is None:
            return self
        return replace(
            self,
            digest=before.digest,  # that of what was written
            steps=before.steps + self.steps,
            is_gone=before.is_gone or self.is_gone,
        )


def told_by(record: Record) -> Iterator[tuple[tuple[str, int], Told]]:
    """Yields what an event of `retention/log` says was let go of, by stream and revision."""
    if record.type == SHORTENED:
        cut = codec.decode_as(record.payload, _Shortened)
        for step in cut.events:
            told = Told(b64decode(step.was), "erased", record.position, (step,), False)
            yield (cut.scope, step.revision), told
    if record.type != LET_GO:
        return
    said = codec.decode_as(record.payload, _LetGo)
    for first, encoded in said.runs:
        digests = b64decode(encoded)
        for place in range(0, len(digests), 32):
            digest = digests[place : place + 32]
            yield (
                (said.scope, first + place // 32),
                Told(digest, said.why, record.position),
            )


def ledger(log: Log) -> dict[tuple[str, int], Told]:
    """Returns what is recorded of each event that was let go of, by stream and revision."""
    found: dict[tuple[str, int], Told] = {}
    for record in _told(log, LET_GO, SHORTENED):
        for name, told in told_by(record):
            found[name] = told.after(found.get(name))
    return found


def tell_again(log: Log, gone: Mapping[tuple[str, int], Told], key: str | None = None) -> None:
    """Records in one log what another one records, in one commit: the events go in both."""
    scopes: dict[tuple[str, Why], list[tuple[int, bytes]]] = {}
    new_events: list[NewEvent] = []
    for (stream, revision), told in sorted(gone.items()):
        new_events += shortened_events(stream, told.steps)
        if told.is_gone:
            scopes.setdefault((stream, told.why), []).append((revision, told.digest))
    for (stream, why), digests in scopes.items():
        for start in range(0, len(digests), DIGESTS_PER_EVENT):
            said = _LetGo(stream, why, _together(digests[start : start + DIGESTS_PER_EVENT]))
            new_events.append(NewEvent(LET_GO, codec.encode_plain(said)))
    log.commit(ProposedCommit((StreamWrite(STREAM, tuple(new_events), key=key),)))


def shortened_events(stream: str, steps: Sequence[Shortening]) -> list[NewEvent]:
    """Returns the events that record what was cut out of payloads of a stream."""
    return [
        NewEvent(
            SHORTENED,
            codec.encode_plain(_Shortened(stream, [*steps[start : start + DIGESTS_PER_EVENT]])),
        )
        for start in range(0, len(steps), DIGESTS_PER_EVENT)
    ]


def told_shortened(log: Log, streams: Collection[str]) -> dict[str, list[int]]:
    """Returns, of some streams, the revisions of which parts were cut out, as recorded."""
    found: dict[str, list[int]] = {}
    for (stream, revision), told in ledger(log).items():
        if told.steps and stream in streams:
            found.setdefault(stream, []).append(revision)
    return found


def digests_told(log: Log) -> dict[tuple[str, int], bytes]:
    """Returns the digest of each payload that was let go of, by stream and revision."""
    return {name: told.digest for name, told in ledger(log).items()}


def _told(log: Log, *types: str, after: int = 0) -> Iterator[Record]:
    while page := log.read(STREAM, after=after, limit=READ_CHUNK):
        yield from (record for record in page if record.type in types)
        after = page[-1].revision


def newest_purge(log: Log) -> Purge:
    """Returns what a backend last said of its bytes; with revision 0 if it never did."""
    [head] = log.heads([STREAM])
    until = 0 if head is None else head.revision
    while until:
        after = max(until - READ_CHUNK, 0)
        for record in reversed(log.read(STREAM, after=after, until=until)):
            if record.type == PURGED:
                return _purge_of(record)
        until = after
    return Purge()


def _purge_of(record: Record) -> Purge:
    said = codec.decode_as(record.payload, _Purged)
    left = tuple(
        Leftover(where, remedy, is_outside=where in said.outside) for where, remedy in said.left
    )
    return Purge(record.revision, record.time, left, said.whole)


def drop(log: Log) -> tuple[int, int, int, list[Leftover]]:
    """Deletes what the ledger of a store names, and blobs that no event names; nobody may write.

    Returns how many events, bytes and blobs those were, and what is left of them.
    """
    backend = log.backend
    assert isinstance(backend, Rewrites), "BUG: the store of a backup is one of files"
    told: dict[str, set[int]] = {}
    for (stream, revision), one in ledger(log).items():
        if one.is_gone:
            told.setdefault(stream, set()).add(revision)
    shorten_again(log)
    events = size = 0
    batch: dict[str, list[int]] = {}
    for stream, revisions in told.items():
        gone = _still_there(log, stream, revisions)
        events += len(gone)
        size += sum(len(record.payload) for record in gone)
        if gone:
            batch[stream] = [record.revision for record in gone]
        if sum(map(len, batch.values())) >= RECORDS_AT_ONCE:
            backend.rewrite(batch)
            batch = {}
        log.snapshots.forget(stream, 1 << 62)
    if batch:
        backend.rewrite(batch)
    for stream in list(told)[:1]:
        log.snapshots.forget_derived(stream)
    named, _ = _named_blobs(log, START)
    unnamed = sorted(log.blobs.names() - named)
    for name in unnamed:
        log.blobs.delete(name)
    return events, size, len(unnamed), backend.purge(whole=True)


def _still_there(log: Log, stream: str, revisions: set[int]) -> list[Record]:
    """Returns those of some records that still have their payload."""
    one = Condemned(stream, "removed", 0, min(revisions) - 1, max(revisions), ("*",))
    return [record for record in _records(log, one) if record.revision in revisions]


def shorten_again(
    log: Log,
    streams: Collection[str] | None = None,
    before: Callable[[str, list[Record], dict[int, Shortening]], None] | None = None,
) -> None:
    """Cuts out of payloads what was recorded and is still there; in all streams if none is named.

    It needs no text: the ledger says where the cuts are. `before` is called with the records of
    each stream, and the newest step of each, before any of them is cut.
    """
    backend = log.backend
    wanted: dict[str, dict[int, bytes]] = {}
    whole: dict[str, dict[int, tuple[Record, Shortening]]] = {}
    for (stream, revision), told in ledger(log).items():
        if not told.steps or told.is_gone or (streams is not None and stream not in streams):
            continue
        for record in backend.read(stream, after=revision - 1, until=revision):
            shorter = done_again(record.payload, told.steps)
            if record.payload not in (shorter, GONE):
                wanted.setdefault(stream, {})[revision] = shorter
                whole.setdefault(stream, {})[revision] = record, told.steps[-1]
    if before is not None:
        for stream, mine in whole.items():
            steps = {revision: step for revision, (_, step) in mine.items()}
            before(stream, [record for record, _ in mine.values()], steps)
    if wanted:
        assert isinstance(backend, Shortens), "BUG: asked before"
        backend.shorten(wanted)
    for stream in wanted:
        log.snapshots.forget(stream, 1 << 62)


def _named_blobs(log: Log, after: Position) -> tuple[set[str], Position]:
    """Returns the blobs that events after a position name, and the last position looked at."""
    named: set[str] = set()
    while page := log.read_all(after=after, limit=READ_CHUNK):
        for record in page:
            if record.type != LET_GO:
                named.update(name for name, _ in codec.blobs_in(record.payload))
        after = page[-1].position
    return named, after


def _blobs_of(log: Log, stream: str) -> Iterator[str]:
    """Yields the blobs that events of one stream name."""
    [head] = log.heads([stream])
    after, until = (0, 0) if head is None else (head.first - 1, head.revision)
    while after < until:
        page = log.stored(stream, after=after, until=until)
        for record in page:
            yield from (name for name, _ in codec.blobs_in(record.payload))
        after = page[-1].revision


def _chunks(
    marks: list[Mark | Cleared] | list[Cleared], size: int
) -> Iterator[list[Mark | Cleared]]:
    for start in range(0, len(marks), size):
        yield [*marks[start : start + size]]


def _at_work(owner: str) -> LeaseLostError:
    return LeaseLostError(
        f'another retain is at work, or an erasure: "{owner}" has the lease "{LEASE_NAME}"',
        lease=LEASE_NAME,
        epoch=0,
        hint="wait until it ends (wait_s, --wait); if it was killed, the next one goes on with it",
    )

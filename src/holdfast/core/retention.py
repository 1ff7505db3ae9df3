"""Letting go on purpose: which payloads may go, that they went, what is left to do (0049).

Nothing goes that anybody can still ask for. What may go is what a scope held before it was removed;
the state and the messages that were dropped when a scope was closed (its decisions, tasks and facts
can still be read, and stay); and what a scope held when its lifetime was over. A scope that is held
keeps everything, whatever else is true of it. What a living fork began from stays too. Policies
(`record/retention_policies.py`) say what else goes of scopes that live.

The order of one letting-go, so that a process that is killed anywhere leaves nothing undone for
ever and nothing half done:

    (1) an event in `retention/log` says which records go and why, with the digest of each payload,
        by which its link can be verified ever after; marks say that the rest is pending
    (2) the backend rewrites the records (clause 28)
    (3) snapshots and all else that was derived from them is deleted, the index of questions too
    (4) blobs that only they named are deleted, when every event of the store was looked at
    (5) the marks are cleared
    (6) the backend purges its bytes (clause 29), and an event says what is left

The next run does again what a mark still says. One run at a time has the lease `retention`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from itertools import chain
from threading import Lock
from typing import Literal, Protocol

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
)
from holdfast.core import codec, holds
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.event import (
    CHANGED,
    CHECKPOINTED,
    CLOSED,
    FORKED,
    JOINED,
    LEASE,
    MIGRATED,
    OPENED,
    REMOVED,
    end_of,
    to_datetime,
)
from holdfast.core.expiry import HOLDS
from holdfast.core.layers import Layer, lasting_prefixes, register_layer
from holdfast.core.leases import LeaseKeeper, acquire_within
from holdfast.core.log import COLLECTED, NO_LIMIT, READ_CHUNK, Log
from holdfast.errors import LeaseLostError, NotFoundError, UsageError

STREAM = "retention/log"
LET_GO = "retention.let_go"
HELD = "retention.held"
RELEASED = "retention.released"
PURGED = "retention.purged"
BINNED = "retention.binned"

PENDING = "retention.pending"
"""The index that has a mark for each scope whose letting-go has begun and is not done."""
BLOBS = "retention.blob"
"""The index that has a mark for each blob that may have nobody who names it, due when it may go."""
register_layer(
    Layer(
        name="retention",
        prefixes=("retention",),
        indexes=(HOLDS, PENDING, BLOBS, COLLECTED),
    )
)

GRACE_S = 7 * 24 * 3600.0
"""How long what was removed, closed or has expired stays, unless another time is given."""
ORPHANS_STAY_S = 24 * 3600.0
"""How long a blob that nobody names stays: its commit may be on the way."""
LEASE_NAME = "retention"
LEASE_TTL_S = 30.0
RECORDS_AT_ONCE = 500_000
"""How many records are rewritten at once: scopes lie mixed, so each time may read all of a log."""
DIGESTS_PER_EVENT = 500
DIGESTS_PER_COMMIT = 2_000
MARKS_PER_COMMIT = 500
_STRUCTURE = frozenset({OPENED, FORKED, CLOSED, REMOVED, CHECKPOINTED, JOINED, LEASE})
"""Types whose payloads say how streams hang together; they hold nothing that people wrote."""
_STATE = frozenset({CHANGED, MIGRATED})
"""Types that only the state is made of; a `restored` event also says what was rewound."""
_MESSAGES = "message."
"""How the types of messages begin: they are dropped with the state."""

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
    """A scope that a policy has removed, or would: its bytes go when the time of grace is over."""

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
    refused: dict[str, str] = {}  # scopes that a policy would remove, and what is under way there

    @property
    def events(self) -> int:
        """How many events lost their data, or would."""
        return sum(one.events for one in self.scopes)

    @property
    def bytes(self) -> int:
        """How many bytes of data they held."""
        return sum(one.bytes for one in self.scopes)


class LetGo(Struct, frozen=True):
    """One letting-go as `retention/log` tells it."""

    scope: str
    why: Why
    first: int
    last: int
    events: int
    time: datetime
    actor: str


class Hold(Struct, frozen=True):
    """A scope that keeps everything, since when, and why."""

    scope: str
    reason: str
    since: datetime
    actor: str


class _LetGo(Struct):
    scope: str
    why: Why
    runs: list[tuple[int, str]]  # the first revision of each run, and base64 of its digests
    blobs: list[str] = []


class _Binned(Struct):
    scope: str
    revision: int
    policy: str


class _Held(Struct):
    scope: str
    reason: str = ""


class Condemned(Struct, frozen=True):
    """Records of a scope that may go: after < revision <= until, of these types if any is named."""

    stream: str
    why: Why
    since_us: int
    after: int
    until: int
    types: tuple[str, ...] = ()  # as they are stored; one that ends in * is the beginning of some
    kept: frozenset[int] = frozenset()


class Policies(Protocol):
    """What goes besides, of scopes that live (`record/retention_policies.py`)."""

    def plan(self, held: set[str]) -> Retention:
        """Returns which scopes would be removed, and what would keep one; changes nothing."""
        ...

    def apply(self, held: set[str]) -> Retention:
        """Removes what the policies say, and returns the same."""
        ...

    def condemned(self, *, dry_run: bool) -> Iterator[Condemned]:
        """Yields what may go of scopes that stay, and is known without it: a base is written."""
        ...


# --- what may go ----------------------------------------------------------------------------------


def condemned(log: Log, *, now_us: int, grace_us: int) -> Iterator[Condemned]:
    """Yields what may go of every scope, in the order of names; holds are not looked at."""
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
    """Returns why and since when what a stream held is over, and up to which revision."""
    if head.expires_us:
        return None  # where the backend lets go of it by itself, nothing is left to do
    ends_us = log.expiry.end(stream, head)
    if ends_us and log.expiry.is_due(stream, head):
        return "expired", ends_us, head.revision
    newest = log.record(stream, head.revision)
    end = end_of(newest) if newest.payload != GONE else None
    if end is not None and end.dropped:
        return "closed", newest.time, end.closed_at - 1
    removed_at = log.life(stream, head.revision)
    if removed_at:
        return "removed", log.record(stream, removed_at).time, removed_at - 1
    return None


def kept_for_forks(log: Log) -> dict[str, int]:
    """Returns up to which revision each stream is the past of a fork that is there."""
    kept: dict[str, int] = {}
    for name, head in _heads(log):
        if head.first == 1 or log.life(name, head.revision) >= head.first:
            continue  # no fork; or one that was removed, and has a past of its own since
        for above, until in log.ancestry(name, head.revision):
            if above != name:
                kept[above] = max(kept.get(above, 0), until)
    return kept


def _heads(log: Log) -> Iterator[tuple[str, Head]]:
    after = ""
    while names := log.stream_page(after=after):
        for name, head in zip(names, log.heads(names), strict=True):
            if head is not None:
                yield name, head
        after = names[-1]


def _records(log: Log, one: Condemned) -> Iterator[Record]:
    """Yields the records that have something to let go of."""
    after = one.after
    while after < one.until:
        page = log.stored(one.stream, after=after, until=one.until)
        for record in page:
            is_gone = record.payload == GONE or len(record.payload) < len(GONE)
            if not is_gone and _may_go(record.type, one) and record.revision not in one.kept:
                yield record
        after = page[-1].revision


def _may_go(type: str, one: Condemned) -> bool:
    if one.types:
        return is_named(type, one.types)
    if one.why == "closed":
        return type in _STATE or type.startswith(_MESSAGES)
    if one.why == "erased" and type == CHECKPOINTED:
        return True  # sealed with its name
    return type not in _STRUCTURE


def is_named(type: str, types: Sequence[str]) -> bool:
    """Says whether a stored type is one of some, of which one that ends in * is a beginning."""
    return any(type == one or (one[-1:] == "*" and type.startswith(one[:-1])) for one in types)


# --- letting go -----------------------------------------------------------------------------------


class Retainer:
    """Lets go of what may go, for one store."""

    def __init__(
        self, log: Log, lease_keeper: LeaseKeeper, forget_copies: Callable[[], None]
    ) -> None:
        """`forget_copies` has everything made again that layers above keep of events."""
        self._log = log
        self.forget_copies = forget_copies
        self._lease_keeper = lease_keeper
        self._lock = Lock()

    def hold(self, scope: str, reason: str) -> None:
        """Keeps everything of a scope until it is released, whatever becomes of it."""
        if self._log.heads([scope])[0] is None:
            raise NotFoundError(f'there is no scope "{scope}" to hold')
        holds.keep(self._log, scope)
        payload = codec.encode_plain(_Held(scope, reason))
        self._commit([NewEvent(HELD, payload)], marks=[Mark(HOLDS, scope)])
        # A retain beside us may have found it kept and not held yet. Whoever spills a large value
        # from here on keeps it for good.
        holds.keep(self._log, scope)
        holds.keep_blobs(self._log, scope)

    def release(self, scope: str) -> None:
        """Ends a hold."""
        if all(hold.scope != scope for hold in self.holds()):
            raise NotFoundError(f'scope "{scope}" is not held')
        payload = codec.encode_plain(_Held(scope))
        # Blobs that were kept for good for the hold are looked at when its end has come.
        [head] = self._log.heads([scope])
        ends_us = 0 if head is None else head.expires_us
        due_us = max(ends_us, self._log.clock.now_us()) + round(GRACE_S * 1_000_000)
        names = sorted(holds.keep_blobs(self._log, scope)) if ends_us else []
        marks = [Cleared(HOLDS, scope), *(Mark(BLOBS, name, due_us) for name in names)]
        self._commit([NewEvent(RELEASED, payload)], marks=marks)
        holds.let_end(self._log, scope)

    def tell_binned(self, scope: str, revision: int, policy: str) -> None:
        """Records, before a policy removes a scope, which one does and at which revision."""
        payload = codec.encode_plain({"scope": scope, "revision": revision, "policy": policy})
        self._commit([NewEvent(BINNED, payload)])

    def binned(self) -> dict[str, tuple[int, str]]:
        """Returns what policies have removed: by scope, the revision that it had, and why."""
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
        for record in _told(self._log, LET_GO):
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
        for one in chain(ended, _by_policies(policies, dry_run=True)):
            if one.stream in held:
                kept.append(one.stream)
                continue
            sizes = [len(record.payload) for record in _records(self._log, one)]
            if sizes:
                scopes.append(_retained(one, len(sizes), sum(sizes)))
        kept = sorted({*kept, *planned.held})
        return replace(planned, scopes=scopes, held=kept, dry_run=True)

    def check_rewrites(self) -> None:
        """Raises UsageError if a backend of the store cannot let go of what it stores."""
        for part in self._log.routes.parts() or [self._log._backend]:
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

    def _under_lease(self, wait_s: float, work: Callable[[Lease], Retention]) -> Retention:
        """Does what lets go of data while no other process does."""
        if not self._lock.acquire(timeout=wait_s):
            raise _at_work(self._lease_keeper.worker)
        try:
            lease = acquire_within(
                self._log.clock,
                lambda: self._lease_keeper.take(LEASE_NAME, ttl_s=LEASE_TTL_S),
                wait_s,
            )
            try:
                return work(lease)
            finally:
                self._lease_keeper.give_back(lease)
        finally:
            self._lock.release()

    def erase(self, subject: str, streams: Sequence[str], *, wait_s: float) -> Retention:
        """Lets go of all that a subject's streams hold, at once; raises as `run` does.

        They are sealed: nobody else names their blobs, and nothing was derived from them in clear.
        So no other data of the store is looked at.
        """
        return self._under_lease(
            wait_s, lambda lease: _Run(self, self._log, lease, 0, None).erase(subject, streams)
        )

    def check_no_fork(self, stream: str) -> None:
        """Raises UsageError if a fork that is there began from a scope: it is the fork's past."""
        if kept_for_forks(self._log).get(stream):
            raise UsageError(
                f'scope "{stream}" is the past of a fork that is there: nothing was erased',
                hint="erase the fork first",
            )

    def erase_scope(self, stream: str, *, wait_s: float) -> Retention:
        """Lets go of all that a removed scope held, at once, of data that was never sealed."""
        return self._under_lease(
            wait_s, lambda lease: _Run(self, self._log, lease, 0, None).erase_scope(stream)
        )

    def held(self) -> set[str]:
        """Returns the names of the scopes that are held."""
        return {mark.key for mark in self._log.marks.list(HOLDS, limit=NO_LIMIT)}

    def _commit(
        self,
        new_events: list[NewEvent],
        marks: Iterable[Mark | Cleared] = (),
        lease: Lease | None = None,
    ) -> None:
        writes = (StreamWrite(STREAM, tuple(new_events)),) if new_events else ()
        fence = None if lease is None else Fence(lease.name, lease.owner, lease.epoch)
        self._log.commit(ProposedCommit(writes, marks=tuple(marks), fence=fence))


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

    def run(self, *, whole: bool) -> Retention:
        log = self._log
        holds.keep_held(log, self._retainer.held())
        pending = {mark.key for mark in log.marks.list(PENDING, limit=NO_LIMIT)}
        policies = self._policies
        done = NO_POLICIES if policies is None else policies.apply(self._retainer.held())
        self._kept += done.held
        ended = condemned(log, now_us=log.clock.now_us(), grace_us=self._grace_us)
        for one in chain(ended, _by_policies(policies, dry_run=False)):
            if one.stream in self._retainer.held():  # asked each time: it may be held since
                self._kept.append(one.stream)
                continue
            self._let_go(one)
            if one.stream in pending:
                self._snapshots[one.stream] = _snapshots_until(one)
        self._flush()
        blobs = self._collect_blobs(whole=whole)
        left: list[Leftover] = []
        if self._scopes or blobs or pending or whole:
            left = self._purge(whole=whole)
        kept = sorted(set(self._kept))
        return replace(done, scopes=self._scopes, blobs=blobs, held=kept, left=left, dry_run=False)

    def erase(self, subject: str, streams: Sequence[str]) -> Retention:
        log = self._log
        # One that was killed has told of blobs that it did not delete any more.
        told = [mark.key for mark in log.marks.list(BLOBS, limit=NO_LIMIT)]
        blobs = {name for name in told if log.blobs.subject(name) == subject}
        for stream, head in zip(streams, log.heads(streams), strict=True):
            if head is None or head.expires_us:
                continue  # a server lets go of it by itself
            now_us = log.clock.now_us()
            one = Condemned(stream, "erased", now_us, head.first - 1, head.revision)
            for record in _records(log, one):
                blobs.update(name for name, _ in codec.blobs_in(record.payload))
            self._let_go(one)
            self._snapshots[stream] = head.revision  # also if the events went before a kill
        self._flush(is_sealed=True)
        for name in sorted(blobs):
            log.blobs.delete(name)
        for some in _chunks([Cleared(BLOBS, name) for name in sorted(blobs)], MARKS_PER_COMMIT):
            self._retainer._commit([], some, self._lease)
        return Retention(self._scopes, len(blobs), [], self._purge(whole=False), False)

    def erase_scope(self, stream: str) -> Retention:
        [head] = self._log.heads([stream])
        if head is not None and not head.expires_us:
            now_us = self._log.clock.now_us()
            one = Condemned(stream, "erased", now_us, head.first - 1, head.revision)
            self._let_go(one)
            self._snapshots[stream] = head.revision
        self._flush()
        blobs = self._collect_blobs(whole=False)
        return Retention(self._scopes, blobs, [], self._purge(whole=False), False)

    # --- records ---

    def _let_go(self, one: Condemned) -> None:
        """Steps 1 and 2 of what may go of one scope; small ones are done together."""
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

    def _tell(self, one: Condemned, chunk: list[Record]) -> None:
        self._telling.append((one, chunk))
        if sum(len(records) for _, records in self._telling) >= DIGESTS_PER_COMMIT:
            self._tell_all()
        if self._waiting >= RECORDS_AT_ONCE:
            self._flush()

    def _tell_all(self) -> None:
        """Step 1 of what has gathered: it is told in one commit, unless it is held since."""
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
            said = _LetGo(one.stream, one.why, _runs(chunk), names)
            new_events.append(NewEvent(LET_GO, codec.encode_plain(said)))
            marks[PENDING, one.stream] = Mark(PENDING, one.stream)
            marks.update(((BLOBS, name), Mark(BLOBS, name, due_us)) for name in names)
            self._batch.setdefault(one.stream, []).extend(record.revision for record in chunk)
            self._waiting += len(chunk)
            self._snapshots[one.stream] = _snapshots_until(one)
        if new_events:
            self._retainer._commit(new_events, marks.values(), self._lease)

    def _flush(self, *, is_sealed: bool = False) -> None:
        """Steps 2, 3 and 5 of what was told so far. Nothing is derived from what is sealed."""
        self._tell_all()
        self._check_lease()
        batch, self._batch, self._waiting = self._batch, {}, 0
        snapshots, self._snapshots = self._snapshots, {}
        if batch:
            backend = self._log._backend
            assert isinstance(backend, Rewrites), "BUG: asked before"
            backend.rewrite(batch)
        for stream, until in snapshots.items():
            self._log.snapshots.forget(stream, until)
        if snapshots and not is_sealed:
            places = {self._log.routes.place_of(stream): stream for stream in snapshots}
            for stream in places.values():
                self._log.snapshots.forget_derived(stream)
            self._retainer.forget_copies()
        for some in _chunks([Cleared(PENDING, stream) for stream in snapshots], MARKS_PER_COMMIT):
            self._retainer._commit([], some, self._lease)

    def _check_lease(self) -> None:
        """Raises LeaseLostError if another process may be at work by now."""
        holder = self._log.leases.holder(LEASE_NAME)
        if holder is None or (holder.owner, holder.epoch) != (self._lease.owner, self._lease.epoch):
            raise _at_work(holder.owner if holder is not None else "nobody any more")

    # --- blobs ---

    def _collect_blobs(self, *, whole: bool) -> int:
        """Step 4: deletes the blobs that may have nobody who names them, and have nobody.

        Who spills a large value looks whether blobs were collected since it knew of one, and writes
        it again then. One that was named while we looked is put back: its bytes are at hand.
        """
        log, now_us = self._log, self._log.clock.now_us()
        marked = {mark.key: mark.due for mark in log.marks.list(BLOBS, limit=NO_LIMIT)}
        due = {name for name, due_us in marked.items() if due_us <= now_us}
        if not due and not whole:
            return 0
        self._retainer._commit([], [Mark(COLLECTED, "blobs", now_us)], self._lease)
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

    def _purge(self, *, whole: bool) -> list[Leftover]:
        """Step 6."""
        backend = self._log._backend
        assert isinstance(backend, Rewrites), "BUG: asked before"
        left = backend.purge(whole=whole)
        said = {"left": [[one.where, one.remedy] for one in left]}
        self._retainer._commit([NewEvent(PURGED, codec.encode_plain(said))], (), self._lease)
        return left


NO_POLICIES = Retention([], 0, [], [], True)


def _by_policies(policies: Policies | None, *, dry_run: bool) -> Iterator[Condemned]:
    return iter(()) if policies is None else policies.condemned(dry_run=dry_run)


def _snapshots_until(one: Condemned) -> int:
    """Returns up to which revision snapshots may hold, or refer to, what goes."""
    return 1 << 62 if one.why == "compacted" else one.until


def _retained(one: Condemned, events: int, size: int) -> Retained:
    return Retained(one.stream, one.why, to_datetime(one.since_us), one.until, events, size)


def _runs(chunk: list[Record]) -> list[tuple[int, str]]:
    """Returns the digests of payloads, those of neighbours together."""
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
    """What is told of one event that was let go of: the digest of its payload, why, and where."""

    digest: bytes
    why: Why
    position: Position


def told_by(record: Record) -> Iterator[tuple[tuple[str, int], Told]]:
    """Yields what an event of `retention/log` tells was let go of, by stream and revision."""
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
    """Returns what is told of every event that was let go of, by stream and revision."""
    return {name: told for record in _told(log, LET_GO) for name, told in told_by(record)}


def tell_again(log: Log, gone: Mapping[tuple[str, int], Told], key: str) -> None:
    """Tells in a log what another one tells, in one commit: the events are gone in both."""
    scopes: dict[tuple[str, Why], list[tuple[int, bytes]]] = {}
    for (stream, revision), told in sorted(gone.items()):
        scopes.setdefault((stream, told.why), []).append((revision, told.digest))
    new_events: list[NewEvent] = []
    for (stream, why), digests in scopes.items():
        for start in range(0, len(digests), DIGESTS_PER_EVENT):
            said = _LetGo(stream, why, _together(digests[start : start + DIGESTS_PER_EVENT]))
            new_events.append(NewEvent(LET_GO, codec.encode_plain(said)))
    log.commit(ProposedCommit((StreamWrite(STREAM, tuple(new_events), key=key),)))


def digests_told(log: Log) -> dict[tuple[str, int], bytes]:
    """Returns the digest of each payload that was let go of, by stream and revision."""
    return {name: told.digest for name, told in ledger(log).items()}


def _told(log: Log, type: str) -> Iterator[Record]:
    after = 0
    while page := log.read(STREAM, after=after, limit=READ_CHUNK):
        yield from (record for record in page if record.type == type)
        after = page[-1].revision


def drop(log: Log) -> tuple[int, int, int, list[Leftover]]:
    """Takes out of a store that nobody writes to what its ledger names, and blobs nobody names.

    Returns how many events, bytes and blobs that were, and what is left of them.
    """
    backend = log._backend
    assert isinstance(backend, Rewrites), "BUG: the store of a backup is one of files"
    told: dict[str, set[int]] = {}
    for stream, revision in ledger(log):
        told.setdefault(stream, set()).add(revision)
    events = size = 0
    batch: dict[str, list[int]] = {}
    for stream, revisions in told.items():
        one = Condemned(stream, "removed", 0, min(revisions) - 1, max(revisions), ("*",))
        gone = [record for record in _records(log, one) if record.revision in revisions]
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


def _named_blobs(log: Log, after: Position) -> tuple[set[str], Position]:
    """Returns the blobs that events after a position name, and the position looked up to."""
    named: set[str] = set()
    while page := log.read_all(after=after, limit=READ_CHUNK):
        for record in page:
            if record.type != LET_GO:
                named.update(name for name, _ in codec.blobs_in(record.payload))
        after = page[-1].position
    return named, after


def _chunks(
    marks: list[Mark | Cleared] | list[Cleared], size: int
) -> Iterator[list[Mark | Cleared]]:
    for start in range(0, len(marks), size):
        yield [*marks[start : start + size]]


def _at_work(owner: str) -> LeaseLostError:
    return LeaseLostError(
        f'another retain is at work: "{owner}" has the lease "{LEASE_NAME}"',
        lease=LEASE_NAME,
        epoch=0,
        hint="wait until it ends; it goes on where it stopped if it is killed",
    )
